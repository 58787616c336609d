"""What a commit on SQLite comes to when it fails, waits, or is given up by its caller."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time

import pytest

from placet.adapters import clocks
from placet.adapters.sql import committing
from placet.adapters.sql.sqlite import SqliteStore
from placet.errors import Code, InvariantError, RetryableError, TerminalError
from tests.builders import RUN_ID, TENANT
from tests.cases import case
from tests.contracts.faulty import COMMITTED, break_commit, fail_with, refused, version_of
from tests.contracts.units import THREAD_AT, ManualClock, leaf, run_at, said, sent, step


@pytest.fixture
def path(tmp_path):
    return tmp_path / "placet.db"


@pytest.fixture
async def store(path):
    store = await SqliteStore.open(path, clock=ManualClock())
    yield store
    await store.close()


# ── the commit itself ──────────────────────────────────────────────────────────────────


async def test_after_an_io_error_at_commit_nothing_is_known_and_nothing_more_is_done(store, path):
    await store.commit([step()])
    mend = break_commit(store, fail_with(sqlite3.SQLITE_IOERR))
    error = await refused(store.commit([step(expected=1)]))
    assert (type(error), error.code) == (RetryableError, Code.OUTCOME_UNKNOWN)
    mend()
    for call in (store.commit([step(expected=1)]), store.load([run_at()], []), store.claim_due(1, 1)):
        error = await refused(call)  # no retry helps: whoever works on it must end
        assert (type(error), error.code) == (TerminalError, Code.OUTCOME_UNKNOWN)
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
    assert [getattr(answer, "code", None) for answer in answers] == [Code.OUTCOME_UNKNOWN] * 6


async def test_a_transaction_that_wrote_nothing_and_cannot_be_ended_is_told_and_leaves_nobody_waiting(store):
    mend = break_commit(store, fail_with(sqlite3.SQLITE_IOERR))
    async with asyncio.timeout(5):
        error = await refused(store.claim_due(1, 1))
    assert (type(error), error.code) == (RetryableError, Code.STORE_UNAVAILABLE)
    mend()
    assert await store.commit([step()]) == COMMITTED


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


# ── the clock ──────────────────────────────────────────────────────────────────────────


def test_the_clock_never_goes_backwards(monkeypatch):
    first = clocks.SystemClock().now_ms()
    readings = iter([first + 500, first - 3_600_000, first + 400, first + 501])
    monkeypatch.setattr(time, "time_ns", lambda: next(readings) * 1_000_000)
    monkeypatch.setattr(clocks.SystemClock, "_last_ms", first)
    told = [clocks.SystemClock().now_ms() for _ in range(4)]
    assert told == [first + 500, first + 500, first + 500, first + 501]
