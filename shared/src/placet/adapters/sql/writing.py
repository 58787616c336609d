"""Decides what a group of units comes to on SQLite: one fate each, within the transaction that is open.

All units together first: checked against one reading of the versions, then written table by table. Where a constraint
refuses that, the caller rolls back and says `alone`: then each unit has a savepoint of its own, and a violated one
undoes only itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from placet.adapters.sql import statements as st
from placet.adapters.sql.refusals import refusal
from placet.adapters.sql.units import (
    COMMITTED,
    CREATED,
    ENDING,
    JOURNAL,
    LETTER,
    LOST,
    OUTBOX,
    STEPPED,
    Batch,
    Refused,
    Stored,
    ending,
    holds,
)
from placet.columns import FIELDS, values_of
from placet.ids import Address
from placet.instants import Instant
from placet.rows import AttemptEndRow, AttemptRow
from placet.runtime.ports import CommitResult, Fate, Unit

Seen = dict[Address, Stored]
"""States as this transaction sees them."""


class Writer:
    """Writes units on one connection."""

    def __init__(self, connection: sqlite3.Connection, sql: st.Statements) -> None:
        self._connection = connection
        self._version_sql = sql.text(st.state_version, takes=("is_run_id", "is_machine", "is_key"))
        self._insert_state = sql.text(st.state_insert, takes=CREATED)
        self._update_state = sql.text(st.state_update, takes=STEPPED)
        self._insert_journal = sql.text(st.journal_insert, takes=JOURNAL)
        self._insert_outbox = sql.text(st.outbox_insert, takes=OUTBOX)
        self._delete_outbox = sql.text(st.outbox_delete, takes=("is_id",))
        self._insert_letter = sql.text(st.dead_letter_insert, takes=(*LETTER, "id"))
        self._end_attempt = sql.text(st.attempt_end, takes=ENDING)
        self._sql = sql

    def together(self, units: Sequence[Unit], now_ms: Instant) -> list[CommitResult]:
        """Write every unit that holds. Raises `Refused` when something is violated: roll back and use `alone`."""
        seen: Seen = {}
        results = []
        batch = Batch(now_ms)
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
                    batch = Batch(now_ms)
                    batch.add(unit)
                    self._write(batch)
                    result = COMMITTED
        except Refused as refused:
            execute("ROLLBACK TO unit")
            result = CommitResult(Fate.VIOLATED, refused.constraint)
        execute("RELEASE unit")
        return result

    def _holds(self, unit: Unit, seen: Seen, now_ms: Instant) -> bool:
        return holds(unit, lambda address: self._stored(address, seen), now_ms)

    def _stored(self, address: Address, seen: Seen) -> Stored:
        found = seen.get(address)
        if found is None:
            row = self._connection.execute(self._version_sql, address).fetchone()
            found = seen[address] = (0, None) if row is None else row
        return found

    def _write(self, batch: Batch) -> None:
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
            many(self._insert_letter, [(*letter, letter[0]) for letter in batch.letters])
        if batch.consumed:
            many(self._delete_outbox, batch.consumed.values())

    def _insert_fact(self, table: str) -> str:
        return self._sql.text(st.fact_insert, table, takes=FIELDS[table])

    def _attempt(self, row: AttemptRow | AttemptEndRow) -> None:
        if not isinstance(row, AttemptEndRow):
            self._connection.execute(self._insert_fact(row.table), values_of(row))
            return
        if self._connection.execute(self._end_attempt, ending(row)).rowcount != 1:
            raise Refused("operation_attempt_end")
