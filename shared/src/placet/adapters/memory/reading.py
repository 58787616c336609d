"""Decides what people may read of facts kept in memory, in which order and form: as SQL readers do."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from placet import limits
from placet.columns import ENDED, FIELDS, KEYS, exact, shown_body, values_of
from placet.errors import Code, ContractError, RetryableError, TerminalError
from placet.ids import Address
from placet.messages import APPROVAL, RUN
from placet.rows import AttemptEndRow, AttemptRow, DecisionAttemptRow, OperationRow, OutcomeRow, RequestRow, Row
from placet.runtime.ports import DeadLetter, JournalEntry, OutboxRow, StoredState
from placet.runtime.reading import Place

Key = tuple[Any, ...]
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeptState:
    """A state and whose it is."""

    tenant: str
    stored: StoredState
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A message on its way, and how far."""

    row: OutboxRow
    due_ms: int
    seq: int
    claimed_until_ms: int = 0


class MemoryReader:
    """runtime.ports.Reader, and the collections it reads."""

    def __init__(self) -> None:
        self._closed = False
        self._states: dict[Address, KeptState] = {}
        self._facts: dict[str, dict[Key, Row]] = {table: {} for table in KEYS}
        self._ends: dict[Key, AttemptEndRow] = {}
        self._open: set[Key] = set()
        self._unique: set[Key] = set()
        self._answers: dict[Key, DecisionAttemptRow] = {}
        """The first answer under each decision id."""
        self._threads: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self._journal: dict[Address, dict[int, JournalEntry]] = defaultdict(dict)
        self._arrived: list[JournalEntry] = []
        self._outbox: dict[str, KeptRow] = {}
        self._seq = 0
        self._letters: dict[str, DeadLetter] = {}

    def _check_open(self) -> None:
        if self._closed:
            raise RetryableError(Code.STORE_UNAVAILABLE, "the store is closed")

    async def runs(self, tenant: str, *, status: str | None, limit: int, before: str | None) -> list[Plain]:
        """As ports.Reader. Raises ContractError(PARAMETER_INVALID) when `before` is no run of the tenant."""
        self._check_open()
        placed = [((s.created_at_ms, a.run_id), s) for a, s in self._of_machine(RUN, tenant)]
        place = _place(placed, before, "before")
        rest = [(key, s) for key, s in placed if place is None or key < place]
        newest = sorted(((key, s) for key, s in rest if status in (None, s.stored.status)), key=_first, reverse=True)
        return [{"run_id": key[1], **_shown(s), "body": _object(s.stored.body) or {}} for key, s in newest[:limit]]

    async def state(self, tenant: str, address: Address) -> Plain | None:
        """As ports.Reader. Raises TerminalError(CHECKPOINT_CORRUPT) when the body is no JSON object."""
        self._check_open()
        found = self._states.get(address)
        if found is None or found.tenant != tenant:
            return None
        body = _object(found.stored.body)
        if body is None:
            raise TerminalError(Code.CHECKPOINT_CORRUPT, f"the state {address.text()} cannot be read")
        return {**_shown(found), "body": body}

    async def rows(self, tenant: str, table: str, run_id: str) -> list[Plain]:
        """As ports.Reader. Raises ContractError(PARAMETER_INVALID) for a table that is none of facts."""
        self._check_open()
        if table not in KEYS:
            raise ContractError(Code.PARAMETER_INVALID, f"{table!r} is no table of facts", pointer="/table")
        own = [(key, row) for key, row in self._facts[table].items() if key[0] == run_id and row.tenant == tenant]
        return [self._columns(row) for _, row in sorted(own, key=_first)]

    async def requests(self, tenant: str, *, open_only: bool, limit: int, after: str | None) -> list[Plain]:
        """As ports.Reader. Raises ContractError(PARAMETER_INVALID) when `after` is no request of the tenant."""
        self._check_open()
        placed = [
            ((s.created_at_ms, a.key), (row, s))
            for a, s in self._of_machine(APPROVAL, tenant)
            if (row := self._facts[RequestRow.table].get((a.run_id, a.key))) is not None
        ]
        place = _place(placed, after, "after")
        oldest = [pair for key, pair in sorted(placed, key=_first) if place is None or key > place]
        return [self._request(row, s) for row, s in oldest if not open_only or s.stored.status == "open"][:limit]

    async def latest_requests(self, tenant: str, *, limit: int, before: str | None) -> list[Plain]:
        """As ports.Reader. Raises ContractError(PARAMETER_INVALID) when `before` is no request of the tenant."""
        oldest = await self.requests(tenant, open_only=False, limit=len(self._states), after=None)
        newest = oldest[::-1]
        if before is not None:
            place = next((at for at, row in enumerate(newest) if row["request_id"] == before), None)
            if place is None:
                raise ContractError(Code.PARAMETER_INVALID, f"before: {before!r} is not known", pointer="/before")
            newest = newest[place + 1 :]
        return newest[:limit]

    async def request(self, tenant: str, request_id: str) -> Plain | None:
        """As ports.Reader."""
        self._check_open()
        for address, state in self._of_machine(APPROVAL, tenant):
            row = self._facts[RequestRow.table].get((address.run_id, request_id))
            if address.key == request_id and row is not None:
                return self._request(row, state)
        return None

    async def run_of_operation(self, tenant: str, operation_id: str) -> str | None:
        """As ports.Reader."""
        self._check_open()
        rows = (row for key, row in self._facts[OperationRow.table].items() if key[1] == operation_id)
        return next((row.run_id for row in rows if row.tenant == tenant), None)

    async def journal(self, tenant: str, run_id: str) -> list[Plain]:
        """As ports.Reader."""
        self._check_open()
        own = (e for e in self._arrived if e.address.run_id == run_id and self._states[e.address].tenant == tenant)
        return [_entry(entry) for entry in sorted(own, key=lambda entry: entry.at_ms)]

    async def states_of(self, tenant: str, run_id: str) -> list[Plain]:
        """As ports.Reader."""
        self._check_open()
        own = sorted(((a, s) for a, s in self._states.items() if a.run_id == run_id and s.tenant == tenant), key=_first)
        return [
            {"machine": a.machine, "key": a.key}
            | {name: getattr(s.stored, name) for name in ("version", "status", "body")}
            for a, s in own
        ]

    async def entries_of(self, tenant: str, run_id: str, *, limit: int, after: Place | None) -> list[Plain]:
        """As ports.Reader."""
        self._check_open()
        own = (e for e in self._arrived if e.address.run_id == run_id and self._states[e.address].tenant == tenant)
        placed = sorted(((Place(e.address.machine, e.address.key, e.version), e) for e in own), key=_first)
        rest = [(place, e) for place, e in placed if after is None or place > after]
        names = ("message_id", "message", "facts", "at_ms")
        return [place._asdict() | {name: getattr(e, name) for name in names} for place, e in rest[:limit]]

    async def outbox(self, tenant: str, run_id: str) -> list[Plain]:
        """As ports.Reader. A row is the tenant's when its message says so."""
        self._check_open()
        own = (w for w in self._outbox.values() if w.row.run_id == run_id and _tenant(w.row.body) == tenant)
        names = ("id", "destination", "type", "not_before_ms")
        return [{name: getattr(w.row, name) for name in names} for w in sorted(own, key=by_due)]

    async def dead_letters(self, tenant: str, *, run_id: str | None, limit: int) -> list[Plain]:
        """As ports.Reader."""
        self._check_open()
        own = [d for d in self._letters.values() if _tenant_of(d) == tenant and run_id in (None, d.run_id)]
        return [_shown_letter(d) for d in sorted(own, key=lambda d: (d.at_ms, d.id), reverse=True)[:limit]]

    async def dead_letter(self, tenant: str, letter_id: str) -> Plain | None:
        """As ports.Reader."""
        self._check_open()
        letter = self._letters.get(letter_id)
        if letter is None or _tenant_of(letter) != tenant:
            return None
        return {**_shown_letter(letter), **shown_body(letter.body, len(letter.body)), **exact(letter.body)}

    async def count_dead_letters(self, queue: str, upto: int) -> int:
        """As ports.Quarantine."""
        self._check_open()
        return min(upto, sum(letter.queue == queue for letter in self._letters.values()))

    def snapshot(self) -> dict[str, list[Plain]]:
        """Everything, as the rows of the SQL tables, each table in the order of its key."""
        tables = {table: [self._columns(row) for _, row in sorted(self._facts[table].items())] for table in KEYS}
        tables["state"] = [
            {**address._asdict(), "tenant": s.tenant, **_shown(s), "body": s.stored.body}
            for address, s in sorted(self._states.items())
        ]
        tables["journal"] = [
            {**a._asdict(), **{n: getattr(e, n) for n in ("version", "message_id", "message", "facts", "at_ms")}}
            for a, entries in sorted(self._journal.items())
            for _, e in sorted(entries.items())
        ]
        names = ("id", "destination", "run_id", "type", "not_before_ms", "body")
        tables["outbox"] = [
            {n: getattr(w.row, n) for n in names} | {"due_ms": w.due_ms, "claimed_until_ms": w.claimed_until_ms}
            for _, w in sorted(self._outbox.items())
        ]
        parts = ("id", "run_id", "destination", "code", "reason", "body", "at_ms", "queue", "about_text")
        tables["dead_letter"] = [
            {n: getattr(d, n) for n in parts} | {"tenant": _tenant_of(d)} for _, d in sorted(self._letters.items())
        ]
        return tables

    def _of_machine(self, machine: str, tenant: str) -> list[tuple[Address, KeptState]]:
        return [(a, s) for a, s in self._states.items() if a.machine == machine and s.tenant == tenant]

    def _columns(self, row: Row) -> Plain:
        columns: Plain = dict(zip(FIELDS[row.table], values_of(row), strict=True))
        if isinstance(row, AttemptRow):
            end = self._ends.get((row.run_id, row.operation_id, row.n))
            columns |= {name: getattr(end, name, None) for name in ENDED}
        return columns

    def _request(self, row: Row, state: KeptState) -> Plain:
        columns = self._columns(row) | {"status": state.stored.status}
        outcome = self._facts[OutcomeRow.table].get((row.run_id, columns["request_id"]))
        names = ("outcome", "decided_by", "decision_id", "decided_at_ms")
        return columns | {name: getattr(outcome, name, None) for name in names}


def by_due(waiting: KeptRow) -> tuple[int, int]:
    """Oldest first."""
    return waiting.due_ms, waiting.seq


def _first(item: tuple[Any, Any]) -> Any:
    return item[0]


def _place(placed: Iterable[tuple[tuple[int, str], Any]], name: str | None, parameter: str) -> tuple[int, str] | None:
    if name is None:
        return None
    place = next((key for key, _ in placed if key[1] == name), None)
    if place is None:
        raise ContractError(Code.PARAMETER_INVALID, f"{parameter}: {name!r} is not known", pointer=f"/{parameter}")
    return place


def _shown(state: KeptState) -> Plain:
    return {
        "status": state.stored.status,
        "version": state.stored.version,
        "created_at_ms": state.created_at_ms,
        "updated_at_ms": state.updated_at_ms,
    }


def _object(text: bytes) -> Plain | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _tenant(body: bytes) -> str | None:
    message = (_object(body) or {}).get("message")
    tenant = message.get("tenant") if isinstance(message, dict) else None
    return tenant if isinstance(tenant, str) else None


def _tenant_of(letter: DeadLetter) -> str:
    return _tenant(letter.body) or "" if letter.tenant is None else letter.tenant


def _shown_letter(letter: DeadLetter) -> Plain:
    names = ("id", "run_id", "destination", "code", "reason", "at_ms", "queue")
    about = json.loads(letter.about_text) if letter.about_text else None
    start = shown_body(letter.body[: limits.LISTED_BYTES_MAX], len(letter.body))
    return {**{name: getattr(letter, name) for name in names}, "about": about, **start}


def _entry(entry: JournalEntry) -> Plain:
    message = _object(entry.message) or {}
    return {
        "machine": entry.address.machine,
        "key": entry.address.key,
        "version": entry.version,
        "message_id": entry.message_id,
        "type": (message.get("message") or {}).get("type", ""),
        "message": message,
        "at_ms": entry.at_ms,
    }
