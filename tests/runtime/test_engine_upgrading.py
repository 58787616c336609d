"""Proves what the engine does with states of other versions of the program: upgrades older ones, holds newer ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from placet.adapters.memory import MemoryStore
from placet.errors import Code
from placet.ids import Address
from placet.machine import Transition, Upgrader
from placet.messages import RUN
from placet.runtime.checkpoints import StoredCheckpoints
from placet.runtime.engine import Engine, Settlement
from placet.runtime.ports import Delivery
from placet.runtime.replay import steps
from tests.cases import case
from tests.runtime.test_engine import SetClock
from tests.runtime.toy import TOYS, Counter, CounterMachine, NoApplication, submit

AT = Address("run-1", RUN, "")


class CounterOfTwo(Counter):
    """The next version of the program counts in words of its own."""

    upgraders: ClassVar[Mapping[int, Upgrader]] = {1: lambda old: {**old, "upgraded_from": len(old["seen"])}}

    upgraded_from: int = -1
    schema_version: int = 2


class CounterMachineOfTwo(CounterMachine):
    state_type = CounterOfTwo

    def transition(self, state: Any, *message: Any) -> Transition[Any]:
        moved = super().transition(state, *message)
        if moved.state is None:
            return moved
        told = CounterOfTwo(
            **moved.state.model_dump(exclude={"schema_version", "upgraded_from"}),
            upgraded_from=-1 if state is None else state.upgraded_from,
        )
        return Transition(moved.kind, told, moved.effects)


OLD = {**TOYS}
NEW = {**TOYS, RUN: CounterMachineOfTwo()}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SetClock())


async def hear(store: MemoryStore, machines: Any, *goals: str) -> Settlement:
    """Submissions, one after the other, to a process of that version."""
    engine = Engine(machines, NoApplication(), store)
    settlement = Settlement()
    for token, goal in enumerate(goals):
        settlement = await engine.process([Delivery(submit(goal), token)])
    return settlement


async def stored_body(store: MemoryStore) -> bytes:
    stored = (await store.load([AT], [])).states[AT]
    assert stored is not None
    return stored.body


@case("H11")
async def test_a_state_of_an_older_program_goes_on_as_one_of_this_program(store: MemoryStore) -> None:
    await hear(store, OLD, "a", "b")
    await hear(store, NEW, "c")
    found: Any = await StoredCheckpoints(store, NEW).latest(AT)
    assert (found.version, found.state.seen, found.state.upgraded_from) == (3, ("a", "b", "c"), 2)
    assert json.loads(await stored_body(store))["schema_version"] == 2


async def test_a_replay_gives_the_state_byte_for_byte_across_an_upgrade(store: MemoryStore) -> None:
    """Also where a replay of the old messages by the new rules would have given another state."""
    await hear(store, OLD, "a", "b")
    await hear(store, NEW, "c", "d")
    await hear(store, NEW, "e")
    entries = await store.read_journal(AT)
    assert ["upgraded" in json.loads(entry.facts) for entry in entries] == [False, False, True, False, False]
    *_, last = steps(NEW[RUN], entries)
    assert last.state.json_bytes() == await stored_body(store)
    kept: Any = StoredCheckpoints(store, NEW, store)
    assert [(await kept.load(AT, version)).state.upgraded_from for version in (3, 4, 5)] == [2, 2, 2]
    assert await kept.prune(AT, 3) == 2
    assert (await kept.load(AT, 4)).state.seen == ("a", "b", "c", "d")


async def test_a_state_that_one_batch_steps_twice_is_upgraded_once(store: MemoryStore) -> None:
    await hear(store, OLD, "a")
    engine = Engine(NEW, NoApplication(), store)
    await engine.process([Delivery(submit("b"), 1), Delivery(submit("c"), 2)])
    entries = await store.read_journal(AT)
    assert ["upgraded" in json.loads(entry.facts) for entry in entries] == [False, True, False]


@case("H11")
async def test_a_state_of_a_newer_program_is_neither_written_nor_taken_for_none(store: MemoryStore) -> None:
    await hear(store, NEW, "a")
    before = (await store.load([AT], [])).states[AT]
    settlement = await hear(store, OLD, "b")
    assert (await store.load([AT], [])).states[AT] == before
    assert len(await store.read_journal(AT)) == 1
    (told,) = [json.loads(text) for _, text in settlement.replies]
    assert (told["final"], told["failure"]["code"]) == (False, Code.CHECKPOINT_VERSION_UNSUPPORTED)
    assert "schema version 2" in settlement.unreadable[AT]
