"""Decides which question may take another's place: about the same thing, after an answer that lets it be asked again.

So whoever finds a question of a later generation among the rows knows how it came there: an edited call says exactly
what a person has edited it to, and everybody who has edited it is named. Executors rely on this (their guard computes
only the ids of the chain).
"""

from __future__ import annotations

from placet.canonical import canonical_text
from placet.contents import ToolCallContent
from placet.errors import TerminalError
from placet.facts import Facts
from placet.requests import ApprovalRequest, verified_content
from placet.rows import OutcomeRow

_SAME = ("tenant", "run_id", "scope", "boundary", "initiator", "operation_id", "asker_machine", "asker_key")
_ASKED_AGAIN = ("approved", "expired")
"""Outcomes after which the same may be asked again: an approval that was not used in time, a question that ran out."""


def fault_of_succession(request: ApprovalRequest, facts: Facts) -> str:
    """Why the request cannot take the place that it says; empty where it can, or takes none."""
    if request.generation == 1:
        return ""
    before = facts.request(request.run_id, request.supersedes)
    outcome = facts.outcome(request.run_id, request.supersedes)
    if before is None or outcome is None:
        return f"{request.supersedes}, whose place it would take, has not been decided"
    if before.generation + 1 != request.generation or any(
        getattr(before, field) != getattr(request, field) for field in _SAME
    ):
        return f"it is about something else than {request.supersedes}"
    if not before.requesting <= request.requesting:
        return f"it forgets who has edited {request.supersedes}"
    if request.scope == "tool_call":
        return _fault_of_call(before, outcome, request)
    again = outcome.is_edit or outcome.asks_for_changes or outcome.outcome in _ASKED_AGAIN
    return "" if again else f"{request.supersedes} was {outcome.outcome}: it is not asked again"


def _fault_of_call(before: ApprovalRequest, outcome: OutcomeRow, request: ApprovalRequest) -> str:
    """A call is asked about again as it was, or as it was edited to; nothing else of it changes."""
    if not outcome.is_edit and outcome.outcome not in _ASKED_AGAIN:
        return f"{request.supersedes} was {outcome.outcome}: it is not asked again"
    try:
        was, would_be = verified_content(before), verified_content(request)
    except TerminalError as error:
        return error.message
    if not isinstance(was, ToolCallContent) or not isinstance(would_be, ToolCallContent):
        return "it is no call"
    raw, old = canonical_text(would_be.raw_input), canonical_text(was.raw_input)
    if raw not in (old, outcome.value_text):
        return "its input is neither what was asked nor what it was edited to"
    same = ("tool_name", "agent_name", "task_id", "tool_call_id", "consequential")
    if any(getattr(was, field) != getattr(would_be, field) for field in same):
        return f"it is another call than that of {request.supersedes}"
    return ""
