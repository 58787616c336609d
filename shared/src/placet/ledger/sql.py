"""Decides how a tool that changes a database has its effect once, and knows of each attempt whether it had it.

The entry of the attempt and its effect are one transaction in the tool's own database. So the tool dedupes on our key,
gives the first result again, can be asked what happened, and can be sealed: a late attempt finds the tombstone.

    ledger = SqlLedger(create_engine("sqlite:///accounts.db"))

    @app.tool(effect="reconcilable", consequential=True)
    def pay(ctx: ToolContext, account: str, cents: int) -> dict[str, int]:
        def effect(db: Connection) -> dict[str, int]:
            db.execute(…)
            return {"paid": cents}

        return ledger.once(ctx, effect)

    ledger.settles(pay)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, MetaData, RootTransaction, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncTransaction

from placet.declarations import Tool
from placet.ledger.entries import Entries, Found, kept, ledger_table, uncertain, undone, unreachable
from placet.tooling import Executed, NotExecuted, ToolContext, Unsure

TABLE = "placet_ledger"
_ENDED = "the effect has ended the ledger's transaction by itself, so entry and effect may have come apart"

T = TypeVar("T", bound=Tool[Any, Any])


def _roll_back(db: Connection, transaction: RootTransaction) -> None:
    try:
        transaction.close()
    except SQLAlchemyError:  # the connection is gone: its server rolls back by itself
        db.invalidate()


async def _roll_back_async(db: AsyncConnection, transaction: AsyncTransaction) -> None:
    try:
        await transaction.close()
    except SQLAlchemyError:  # as above
        await db.invalidate()


class SqlLedger:
    """A ledger for plain functions, on an `Engine` of SQLite or PostgreSQL.

    `table`: its name; two installations whose run ids may be equal need two. `metadata`: where `ledger.table` is
    declared, so that the author's migrations make it; without migrations `create()` does. Raises
    ContractError(APP_INVALID) for another database.
    """

    def __init__(self, engine: Engine, *, table: str = TABLE, metadata: MetaData | None = None) -> None:
        self._engine = engine
        self.table: Table = ledger_table(table, metadata if metadata is not None else MetaData())
        self._entries = Entries(self.table, engine.dialect.name)

    def create(self) -> None:
        """Make the table if it is not there."""
        self.table.create(self._engine, checkfirst=True)

    def once(self, ctx: ToolContext, effect: Callable[[Connection], Any]) -> Any:
        """Run `effect(db)` in one transaction with the attempt's entry; or the result that the operation has already.

        `effect` changes the database through `db` alone, neither commits nor rolls back, and returns what JSON can
        hold; that is returned, as JSON values. Raises NotExecuted (rolled back, sealed, not reached) or Unsure (the
        commit was not confirmed): both with what is known, so that the tool needs no own handling.
        """
        try:
            db = self._engine.connect()
        except Exception as error:
            raise unreachable(error) from error
        with db:
            transaction = db.begin()
            try:
                found = self._entries.claim(db, ctx)
                if found is None:
                    text = kept(effect(db))
                    if not transaction.is_active:
                        raise Unsure(_ENDED, transient=False)
                    self._entries.fill(db, ctx, text)
                    found = Found("done", text)
                result = found.result()
            except Exception as error:
                _roll_back(db, transaction)
                told = undone(error)
                if told is error:
                    raise
                raise told from error
            try:
                transaction.commit()
            except Exception as error:
                db.invalidate()  # nobody else gets a connection that may be in the middle of it
                raise uncertain(error) from error
            return result

    def seal(self, ctx: ToolContext) -> Executed | NotExecuted:
        """Did the operation happen? If not, this attempt of it never will."""
        with self._engine.begin() as db:
            return self._entries.seal(db, ctx)

    def look(self, ctx: ToolContext) -> Executed | NotExecuted:
        """Did the operation happen?"""
        with self._engine.connect() as db:
            return self._entries.look(db, ctx)

    def settles(self, tool: T) -> T:
        """Register this ledger as the tool's `reconcile` and `seal`. The tool is `reconcilable`."""

        def reconcile(ctx: ToolContext) -> Executed | NotExecuted:
            return self.look(ctx)

        def seal(ctx: ToolContext) -> Executed | NotExecuted:
            return self.seal(ctx)

        tool.reconcile(reconcile)
        tool.seal(seal)
        return tool


class AsyncSqlLedger:
    """The same for `async` tools, on an `AsyncEngine`; `effect` is a coroutine function of an AsyncConnection."""

    def __init__(self, engine: AsyncEngine, *, table: str = TABLE, metadata: MetaData | None = None) -> None:
        self._engine = engine
        self.table: Table = ledger_table(table, metadata if metadata is not None else MetaData())
        self._entries = Entries(self.table, engine.dialect.name)

    async def create(self) -> None:
        """As SqlLedger."""
        async with self._engine.begin() as db:
            await db.run_sync(lambda sync: self.table.create(sync, checkfirst=True))

    async def once(self, ctx: ToolContext, effect: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
        """As SqlLedger. An interrupted one is rolled back; interrupted while it commits, nobody knows."""
        async with AsyncExitStack() as stack:
            try:
                db = await stack.enter_async_context(self._engine.connect())
            except Exception as error:
                raise unreachable(error) from error
            transaction = await db.begin()
            try:
                found = await db.run_sync(self._entries.claim, ctx)
                if found is None:
                    text = kept(await effect(db))
                    if not transaction.is_active:
                        raise Unsure(_ENDED, transient=False)
                    await db.run_sync(self._entries.fill, ctx, text)
                    found = Found("done", text)
                result = found.result()
            except Exception as error:
                await _roll_back_async(db, transaction)
                told = undone(error)
                if told is error:
                    raise
                raise told from error
            try:
                await transaction.commit()
            except Exception as error:
                await db.invalidate()
                raise uncertain(error) from error
            return result

    async def seal(self, ctx: ToolContext) -> Executed | NotExecuted:
        """As SqlLedger."""
        async with self._engine.begin() as db:
            return await db.run_sync(self._entries.seal, ctx)

    async def look(self, ctx: ToolContext) -> Executed | NotExecuted:
        """As SqlLedger."""
        async with self._engine.connect() as db:
            return await db.run_sync(self._entries.look, ctx)

    def settles(self, tool: T) -> T:
        """As SqlLedger."""

        async def reconcile(ctx: ToolContext) -> Executed | NotExecuted:
            return await self.look(ctx)

        async def seal(ctx: ToolContext) -> Executed | NotExecuted:
            return await self.seal(ctx)

        tool.reconcile(reconcile)
        tool.seal(seal)
        return tool
