"""Proves that what has just been committed gets out at once, and that nobody waits for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from placet.adapters.memory import MemoryStore
from placet.errors import Code, RetryableError
from placet.instants import Instant
from placet.runtime import eager as eager_module
from placet.runtime.eager import Eager
from placet.runtime.ports import OutboxRow, Unit
from placet.runtime.relay import CLAIM_MS, Relay
from placet.topology import EVENTS
from tests.runtime.test_engine import SetClock
from tests.runtime.toy import cancel


class SlowBroker:
    """Confirms when it is let."""

    connections = 1

    def __init__(self) -> None:
        self.published: list[str] = []
        self.lets = asyncio.Event()
        self.away = False

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        self.published += [row.id for row in rows]
        await self.lets.wait()
        if self.away:
            raise RetryableError(Code.BROKER_UNAVAILABLE, "away")
        return [row.id for row in rows]


def row(name: str, destination: str = "planner") -> OutboxRow:
    return OutboxRow(name, destination, "run-1", "run.cancel", 0, cancel("run-1").encode(), CLAIM_MS)


async def committed(*rows: OutboxRow) -> tuple[MemoryStore, SetClock]:
    clock = SetClock(1_000)
    store = MemoryStore(clock)
    await store.commit([Unit(outbox=list(rows))])
    return store, clock


async def test_nobody_waits_for_the_broker_and_rows_keep_their_order() -> None:
    store, _ = await committed(row("a"), row("b"))
    broker = SlowBroker()
    eager = Eager(store, broker)
    assert await eager.publish([row("a")]) == ()
    assert await eager.publish([row("b")]) == ()
    broker.lets.set()
    await eager.finished(1_000)
    assert broker.published == ["a", "b"]


async def test_what_is_published_at_once_is_no_relay_s_until_its_claim_lapses_and_then_it_is() -> None:
    store, clock = await committed(row("a"))
    broker = SlowBroker()
    broker.lets.set()
    await Relay(store, broker).turn()
    assert broker.published == []
    clock.at_ms = Instant(clock.at_ms + CLAIM_MS)
    await Relay(store, broker).turn()
    assert broker.published == ["a"]


async def test_a_broker_that_is_away_is_no_error_of_whoever_committed() -> None:
    store, clock = await committed(row("a"))
    broker = SlowBroker()
    broker.away = True
    broker.lets.set()
    eager = Eager(store, broker)
    await eager.publish([row("a")])
    await eager.finished(1_000)
    assert await store.next_due_ms() == (clock.at_ms, clock.at_ms + CLAIM_MS), "the relay has it then"


async def test_a_defect_is_told_at_once_and_not_when_somebody_collects_the_garbage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Defect(SlowBroker):
        async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
            raise ValueError("a defect")

    store, _ = await committed(row("a"))
    eager = Eager(store, Defect())
    await eager.publish([row("a")])
    await eager.finished(1_000)
    assert [record.message for record in caplog.records] == ["eager.failed"]
    assert eager.waiting == 0


async def test_what_a_slow_broker_lets_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_module, "EAGER_ROWS_MAX", 2)
    store, _ = await committed(row("a"), row("b"), row("c"))
    broker = SlowBroker()
    eager = Eager(store, broker)
    for name in "abc":
        await eager.publish([row(name)])
    broker.lets.set()
    await eager.finished(1_000)
    assert broker.published == ["a", "b"]
    await eager.publish([row("c")])
    await eager.finished(1_000)
    assert broker.published == ["a", "b", "c"]


async def test_an_event_is_gone_once_it_is_confirmed_and_a_message_stays_its_receiver_s() -> None:
    rows = [row("event", EVENTS), row("message")]
    store, _ = await committed(*rows)
    broker = SlowBroker()
    broker.lets.set()
    eager = Eager(store, broker)
    await eager.publish(rows)
    await eager.finished(1_000)
    assert [each["id"] for each in store.snapshot()["outbox"]] == ["message"]


async def test_the_end_does_not_wait_for_a_broker_that_stays_silent() -> None:
    store, _ = await committed(row("a"))
    eager = Eager(store, SlowBroker())
    await eager.publish([row("a")])
    await eager.finished(1)
    await eager.finished(1)
