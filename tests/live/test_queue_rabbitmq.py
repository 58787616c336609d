"""The queue on RabbitMQ keeps every promise of a queue, and its own: packs, parking, shares, drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from placet.adapters.rabbitmq import drop, look, send_again
from placet.errors import Code, ContractError, RetryableError
from placet.ids import Address
from placet.messages import CancelOperation, Envelope, ExecuteOperation
from placet.runtime.ports import OutboxRow
from placet.topology import DISPATCHER, RESUME, TOOL_EXECUTOR, Source, make_topology, tool_pool
from tests.builders import TENANT
from tests.contracts.queue_contract import PATIENCE_S, QueueContract, a_row, an_envelope, collect, ids, is_empty, rows
from tests.live.broker_ends import BrokerEnds, eventually

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


def execute(n: int) -> OutboxRow:
    message = ExecuteOperation(tenant=TENANT, run_id=f"run-{n}", operation_id=f"op_{n}")
    envelope = Envelope(id=f"msg_{n}", message=message)
    return OutboxRow(envelope.id, TOOL_EXECUTOR, message.run_id, message.type, 0, envelope.encode())


def cancel(n: int) -> OutboxRow:
    message = CancelOperation(tenant=TENANT, run_id=f"run-{n}", operation_id=f"op_{n}", reason="cancelled")
    envelope = Envelope(id=f"cancel_{n}", message=message)
    return OutboxRow(envelope.id, TOOL_EXECUTOR, message.run_id, message.type, 0, envelope.encode())


async def test_calls_of_tools_travel_in_small_packs_so_that_executors_share_them(ends):
    await ends.outlet().publish([execute(n) for n in range(16)])
    assert await ends.count("placet.tool-executor") == 4


async def test_an_executor_takes_no_more_calls_than_it_has_places_and_hears_signals_all_the_same(ends):
    places = 3
    inbox = ends.inbox(TOOL_EXECUTOR, room=lambda: places)
    outlet = ends.outlet()
    await outlet.publish([execute(n) for n in range(8)])
    taken = await collect(inbox, 3)
    places = 0
    await inbox.settle(taken, [])
    assert await is_empty(inbox)
    await outlet.publish([cancel(1)])
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

        async def park(self, message, body, error):
            if self.open:
                self.bodies.append(body)
            return self.open

    parking = Shut()
    inbox = ends.inbox(parking=parking)
    await ends.put_raw(DISPATCHER, b"{")
    await ends.put_raw(DISPATCHER, an_envelope(1).encode())
    await inbox.settle(await collect(inbox, 1), [])
    assert inbox.held == 1
    parking.open = True

    async def parked() -> bool:
        return parking.bodies == [b"{"] and inbox.held == 0

    await eventually(parked)


async def test_a_person_can_look_at_dead_letters_send_them_again_and_drop_them(ends):
    good, bad = an_envelope(1).encode(), b"nonsense"
    channel = await (await ends.connection()).channel()
    dead = await channel.get_exchange("placet.dead")
    for body, queue in ((good, "placet.resume"), (bad, "placet.resume"), (b"{}", "placet.ingress.submissions")):
        await dead.publish(aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), queue)
    for _ in range(25):  # looking does not use them up
        found = await look(ends.url)
    assert [(letter.queue, letter.body, letter.code) for letter in found] == [
        ("placet.resume", good, "DELIVERY_LIMIT"),
        ("placet.resume", bad, "DELIVERY_LIMIT"),
        ("placet.ingress.submissions", b"{}", "DELIVERY_LIMIT"),
    ]
    keys = [letter.key for letter in found]
    assert await send_again(ends.url, ends.topology, [keys[0], keys[2]]) == [keys[0]], "not what an outsider said"
    assert ids(await collect(ends.inbox(RESUME), 1)) == ["msg_1"]
    assert await drop(ends.url, [keys[1], "unknown"]) == [keys[1]]
    assert [letter.key for letter in await look(ends.url)] == [keys[2]]


# ── what is not delivered ──────────────────────────────────────────────────────────────


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
    assert "tool-executor.unknown" in (outlet.trouble or "")


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
