"""Decides how PostgreSQL is connected to, and who uses which connection when.

The connections come from the pool of a SQLAlchemy engine. The hot path holds a few of them for good, as sessions: bare
connections of the driver with their prepared statements. Everything in a session runs in a task of its own that no
caller can cancel, so that a statement always ends, one way or the other, before its connection is used again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection

from placet.adapters.sql import schema
from placet.adapters.sql.postgres_errors import FAILURES, meaning, survives, unknown
from placet.errors import Code, ContractError, PlacetError, RetryableError, TerminalError

log = logging.getLogger("placet.postgres")

T = TypeVar("T")

OLDEST = 15
"""PostgreSQL 15: nobody but the owner may create in the schema `public`."""
CONNECT_S = 5.0
LOCK_MS, STATEMENT_MS = 2_000, 10_000
"""How long the server lets a statement wait for others, and run."""
ANSWER_S = 15.0
"""How long an answer is waited for; later than the server's own limits. Then the connection is cut, without a request
to cancel: that would make a commit visible which still waits for its replica (reliability b6)."""
SESSIONS_MAX, READERS_MAX = 4, 4
PREPARED_MAX = 200

SETTINGS = {
    # The plan of a hot statement is the one it was written for, from the first row on (postgres_statements).
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
    "lock_timeout": str(LOCK_MS),
    "statement_timeout": str(STATEMENT_MS),
    # A process that is frozen in the middle of a transaction must not hold its locks for ever.
    "idle_in_transaction_session_timeout": str(STATEMENT_MS),
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


_connect: Any = asyncpg.connect  # the driver is not annotated


class Access:
    """How to connect to one database: the address, and what every connection is told and asked at its start."""

    def __init__(self, url: str, name: str, role: str | None) -> None:
        scheme, _, rest = url.partition("://")
        if scheme not in ("postgresql", "postgres", "postgresql+asyncpg"):
            raise ContractError(Code.SETTING_INVALID, "an address of PostgreSQL begins with postgresql://")
        self._dsn = f"postgresql://{rest}"
        self._settings = {**SETTINGS, "application_name": name, **({"role": role} if role else {})}
        parts = urlsplit(self._dsn)
        self.where = f"PostgreSQL at {parts.netloc.rpartition('@')[2]}{parts.path}"
        """For messages: without user and password."""
        self.facts: dict[str, Any] = {}
        """What the newest connection found."""

    async def connect(self) -> Any:
        """A connection of the driver that is ready for use. Raises PlacetError."""
        connection = await self._connect(self._settings)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._check(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, PlacetError):
                raise
            raise meaning(error, self.where, undecided=False) from error
        return connection

    async def connect_to_migrate(self) -> Any:
        """A connection without any limits, to a database in any state."""
        return await self._connect({"application_name": self._settings["application_name"]})

    async def _connect(self, settings: Mapping[str, str]) -> Any:
        try:
            return await _connect(self._dsn, timeout=CONNECT_S, server_settings=settings)
        except (*FAILURES, ValueError) as error:
            raise meaning(error, self.where, undecided=False) from error

    async def _check(self, connection: Any) -> None:
        found = await connection.fetchrow(_LOOK)
        self.facts = dict(found)
        if found["version"] < OLDEST * 10_000:
            told = f"{self.where} is PostgreSQL {found['server']}: {OLDEST} or later is needed"
            raise TerminalError(Code.STORE_UNAVAILABLE, told)
        if found["standby"]:
            raise RetryableError(Code.STORE_UNAVAILABLE, f"{self.where} is a standby: connect to the primary")
        version = await connection.fetchval(schema.VERSION_QUERY) if found["migrated"] else None
        if not schema.is_current(version):
            told = f"{self.where} has {f'schema {version}' if version else 'no schema yet'}: run `placet migrate`"
            raise RetryableError(Code.STORE_UNAVAILABLE, told)
        if found["synchronous_commit"] in ("off", "local", "remote_write"):
            # An answer rests on a commit that is on every disk it was meant for, whatever is the default here.
            await connection.execute("SET synchronous_commit = on")
            self.facts["synchronous_commit"] = "on"


_LOOK = """
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS server,
  pg_is_in_recovery() AS standby, to_regclass('alembic_version') IS NOT NULL AS migrated, current_user::text AS role,
  current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') = 'on' AS fsync
"""


def make_engine(access: Access) -> AsyncEngine:
    """The engine whose pool all connections come from."""
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=access.connect,
        isolation_level="AUTOCOMMIT",
        pool_size=SESSIONS_MAX + READERS_MAX,
        max_overflow=0,
        pool_timeout=ANSWER_S,
        pool_use_lifo=True,
    )
    event.listen(engine.sync_engine, "checkout", _replace_closed)
    return engine


def _replace_closed(connection: Any, *_: object) -> None:
    """A connection that has ended while it was idle is not handed out; this costs no question to the server."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


class Session:
    """One connection of the driver, its prepared statements, and the warnings that came with the last one."""

    def __init__(self, held: PoolProxiedConnection, where: str, durable: bool) -> None:
        driver: Any = held.driver_connection
        self._driver = driver
        self._held = held
        self._prepared: dict[str, Any] = {}
        self.where = where
        self.durable = durable
        self.warnings: list[str] = []
        self._driver.add_log_listener(self._heard)

    async def begin(self) -> None:
        """Make the connection what this session is for. Raises PlacetError."""
        if not self.durable:
            try:
                await self.execute("SET synchronous_commit = off")
            except Exception as error:
                self.drop()
                raise self.meaning(error, undecided=False) from error

    def _heard(self, _: Any, message: Any) -> None:
        if message.severity_en == "WARNING":
            self.warnings.append(str(message.message))

    async def fetch(self, sql: str, *values: Any) -> Sequence[Any]:
        """The rows of a statement that is prepared when it is first used."""
        async with self._answering():
            statement = self._prepared.get(sql)
            if statement is None:
                if len(self._prepared) >= PREPARED_MAX:
                    self._prepared.clear()
                statement = self._prepared[sql] = await self._driver.prepare(sql)
            rows: Sequence[Any] = await statement.fetch(*values)
            return rows

    async def execute(self, sql: str) -> str:
        """Run a plain command; what the server says it did."""
        async with self._answering():
            done: str = await self._driver.execute(sql)
            return done

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Cut the connection when no answer comes in time, or one after which it cannot be used again."""
        late = asyncio.get_running_loop().call_later(ANSWER_S, self._driver.terminate)
        try:
            yield
        except BaseException as error:
            if not survives(error):
                self._driver.terminate()
            raise
        finally:
            late.cancel()

    async def commit(self, sql: str, *values: Any) -> Sequence[Any]:
        """The rows of a statement that writes and commits by itself.

        Raises Refused, Contended, RetryableError STORE_UNAVAILABLE (nothing was written) or OUTCOME_UNKNOWN.
        """
        self.warnings.clear()
        try:
            rows = await self.fetch(sql, *values)
        except Exception as error:
            raise self.meaning(error, undecided=True) from error
        self.check_clean()
        return rows

    def check_clean(self) -> None:
        """Raises RetryableError(OUTCOME_UNKNOWN) when the commit that has just succeeded came with a warning."""
        if self.warnings:
            raise unknown(self.where, f"the server warns: {self.warnings[0]}")

    def meaning(self, error: BaseException, *, undecided: bool) -> Exception:
        """As postgres_errors.meaning; a warning that came with an error leaves as little known as a lost connection."""
        if self.warnings and undecided:
            return unknown(self.where, f"the server warns: {self.warnings[0]}")
        return meaning(error, self.where, undecided=undecided)

    @property
    def gone(self) -> bool:
        """Whether the connection is no longer there."""
        closed: bool = self._driver.is_closed()
        return closed

    @property
    def usable(self) -> bool:
        """Whether the next one may have it."""
        return not self.gone and not self._driver.is_in_transaction()

    def drop(self) -> None:
        """Cut the connection, whatever it is doing."""
        self._driver.terminate()
        self._held.invalidate()

    async def close(self) -> None:
        """Say good-bye, and give the place in the pool back."""
        try:
            await self._driver.close(timeout=CONNECT_S)
        except FAILURES:
            log.debug("postgres.close_failed", exc_info=True)  # gone already
        self._held.invalidate()


class Sessions:
    """The sessions of the hot path, and everything that runs in them or on a reader's connection."""

    def __init__(self, engine: AsyncEngine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._places = asyncio.Semaphore(SESSIONS_MAX)
        self._idle: dict[bool, list[Session]] = {True: [], False: []}
        self._running: set[asyncio.Task[Any]] = set()
        self._closed: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Session], Awaitable[T]], *, durable: bool = True) -> T:
        """What `work` comes to on a session of its own; it goes on when the caller is cancelled.

        Not `durable`: its commits wait for no disk. Raises RetryableError(STORE_UNAVAILABLE) where no session can be
        had, and what `work` raises.
        """
        return await self.outlive(self._run(work, durable))

    async def outlive(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to; a caller that is cancelled does not end it, and `close` waits for it."""
        if self._closed is not None:
            work.close()
            raise RetryableError(Code.STORE_UNAVAILABLE, f"{self._where}: this store is closed")
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # told to the caller, if there still is one

    async def _run(self, work: Callable[[Session], Awaitable[T]], durable: bool) -> T:
        async with self._places:
            session = await self._take(durable)
            try:
                return await work(session)
            finally:
                self._give_back(session)

    async def _take(self, durable: bool) -> Session:
        idle = self._idle[durable]
        while idle:
            session = idle.pop()
            if session.usable:
                return session
            session.drop()
        try:
            session = Session(await self._engine.raw_connection(), self._where, durable)
        except PoolTimeoutError as error:
            told = f"{self._where}: all connections are in use; nothing was written"
            raise RetryableError(Code.STORE_UNAVAILABLE, told) from error
        await session.begin()
        return session

    def _give_back(self, session: Session) -> None:
        if session.usable:
            self._idle[session.durable].append(session)
            return
        if session.gone:
            # The idle ones were made to the same server: they would fail one after the other.
            for idle in self._all_idle():
                idle.drop()
        session.drop()

    def _all_idle(self) -> list[Session]:
        """Every idle session, which is one no more."""
        sessions = [session for idle in self._idle.values() for session in idle]
        for idle in self._idle.values():
            idle.clear()
        return sessions

    async def close(self) -> None:
        """Wait for what runs, then close every connection. Closing twice is harmless."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        if self._running:
            await asyncio.wait(self._running)
        for idle in self._all_idle():
            await idle.close()
        await self._engine.dispose()
