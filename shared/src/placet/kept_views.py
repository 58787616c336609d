"""Decides how what is kept of a run looks over HTTP: exactly as it is kept, for whoever wants to check it."""

from __future__ import annotations

from typing import Any

from placet.views import View


class JournalEntryView(View):
    """An applied message exactly as it is kept: `message` is its envelope, `facts` what the rules were told with it."""

    machine: str
    key: str
    version: int
    message_id: str
    message: str
    facts: str
    at_ms: int


class JournalPage(View):
    """The journals of a run, by machine, key and version. `next`: what to send as `after` for the next page."""

    run_id: str
    items: list[JournalEntryView]
    next: str | None = None


class StateView(View):
    """The state of one machine exactly as it is kept."""

    machine: str
    key: str
    version: int
    status: str
    body: str


class RunFacts(View):
    """What is stored of a run besides its journals: every state, and every row of each table of facts."""

    run_id: str
    states: list[StateView]
    tables: dict[str, list[dict[str, Any]]]
    as_of_ms: int
