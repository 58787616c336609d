"""Decides what people may read of the facts, in which order and form. The same for every SQL database."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from placet.adapters.sql import statements as st
from placet.adapters.sql.statements import OUTCOME_COLUMNS
from placet.adapters.sql.tables import FACTS
from placet.adapters.sql.units import tenant_of
from placet.columns import COLUMNS, exact, shown_body
from placet.errors import Code, ContractError, TerminalError
from placet.ids import Address
from placet.runtime.reading import Place

Plain = dict[str, Any]


class SqlReader(ABC):
    """runtime.ports.Reader on SQL."""

    _arrival: str
    """The expression that orders journal rows of one instant by their arrival."""

    @abstractmethod
    async def _fetch(self, build: Any, *variant: Any, **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement of `placet.adapters.sql.statements`. Raises RetryableError(STORE_UNAVAILABLE)."""

    async def runs(self, tenant: str, *, status: str | None, limit: int, before: str | None) -> list[Plain]:
        """As ports.Reader. A body that cannot be read is shown as an empty one, so that it hides no other run.

        Raises ContractError(PARAMETER_INVALID) when `before` is no run of the tenant.
        """
        values: Plain = {"is_tenant": tenant, "limit": limit}
        if status is not None:
            values["is_status"] = status
        if before is not None:
            found = await self._fetch(st.place_of_run, is_run_id=before, is_tenant=tenant)
            values |= _place(found, before, "before")
        rows = await self._fetch(st.list_runs, status is not None, before is not None, **values)
        names = ("run_id", "status", "version", "created_at_ms", "updated_at_ms")
        return [dict(zip(names, row[:-1], strict=True)) | {"body": _object(row[-1]) or {}} for row in rows]

    async def state(self, tenant: str, address: Address) -> Plain | None:
        """As ports.Reader. Raises TerminalError(CHECKPOINT_CORRUPT) when the body is no JSON object."""
        run_id, machine, key = address
        found = await self._fetch(st.read_state, is_run_id=run_id, is_machine=machine, is_key=key, is_tenant=tenant)
        if not found:
            return None
        status, version, created_at_ms, updated_at_ms, text = found[0]
        body = _object(text)
        if body is None:
            raise TerminalError(Code.CHECKPOINT_CORRUPT, f"the state {address.text()} cannot be read")
        names = ("status", "version", "created_at_ms", "updated_at_ms", "body")
        return dict(zip(names, (status, version, created_at_ms, updated_at_ms, body), strict=True))

    async def rows(self, tenant: str, table: str, run_id: str) -> list[Plain]:
        """As ports.Reader. Raises ContractError(PARAMETER_INVALID) for a table that is none of facts."""
        if table not in FACTS:
            raise ContractError(Code.PARAMETER_INVALID, f"{table!r} is no table of facts", pointer="/table")
        found = await self._fetch(st.read_rows, table, is_tenant=tenant, is_run_id=run_id)
        return [_fact(table, row) for row in found]

    async def requests(self, tenant: str, *, open_only: bool, limit: int, after: str | None) -> list[Plain]:
        """As ports.Reader: oldest by the instant at which they were opened.

        Raises ContractError(PARAMETER_INVALID) when `after` is no request of the tenant.
        """
        values: Plain = {"is_tenant": tenant, "limit": limit}
        if after is not None:
            found = await self._fetch(st.place_of_request, is_request_id=after, is_tenant=tenant)
            values |= _place(found, after, "after")
        return [_request(row) for row in await self._fetch(st.list_requests, open_only, after is not None, **values)]

    async def latest_requests(self, tenant: str, *, limit: int, before: str | None) -> list[Plain]:
        """As ports.Reader. Raises ContractError(PARAMETER_INVALID) when `before` is no request of the tenant."""
        values: Plain = {"is_tenant": tenant, "limit": limit}
        if before is not None:
            found = await self._fetch(st.place_of_request, is_request_id=before, is_tenant=tenant)
            values |= _place(found, before, "before")
        return [_request(row) for row in await self._fetch(st.latest_requests, before is not None, **values)]

    async def request(self, tenant: str, request_id: str) -> Plain | None:
        """As ports.Reader."""
        found = await self._fetch(st.read_request, is_request_id=request_id, is_tenant=tenant)
        return _request(found[0]) if found else None

    async def run_of_operation(self, tenant: str, operation_id: str) -> str | None:
        """As ports.Reader."""
        found = await self._fetch(st.run_of_operation, is_operation_id=operation_id, is_tenant=tenant)
        return str(found[0][0]) if found else None

    async def journal(self, tenant: str, run_id: str) -> list[Plain]:
        """As ports.Reader."""
        entries = []
        for row in await self._fetch(st.read_journal, self._arrival, is_tenant=tenant, is_run_id=run_id):
            machine, key, version, message_id, text, at_ms = row
            message = _object(text) or {}
            names = ("machine", "key", "version", "message_id", "type", "message", "at_ms")
            kind = (message.get("message") or {}).get("type", "")
            entries.append(dict(zip(names, (machine, key, version, message_id, kind, message, at_ms), strict=True)))
        return entries

    async def states_of(self, tenant: str, run_id: str) -> list[Plain]:
        """As ports.Reader."""
        found = await self._fetch(st.read_states, is_run_id=run_id, is_tenant=tenant)
        return [dict(zip(st.STATE_SHOWN, row, strict=True)) for row in found]

    async def entries_of(self, tenant: str, run_id: str, *, limit: int, after: Place | None) -> list[Plain]:
        """As ports.Reader."""
        values: Plain = {"is_run_id": run_id, "is_tenant": tenant, "limit": limit}
        if after is not None:
            values |= {"after_machine": after.machine, "after_key": after.key, "after_version": after.version}
        found = await self._fetch(st.read_entries, after is not None, **values)
        return [dict(zip(st.ENTRY_SHOWN, row, strict=True)) for row in found]

    async def outbox(self, tenant: str, run_id: str) -> list[Plain]:
        """As ports.Reader. A row is the tenant's when its message says so."""
        found = await self._fetch(st.read_outbox, is_run_id=run_id)
        names = ("id", "destination", "type", "not_before_ms")
        return [dict(zip(names, row[:-1], strict=True)) for row in found if tenant_of(row[-1]) == tenant]

    async def dead_letters(self, tenant: str, *, run_id: str | None, limit: int) -> list[Plain]:
        """As ports.Reader."""
        values: Plain = {"is_tenant": tenant, "limit": limit}
        if run_id is not None:
            values["is_run_id"] = run_id
        return [_letter(row) for row in await self._fetch(st.list_dead_letters, run_id is not None, **values)]

    async def dead_letter(self, tenant: str, letter_id: str) -> Plain | None:
        """As ports.Reader."""
        found = await self._fetch(st.read_dead_letter, is_id=letter_id, is_tenant=tenant)
        return {**_letter(found[0]), **exact(found[0][-1])} if found else None

    async def count_dead_letters(self, queue: str, upto: int) -> int:
        """As ports.Quarantine."""
        (row,) = await self._fetch(st.count_dead_letters, is_queue=queue, upto=upto)
        count: int = row[0]
        return count


def _letter(row: tuple[Any, ...]) -> Plain:
    *shown, about_text, length, body = row
    plain = dict(zip(st.LETTER_SHOWN[:-1], shown, strict=True))
    return {**plain, "about": json.loads(about_text) if about_text else None, **shown_body(body, length)}


def _place(found: list[tuple[Any, ...]], name: str, parameter: str) -> Plain:
    if not found:
        raise ContractError(Code.PARAMETER_INVALID, f"{parameter}: {name!r} is not known", pointer=f"/{parameter}")
    return {"place_ms": found[0][0], "place_id": name}


def _object(text: bytes) -> Plain | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _fact(table: str, row: tuple[Any, ...]) -> Plain:
    fact = dict(zip(COLUMNS[table], row, strict=True))
    if table == "operation":
        fact["consequential"] = bool(fact["consequential"])
    return fact


def _request(row: tuple[Any, ...]) -> Plain:
    return dict(zip((*COLUMNS["approval_request"], "status", *OUTCOME_COLUMNS), row, strict=True))
