"""Decides what a scripted model says: for offline work, demos and tests, with the same answer for the same question.

    scripted(plan([{"id": "a", "title": "Say it"}]), call("echo", text="hi"), "It has been said.")

Which step applies follows from the number of replies that already stand in the conversation, never from a counter of
the script's own: after a crash, or for a repeat, the same conversation gets the same step. A conversation is a plan, a
task or the final answer, and each counts for itself, hence three lists: `plan(…)` steps (or `planning`) plan, the other
steps work on tasks, `answering` sums up. A script that has run out says so as a failure; it invents nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from placet.calls import AssistantReply, ChatMessage, ModelReply, ToolCall
from placet.canonical import canonical_text
from placet.errors import Certainty, Code, ContractError, ErrorClass, Failure
from placet.plans import PLAN_TOOL, PlannedTask
from placet.values import Usage

Conversation: TypeAlias = Sequence[ChatMessage]
_INDIRECTIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call to propose. `input_text` is the model's argument text, byte for byte, be it JSON or not."""

    tool: str
    input_text: str
    call_id: str | None = None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to propose, as a call of `submit_plan`."""

    input_text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """A failing model. For the first `times` attempts of a turn, then `then`; without `times`, for ever."""

    failure: Failure
    times: int | None = None
    then: Step = ""


Step: TypeAlias = str | Call | Plan | Fail | Sequence["str | Call"] | Callable[[Sequence[ChatMessage]], "Step"]
"""Text; a call, or several with words between; a plan; a failure; or a function of the conversation to one of these."""


def call(tool: object, /, **tool_input: Any) -> Call:
    """Propose a call. `tool` is a name or a registered tool. Raises ContractError for input that is not JSON."""
    return Call(_name_of(tool), canonical_text(tool_input))


def raw_call(tool: object, input_text: str, *, call_id: str | None = None) -> Call:
    """Propose a call with exactly this argument text, as broken as models make it."""
    return Call(_name_of(tool), input_text, call_id)


def flagged(proposed: Call, *findings: str) -> Call:
    """The call, with what a provider's safety checks found alarming about it, a line each: a person is asked."""
    return replace(proposed, findings=(*proposed.findings, *findings))


def plan(tasks: Sequence[PlannedTask | Mapping[str, Any]]) -> Plan:
    """Propose a plan. It is checked where every plan is, not here."""
    plain = [
        task.model_dump(mode="json", exclude_defaults=True) if isinstance(task, PlannedTask) else dict(task)
        for task in tasks
    ]
    return Plan(canonical_text({"tasks": plain}))


def fail(
    message: str = "the model is away",
    *,
    error_class: ErrorClass = ErrorClass.TRANSIENT,
    certainty: Certainty = Certainty.NOT_EXECUTED,
    retry_after_ms: int | None = None,
    times: int | None = None,
    then: Step = "",
) -> Fail:
    """Fail as a provider does; `times=2, then="hello"` fails the first two attempts of the turn."""
    failure = Failure(
        code=Code.MODEL_FAILED,
        message=message,
        error_class=error_class,
        certainty=certainty,
        retry_after_ms=retry_after_ms,
    )
    return Fail(failure, times, then)


@dataclass(frozen=True, slots=True)
class Script:
    """A scripted model: what an agent's `model` may be instead of `provider:model`."""

    planning: tuple[Step, ...]
    working: tuple[Step, ...]
    answering: tuple[Step, ...]

    @property
    def is_at_hand(self) -> bool:
        """Whether it is all words: a function among its steps may do anything, and take any time."""
        return not any(_calls_a_function(step) for step in (*self.planning, *self.working, *self.answering))

    def reply(
        self, purpose: Literal["plan", "work", "answer"], conversation: Conversation, attempt: int = 1
    ) -> ModelReply | Failure:
        """As `answer`, where nobody else counts what it cost: messages that it was given, characters that it wrote."""
        said = self.answer(purpose, conversation, attempt)
        if isinstance(said, Failure):
            return said
        written = len(said.text or "") + sum(len(call.input_text) for call in said.calls)
        return said.model_copy(update={"usage": Usage(input_tokens=len(conversation), output_tokens=written)})

    def answer(
        self, purpose: Literal["plan", "work", "answer"], conversation: Conversation, attempt: int = 1
    ) -> ModelReply | Failure:
        """What it says next; the same for the same arguments. `attempt` counts the tries of this turn, from 1."""
        steps = {"plan": self.planning, "work": self.working, "answer": self.answering}[purpose]
        at = sum(1 for message in conversation if isinstance(message, AssistantReply))
        if at >= len(steps):
            return _broken(f"the script has {len(steps)} steps for purpose {purpose!r}; step {at + 1} is asked for")
        step = steps[at]
        for _ in range(_INDIRECTIONS_MAX):
            if callable(step):
                try:
                    step = step(conversation)
                except Exception as error:  # noqa: BLE001 — the author's function; the failure names it
                    return _broken(f"step {at + 1} of the script raised {type(error).__name__}: {error}")
            elif isinstance(step, Fail):
                if step.times is None or attempt <= step.times:
                    return step.failure
                step = step.then
            else:
                return _reply(step, at)
        return _broken(f"step {at + 1} of the script comes to no end: a function gives a function, and so on")


def scripted(*steps: Step, planning: Sequence[Step] | None = None, answering: Step | Sequence[Step] = ()) -> Script:
    """A model that follows a script. `plan(…)` among `steps` are for planning, unless `planning` lists those steps.

    `answering`: the step or steps for summing up a run of several tasks.
    """
    if planning is not None and any(isinstance(step, Plan) for step in steps):
        raise ContractError(Code.APP_INVALID, "a script has its plans among the steps or in planning=[…], not in both")
    plans = tuple(step for step in steps if isinstance(step, Plan)) if planning is None else tuple(planning)
    # A sequence of calls is itself a step, so that only a list is taken for several of them.
    answers = tuple(answering) if isinstance(answering, list | tuple) else (answering,)
    return Script(plans, tuple(step for step in steps if not isinstance(step, Plan)), answers)


def _reply(step: Step, at: int) -> ModelReply | Failure:
    if isinstance(step, Plan):
        step = Call(PLAN_TOOL, step.input_text)
    parts = [step] if isinstance(step, str | Call) else step
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str | Call) for part in parts):
        return _broken(f"step {at + 1} of the script is text, calls, a plan or a failure, not {step!r}")
    calls = tuple(
        ToolCall(
            call_id=part.call_id or f"call-{at + 1}-{number}",
            tool=part.tool,
            input_text=part.input_text,
            findings=part.findings,
        )
        for number, part in enumerate((part for part in parts if isinstance(part, Call)), start=1)
    )
    texts = [part for part in parts if isinstance(part, str)]
    return ModelReply(text="".join(texts) if texts or not calls else None, calls=calls)


def _calls_a_function(step: Step) -> bool:
    return _calls_a_function(step.then) if isinstance(step, Fail) else callable(step)


def _broken(what: str) -> Failure:
    return Failure(code=Code.MODEL_ANSWER_INVALID, message=what, error_class=ErrorClass.INVALID)


def _name_of(tool: object) -> str:
    return tool if isinstance(tool, str) else str(getattr(tool, "name", None) or getattr(tool, "__name__", tool))
