"""Decides what else a reviewer is told beside the question: the task, what the agent said, what came before it.

Words of agents are labelled as theirs and prove nothing. What came before is counted from the facts, over the newest
requests only; where that is not far enough the number is said to be a lower bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from placet.addressees import RUN, task_thread
from placet.calls import AssistantReply, ChatMessage, ToolResults, UserText
from placet.canonical import digest, parse_canonical
from placet.contents import OperationOutcomeContent, QuestionContent, TaskDispatchContent, ToolCallContent
from placet.errors import ContractError
from placet.ids import Address
from placet.runtime.reading import Reader
from placet.strict_json import JsonValue
from placet_gateway.inbox.cards import Card, Cards, Columns
from placet_gateway.inbox.differences import Change, changes

LATEST_MAX = 500
"""Requests that are looked through for what came before."""
SAID_MAX = 8
"""The last lines of a conversation."""
SAID_CHARS_MAX = 2_000
"""Of each of them."""
_CHAT: TypeAdapter[ChatMessage] = TypeAdapter(ChatMessage)


@dataclass(frozen=True, slots=True)
class Line:
    """Something that was said. `who`: `asked`, `agent` or `tool`."""

    who: str
    text: str
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Before:
    """What this agent has asked for with this tool today, this request included."""

    nth: int
    approved: int
    rejected: int
    totals: tuple[tuple[str, int | float], ...]
    """Of each number among the arguments: the sum over those approved, and this one."""
    is_all: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """Another request, and what differs in this one."""

    request_id: str
    at_ms: int
    by: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """All of it."""

    goal: str
    team: str
    run_status: str
    initiator: str
    task_title: str
    task_description: str
    said: tuple[Line, ...]
    before: Before | None
    previous: Compared | None
    similar: Compared | None
    refused: Compared | None
    """The same call, refused before."""
    same_open: int
    """How many other open requests ask for the same call."""


async def story_of(reader: Reader, tenant: str, row: Columns, card: Card, cards: Cards, content: Any) -> Story:
    """What there is to tell about a stored request."""
    stored = await reader.state(tenant, Address(card.run_id, RUN, ""))
    body: Columns = stored["body"] if stored is not None else {}
    task_id = _task_of(content)
    task: Columns = next((t for t in body.get("tasks") or () if t.get("id") == task_id), {})
    latest = await reader.latest_requests(tenant, limit=LATEST_MAX, before=None) if card.tool else []
    return Story(
        goal=str(body.get("goal") or ""),
        team=str(body.get("team") or ""),
        run_status=str(stored["status"]) if stored is not None else "",
        initiator=card.initiator,
        task_title=str(task.get("title") or ""),
        task_description=str(task.get("description") or ""),
        said=await _said(reader, tenant, card.run_id, task_id),
        before=_before(latest, card, cards),
        previous=await _previous(reader, tenant, row),
        similar=_similar(latest, row, card, cards),
        refused=_refused(latest, row, card),
        same_open=sum(1 for other in _same(latest, row, card) if other["status"] == "open"),
    )


def _task_of(content: Any) -> str:
    if isinstance(content, ToolCallContent | OperationOutcomeContent | QuestionContent):
        return content.task_id
    return content.task.id if isinstance(content, TaskDispatchContent) else ""


# ── what was said ──────────────────────────────────────────────────────────────────────


async def _said(reader: Reader, tenant: str, run_id: str, task_id: str) -> tuple[Line, ...]:
    if not task_id:
        return ()
    thread = task_thread(task_id)
    rows = [row for row in await reader.rows(tenant, "thread_message", run_id) if row["thread_id"] == thread]
    lines = [line for row in rows[-SAID_MAX:] for line in _lines(row["body_text"])]
    return tuple(lines[-SAID_MAX:])


def _lines(body_text: str) -> list[Line]:
    try:
        message = _CHAT.validate_json(body_text)
    except ValidationError:
        return []  # of another version: the run page has it as it is
    match message:
        case UserText():
            return [_line("asked", message.text)]
        case AssistantReply():
            calls = [f"wants to call {call.tool} with {call.input_text}" for call in message.reply.calls]
            return [_line("agent", text) for text in (message.reply.text, *calls) if text]
        case ToolResults():
            return [_line("tool", f"{result.tool}: {result.text}") for result in message.results]


def _line(who: str, text: str) -> Line:
    return Line(who, text[:SAID_CHARS_MAX], max(0, len(text) - SAID_CHARS_MAX))


# ── what came before ───────────────────────────────────────────────────────────────────


def _before(latest: Sequence[Columns], card: Card, cards: Cards) -> Before | None:
    """None for what is no tool call."""
    if card.scope != "tool_call" or not card.tool:
        return None
    midnight = datetime.fromtimestamp(card.requested_at_ms / 1_000, UTC).replace(hour=0, minute=0, second=0)
    since_ms = int(midnight.timestamp() * 1_000)
    mine = [
        row
        for row in latest
        if since_ms <= row["requested_at_ms"] <= card.requested_at_ms
        and row["scope"] == card.scope
        and row["request_id"] != card.request_id
        and _same_kind(cards.of(row), card)
    ]
    approved = [cards.of(row) for row in mine if row["status"] == "approved"]
    totals = []
    for name, value in card.values:
        earlier = [number for other in approved for named, number in other.values if named == name]
        if earlier:
            totals.append((name, sum(earlier) + value))
    return Before(
        nth=len(mine) + 1,
        approved=len(approved),
        rejected=sum(row["status"] == "rejected" for row in mine),
        totals=tuple(totals),
        is_all=len(latest) < LATEST_MAX or latest[-1]["requested_at_ms"] < since_ms,
    )


def _same_kind(other: Card, card: Card) -> bool:
    return (other.tool, other.agent) == (card.tool, card.agent)


async def _previous(reader: Reader, tenant: str, row: Columns) -> Compared | None:
    """The request whose place this one has taken."""
    if not row.get("supersedes"):
        return None
    earlier = await reader.request(tenant, row["supersedes"])
    return None if earlier is None else _compared(earlier, row, str(earlier.get("decided_by") or ""))


def _similar(latest: Sequence[Columns], row: Columns, card: Card, cards: Cards) -> Compared | None:
    """The last call of the same tool that was approved."""
    if card.scope != "tool_call":
        return None
    for earlier in latest:
        is_earlier = earlier["requested_at_ms"] <= card.requested_at_ms and earlier["request_id"] != card.request_id
        if is_earlier and earlier["status"] == "approved" and cards.of(earlier).tool == card.tool:
            return _compared(earlier, row, str(earlier.get("decided_by") or ""))
    return None


def _refused(latest: Sequence[Columns], row: Columns, card: Card) -> Compared | None:
    """The last time that the very same call was rejected, by whoever asked for it."""
    for earlier in _same(latest, row, card):
        if earlier["status"] == "rejected" and earlier["requested_at_ms"] <= card.requested_at_ms:
            return _compared(earlier, row, str(earlier.get("decided_by") or ""))
    return None


def _same(latest: Sequence[Columns], row: Columns, card: Card) -> Iterator[Columns]:
    """Other requests for the same tool with the same input."""
    wanted = call_of(row["content_text"])
    if card.scope != "tool_call" or wanted is None:
        return
    for other in latest:
        if (
            other["scope"] == card.scope
            and other["request_id"] != card.request_id
            and call_of(other["content_text"]) == wanted
        ):
            yield other


@lru_cache(maxsize=4_096)
def call_of(content_text: str) -> str | None:
    """A digest of the tool and its input; None for content that is no call, or cannot be read."""
    try:
        value = parse_canonical(content_text)
    except ContractError:
        return None
    if not isinstance(value, dict) or "toolName" not in value:
        return None
    return digest({"tool": value["toolName"], "input": value.get("input")})


def _compared(earlier: Columns, row: Columns, by: str) -> Compared | None:
    try:
        before, after = _asked(earlier["content_text"]), _asked(row["content_text"])
    except ContractError:
        return None
    at_ms = earlier.get("decided_at_ms") or earlier["requested_at_ms"]
    return Compared(earlier["request_id"], at_ms, by, tuple(changes(before, after)))


def _asked(content_text: str) -> JsonValue:
    """What differs where it matters: the input of a call, the tasks of a plan; not which task or call it belongs to."""
    value = parse_canonical(content_text)
    if not isinstance(value, Mapping):
        return value
    if isinstance(value.get("input"), Mapping):
        return value["input"]
    tasks = value.get("tasks")
    if isinstance(tasks, list):
        kept = [
            {name: part for name, part in task.items() if name not in {"createdAt", "updatedAt", "status"}}
            for task in tasks
            if isinstance(task, Mapping)
        ]
        return {str(task.get("id")): task for task in kept}
    return dict(value)


def plain_json(text: str | None) -> Any:
    """Stored JSON for showing; the text itself where it is none."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
