"""What happens when the disk or the file is unwell: the store fails closed, says why, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat

import pytest

from placet.adapters.sql import sqlite_file
from placet.adapters.sql.sqlite import SqliteStore
from placet.errors import Code, RetryableError, TerminalError
from placet.requests import verify_request
from placet.rows import RequestRow
from tests.builders import RUN_ID, TENANT
from tests.contracts.faulty import COMMITTED, break_commit, refused, version_of
from tests.contracts.units import ManualClock, leaf, request, run_at, step


@pytest.fixture
def path(tmp_path):
    return tmp_path / "placet.db"


@pytest.fixture
async def store(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    yield store
    await store.close()


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


async def test_a_question_that_somebody_changed_on_the_disk_reaches_whoever_verifies_it(path):
    asked = request()
    store = await SqliteStore.open(path, clock=ManualClock())
    await store.commit([step(asked.owner(), 0, asked)])
    await store.close()
    intruder = sqlite3.connect(path)
    intruder.execute("DROP TRIGGER approval_request_update")
    intruder.execute("UPDATE approval_request SET scope = 'nonsense'")
    intruder.commit()
    intruder.close()
    store = await SqliteStore.open(path, clock=ManualClock())
    row = (await store.load([], [asked.fact_key()])).rows[asked.fact_key()]
    assert isinstance(row, RequestRow)
    assert row.request.model_dump()["scope"] == "nonsense"
    with pytest.raises(TerminalError) as raised:
        verify_request(row.request)
    assert raised.value.code is Code.APPROVAL_INTEGRITY_ERROR
    await store.close()
