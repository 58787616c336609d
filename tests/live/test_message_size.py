"""Proves that a message larger than any of ours is refused where it is published, and its publisher is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError

from placet import limits
from placet.adapters.memory import MemoryStore
from placet.adapters.rabbitmq import Incoming, open_submission
from placet.errors import Code, ContractError
from placet.messages import SubmitRun
from placet.runtime.ports import OutboxRow, Unit
from placet.runtime.relay import Relay
from placet.topology import DISPATCHER
from placet.values import Principal, PrincipalKind
from tests.builders import TENANT
from tests.contracts.queue_contract import a_row, collect, ids
from tests.contracts.units import ManualClock
from tests.live.broker_ends import BrokerEnds, eventually

LARGEST = limits.JSON_BYTES_MAX


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


def of_size(size: int) -> OutboxRow:
    return OutboxRow(f"size_{size}", DISPATCHER, "run-1", "run.submit", 0, b"x" * size)


async def test_the_broker_takes_the_largest_message_and_refuses_a_larger_one_aloud(ends: BrokerEnds) -> None:
    channel = await (await ends.connection()).channel()
    exchange = await channel.get_exchange("placet.submissions")
    await exchange.publish(aio_pika.Message(b"x" * LARGEST), "run.submit")
    with pytest.raises(AMQPError, match="larger than configured max size"):
        await exchange.publish(aio_pika.Message(b"x" * (LARGEST + 1)), "run.submit")
    assert await ends.count("placet.ingress.submissions") == 1


async def test_what_is_too_large_for_the_broker_never_leaves_us_and_harms_no_neighbour(ends: BrokerEnds) -> None:
    outlet = ends.outlet()
    with pytest.raises(ContractError) as refused:
        await outlet.publish([a_row(1), of_size(LARGEST + 1)])
    assert refused.value.code is Code.TOO_LARGE
    assert await outlet.publish([of_size(LARGEST), a_row(1)]) == [f"size_{LARGEST}", "msg_1"]
    assert outlet.trouble is None


async def test_a_row_that_is_too_large_is_parked_and_told_and_the_others_are_published(ends: BrokerEnds) -> None:
    store = MemoryStore(ManualClock())
    await store.commit([Unit(outbox=[of_size(LARGEST + 1), a_row(1)])])
    await Relay(store, ends.outlet()).turn()
    assert ids(await collect(ends.inbox(), 1)) == ["msg_1"]
    (letter,) = await store.dead_letters("", run_id=None, limit=9)
    assert (letter["code"], letter["bytes"]) == ("TOO_LARGE", LARGEST + 1)


async def test_a_question_that_is_too_large_is_answered_at_once_and_the_door_stays_open(ends: BrokerEnds) -> None:
    door, somebody = ends.door(), Principal(kind=PrincipalKind.HUMAN, id="alice")
    plain = SubmitRun(tenant=TENANT, run_id="run-1", team="release", goal="x", initiator=somebody)
    large = plain.model_copy(update={"goal": "x" * LARGEST})
    with pytest.raises(ContractError) as refused:
        await door.ask(large, message_id="m-1", timeout_ms=5_000)
    assert refused.value.code is Code.TOO_LARGE
    asking = asyncio.create_task(door.ask(plain, message_id="m-2", timeout_ms=60_000))

    async def asked() -> bool:
        return await ends.count("placet.dispatcher") == 1

    await eventually(asked)
    asking.cancel()
    await asyncio.wait([asking])


async def test_a_broker_without_our_settings_brings_us_nothing_larger_either() -> None:
    message = Incoming(
        body=b"[" + b" " * LARGEST, queue="placet.ingress.submissions", exchange="placet.submissions",
        routing_key="run.submit", content_type="", headers={}, message_id=None, correlation_id=None, reply_to=None,
        user_id="alice", deliveries=0,
    )  # fmt: skip
    with pytest.raises(ContractError) as refused:
        await open_submission(message)
    assert refused.value.code is Code.TOO_LARGE
