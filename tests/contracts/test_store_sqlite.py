"""The store on SQLite keeps every promise of a store."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from placet.adapters.sql.sqlite import SqliteStore
from placet.adapters.sql.sqlite_archive import SqliteArchive
from placet.errors import PlacetError
from tests.contracts.store_contract import StoreContract
from tests.contracts.units import ManualClock, said, step


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database that was made and closed: copied, it saves each test the migration."""
    path = tmp_path_factory.mktemp("empty") / "placet.db"

    async def make():
        await (await SqliteStore.open(path, clock=ManualClock())).close()

    asyncio.run(make())
    return path


class TestSqliteStore(StoreContract):
    adapter = "sqlite"

    @pytest.fixture(autouse=True)
    def database(self, tmp_path, empty_database):
        self.path = tmp_path / "placet.db"
        shutil.copyfile(empty_database, self.path)

    async def make(self, clock):
        self.time = clock
        return await SqliteStore.open(self.path, clock=clock)

    async def reopen(self, store):
        await store.close()
        return await SqliteStore.open(self.path, clock=self.time)

    def archive(self, store):
        return SqliteArchive(store)

    async def refuses_to_delete(self, store):
        for table in ("journal", "thread_message"):
            await store.commit([step(said(1).owner(), 0, said(1))])
            with pytest.raises(PlacetError, match="insert-only"):
                await store.change(lambda connection, table=table: connection.execute(f"DELETE FROM {table}"))
