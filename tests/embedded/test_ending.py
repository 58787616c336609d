"""How whole runs end, on each store that needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placet.adapters.clocks import SystemClock
from placet.adapters.memory.store import MemoryStore
from placet.adapters.sql.sqlite import SqliteStore
from tests.embedded.ending_contract import EndingContract


class TestEndingInMemory(EndingContract):
    adapter = "memory"

    async def make(self) -> Any:
        return MemoryStore(SystemClock())

    async def again(self, store: Any) -> Any:
        store.restart()
        return store


class TestEndingOnSqlite(EndingContract):
    adapter = "sqlite"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    async def make(self) -> Any:
        return await SqliteStore.open(self.path / "placet.db", clock=SystemClock())

    async def again(self, store: Any) -> Any:
        del store
        return await self.make()
