"""Proves what becomes of a message that trips the rules before they speak, or that cannot even be parked."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from placet.adapters.memory import MemoryStore
from placet.errors import Code, RetryableError
from placet.messages import RUN, THREAD, Message, SubmitRun
from placet.rows import FactKey
from placet.runtime.engine import Engine
from placet.runtime.ports import CommitResult, Fate, Unit
from tests.runtime.test_engine import COUNTER, SetClock, delivered, status
from tests.runtime.toy import TOYS, CounterMachine, NoApplication, submit


class Tripping(CounterMachine):
    """Cannot say what it reads for the goal "trip"."""

    def reads(self, message: Message) -> Sequence[FactKey]:
        if isinstance(message, SubmitRun) and message.goal == "trip":
            raise KeyError("what now?")
        return super().reads(message)


async def test_rules_that_trip_over_what_they_read_park_that_message_and_no_other() -> None:
    store = MemoryStore(SetClock())
    engine = Engine({RUN: Tripping(), THREAD: TOYS[THREAD]}, NoApplication(), store)
    batch = delivered(submit("one"), submit("trip", reply=False), submit("two"))
    settlement = await engine.process(batch)
    assert len(settlement.done) == 3
    assert await status(store, COUNTER) == (2, "counting")
    (letter,) = await store.dead_letters("acme", run_id=None, limit=10)
    assert (letter["code"], letter["reason"]) == (Code.INVARIANT, "KeyError: 'what now?'")


async def test_whoever_asks_rules_that_trip_is_told() -> None:
    store = MemoryStore(SetClock())
    engine = Engine({RUN: Tripping(), THREAD: TOYS[THREAD]}, NoApplication(), store)
    settlement = await engine.process(delivered(submit("trip")))
    [(reply_to, text)] = settlement.replies
    assert reply_to == "r-trip"
    assert '"INVARIANT"' in text


class Unparking(MemoryStore):
    """Refuses dead letters, as long as it is told to."""

    refuses = True

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        if self.refuses and any(unit.dead_letters for unit in units):
            return [CommitResult(Fate.VIOLATED, "dead_letter") for _ in units]
        return await super().commit(units)


async def test_what_cannot_even_be_parked_is_given_back_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    store = Unparking(SetClock())
    engine = Engine({name: TOYS[name] for name in (RUN, THREAD)}, NoApplication(), store)
    await engine.process(delivered(submit("one")))
    taken = delivered(submit("twice"), submit("two", run_id="run-2"))
    with caplog.at_level(logging.ERROR):
        settlement = await engine.process(taken)
    assert (settlement.done, settlement.back, settlement.dead_letters) == (taken[1:], taken[:1], 0)
    assert [record.message for record in caplog.records] == ["message.not_parked"]


async def test_with_nothing_but_what_cannot_be_parked_the_worker_rests_until_it_can() -> None:
    store = Unparking(SetClock())
    engine = Engine({name: TOYS[name] for name in (RUN, THREAD)}, NoApplication(), store)
    await engine.process(delivered(submit("one")))
    taken = delivered(submit("twice"))
    with pytest.raises(RetryableError, match="m-run-1-twice"):
        await engine.process(taken)
    store.refuses = False
    settlement = await engine.process(taken)
    assert (settlement.done, settlement.dead_letters) == (taken, 1)
