"""Decides what reviewed content may be: one closed shape for each kind of question.

Written with the camelCase names that the interoperating implementation uses, since the names are part of what is
hashed. JSON within (`rawInput`, `input`, `metadata`) is carried as it is: 1 stays 1 and true stays true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, StrictStr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from placet import limits
from placet.errors import Code, ContractError
from placet.strict_json import Path, name_of, pointer_of
from placet.values import Value

PLAN_BOUNDARY = "coordinator-plan"
"""The one boundary of every plan, as in the interoperating implementation."""

_UNSEEN = re.compile("(?! )[\\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def fault_of_name(name: str, chars_max: int = limits.NAME_CHARS_MAX) -> str | None:
    """Why a text cannot name something, or None. A name is one line, with nothing invisible and no space around it."""
    if not name.strip():
        return "is blank"
    if len(name) > chars_max:
        return f"has {len(name)} characters, at most {chars_max} are allowed"
    if name != name.strip():
        return "has white space around it"
    unseen = _UNSEEN.search(name)
    return f"holds U+{ord(unseen.group()):04X}, which cannot be seen" if unseen else None


def _name(name: str) -> str:
    fault = fault_of_name(name)
    if fault is not None:
        raise PydanticCustomError("name", "{fault}", {"fault": fault})
    return name


def _title(title: str) -> str:
    if not title.strip():
        raise PydanticCustomError("title", "is blank")
    return title


def _instant_text(text: str) -> str:
    try:
        known = _RFC3339.fullmatch(text) is not None and datetime.fromisoformat(text) is not None
    except ValueError:
        known = False
    if not known:
        raise PydanticCustomError("instant", "is not an instant of RFC 3339 such as 2026-08-08T00:00:00.000Z")
    return text


def _is_none(value: object) -> bool:
    return value is None


def _absent() -> Any:
    """A field that is left out of the content, never null, where it is None."""
    return Field(default=None, exclude_if=_is_none)


ContentName = Annotated[StrictStr, AfterValidator(_name)]
Title = Annotated[StrictStr, AfterValidator(_title)]
InstantText = Annotated[StrictStr, AfterValidator(_instant_text)]
JsonObject: TypeAlias = dict[str, JsonValue]


class Reviewed(Value):
    """Base of content: snake_case in Python, camelCase wherever it is written."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )


class CallSnapshot(Reviewed):
    """The tool call that a task without an agent consists of."""

    tool_name: ContentName
    input: JsonObject


class TaskSnapshot(Reviewed):
    """A task as it stood when the question was put. What is None is absent from the content, and from the hash."""

    id: ContentName
    title: Title
    description: str
    status: ContentName
    created_at: InstantText
    updated_at: InstantText
    assignee: ContentName | None = _absent()
    depends_on: Annotated[tuple[ContentName, ...], Field(strict=False)] | None = _absent()
    priority: str | int | None = _absent()
    result: str | None = _absent()
    role: str | None = _absent()
    metadata: JsonObject | None = _absent()
    call: CallSnapshot | None = _absent()
    """Ours: a reviewer of a plan sees the calls that it makes directly."""
    # Known to the interoperating implementation only; carried so that its requests can be checked here.
    memory_scope: str | None = _absent()
    dependency_payload: str | None = _absent()
    requires: JsonValue = _absent()
    max_retries: int | None = _absent()
    retry_delay_ms: int | float | None = _absent()
    retry_backoff: int | float | None = _absent()
    superseded_by_revision: int | None = _absent()
    recovered_by_revision: int | None = _absent()


Tasks = Annotated[tuple[TaskSnapshot, ...], Field(strict=False, max_length=limits.TASKS_MAX)]


class PlanContent(Reviewed):
    """May this plan be executed, or (`plan_only`) be given out as the result?"""

    kind: Literal["plan"] = "plan"
    tasks: Tasks
    continuation: Literal["execute", "plan_only"]


class TaskRoundContent(Reviewed):
    """May the next round of tasks begin, given what was completed?"""

    kind: Literal["task_round"] = "task_round"
    completed_tasks: Tasks
    next_tasks: Tasks


class TaskDispatchContent(Reviewed):
    """May this one task be given to its agent?"""

    kind: Literal["task_dispatch"] = "task_dispatch"
    task: TaskSnapshot


class ToolCallContent(Reviewed):
    """May this one tool call be made? `input` is the validated input, with defaults: what is executed."""

    kind: Literal["tool_call"] = "tool_call"
    tool_name: ContentName
    raw_input: JsonObject
    input: JsonObject
    agent_name: ContentName
    task_id: ContentName
    tool_call_id: ContentName
    consequential: bool


class OperationOutcomeContent(Reviewed):
    """Did it happen? Asked of a person when the outcome of an attempt is unknown. Ours; others do not know it.

    `started_at` tells one attempt from another, so that the doubt about a later one is a new question.
    """

    kind: Literal["operation_outcome"] = "operation_outcome"
    operation_id: ContentName
    tool_name: ContentName
    input: JsonObject
    agent_name: ContentName
    task_id: ContentName
    tool_call_id: ContentName
    started_at: InstantText
    reason: str


class QuestionContent(Reviewed):
    """What is the answer? Asked by an agent. It approves nothing: no call is made because of it. Ours.

    `answer_schema`: a JSON schema within the words of `placet.forms`; absent: any text.
    """

    kind: Literal["question"] = "question"
    question: Title
    options: Annotated[tuple[StrictStr, ...], Field(strict=False)] | None = _absent()
    answer_schema: JsonObject | None = _absent()
    agent_name: ContentName
    task_id: ContentName
    tool_call_id: ContentName


class PlanPatchContent(Reviewed):
    """May the plan under way be changed so? Ours.

    `base`: the digest of the plan that is changed. `changed`: tasks as they would be; `replaced`: as they are now.
    """

    kind: Literal["plan_patch"] = "plan_patch"
    patch_id: ContentName
    base: ContentName
    added: Tasks
    changed: Tasks
    replaced: Tasks
    removed: Tasks
    reason: str
    proposed_by: ContentName


Content = Annotated[
    PlanContent
    | TaskRoundContent
    | TaskDispatchContent
    | ToolCallContent
    | OperationOutcomeContent
    | QuestionContent
    | PlanPatchContent,
    Field(discriminator="kind"),
]
"""The reviewed content, told apart by `kind`, which equals the scope of its request."""

_KINDS: dict[str, Any] = {
    "plan": PlanContent,
    "task_round": TaskRoundContent,
    "task_dispatch": TaskDispatchContent,
    "tool_call": ToolCallContent,
    "operation_outcome": OperationOutcomeContent,
    "question": QuestionContent,
    "plan_patch": PlanPatchContent,
}


def boundary_of(content: Content) -> str:
    """The place in a run that the content belongs to; with the hash and the run it makes the request's identity."""
    match content:
        case PlanContent():
            return PLAN_BOUNDARY
        case TaskRoundContent():
            completed = ",".join(task.id for task in content.completed_tasks)
            return f"{completed}->{','.join(task.id for task in content.next_tasks)}"
        case TaskDispatchContent():
            return content.task.id
        case ToolCallContent():
            return f"{content.task_id}:{content.tool_call_id}"
        case OperationOutcomeContent():
            return f"outcome:{content.operation_id}"
        case QuestionContent():
            return f"question:{content.task_id}:{content.tool_call_id}"
        case PlanPatchContent():
            return f"plan-patch:{content.patch_id}"


def agent_of(content: Content) -> str:
    """Whose proposal it is: the agent's name, or empty where it is the planner's or the scheduler's."""
    match content:
        case ToolCallContent() | OperationOutcomeContent() | QuestionContent():
            return content.agent_name
        case TaskDispatchContent():
            return content.task.assignee or ""
        case PlanContent() | TaskRoundContent() | PlanPatchContent():
            return ""


def read_content(plain: Mapping[str, Any]) -> Content:
    """Content from JSON that `check_json_value` has already taken.

    Raises ContractError APPROVAL_VALIDATION_ERROR: unknown kind, missing or unknown field, wrong type, blank name, null
    where a field may only be absent. The message names the place, `pointer` starts at the content.
    """
    kind = plain.get("kind")
    shape = _KINDS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise _refusal(["kind"], f"{kind!r} is not one of {', '.join(_KINDS)}")
    try:
        # By alias only: the Python spelling of a name is not content, though our own code may build it so.
        content: Content = shape.model_validate(dict(plain), by_alias=True, by_name=False)
    except ValidationError as error:
        raise _first_finding(error, plain) from None
    for path in _nulls(plain):
        raise _refusal(path, "is null: leave the field out")
    return content


def _refusal(path: Path, reason: str) -> ContractError:
    return ContractError(Code.APPROVAL_VALIDATION_ERROR, f"{name_of(path)}: {reason}", pointer=pointer_of(path))


def _first_finding(error: ValidationError, plain: Mapping[str, Any]) -> ContractError:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "missing":
        return _refusal(first["loc"], "is missing")
    path = _place(first["loc"], plain)
    if first["type"] != "extra_forbidden":
        return _refusal(path, first["msg"][:1].lower() + first["msg"][1:])
    if path[-1] == "verify":
        return _refusal(path, "live verification does not survive in a request, so such a task cannot wait for one")
    return _refusal(path, f"is no field of content of kind {plain['kind']}")


def _place(loc: Path, plain: Any) -> list[str | int]:
    """The part of a finding's location that is a path in the document; members of unions are named after it."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(part, int) if isinstance(plain, list | tuple) else isinstance(plain, Mapping) and part in plain:
            plain = plain[part]
            path.append(part)
    return path


def _nulls(plain: Mapping[str, Any]) -> Iterator[Path]:
    """Places in tasks where a field that may be absent was given as null: absent and null hash differently."""
    for field in ("tasks", "completedTasks", "nextTasks", "added", "changed", "replaced", "removed"):
        for at, task in enumerate(plain.get(field, ())):
            yield from ((field, at, name) for name, value in task.items() if value is None)
    yield from (("task", name) for name, value in plain.get("task", {}).items() if value is None)
    yield from ((name,) for name in ("options", "answerSchema") if name in plain and plain[name] is None)
