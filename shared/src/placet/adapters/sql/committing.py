"""Decides when a transaction begins and ends on SQLite, and who shares one.

Statements run in the event loop's own thread: they take microseconds and wait for nobody. Only COMMIT, which waits for
the disk, runs in a thread of its own; whatever arrives meanwhile goes together into the next transaction.

Why not everything in a thread: each step of a statement gives the interpreter's lock away, and a loop that is busy in
short turns takes it back before the thread wakes. Measured with turns of 0.3 ms: a commit of 64 units took seconds, at
times half a minute. For the same reason the loop waits for COMMIT a moment, and looks at it again and again.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placet.adapters.sql import statements as st
from placet.adapters.sql.refusals import primary_code, translated
from placet.adapters.sql.sqlite_file import is_there
from placet.adapters.sql.units import Refused
from placet.adapters.sql.writing import Writer
from placet.errors import Code, PlacetError, RetryableError, TerminalError
from placet.instants import Instant
from placet.runtime.ports import Clock, CommitResult, Unit

HEAD_START_S = 0.002
"""How long the loop waits for COMMIT before it turns to other work. A quick disk is done by then."""
LOOK_AGAIN_S = 0.001
"""How soon the loop looks whether COMMIT is done."""
GIVE_WAY_S = 0.000_2
"""How long it then waits: enough for the thread to get the interpreter's lock and say that it is."""
UNITS_MAX = 512
"""Units in one transaction: beyond it, those who wait longest would wait for all."""
BUSY_WAIT_S = 5.0
"""How long a transaction waits to begin while another program holds the database."""
BUSY_PAUSE_S = 0.01


@dataclass(eq=False, slots=True)
class Job:
    """What one caller wants done in a transaction: `units`, or `work`, which is given the clock's instant."""

    future: asyncio.Future[Any]
    units: Sequence[Unit] = ()
    work: Callable[[Instant], Any] | None = None
    result: Any = None


@dataclass(eq=False, slots=True)
class _Group:
    jobs: list[Job] = field(default_factory=list)

    def settle(self, error: Exception | None) -> None:
        for job in self.jobs:
            if job.future.done():  # the caller was cancelled; what was committed stays so
                continue
            if error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(error)


class Committer:
    """One transaction at a time on one connection."""

    def __init__(
        self, connection: sqlite3.Connection, sql: st.Statements, clock: Clock, path: Path, incarnation: int
    ) -> None:
        self._connection = connection
        self._writer = Writer(connection, sql)
        self._clock = clock
        self._path = path
        self._opened = os.stat(path)
        self._incarnation = incarnation
        self._owner_sql = sql.text(st.meta_value, takes=("is_name",))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="placet-commit")
        self._waiting: list[Job] = []
        self._scheduled = False
        self._busy_since: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.broken: TerminalError | None = None
        """Why nothing is believed any more until the store is opened afresh. No retry helps, so whoever works on the
        store ends: a supervisor starts it again."""

    async def do(self, *, units: Sequence[Unit] = (), work: Callable[[Instant], Any] | None = None) -> Any:
        """The results of the units, or of the work, once they are on the disk.

        A caller that is cancelled tears nothing: its part is committed as a whole or, where it had not begun, left out.
        """
        job = Job(asyncio.get_running_loop().create_future(), units, work)
        self._waiting.append(job)
        self._schedule()
        return await job.future

    async def idle(self) -> None:
        """Wait until no commit is in the thread: then the connection may be read from, at once."""
        while not self._idle.is_set():
            await self._idle.wait()

    async def drain(self) -> None:
        """Wait until everything that was asked for is done."""
        while waiting := [job.future for job in self._waiting]:
            await asyncio.wait(waiting)
        await self.idle()

    async def close(self) -> None:
        """Close the connection, which moves the log into the database, and end the thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    # ── one transaction ────────────────────────────────────────────────────────────────

    def _schedule(self, delay_s: float = 0.0) -> None:
        """Begin the next transaction as soon as those who are ready have had their say."""
        if self._scheduled or not self._waiting or not self._idle.is_set():
            return
        self._scheduled = True
        loop = asyncio.get_running_loop()
        if delay_s:
            loop.call_later(delay_s, self._begin)
        else:
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        group = self._next_group()
        if not group.jobs:
            return
        try:
            written = self._fill(group)
        except _Busy:
            self._waiting[:0] = group.jobs
            self._schedule(BUSY_PAUSE_S)
            return
        except Exception as error:  # noqa: BLE001  whatever it was, those who wait are told
            self._roll_back()
            group.settle(error)
            self._schedule()
            return
        if not written:
            group.settle(None)
            self._schedule()
            return
        self._commit(group)

    def _next_group(self) -> _Group:
        group, units = _Group(), 0
        while self._waiting and (units == 0 or units + len(self._waiting[0].units) <= UNITS_MAX):
            job = self._waiting.pop(0)
            if not job.future.done():
                group.jobs.append(job)
                units += len(job.units)
        return group

    def _fill(self, group: _Group) -> bool:
        """Write everything; whether there is anything to commit. Raises PlacetError: nothing was written.

        A transaction that wrote nothing is ended here: that waits for no disk.
        """
        before = self._connection.total_changes
        try:
            now_ms = self._open_transaction()
            units = [unit for job in group.jobs for unit in job.units]
            results = iter(self._write(units, now_ms))
            for job in group.jobs:
                if job.work is None:
                    job.result = [next(results) for _ in job.units]
                else:
                    job.result = job.work(now_ms)
            written = self._connection.total_changes != before
            if not written:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error, self._path) from error
        return written

    def _write(self, units: Sequence[Unit], now_ms: Instant) -> Sequence[CommitResult]:
        if not units:
            return ()
        try:
            return self._writer.together(units, now_ms)
        except Refused:
            self._connection.execute("ROLLBACK")
            return self._writer.alone(units, self._open_transaction())

    def _open_transaction(self) -> Instant:
        """BEGIN, and the clock within it. Raises PlacetError where this process is not, or no longer, the owner."""
        if self.broken is not None:
            raise self.broken.with_traceback(None)
        if not is_there(self._path, self._opened):
            raise RetryableError(
                Code.STORE_UNAVAILABLE,
                f"{self._path} was removed or replaced while in use; nothing was written: put it back, or start again",
            )
        self._begin_immediate()
        (owner,) = self._connection.execute(self._owner_sql, ("incarnation",)).fetchone()
        if owner != self._incarnation:
            self.broken = TerminalError(
                Code.STORE_IN_USE, f"{self._path} was taken over by another process: stop this one"
            )
            raise self.broken
        return self._clock.now_ms()

    def _begin_immediate(self) -> None:
        loop_s = asyncio.get_running_loop().time()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY:
                raise
            if self._busy_since is None:
                self._busy_since = loop_s
            if loop_s - self._busy_since < BUSY_WAIT_S:
                raise _Busy from error
            self._busy_since = None
            raise
        self._busy_since = None

    def _commit(self, group: _Group) -> None:
        self._idle.clear()
        self._look(group, self._thread.submit(self._commit_in_thread), HEAD_START_S)

    def _look(self, group: _Group, done: Future[PlacetError | None], wait_s: float) -> None:
        error: Exception | None
        try:
            error = done.result(wait_s)
        except TimeoutError:
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look, group, done, GIVE_WAY_S)
            return
        except Exception as unexpected:  # noqa: BLE001  whatever it was, those who wait are told
            error = unexpected
        self._finish(group, error)

    def _commit_in_thread(self) -> PlacetError | None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure = translated(error, self._path, committing=primary_code(error) != sqlite3.SQLITE_BUSY)
            if primary_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):
                # After a failed fsync the kernel may call pages written that are not: believe nothing until restarted.
                self._break(failure)
            return failure
        if not is_there(self._path, self._opened):
            return RetryableError(Code.OUTCOME_UNKNOWN, f"{self._path} was removed or replaced during a commit")
        return None

    def _finish(self, group: _Group, error: Exception | None) -> None:
        if error is not None:
            self._roll_back()
        group.settle(error)
        self._idle.set()
        self._schedule()

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            # The connection is in a state nobody can name. The file is whole: opening it again recovers it.
            self._break(translated(error, self._path))

    def _break(self, failure: PlacetError) -> None:
        what = f"{failure.message}; {self._path} is not believed any more until it is opened afresh"
        self.broken = TerminalError(failure.code, what)


class _Busy(Exception):  # noqa: N818  not an error: wait a moment
    """Another program holds the database."""
