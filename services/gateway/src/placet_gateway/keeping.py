"""Decides how what is stored of a run is handed out exactly as it is kept, for whoever wants to check it."""

from __future__ import annotations

import base64
import binascii
import json

from placet.columns import COLUMNS
from placet.errors import Code, ContractError
from placet.kept_views import JournalEntryView, JournalPage, RunFacts, StateView
from placet.runtime.reading import Place, Reader

ENTRIES_MAX = 500
"""Of journals in one page."""


async def journal_of(reader: Reader, tenant: str, run_id: str, limit: int, after: str | None) -> JournalPage:
    """A page of the run's journals. Raises ContractError(PARAMETER_INVALID) for an `after` that no page gave."""
    place = None if after is None else _place(after)
    found = await reader.entries_of(tenant, run_id, limit=limit + 1, after=place)
    items = [JournalEntryView(**{**entry, "message": _text(entry["message"])}) for entry in found[:limit]]
    return JournalPage(run_id=run_id, items=items, next=_token(items[-1]) if len(found) > limit else None)


async def facts_of(reader: Reader, tenant: str, run_id: str, now_ms: int) -> RunFacts:
    """States first: what is written while the rows are read belongs to later versions than these."""
    states = [StateView(**{**state, "body": _text(state["body"])}) for state in await reader.states_of(tenant, run_id)]
    tables = {table: await reader.rows(tenant, table, run_id) for table in COLUMNS}
    return RunFacts(run_id=run_id, states=states, tables=tables, as_of_ms=now_ms)


def _text(body: bytes) -> str:
    """What is no text cannot have been written by any program, and says so when it is read."""
    return body.decode(errors="backslashreplace")


def _token(entry: JournalEntryView) -> str:
    place = json.dumps([entry.machine, entry.key, entry.version]).encode()
    return base64.urlsafe_b64encode(place).decode().rstrip("=")


def _place(token: str) -> Place:
    try:
        machine, key, version = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, TypeError, binascii.Error):
        machine = key = version = None
    if not (isinstance(machine, str) and isinstance(key, str) and type(version) is int and abs(version) < 2**63):
        raise ContractError(Code.PARAMETER_INVALID, "after: take it from the page before", pointer="/after")
    return Place(machine, key, version)
