"""The store in memory and the one on SQLite give the same fates and keep the same facts, whatever they are asked."""

from __future__ import annotations

import asyncio
import tempfile
from operator import itemgetter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from placet.adapters.memory import MemoryStore
from placet.adapters.sql.sqlite import SqliteStore
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


class StoresAgree(RuleBasedStateMachine):
    """Every step is done to both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)

    @initialize()
    def open(self) -> None:
        self.sqlite = self.runner.run(SqliteStore.open(Path(self.directory.name) / "placet.db", clock=self.clock))
        self.sqlite._connection.execute("PRAGMA synchronous = OFF")  # what is compared here is not durability

    def both(self, call):
        """The answer of both, which is one."""
        answers = [self.runner.run(call(store)) for store in (self.memory, self.sqlite)]
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
            outbox=[sent(name, draw(instants), type=draw(kinds)) for name in draw(some.lists(names, max_size=1))],
            dead_letters=[letter(name, reason=draw(texts)) for name in draw(some.lists(names, max_size=1))],
            consumed=draw(some.lists(names, max_size=2)),
        )

    @rule(data=some.data(), count=some.integers(1, 4))
    def commit(self, data: some.DataObject, count: int) -> None:
        units = [self.a_unit(data) for _ in range(count)]
        memory, sqlite = (self.runner.run(store.commit(units)) for store in (self.memory, self.sqlite))
        assert [result.fate for result in memory] == [result.fate for result in sqlite]

    @rule(data=some.data())
    def commit_at_once(self, data: some.DataObject) -> None:
        """Callers at once are served in the order in which they came."""
        units = [self.a_unit(data) for _ in range(3)]

        async def gather(store):
            return await asyncio.gather(*(store.commit([unit]) for unit in units))

        memory, sqlite = (self.runner.run(gather(store)) for store in (self.memory, self.sqlite))
        assert [result.fate for (result,) in memory] == [result.fate for (result,) in sqlite]

    @rule(limit=some.integers(1, 3), lease_ms=some.integers(1, 20))
    def claim(self, limit: int, lease_ms: int) -> None:
        self.both(lambda store: store.claim_due(limit, lease_ms))

    @rule(ids=some.lists(names, max_size=2))
    def discard(self, ids: list[str]) -> None:
        self.both(lambda store: store.discard(ids))

    @rule(by_ms=some.integers(1, 30))
    def time_passes(self, by_ms: int) -> None:
        self.clock.at_ms += by_ms

    @rule()
    def a_new_owner_comes(self) -> None:
        self.memory.restart()
        self.runner.run(self.sqlite.close())
        self.open()

    @invariant()
    def they_keep_the_same(self) -> None:
        if not hasattr(self, "sqlite"):
            return
        self.both(_next_due)
        self.both(lambda store: store.load(PLACES, []))
        assert self.memory.snapshot() == self.kept_in_sqlite()

    def kept_in_sqlite(self):
        tables = {}
        for table, key in KEY_OF.items():
            cursor = self.sqlite._connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            found = [
                {n: v for n, v in zip(names, row, strict=True) if n != "seq" or table == "audit_leaf"} for row in cursor
            ]
            tables[table] = sorted(found, key=itemgetter(*key))
        return tables

    def teardown(self) -> None:
        if hasattr(self, "sqlite"):
            self.runner.run(self.sqlite.close())
        self.runner.close()
        self.directory.cleanup()


StoresAgree.TestCase.settings = settings(max_examples=30, stateful_step_count=20)
test_the_stores_agree = StoresAgree.TestCase
