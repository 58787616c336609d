"""One side effect on the whole system, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from placet.adapters.sql.postgres import PostgresStore
from tests.embedded.operation_contract import OperationContract
from tests.embedded.redeploy_contract import RedeployContract
from tests.live.postgres_stores import migrated


class TestOperationsOnPostgres(OperationContract):
    adapter = "postgresql"

    @pytest.fixture(autouse=True)
    async def database(self, postgres: Any) -> AsyncIterator[None]:
        async with migrated(postgres.url) as self.url:
            yield

    async def make(self) -> Any:
        return await PostgresStore.open(self.url)


class TestRedeployedOnPostgres(RedeployContract):
    adapter = "postgresql"

    @pytest.fixture(autouse=True)
    async def server(self, postgres: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as self.databases:
            self.server_url = postgres.url
            yield

    async def make(self) -> Any:
        return await PostgresStore.open(await self.databases.enter_async_context(migrated(self.server_url)))
