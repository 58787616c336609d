"""Proves what the store on PostgreSQL says when the server, or the way to it, fails: never more than it knows."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from placet.adapters.sql import postgres_sessions
from placet.adapters.sql.postgres import PostgresStore
from placet.adapters.sql.postgres_sessions import READERS_MAX, SESSIONS_MAX
from placet.errors import Code, RetryableError
from tests.builders import TENANT
from tests.contracts.on_store import COMMITTED, LOST
from tests.contracts.units import leaf, run_at, step
from tests.live.faultproxy import Fault, FaultProxy
from tests.live.postgres_stores import EMPTY, execute, held, migrated, refused, version_of
from tests.live.servers import endpoint


@pytest.fixture(scope="module")
def migrated_url(postgres):
    with held(postgres.url) as url:
        yield url


@pytest.fixture
async def url(migrated_url):
    """A database in which nothing is."""
    await execute(migrated_url, EMPTY)
    return migrated_url


@pytest.fixture
async def store(url):
    store = await PostgresStore.open(url, name="placet test")
    yield store
    await store.close()


@asynccontextmanager
async def behind_proxy(url: str):
    """A store whose way to the server may fail."""
    async with FaultProxy(*endpoint(url)) as proxy:
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        store = await PostgresStore.open(urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}")))
        try:
            yield store, proxy
        finally:
            await proxy.restore()
            await store.close()


async def asked(url: str, query: str) -> Any:
    """The one value that a query gives."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


OURS = "FROM pg_stat_activity WHERE application_name = 'placet test'"


# ── the way to the server is cut at the commit ─────────────────────────────────────────


@pytest.mark.parametrize(
    ("fault", "written"), [(Fault.LOSE_REQUEST, 0), (Fault.LOSE_REPLY, 1), (Fault.SWALLOW_REPLY, 1)]
)
async def test_a_connection_that_is_lost_at_the_commit_leaves_it_unknown_and_the_repeat_is_right(
    url, store, monkeypatch, fault, written
):
    monkeypatch.setattr(postgres_sessions, "ANSWER_S", 0.5)
    at = run_at("run-that-is-cut")
    async with behind_proxy(url) as (cut, proxy):
        await cut.commit([step(run_at("before"))])
        sprung = proxy.at(b"run-that-is-cut", fault)
        error = await refused(cut.commit([step(at, 0, leaf(1, at.run_id))]))
        await sprung.wait()
        assert error.code is Code.OUTCOME_UNKNOWN
        assert await version_of(store, at) == written
        assert await cut.commit([step(at, 0, leaf(1, at.run_id))]) == [LOST if written else COMMITTED]
        assert len(await store.rows(TENANT, "audit_leaf", at.run_id)) == 1


@pytest.mark.parametrize(
    ("pattern", "fault", "code", "written"),
    [
        (b"SAVEPOINT unit", Fault.LOSE_REPLY, Code.STORE_UNAVAILABLE, 0),
        (b"COMMIT\0", Fault.LOSE_REQUEST, Code.OUTCOME_UNKNOWN, 0),
        (b"COMMIT\0", Fault.LOSE_REPLY, Code.OUTCOME_UNKNOWN, 2),
        (b"COMMIT\0", Fault.SWALLOW_REPLY, Code.OUTCOME_UNKNOWN, 2),
    ],
)
async def test_one_by_one_only_the_commit_itself_can_be_unknown(url, store, monkeypatch, pattern, fault, code, written):
    monkeypatch.setattr(postgres_sessions, "ANSWER_S", 0.5)
    units = [step(), step(expected=1)]
    async with behind_proxy(url) as (cut, proxy):
        sprung = proxy.at(pattern, fault)
        error = await refused(cut.commit(units))
        await sprung.wait()
        assert error.code is code
        assert await version_of(store, run_at()) == written
        again = await cut.commit(units)
        assert again == ([LOST, LOST] if written else [COMMITTED, COMMITTED])


async def test_reads_that_are_cut_say_that_the_store_is_away_and_the_next_one_works(url):
    async with behind_proxy(url) as (cut, proxy):
        for read in (
            lambda: cut.load([run_at()], []),
            lambda: cut.next_due_ms(),
            lambda: cut.read_thread("r", "t", 1),
            lambda: cut.runs(TENANT, status=None, limit=1, before=None),
        ):
            await read()
            proxy.reset()
            calls = [asyncio.create_task(read()) for _ in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {error.code for error in results if isinstance(error, RetryableError)} <= {Code.STORE_UNAVAILABLE}
            assert not [
                error for error in results if isinstance(error, Exception) and type(error) is not RetryableError
            ]
            await read()


async def test_a_partition_is_noticed_in_time_and_healed_by_itself(url, monkeypatch):
    monkeypatch.setattr(postgres_sessions, "ANSWER_S", 0.3)
    monkeypatch.setattr(postgres_sessions, "CONNECT_S", 0.3)
    async with behind_proxy(url) as (cut, proxy):
        await cut.commit([step()])
        proxy.black_hole()
        assert (await refused(cut.commit([step(expected=1)]))).code is Code.OUTCOME_UNKNOWN
        assert (await refused(cut.load([run_at()], []))).code is Code.STORE_UNAVAILABLE
        proxy.reset()
        await proxy.restore()
        assert await version_of(cut, run_at()) == 1
        assert await cut.commit([step(expected=1)]) == [COMMITTED]


# ── what the server says ───────────────────────────────────────────────────────────────


@asynccontextmanager
async def stuck(url: str, store: PostgresStore):
    """A commit that waits for a lock; gives its task and the process id of its server process."""
    await store.commit([step()])
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute("SELECT 1 FROM state FOR UPDATE")
            task = asyncio.create_task(store.commit([step(expected=1)]))
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            while (pid := await other.fetchval(waiting)) is None:
                await other.execute("SELECT pg_stat_clear_snapshot()")
            yield task, pid
    finally:
        await other.close()


async def test_a_cancelled_statement_was_surely_not_written(url, store):
    async with stuck(url, store) as (task, pid):
        await execute(url, f"SELECT pg_cancel_backend({pid})")
        error = await refused(task)
    assert (error.code, "57014" in error.message) == (Code.STORE_UNAVAILABLE, True)
    assert await version_of(store, run_at()) == 1


async def test_a_terminated_server_process_leaves_the_commit_unknown(url, store):
    async with stuck(url, store) as (task, pid):
        await execute(url, f"SELECT pg_terminate_backend({pid})")
        assert (await refused(task)).code is Code.OUTCOME_UNKNOWN
    assert await store.commit([step(expected=1)]) == [COMMITTED]


async def test_connections_that_the_server_ended_while_they_were_idle_are_replaced_without_an_error(url, store):
    for version in range(5):
        await asyncio.gather(*(store.load([run_at()], []) for _ in range(4)), store.read_journal(run_at()))
        await execute(
            url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'placet%'"
        )
        async with asyncio.timeout(30):
            while not all(each.gone for kept in store._sessions._idle.values() for each in kept):  # noqa: ASYNC110
                await asyncio.sleep(0)  # the loop reads the ends of the connections, and tells nobody
        assert await store.commit([step(None, version)]) == [COMMITTED]


@asynccontextmanager
async def with_default(server: str, url: str, setting: str):
    """A setting that every session of the database begins with; changed from another database."""
    name = urlsplit(url).path[1:]
    await execute(server, f'ALTER DATABASE "{name}" SET {setting}')
    try:
        yield
    finally:
        await execute(server, f'ALTER DATABASE "{name}" RESET ALL')


async def test_a_server_that_takes_no_writes_is_named_and_nothing_was_written(postgres, url):
    async with with_default(postgres.url, url, "default_transaction_read_only = on"):
        store = await PostgresStore.open(url)
        error = await refused(store.commit([step()]))
        assert (error.code, "primary" in error.message) == (Code.STORE_UNAVAILABLE, True)
        await store.close()


@pytest.mark.parametrize("weak", ["off", "local", "remote_write"])
async def test_a_default_that_answers_before_every_disk_has_it_is_not_followed(postgres, url, weak):
    async with with_default(postgres.url, url, f"synchronous_commit = {weak}"):
        store = await PostgresStore.open(url)
        assert store.describe()["synchronous_commit"] == "on"
        shown = await store._sessions.run(lambda session: session.fetch("SHOW synchronous_commit"))
        assert [tuple(row) for row in shown] == [("on",)]
        await store.close()


# ── replicas that do not answer ────────────────────────────────────────────────────────


WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"


async def until_commits_wait(url: str) -> None:
    """The server's processes take up a setting one after the other; the one that matters here says nothing."""
    while True:
        probe = asyncio.create_task(execute(url, "CREATE TABLE probe (); DROP TABLE probe"))
        while not probe.done():
            if await asked(url, f"SELECT count(pg_terminate_backend(pid)) {WAITING}"):
                await asyncio.wait([probe])
                assert probe.exception() is not None
                return


@pytest.fixture
async def lonely(own_postgres):
    """A database whose commits wait for a replica that is not there, and what ends that."""
    async with migrated(own_postgres.url) as url:
        store = await PostgresStore.open(url)
        assert await store.commit([step()]) == [COMMITTED]
        await execute(url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        await execute(url, "SELECT pg_reload_conf()")
        await until_commits_wait(url)

        async def mend() -> None:
            await execute(url, "ALTER SYSTEM RESET synchronous_standby_names")
            await execute(url, "SELECT pg_reload_conf()")

        try:
            yield url, store, mend
        finally:
            await mend()
            await store.close()


async def waiting_for_replica(url: str) -> int:
    """The server process whose commit waits."""
    async with asyncio.timeout(10):
        while (pid := await asked(url, f"SELECT pid {WAITING}")) is None:
            pass
    return int(pid)


@pytest.mark.parametrize("units", [[step(expected=1)], [step(expected=1), step(expected=2)]], ids=["one", "several"])
async def test_a_commit_whose_wait_for_a_replica_was_cancelled_is_unknown_although_the_server_says_done(lonely, units):
    url, store, mend = lonely
    task = asyncio.create_task(store.commit(units))
    await execute(url, f"SELECT pg_cancel_backend({await waiting_for_replica(url)})")
    error = await refused(task)
    assert (error.code, "synchronous replication" in error.message) == (Code.OUTCOME_UNKNOWN, True)
    assert await version_of(store, run_at()) == 1 + len(units), "it is there, and may be lost with this server"
    await mend()
    assert await store.commit(units) == [LOST] * len(units)
    assert await store.commit([step(expected=1 + len(units))]) == [COMMITTED]


async def test_a_caller_who_waits_too_long_for_a_replica_makes_nothing_visible(lonely, monkeypatch):
    url, store, mend = lonely
    monkeypatch.setattr(postgres_sessions, "ANSWER_S", 0.3)
    assert (await refused(store.commit([step(expected=1)]))).code is Code.OUTCOME_UNKNOWN
    monkeypatch.undo()
    await waiting_for_replica(url)  # still: nobody has cancelled it
    assert await version_of(store, run_at()) == 1
    again = asyncio.create_task(store.commit([step(expected=1)]))
    await mend()
    assert await again == [LOST]
    assert await version_of(store, run_at()) == 2


# ── callers that go away ───────────────────────────────────────────────────────────────


async def test_callers_who_are_cancelled_tear_nothing_and_leave_no_connection_behind(url, store):
    calls: list[asyncio.Task[Any]] = []
    for number in range(300):
        at = run_at(f"run-{number}")
        call = asyncio.create_task(store.commit([step(at, 0, leaf(1, at.run_id))]))
        calls += [call, asyncio.create_task(store.load([at], [])), asyncio.create_task(store.state(TENANT, at))]
        if number % 7 == 0:
            await asyncio.sleep(number % 5 / 1_000)
        for each in calls[-3:]:
            each.cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    errors = Counter(type(each) for each in ended if isinstance(each, BaseException))
    assert set(errors) == {asyncio.CancelledError}
    assert errors[asyncio.CancelledError] > 600
    assert await asyncio.wait_for(store.commit([step()]), 5) == [COMMITTED]
    assert await asked(url, f"SELECT count(*) {OURS}") <= SESSIONS_MAX + READERS_MAX
    torn = """SELECT count(*) FROM (SELECT run_id, version FROM state WHERE run_id <> 'run-1') s
    FULL JOIN (SELECT run_id, max(seq) AS seq FROM audit_leaf GROUP BY run_id) a USING (run_id)
    WHERE s.version IS DISTINCT FROM a.seq"""
    assert await asked(url, torn) == 0
    assert await asked(url, f"SELECT count(*) {OURS} AND state <> 'idle'") == 0
