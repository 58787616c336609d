"""The store in memory keeps every promise of a store."""

from __future__ import annotations

from placet.adapters.memory import MemoryStore
from tests.contracts.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    adapter = "memory"

    async def make(self, clock):
        return MemoryStore(clock)

    async def reopen(self, store):
        store.restart()
        return store

    def archive(self, store):
        return store
