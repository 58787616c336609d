"""Decides how the owner of a SQLite file lets go of what is over, past the triggers that keep everybody else from it.

Whoever has the file is its owner: there are no roles. The trigger of a table is taken away and made again within the
one transaction that deletes, so that nothing else is ever written without it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from placet.adapters.sql import statements as st
from placet.adapters.sql.sqlite import SqliteStore
from placet.adapters.sql.units import JOURNAL, journal_values
from placet.runtime.ports import JournalEntry

FORGOTTEN = ("outbox", "thread_message", "journal", "state")
"""What of a run is let go; all else is evidence."""
_TRIGGER = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?"


class SqliteArchive:
    """runtime.checkpoints.Archive of an open store."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._sql = store.sql

    async def forget(self, run_id: str) -> bool:
        """As Archive."""
        return await self._store.change(lambda connection: self._forget(connection, run_id))

    def _forget(self, connection: sqlite3.Connection, run_id: str) -> bool:
        gone = 0
        with _without_trigger(connection, "journal"), _without_trigger(connection, "thread_message"):
            for table in FORGOTTEN:
                gone = connection.execute(
                    self._sql.text(st.delete_of_run, table, takes=("is_run_id",)), (run_id,)
                ).rowcount
        return gone > 0  # of the last table: states

    async def rebase(self, base: JournalEntry) -> int:
        """As Archive."""
        return await self._store.change(lambda connection: self._rebase(connection, base))

    def _rebase(self, connection: sqlite3.Connection, base: JournalEntry) -> int:
        there = self._sql.text(st.journal_entry, takes=("is_run_id", "is_machine", "is_key", "is_version"))
        if connection.execute(there, (*base.address, base.version)).fetchone() is None:
            return 0
        with _without_trigger(connection, "journal"):
            delete = self._sql.text(st.journal_delete, takes=("is_run_id", "is_machine", "is_key", "upto"))
            gone = connection.execute(delete, (*base.address, base.version)).rowcount
            connection.execute(self._sql.text(st.journal_insert, takes=JOURNAL), journal_values(base))
        return gone


@contextmanager
def _without_trigger(connection: sqlite3.Connection, table: str) -> Iterator[None]:
    name = f"{table}_delete"
    (made_by,) = connection.execute(_TRIGGER, (name,)).fetchone()
    connection.execute(f"DROP TRIGGER {name}")
    yield
    connection.execute(made_by)
