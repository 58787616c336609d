"""Decides whether a model's reply is one that the run can use, and what the model is told when it is not.

A plan comes as one call of the function PLAN_TOOL; an answer is words; a turn of work is words or calls. What a
model wrote is read strictly and checked as a graph before anybody acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from placet import limits, strict_json
from placet.calls import ChatMessage, ModelReply, ToolCall, ToolResult, ToolResults, UserText
from placet.errors import Code, ContractError
from placet.messages import Purpose, invalid
from placet.plans import PLAN_TOOL, PlannedTask, TeamSpec, check_plan
from placet.values import Value

FAULT_CHARS_MAX = 2_000
"""What a model is told about a reply that cannot be used."""


class SubmittedPlan(Value):
    """The arguments of PLAN_TOOL."""

    tasks: tuple[PlannedTask, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a reply cannot be used: one sentence that says what to do."""

    message: str


def read_plan(reply: ModelReply, team: TeamSpec) -> tuple[PlannedTask, ...] | Fault:
    """The proposed tasks with their assignees, or what is wrong with the reply."""
    if len(reply.calls) != 1 or reply.calls[0].tool != PLAN_TOOL:
        made = ", ".join(call.tool for call in reply.calls) or "none"
        return _fault(f"Call the function {PLAN_TOOL} exactly once and no other one. You called: {made}.")
    try:
        return check_plan(_parsed(reply.calls[0].input_text), team)
    except ContractError as error:
        return _fault(f"The plan cannot be used: {error.message}. Correct it and call {PLAN_TOOL} again.")


def _parsed(input_text: str) -> tuple[PlannedTask, ...]:
    strict_json.parse(input_text)
    try:
        return SubmittedPlan.model_validate_json(input_text).tasks
    except ValidationError as error:
        raise invalid(error, Code.PLAN_INVALID) from error


def check_words(reply: ModelReply, purpose: Purpose) -> Fault | None:
    """What is wrong with a reply that is to be an answer or a turn of work."""
    if purpose == "answer" and reply.calls:
        return _fault("Answer in words. There are no tools here.")
    if len(reply.calls) > limits.CALLS_PER_TURN_MAX:
        return _fault(f"At most {limits.CALLS_PER_TURN_MAX} tool calls at a time: none of these was made.")
    return None


def correction(reply: ModelReply, fault: Fault) -> ChatMessage:
    """How the model is told: as the answer to each of its calls, or in words where it made none."""
    if not reply.calls:
        return UserText(text=fault.message)
    return ToolResults(results=tuple(_result(call, ok=False, text=fault.message) for call in _once(reply.calls)))


def received(reply: ModelReply) -> ChatMessage:
    """The answer to the plan's call: every call of a conversation has one."""
    return ToolResults(results=tuple(_result(call, ok=True, text="The plan was received.") for call in reply.calls))


def _once(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple({call.call_id: call for call in calls}.values())


def _result(call: ToolCall, *, ok: bool, text: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, tool=call.tool, ok=ok, text=text)


def _fault(message: str) -> Fault:
    return Fault(message if len(message) <= FAULT_CHARS_MAX else message[: FAULT_CHARS_MAX - 1] + "…")
