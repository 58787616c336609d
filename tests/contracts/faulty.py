"""Decides how a SQLite store is made to fail on purpose, and how a refusal is caught."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from placet.adapters.sql.sqlite import SqliteStore
from placet.errors import PlacetError
from placet.runtime.ports import CommitResult, Fate
from tests.contracts.units import run_at

COMMITTED = [CommitResult(Fate.COMMITTED)]
FIXED = (3, 51, 3)
"""A library without the WAL-reset defect: other programs may look at the file."""


class Faulty:
    """A connection whose COMMIT does something else first: waits, or raises."""

    def __init__(self, connection: sqlite3.Connection, before_commit: Callable[[], Any]) -> None:
        self._connection = connection
        self._before_commit = before_commit

    def execute(self, sql: str, *parameters: Any) -> Any:
        if sql == "COMMIT":
            self._before_commit()
        return self._connection.execute(sql, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def break_commit(store: SqliteStore, before_commit: Callable[[], Any]) -> Callable[[], None]:
    """From now on COMMIT does this first; returns what mends it."""
    committer: Any = store._committer
    whole = committer._connection
    committer._connection = Faulty(whole, before_commit)

    def mend() -> None:
        committer._connection = whole

    return mend


def fail_with(code: int) -> Callable[[], None]:
    """What raises as the driver does."""

    def fail() -> None:
        error = sqlite3.OperationalError(f"code {code}")
        error.sqlite_errorcode = code
        raise error

    return fail


async def refused(call: Awaitable[Any]) -> PlacetError:
    """The error that the call ends with."""
    with pytest.raises(PlacetError) as raised:
        await call
    return raised.value


async def version_of(store: SqliteStore) -> int:
    """The version of the run that these tests step."""
    return (await store.load([run_at()], [])).versions[run_at()]
