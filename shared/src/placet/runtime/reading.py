"""Decides what people can read of what is kept; nothing acts on it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from placet.ids import Address


class Place(NamedTuple):
    """An entry of a run's journals."""

    machine: str
    key: str
    version: int


class Reader(Protocol):
    """The read side, for people: labelled "as of", nothing acts on it. Tenant first: a foreign row looks like none.

    Every method returns plain dictionaries whose names are the columns' names; JSON-able where no bytes are said.
    Raises as `Store.load` does; ContractError(PARAMETER_INVALID) for a page that begins at what the tenant does not
    have, or for no table of facts; TerminalError(CHECKPOINT_CORRUPT) for a state that is no JSON.
    """

    async def runs(self, tenant: str, *, status: str | None, limit: int, before: str | None) -> list[dict[str, Any]]:
        """Newest first: run_id, status, version, created_at_ms, updated_at_ms, body (dict). `before`: a run_id."""

    async def state(self, tenant: str, address: Address) -> dict[str, Any] | None:
        """status, version, created_at_ms, updated_at_ms, body (dict)."""

    async def rows(self, tenant: str, table: str, run_id: str) -> list[dict[str, Any]]:
        """All rows of a fact table that belong to a run, in key order."""

    async def requests(self, tenant: str, *, open_only: bool, limit: int, after: str | None) -> list[dict[str, Any]]:
        """The inbox, oldest first: request columns, `status` of its approval, outcome columns or None.

        `after`: a request_id, for the next page.
        """

    async def latest_requests(self, tenant: str, *, limit: int, before: str | None) -> list[dict[str, Any]]:
        """As `requests`, all of them, newest first. `before`: a request_id, for the next page."""

    async def request(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """One of them."""

    async def run_of_operation(self, tenant: str, operation_id: str) -> str | None:
        """The run of an operation. Looks through all of them: for a person who asks, not for what happens often."""

    async def journal(self, tenant: str, run_id: str) -> list[dict[str, Any]]:
        """Every applied message of a run, over all machines, by time.

        Columns: machine, key, version, message_id, type, message (dict), at_ms.
        """

    async def states_of(self, tenant: str, run_id: str) -> list[dict[str, Any]]:
        """Every state of a run as it is kept, by machine and key.

        Columns: machine, key, version, status, body (bytes).
        """

    async def entries_of(self, tenant: str, run_id: str, *, limit: int, after: Place | None) -> list[dict[str, Any]]:
        """The journals of a run as they are kept, by machine, key and version, from after a place on.

        Columns: machine, key, version, message_id, message (bytes), facts, at_ms.
        """

    async def outbox(self, tenant: str, run_id: str) -> list[dict[str, Any]]:
        """What is still on its way for a run: id, destination, type, not_before_ms."""

    async def dead_letters(self, tenant: str, *, run_id: str | None, limit: int) -> list[dict[str, Any]]:
        """Newest first: id, run_id, destination, code, reason, at_ms, queue, about (dict or None), bytes (how long the
        body is), body (its first limits.LISTED_BYTES_MAX, what is no text escaped). The tenant `""`: whose nobody is.
        """

    async def dead_letter(self, tenant: str, letter_id: str) -> dict[str, Any] | None:
        """One of them, with all of its body; `body_base64`: where that is no text."""
