"""The store on PostgreSQL keeps every promise of a store, and what it promises besides since many share it."""

from __future__ import annotations

import asyncpg
import pytest

from placet.adapters.sql.postgres_archive import PostgresArchive
from tests.builders import T0
from tests.contracts.store_contract import StoreContract
from tests.contracts.units import run_at, said, sent, step
from tests.live.postgres_stores import EMPTY, MOVABLE_CLOCK, ClockedStore, execute, held


@pytest.fixture(scope="module")
def clocked_url(postgres):
    """A migrated database whose clock the tests move; each test empties it."""

    with held(postgres.url, MOVABLE_CLOCK) as url:
        yield url


class TestPostgresStore(StoreContract):
    adapter = "postgresql"

    @pytest.fixture(autouse=True)
    async def database(self, clocked_url):
        self.url = clocked_url
        await execute(clocked_url, EMPTY)

    async def make(self, clock):
        self.time = clock
        return await ClockedStore.open(self.url, clock)

    async def reopen(self, store):
        await store.close()
        return await ClockedStore.open(self.url, self.time)

    def archive(self, store):
        return PostgresArchive(self.url)

    async def refuses_to_delete(self, store):
        await store.commit([step(said(1).owner(), 0, said(1))])
        for table in ("journal", "thread_message"):
            with pytest.raises(asyncpg.RestrictViolationError):
                await execute(self.url, f"DELETE FROM {table}")

    test_a_new_owner_finds_leases_due_and_nobody_s_claims: None = None  # type: ignore[assignment]
    """A store that many share has no new owner: see below."""

    async def test_whoever_opens_it_takes_nothing_from_those_who_are_there(self, store, clock):
        rows = [sent("lease", T0 + 9_000, type="turn.lease_ended"), sent("now")]
        await store.commit([step(outbox=rows)])
        assert [row.id for row in await store.claim_due(9, 60_000)] == ["now"]
        other = await ClockedStore.open(self.url, clock)
        try:
            assert (await other.load([run_at()], [])).incarnation == 0
            assert await other.claim_due(9, 10) == []
            assert (await other.next_due_ms())[1] == T0 + 9_000
        finally:
            await other.close()
