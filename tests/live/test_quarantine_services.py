"""Proves with the real services that what nobody could handle is in one list, and that events are sent if asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from tests.live.broker_ends import eventually
from tests.live.system import System, wait_until
from tests.live.test_services import GOAL, repository, system

__all__ = ["repository", "system"]


async def test_poison_on_a_queue_is_listed_by_the_gateway_and_the_service_is_ready_all_the_while(
    system: System, repository: Path
) -> None:
    connection = await aio_pika.connect(system.settings["AMQP_URL"])
    channel = await connection.channel()

    def listed() -> None:
        system.start("dispatcher", "resume")
        system.start("gateway", OPERATORS="true")
        with system.client() as client:
            wait_until(lambda: len(client.dead_letters().items) == 2, 30)
            for letter in client.dead_letters().items:
                shown = client.dead_letter(letter.id)
                assert (shown.queue, (shown.about or {})["content_type"]) == ("placet.resume", "text/plain")
                assert shown.body in ("no message", "\\xff")
        (dispatcher,) = system.of("dispatcher")
        status, body = dispatcher.probe()
        assert (status, body["quarantine"]) == (200, {"kept": 2, "trouble": "none"})

    for body in (b"no message", b"\xff"):
        await channel.default_exchange.publish(aio_pika.Message(body, content_type="text/plain"), "placet.resume")
    await asyncio.to_thread(listed)
    await connection.close()


@pytest.mark.parametrize("events", ["true", "false"])
async def test_events_for_the_outside_are_published_where_they_are_asked_for_and_nowhere_else(
    system: System, repository: Path, events: str
) -> None:
    connection = await aio_pika.connect(system.settings["AMQP_URL"])
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    for key in ("run.#", "approval.#"):
        await queue.bind("placet.events", key)

    def run() -> None:
        system.start(EVENTS=events)
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        for each in system.of("dispatcher") + system.of("approval") + system.of("resume"):
            each.end()  # what is due is published before the end

    await asyncio.to_thread(run)
    heard: list[Any] = []

    async def told() -> bool:
        message = await queue.get(no_ack=True, fail=False)
        if message is not None:
            heard.append(message)
        return message is None

    await eventually(told)
    if events == "true":
        assert {message.routing_key for message in heard} >= {"run.submitted", "approval.requested"}
        assert {message.content_type for message in heard} == {"application/cloudevents+json"}
    else:
        assert heard == []
    await connection.close()
