"""Decides what a tool call is: what a model asked for, what a tool promises, what came back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from placet import limits
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.retries import RetryPolicy
from placet.values import Name, PoolName, Usage, Value


class EffectClass(StrEnum):
    """What may be done when the outcome of an attempt is unknown (DESIGN §3)."""

    READ_ONLY = "read_only"
    IDEMPOTENT = "idempotent"
    RECONCILABLE = "reconcilable"
    NON_RETRIABLE = "non_retriable"


Binding = Literal["data", "tool", "policy", "release"]
"""What an approval is bound to beside the hash, each with all before it: `data`: nothing; `tool`: the tool's version
and schema; `policy`: the version of the gates; `release`: the version of the application."""


class ToolSpec(Value):
    """What the rules need to know of a tool. Its code and JSON schema stay with the application."""

    name: Name
    version: str
    schema_digest: str
    effect: EffectClass
    consequential: bool
    timeout_ms: int
    retry: RetryPolicy
    can_reconcile: bool = False
    can_seal: bool = False
    quiescence_ms: int = 0
    """How long after the worker of an attempt is gone its request may still have its effect."""
    pool: PoolName = ""
    """Whose executors run it; empty: the common ones."""
    binding: Binding = "tool"
    """What of the program must be at the start as it was at the review."""
    advisory: tuple[Name, ...] = ()
    """Fields of the input that are words for people (hash_scope)."""
    volatile: tuple[Name, ...] = ()
    """Fields of the input that are noise."""


def _is_empty(value: object) -> bool:
    return not value


FindingText = Annotated[str, Field(min_length=1, max_length=limits.FINDING_CHARS_MAX)]


class ToolCall(Value):
    """What a model asked for, byte for byte. `input_text` is not yet parsed: models cut and mangle it."""

    call_id: str
    tool: str
    input_text: Annotated[str, Field(max_length=limits.CONTENT_BYTES_MAX)]
    findings: Annotated[tuple[FindingText, ...], Field(max_length=limits.FINDINGS_MAX, exclude_if=_is_empty)] = ()
    """What was found alarming about the call, a line each. It can only make the gates stricter: a person is asked."""


class ToolResult(Value):
    """The one answer to one tool call, as the model sees it."""

    call_id: str
    """The model's own call id, so that the provider can pair them."""
    tool: str
    ok: bool
    text: str


class ModelReply(Value):
    """One model turn. `raw_text` is the provider message, kept for an exact round trip."""

    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    raw_text: str = ""
    handle: Annotated[str, Field(max_length=limits.HANDLE_CHARS_MAX)] = ""
    """Names a live session that the model keeps elsewhere, and without which it cannot go on; empty where it has none.
    It comes with every further call of the conversation, and stays the same: one that is gone is never replaced."""


# ── a conversation: what a thread holds ────────────────────────────────────────────────


class UserText(Value):
    """Words of a person or of the run: the task, a continuation."""

    role: Literal["user"] = "user"
    text: str


class AssistantReply(Value):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    reply: ModelReply


class ToolResults(Value):
    """Answers to every call of the reply before it."""

    role: Literal["tool"] = "tool"
    results: tuple[ToolResult, ...]


ChatMessage = Annotated[UserText | AssistantReply | ToolResults, Field(discriminator="role")]


# ── what a tool answers: certainty is a type, never guessed from text ──────────────────


class Executed(Value):
    """The effect happened. `result_text` is the tool's result as canonical JSON."""

    certainty: Literal["executed"] = "executed"
    result_text: str = "null"
    failure: Failure | None = None
    """Set when the tool ran and reports an error of its own (the effect, if any, stands)."""


class NotExecuted(Value):
    """The effect did not happen and will not."""

    certainty: Literal["not_executed"] = "not_executed"
    failure: Failure | None = None


class Unsure(Value):
    """Nobody knows."""

    certainty: Literal["unknown"] = "unknown"
    failure: Failure | None = None


ToolOutcome = Annotated[Executed | NotExecuted | Unsure, Field(discriminator="certainty")]


def not_begun(tool: str) -> NotExecuted:
    """An attempt that came too late to begin. It says nothing about the tool: it is tried again, as a lost worker's."""
    return NotExecuted(failure=_not_begun(tool, Certainty.NOT_EXECUTED))


def probe_not_begun(tool: str) -> Unsure:
    """A probe that came too late to begin: nothing was asked, so nothing more is known of the attempt."""
    return Unsure(failure=_not_begun(tool, Certainty.UNKNOWN))


def _not_begun(tool: str, certainty: Certainty) -> Failure:
    return Failure(
        code=Code.TOOL_NOT_BEGUN,
        message=f"{tool} was not called: its lease would have ended before its time",
        error_class=ErrorClass.TRANSIENT,
        certainty=certainty,
    )
