"""Decides how a SQLite file is opened: one owner, write-ahead log, every commit on the disk, nothing newer or damaged.

The owner is the process that holds an advisory lock on `<database>.lock`. Linux and macOS release it when the process
dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from placet.adapters.sql import schema
from placet.adapters.sql.refusals import primary_code, translated
from placet.errors import Code, RetryableError, TerminalError

APPLICATION_ID = 0x504C4354
"""`PLCT`, in the file's header: this file is ours."""
PAGE_BYTES = 8_192
"""Bodies of one or two kilobytes fill pages of this size well; measured a tenth faster than 4,096."""
CACHE_KIB = 16_384
CHECKPOINT_PAGES = 4_096
"""The log moves into the database every 32 MB: a page that many commits touch is then written there once. Measured: two
to three times the rate of the default of 1,000 pages. Opening after a crash reads at most about this much."""
WAL_BYTES_MAX = 2 * CHECKPOINT_PAGES * PAGE_BYTES
"""What a log that has grown further is cut back to."""
OPEN_BUSY_MS = 2_000
"""How long opening waits for another program, such as a shell that is looking at the file."""
OLDEST = (3, 37, 0)
"""STRICT tables."""


class Locking(NamedTuple):
    """How the file is locked against other connections, and why."""

    exclusive: bool
    reason: str


def locking_for(version: tuple[int, int, int]) -> Locking:
    """Whether this library may share a database in WAL mode between connections.

    SQLite 3.7.0 to 3.51.2 can lose committed writes when one connection resets the log while another one checkpoints
    (sqlite.org/wal.html, "the WAL-reset bug"). Fixed in 3.51.3, and in 3.44.6 and 3.50.7 of the older lines. With the
    defect the file is locked exclusively: with one connection there is no other one to race.
    """
    line = version[:2]
    fixed = version >= (3, 51, 3) or (line == (3, 50) and version[2] >= 7) or (line == (3, 44) and version[2] >= 6)
    name = ".".join(map(str, version))
    if fixed:
        return Locking(False, f"SQLite {name} has the fix of the WAL-reset defect")
    return Locking(True, f"SQLite {name} has the WAL-reset defect (fixed in 3.51.3): one connection only")


def take_lock(database: Path) -> int:
    """Become the owner; returns the descriptor that holds the lock until it is closed.

    Raises RetryableError: STORE_IN_USE, naming the process that is the owner, or STORE_UNAVAILABLE.
    """
    path = database.with_name(database.name + ".lock")
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise RetryableError(
            Code.STORE_IN_USE,
            f"{database} is in use by process {owner}: stop that one, or use its HTTP API",
            pid=int(owner) if owner.isdigit() else None,
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def open_database(path: Path, locking: Locking) -> sqlite3.Connection:
    """The connection to a database that is ours, current and durable; made or migrated where need be.

    Raises RetryableError(STORE_UNAVAILABLE), TerminalError(CHECKPOINT_CORRUPT) for a damaged file or one that is not
    ours, ContractError(CHECKPOINT_VERSION_UNSUPPORTED) for one of a newer program, TerminalError(STORE_UNAVAILABLE)
    where there is no write-ahead log.
    """
    _own_file(path)
    try:
        connection = _connect(path)
        try:
            _configure(connection, path, locking)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        if primary_code(error) == sqlite3.SQLITE_BUSY:
            reason = f"{path} is in use by another program, such as a SQLite shell: close it there"
            raise RetryableError(Code.STORE_IN_USE, reason) from error
        raise translated(error, path) from error
    return connection


def _own_file(path: Path) -> None:
    """Make the file for its owner only, before SQLite would make it for everybody."""
    descriptor = _opened(path)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise TerminalError(Code.STORE_UNAVAILABLE, f"{path} is no regular file")
        if stat.S_IMODE(mode) & 0o077:
            with suppress(PermissionError):  # another user's file that we may write to: theirs to decide
                os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = f"{path} cannot be opened for writing: {error.strerror}"
        raise RetryableError(Code.STORE_UNAVAILABLE, reason) from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        isolation_level=None,  # transactions begin and end where this package says so
        check_same_thread=False,  # COMMIT runs in a thread of its own, while nothing else uses the connection
        cached_statements=256,
        timeout=OPEN_BUSY_MS / 1_000,
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _configure(connection: sqlite3.Connection, path: Path, locking: Locking) -> None:
    execute = connection.execute
    if locking.exclusive:
        execute("PRAGMA locking_mode = EXCLUSIVE")
    empty = _is_empty(connection, path)
    if empty:
        execute(f"PRAGMA page_size = {PAGE_BYTES}")
    mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise TerminalError(
            Code.STORE_UNAVAILABLE,
            f"{path}: no write-ahead log can be had there (journal mode is {mode}): put it on a local disk",
        )
    for pragma in (
        "synchronous = FULL",
        "fullfsync = ON",
        "checkpoint_fullfsync = ON",
        f"cache_size = -{CACHE_KIB}",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        f"journal_size_limit = {WAL_BYTES_MAX}",
        "temp_store = MEMORY",
        "recursive_triggers = ON",  # so that INSERT OR REPLACE meets the triggers that refuse to delete
        "cell_size_check = ON",
    ):
        execute(f"PRAGMA {pragma}")
    found = None if empty else execute(schema.VERSION_QUERY).fetchone()
    if not schema.is_current(found[0] if found else None):
        _migrate(connection)
    execute("PRAGMA busy_timeout = 0")


def _is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether nothing is in the file yet. Raises TerminalError(CHECKPOINT_CORRUPT) when what is there is not ours."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if tables and application_id != APPLICATION_ID:
        raise TerminalError(
            Code.CHECKPOINT_CORRUPT,
            f"{path} is a database of another program, which is left alone: choose another path",
        )
    return not tables


def _migrate(connection: sqlite3.Connection) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None)
    with engine.connect() as ours:
        connection.execute("BEGIN IMMEDIATE")
        try:
            schema.migrate(ours)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def is_there(path: Path, opened: os.stat_result) -> bool:
    """Whether the path still leads to the file that was opened."""
    try:
        now = os.stat(path)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)


def library_version() -> tuple[int, int, int]:
    """The version of the SQLite library. Raises TerminalError(STORE_UNAVAILABLE) when it is too old."""
    major, minor, patch = sqlite3.sqlite_version_info
    if (major, minor, patch) < OLDEST:
        raise TerminalError(
            Code.STORE_UNAVAILABLE,
            f"SQLite {sqlite3.sqlite_version} is too old: {'.'.join(map(str, OLDEST))} or later is needed",
        )
    return major, minor, patch
