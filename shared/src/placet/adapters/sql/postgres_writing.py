"""Decides what units come to on PostgreSQL: all of them in one statement, or, where that cannot be right, one by one.

One statement is right for units that do not touch each other and violate nothing, which is what engines commit. All
others go one by one, each in a savepoint, in one transaction: there a unit sees what its neighbours before it wrote,
and a violated constraint undoes only the culprit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy.sql.expression import ClauseElement

from placet.adapters.sql import postgres_statements as pg
from placet.adapters.sql import statements as st
from placet.adapters.sql.postgres_errors import Contended
from placet.adapters.sql.postgres_sessions import Session
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
    check_steps,
    ending,
    holds,
    letter_values,
)
from placet.columns import FIELDS, unstorable, values_of
from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.instants import Instant
from placet.rows import AttemptEndRow, AttemptRow, Row
from placet.runtime.ports import CommitResult, Fate, Unit

log = logging.getLogger("placet.postgres")

TRIES_MAX = 4
"""How often a commit is tried that others are in the way of: a deadlock, or a state made at the same moment."""
PAUSE_S = 0.01

_RESULTS = {
    pg.WRITTEN: COMMITTED,
    pg.BEHIND: LOST,
    pg.FOREIGN: CommitResult(Fate.VIOLATED, "state_tenant"),
}
_LOCK_ORDER = itemgetter(0, 1, 2, 3)
_STATE_CREATED = "pk_state"


class Gathered:
    """Units as the arrays of one statement. `regular`: whether one statement is right for them."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.deadlines = [unit.before_ms for unit in units]
        self.guarded = any(unit.guards for unit in units)
        self.regular = True
        self._claims: list[tuple[Any, ...]] = []
        self._rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._stepped: set[Address] = set()
        self._opened: set[tuple[str, str]] = set()
        self._ended: set[tuple[str, str]] = set()
        for number, unit in enumerate(units, 1):
            self._add(number, unit)
        if self._claims:
            for name in ("journal", "outbox"):  # always: fewer forms of the statement
                self._rows.setdefault(name, [])
        sent, consumed = ({row[1] for row in self._rows.get(name, ())} for name in ("outbox", "consumed"))
        self.regular = self.regular and sent.isdisjoint(consumed)
        self._claims.sort(key=_LOCK_ORDER)

    def _add(self, number: int, unit: Unit) -> None:
        self.regular = self.regular and self._is_regular(unit)
        for address, version in unit.guards.items():
            self._claims.append((*address, True, number, None, version, None, None, None))
        for w in unit.states:
            self._claims.append((*w.address, False, number, w.tenant, w.expected, w.version, w.status, w.body))
            self._stepped.add(w.address)
        for row in unit.rows:
            self._add_row(number, row)
        rows = self._rows
        for e in unit.journal:
            rows["journal"].append((number, *e.address, e.version, e.message_id, e.message, e.facts, e.at_ms))
        for o in unit.outbox:
            rows["outbox"].append((number, o.id, o.destination, o.run_id, o.type, o.not_before_ms, o.body, o.claim_ms))
        for letter in unit.dead_letters:
            rows["dead_letter"].append((number, *letter_values(letter)))
        for outbox_id in unit.consumed:
            rows["consumed"].append((number, outbox_id))

    def _is_regular(self, unit: Unit) -> bool:
        """Whether it is well formed, and builds neither on a neighbour before it nor on what is not there.

        What is not there cannot be locked as what is: it has to be looked for again after the locks.
        """
        if not self._stepped.isdisjoint(unit.guards) or not all(unit.guards.values()):
            return False
        if not self._stepped.isdisjoint(write.address for write in unit.states):
            return False
        try:
            check_steps(unit)
        except Refused:
            return False
        return True

    def _add_row(self, number: int, row: Row) -> None:
        """In one statement an attempt is ended first, then one is opened: any other order goes one by one."""
        if isinstance(row, AttemptEndRow):
            operation = (row.run_id, row.operation_id)
            self.regular = self.regular and operation not in self._opened | self._ended
            self._ended.add(operation)
            keys = (row.run_id, row.operation_id, row.n)
            self._rows[row.table].append((number, *keys, row.ended, row.ended_at_ms, row.evidence_text))
            return
        if isinstance(row, AttemptRow):
            operation = (row.run_id, row.operation_id)
            self.regular = self.regular and operation not in self._opened
            self._opened.add(operation)
        self._rows[row.table].append((number, *values_of(row)))

    def variant(self) -> tuple[Any, ...]:
        """Which form of the statement writes them."""
        return (self.guarded, *(name for name in pg.WRITES if name in self._rows))

    def values(self) -> dict[str, Sequence[Any]]:
        """The parameters of that form."""
        claims = [(row[4], *row[:3], *row[5:]) for row in self._claims]
        values = {"deadline_before_ms": self.deadlines, **pg.columns("claim", pg.CLAIMS, claims)}
        for name, rows in self._rows.items():
            values |= pg.columns(name, pg.WRITES[name], rows)
        return values


class PostgresWriter:
    """Commits units in a session."""

    def __init__(self, sql: st.Statements) -> None:
        self._sql = sql

    async def commit(self, session: Session, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """As ports.Store."""
        gathered = Gathered(units)
        together, reason = gathered.regular, ""
        for tries in range(TRIES_MAX):
            if tries:
                await asyncio.sleep(PAUSE_S * tries)
            try:
                if together:
                    return await self._together(session, gathered)
                return await self._alone(session, units)
            except Refused:
                together = False
            except Contended as contended:
                reason = str(contended)
        told = f"{session.where}: others were in the way {TRIES_MAX} times; nothing was written ({reason})"
        raise RetryableError(Code.STORE_UNAVAILABLE, told)

    async def _together(self, session: Session, gathered: Gathered) -> Sequence[CommitResult]:
        statement = self._sql(pg.commit, *gathered.variant())
        ((fates, *_),) = await session.commit(statement.sql, *statement.bind(gathered.values()))
        return [_RESULTS[fate] for fate in fates]

    # ── one by one ─────────────────────────────────────────────────────────────────────

    async def _alone(self, session: Session, units: Sequence[Unit]) -> Sequence[CommitResult]:
        committing = False
        try:
            await session.execute("BEGIN")
            seen, now_ms = await self._lock(session, units)
            results = [await self._one(session, unit, seen, now_ms) for unit in units]
            session.warnings.clear()
            committing = True
            done = await session.execute("COMMIT")
        except Exception as error:
            meant = session.meaning(error, undecided=committing)
            await self._undo(session)
            if meant is error:
                raise
            raise meant from error
        session.check_clean()
        if done != "COMMIT":
            raise Contended(f"the transaction came to {done}")
        return results

    @staticmethod
    async def _undo(session: Session) -> None:
        if not session.gone:
            try:
                await session.execute("ROLLBACK")
            except Exception:  # the first error is the one to tell; this session is not used again
                log.debug("postgres.rollback_failed", exc_info=True)

    async def _lock(self, session: Session, units: Sequence[Unit]) -> tuple[dict[Address, Stored], Instant]:
        """Versions and tenants of all states that the units name, locked in the order that every commit keeps, and
        the clock after that."""
        stepped = {write.address: write.expected for unit in units for write in unit.states}
        named = [*stepped.items(), *(guard for unit in units for guard in unit.guards.items())]
        absent = {address for address, version in named if version == 0}
        addresses = sorted(address for address in dict(named) if unstorable(address) is None)
        locks = [(*address, address in stepped, address in absent) for address in addresses]
        await self._fetch(session, pg.lock, "wanted", pg.LOCKS, locks)
        found = await self._fetch(session, pg.load, "wanted", pg.WANTED, [(*each, False) for each in addresses])
        seen: dict[Address, Stored] = dict.fromkeys(dict(named), (0, None))
        now_ms = Instant(0)
        for kind, number, version, tenant, *_ in found:
            if kind:
                seen[addresses[number - 1]] = (version, tenant)
            else:
                now_ms = Instant(version)
        return seen, now_ms

    async def _fetch(
        self, session: Session, build: Callable[..., ClauseElement], name: str, types: pg.Types, rows: Sequence[Any]
    ) -> Sequence[Any]:
        statement = self._sql(build)
        return await session.fetch(statement.sql, *statement.bind(pg.columns(name, types, rows)))

    async def _one(self, session: Session, unit: Unit, seen: dict[Address, Stored], now_ms: Instant) -> CommitResult:
        try:
            if not holds(unit, seen.__getitem__, now_ms):
                return LOST
            batch = Batch(now_ms)
            batch.add(unit)
        except Refused as refused:
            return CommitResult(Fate.VIOLATED, refused.constraint)
        await session.execute("SAVEPOINT unit")
        try:
            await self._write(session, batch)
        except Exception as error:
            meant = session.meaning(error, undecided=False)
            if not isinstance(meant, Refused):
                raise
            await session.execute("ROLLBACK TO SAVEPOINT unit")
            if meant.constraint == _STATE_CREATED:  # by somebody else, since we looked
                return LOST
            return CommitResult(Fate.VIOLATED, meant.constraint)
        await session.execute("RELEASE SAVEPOINT unit")
        seen |= {write.address: (write.version, write.tenant) for write in unit.states}
        return COMMITTED

    async def _write(self, session: Session, batch: Batch) -> None:
        """Row by row, in the order in which they stand."""
        await self._rows(session, batch.created, st.state_insert, takes=CREATED)
        await self._rows(session, batch.stepped, st.state_update, takes=STEPPED)
        for table, rows in batch.facts.items():
            await self._rows(session, rows, st.fact_insert, table, takes=FIELDS[table])
        for attempt in batch.attempts:
            if isinstance(attempt, AttemptEndRow):
                await self._end(session, attempt)
            else:
                table = attempt.table
                await self._rows(session, [values_of(attempt)], st.fact_insert, table, takes=FIELDS[table])
        await self._rows(session, batch.journal, st.journal_insert, takes=JOURNAL)
        await self._rows(session, batch.outbox, st.outbox_insert, takes=OUTBOX)
        await self._rows(session, batch.letters, pg.letter_insert, takes=LETTER)
        if batch.consumed:
            await session.fetch(self._sql(pg.discard).sql, list(batch.consumed))

    async def _rows(
        self,
        session: Session,
        rows: Iterable[tuple[Any, ...]],
        build: Callable[..., ClauseElement],
        *variant: Any,
        takes: Sequence[str],
    ) -> None:
        sql = self._sql.text(build, *variant, takes=takes)
        for row in rows:
            await session.fetch(sql, *row)

    async def _end(self, session: Session, row: AttemptEndRow) -> None:
        if len(await session.fetch(self._sql.text(pg.attempt_end, takes=ENDING), *ending(row))) != 1:
            raise Refused("operation_attempt_end")
