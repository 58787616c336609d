"""What happens to the store on SQLite when the world is unwell: it fails closed, says why, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import threading

import pytest

from placet.adapters import clocks
from placet.adapters.sql import committing, sqlite_file
from placet.adapters.sql.sqlite import SqliteStore
from placet.adapters.sql.sqlite_file import locking_for
from placet.errors import Code, InvariantError, PlacetError, RetryableError, TerminalError
from placet.runtime.ports import CommitResult, Fate
from tests.builders import RUN_ID, TENANT
from tests.cases import case
from tests.contracts.outbox_contract import OutboxContract
from tests.contracts.unit_contract import UnitContract
from tests.contracts.units import THREAD_AT, ManualClock, leaf, run_at, said, sent, step

COMMITTED = [CommitResult(Fate.COMMITTED)]
FIXED = (3, 51, 3)


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
    """As if the library had the fix of the WAL-reset defect: other programs may look at the file."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", FIXED)


class Faulty:
    """A connection whose COMMIT does something else first: waits, or raises."""

    def __init__(self, connection, before_commit):
        self._connection = connection
        self._before_commit = before_commit

    def execute(self, sql, *parameters):
        if sql == "COMMIT":
            self._before_commit()
        return self._connection.execute(sql, *parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


def break_commit(store, before_commit):
    """From now on COMMIT does this first; returns what mends it."""
    whole = store._committer._connection
    store._committer._connection = Faulty(whole, before_commit)

    def mend():
        store._committer._connection = whole

    return mend


def fail_with(code):
    """What raises as the driver does."""

    def fail():
        error = sqlite3.OperationalError(f"code {code}")
        error.sqlite_errorcode = code
        raise error

    return fail


async def refused(call) -> PlacetError:
    with pytest.raises(PlacetError) as raised:
        await call
    return raised.value


async def version_of(store) -> int:
    return (await store.load([run_at()], [])).versions[run_at()]


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
    error = await refused(store.commit([step(expected=1)]))
    assert error.code is Code.STORE_IN_USE
    assert (await refused(store.load([], []))).code is Code.STORE_IN_USE
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
        self.clock = clock
        return await SqliteStore.open(self.path, clock=clock)

    async def reopen(self, store):
        await store.close()
        return await SqliteStore.open(self.path, clock=self.clock)


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


# ── the disk ───────────────────────────────────────────────────────────────────────────


async def test_a_full_disk_refuses_the_commit_keeps_what_was_and_goes_on_once_there_is_space(store):
    await store.commit([step()])
    connection = store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = step(None, 1, body=b"x" * 1_000_000)
    error = await refused(store.commit([large]))
    assert (type(error), error.code) == (RetryableError, Code.STORE_UNAVAILABLE)
    assert "free some space" in error.message
    assert await version_of(store) == 1
    connection.execute("PRAGMA max_page_count = 1000000")
    assert await store.commit([large]) == COMMITTED


async def test_a_really_full_disk_does_the_same(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    made = await asyncio.create_subprocess_exec(
        "mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", mount, stderr=asyncio.subprocess.DEVNULL
    )
    if await made.wait() != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        store = await SqliteStore.open(mount / "placet.db", clock=ManualClock())
        version = 0
        with pytest.raises(RetryableError) as raised:
            while version < 100:
                await store.commit([step(None, version, leaf(version + 1), body=bytes(100_000))])
                version += 1
        assert raised.value.code in (Code.STORE_UNAVAILABLE, Code.OUTCOME_UNKNOWN)
        assert "free some space" in raised.value.message
        assert await version_of(store) == version
        assert len(await store.rows(TENANT, "audit_leaf", RUN_ID)) == version
        await (await asyncio.create_subprocess_exec("mount", "-o", "remount,size=30m", mount)).wait()
        assert await store.commit([step(None, version, body=bytes(100_000))]) == COMMITTED
        await store.close()
    finally:
        await (await asyncio.create_subprocess_exec("umount", "-l", mount)).wait()


async def test_a_file_system_that_turned_read_only_refuses_the_commit(store):
    await store.commit([step()])
    store._connection.execute("PRAGMA query_only = ON")
    error = await refused(store.commit([step(expected=1)]))
    assert (type(error), error.code) == (RetryableError, Code.STORE_UNAVAILABLE)
    assert "read-only" in error.message
    assert await version_of(store) == 1


async def test_a_database_that_may_not_be_written_is_refused(tmp_path):
    for path in (tmp_path / "none" / "placet.db", tmp_path):
        error = await refused(SqliteStore.open(path, clock=ManualClock()))
        assert error.code is Code.STORE_UNAVAILABLE
        assert str(path) in error.message


@pytest.mark.parametrize("how", ["file", "directory", "replaced"])
async def test_a_database_that_was_removed_is_written_to_no_more(tmp_path, how):
    path = tmp_path / "data" / "placet.db"
    path.parent.mkdir()
    store = await SqliteStore.open(path, clock=ManualClock())
    await store.commit([step()])
    if how == "directory":
        shutil.rmtree(path.parent)
    else:
        path.unlink()
    if how == "replaced":
        path.write_bytes(b"")
    error = await refused(store.commit([step(expected=1)]))
    assert (type(error), error.code) == (RetryableError, Code.STORE_UNAVAILABLE)
    assert "removed or replaced" in error.message
    await store.close()


async def test_a_database_removed_during_a_commit_leaves_its_outcome_unknown(store, path):
    break_commit(store, path.unlink)
    error = await refused(store.commit([step()]))
    assert error.code is Code.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 99, b"SQLite format 3\x00" + b"x" * 999]
)
async def test_a_file_that_is_no_database_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    error = await refused(SqliteStore.open(path, clock=ManualClock()))
    assert (type(error), error.code) == (TerminalError, Code.CHECKPOINT_CORRUPT)
    assert path.read_bytes() == content


async def test_a_database_of_another_program_is_refused_and_left_alone(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.commit()
    other.close()
    before = path.read_bytes()
    error = await refused(SqliteStore.open(path, clock=ManualClock()))
    assert (type(error), error.code) == (TerminalError, Code.CHECKPOINT_CORRUPT)
    assert "another program" in error.message
    assert path.read_bytes() == before


async def test_damage_in_the_middle_is_an_error_and_never_an_answer(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    await store.commit([step(run_at(f"run-{n:03}"), body=bytes(2_000)) for n in range(300)])
    await store.close()
    content = bytearray(path.read_bytes())
    page = sqlite_file.PAGE_BYTES
    for start in range(len(content) // page // 2 * page, len(content), page):
        content[start : start + page] = b"\xa5" * page
    path.write_bytes(content)
    store = await SqliteStore.open(path, clock=ManualClock())
    error = await refused(store.load([run_at(f"run-{n:03}") for n in range(300)], []))
    assert (type(error), error.code) == (TerminalError, Code.CHECKPOINT_CORRUPT)
    assert "restore a backup" in error.message
    await store.close()


# ── the commit itself ──────────────────────────────────────────────────────────────────


async def test_after_an_io_error_at_commit_nothing_is_known_and_nothing_more_is_done(store, path):
    await store.commit([step()])
    mend = break_commit(store, fail_with(sqlite3.SQLITE_IOERR))
    error = await refused(store.commit([step(expected=1)]))
    assert (type(error), error.code) == (RetryableError, Code.OUTCOME_UNKNOWN)
    mend()
    for call in (store.commit([step(expected=1)]), store.load([run_at()], []), store.claim_due(1, 1)):
        assert (await refused(call)).code is Code.OUTCOME_UNKNOWN
    await store.close()
    again = await SqliteStore.open(path, clock=ManualClock())
    assert await version_of(again) in (1, 2)
    await again.close()


async def test_a_disk_that_is_full_at_commit_leaves_the_outcome_unknown_and_the_store_usable(store):
    mend = break_commit(store, fail_with(sqlite3.SQLITE_FULL))
    error = await refused(store.commit([step()]))
    assert (type(error), error.code) == (RetryableError, Code.OUTCOME_UNKNOWN)
    mend()
    assert await version_of(store) == 0
    assert await store.commit([step()]) == COMMITTED


async def test_a_busy_commit_surely_did_not_happen(store):
    mend = break_commit(store, fail_with(sqlite3.SQLITE_BUSY))
    assert (await refused(store.commit([step()]))).code is Code.STORE_UNAVAILABLE
    mend()
    assert await store.commit([step()]) == COMMITTED


async def test_everybody_in_a_failed_transaction_is_told(store):
    break_commit(store, fail_with(sqlite3.SQLITE_FULL))
    calls = [store.commit([step(run_at(f"run-{n}"))]) for n in range(5)] + [store.claim_due(1, 1)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answer.code for answer in answers] == [Code.OUTCOME_UNKNOWN] * 6


async def test_a_unit_that_is_none_is_our_mistake_and_spoils_nothing_later(store):
    with pytest.raises(AttributeError):
        await store.commit([object()])
    assert await store.commit([step()]) == COMMITTED


async def test_a_statement_that_is_wrong_is_our_mistake(store):
    store._connection.execute("DROP TABLE audit_leaf")
    error = await refused(store.commit([step(None, 0, leaf())]))
    assert isinstance(error, InvariantError)
    assert await store.commit([step()]) == COMMITTED


@case("H20")
async def test_a_caller_that_is_cancelled_tears_nothing(store, monkeypatch):
    monkeypatch.setattr(committing, "HEAD_START_S", 0)
    entered, go_on = threading.Event(), threading.Event()

    def wait():
        entered.set()
        assert go_on.wait(10)

    mend = break_commit(store, wait)
    unit = step(None, 0, leaf(), outbox=[sent()])
    caller = asyncio.create_task(store.commit([unit]))
    assert await asyncio.to_thread(entered.wait, 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    waiting = asyncio.create_task(store.load([run_at()], []))
    await asyncio.sleep(0)
    assert not waiting.done(), "a reader must not see what may yet fail"
    go_on.set()
    assert (await waiting).versions[run_at()] == 1
    mend()
    assert len(await store.rows(TENANT, "audit_leaf", RUN_ID)) == 1
    assert [row.id for row in await store.claim_due(9, 1)] == ["msg_1"]


async def test_a_caller_that_is_cancelled_before_its_turn_leaves_nothing(store):
    caller = asyncio.create_task(store.commit([step()]))
    neighbour = asyncio.create_task(store.commit([step(THREAD_AT)]))
    await asyncio.sleep(0)
    caller.cancel()
    assert await neighbour == COMMITTED
    assert await version_of(store) == 0


async def test_closing_finishes_what_was_asked_for(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    asked = [asyncio.create_task(store.commit([step(run_at(f"run-{n}"))])) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*asked) == [COMMITTED] * 20
    again = await SqliteStore.open(path, clock=ManualClock())
    assert len(await again.runs(TENANT, status=None, limit=99, before=None)) == 20
    await again.close()


async def test_callers_at_once_share_a_transaction(store):
    seen: list[str] = []
    store._connection.set_trace_callback(seen.append)
    await asyncio.gather(*(store.commit([step(run_at(f"run-{n}"))]) for n in range(64)))
    assert seen.count("COMMIT") == 1
    seen.clear()
    answers = await asyncio.gather(*(store.commit([step(run_at("run-1"), 1, said(1))]) for _ in range(3)))
    assert all(result.constraint == "owner_step" for (result,) in answers)
    assert [sql for sql in seen if "SAVEPOINT" in sql] == ["SAVEPOINT unit"] * 3


# ── files ──────────────────────────────────────────────────────────────────────────────


async def test_the_files_are_for_their_owner_only(tmp_path):
    path = tmp_path / "placet.db"
    path.touch(mode=0o644)
    os.chmod(path, 0o644)
    store = await SqliteStore.open(path, clock=ManualClock())
    await store.commit([step()])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert set(modes) >= {"placet.db", "placet.db-wal", "placet.db.lock"}
    assert set(modes.values()) == {0o600}
    await store.close()


async def test_every_commit_reaches_the_disk_before_it_is_told(store):
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# ── the clock ──────────────────────────────────────────────────────────────────────────


def test_the_clock_never_goes_backwards(monkeypatch):
    first = clocks.SystemClock().now_ms()
    readings = iter([first + 500, first - 3_600_000, first + 400, first + 501])
    monkeypatch.setattr(clocks.time, "time_ns", lambda: next(readings) * 1_000_000)
    monkeypatch.setattr(clocks.SystemClock, "_last_ms", first)
    told = [clocks.SystemClock().now_ms() for _ in range(4)]
    assert told == [first + 500, first + 500, first + 500, first + 501]
