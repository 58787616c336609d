"""Decides what a request is in one line: what would happen, who wants it, how much is at stake.

A request is frozen, so its card is made once and kept; how it stands is never part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placet.canonical import parse_canonical
from placet.characters import visible
from placet.contents import (
    Content,
    OperationOutcomeContent,
    PlanContent,
    PlanPatchContent,
    QuestionContent,
    TaskDispatchContent,
    TaskRoundContent,
    ToolCallContent,
    read_content,
)
from placet.describing import Described
from placet.errors import ContractError
from placet.policy import CONSEQUENTIAL_RULE
from placet.requests import Scope
from placet.sentences import Warned, call_text, sentence, warnings
from placet.strict_json import JsonValue
from placet.views import AppView, ToolView

CARDS_MAX = 8_192
"""Cards kept in a process."""
SCANNED_CHARS_MAX = 65_536
"""Of content that is looked through for hidden characters for a list; in full it always is on its own page."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "cmd", "powershell", "pwsh"})
_COMMANDS = frozenset({"command", "cmd", "script", "code", "sql", "query", "argv"})
"""Fields that say what is done: blank, there is nothing to approve."""

Columns = Mapping[str, Any]
Risk = str
"""`high`: what cannot be undone, checked or read plainly; `normal`; `low`: nothing happens outside."""


@dataclass(frozen=True, slots=True)
class Card:
    """The frozen part of a request."""

    request_id: str
    run_id: str
    scope: Scope
    request_hash: str
    headline: str
    sentence: str
    tool: str
    agent: str
    consequential: bool
    requested_at_ms: int
    expires_at_ms: int | None
    initiator: str
    requesters: frozenset[str]
    reviewers: tuple[str, ...] | None
    reason: str
    """Empty where it is only that the call is consequential."""
    quorum: int
    generation: int
    hazards: int | None
    """None: too long to be looked through for a list."""
    is_empty: bool
    """It asks for nothing that could be looked at."""
    values: tuple[tuple[str, int | float], ...]
    """The plain numbers among a call's arguments."""

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """Urgency: what ends first, then what waits longest."""
        return self.expires_at_ms is None, self.expires_at_ms or 0, self.requested_at_ms, self.request_id

    def bar_to(self, person: str) -> str | None:
        """Why this person may not approve it, as far as the question itself says; None where it says nothing."""
        if self.reviewers is not None and person not in self.reviewers:
            return "it is for somebody else to decide"
        if self.initiator and self.initiator.strip() == person and self.scope != "question":
            return "you started the run, so somebody else has to decide"
        if person in self.requesters:
            return "you edited what is asked, so somebody else has to approve it"
        return None


class Cards:
    """The cards of a process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Card] = {}

    def of(self, row: Columns) -> Card:
        """The card of a stored request."""
        key = (row["request_id"], row["request_hash"])
        known = self._known.get(key)
        if known is None:
            known = card_of(row)
            while len(self._known) >= CARDS_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known


def content_of(content_text: str) -> tuple[Content | None, JsonValue]:
    """The content, typed where this version knows it, and as plain JSON. Raises ContractError where it is none."""
    value = parse_canonical(content_text)
    try:
        return (read_content(value) if isinstance(value, dict) else None), value
    except ContractError:
        return None, value


def card_of(row: Columns) -> Card:
    """The card of a stored request; for content that cannot be read, one that says so."""
    text = row["content_text"]
    try:
        content, value = content_of(text)
        hazards = len(distinct(warnings(value))) if len(text) <= SCANNED_CHARS_MAX else None
    except ContractError:
        content, hazards = None, None
    told = sentence(text, run_id=row["run_id"], reason=row.get("reason"))
    call = content if isinstance(content, ToolCallContent | OperationOutcomeContent) else None
    return Card(
        request_id=row["request_id"],
        run_id=row["run_id"],
        scope=row["scope"],
        request_hash=row["request_hash"],
        headline=headline(content) or told,
        sentence=told,
        tool=call.tool_name if call is not None else "",
        agent=row.get("agent_name") or "",
        consequential=isinstance(content, ToolCallContent) and content.consequential,
        requested_at_ms=row["requested_at_ms"],
        expires_at_ms=row.get("expires_at_ms"),
        initiator=row.get("initiator") or "",
        requesters=frozenset((row.get("requesters") or "").split("\n")) - {""},
        reviewers=tuple(row["reviewers"].split("\n")) if row.get("reviewers") else None,
        reason=(row.get("reason") or "") if row.get("rule") != CONSEQUENTIAL_RULE else "",
        quorum=row.get("quorum") or 1,
        generation=row.get("generation") or 1,
        hazards=hazards,
        is_empty=call is not None and asks_for_nothing(call.input),
        values=_numbers(call.input) if call is not None else (),
    )


def headline(content: Content | None) -> str:
    """What would happen, shortest; empty for what cannot be read."""
    match content:
        case ToolCallContent():
            return inner_command(content.input) or call_text(content.tool_name, content.input)
        case OperationOutcomeContent():
            return f"Did {call_text(content.tool_name, content.input)} happen?"
        case QuestionContent():
            return shortened(visible(content.question))
        case PlanContent():
            first = ", ".join(visible(task.title) for task in content.tasks[:3])
            more = f" and {len(content.tasks) - 3} more" if len(content.tasks) > 3 else ""
            return f"Plan: {shortened(first)}{more}"
        case TaskRoundContent():
            return f"Next round: {shortened(', '.join(visible(task.title) for task in content.next_tasks))}"
        case PlanPatchContent():
            touched = ", ".join(visible(task.title) for task in (*content.added, *content.changed, *content.removed))
            return f"Change the plan: {shortened(touched)}"
        case TaskDispatchContent():
            return f"Start: {shortened(visible(content.task.title))}"
        case _:
            return ""


def shortened(text: str, chars_max: int = 160) -> str:
    """The text, or its beginning and how much more there is."""
    return text if len(text) <= chars_max else f"{text[:chars_max]}… (+{len(text) - chars_max:,} characters)"


def inner_command(arguments: Mapping[str, JsonValue]) -> str:
    """What a shell is told to run: `["/bin/bash", "-lc", "make deploy"]` is `make deploy`; else empty."""
    for value in arguments.values():
        if isinstance(value, list) and len(value) >= 3 and all(isinstance(word, str) for word in value):
            shell, *flags, command = [str(word) for word in value]
            name = shell.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")
            if name in _SHELLS and all(flag[:1] in "-/" for flag in flags):
                return f"{shortened(visible(command))}  — run by {visible(name)}"
    return ""


def asks_for_nothing(arguments: Mapping[str, JsonValue]) -> bool:
    """Whether what is to be done is blank: there is nothing in it that a person could agree to."""
    said = [value for name, value in arguments.items() if name.lower() in _COMMANDS]
    return bool(said) and all(_is_blank(value) for value in said)


def _is_blank(value: JsonValue) -> bool:
    if isinstance(value, str):
        return not visible(value, keep_lines=True).strip()
    if isinstance(value, Sequence):
        return all(_is_blank(item) for item in value)
    return value is None


def _numbers(arguments: Mapping[str, JsonValue]) -> tuple[tuple[str, int | float], ...]:
    return tuple(
        (name, value)
        for name, value in arguments.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    )


def distinct(found: Sequence[Warned]) -> tuple[Warned, ...]:
    """The warnings, each once: what the agent wrote and what the schema made of it is mostly the same."""
    of_input = {(one.pointer, one.position) for one in found}
    return tuple(
        one
        for one in found
        if not (
            one.pointer.startswith("/rawInput/")
            and (one.pointer.replace("/rawInput/", "/input/", 1), one.position) in of_input
        )
    )


# ── what the application says of a tool ────────────────────────────────────────────────


def tool_of(application: Described | AppView | None, name: str) -> ToolView | None:
    """What is known of a tool here."""
    if isinstance(application, AppView):
        return next((tool for tool in application.tools if tool.name == name), None)
    found = application.tools.get(name) if application is not None else None
    if found is None:
        return None
    spec = found.spec
    return ToolView(name=spec.name, version=spec.version, effect=spec.effect.value, consequential=spec.consequential)


def schema_of(application: Described | AppView | None, name: str) -> dict[str, Any] | None:
    """The JSON schema of a tool's input, where this process has the tool."""
    found = None if application is None or isinstance(application, AppView) else application.tools.get(name)
    schema = getattr(getattr(found, "input", None), "schema", None)  # an application has it, a description has not
    return dict(schema) if isinstance(schema, dict) else None


def risk_of(card: Card, tool: ToolView | None) -> Risk:
    """How much care a request needs. From what the application declares and what stands in it, never from a model."""
    if card.hazards or card.is_empty or (tool is not None and tool.effect == "non_retriable"):
        return "high"
    if card.scope == "question" or (tool is not None and tool.effect == "read_only"):
        return "low"
    return "normal"
