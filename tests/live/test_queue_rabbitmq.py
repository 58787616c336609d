"""The queue on RabbitMQ keeps every promise of a queue, and its own: packs, parking, shares, drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from placet.errors import Code
from placet.ids import Address
from placet.messages import Envelope, ExecuteOperation
from placet.runtime.ports import OutboxRow
from placet.topology import DISPATCHER, RESUME, TOOL_EXECUTOR, Source, make_topology, tool_pool
from tests.builders import TENANT
from tests.cases import case
from tests.contracts.queue_contract import QueueContract, a_row, an_envelope, collect, ids, is_empty, rows
from tests.live.broker_ends import BrokerEnds, a_cancel, a_start, eventually

POISON = Path(__file__).with_name("poison_messages.json")


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


class TestRabbitQueue(QueueContract):
    adapter = "rabbitmq"

    @pytest.fixture(autouse=True)
    def _on_broker(self, ends: BrokerEnds) -> None:
        self.broker = ends

    async def ends(self):
        return self.broker.inbox(), self.broker.outlet()


# ── packs ──────────────────────────────────────────────────────────────────────────────


async def test_sixty_four_rows_for_one_service_are_two_amqp_messages(ends):
    outlet = ends.outlet()
    confirmed = await outlet.publish(rows(*range(64)))
    assert confirmed == [f"msg_{n}" for n in range(64)]
    assert await ends.count("placet.dispatcher") == 2
    assert ids(await collect(ends.inbox(), 64)) == confirmed


async def test_large_rows_travel_in_smaller_packs_and_one_larger_than_a_pack_alone(ends):
    published = [a_row(n, "x" * 30_000) for n in range(16)]
    await ends.outlet().publish(published)
    assert await ends.count("placet.dispatcher") == 2
    taken = await collect(ends.inbox(), 16)
    assert [delivery.envelope.encode() for delivery in taken] == [row.body for row in published]


async def test_an_amqp_message_is_acknowledged_when_all_of_it_is_done_and_not_before(ends):
    await ends.outlet().publish(rows(*range(8)))
    first = ends.inbox()
    taken = await collect(first, 8)
    await first.settle(taken[:7], [])
    assert first.held == 1
    await first.disconnect()
    second = ends.inbox()
    assert len(await collect(second, 8)) == 8, "one envelope was not done: all of the message comes again"


async def test_a_row_that_comes_twice_in_one_call_is_published_once(ends):
    outlet = ends.outlet()
    assert await outlet.publish([a_row(1), a_row(1)]) == ["msg_1"]
    inbox = ends.inbox()
    assert ids(await collect(inbox, 1)) == ["msg_1"]
    assert await is_empty(inbox)


async def test_calls_of_tools_travel_in_small_packs_so_that_executors_share_them(ends):
    await ends.outlet().publish([a_start(n) for n in range(16)])
    assert await ends.count("placet.tool-executor") == 4


async def test_an_executor_takes_no_more_calls_than_it_has_places_and_hears_signals_all_the_same(ends):
    places = 3
    inbox = ends.inbox(TOOL_EXECUTOR, room=lambda queue: places)
    outlet = ends.outlet()
    await outlet.publish([a_start(n) for n in range(8)])
    taken = await collect(inbox, 3)
    places = 0
    await inbox.settle(taken, [])
    assert await is_empty(inbox)
    await outlet.publish([a_cancel(1)])
    assert ids(await collect(inbox, 1)) == ["cancel_1"]
    places = 5
    assert len(await collect(inbox, 5)) == 5


async def test_a_pool_of_executors_has_a_queue_of_its_own(amqp_url):
    async with BrokerEnds(amqp_url, make_topology(["gpu"])) as ends:
        envelope = Envelope(id="m", message=ExecuteOperation(tenant=TENANT, run_id="r", operation_id="o"))
        row = OutboxRow("m", tool_pool("gpu"), "r", "operation.execute", 0, envelope.encode())
        assert await ends.outlet().publish([row]) == ["m"]
        assert ids(await collect(ends.inbox(tool_pool("gpu")), 1)) == ["m"]
        assert envelope.message.to() == Address("r", "operation", "o")


# ── shares ─────────────────────────────────────────────────────────────────────────────


async def test_several_consumers_share_the_load_and_none_gets_anything_twice(ends):
    seen: list[list[str]] = [[], [], []]

    async def work(at: int) -> None:
        inbox = ends.inbox(sources=(Source("placet.dispatcher", 2),))
        while taken := await inbox.take(64):
            seen[at] += ids(taken)
            await asyncio.sleep(0.001)  # the commit
            await inbox.settle(taken, [])

    workers = [asyncio.ensure_future(work(at)) for at in range(3)]
    outlet = ends.outlet()
    for start in range(0, 960, 64):
        await outlet.publish(rows(*range(start, start + 64)))

    async def all_came() -> bool:
        return sum(map(len, seen)) >= 960

    await eventually(all_came)
    assert sorted(id_ for ids_ in seen for id_ in ids_) == sorted(f"msg_{n}" for n in range(960))
    assert all(seen), "each got something"
    for worker in workers:
        worker.cancel()


async def test_a_flood_on_one_queue_does_not_keep_another_waiting(ends):
    sources = tuple(ends.topology.sources[service][0] for service in (DISPATCHER, RESUME))
    await ends.outlet().publish(rows(*range(512)))
    resumed = [OutboxRow(f"r_{n}", RESUME, "r", "run.submit", 0, an_envelope(10_000 + n).encode()) for n in range(4)]
    await ends.outlet().publish(resumed)
    inbox = ends.inbox(sources=sources)

    async def both_consume() -> bool:
        return await ends.count("placet.resume") == 0

    await eventually(both_consume)
    taken = ids(await collect(inbox, 128))
    assert {f"msg_{10_000 + n}" for n in range(4)} <= set(taken)


@case("P148")
async def test_what_a_consumer_holds_is_bounded_by_its_prefetch(ends):
    for n in range(10):
        await ends.put_raw(DISPATCHER, an_envelope(n).encode())
    inbox = ends.inbox(sources=(Source("placet.dispatcher", 4),))
    await collect(inbox, 4)

    async def rest_waits() -> bool:
        return await ends.count("placet.dispatcher") == 6

    await eventually(rest_waits)
    assert inbox.held == 4


# ── what cannot be read ────────────────────────────────────────────────────────────────


def poison() -> list[bytes]:
    cases = json.loads(POISON.read_text())
    return [text.encode() for text in cases["bodies_as_text"]] + [bytes.fromhex(h) for h in cases["bodies_as_hex"]]


@pytest.mark.parametrize("service", ["dispatcher", "resume", "planner", "tool-executor", "approval"])
@case("P139")
async def test_each_poisonous_body_is_parked_once_with_the_reason_and_the_next_good_message_passes(ends, service):
    inbox = ends.inbox(service)
    bodies = poison()
    for body in bodies:
        await ends.put_raw(service, body)
    await ends.put_raw(service, an_envelope(1).encode())
    async with asyncio.timeout(2):
        taken = await inbox.take(64)
    assert ids(taken) == ["msg_1"]
    await inbox.settle(taken, [])
    parked = await ends.parked(len(bodies))
    assert sorted(message.body for message in parked) == sorted(bodies)
    for message in parked:
        assert message.headers["x-placet-queue"] == f"placet.{service}"
        assert Code(str(message.headers["x-placet-code"]))
        assert message.headers["x-placet-reason"]

    async def nothing_held() -> bool:
        return inbox.held == 0

    await eventually(nothing_held)


async def test_a_line_that_cannot_be_read_is_parked_alone_and_its_neighbours_arrive(ends):
    body = b"\n".join([an_envelope(1).encode(), b"{", an_envelope(2).encode()])
    await ends.put_raw(DISPATCHER, body, content_type="application/x-ndjson")
    inbox = ends.inbox()
    taken = await collect(inbox, 2)
    assert ids(taken) == ["msg_1", "msg_2"]
    (parked,) = await ends.parked(1)
    assert parked.body == b"{"
    assert inbox.held == 1
    await inbox.settle(taken, [])
    assert inbox.held == 0


async def test_while_nothing_can_be_parked_the_body_is_held_and_good_messages_pass(ends):
    class Shut:
        open = False
        bodies: list[bytes] = []

        async def publish(self, rows):
            return []

        async def park(self, message, body, error):
            if self.open:
                self.bodies.append(body)
            return self.open

    parking = Shut()
    inbox = ends.inbox(outlet=parking)
    await ends.put_raw(DISPATCHER, b"{")
    await ends.put_raw(DISPATCHER, an_envelope(1).encode())
    await inbox.settle(await collect(inbox, 1), [])
    assert inbox.held == 1
    parking.open = True

    async def parked() -> bool:
        return parking.bodies == [b"{"] and inbox.held == 0

    await eventually(parked)
