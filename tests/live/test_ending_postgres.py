"""How whole runs end, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from placet.adapters.sql.postgres import PostgresStore
from tests.embedded.ending_contract import EndingContract
from tests.live.postgres_stores import migrated


class TestEndingOnPostgres(EndingContract):
    adapter = "postgresql"

    @pytest.fixture(autouse=True)
    async def database(self, postgres: Any) -> AsyncIterator[None]:
        async with migrated(postgres.url) as self.url:
            yield

    async def make(self) -> Any:
        return await PostgresStore.open(self.url)

    async def again(self, store: Any) -> Any:
        del store
        return await self.make()
