"""Decides what a group of units comes to on SQLite: one fate each, within the transaction that is open.

All units together first: checked against one reading of the versions, then written table by table. Where a constraint
refuses that, the caller rolls back and says `alone`: then each unit has a savepoint of its own, and a violated one
undoes only itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from placet.adapters.sql import statements as st
from placet.adapters.sql.refusals import Refused, refusal
from placet.columns import ENDED, FIELDS, KEYS, values_of
from placet.ids import Address
from placet.instants import Instant
from placet.rows import AttemptEndRow, AttemptRow, RequestRow, Row
from placet.runtime.ports import CommitResult, DeadLetter, Fate, Unit

COMMITTED = CommitResult(Fate.COMMITTED)
LOST = CommitResult(Fate.LOST)

Seen = dict[Address, tuple[int, str | None]]
"""Version and tenant of states, as this transaction sees them; version 0 and no tenant where there is none."""

_STATE = ("run_id", "machine", "key", "tenant", "version", "status", "body", "created_at_ms", "updated_at_ms")
_STEP = ("new_version", "new_status", "new_body", "new_updated_at_ms", "is_run_id", "is_machine", "is_key")
_END = (*(f"new_{name}" for name in ENDED), *(f"is_{name}" for name in KEYS[AttemptRow.table]))
_JOURNAL = ("run_id", "machine", "key", "version", "message_id", "message", "facts", "at_ms")
_OUTBOX = ("id", "destination", "run_id", "type", "not_before_ms", "due_ms", "claimed_until_ms", "body")
_LETTER = ("id", "tenant", "run_id", "destination", "code", "reason", "body", "at_ms", "id")


class Writer:
    """Writes units on one connection."""

    def __init__(self, connection: sqlite3.Connection, sql: st.Statements) -> None:
        self._connection = connection
        self._version_sql = sql.text(st.state_version, takes=("is_run_id", "is_machine", "is_key"))
        self._insert_state = sql.text(st.state_insert, takes=_STATE)
        self._update_state = sql.text(st.state_update, takes=_STEP)
        self._insert_journal = sql.text(st.journal_insert, takes=_JOURNAL)
        self._insert_outbox = sql.text(st.outbox_insert, takes=_OUTBOX)
        self._delete_outbox = sql.text(st.outbox_delete, takes=("is_id",))
        self._insert_letter = sql.text(st.dead_letter_insert, takes=_LETTER)
        self._end_attempt = sql.text(st.attempt_end, takes=_END)
        self._sql = sql

    def together(self, units: Sequence[Unit], now_ms: Instant) -> list[CommitResult]:
        """Write every unit that holds. Raises `Refused` when something is violated: roll back and use `alone`."""
        seen: Seen = {}
        results = []
        batch = _Batch(now_ms)
        with refusal():
            for unit in units:
                held = self._holds(unit, seen, now_ms)
                results.append(COMMITTED if held else LOST)
                if held:
                    batch.add(unit)
                    for write in unit.states:
                        seen[write.address] = (write.version, write.tenant)
            self._write(batch)
        return results

    def alone(self, units: Sequence[Unit], now_ms: Instant) -> list[CommitResult]:
        """Write every unit that holds, each within a savepoint."""
        return [self._one(unit, now_ms) for unit in units]

    def _one(self, unit: Unit, now_ms: Instant) -> CommitResult:
        execute = self._connection.execute
        execute("SAVEPOINT unit")
        result = LOST
        try:
            with refusal():
                if self._holds(unit, {}, now_ms):
                    batch = _Batch(now_ms)
                    batch.add(unit)
                    self._write(batch)
                    result = COMMITTED
        except Refused as refused:
            execute("ROLLBACK TO unit")
            result = CommitResult(Fate.VIOLATED, refused.constraint)
        execute("RELEASE unit")
        return result

    def _holds(self, unit: Unit, seen: Seen, now_ms: Instant) -> bool:
        """Whether the unit's versions and its deadline hold. Raises `Refused` for what no version can mend."""
        if unit.before_ms is not None and now_ms >= unit.before_ms:
            return False
        if any(self._stored(address, seen)[0] != version for address, version in unit.guards.items()):
            return False
        if any(self._stored(write.address, seen)[0] != write.expected for write in unit.states):
            return False
        stepped: dict[Address, str] = {}
        for write in unit.states:
            if write.version <= write.expected or write.address in stepped:
                raise Refused("state_step")
            if self._stored(write.address, seen)[1] not in (None, write.tenant):
                raise Refused("state_tenant")
            stepped[write.address] = write.tenant
        for row in unit.rows:
            _check_owner(row, stepped)
        if any(entry.address not in stepped for entry in unit.journal):
            raise Refused("owner_step")
        return True

    def _stored(self, address: Address, seen: Seen) -> tuple[int, str | None]:
        found = seen.get(address)
        if found is None:
            row = self._connection.execute(self._version_sql, address).fetchone()
            found = seen[address] = (0, None) if row is None else row
        return found

    def _write(self, batch: _Batch) -> None:
        many = self._connection.executemany
        if batch.created:
            many(self._insert_state, batch.created)
        if batch.stepped:
            many(self._update_state, batch.stepped)
        for table, rows in batch.facts.items():
            many(self._insert_fact(table), rows)
        for attempt in batch.attempts:
            self._attempt(attempt)
        if batch.journal:
            many(self._insert_journal, batch.journal)
        if batch.outbox:
            many(self._insert_outbox, batch.outbox)
        if batch.letters:
            many(self._insert_letter, batch.letters)
        if batch.consumed:
            many(self._delete_outbox, batch.consumed.values())

    def _insert_fact(self, table: str) -> str:
        return self._sql.text(st.fact_insert, table, takes=FIELDS[table])

    def _attempt(self, row: Row) -> None:
        if not isinstance(row, AttemptEndRow):
            self._connection.execute(self._insert_fact(row.table), values_of(row))
            return
        values = (row.ended, row.ended_at_ms, row.evidence_text, row.run_id, row.operation_id, row.n)
        if self._connection.execute(self._end_attempt, values).rowcount != 1:
            raise Refused("operation_attempt_end")


class _Batch:
    """What several units write, table by table."""

    def __init__(self, now_ms: Instant) -> None:
        self._now_ms = now_ms
        self.created: list[tuple[Any, ...]] = []
        self.stepped: list[tuple[Any, ...]] = []
        self.facts: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.attempts: list[Row] = []
        """In order: an attempt must be closed before the next one opens."""
        self.journal: list[tuple[Any, ...]] = []
        self.outbox: list[tuple[Any, ...]] = []
        self.letters: list[tuple[Any, ...]] = []
        self.consumed: dict[str, tuple[str]] = {}

    def add(self, unit: Unit) -> None:
        """Raises `Refused` for U+0000, which PostgreSQL's text cannot hold."""
        now_ms = self._now_ms
        for write in unit.states:
            key, body = write.address, bytes(write.body)
            if write.expected == 0:
                new = (*key, write.tenant, write.version, write.status, body, now_ms, now_ms)
                self.created.append(_without_nul(new))
            else:
                self.stepped.append(_without_nul((write.version, write.status, body, now_ms, *key)))
        for row in unit.rows:
            values = _without_nul(values_of(row))
            if isinstance(row, AttemptRow | AttemptEndRow):
                self.attempts.append(row)
            else:
                self.facts[row.table].append(values)
        for e in unit.journal:
            entry = (*e.address, e.version, e.message_id, e.message, e.facts, e.at_ms)
            self.journal.append(_without_nul(entry))
        for o in unit.outbox:
            due_ms = max(o.not_before_ms, now_ms)
            sent = (o.id, o.destination, o.run_id, o.type, o.not_before_ms, due_ms, 0, o.body)
            self.outbox.append(_without_nul(sent))
            self.consumed.pop(o.id, None)  # what an earlier unit consumed is not what this one sends
        self.letters += [_without_nul(_letter(letter)) for letter in unit.dead_letters]
        self.consumed |= {outbox_id: (outbox_id,) for outbox_id in unit.consumed}


def _without_nul(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        if type(value) is str and "\x00" in value:
            raise Refused("text_nul")
    return values


def _letter(letter: DeadLetter) -> tuple[Any, ...]:
    d = letter
    tenant = tenant_of(d.body) or ""
    return (d.id, tenant, d.run_id, d.destination, d.code, d.reason, d.body, d.at_ms, d.id)


def tenant_of(body: bytes) -> str | None:
    """The tenant that the message in an envelope names; None when that cannot be read."""
    try:
        tenant = json.loads(body)["message"]["tenant"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tenant if isinstance(tenant, str) else None


def _check_owner(row: Row, stepped: dict[Address, str]) -> None:
    """A fact is written with a step of its owner, of the same tenant."""
    tenant = stepped.get(row.owner())
    if tenant is None:
        raise Refused("owner_step")
    if tenant != row.tenant or (
        isinstance(row, RequestRow) and (row.request.tenant, row.request.run_id) != (row.tenant, row.run_id)
    ):
        raise Refused("owner_tenant")
