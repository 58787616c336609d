"""Proves that a PostgreSQL which is killed, frozen or full costs time, and no answer that was given."""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg
import pytest

from placet.adapters.sql import postgres_sessions
from placet.adapters.sql.postgres import PostgresStore
from placet.errors import Code, RetryableError
from tests.builders import TENANT
from tests.contracts.on_store import COMMITTED, LOST
from tests.contracts.units import leaf, run_at, step
from tests.live.postgres_server import PrivatePostgres
from tests.live.postgres_stores import migrated, refused, version_of

RECONNECT_S = 10


class Client:
    """One process that steps runs of its own, and remembers what it was told."""

    def __init__(self, name: str, store: PostgresStore) -> None:
        self.at = run_at(f"run-of-{name}")
        self.store = store
        self.told = 0
        """The version that is surely there."""
        self.heard: Counter[str] = Counter()

    async def work(self, until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                (result,) = await self.store.commit([step(self.at, self.told, leaf(self.told + 1, self.at.run_id))])
                assert result == COMMITTED, "nobody else writes it"
                self.told += 1
                self.heard["committed"] += 1
            except RetryableError as error:
                self.heard[error.code] += 1
                await self.look(error)

    async def look(self, error: RetryableError) -> None:
        """What was unknown is known again as soon as the server is back."""
        while True:
            try:
                version = await version_of(self.store, self.at)
            except RetryableError:
                await asyncio.sleep(0.05)
                continue
            assert version in ([self.told, self.told + 1] if error.code is Code.OUTCOME_UNKNOWN else [self.told])
            self.told = version
            return


async def more_commits(clients: list[Client], number: int) -> None:
    """Until they have made that many more, all together."""
    wanted = sum(client.heard["committed"] for client in clients) + number
    while sum(client.heard["committed"] for client in clients) < wanted:  # noqa: ASYNC110  not worth an event
        await asyncio.sleep(0.005)


async def test_a_server_killed_under_load_keeps_every_answer_and_is_used_again_within_ten_seconds(own_postgres):
    async with migrated(own_postgres.url) as url:
        stores = [await PostgresStore.open(url) for _ in range(2)]
        clients = [Client(str(number), stores[number % 2]) for number in range(6)]
        over = asyncio.Event()
        working = [asyncio.create_task(client.work(over)) for client in clients]
        for _ in range(3):
            await more_commits(clients, 60)
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
            async with asyncio.timeout(RECONNECT_S):
                await more_commits(clients, 1)
        over.set()
        await asyncio.gather(*working)
        assert sum(client.heard[Code.OUTCOME_UNKNOWN] + client.heard[Code.STORE_UNAVAILABLE] for client in clients)
        for client in clients:
            assert await version_of(client.store, client.at) == client.told
            leaves = await client.store.rows(TENANT, "audit_leaf", client.at.run_id)
            assert [row["seq"] for row in leaves] == list(range(1, client.told + 1))
        for store in stores:
            await store.close()


async def test_a_frozen_server_is_given_up_in_time_and_used_again_when_it_goes_on(own_postgres, monkeypatch):
    async with migrated(own_postgres.url) as url:
        store = await PostgresStore.open(url)
        await store.commit([step()])
        monkeypatch.setattr(postgres_sessions, "ANSWER_S", 0.4)
        monkeypatch.setattr(postgres_sessions, "CONNECT_S", 0.4)
        own_postgres.freeze()
        try:
            assert (await refused(store.commit([step(expected=1)]))).code is Code.OUTCOME_UNKNOWN
            assert (await refused(store.load([run_at()], []))).code is Code.STORE_UNAVAILABLE
        finally:
            own_postgres.thaw()
        monkeypatch.undo()
        results = await store.commit([step(expected=1)])
        assert results in ([COMMITTED], [LOST])
        assert await version_of(store, run_at()) == 2
        await store.close()


async def test_a_server_without_room_for_another_connection_says_so(home):
    server = PrivatePostgres(
        home.place("postgres-full"), settings={"max_connections": "8", "superuser_reserved_connections": "0"}
    )
    await asyncio.to_thread(server.start)
    try:
        async with migrated(server.url) as url:
            store = await PostgresStore.open(url)
            taken = []
            with pytest.raises(asyncpg.exceptions.TooManyConnectionsError):
                while True:
                    taken.append(await asyncpg.connect(url))
            error = await refused(PostgresStore.open(url))
            assert (error.code, "53300" in error.message) == (Code.STORE_UNAVAILABLE, True)
            assert await store.commit([step()]) == [COMMITTED], "who has a connection goes on"
            assert (await refused(store.claim_due(1, 1))).code is Code.STORE_UNAVAILABLE, "a relay has one of its own"
            for connection in taken:
                await connection.close()
            await store.close()
    finally:
        await asyncio.to_thread(server.close)
