"""One side effect on the whole system, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from placet.adapters.sql.postgres import PostgresStore
from tests.embedded.operation_contract import OperationContract
from tests.live.postgres_stores import migrated


class TestOperationsOnPostgres(OperationContract):
    adapter = "postgresql"

    @pytest.fixture(autouse=True)
    async def database(self, postgres: Any) -> AsyncIterator[None]:
        async with migrated(postgres.url) as self.url:
            yield

    async def make(self) -> Any:
        return await PostgresStore.open(self.url)
