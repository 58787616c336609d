"""One process owns a SQLite database, and how it is locked depends on the library's defect."""

from __future__ import annotations

import asyncio
import os
import sqlite3

import pytest

from placet.adapters.sql import committing, sqlite_file
from placet.adapters.sql.sqlite import SqliteStore
from placet.adapters.sql.sqlite_file import locking_for
from placet.errors import Code, PlacetError, RetryableError, TerminalError
from tests.contracts.faulty import COMMITTED, FIXED, refused, version_of
from tests.contracts.outbox_contract import OutboxContract
from tests.contracts.unit_contract import UnitContract
from tests.contracts.units import ManualClock, step


@pytest.fixture
def path(tmp_path):
    return tmp_path / "placet.db"


@pytest.fixture
async def store(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    yield store
    await store.close()


@pytest.fixture
def _fixed_library(monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", FIXED)


# ── one owner ──────────────────────────────────────────────────────────────────────────


def in_child(work) -> str:
    """What `work` answers in a forked child; bounded, and the child never returns here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


def open_and_say(path) -> str:
    async def attempt():
        store = await SqliteStore.open(path, clock=ManualClock())
        await store.close()
        return "opened"

    try:
        return asyncio.run(attempt())
    except PlacetError as error:
        return f"{error.code}: {error.message}"


def test_a_second_process_is_refused_and_told_who_has_the_store(path):
    async def hold():
        store = await SqliteStore.open(path, clock=ManualClock())
        try:
            assert await store.commit([step()]) == COMMITTED
            return await asyncio.to_thread(in_child_process, path)
        finally:
            await store.close()

    answer = asyncio.run(hold())
    assert answer.startswith(f"{Code.STORE_IN_USE}: ")
    assert f"process {os.getpid()}" in answer
    assert in_child(lambda: open_and_say(path)) == "opened"


def in_child_process(path) -> str:
    return in_child(lambda: open_and_say(path))


async def test_a_second_store_in_the_same_process_is_refused(store, path):
    error = await refused(SqliteStore.open(path, clock=ManualClock()))
    assert error.code is Code.STORE_IN_USE
    assert error.details["pid"] == os.getpid()
    assert await store.commit([step()]) == COMMITTED


async def test_another_name_of_the_same_file_is_the_same_store(store, path, tmp_path):
    (tmp_path / "link.db").symlink_to(path)
    error = await refused(SqliteStore.open(tmp_path / "link.db", clock=ManualClock()))
    assert error.code is Code.STORE_IN_USE


@pytest.mark.usefixtures("_fixed_library")
async def test_an_owner_that_was_replaced_writes_nothing_more(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    await store.commit([step()])
    path.with_name("placet.db.lock").unlink()
    successor = await SqliteStore.open(path, clock=ManualClock())
    for call in (store.commit([step(expected=1)]), store.load([], [])):
        error = await refused(call)
        assert (type(error), error.code) == (TerminalError, Code.STORE_IN_USE)
    assert await successor.commit([step(expected=1)]) == COMMITTED
    await store.close()
    await successor.close()


async def test_every_opening_counts_as_a_new_owner(path):
    for incarnation in (1, 2, 3):
        store = await SqliteStore.open(path, clock=ManualClock())
        assert (await store.load([], [])).incarnation == incarnation
        assert store.describe()["incarnation"] == incarnation
        await store.close()


# ── the library ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "exclusive"),
    [
        ((3, 37, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 49, 9), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_a_library_with_the_wal_reset_defect_gets_one_connection_only(version, exclusive):
    locking = locking_for(version)
    assert locking.exclusive is exclusive
    assert ".".join(map(str, version)) in locking.reason


async def test_with_the_defect_nobody_else_can_even_read(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    store = await SqliteStore.open(path, clock=ManualClock())
    assert store.describe()["locking"] == "exclusive"
    assert "defect" in store.describe()["locking_reason"]
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=0).execute("SELECT * FROM state")
    await store.close()


@pytest.mark.usefixtures("_fixed_library")
async def test_without_the_defect_others_may_look(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    assert store.describe()["locking"] == "normal"
    await store.commit([step()])
    assert sqlite3.connect(path, timeout=0).execute("SELECT version FROM state").fetchall() == [(1,)]
    await store.close()


async def test_a_library_without_strict_tables_is_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    error = await refused(SqliteStore.open(path, clock=ManualClock()))
    assert "too old" in error.message
    assert not path.exists()


async def test_where_there_is_no_write_ahead_log_the_store_refuses_to_start(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "_connect", lambda _: sqlite3.connect(":memory:", check_same_thread=False))
    error = await refused(SqliteStore.open(path, clock=ManualClock()))
    assert isinstance(error, TerminalError)
    assert "no write-ahead log" in error.message


@pytest.mark.usefixtures("_fixed_library")
class TestSqliteStoreWithNormalLocking(UnitContract, OutboxContract):
    """The same promises where the file is shared with readers."""

    adapter = "sqlite, normal locking"

    @pytest.fixture(autouse=True)
    def database(self, path):
        self.path = path

    async def make(self, clock):
        self.time = clock
        return await SqliteStore.open(self.path, clock=clock)

    async def reopen(self, store):
        await store.close()
        return await SqliteStore.open(self.path, clock=self.time)


@pytest.mark.usefixtures("_fixed_library")
async def test_a_commit_waits_for_another_program_that_writes(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.commit([step()]))
    asyncio.get_running_loop().call_later(0.05, other.execute, "ROLLBACK")
    assert await waiting == COMMITTED
    await store.close()


@pytest.mark.usefixtures("_fixed_library")
async def test_a_commit_that_waited_too_long_surely_did_not_happen(path, monkeypatch):
    monkeypatch.setattr(committing, "BUSY_WAIT_S", 0.05)
    store = await SqliteStore.open(path, clock=ManualClock())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    error = await refused(store.commit([step()]))
    assert (type(error), error.code) == (RetryableError, Code.STORE_UNAVAILABLE)
    assert "another program" in error.message
    assert await version_of(store) == 0
    other.execute("ROLLBACK")
    assert await store.commit([step()]) == COMMITTED
    await store.close()


async def test_a_database_that_another_program_has_open_is_refused(store, path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "OPEN_BUSY_MS", 20)
    monkeypatch.setattr(sqlite_file, "take_lock", lambda _: os.open(os.devnull, os.O_RDONLY))
    monkeypatch.setattr("placet.adapters.sql.sqlite.take_lock", lambda _: os.open(os.devnull, os.O_RDONLY))
    if store.describe()["locking"] == "normal":
        pytest.skip("this SQLite may be shared")
    error = await refused(SqliteStore.open(path, clock=ManualClock()))
    assert error.code is Code.STORE_IN_USE
    assert "another program" in error.message
