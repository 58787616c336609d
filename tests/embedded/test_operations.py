"""One side effect on the whole system, on each store that needs no server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from placet.adapters.clocks import SystemClock
from placet.adapters.memory.store import MemoryStore
from placet.adapters.sql.sqlite import SqliteStore
from tests.embedded.operation_contract import OperationContract
from tests.embedded.redeploy_contract import RedeployContract

NUMBERS = itertools.count()


class TestOperationsInMemory(OperationContract):
    adapter = "memory"

    async def make(self) -> Any:
        return MemoryStore(SystemClock())


class TestOperationsOnSqlite(OperationContract):
    adapter = "sqlite"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    async def make(self) -> Any:
        return await SqliteStore.open(self.path / "placet.db", clock=SystemClock())


class TestRedeployedInMemory(RedeployContract):
    adapter = "memory"

    async def make(self) -> Any:
        return MemoryStore(SystemClock())


class TestRedeployedOnSqlite(RedeployContract):
    adapter = "sqlite"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    async def make(self) -> Any:
        return await SqliteStore.open(self.path / f"placet-{next(NUMBERS)}.db", clock=SystemClock())
