"""Decides what a ledger writes down of an attempt: which statements, and what an entry that is found stands for.

One table in the tool's own database. The entry of an attempt and its effect are one transaction: there is the entry if
and only if there is the effect. Two constraints make that true whatever the code does: a key has one entry, and an
operation has one entry that says `done`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Column, Connection, DateTime, Index, Insert, MetaData, String, Table, Text, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from placet.canonical import canonical_text
from placet.errors import Code, ContractError
from placet.strict_json import parse
from placet.tooling import Executed, Failed, NotExecuted, ToolContext, ToolError, Unsure

DONE, SEALED = "done", "sealed"
KEY_CHARS_MAX = 255
DIALECTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""Where `INSERT … ON CONFLICT DO NOTHING` waits for whoever is about to insert the same key. Others are refused."""
_MAY_PASS = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57014"})
"""SQLSTATE: serialisation, deadlock, lock and statement time-outs, a server that shuts down."""


def ledger_table(name: str, metadata: MetaData) -> Table:
    """The table of a ledger, in the author's own metadata, so that the author's migrations make it."""
    table = Table(
        name,
        metadata,
        Column("key", String(KEY_CHARS_MAX), primary_key=True),
        Column("operation_id", String(KEY_CHARS_MAX), nullable=False),
        Column("state", String(16), nullable=False),
        Column("result_text", Text),
        Column("written_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    )
    done = table.c.state == DONE
    Index(f"{name}_done", table.c.operation_id, unique=True, sqlite_where=done, postgresql_where=done)
    return table


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that is there already."""

    state: str
    result_text: str | None

    def result(self) -> Any:
        """What the effect returned. Raises NotExecuted where the attempt was sealed before it began."""
        if self.state == SEALED:
            raise NotExecuted("the attempt was sealed before it began: it did nothing and will do nothing")
        return json.loads(self.result_text or "null")


class Entries:
    """The statements, each within a transaction of the caller's."""

    def __init__(self, table: Table, dialect: str) -> None:
        if dialect not in DIALECTS:
            raise ContractError(
                Code.APP_INVALID, f"a ledger is kept in {' or '.join(sorted(DIALECTS))}, not in {dialect}"
            )
        self._table = table
        self._dialect = dialect

    def claim(self, db: Connection, ctx: ToolContext) -> Found | None:
        """Take the attempt's place, or the entry that has it. Waits for whoever is about to commit the same."""
        _check_transactional(db)
        if db.execute(self._insert(ctx, DONE)).first() is not None:
            return None
        found = self._of_key(db, ctx) or self._of_operation(db, ctx)
        if found is None:  # it was there when it was inserted: whoever had it has deleted it since
            raise NotExecuted("the entry of this attempt was deleted a moment ago", transient=True)
        return found

    def fill(self, db: Connection, ctx: ToolContext, result_text: str) -> None:
        """What the effect returned, in the transaction of the effect."""
        db.execute(self._table.update().where(self._table.c.key == ctx.idempotency_key).values(result_text=result_text))

    def seal(self, db: Connection, ctx: ToolContext) -> Executed | NotExecuted:
        """A tombstone in the place of an attempt that is not there, so that it never will be."""
        _check_transactional(db)
        db.execute(self._insert(ctx, SEALED))
        return self.look(db, ctx)

    def look(self, db: Connection, ctx: ToolContext) -> Executed | NotExecuted:
        """Whether the operation has happened, by any of its attempts."""
        found = self._of_operation(db, ctx)
        if found is None:
            return NotExecuted("the ledger has no entry of it: it did not happen")
        return Executed(found.result())

    def _insert(self, ctx: ToolContext, state: str) -> Any:
        insert: Any = DIALECTS[self._dialect](self._table)
        made: Insert = insert.values(key=ctx.idempotency_key, operation_id=ctx.operation_id, state=state)
        # Without a target: both constraints count, the key's and the operation's.
        return made.on_conflict_do_nothing().returning(self._table.c.key)  # type: ignore[attr-defined]

    def _of_key(self, db: Connection, ctx: ToolContext) -> Found | None:
        return self._found(db, self._table.c.key == ctx.idempotency_key)

    def _of_operation(self, db: Connection, ctx: ToolContext) -> Found | None:
        return self._found(db, self._table.c.operation_id == ctx.operation_id, self._table.c.state == DONE)

    def _found(self, db: Connection, *where: Any) -> Found | None:
        row = db.execute(select(self._table.c.state, self._table.c.result_text).where(*where)).first()
        return None if row is None else Found(*row)


def _check_transactional(db: Connection) -> None:
    """With autocommit, entry and effect would not be one."""
    driver = db.connection.dbapi_connection
    if driver is not None and db.dialect.detect_autocommit_setting(driver):
        raise NotExecuted("the ledger's engine has the isolation level AUTOCOMMIT: it needs transactions")


def kept(result: Any) -> str:
    """The result as canonical JSON. Raises NotExecuted, since the transaction has not been committed yet."""
    try:
        return canonical_text(parse(to_json(result)))
    except Exception as error:
        raise NotExecuted(f"its result cannot be kept as JSON, so it was rolled back: {error}") from error


def undone(error: Exception) -> ToolError:
    """What an error within the transaction says: it was rolled back, so nothing happened."""
    if isinstance(error, Unsure | NotExecuted):
        return error
    if isinstance(error, Failed):
        return NotExecuted(error.reason)
    return NotExecuted(f"rolled back: {type(error).__name__}: {error}", transient=may_pass(error))


def uncertain(error: Exception) -> Unsure:
    """What an error of the commit says: nobody knows."""
    return Unsure(f"whether it was committed is not known: {type(error).__name__}: {error}", transient=True)


def unreachable(error: Exception) -> NotExecuted:
    """What an error before the transaction says."""
    return NotExecuted(f"the ledger cannot be reached: {type(error).__name__}: {error}", transient=True)


def may_pass(error: BaseException) -> bool:
    """Whether the same transaction may succeed later: the database was away or busy, not unwilling."""
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if isinstance(state, str):
            return state in _MAY_PASS or state.startswith(("08", "53"))
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, SQLAlchemyError)
