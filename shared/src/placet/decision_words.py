"""Decides which words fit which question, and what each has to say besides: a value, a reason, or nothing more.

The same for every door. What a door can tell early it tells early; what counts is what the approval rules say.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from placet import limits
from placet.canonical import canonical_text, parse_canonical
from placet.contents import Content, PlanContent, QuestionContent, ToolCallContent
from placet.errors import Code, ContractError
from placet.messages import DecisionWord, invalid
from placet.plans import PlannedTask
from placet.requests import Scope
from placet.strict_json import JsonValue

WORDS_FOR: Mapping[Scope, tuple[DecisionWord, ...]] = {
    "plan": ("approve", "reject", "edit", "request_changes"),
    "task_round": ("approve", "reject"),
    "task_dispatch": ("approve", "reject"),
    "tool_call": ("approve", "reject", "edit", "respond", "request_changes"),
    "operation_outcome": ("executed", "not_executed"),
    "question": ("respond", "reject"),
    "plan_patch": ("approve", "reject"),
}
"""Only where somebody listens: rounds and dispatches are the scheduler's, which cannot be talked to."""
_TASKS: TypeAdapter[tuple[PlannedTask, ...]] = TypeAdapter(tuple[PlannedTask, ...])
ALL_WORDS = tuple(dict.fromkeys(word for words in WORDS_FOR.values() for word in words))


def words_for(scope: Scope | None) -> tuple[DecisionWord, ...]:
    """The words that answer a question of that scope; all there are where it is not known."""
    return ALL_WORDS if scope is None else WORDS_FOR[scope]


def value_text_of(value: JsonValue) -> str:
    """A value as it is signed and stored. Raises ContractError of `canonical_text`, TOO_LARGE; `pointer` is into it."""
    text = canonical_text(value, depth_max=limits.CONTENT_DEPTH_MAX)
    if len(text.encode()) > limits.VALUE_BYTES_MAX:
        raise ContractError(Code.TOO_LARGE, f"the value has more than {limits.VALUE_BYTES_MAX} bytes", pointer="")
    return text


def check_said(word: str, value_text: str | None, reason: str | None) -> JsonValue:
    """What a word of any question must come with; the value, which is None where none is taken.

    Raises ContractError(APPROVAL_VALIDATION_ERROR); `pointer` is `/value` or `/reason`, or lies within the value.
    """
    takes = word in ("edit", "respond")
    if (value_text is not None) != takes:
        told = f"{word} needs a value" if takes else f"{word} takes no value: what is approved is what was shown"
        raise _refusal("/value", told)
    if word == "request_changes" and not (reason or "").strip():
        raise _refusal("/reason", "say what should be changed: the agent is told just that")
    if value_text is None:
        return None
    if len(value_text.encode(errors="surrogatepass")) > limits.VALUE_BYTES_MAX:
        raise _refusal("/value", f"the value has more than {limits.VALUE_BYTES_MAX} bytes")
    try:
        value = parse_canonical(value_text, depth_max=limits.CONTENT_DEPTH_MAX)
    except ContractError as error:
        raise _refusal(f"/value{error.pointer or ''}", f"the value: {error.message}") from error
    if word == "edit" and not isinstance(value, dict):
        raise _refusal("/value", "an edited input is an object: the whole of it, not what differs")
    return value


def check_value(content: Content, word: str, value: JsonValue) -> None:
    """Whether a value answers this very question. Raises ContractError(APPROVAL_VALIDATION_ERROR) as `check_said`.

    An edited input is held against the tool's schema by the run, which knows the application; here is only looked at
    what the question itself says.
    """
    match content:
        case ToolCallContent() if word == "edit":
            if canonical_text(value) == canonical_text(content.raw_input):
                raise _refusal("/value", "nothing is changed: approve it as it is")
        case PlanContent() if word == "edit":
            tasks_of(value)
        case QuestionContent() if word == "respond":
            # Loaded where an answer is checked, and nowhere else: it takes longer than everything else here.
            from placet.forms import check_answer, form_of

            try:
                check_answer(form_of(content), value)
            except ContractError as error:
                raise _refusal(f"/value{error.pointer or ''}", f"the answer does not fit: {error.message}") from error
        case _:
            return


def editable(content: Content) -> dict[str, JsonValue] | None:
    """What a person changes of a question, as the value of an edit is to be: the whole of it. None: nothing of it."""
    if isinstance(content, ToolCallContent):
        return dict(content.raw_input)
    if not isinstance(content, PlanContent):
        return None
    tasks: list[JsonValue] = []
    for task in content.tasks:
        plain: dict[str, JsonValue] = {"id": task.id, "title": task.title, "description": task.description}
        plain |= {"assignee": task.assignee} if task.assignee else {}
        plain |= {"depends_on": list(task.depends_on)} if task.depends_on else {}
        plain |= {"priority": task.priority} if task.priority else {}
        plain |= {"call": {"tool": task.call.tool_name, "input": task.call.input}} if task.call else {}
        tasks.append(plain)
    return {"tasks": tasks}


def tasks_of(value: JsonValue) -> tuple[PlannedTask, ...]:
    """The tasks of an edited plan. Raises ContractError(APPROVAL_VALIDATION_ERROR) with a pointer for what is none."""
    if not isinstance(value, dict) or set(value) != {"tasks"}:
        raise _refusal("/value", 'an edited plan is {"tasks": […]}: all of its tasks')
    try:
        return _TASKS.validate_json(canonical_text(value["tasks"]))
    except ValidationError as error:
        found = invalid(error, Code.APPROVAL_VALIDATION_ERROR)
        raise _refusal(f"/value/tasks{found.pointer or ''}", f"no plan: {found.message}") from error


def _refusal(pointer: str, message: str) -> ContractError:
    return ContractError(Code.APPROVAL_VALIDATION_ERROR, message, pointer=pointer)
