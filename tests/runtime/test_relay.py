"""Proves that the relay publishes what is due until its receiver has it, and knows how long it may rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from placet.adapters.memory import MemoryStore
from placet.adapters.memory_queue import MemoryQueue
from placet.errors import Code, ContractError
from placet.ids import derived_id
from placet.instants import Instant
from placet.runtime import relay as relay_module
from placet.runtime.ports import CommitResult, Fate, OutboxRow, Unit
from placet.runtime.relay import CLAIM_MS, IDLE_MS, RECALL_MS, Relay
from placet.topology import EVENTS
from tests.cases import case
from tests.runtime.test_engine import SetClock
from tests.runtime.toy import cancel


class RecordingOutlet:
    """Confirms what `confirms` says."""

    def __init__(self, *, confirms: bool = True) -> None:
        self.connections = 0
        self.published: list[str] = []
        self.confirms = confirms

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        self.published += [row.id for row in rows]
        return [row.id for row in rows] if self.confirms else ()


def row(name: str, not_before_ms: int = 0) -> OutboxRow:
    return OutboxRow(name, "dispatcher", "run-1", "run.cancel", not_before_ms, cancel("run-1").encode())


async def a_store(*rows: OutboxRow) -> tuple[MemoryStore, SetClock]:
    clock = SetClock(1_000)
    store = MemoryStore(clock)
    await store.commit([Unit(outbox=list(rows))])
    return store, clock


async def test_what_is_due_is_published_and_the_relay_rests_until_the_next_row_is() -> None:
    store, _ = await a_store(row("now"), row("later", 5_000))
    outlet = RecordingOutlet()
    assert await Relay(store, outlet).turn() == 4_000
    assert outlet.published == ["now"]


@case("C13")
@pytest.mark.parametrize("confirms", [True, False])
async def test_a_row_is_published_again_when_its_claim_has_lapsed_and_no_receiver_has_deleted_it(
    confirms: bool,
) -> None:
    """A broker may confirm and then lose everything: its word deletes nothing."""
    store, clock = await a_store(row("now"))
    outlet = RecordingOutlet(confirms=confirms)
    relay = Relay(store, outlet)
    await relay.turn()
    await relay.turn()
    assert outlet.published == ["now"]
    clock.at_ms += CLAIM_MS
    await relay.turn()
    assert outlet.published == ["now", "now"]
    await store.commit([Unit(consumed=["now"])])
    clock.at_ms += 3 * CLAIM_MS
    await relay.turn()
    assert outlet.published == ["now", "now"]


async def test_a_row_that_is_confirmed_and_only_waits_is_published_ever_more_rarely() -> None:
    store, clock = await a_store(row("now"))
    outlet = RecordingOutlet()
    relay = Relay(store, outlet)
    published: list[int] = []
    for _ in range(900):
        before = len(outlet.published)
        await relay.turn()
        published += [clock.at_ms // 1_000] * (len(outlet.published) - before)
        clock.at_ms += 1_000
    gaps = [after - before for before, after in pairwise(published)]
    assert gaps == [20, 20, 40, 80, *[120] * 6]


async def test_a_row_that_the_broker_did_not_take_is_tried_again_at_the_same_pace() -> None:
    store, clock = await a_store(row("now"))
    outlet = RecordingOutlet(confirms=False)
    relay = Relay(store, outlet)
    for _ in range(10):
        await relay.turn()
        clock.at_ms += CLAIM_MS
    assert len(outlet.published) == 10


async def test_a_broker_that_comes_back_gets_at_once_what_it_had_confirmed() -> None:
    """It may be empty: an accepted decision does not wait until its row would have been published again anyway."""
    store, clock = await a_store(row("now"))
    outlet = RecordingOutlet()
    relay = Relay(store, outlet)
    outlet.connections = 1
    for _ in range(6):
        await relay.turn()
        clock.at_ms += CLAIM_MS
    published = len(outlet.published)
    await relay.turn()
    assert len(outlet.published) == published, "it is deferred by now"
    outlet.connections = 2
    await relay.turn()
    clock.at_ms += RECALL_MS
    await relay.turn()
    assert len(outlet.published) == published + 1


async def test_a_process_that_is_new_publishes_nothing_again() -> None:
    store, clock = await a_store(row("now"))
    await Relay(store, RecordingOutlet()).turn()
    late = RecordingOutlet()
    relay = Relay(store, late)
    await relay.turn()
    late.connections = 1
    await relay.turn()
    clock.at_ms += RECALL_MS
    await relay.turn()
    assert late.published == []


async def test_an_event_for_the_outside_has_no_receiver_and_is_gone_once_it_is_confirmed() -> None:
    store, clock = await a_store(OutboxRow("e", EVENTS, "run-1", "run.started", 0, b"{}"))
    await Relay(store, RecordingOutlet(confirms=False)).turn()
    clock.at_ms += CLAIM_MS
    await Relay(store, RecordingOutlet()).turn()
    assert await store.next_due_ms() == (clock.at_ms, None)


async def test_two_relays_do_not_publish_one_row_twice() -> None:
    store, _ = await a_store(row("a"), row("b"))
    first, second = RecordingOutlet(confirms=False), RecordingOutlet(confirms=False)
    await Relay(store, first).turn()
    await Relay(store, second).turn()
    assert (first.published, second.published) == (["a", "b"], [])


async def test_an_empty_outbox_is_looked_at_again_all_the_same() -> None:
    store, _ = await a_store()
    assert await Relay(store, RecordingOutlet()).turn() == IDLE_MS


async def test_more_than_one_claim_holds_is_gone_on_with_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "RELAY_MAX", 2)
    store, _ = await a_store(row("a"), row("b"), row("c"))
    outlet = RecordingOutlet()
    assert await Relay(store, outlet).turn() == 0
    await Relay(store, outlet).turn()
    assert outlet.published == ["a", "b", "c"]


async def test_a_clock_that_is_ahead_makes_nothing_due_early() -> None:
    store, clock = await a_store(row("later", 5_000))
    clock.at_ms = Instant(4_999)
    outlet = RecordingOutlet()
    assert await Relay(store, outlet).turn() == 1
    assert outlet.published == []


# ── a row that nobody can read ─────────────────────────────────────────────────────────

POISON = OutboxRow("poison", "planner", "run-1", "turn.later", 0, b'{"v":1,"id":"poison","message":{"type":"later"}}')


def readable(name: str) -> OutboxRow:
    envelope = cancel(name)
    return OutboxRow(envelope.id, "dispatcher", name, "run.cancel", 0, envelope.encode())


async def test_a_row_that_cannot_be_read_is_parked_with_its_reason_and_its_neighbours_go_on() -> None:
    store, _ = await a_store(readable("run-1"), POISON, readable("run-2"))
    queue = MemoryQueue()
    await Relay(store, queue).turn()
    assert [delivery.outbox_id for delivery in await queue.take(10)] == ["c-run-1", "c-run-2"]
    kept = store.snapshot()
    assert [row["id"] for row in kept["outbox"]] == ["c-run-1", "c-run-2"]
    [letter] = kept["dead_letter"]
    assert (letter["code"], letter["destination"], letter["body"], letter["at_ms"]) == (
        Code.MESSAGE_INVALID,
        "planner",
        POISON.body,
        1_000,
    )
    assert letter["reason"]


class Refusing(RecordingOutlet):
    """Refuses whatever it is given."""

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        raise ContractError(Code.TOO_LARGE, "not this")


async def test_an_outlet_that_refuses_what_can_be_read_is_an_error_and_nothing_is_parked() -> None:
    event = OutboxRow("event", EVENTS, "run-1", "run.started", 0, b"an event is no message")
    store, _ = await a_store(readable("run-1"), event)
    with pytest.raises(ContractError, match="not this"):
        await Relay(store, Refusing()).turn()
    assert store.snapshot()["dead_letter"] == []


async def test_a_row_that_cannot_be_parked_stays_and_holds_up_nobody() -> None:
    class Unparking(MemoryStore):
        refuses = True

        async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
            if self.refuses and any(unit.dead_letters for unit in units):
                return [CommitResult(Fate.VIOLATED, "dead_letter") for _ in units]
            return await super().commit(units)

    clock = SetClock(1_000)
    store, queue = Unparking(clock), MemoryQueue()
    await store.commit([Unit(outbox=[POISON, readable("run-1")])])
    relay = Relay(store, queue)
    assert await relay.turn() == IDLE_MS
    assert [delivery.outbox_id for delivery in await queue.take(10)] == ["c-run-1"]
    store.refuses = False
    clock.at_ms += CLAIM_MS
    await relay.turn()
    assert [letter["id"] for letter in store.snapshot()["dead_letter"]] == [derived_id("dead", "poison")]


async def test_what_nobody_can_read_is_parked_before_it_is_published_also_where_a_broker_would_take_it() -> None:
    store, _ = await a_store(POISON, row("good"))
    outlet = RecordingOutlet()
    await Relay(store, outlet).turn()
    assert outlet.published == ["good"]
    assert [letter["code"] for letter in store.snapshot()["dead_letter"]] == [Code.MESSAGE_INVALID]


async def test_a_row_of_a_newer_version_is_left_to_a_process_that_can_read_it() -> None:
    newer = OutboxRow("newer", "planner", "run-1", "turn.take", 0, b'{"v":2,"id":"newer","message":{}}')
    store, _ = await a_store(newer)
    outlet = RecordingOutlet()
    await Relay(store, outlet).turn()
    kept = store.snapshot()
    assert (outlet.published, [row["id"] for row in kept["outbox"]], kept["dead_letter"]) == ([], ["newer"], [])


async def test_a_relay_says_how_long_the_first_row_that_nobody_claims_has_been_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "RELAY_MAX", 1)
    store, clock = await a_store(row("one"), row("two"))
    relay = Relay(store, RecordingOutlet())
    clock.at_ms = Instant(1_700)
    assert await relay.turn() == 0
    assert relay.lag_ms == 700
    await relay.turn()
    assert relay.lag_ms == 0
