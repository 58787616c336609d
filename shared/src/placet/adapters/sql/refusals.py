"""Decides what an error of the SQLite driver means: which constraint was violated, what was surely not written, and
what nobody can know."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint

from placet.adapters.sql.tables import metadata
from placet.adapters.sql.units import Refused
from placet.errors import Code, InvariantError, PlacetError, RetryableError, TerminalError


def _names() -> dict[tuple[str, frozenset[str]], str]:
    """The name of each unique constraint, by table and columns: SQLite names the columns only."""
    names: dict[tuple[str, frozenset[str]], str] = {}
    for table in metadata.tables.values():
        for index in table.indexes:
            if index.unique:
                names[table.name, frozenset(index.columns.keys())] = str(index.name)
        for constraint in table.constraints:
            if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
                names[table.name, frozenset(constraint.columns.keys())] = str(constraint.name)
    return names


_UNIQUE = _names()
_COLUMN = re.compile(r"(\w+)\.(\w+)")
_NOT_A_VALUE = (UnicodeEncodeError, OverflowError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
"""What the driver says of half a surrogate pair, of an integer of more than 64 bits, of a type it does not know."""


def _constraint(error: sqlite3.IntegrityError) -> str:
    text = str(error)
    if text.startswith("UNIQUE constraint failed: "):
        columns = _COLUMN.findall(text)
        found = _UNIQUE.get((columns[0][0], frozenset(column for _, column in columns)))
        return found or text
    if text.startswith("CHECK constraint failed: "):
        return text.removeprefix("CHECK constraint failed: ")
    if text.startswith(("NOT NULL", "cannot store")):
        return "unstorable"
    return text


@contextmanager
def refusal() -> Iterator[None]:
    """Raise `Refused` for whatever the driver refuses because of the values."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise Refused(_constraint(error)) from error
    except _NOT_A_VALUE as error:
        raise Refused("unstorable") from error


_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full (or the database's page limit is reached): free some space",
    sqlite3.SQLITE_READONLY: "the database or its file system is read-only",
    sqlite3.SQLITE_BUSY: "another program holds the database",
    sqlite3.SQLITE_LOCKED: "another program holds the database",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened: see that its directory exists and may be written to",
    sqlite3.SQLITE_PERM: "the database may not be opened by this user",
    sqlite3.SQLITE_IOERR: "the disk fails",
    sqlite3.SQLITE_NOMEM: "the memory is used up",
}
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, or -1 where the driver itself raised."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else -1


def translated(error: sqlite3.Error, path: Path, *, committing: bool = False) -> PlacetError:
    """The error as ours. `committing`: it came from COMMIT itself, so that nobody can know what reached the disk.

    STORE_UNAVAILABLE and OUTCOME_UNKNOWN are retryable, CHECKPOINT_CORRUPT is not; anything else is our mistake.
    """
    code = primary_code(error)
    detail = f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
    if code in _CORRUPT:
        return TerminalError(
            Code.CHECKPOINT_CORRUPT,
            f"{path} is damaged or no SQLite database: restore a backup, the program leaves it alone ({detail})",
        )
    if committing:
        advice = _ADVICE.get(code, "the commit failed")
        return RetryableError(
            Code.OUTCOME_UNKNOWN, f"{path}: {advice}; whether the commit happened is not known ({detail})"
        )
    if code in _ADVICE:
        return RetryableError(Code.STORE_UNAVAILABLE, f"{path}: {_ADVICE[code]}; nothing was written ({detail})")
    return InvariantError(f"{path}: {detail}")
