"""Proves that a dead letter is sent again as what it was: between services by its id, an outsider's as it came."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from placet.adapters.memory import MemoryStore
from placet.adapters.rabbitmq import Collector, open_submission
from placet.errors import Code, ContractError, TerminalError
from placet.topology import DISPATCHER, Source
from tests.architecture.sources import ROOT
from tests.contracts.queue_contract import an_envelope, collect, ids, rows
from tests.contracts.units import ManualClock
from tests.live import spaces
from tests.live.broker_ends import BrokerEnds, eventually
from tests.live.dead_letters import collector, give_up, letters_of, park, publish
from tests.live.servers import Access

SUBMISSIONS = "placet.ingress.submissions"
COUNT = "x-delivery-count"
OUTSIDERS = (Source(SUBMISSIONS, 16, public=True),)


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


# ── sent again ─────────────────────────────────────────────────────────────────────────


async def test_what_an_outsider_had_published_is_published_again_exactly_as_it_came(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    channel = await (await ends.connection()).channel()
    queue = await channel.get_queue(SUBMISSIONS)
    properties: dict[str, Any] = {
        "content_type": "application/json",
        "message_id": "m-1",
        "correlation_id": "c-1",
        "type": "run.submit",
        "headers": {"traceparent": "00-1", "n": 1, "nested": {"list": [True, None]}},
    }
    await publish(ends, b'{"as":"it came"}', **properties)
    first = await queue.get(timeout=5)
    await first.nack(requeue=True)
    inbox = ends.inbox(sources=OUTSIDERS, openers={SUBMISSIONS: open_submission})
    taking = asyncio.ensure_future(inbox.take(1))
    one = collector(ends, store)
    (letter,) = await letters_of(store, 1, tenant="")
    await inbox.disconnect()
    await taking
    await ends.door().send_as_it_came(letter["queue"], letter["body"].encode(), letter["about"])
    again = await queue.get(timeout=5)
    await again.ack()
    assert (again.body, again.exchange, again.routing_key) == (first.body, first.exchange, first.routing_key)
    for name in (*properties, "user_id"):
        expected, found = getattr(first, name), getattr(again, name)
        if name == "headers":  # the broker counts deliveries
            expected, found = dict(expected, **{COUNT: 0}), dict(found, **{COUNT: 0})
        assert found == expected, name
    await one.close()


@asynccontextmanager
async def as_user(server: Access, url: str, service: str) -> AsyncIterator[str]:
    """The broker's address for a user with the rights of a service, as the deployment makes them."""
    made = runpy.run_path(str(ROOT / "deploy" / "make_secrets.py"))
    name, vhost = spaces.fresh_name(), urlsplit(url).path[1:]
    call = server.management.call
    user = {"password": "hush", "tags": ",".join(made["TAGS"].get(service, []))}
    await asyncio.to_thread(call, f"users/{name}", "PUT", user)
    await asyncio.to_thread(call, f"permissions/{vhost}/{name}", "PUT", made["rights"](service))
    parts = urlsplit(url)
    yield urlunsplit(parts._replace(netloc=f"{name}:hush@{parts.hostname}:{parts.port}"))
    await asyncio.to_thread(call, f"users/{name}", "DELETE")


async def test_with_the_rights_of_the_deployment_the_dispatcher_collects_and_the_gateway_sends_again(
    ends: BrokerEnds, store: MemoryStore, rabbitmq: Access
) -> None:
    async with as_user(rabbitmq, ends.url, "dispatcher") as theirs, as_user(rabbitmq, ends.url, "gateway") as ours:
        one = Collector(theirs, "test", store, ends.topology, rows_max=1)
        one.start()
        about = json.dumps({"user_id": "an-outsider", "content_type": "application/json"})
        await park(ends, SUBMISSIONS, b"{}", b"[]", headers={"x-placet-about": about})
        (letter,) = await letters_of(store, 1, tenant="")

        async def one_stays() -> bool:  # and rests, so that the end of the collector comes between nothing
            return "more of them stay" in one.report()["trouble"] and len(one._held) == 1

        await eventually(one_stays)
        await one.close()
        (left,) = await ends.parked(1)
        assert left.body in (b"{}", b"[]")
        await ends.door(ours).send_as_it_came(letter["queue"], letter["body"].encode(), letter["about"])
        queue = await (await (await ends.connection()).channel()).get_queue(SUBMISSIONS)
        message = await queue.get(timeout=5)
        assert (message.body, message.user_id) == (letter["body"].encode(), "an-outsider")


async def test_what_was_not_kept_whole_or_was_never_an_outsiders_is_not_published_again(ends: BrokerEnds) -> None:
    door = ends.door()
    for queue, about in (("placet.dispatcher", {}), (SUBMISSIONS, {"cut": True}), (SUBMISSIONS, {"left_out": ["x"]})):
        with pytest.raises(ContractError) as refused:
            await door.send_as_it_came(queue, b"{}", about)
        assert refused.value.code is Code.MESSAGE_UNEXPECTED
    with pytest.raises(TerminalError) as forbidden:
        await door.send_as_it_came(SUBMISSIONS, b"{}", {"user_id": "somebody-else"})
    assert "impersonator" in forbidden.value.message
    assert await ends.count(SUBMISSIONS) == await ends.count("placet.dispatcher") == 0


async def test_a_message_between_services_that_was_given_up_is_taken_when_it_is_sent_again(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    await ends.outlet().publish(rows(1, 2))
    await give_up(ends, DISPATCHER)
    collector(ends, store)
    await letters_of(store, 2)
    door, envelope = ends.door(), an_envelope(2)
    asking = asyncio.ensure_future(door.ask(envelope.message, message_id=envelope.id, timeout_ms=5_000))
    assert ids(await collect(ends.inbox(), 1)) == [envelope.id]
    asking.cancel()
