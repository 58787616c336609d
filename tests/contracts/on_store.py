"""Decides what every store test starts from: an empty store of the adapter under test, and a clock that it moves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from placet.runtime.ports import CommitResult, Fate, Store
from placet.runtime.reading import Reader
from tests.contracts.units import ManualClock

COMMITTED, LOST = CommitResult(Fate.COMMITTED), CommitResult(Fate.LOST)


def violated(constraint: str) -> CommitResult:
    """The fate of a unit that a constraint refuses."""
    return CommitResult(Fate.VIOLATED, constraint)


class ReadableStore(Store, Reader):
    """A store that people may read from as well."""


class OnStore:
    """An adapter's tests say `adapter`, `make` and `reopen`."""

    adapter: str

    async def make(self, clock: ManualClock) -> ReadableStore:
        """An empty store."""
        raise NotImplementedError

    async def reopen(self, store: ReadableStore) -> ReadableStore:
        """The same facts under a new owner, the old one being dead."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[ReadableStore]:
        store = await self.make(clock)
        yield store
        await store.close()
