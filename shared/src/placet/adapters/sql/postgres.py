"""Decides how facts are kept in PostgreSQL, by any number of processes at once: the store of the distributed system.

SQLAlchemy's engine gives the connections and runs what people read. The hot path runs on the driver's connections
beneath its pool, one statement for each call (placet.adapters.sql.postgres_statements).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy.dialects.postgresql import asyncpg as dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.expression import ClauseElement

from placet.adapters.sql import postgres_statements as pg
from placet.adapters.sql import schema
from placet.adapters.sql import statements as st
from placet.adapters.sql.postgres_errors import Contended, meaning
from placet.adapters.sql.postgres_sessions import Access, Session, Sessions, make_engine
from placet.adapters.sql.postgres_writing import PostgresWriter
from placet.adapters.sql.reading import SqlReader
from placet.adapters.sql.units import Refused
from placet.columns import row_of, unstorable
from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.instants import Instant
from placet.rows import STATE, FactKey, Row, StateRow, owner_of
from placet.runtime.ports import CommitResult, JournalEntry, Loaded, OutboxRow, StoredState, Unit

log = logging.getLogger("placet.postgres")

_dialect: Any = dialect.dialect
_SQL = st.Statements(_dialect())
"""Compiled once for all stores of the process."""
INCARNATION = 0
"""A shared store has many owners at once, so that nobody's death can be told from it: leases run their time."""


class PostgresStore(SqlReader):
    """runtime.ports.Store and runtime.ports.Reader on a database that `placet migrate` has made.

    Use it from one event loop. Made by `open`.
    """

    compares_and_sets = True
    is_verbatim = True
    _arrival = "journal.seq"

    def __init__(self, access: Access, engine: AsyncEngine) -> None:
        self._access = access
        self._engine = engine
        self._sessions = Sessions(engine, access.where)
        self._sql = _SQL
        self._writer = PostgresWriter(self._sql)
        self._built: dict[tuple[Any, ...], ClauseElement] = {}

    @classmethod
    async def open(cls, url: str, *, name: str = "placet", role: str | None = None) -> PostgresStore:
        """Connect, and see that the schema is the one this program knows.

        `url` is an address as libpq takes it: several hosts, `sslmode` and `target_session_attrs` too. `name` is shown
        in the server's list of connections. `role`, one that the user is a member of, acts in the user's place.

        Raises RetryableError(STORE_UNAVAILABLE) while it cannot be reached or is not migrated yet, TerminalError
        STORE_UNAVAILABLE for a server that is too old, ContractError CHECKPOINT_VERSION_UNSUPPORTED for a schema of a
        newer program.
        """
        access = Access(url, name, role)
        store = cls(access, make_engine(access))
        try:
            await store.load([], [])
        except BaseException:
            await store.close()
            raise
        if not access.facts["fsync"]:
            log.warning("postgres.not_durable", extra={"what": "fsync is off: a crash of the machine loses facts"})
        log.info("postgres.opened", extra=store.describe())
        return store

    def describe(self) -> dict[str, Any]:
        """What an operator wants to know of the store."""
        facts = self._access.facts
        return {
            "store": "postgresql",
            "database": self._access.where,
            "server": facts.get("server"),
            "role": facts.get("role"),
            "schema": schema.HEAD,
            "fsync": facts.get("fsync"),
            "synchronous_commit": facts.get("synchronous_commit"),
        }

    # ── for the engine ─────────────────────────────────────────────────────────────────

    async def load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """As ports.Store: one statement, and so one instant."""
        wanted = _Wanted(addresses, keys)
        try:
            rows = await self._rows(pg.load, *wanted.facts, **wanted.values())
        except Refused:
            # Nothing is kept under a name that cannot be kept; whoever asks for one must not spoil the others' load.
            wanted = _Wanted(
                [address for address in addresses if unstorable(address) is None],
                [key for key in keys if unstorable(key) is None],
            )
            rows = await self._rows(pg.load, *wanted.facts, **wanted.values())
        return wanted.loaded(rows, addresses, keys)

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """As ports.Store. A caller that is cancelled does not undo it."""
        if not units:
            return ()
        ours = tuple(units)
        return await self._sessions.run(lambda session: self._writer.commit(session, ours))

    async def claim_due(self, limit: int, lease_ms: int) -> Sequence[OutboxRow]:
        """As ports.Store. Rows that another relay is claiming at this moment are its own.

        A claim that a crash of the server undoes is a row that is published again, so nobody waits for the disk.
        """
        found = await self._rows(pg.claim_due, durable=False, limit=limit, lease_ms=lease_ms)
        return [OutboxRow(*row[:-2]) for row in sorted(found, key=lambda row: row[-2:])]

    async def next_due_ms(self) -> tuple[Instant, Instant | None]:
        """As ports.Store."""
        ((now_ms, due_ms, lapse_ms),) = await self._rows(pg.next_due, durable=False)
        instants = [Instant(found) for found in (due_ms, lapse_ms) if found is not None]
        return Instant(now_ms), min(instants, default=None)

    async def defer(self, outbox_ids: Sequence[str], longest_ms: int) -> None:
        """As ports.Store; lost like a claim."""
        if outbox_ids:
            await self._rows(pg.defer, durable=False, ids=list(outbox_ids), longest_ms=longest_ms)

    async def recall(self, within_ms: int) -> None:
        """As ports.Store; lost like a claim."""
        await self._rows(pg.recall, durable=False, within_ms=within_ms)

    async def discard(self, outbox_ids: Sequence[str]) -> None:
        """As ports.Store; lost like a claim."""
        if outbox_ids:
            await self._rows(pg.discard, durable=False, ids=list(outbox_ids))

    async def read_journal(self, address: Address) -> Sequence[JournalEntry]:
        """As ports.Store."""
        run_id, machine, key = address
        found = await self._fetch(st.journal_of_state, is_run_id=run_id, is_machine=machine, is_key=key)
        return [JournalEntry(address, *row) for row in found]

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> Sequence[str]:
        """As ports.Store."""
        found = await self._rows(st.thread_bodies, is_run_id=run_id, is_thread_id=thread_id, upto=upto)
        return [body for (body,) in found]

    async def _rows(
        self, build: Callable[..., ClauseElement], *variant: Any, durable: bool = True, **values: Any
    ) -> Sequence[Any]:
        """The rows of a hot statement, which writes nothing that anybody is promised."""
        statement = self._sql(build, *variant)

        async def work(session: Session) -> Sequence[Any]:
            try:
                return await session.fetch(statement.sql, *statement.bind(values))
            except Exception as error:
                raise session.meaning(error, undecided=False) from error

        try:
            return await self._sessions.run(work, durable=durable)
        except Contended as contended:
            told = f"{self._access.where}: others were in the way; nothing was written ({contended})"
            raise RetryableError(Code.STORE_UNAVAILABLE, told) from contended

    # ── for people ─────────────────────────────────────────────────────────────────────

    async def _fetch(self, build: Callable[..., ClauseElement], *variant: Any, **values: Any) -> list[tuple[Any, ...]]:
        if unstorable(values.values()) is not None:
            return []  # nothing has such a name
        key = (build, *variant)
        if key not in self._built:
            self._built[key] = build(*variant)
        return await self._sessions.outlive(self._read(self._built[key], values))

    async def _read(self, statement: Any, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            async with self._engine.connect() as connection:
                return [tuple(row) for row in await connection.execute(statement, values)]
        except PoolTimeoutError as error:
            told = f"{self._access.where}: all connections are in use"
            raise RetryableError(Code.STORE_UNAVAILABLE, told) from error
        except DBAPIError as error:
            cause = error.orig.__cause__ if error.orig is not None else None
            raise meaning(cause or error, self._access.where, undecided=False) from error

    # ── life ───────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """As ports.Store."""
        await self._sessions.close()


class _Wanted:
    """What a load asks for, as arrays, and the way back from its rows."""

    def __init__(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> None:
        whole = dict.fromkeys(addresses, True)
        self._states = list((dict.fromkeys(map(owner_of, keys), False) | whole).items())
        self._keys: dict[str, list[FactKey]] = {}
        for key in dict.fromkeys(keys):
            if key.table != STATE:
                self._keys.setdefault(key.table, []).append(key)
        self.facts = tuple(sorted(self._keys))

    def values(self) -> dict[str, Any]:
        """The parameters of the load."""
        rows = [(*address, whole) for address, whole in self._states]
        values: dict[str, Any] = dict(pg.columns("wanted", pg.WANTED, rows))
        for table in self.facts:
            names = pg.asked_by(table)
            values |= pg.columns(table, names, [key[1 : 1 + len(names)] for key in self._keys[table]])
        return values

    def loaded(self, rows: Sequence[Any], addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """What the rows say of everything that was asked for."""
        now_ms = Instant(0)
        states: dict[Address, StoredState | None] = dict.fromkeys(addresses)
        facts: dict[FactKey, Row | None] = dict.fromkeys(keys)
        versions = dict.fromkeys([*addresses, *map(owner_of, keys)], 0)
        for kind, number, version, tenant, status, body, fact in rows:
            if kind == 0:
                now_ms = Instant(version)
            elif kind == 1:
                address, whole = self._states[number - 1]
                versions[address] = version
                if whole:
                    states[address] = StoredState(version, status, body)
                key = FactKey(STATE, address.run_id, address.machine, address.key)
                if key in facts:
                    facts[key] = _state_row(address, tenant, version, status)
            else:
                table = self.facts[kind - 2]
                facts[self._keys[table][number - 1]] = row_of(table, fact)
        return Loaded(now_ms, INCARNATION, states, facts, versions)


def _state_row(address: Address, tenant: str, version: int, status: str) -> StateRow:
    run_id, machine, key = address
    return StateRow(tenant=tenant, run_id=run_id, machine=machine, key=key, version=version, status=status)
