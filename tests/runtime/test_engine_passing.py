"""Proves what becomes of a message that only another process may begin: it goes there in the commit that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from placet.adapters.memory import MemoryStore
from placet.facts import Facts
from placet.instants import Instant
from placet.machine import Send, State, Transition, move, pass_on
from placet.messages import OPERATION, RUN, Envelope, ExecuteOperation, Message, SubmitRun, decode_envelope, row_id
from placet.rows import FactKey
from placet.runtime.engine import Engine, Settlement
from placet.runtime.fold import Machines
from placet.runtime.ports import Delivery
from tests.runtime.test_engine import SetClock
from tests.runtime.toy import NoApplication, submit

TOKENS = count(1)


class ElsewhereMachine:
    """Passes everything on to the pool `gpu`, which it is told to do at once or a second later."""

    name = OPERATION
    state_type = State
    messages: frozenset[type[Message]] = frozenset({ExecuteOperation})

    def __init__(self, delay_ms: int | None = None) -> None:
        self._delay_ms = delay_ms

    def reads(self, message: Message) -> Sequence[FactKey]:
        return ()

    def transition(self, state: State | None, message: Message, facts: Facts, now_ms: Instant) -> Transition[State]:
        due_ms = None if self._delay_ms is None else Instant(now_ms + self._delay_ms)
        return pass_on(message.model_copy(update={"pool": "gpu"}), "not here", due_ms)


def an_order(pool: str = "") -> Envelope:
    message = ExecuteOperation(tenant="acme", run_id="run-1", operation_id="op_1", pool=pool)
    return Envelope(id="msg_1", cause="msg_0", message=message)


async def passing(store: MemoryStore, *envelopes: Envelope, delay_ms: int | None = None) -> Settlement:
    deliveries = [Delivery(each, next(TOKENS), row_id(each.id, each.encode())) for each in envelopes]
    return await Engine({OPERATION: ElsewhereMachine(delay_ms)}, NoApplication(), store).process(deliveries)


async def test_it_goes_on_under_its_id_to_the_queue_of_the_pool_and_is_done_here() -> None:
    store = MemoryStore(SetClock())
    settlement = await passing(store, an_order())
    assert len(settlement.done) == 1
    assert (settlement.activities, settlement.dead_letters) == ([], 0)
    [row] = await store.claim_due(10, 1_000)
    assert (row.destination, row.type) == ("tool-executor.gpu", "operation.execute")
    envelope = decode_envelope(row.body)
    assert (envelope.id, envelope.cause) == ("msg_1", "msg_0")
    assert (await store.load([envelope.message.to()], [])).states[envelope.message.to()] is None


async def test_the_row_that_it_came_from_goes_and_its_own_stays_though_not_a_word_was_changed() -> None:
    store = MemoryStore(SetClock())
    await passing(store, an_order("gpu"))
    [row] = await store.claim_due(10, 1_000)
    assert row.id != row_id("msg_1", an_order("gpu").encode())
    assert row.id == row_id("msg_1", row.body), "its receiver deletes it by that"


async def test_one_that_was_delivered_twice_goes_on_once_however_often_it_has_to_wait() -> None:
    """Otherwise what a freeze holds back would become more with every repeat."""
    clock = SetClock(1_000)
    store = MemoryStore(clock)
    settlement = await passing(store, an_order(), an_order(), delay_ms=500)
    assert len(settlement.done) == 2
    assert (await passing(store, an_order(), delay_ms=500)).dead_letters == 0, "nor when another process has the copy"
    clock.at_ms = 1_500
    [row] = await store.claim_due(10, 1_000)
    waiting = decode_envelope(row.body)
    await passing(store, waiting, waiting, delay_ms=500)
    clock.at_ms = 2_000
    [row] = await store.claim_due(10, 1_000)
    assert decode_envelope(row.body).id == "msg_1"


async def test_one_whose_address_was_wrong_waits_a_while() -> None:
    clock = SetClock(1_000)
    store = MemoryStore(clock)
    await passing(store, an_order(), delay_ms=500)
    assert await store.claim_due(10, 1_000) == []
    clock.at_ms = 1_500
    assert len(await store.claim_due(10, 1_000)) == 1


class OrderingMachine:
    """A run that orders a call as soon as it is submitted."""

    name = RUN
    state_type = State
    messages: frozenset[type[Message]] = frozenset({SubmitRun})

    def reads(self, message: Message) -> Sequence[FactKey]:
        return ()

    def transition(self, state: State | None, message: Message, facts: Facts, now_ms: Instant) -> Transition[State]:
        order = ExecuteOperation(tenant=message.tenant, run_id=message.run_id, operation_id="op_1", pool="gpu")
        return move(State(tenant=message.tenant, run_id=message.run_id, status="running"), Send(order))


async def test_what_a_neighbour_in_the_same_process_hands_over_goes_there_with_the_commit_of_its_sender() -> None:
    store = MemoryStore(SetClock())
    machines: Machines = {RUN: OrderingMachine(), OPERATION: ElsewhereMachine()}
    envelope = submit("goal")
    settlement = await Engine(machines, NoApplication(), store).process([Delivery(envelope, next(TOKENS))])
    [unit] = settlement.units
    assert [(write.address.machine, write.status) for write in unit.states] == [(RUN, "running")]
    [row] = await store.claim_due(10, 1_000)
    assert row.destination == "tool-executor.gpu"
    assert decode_envelope(row.body).cause == envelope.id
