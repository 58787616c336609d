"""Decides what exactly a person is asked to approve: the reviewed content, its hash and its identity.

The hash is SHA-256 over the canonical JSON of `{scope, boundary, content}` and nothing else; the id is made from run,
scope, boundary and hash. Both equal those of the other implementation that speaks this format, hence the camelCase
names of content on the wire. Everything that is not data of the proposal (tool version, policy, deadline, who asked)
stands beside the hash, in fields of its own.

Content is stored as its canonical *text*: the bytes that are shown are the bytes that are hashed and executed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, ConfigDict, Field, StrictStr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from placet import limits
from placet.canonical import canonical_text, digest_of_text, parse_canonical
from placet.errors import Code, ContractError, PlacetError, TerminalError
from placet.ids import derived_id
from placet.strict_json import JsonValue, name_of, pointer_of
from placet.values import Value

Scope = Literal["plan", "task_round", "task_dispatch", "tool_call", "operation_outcome"]

PLAN_BOUNDARY = "coordinator-plan"
"""The one boundary of every plan, as in the interoperating implementation."""
REQUEST_VERSION = 1
"""Version of the row. A row of another version is not understood, hence not believed."""

_UNSEEN = re.compile("[\\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_HASH = re.compile(r"[0-9a-f]{64}")


# ── the reviewed content ───────────────────────────────────────────────────────────────


def _fault_of_name(name: str, chars_max: int) -> str | None:
    """Why the text cannot name something, or None. One line, nothing invisible, no white space around."""
    if not name.strip():
        return "is blank"
    if len(name) > chars_max:
        return f"has {len(name)} characters, at most {chars_max} are allowed"
    if name != name.strip():
        return "has white space around it"
    unseen = next((found for found in _UNSEEN.finditer(name) if found.group() != " "), None)
    return f"holds U+{ord(unseen.group()):04X}, which cannot be seen" if unseen else None


def _checked_name(name: str) -> str:
    fault = _fault_of_name(name, limits.NAME_CHARS_MAX)
    if fault is not None:
        raise PydanticCustomError("name", "{fault}", {"fault": fault})
    return name


def _checked_title(title: str) -> str:
    if not title.strip():
        raise PydanticCustomError("title", "is blank")
    return title


def _checked_instant(text: str) -> str:
    try:
        known = _RFC3339.fullmatch(text) is not None and datetime.fromisoformat(text) is not None
    except ValueError:
        known = False
    if not known:
        raise PydanticCustomError("instant", "is not an instant of RFC 3339 such as 2026-08-08T00:00:00.000Z")
    return text


def _is_none(value: object) -> bool:
    return value is None


_Name = Annotated[StrictStr, AfterValidator(_checked_name)]
_Title = Annotated[StrictStr, AfterValidator(_checked_title)]
_InstantText = Annotated[StrictStr, AfterValidator(_checked_instant)]
_JsonObject: TypeAlias = dict[str, JsonValue]


def _absent() -> Any:
    """A field that is left out of the content, not null, where it is None."""
    return Field(default=None, exclude_if=_is_none)


class _Reviewed(Value):
    """Base of content: snake_case in Python, camelCase wherever it is written. Values are carried as they are."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )


class TaskSnapshot(_Reviewed):
    """A task as it stood when the question was put."""

    id: _Name
    title: _Title
    description: str
    status: _Name
    created_at: _InstantText
    updated_at: _InstantText
    assignee: _Name | None = _absent()
    depends_on: Annotated[tuple[_Name, ...], Field(strict=False)] | None = _absent()
    priority: str | int | None = _absent()
    result: str | None = _absent()
    role: str | None = _absent()
    metadata: _JsonObject | None = _absent()
    # Known to the interoperating implementation only; carried so that its requests can be checked here.
    memory_scope: str | None = _absent()
    dependency_payload: str | None = _absent()
    requires: JsonValue = _absent()
    max_retries: int | None = _absent()
    retry_delay_ms: int | float | None = _absent()
    retry_backoff: int | float | None = _absent()
    superseded_by_revision: int | None = _absent()
    recovered_by_revision: int | None = _absent()


_Tasks = Annotated[tuple[TaskSnapshot, ...], Field(strict=False, max_length=limits.TASKS_MAX)]


class PlanContent(_Reviewed):
    """May this plan be executed, or (`plan_only`) be given out as the result?"""

    kind: Literal["plan"] = "plan"
    tasks: _Tasks
    continuation: Literal["execute", "plan_only"]


class TaskRoundContent(_Reviewed):
    """May the next round of tasks begin, given what was completed?"""

    kind: Literal["task_round"] = "task_round"
    completed_tasks: _Tasks
    next_tasks: _Tasks


class TaskDispatchContent(_Reviewed):
    """May this one task be given to its agent?"""

    kind: Literal["task_dispatch"] = "task_dispatch"
    task: TaskSnapshot


class ToolCallContent(_Reviewed):
    """May this one tool call be made? `input` is the validated input, with defaults: what is executed."""

    kind: Literal["tool_call"] = "tool_call"
    tool_name: _Name
    raw_input: _JsonObject
    input: _JsonObject
    agent_name: _Name
    task_id: _Name
    tool_call_id: _Name
    consequential: bool


class OperationOutcomeContent(_Reviewed):
    """Did it happen? Asked of a person when the outcome of an attempt is unknown. Ours; others do not know it.

    `started_at` tells one attempt from another, so that a later attempt is a new question.
    """

    kind: Literal["operation_outcome"] = "operation_outcome"
    operation_id: _Name
    tool_name: _Name
    input: _JsonObject
    agent_name: _Name
    task_id: _Name
    tool_call_id: _Name
    started_at: _InstantText
    reason: str


Content = Annotated[
    PlanContent | TaskRoundContent | TaskDispatchContent | ToolCallContent | OperationOutcomeContent,
    Field(discriminator="kind"),
]
"""The reviewed content, told apart by `kind`, which equals the scope of its request."""

_KINDS: dict[str, type[Any]] = {
    "plan": PlanContent,
    "task_round": TaskRoundContent,
    "task_dispatch": TaskDispatchContent,
    "tool_call": ToolCallContent,
    "operation_outcome": OperationOutcomeContent,
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


def agent_of(content: Content) -> str:
    """Whose proposal it is: the agent's name, or empty where it is the planner's or the scheduler's."""
    match content:
        case ToolCallContent() | OperationOutcomeContent():
            return content.agent_name
        case TaskDispatchContent():
            return content.task.assignee or ""
        case PlanContent() | TaskRoundContent():
            return ""


def content_text(content: Content | Mapping[str, JsonValue]) -> str:
    """The canonical JSON of content, typed or as plain JSON. Raises ContractError as `check_json_value` does."""
    plain = dict(content) if isinstance(content, Mapping) else content.model_dump()
    return canonical_text(plain, depth_max=limits.CONTENT_DEPTH_MAX)


# ── hash and identity ──────────────────────────────────────────────────────────────────


def request_hash(scope: str, boundary: str, content: Content | Mapping[str, JsonValue]) -> str:
    """The hash a decision must quote: 64 lower-case hexadecimal digits.

    Computes only: whether boundary and content belong together is for `create_request` and `verify_request` to say.
    """
    return _hash_of_text(scope, boundary, content_text(content))


def _hash_of_text(scope: str, boundary: str, text: str) -> str:
    # The keys of the hashed object in canonical order, its content canonical already.
    return digest_of_text(f'{{"boundary":{canonical_text(boundary)},"content":{text},"scope":{canonical_text(scope)}}}')


def request_id(run_id: str, scope: str, boundary: str, request_hash: str) -> str:
    """`apr_` and 32 digits. Equal content in two runs has one hash and two ids."""
    return derived_id("apr", run_id, scope, boundary, request_hash)


class ApprovalRequest(Value):
    """The frozen question. Made by `create_request`; believed only after `verify_request`."""

    version: int = REQUEST_VERSION
    tenant: str
    request_id: str
    run_id: str
    scope: Scope
    boundary: str
    content_text: str
    """The reviewed content as canonical JSON: what is shown, hashed and executed."""
    request_hash: str
    requested_at_ms: int
    reason: str | None = None
    """Why it is asked, in the gate's words; unchecked. None where none was given; empty is kept."""
    initiator: str = ""
    """Person id of who started the run, for the separation of duties; empty where no person did."""
    agent_name: str = ""
    operation_id: str = ""
    tool_version: str = ""
    tool_schema_digest: str = ""
    policy_version: str = ""
    app_version: str = ""
    expires_at_ms: int | None = None
    """From this instant on the question is expired; None: never."""
    use_by_ms: int | None = None
    """From this instant on an approval no longer starts anything; None: never."""
    quorum: int = 1
    """How many different people must approve. Frozen with the question."""
    asker_machine: str = ""
    asker_key: str = ""
    """Which state is told the outcome."""


# ── creation ───────────────────────────────────────────────────────────────────────────


def create_request(
    *,
    tenant: str,
    run_id: str,
    scope: str,
    boundary: str,
    content: Content | Mapping[str, Any],
    requested_at_ms: int,
    reason: str | None = None,
    initiator: str = "",
    agent_name: str = "",
    operation_id: str = "",
    tool_version: str = "",
    tool_schema_digest: str = "",
    policy_version: str = "",
    app_version: str = "",
    expires_at_ms: int | None = None,
    use_by_ms: int | None = None,
    quorum: int = 1,
    asker_machine: str = "",
    asker_key: str = "",
    content_bytes_max: int = limits.CONTENT_BYTES_MAX,
) -> ApprovalRequest:
    """The request, checked in full, so that nothing malformed is refused only later. Content is copied.

    `run_id` and `boundary` are trimmed. `agent_name` is taken from the content where it is not given.

    Raises ContractError APPROVAL_VALIDATION_ERROR; `pointer` is `/run_id`, `/content/rawInput/env` and the like.
    """
    run_id = _identity("run_id", run_id, limits.RUN_ID_CHARS_MAX)
    boundary = _identity("boundary", boundary, limits.CONTENT_BYTES_MAX)
    checked, text = _checked_content(content, content_bytes_max)
    if scope != checked.kind:
        raise _refusal("scope", f"scope {scope!r} does not fit content of kind {checked.kind!r}")
    if boundary != boundary_of(checked):
        raise _refusal("boundary", f"boundary {boundary!r} does not belong to the content, {boundary_of(checked)!r} does")
    named = agent_of(checked)
    if agent_name and named and agent_name != named:
        raise _refusal("agent_name", f"agent_name {agent_name!r} differs from the content's {named!r}")
    hashed = _hash_of_text(scope, boundary, text)
    beside = {
        "reason": reason,
        "initiator": initiator,
        "agent_name": agent_name or named,
        "operation_id": operation_id,
        "tool_version": tool_version,
        "tool_schema_digest": tool_schema_digest,
        "policy_version": policy_version,
        "app_version": app_version,
        "asker_machine": asker_machine,
        "asker_key": asker_key,
    }
    for field, value in beside.items():
        _check_text(field, value, optional=field == "reason")
    _check_times(requested_at_ms, expires_at_ms, use_by_ms)
    _check_whole("quorum", quorum, 1)
    return ApprovalRequest(
        tenant=_identity("tenant", tenant, limits.NAME_CHARS_MAX),
        request_id=request_id(run_id, scope, boundary, hashed),
        run_id=run_id,
        scope=checked.kind,
        boundary=boundary,
        content_text=text,
        request_hash=hashed,
        requested_at_ms=requested_at_ms,
        expires_at_ms=expires_at_ms,
        use_by_ms=use_by_ms,
        quorum=quorum,
        **beside,
    )
