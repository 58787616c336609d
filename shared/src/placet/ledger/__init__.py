"""Decides which names an author imports for a tool that must have its effect once; each is loaded when first used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placet.ledger.http import AsyncHttpLedger, HttpLedger
    from placet.ledger.sql import AsyncSqlLedger, SqlLedger

__all__ = ["AsyncHttpLedger", "AsyncSqlLedger", "HttpLedger", "SqlLedger"]


def __getattr__(name: str) -> object:
    """The name from the module that holds it: whoever talks HTTP needs no database library."""
    if name in ("HttpLedger", "AsyncHttpLedger"):
        from placet.ledger import http

        return getattr(http, name)
    if name in ("SqlLedger", "AsyncSqlLedger"):
        from placet.ledger import sql

        return getattr(sql, name)
    raise AttributeError(f"module 'placet.ledger' has no attribute {name!r}")
