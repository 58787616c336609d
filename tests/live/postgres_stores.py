"""Decides how a test gets a store on a real PostgreSQL: a migrated database, and a clock there that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import pytest

from placet.adapters.sql.postgres import PostgresStore
from placet.adapters.sql.postgres_migrating import migrate
from placet.adapters.sql.tables import metadata
from placet.errors import PlacetError, RetryableError
from placet.ids import Address
from tests.contracts.units import ManualClock
from tests.live import spaces

MOVABLE_CLOCK = """
CREATE TABLE test_clock (at_ms bigint);
INSERT INTO test_clock VALUES (0);
CREATE OR REPLACE FUNCTION placet_now_ms() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER
AS 'SELECT at_ms FROM test_clock';
"""
"""In place of the server's own clock: the one seam in the schema."""
EMPTY = f"""
SET session_replication_role = replica;
TRUNCATE {", ".join(table.name for table in metadata.sorted_tables)} RESTART IDENTITY;
RESET session_replication_role;
"""


@asynccontextmanager
async def migrated(url: str, **options: Any) -> AsyncIterator[str]:
    """The address of a new database with the schema; without roles unless asked for."""
    async with spaces.database(url) as own:
        await migrate(own, **{"prefix": None, **options})
        yield own


@contextmanager
def held(url: str, *statements: str, **options: Any) -> Iterator[str]:
    """The same for a fixture that many tests share, after these statements."""

    async def prepared(own: str) -> str:
        for statement in statements:
            await execute(own, statement)
        return own

    database = migrated(url, **options)
    with asyncio.Runner() as runner:
        own = runner.run(database.__aenter__())
        try:
            yield runner.run(prepared(own))
        finally:
            runner.run(database.__aexit__(None, None, None))


async def execute(url: str, sql: str) -> None:
    """Run statements as the server's superuser."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


class ClockedStore:
    """A store whose database has the time of a ManualClock, which is told to it before each call."""

    def __init__(self, store: PostgresStore, clock: ManualClock, teller: asyncpg.Connection) -> None:
        self.store = store
        self._clock = clock
        self._teller = teller
        self._told: int | None = None
        self._telling = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, clock: ManualClock) -> ClockedStore:
        """On a database with MOVABLE_CLOCK."""
        return cls(await PostgresStore.open(url), clock, await asyncpg.connect(url))

    async def tell(self) -> None:
        """The server's clock is the test's from now on."""
        async with self._telling:
            if self._told != self._clock.at_ms:
                await self._teller.execute("UPDATE test_clock SET at_ms = $1", self._clock.at_ms)
                self._told = self._clock.at_ms

    async def ask(self, query: str) -> list[Any]:
        """The rows of a query, beside the store."""
        rows: list[Any] = await self._teller.fetch(query)
        return rows

    async def close(self) -> None:
        """Both connections."""
        await self.store.close()
        await self._teller.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def called(*values: Any, **named: Any) -> Any:
            if not self._teller.is_closed():
                await self.tell()
            return await method(*values, **named)

        return called


async def refused(call) -> PlacetError:
    """The error that the call ends with."""
    with pytest.raises(RetryableError) as raised:
        await call
    return raised.value


async def version_of(store: PostgresStore, at: Address) -> int:
    return (await store.load([at], [])).versions[at]
