"""Decides how a test drives one machine: rows, clock and application in hand, every step held to the constraints.

Each step is checked for what engine and store rely on: it is repeatable, looks at declared rows only, its state
survives storage, nothing is written where nothing moved, no row is written twice, attempts are dense and at most one is
open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from placet.activities import ActivityBase
from placet.errors import Code
from placet.facts import Facts
from placet.instants import Instant
from placet.machine import Invoke, Machine, Receipt, Record, Reply, Send, State, Transition
from placet.messages import RUN, Message
from placet.rows import READABLE, AttemptEndRow, AttemptRow, DecisionAttemptRow, FactKey, Row
from tests.builders import RUN_ID, T0, TENANT, FakeApplication, a_state_row

ELSEWHERE = "globex"
"""Another tenant."""


class Bench:
    """One state of one machine, and the world around it."""

    def __init__(self, machine: Machine[Any], *rows: Row, app: FakeApplication | None = None) -> None:
        self.machine = machine
        self.app = app or FakeApplication()
        self.now_ms: Instant = T0
        self.incarnation = 0
        self.state: Any = None
        self.version = 0
        self.rows: dict[FactKey, Row] = {row.fact_key(): row for row in rows}
        self.written: list[Row] = []
        self.sent: list[Send] = []

    # ── the world ──────────────────────────────────────────────────────────────────────

    def put(self, *rows: Row) -> None:
        """Facts that others wrote."""
        self.rows.update({row.fact_key(): row for row in rows})

    def run_is(self, status: str) -> None:
        """The run's status."""
        self.put(a_state_row(RUN, "", status))

    def later(self, by_ms: int) -> None:
        """Time passes."""
        self.now_ms = Instant(self.now_ms + by_ms)

    # ── steps ──────────────────────────────────────────────────────────────────────────

    def look(self, message: Message) -> Transition[Any]:
        """What the message would do."""
        found = {key: self.rows.get(key) for key in self.machine.reads(message)}
        assert {key.table for key in found} <= set(READABLE)
        transition: Transition[Any] = self.machine.transition(
            self.state, message, Facts(found, self.app, self.incarnation), self.now_ms
        )
        stored = self.state and self.machine.state_type.model_validate_json(self.state.model_dump_json())
        again = self.machine.transition(stored, message, Facts(found, self.app, self.incarnation), self.now_ms)
        assert again == transition, "a replay is a repeat"
        return transition

    def give(self, message: Message) -> Transition[Any]:
        """Apply the message, as engine and store would."""
        transition = self.look(message)
        if transition.kind != "moved":
            assert transition.state is None
            assert all(isinstance(effect, Reply) for effect in transition.effects), "nothing is written"
            assert transition.reason or transition.failure, "it says why"
            return transition
        state: State | None = transition.state
        assert state is not None
        assert (state.tenant, state.run_id) == (message.tenant, message.run_id)
        body = state.model_dump_json()
        assert self.machine.state_type.model_validate_json(body).model_dump_json() == body, "a state survives storage"
        self.state, self.version = state, self.version + 1
        for row in recorded(transition):
            self._write(row, message)
        self.sent += [effect for effect in transition.effects if isinstance(effect, Send)]
        return transition

    def _write(self, row: Row, message: Message) -> None:
        assert row.owner() == message.to(), "a row is written with a step of its owner"
        assert row.tenant == message.tenant
        keys = [_primary_key(known) for known in self.written]
        assert _primary_key(row) not in keys, f"{row.table} {row.fact_key()} is written twice"
        attempts = [known for known in self.written if isinstance(known, AttemptRow)]
        ended = {known.n for known in self.written if isinstance(known, AttemptEndRow)}
        if isinstance(row, AttemptRow):
            assert row.n == row.fence == len(attempts) + 1, "attempts are dense, and the fence grows"
            assert ended == {known.n for known in attempts}, "one open attempt"
        if isinstance(row, AttemptEndRow):
            assert row.n in {known.n for known in attempts}, "what ends was begun"
        self.written.append(row)
        self.rows.setdefault(row.fact_key(), row)

    # ── what came of it ────────────────────────────────────────────────────────────────

    def all_written(self, kind: type[Row]) -> list[Any]:
        """Every row of a kind, in order."""
        return [row for row in self.written if isinstance(row, kind)]


def _primary_key(row: Row) -> tuple[object, ...]:
    return (*row.fact_key(), row.n) if isinstance(row, DecisionAttemptRow) else tuple(row.fact_key())


def sent(transition: Transition[Any], kind: type[Message] | None = None) -> list[Any]:
    """The messages a transition sends, of one kind or all."""
    messages = [effect.message for effect in transition.effects if isinstance(effect, Send)]
    return [message for message in messages if kind is None or isinstance(message, kind)]


def timers(transition: Transition[Any]) -> list[tuple[Any, int]]:
    """The messages a transition sends for later, and when."""
    return [(e.message, e.not_before) for e in transition.effects if isinstance(e, Send) and e.not_before is not None]


def invoked(transition: Transition[Any], kind: type[ActivityBase] | None = None) -> list[Any]:
    """The calls to the world that a transition starts, of one kind or all."""
    activities = [effect.activity for effect in transition.effects if isinstance(effect, Invoke)]
    return [activity for activity in activities if kind is None or isinstance(activity, kind)]


def recorded(transition: Transition[Any], kind: type[Row] | None = None) -> list[Any]:
    """The rows a transition writes, of one kind or all."""
    rows = [effect.row for effect in transition.effects if isinstance(effect, Record)]
    return [row for row in rows if kind is None or isinstance(row, kind)]


def reply(transition: Transition[Any]) -> Receipt:
    """The one answer of a transition."""
    [answer] = [effect for effect in transition.effects if isinstance(effect, Reply)]
    return answer.receipt


def reply_text(transition: Transition[Any]) -> str:
    """The very text of the one answer, as it goes over the wire."""
    [answer] = [effect for effect in transition.effects if isinstance(effect, Reply)]
    return answer.text or answer.receipt.model_dump_json(exclude_none=True)


def code(transition: Transition[Any]) -> Code | None:
    """The code that whoever asked is told."""
    failure = reply(transition).failure
    return failure.code if failure is not None else None


def every(kinds: Iterable[str], status: str) -> dict[str, str]:
    """One answer for each kind of message."""
    return dict.fromkeys(kinds, status)


__all__ = [
    "ELSEWHERE",
    "RUN_ID",
    "T0",
    "TENANT",
    "Bench",
    "FakeApplication",
    "a_state_row",
    "code",
    "every",
    "invoked",
    "recorded",
    "reply",
    "reply_text",
    "sent",
    "timers",
]
