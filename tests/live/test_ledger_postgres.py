"""The SQL ledger on PostgreSQL keeps the same promises."""

from __future__ import annotations

import pytest

from tests.ledger.sql_contract import SqlLedgerContract


class TestPostgresLedger(SqlLedgerContract):
    adapter = "postgresql"

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        self.where = postgres_url

    async def url(self) -> str:
        return self.where.replace("postgresql://", "postgresql+asyncpg://")

    def nowhere(self) -> str:
        return "postgresql+asyncpg://postgres@127.0.0.1:1/postgres"
