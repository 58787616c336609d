"""Proves that the relay publishes what is due, discards only what is confirmed, and knows how long it may rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from placet.adapters.memory import MemoryStore
from placet.instants import Instant
from placet.runtime import relay as relay_module
from placet.runtime.ports import OutboxRow, Unit
from placet.runtime.relay import CLAIM_MS, IDLE_MS, Relay
from tests.runtime.test_engine import SetClock


class RecordingOutlet:
    """Confirms what `confirms` says."""

    def __init__(self, *, confirms: bool = True) -> None:
        self.published: list[str] = []
        self.confirms = confirms

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        self.published += [row.id for row in rows]
        return [row.id for row in rows] if self.confirms else ()


def row(name: str, not_before_ms: int = 0) -> OutboxRow:
    return OutboxRow(name, "planner", "run-1", "turn.take", not_before_ms, b"{}")


async def a_store(*rows: OutboxRow) -> tuple[MemoryStore, SetClock]:
    clock = SetClock(1_000)
    store = MemoryStore(clock)
    await store.commit([Unit(outbox=list(rows))])
    return store, clock


async def test_what_is_due_is_published_and_discarded_once_it_is_confirmed() -> None:
    store, _ = await a_store(row("now"), row("later", 5_000))
    outlet = RecordingOutlet()
    assert await Relay(store, outlet).turn() == 4_000
    assert outlet.published == ["now"]
    assert await store.next_due_ms() == (1_000, 5_000)


async def test_what_is_not_confirmed_is_published_again_after_its_claim_has_lapsed() -> None:
    store, clock = await a_store(row("now"))
    outlet = RecordingOutlet(confirms=False)
    relay = Relay(store, outlet)
    assert await relay.turn() == CLAIM_MS
    await relay.turn()
    assert outlet.published == ["now"]
    clock.at_ms += CLAIM_MS
    await relay.turn()
    assert outlet.published == ["now", "now"]


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
