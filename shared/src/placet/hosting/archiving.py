"""Decides how the owner of the facts lets go of what is over: a run that has ended, or the past of one.

Not a service: it needs the database's owner, as `placet migrate` does, or the data directory of the one process that
has a SQLite file open, while that process does not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from placet.errors import Code, ContractError, TerminalError
from placet.ids import Address
from placet.messages import RUN
from placet.runtime.checkpoints import Archive, Machines, StoredCheckpoints
from placet.statuses import RUN_TERMINAL


class Owned(NamedTuple):
    """A store, opened by its owner."""

    store: Any
    """Store and Reader."""
    archive: Archive


@asynccontextmanager
async def owned(database_url: str | None, database: Path) -> AsyncIterator[Owned]:
    """PostgreSQL by its owner's address; without one, the SQLite file.

    Raises TerminalError(NOT_FOUND) where there is no such file, and as the stores' `open`.
    """
    if database_url:
        from placet.adapters.sql.postgres import PostgresStore
        from placet.adapters.sql.postgres_archive import PostgresArchive

        shared = await PostgresStore.open(database_url, name="placet archive")
        try:
            yield Owned(shared, PostgresArchive(database_url))
        finally:
            await shared.close()
        return
    from placet.adapters.clocks import SystemClock
    from placet.adapters.sql.sqlite import SqliteStore
    from placet.adapters.sql.sqlite_archive import SqliteArchive

    if not await asyncio.to_thread(database.is_file):
        told = f"there is no {database}: name the data directory by --data, or set PLACET_DATABASE_URL"
        raise TerminalError(Code.NOT_FOUND, told)
    store = await SqliteStore.open(database, clock=SystemClock())
    try:
        yield Owned(store, SqliteArchive(store))
    finally:
        await store.close()


async def delete_run(owner: Owned, tenant: str, run_id: str) -> bool:
    """Everything the run could be continued from is gone; what people decided and what was done stays.

    A fork of it whose tasks have not gone on yet cannot read their conversations any more: those tasks fail, aloud.

    False where there is no such run. Raises ContractError(RUN_ACTIVE) for one that has not ended: what it has under way
    could not be heard of any more.
    """
    stored = await owner.store.state(tenant, Address(run_id, RUN, ""))
    if stored is None:
        return False
    if stored["status"] not in RUN_TERMINAL:
        told = f"the run {run_id} is {stored['status']}: cancel it first (placet run cancel {run_id})"
        raise ContractError(Code.RUN_ACTIVE, told)
    return await owner.archive.forget(run_id)


async def prune_run(owner: Owned, machines: Machines, tenant: str, run_id: str) -> int | None:
    """The journals of the run begin with its states as they are; how many entries are gone, None for no such run.

    It goes on as before; it can no longer be replayed from its beginning, nor forked at an earlier version.
    """
    kept = StoredCheckpoints(owner.store, machines, owner.archive)
    states = await owner.store.states_of(tenant, run_id)
    if not states:
        return None
    return sum(
        [await kept.prune(Address(run_id, state["machine"], state["key"]), state["version"]) for state in states]
    )
