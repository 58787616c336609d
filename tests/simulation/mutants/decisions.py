"""Decides how decisions are broken: their uniqueness, their durability, their time, their people."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

from placet import believing
from placet.adapters.memory import MemoryStore
from placet.believing import SignedVoices
from placet.columns import FIELDS, KEYS, values_of
from placet.machine import Receipt
from placet.rows import OutcomeRow
from placet.runtime import worker
from placet.runtime.engine import Engine
from placet.runtime.fold import Fold
from placet.voices import Heard
from placet_approval import decisions as deciding
from placet_approval.state import ApprovalState
from tests.simulation.mutants.mutant import RACES, around, knowing, mutant, quiet, replace


def _without_outcome_key(original: Any, store: Any, rows: Any) -> Any:
    for row in rows:
        if isinstance(row, OutcomeRow):
            store._facts["approval_outcome"].pop((row.run_id, row.request_id), None)
    return original(store, rows)


mutant(
    "a second decision is recorded over the first",
    "I1",
    lambda: [
        replace(deciding, "_too_late", lambda *_: None),
        around(MemoryStore, "_stage", _without_outcome_key),
    ],
    RACES,
)


async def _answering_early(engine: Any, deliveries: Any) -> Any:
    """Engine._attempt, but whoever asked is answered before the commit."""
    fold = Fold(engine.machines, engine._application, deliveries)
    while True:
        addresses, keys = fold.wanted()
        if addresses or keys:
            fold.take(await engine._store.load(addresses, keys))
        fold.run_wave(hand_over=True)
        if not fold.wave:
            break
    outcomes = fold.outcomes()
    for outcome in outcomes:
        for reply_to, text in outcome.replies:
            await engine.replies.send(reply_to, text)
    results = await engine._store.commit([outcome.unit for outcome in outcomes])
    return list(zip(outcomes, results, strict=True))


mutant(
    "whoever asked is answered before the commit",
    "I2",
    lambda: [
        replace(Engine, "_attempt", _answering_early),
        around(worker.Worker, "__init__", knowing),
    ],
    RACES,
    "commit_fails",
)


def _upserting(original: Any, store: Any, rows: Any) -> Any:
    for row in rows:
        if row.table in KEYS:
            named = dict(zip(FIELDS[row.table], values_of(row), strict=True))
            store._facts[row.table].pop(tuple(named[column] for column in KEYS[row.table]), None)
    store._unique.clear()
    return original(store, rows)


mutant(
    "rows are overwritten, the last write wins",
    "I4",
    lambda: [
        replace(MemoryStore, "_holds", lambda self, unit, now_ms: True),
        around(MemoryStore, "_stage", _upserting),
        replace(MemoryStore, "_check_ids", lambda self, unit: None),
    ],
    RACES,
    "requeued repeated",
)
mutant(
    "a commit ignores the version it expects",
    "I4",
    lambda: [replace(MemoryStore, "_holds", lambda self, unit, now_ms: True)],
    RACES,
    "requeued repeated store_slow",
)
mutant(
    "the referee's no is told as a final conflict",
    "I5",
    lambda: [
        replace(
            worker,
            "_busy",
            lambda message: Receipt(
                answer="conflict", run_id=message.run_id, request_id=message.request_id, decision_id=message.decision_id
            ).model_dump_json(exclude_none=True),
        )
    ],
    RACES,
    "referee_refuses referee_slow",
)
mutant(
    "a repeated decision gets another receipt",
    "I6",
    lambda: [around(deciding, "answered", lambda original, *args, stored_text=None, **rest: original(*args, **rest))],
    quiet(gates=("ask",), moods=("repeat",)),
)
mutant(
    "a voice counts after the time is over",
    "I19",
    lambda: [
        replace(ApprovalState, "is_expired", lambda self, now_ms: False),
        around(deciding, "answered", lambda original, *args, before_ms=None, **rest: original(*args, **rest)),
    ],
    quiet(gates=("ask_soon",), moods=("plain",)),
    "clock_jumps delayed",
)


def _timeless(original: Any, self: Any, unit: Any, now_ms: Any) -> Any:
    return original(self, with_fields(unit, before_ms=None), now_ms)


mutant(
    "a deadline that passes before the commit is ignored",
    "I19",
    lambda: [around(MemoryStore, "_holds", _timeless)],
    quiet(gates=("ask_soon",), moods=("edge",)),
    "store_slow",
    200,
)
mutant(
    "a timer is believed without a look at the clock",
    "I18",
    lambda: [replace(ApprovalState, "is_expired", lambda self, now_ms: True)],
    quiet(gates=("ask_soon",), moods=("silent",)),
    "forged",
)
mutant(
    "rows are published before they are due",
    "I18",
    lambda: [
        around(
            MemoryStore, "claim_due", lambda original, self, limit, lease_ms: original(_Early(self), limit, lease_ms)
        )
    ],
)
mutant(
    "whoever started the run decides on it",
    "I20",
    lambda: [replace(deciding, "_allowed", lambda *_: None)],
    quiet(gates=("ask",), moods=("muddle",)),
)


class _Early:
    """A store whose rows are all due."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._outbox = store._outbox
        self._check_open = store._check_open
        self._clock = self

    def now_ms(self) -> int:
        return int(self._store._clock.now_ms()) + 60_000


def _edited(original: Any, store: Any, unit: Any, *rest: Any) -> None:
    original(store, unit, *rest)
    outcomes = store._facts["approval_outcome"]
    outcomes.update({key: row.model_copy(update={"reason": "edited"}) for key, row in outcomes.items()})


mutant("a row is edited where it is kept", "I3", lambda: [around(MemoryStore, "_write", _edited)], RACES)

mutant(
    "a decision is believed without a signature",
    "I21",
    lambda: [replace(SignedVoices, "hear", lambda self, message, facts, now_ms: Heard())],
    only="forged",
)
mutant(
    "a decision is believed because some key has signed something",
    "I21",
    lambda: [replace(believing, "message_of", lambda statement, signed, *rest: _Anything())],
    only="forged",
)


class _Anything:
    """Equal to every message."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True
