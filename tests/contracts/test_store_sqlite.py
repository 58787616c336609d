"""The store on SQLite keeps every promise of a store."""

from __future__ import annotations

import pytest

from placet.adapters.sql.sqlite import SqliteStore
from tests.contracts.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    adapter = "sqlite"

    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self.database = tmp_path / "placet.db"

    async def make(self, clock):
        self.clock = clock
        return await SqliteStore.open(self.database, clock=clock)

    async def reopen(self, store):
        await store.close()
        return await SqliteStore.open(self.database, clock=self.clock)
