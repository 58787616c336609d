"""Decides how two stores are compared: whatever they are asked, they give the same fates and keep the same facts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any

from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from placet.adapters.memory import MemoryStore
from placet.columns import KEYS
from placet.ids import Address
from placet.messages import APPROVAL, OPERATION, RUN, THREAD
from placet.runtime.ports import Unit
from tests.builders import T0
from tests.contracts.units import (
    ManualClock,
    attempt,
    attempt_end,
    decision_attempt,
    entry,
    leaf,
    letter,
    operation,
    outcome,
    retry,
    revocation,
    said,
    sent,
    vote,
    write,
)

RUNS = ("run-1", "run-2")
PLACES = [
    Address(run, *key)
    for run in RUNS
    for key in ((RUN, ""), (THREAD, "task:one"), (OPERATION, "op_1"), (APPROVAL, "apr_1"))
]
names = some.sampled_from([f"msg_{number}" for number in range(8)])
KEY_OF = dict(KEYS) | {
    "state": ("run_id", "machine", "key"),
    "journal": ("run_id", "machine", "key", "version"),
    "outbox": ("id",),
    "dead_letter": ("id",),
}


def mostly(usual, *rare):
    """One of `usual`, now and then one of `rare`."""
    return some.sampled_from([*usual] * 12 + [*rare])


numbers = mostly([1, 2, 3], 0)
runs = mostly(["run-1"], "run-2")
texts = mostly(["plain", "", "日本\n🦉"], "nul\x00", "half \ud83d")
people, decisions = some.sampled_from(["alice", "bob"]), some.sampled_from(["dec_1", "dec_2"])
rows = some.one_of(
    some.builds(lambda run, n: leaf(n, run), runs, numbers),
    some.builds(lambda run, n, text: said(n, run_id=run, body_text=text), runs, numbers, texts),
    some.builds(lambda n, ok: operation(f"op_{n}", consequential=ok), numbers, some.booleans()),
    some.builds(lambda run, n: attempt(n, run_id=run), runs, numbers),
    some.builds(lambda run, n: attempt(n, run_id=run), runs, numbers),
    some.builds(lambda run, n, word: attempt_end(n, word, run_id=run), runs, numbers, some.just("failed")),
    some.builds(lambda n: retry(n), numbers),
    some.builds(vote, people, decisions, decision=mostly(["approve", "reject"], "maybe")),
    some.builds(outcome, mostly(["approved", "rejected"], "perhaps")),
    some.builds(revocation),
    some.builds(decision_attempt, numbers, decisions),
)


async def _next_due(store):
    return await store.next_due_ms()


async def _loaded(store):
    return replace(await store.load(PLACES, []), incarnation=0)


class Agreement(RuleBasedStateMachine):
    """Every step is done to the store in memory and to another one. Says `open_other` and `kept`."""

    def __init__(self, runner: asyncio.Runner) -> None:
        super().__init__()
        self.runner = runner
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.other: Any = None

    @initialize()
    def open(self) -> None:
        self.other = self.open_other()

    def open_other(self) -> Any:
        """The other store, empty at first."""
        raise NotImplementedError

    def kept(self) -> dict[str, list[dict[str, Any]]]:
        """Everything it keeps: rows by table, in the order of KEY_OF."""
        raise NotImplementedError

    def both(self, call):
        """The answer of both, which is one."""
        answers = [self.runner.run(call(store)) for store in (self.memory, self.other)]
        assert answers[0] == answers[1]
        return answers[0]

    def version(self, place: Address) -> int:
        return self.memory._version(place)

    def a_unit(self, data: some.DataObject) -> Unit:
        """A unit that would mostly hold, and sometimes not in any of the ways there are."""
        draw = data.draw
        facts = draw(some.lists(rows, max_size=3))
        places = dict.fromkeys([row.owner() for row in facts] + draw(some.lists(some.sampled_from(PLACES), max_size=2)))
        off = mostly([0], 1, -1)
        # Rarely, an owner takes no step.
        written = [place for place in places if draw(mostly([True], False))]
        states = [write(place, max(0, self.version(place) + draw(off))) for place in written]
        guarded = draw(some.lists(some.sampled_from(PLACES), max_size=2))
        kinds = some.sampled_from(["turn.lease_ended", "turn.retry"])
        instants = some.sampled_from([0, T0 + 20, self.clock.at_ms + 5])
        return Unit(
            states=states,
            guards={place: self.version(place) + draw(off) for place in guarded if place not in written},
            before_ms=draw(mostly([None], self.clock.at_ms, self.clock.at_ms + 1)),
            rows=facts,
            journal=[entry(at.address, at.version + draw(off)) for at in states],
            outbox=[
                draw(
                    some.sampled_from([replace(sent(name), claim_ms=15), sent(name, draw(instants), type=draw(kinds))])
                )
                for name in draw(some.lists(names, max_size=1))
            ],
            dead_letters=[letter(name, reason=draw(texts)) for name in draw(some.lists(names, max_size=1))],
            consumed=draw(some.lists(names, max_size=2)),
        )

    @rule(data=some.data(), count=some.integers(1, 4))
    def commit(self, data: some.DataObject, count: int) -> None:
        units = [self.a_unit(data) for _ in range(count)]
        memory, other = (self.runner.run(store.commit(units)) for store in (self.memory, self.other))
        assert [result.fate for result in memory] == [result.fate for result in other]

    @rule(limit=some.integers(1, 3), lease_ms=some.integers(1, 20))
    def claim(self, limit: int, lease_ms: int) -> None:
        self.both(lambda store: store.claim_due(limit, lease_ms))

    @rule(ids=some.lists(names, max_size=2), longest_ms=some.integers(1, 20))
    def defer(self, ids: list[str], longest_ms: int) -> None:
        self.both(lambda store: store.defer(ids, longest_ms))

    @rule(within_ms=some.integers(1, 20))
    def recall(self, within_ms: int) -> None:
        self.both(lambda store: store.recall(within_ms))

    @rule(ids=some.lists(names, max_size=2))
    def discard(self, ids: list[str]) -> None:
        self.both(lambda store: store.discard(ids))

    @rule(by_ms=some.integers(1, 30))
    def time_passes(self, by_ms: int) -> None:
        self.clock.at_ms += by_ms

    @invariant()
    def they_keep_the_same(self) -> None:
        if self.other is None:
            return
        self.both(_next_due)
        self.both(_loaded)
        assert self.memory.snapshot() == self.kept()

    def teardown(self) -> None:
        if self.other is not None:
            self.runner.run(self.other.close())


def by_key(table: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of their key, without the number that a store gave them."""
    numbered = KEY_OF[table] != ("run_id", "seq")
    plain = ({name: value for name, value in row.items() if name != "seq" or not numbered} for row in rows)
    return sorted(plain, key=itemgetter(*KEY_OF[table]))
