"""Proves how the stop of a call travels: to all who make such calls, with a service's own rights, across an outage."""

from __future__ import annotations

import asyncio
import runpy
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from placet.activities import Stop
from placet.adapters.rabbitmq import RabbitStops, declare
from placet.messages import OPERATION, THREAD
from placet.topology import make_topology
from tests.architecture.sources import ROOT
from tests.live import spaces
from tests.live.broker_ends import eventually
from tests.live.servers import Access

PATIENCE_S = 20


class Ear:
    """A process that makes calls for some machines: what it was told, and how often it may have missed something."""

    def __init__(self, url: str, *machines: str) -> None:
        self.stops = RabbitStops(url, "test", machines)
        self.heard: asyncio.Queue[Stop] = asyncio.Queue()
        self.gaps: asyncio.Queue[None] = asyncio.Queue()
        self.stops.listen(self.heard.put_nowait, lambda: self.gaps.put_nowait(None))
        self.stops.start()

    async def ready(self) -> None:
        """Until it hears; what may have been said before is a gap."""
        async with asyncio.timeout(PATIENCE_S):
            await self.gaps.get()

    async def next(self) -> Stop:
        async with asyncio.timeout(PATIENCE_S):
            return await self.heard.get()


Listen = Callable[..., Awaitable[Ear]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    ears: list[Ear] = []

    async def listening(url: str, *machines: str) -> Ear:
        ears.append(Ear(url, *machines))
        await ears[-1].ready()
        return ears[-1]

    yield listening
    for ear in ears:
        await ear.stops.close()


def a_stop(number: int = 1, machine: str = OPERATION) -> Stop:
    return Stop(tenant="acme", run_id="run-1", machine=machine, key=f"key-{number}", reason="the run was cancelled")


async def test_a_stop_reaches_all_who_make_such_calls_and_nobody_else(amqp_url: str, listen: Listen) -> None:
    await declare(amqp_url, make_topology(), wait_ms=10_000)
    first, second = await listen(amqp_url, OPERATION), await listen(amqp_url, OPERATION)
    planner, both = await listen(amqp_url, THREAD), await listen(amqp_url, OPERATION, THREAD)
    for number in range(100):
        first.stops.announce(a_stop(number))
    planner.stops.announce(a_stop(machine=THREAD))
    for ear in (first, second):
        assert [await ear.next() for _ in range(100)] == [a_stop(number) for number in range(100)]
    assert await planner.next() == a_stop(machine=THREAD)
    told = [await both.next() for _ in range(101)]
    assert {stop.machine for stop in told} == {OPERATION, THREAD}
    assert [ear.heard.empty() for ear in (first, second, planner, both)] == [True] * 4


@pytest.mark.parametrize(("service", "machine"), [("planner", THREAD), ("tool-executor", OPERATION)])
async def test_the_rights_that_a_service_is_given_are_enough_to_say_and_to_hear_it(
    service: str, machine: str, amqp_url: str, rabbitmq: Access, listen: Listen
) -> None:
    await declare(amqp_url, make_topology(), wait_ms=10_000)
    management, parts = rabbitmq.management, urlsplit(amqp_url)
    rights = runpy.run_path(str(ROOT / "deploy" / "make_secrets.py"))["rights"](service)
    name, password = f"{service}-{secrets.token_hex(4)}", secrets.token_hex(16)
    management.call(f"users/{name}", "PUT", {"password": password, "tags": ""})
    try:
        management.call(f"permissions/{quote(parts.path[1:], safe='')}/{name}", "PUT", rights)
        host = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"{name}:{password}@{host}"))
        one, other = await listen(url, machine), await listen(url, machine)
        one.stops.announce(a_stop(machine=machine))
        assert await other.next() == a_stop(machine=machine)
        assert (one.stops.trouble, other.stops.trouble) == (None, None)
    finally:
        management.call(f"users/{name}", "DELETE")


async def test_what_is_said_during_an_outage_is_said_after_it_and_who_hears_again_is_told_of_the_gap(
    own_rabbitmq: Any, listen: Listen
) -> None:
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        await declare(url, make_topology(), wait_ms=10_000)
        one, other = await listen(url, OPERATION), await listen(url, OPERATION)
        await asyncio.to_thread(own_rabbitmq.kill)

        async def down() -> bool:
            return one.stops.trouble is not None and other.stops.trouble is not None

        await eventually(down)
        one.stops.announce(a_stop())
        await asyncio.to_thread(own_rabbitmq.start)
        await other.ready()
        await one.ready()
        # Whoever heard again in time was told; to anybody else the gap says to look for itself.
        other.stops.announce(a_stop(2))
        heard = [await one.next()]
        while heard[-1] != a_stop(2):
            heard.append(await one.next())
        assert set(heard) <= {a_stop(), a_stop(2)}
        assert one.stops._waiting == [], "it has been said"


async def test_what_cannot_be_read_is_told_and_stops_nothing(amqp_url: str, listen: Listen, caplog) -> None:
    await declare(amqp_url, make_topology(), wait_ms=10_000)
    ear = await listen(amqp_url, OPERATION)
    await ear.stops._hearing.say(OPERATION, b'{"activity":"stop"}\n' + a_stop().model_dump_json().encode(), "x", 5_000)
    assert await ear.next() == a_stop()
    assert [record.message for record in caplog.records if record.message == "stops.unreadable"]
