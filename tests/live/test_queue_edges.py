"""A queue on RabbitMQ at its edges: out of reach, full, held too long, its consumers crashed, its process ending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest

from placet.adapters.rabbitmq import RabbitOutlet
from placet.adapters.rabbitmq import inbox as inbox_module
from placet.errors import Code, ContractError, RetryableError
from placet.runtime.ports import OutboxRow
from placet.topology import DISPATCHER, RESUME, TOOL_EXECUTOR, Source, make_topology
from tests.cases import case
from tests.contracts.queue_contract import PATIENCE_S, a_row, an_envelope, collect, ids, is_empty, rows
from tests.live.broker_ends import BrokerEnds, a_start, eventually, take_all


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


# ── what is not delivered ──────────────────────────────────────────────────────────────


@case("P144")
async def test_a_message_that_reaches_no_queue_stays_a_row_and_goes_out_when_the_binding_is_back(ends):
    outlet = ends.outlet()
    resumed = OutboxRow("r", RESUME, "r", "approval.decided", 0, an_envelope(1).encode())
    queue = await (await (await ends.connection()).channel()).get_queue("placet.resume")
    await queue.unbind("placet.work", "resume")
    assert await outlet.publish([resumed, a_row(2)]) == ["msg_2"]
    assert outlet.trouble == "resume: no queue is bound for it"
    await queue.bind("placet.work", "resume")
    assert await outlet.publish([resumed]) == ["r"]
    assert outlet.trouble is None


async def test_a_row_for_a_destination_of_another_version_stays_and_its_neighbours_go(ends):
    outlet = ends.outlet()
    strange = OutboxRow("s", "tool-executor.unknown", "r", "operation.execute", 0, an_envelope(1).encode())
    assert await outlet.publish([strange, a_row(2)]) == ["msg_2"]
    nobody = OutboxRow("n", "nobody", "r", "run.submit", 0, an_envelope(3).encode())
    assert await outlet.publish([nobody]) == []
    assert set(outlet.unrouted) == {"tool-executor.unknown", "nobody"}
    assert outlet.trouble is None, "it is another's to publish: this process is well"


async def test_a_row_for_a_pool_that_only_others_know_goes_to_its_queue(amqp_url):
    async with BrokerEnds(amqp_url, make_topology(["gpu"])) as wider:
        outlet = RabbitOutlet(wider.url, make_topology(), "test without the pool")
        outlet.start()
        try:
            row = OutboxRow("m", "tool-executor.gpu", "r", "operation.execute", 0, an_envelope(1).encode())
            assert await outlet.publish([row]) == ["m"]
            assert await wider.count("placet.tool-executor.gpu") == 1
        finally:
            await outlet.close()


async def test_what_a_full_queue_refuses_stays_a_row(amqp_url):
    topology = make_topology()
    async with BrokerEnds(amqp_url, topology) as ends:
        channel = await (await ends.connection()).channel()
        await channel.queue_delete("placet.dispatcher")
        arguments: Any = {**topology.queues[1].arguments(), "x-max-length": 1}
        queue = await channel.declare_queue("placet.dispatcher", durable=True, arguments=arguments)
        await queue.bind("placet.work", "dispatcher")
        outlet = ends.outlet()

        async def refused() -> bool:  # the bound of a quorum queue is not exact
            return not await outlet.publish([a_row(1)])

        await eventually(refused)
        assert "refuses" in (outlet.trouble or "")
        assert await ends.count("placet.dispatcher") <= 4


async def test_publishing_nothing_needs_no_broker(ends):
    outlet = ends.outlet("amqp://127.0.0.1:1/")
    assert await outlet.publish([]) == []


async def test_a_broker_that_cannot_be_reached_is_an_error_that_says_so_after_the_patience(ends):
    outlet = ends.outlet("amqp://127.0.0.1:1/", patience_ms=100)
    with pytest.raises(RetryableError) as caught:
        await outlet.publish([a_row(1)])
    assert caught.value.code is Code.BROKER_UNAVAILABLE


# ── the end of a process ───────────────────────────────────────────────────────────────


async def test_when_intake_stops_another_gets_at_once_what_no_worker_had(ends):
    first = ends.inbox()
    await ends.outlet().publish(rows(*range(96)))
    at_work = await collect(first, 32)

    async def prefetched() -> bool:
        return await ends.count("placet.dispatcher") == 0

    await eventually(prefetched)
    await first.stop_intake()
    second = ends.inbox()
    assert sorted(ids(await collect(second, 64))) == sorted(f"msg_{n}" for n in range(32, 96))
    await first.settle(at_work, [])
    first.put(an_envelope(1_000))
    assert ids(await first.take(64)) == ["msg_1000"], "results still enter"
    await first.disconnect()
    assert await is_empty(second), "what was at work was acknowledged in time"


async def test_what_is_given_back_after_intake_has_stopped_goes_to_another(ends):
    first = ends.inbox()
    await ends.outlet().publish(rows(1))
    taken = await collect(first, 1)
    await first.stop_intake()
    await first.settle([], taken)
    assert ids(await collect(ends.inbox(), 1)) == ["msg_1"]


async def test_a_cancelled_worker_gives_back_and_loses_nothing(ends):
    inbox = ends.inbox()
    taking = asyncio.ensure_future(inbox.take(64))
    await asyncio.wait([taking], timeout=0.05)
    taking.cancel()
    await ends.outlet().publish(rows(1))
    assert ids(await collect(inbox, 1)) == ["msg_1"]


async def test_ends_may_be_closed_twice_and_before_they_were_started(ends):
    inbox, outlet = ends.inbox(), ends.outlet("amqp://127.0.0.1:1/")
    for _ in range(2):
        await inbox.disconnect()
        await outlet.close()
    async with asyncio.timeout(PATIENCE_S):
        assert await inbox.take(1) == ()


# ── crashes of consumers ───────────────────────────────────────────────────────────────


async def crash(inbox) -> None:
    """The connection ends as with the process: nothing is settled, nothing is given back in an orderly way."""
    await inbox.disconnect()


async def test_after_a_crash_of_its_consumer_a_message_comes_again_elsewhere(ends):
    await ends.outlet().publish(rows(1, 2, 3))
    first = ends.inbox()
    await collect(first, 3)
    await crash(first)
    assert ids(await collect(ends.inbox(), 3)) == ["msg_1", "msg_2", "msg_3"]


@case("P138", "F18")
async def test_a_message_that_ends_its_consumers_is_parked_and_all_the_others_are_done(ends):
    await ends.outlet().publish(rows(*range(12)))
    await ends.put_raw(DISPATCHER, an_envelope(666).encode())
    await ends.outlet().publish(rows(*range(12, 24)))
    done: set[str] = set()
    for _ in range(60):
        inbox = ends.inbox()
        try:
            async with asyncio.timeout(0.4):
                while True:
                    taken = await inbox.take(64)
                    if "msg_666" in ids(taken):
                        break  # the process dies while it handles this
                    done.update(ids(taken))
                    await inbox.settle(taken, [])
        except TimeoutError:
            break  # nothing waits any more
        finally:
            await crash(inbox)
    assert done == {f"msg_{n}" for n in range(24)}
    (parked,) = await ends.parked(1)
    assert parked.body == an_envelope(666).encode()
    assert parked.headers["x-first-death-reason"] == "delivery_limit"
    assert parked.routing_key == "placet.dispatcher"


async def test_an_opener_that_cannot_tell_now_loses_nothing(ends):
    answers = iter([RetryableError(Code.STORE_UNAVAILABLE, "away"), ContractError(Code.UNAUTHENTICATED, "who?"), None])

    async def opener(message):
        answer = next(answers)
        if answer is not None:
            raise answer
        return an_envelope(1)

    source = Source("placet.ingress.submissions", 16, public=True)
    inbox = ends.inbox(sources=(source,), openers={source.queue: opener})
    channel = await (await ends.connection()).channel()
    exchange = await channel.get_exchange("placet.submissions")
    for body in (b"one", b"two"):
        await exchange.publish(aio_pika.Message(body), "run.submit")
    with pytest.raises(RetryableError):
        async with asyncio.timeout(PATIENCE_S):
            await inbox.take(64)
    assert ids(await collect(inbox, 1)) == ["msg_1"]
    (parked,) = await ends.parked(1)
    assert (parked.body, parked.headers["x-placet-code"]) == (b"one", "UNAUTHENTICATED")


# ── held for long ──────────────────────────────────────────────────────────────────────


@case("P148")
async def test_what_waits_long_for_a_place_is_passed_on_to_an_executor_that_has_one(ends, monkeypatch):
    monkeypatch.setattr(inbox_module, "PASS_ON_S", 0.3)
    places = 0
    busy = ends.inbox(TOOL_EXECUTOR, room=lambda queue: places)
    outlet = ends.outlet()
    await outlet.publish([a_start(n) for n in range(8)])
    waiting = asyncio.ensure_future(busy.take(64))

    async def holds_them() -> bool:
        return busy.held == 2

    await eventually(holds_them)
    free = ends.inbox(TOOL_EXECUTOR)
    taken = await collect(free, 8)
    assert sorted(ids(taken)) == [f"msg_{n}" for n in range(8)]
    await free.settle(taken, [])

    async def holds_nothing() -> bool:
        return busy.held == 0

    await eventually(holds_nothing)
    await free.disconnect()
    places = 1
    await outlet.publish([a_start(99)])
    async with asyncio.timeout(PATIENCE_S):
        assert ids(await waiting) == ["msg_99"], "with a place it takes calls again"


async def test_what_an_outage_of_the_store_keeps_here_for_long_is_published_anew(ends, monkeypatch):
    monkeypatch.setattr(inbox_module, "HOLD_S_MAX", 0.3)
    monkeypatch.setattr(inbox_module, "LOOK_S", 0.1)
    inbox = ends.inbox()
    await ends.outlet().publish(rows(*range(8)))
    taken = await collect(inbox, 8)
    await inbox.settle([], taken)
    for _ in range(8):  # the worker's loop, backing off
        await asyncio.sleep(0.1)
        await inbox.settle([], await inbox.take(1))

    async def renewed() -> bool:
        taken = await inbox.take(1)
        fresh = inbox._hold is not None and max(inbox._hold._order) > 1
        await inbox.settle([], taken)
        return fresh

    await eventually(renewed)
    await take_all(inbox, {f"msg_{n}" for n in range(8)})
    assert await is_empty(inbox)
