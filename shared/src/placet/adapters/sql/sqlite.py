"""Decides how facts are kept in one SQLite file, by one process: the store of the embedded system."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.expression import ClauseElement

from placet.adapters.sql import schema
from placet.adapters.sql import statements as st
from placet.adapters.sql.committing import Committer
from placet.adapters.sql.reading import SqlReader
from placet.adapters.sql.refusals import translated
from placet.adapters.sql.sqlite_file import Locking, library_version, locking_for, open_database, take_lock
from placet.columns import KEYS, row_of
from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.instants import Instant
from placet.messages import LEASE_TYPES
from placet.rows import STATE, FactKey, Row, StateRow, owner_of
from placet.runtime.ports import Clock, CommitResult, JournalEntry, Loaded, OutboxRow, StoredState, Unit

log = logging.getLogger("placet.sqlite")

T = TypeVar("T")

_STATE = ("is_run_id", "is_machine", "is_key")
_OUTBOX_ROW = ("id", "destination", "run_id", "type", "not_before_ms", "body")


class SqliteStore(SqlReader):
    """runtime.ports.Store and runtime.ports.Reader on a file that nobody else has open.

    Use it from one event loop. Made by `open`.
    """

    compares_and_sets = True
    is_verbatim = True
    _arrival = "journal.rowid"

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int, clock: Clock, locking: Locking) -> None:
        self._path = path
        self._connection = connection
        self._lock = lock
        self._clock = clock
        self._locking = locking
        self._sql = self.sql = st.Statements(sqlite.dialect(paramstyle="qmark"))
        self._fact_loads: dict[str, tuple[str, int]] = {}
        self._incarnation = self._become_owner()
        self._committer = Committer(connection, self._sql, clock, path, self._incarnation)
        self._closed: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path | str, *, clock: Clock) -> SqliteStore:
        """Open the database, or make it, as its only owner.

        Rows of timers that watch over work in hand become due at once and nobody's claim counts: the work was the last
        owner's, and that one is dead.

        Raises RetryableError STORE_IN_USE (naming the process that has it) or STORE_UNAVAILABLE, TerminalError
        CHECKPOINT_CORRUPT, ContractError CHECKPOINT_VERSION_UNSUPPORTED for a database of a newer program.
        """
        return await asyncio.get_running_loop().run_in_executor(None, cls._open, Path(path), clock)

    @classmethod
    def _open(cls, path: Path, clock: Clock) -> SqliteStore:
        path = path.resolve()  # two names of one file have one lock
        locking = locking_for(library_version())
        lock = take_lock(path)
        try:
            connection = open_database(path, locking)
            try:
                store = cls(path, connection, lock, clock, locking)
            except BaseException:
                connection.close()
                raise
        except BaseException as error:
            os.close(lock)
            if isinstance(error, sqlite3.Error):
                raise translated(error, path) from error
            raise
        log.info("sqlite.opened", extra=store.describe())
        return store

    def describe(self) -> dict[str, Any]:
        """What an operator wants to know of the store."""
        return {
            "store": "sqlite",
            "path": str(self._path),
            "library": sqlite3.sqlite_version,
            "locking": "exclusive" if self._locking.exclusive else "normal",
            "locking_reason": self._locking.reason,
            "schema": schema.HEAD,
            "incarnation": self._incarnation,
        }

    def _become_owner(self) -> int:
        execute, sql = self._connection.execute, self._sql
        execute("BEGIN IMMEDIATE")
        found = execute(sql.text(st.meta_value, takes=("is_name",)), ("incarnation",)).fetchone()
        incarnation = 1 if found is None else int(found[0]) + 1
        if found is None:
            execute(sql.text(st.meta_insert, takes=("name", "value")), ("incarnation", incarnation))
        else:
            execute(sql.text(st.meta_update, takes=("new_value", "is_name")), (incarnation, "incarnation"))
            now_ms = self._clock.now_ms()
            execute(sql.text(st.outbox_unclaim, takes=()))
            wake = sql.text(st.outbox_wake, tuple(sorted(LEASE_TYPES)), takes=("due_now_ms", "now_ms"))
            execute(wake, (now_ms, now_ms))
        execute("COMMIT")
        return incarnation

    # ── for the engine ─────────────────────────────────────────────────────────────────

    async def load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """As ports.Store."""
        return await self._read(lambda: self._load(addresses, keys))

    def _load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        execute = self._connection.execute
        load_sql = self._sql.text(st.state_load, takes=_STATE)
        version_sql = self._sql.text(st.state_version, takes=_STATE)
        states: dict[Address, StoredState | None] = {}
        versions: dict[Address, int] = {}
        for address in addresses:
            found = execute(load_sql, address).fetchone()
            states[address] = None if found is None else StoredState(*found)
            versions[address] = 0 if found is None else found[0]
        rows: dict[FactKey, Row | None] = {}
        for key in keys:
            owner = owner_of(key)
            if owner not in versions:
                found = execute(version_sql, owner).fetchone()
                versions[owner] = 0 if found is None else found[0]
            rows[key] = self._row(key)
        return Loaded(self._clock.now_ms(), self._incarnation, states, rows, versions)

    def _row(self, key: FactKey) -> Row | None:
        if key.table == STATE:
            found = self._connection.execute(self._sql.text(st.state_row, takes=_STATE), key[1:]).fetchone()
            if found is None:
                return None
            columns = ("tenant", "run_id", "machine", "key", "version", "status")
            return StateRow(**dict(zip(columns, found, strict=True)))
        sql, parts = self._fact_loads.get(key.table) or self._fact_load(key.table)
        found = self._connection.execute(sql, key[1 : 1 + parts]).fetchone()
        return None if found is None else row_of(key.table, found)

    def _fact_load(self, table: str) -> tuple[str, int]:
        """The SQL that reads a row of a table, and how many parts of its key it takes; kept for the next one."""
        names = ("run_id", "request_id", "decision_id") if table == "decision_attempt" else KEYS[table]
        sql = self._sql.text(st.fact_load, table, takes=tuple(f"is_{name}" for name in names))
        self._fact_loads[table] = sql, len(names)
        return self._fact_loads[table]

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """As ports.Store. Whoever calls at the same time shares a transaction."""
        self._check_open()
        if not units:
            return ()
        results: Sequence[CommitResult] = await self._committer.do(units=tuple(units))
        return results

    async def claim_due(self, limit: int, lease_ms: int) -> Sequence[OutboxRow]:
        """As ports.Store."""
        self._check_open()
        rows: Sequence[OutboxRow] = await self._committer.do(work=lambda now: self._claim(limit, lease_ms, now))
        return rows

    def _claim(self, limit: int, lease_ms: int, now_ms: Instant) -> Sequence[OutboxRow]:
        due = self._sql(st.outbox_due)
        found = self._connection.execute(due.sql, due.bind({"now_ms": now_ms, "limit": limit})).fetchall()
        if found:
            claim = self._sql.text(st.outbox_claim, takes=("until_ms", "is_id"))
            self._connection.executemany(claim, [(now_ms + lease_ms, row[0]) for row in found])
        return [OutboxRow(**dict(zip(_OUTBOX_ROW, row, strict=True))) for row in found]

    async def next_due_ms(self) -> tuple[Instant, Instant | None]:
        """As ports.Store."""
        return await self._read(self._next_due)

    def _next_due(self) -> tuple[Instant, Instant | None]:
        now_ms = self._clock.now_ms()
        execute = self._connection.execute
        due = execute(self._sql.text(st.outbox_next_due, takes=("now_ms",)), (now_ms,)).fetchone()
        lapse = execute(self._sql.text(st.outbox_next_lapse, takes=("now_ms",)), (now_ms,)).fetchone()
        instants = [found[0] for found in (due, lapse) if found is not None and found[0] is not None]
        return now_ms, min(instants, default=None)

    async def defer(self, outbox_ids: Sequence[str], longest_ms: int) -> None:
        """As ports.Store."""
        self._check_open()
        defer = self._sql(st.outbox_defer)

        def work(now_ms: Instant) -> None:
            values = ({"now_ms": now_ms, "longest_ms": longest_ms, "is_id": outbox_id} for outbox_id in outbox_ids)
            self._connection.executemany(defer.sql, [defer.bind(each) for each in values])

        if outbox_ids:
            await self._committer.do(work=work)

    async def recall(self, within_ms: int) -> None:
        """As ports.Store."""
        self._check_open()
        recall = self._sql(st.outbox_recall)

        def work(now_ms: Instant) -> None:
            values = recall.bind({"now_ms": now_ms, "until_ms": now_ms + within_ms})
            self._connection.execute(recall.sql, values)

        await self._committer.do(work=work)

    async def discard(self, outbox_ids: Sequence[str]) -> None:
        """As ports.Store."""
        self._check_open()
        if outbox_ids:
            ids = [(outbox_id,) for outbox_id in outbox_ids]
            delete = self._sql.text(st.outbox_delete, takes=("is_id",))
            await self._committer.do(work=lambda _: self._connection.executemany(delete, ids).rowcount)

    async def read_journal(self, address: Address) -> Sequence[JournalEntry]:
        """As ports.Store."""
        sql = self._sql.text(st.journal_of_state, takes=_STATE)
        found = await self._read(lambda: self._connection.execute(sql, address).fetchall())
        return [JournalEntry(address, *row) for row in found]

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> Sequence[str]:
        """As ports.Store."""
        sql = self._sql.text(st.thread_bodies, takes=("is_run_id", "is_thread_id", "upto"))
        found = await self._read(lambda: self._connection.execute(sql, (run_id, thread_id, upto)).fetchall())
        return [body for (body,) in found]

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` does as the owner of the file, on the disk when this returns. It must not wait."""
        self._check_open()
        result: T = await self._committer.do(work=lambda _: work(self._connection))
        return result

    # ── for people ─────────────────────────────────────────────────────────────────────

    async def _fetch(self, build: Callable[..., ClauseElement], *variant: Any, **values: Any) -> list[tuple[Any, ...]]:
        statement = self._sql(build, *variant)
        return await self._read(lambda: self._connection.execute(statement.sql, statement.bind(values)).fetchall())

    # ── life ───────────────────────────────────────────────────────────────────────────

    async def _read(self, read: Callable[[], T]) -> T:
        """What `read` returns, at an instant between two transactions. It must not wait."""
        self._check_open()
        await self._committer.idle()
        self._check_open()
        if self._committer.broken is not None:
            raise self._committer.broken.with_traceback(None)
        try:
            return read()
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RetryableError(Code.STORE_UNAVAILABLE, f"{self._path} is closed")

    async def close(self) -> None:
        """As ports.Store."""
        if self._closed is None:
            self._closed = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        try:
            await self._committer.drain()
            await self._committer.close()
        finally:
            os.close(self._lock)
