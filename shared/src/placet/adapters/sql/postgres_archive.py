"""Decides how the owner of a PostgreSQL database lets go of what is over, past the triggers that refuse it.

Only the owner of a table may take its trigger away, and no service is one (see postgres_migrating): a process that
somebody has got into can delete nothing. The trigger is away within the one transaction that deletes, which nobody
else writes beside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.dialects.postgresql import asyncpg as dialect

from placet.adapters.sql import statements as st
from placet.adapters.sql.postgres_errors import FAILURES, meaning
from placet.adapters.sql.postgres_sessions import Access
from placet.adapters.sql.sqlite_archive import FORGOTTEN
from placet.adapters.sql.units import JOURNAL, journal_values
from placet.runtime.ports import JournalEntry

T = TypeVar("T")

_dialect: Any = dialect.dialect
_SQL = st.Statements(_dialect())


class PostgresArchive:
    """runtime.checkpoints.Archive. `url` is the owner's, as for `placet migrate`; each call has its own connection."""

    def __init__(self, url: str) -> None:
        self._access = Access(url, "placet archive", None)

    async def forget(self, run_id: str) -> bool:
        """As Archive."""

        async def work(connection: Any) -> bool:
            gone = 0
            for table in FORGOTTEN:
                gone = _count(
                    await connection.execute(_SQL.text(st.delete_of_run, table, takes=("is_run_id",)), run_id)
                )
            return gone > 0  # of the last table: states

        return await self._deleting(("journal", "thread_message"), work)

    async def rebase(self, base: JournalEntry) -> int:
        """As Archive."""
        there = _SQL.text(st.journal_entry, takes=("is_run_id", "is_machine", "is_key", "is_version"))
        delete = _SQL.text(st.journal_delete, takes=("is_run_id", "is_machine", "is_key", "upto"))

        async def work(connection: Any) -> int:
            if await connection.fetchrow(there, *base.address, base.version) is None:
                return 0
            gone = _count(await connection.execute(delete, *base.address, base.version))
            await connection.execute(_SQL.text(st.journal_insert, takes=JOURNAL), *journal_values(base))
            return gone

        return await self._deleting(("journal",), work)

    async def _deleting(self, tables: Sequence[str], work: Callable[[Any], Awaitable[T]]) -> T:
        connection = await self._access.connect_to_migrate()
        undecided = False
        try:
            transaction = connection.transaction()
            await transaction.start()
            for table in tables:
                await connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER {table}_delete")
            result = await work(connection)
            for table in tables:
                await connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER {table}_delete")
            undecided = True
            await transaction.commit()
        except FAILURES as error:
            raise meaning(error, self._access.where, undecided=undecided) from error
        finally:
            await connection.close()
        return result


def _count(tag: str) -> int:
    """Of a command's tag, `DELETE 3`."""
    return int(tag.rpartition(" ")[2])
