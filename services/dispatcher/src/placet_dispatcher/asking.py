"""Decides what a person is asked on behalf of a run, and whether an answer still fits what the run would do now.

The reviewed content is made from the state alone. So it can be made again when the answer comes, and a plan, a round,
a task or a call that is no longer the reviewed one is not let through (D08-D12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

from pydantic import ValidationError

from placet import limits
from placet.calls import ToolSpec
from placet.canonical import canonical_string
from placet.contents import (
    CallSnapshot,
    Content,
    PlanContent,
    PlanPatchContent,
    TaskDispatchContent,
    TaskRoundContent,
    TaskSnapshot,
    ToolCallContent,
    boundary_of,
)
from placet.errors import Code, ContractError
from placet.gates import Judgement, PlanPatchSubject, PlanSubject, RoundSubject, TaskSubject
from placet.instants import Instant, later, rfc3339
from placet.messages import RUN, RequestApproval, invalid
from placet.plans import PlannedTask, plan_digest
from placet.requests import ApprovalRequest, create_request, hash_of_text, request_hash
from placet.strict_json import parse
from placet_dispatcher.draft import Draft
from placet_dispatcher.states import Call, Patch, PendingRequest, RunState, Task
from placet_dispatcher.words import cut

RESULTS_BYTES_MAX = limits.CONTENT_BYTES_MAX // 4
"""What the results of a round's completed tasks may take of the content that a person reads."""
NAMED_MAX = 8
"""Tasks named in the short form of a question."""


P = ParamSpec("P")


# ── content, from the state alone ──────────────────────────────────────────────────────


def checked_content(make: Callable[P, Content]) -> Callable[P, Content]:
    """Content that cannot be asked about raises ContractError APPROVAL_VALIDATION_ERROR, as `create_request` does."""

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Content:
        try:
            return make(*args, **kwargs)
        except ValidationError as error:
            raise invalid(error, Code.APPROVAL_VALIDATION_ERROR) from error

    return made


def _snapshot(state: RunState, task: Task, result_bytes_max: int | None = None) -> TaskSnapshot:
    planned_at = rfc3339(Instant(state.planned_at_ms or state.submitted_at_ms))
    return TaskSnapshot(
        id=task.id,
        title=task.title,
        description=task.description,
        status=task.status,
        created_at=planned_at,
        updated_at=planned_at if task.ended_at_ms is None else rfc3339(Instant(task.ended_at_ms)),
        assignee=task.assignee,
        depends_on=task.depends_on,
        priority=task.priority,
        result=None if result_bytes_max is None or task.output is None else cut(task.output, result_bytes_max),
        call=None if task.call is None else CallSnapshot(tool_name=task.call.tool, input=task.call.input),
    )


@checked_content
def plan_content(state: RunState, tasks: Iterable[Task]) -> Content:
    """The whole plan, and whether it is to be executed or only given out."""
    return PlanContent(
        tasks=tuple(_snapshot(state, task) for task in tasks if not task.removed),
        continuation="plan_only" if state.mode == "plan_only" else "execute",
    )


@checked_content
def round_content(state: RunState, completed: list[Task], upcoming: list[Task]) -> Content:
    """What the round just ended brought, and what comes next."""
    share = min(limits.RESULT_BYTES_MAX, RESULTS_BYTES_MAX // max(len(completed), 1))
    return TaskRoundContent(
        completed_tasks=tuple(_snapshot(state, task, share) for task in completed),
        next_tasks=tuple(_snapshot(state, task) for task in upcoming),
    )


@checked_content
def dispatch_content(state: RunState, task: Task) -> Content:
    """One task about to start."""
    return TaskDispatchContent(task=_snapshot(state, task))


@checked_content
def call_content(
    task_id: str, call: Call, raw_input: dict[str, Any], validated: dict[str, Any], *, consequential: bool
) -> Content:
    """One tool call about to be made."""
    return ToolCallContent(
        tool_name=call.tool,
        raw_input=raw_input,
        input=validated,
        agent_name=call.agent,
        task_id=task_id,
        tool_call_id=call.tool_call_id,
        consequential=consequential,
    )


def asks_call(request: PendingRequest, task_id: str, call: Call, *, consequential: bool) -> bool:
    """Whether `request` is the question about this call, as `asks` says of its content.

    Its inputs are canonical JSON already, so the content's text is put together from them (in the order of its keys)
    instead of reading them and writing them again. The hash of an approved content is met by that content alone.
    """
    q = canonical_string
    text = (
        f'{{"agentName":{q(call.agent)},"consequential":{"true" if consequential else "false"},'
        f'"input":{call.input_text},"kind":"tool_call","rawInput":{call.raw_input_text},"taskId":{q(task_id)},'
        f'"toolCallId":{q(call.tool_call_id)},"toolName":{q(call.tool)}}}'
    )
    boundary = f"{task_id}:{call.tool_call_id}"
    return boundary == request.boundary and hash_of_text("tool_call", boundary, text) == request.request_hash


def read_object(text: str) -> dict[str, Any]:
    """An object from its canonical text, where a double such as 1e20 stands as an integer. Raises ContractError."""
    value = parse(text, long_integers_are_doubles=True)
    if not isinstance(value, dict):
        raise ContractError(Code.TOOL_INPUT_INVALID, "the input is not an object")
    return value


def round_tasks(draft: Draft) -> tuple[list[Task], list[Task]]:
    """The tasks that succeeded in the round just ended, and those of the next, in plan order."""
    completed = [draft.tasks[position] for position in sorted(draft.state.round_done)]
    return completed, [draft.tasks[position] for position in sorted(draft.ready)]


def content_now(draft: Draft, request: PendingRequest) -> Content | None:
    """What the run would ask today in place of a plan's, a round's or a dispatch's question; None where nothing.

    Raises ContractError for a state that cannot be asked about at all.
    """
    if request.scope == "plan":
        return plan_content(draft.state, draft.tasks) if draft.state.phase == "deciding" else None
    if request.scope == "task_round":
        return round_content(draft.state, *round_tasks(draft))
    if request.scope == "plan_patch":
        return None if draft.state.patch is None else patch_content(draft, draft.state.patch)
    if request.scope == "task_dispatch" and request.position in draft.ready:
        return dispatch_content(draft.state, draft.tasks[request.position])
    return None


def live(draft: Draft) -> list[Task]:
    """The tasks of the plan, without those that a patch has taken out."""
    return [task for task in draft.tasks if not task.removed]


def is_free(draft: Draft, position: int) -> bool:
    """Whether nothing has been done, allowed or asked about a task: only then may a patch touch it."""
    task = draft.tasks[position]
    asked = position in draft.cleared or any(request.position == position for request in draft.requests)
    return task.status == "pending" and task.past is None and not task.removed and not asked


@checked_content
def patch_content(draft: Draft, patch: Patch) -> Content:
    """The change of the plan. Raises ContractError PLAN_CHANGED where the plan is not what the patch assumes."""
    positions = {task.id: at for at, task in enumerate(draft.tasks)}
    touched = [positions.get(name) for name in (*(task.id for task in patch.change), *patch.remove)]
    if plan_digest(live(draft)) != patch.base or not all(at is not None and is_free(draft, at) for at in touched):
        told = "the plan is no longer what the patch assumes: look at it again, and propose the patch anew"
        raise ContractError(Code.PLAN_CHANGED, told)
    old = [draft.tasks[at] for at in touched if at is not None]
    new = [Task.model_validate(task.model_dump()) for task in (*patch.add, *patch.change)]
    return PlanPatchContent(
        patch_id=patch.patch_id,
        base=patch.base,
        added=tuple(_snapshot(draft.state, task) for task in new[: len(patch.add)]),
        changed=tuple(_snapshot(draft.state, task) for task in new[len(patch.add) :]),
        replaced=tuple(_snapshot(draft.state, task) for task in old[: len(patch.change)]),
        removed=tuple(_snapshot(draft.state, task) for task in old[len(patch.change) :]),
        reason=patch.reason,
        proposed_by=patch.by.id,
    )


def asks(request: PendingRequest, content: Content) -> bool:
    """Whether `request` is the question about this content: boundary and hash, letter by letter."""
    boundary = boundary_of(content)
    return boundary == request.boundary and request_hash(content.kind, boundary, content) == request.request_hash


def is_still_asked(draft: Draft, request: PendingRequest) -> bool:
    """Whether the run, as it is now, would put exactly this question about its plan, its round or a task."""
    try:
        content = content_now(draft, request)
        return content is not None and asks(request, content)
    except ContractError:
        return False


# ── asking ─────────────────────────────────────────────────────────────────────────────


class Place(NamedTuple):
    """Whose place a question takes."""

    request_id: str
    generation: int
    """Of the question that takes it."""
    requesters: str = ""
    """Who has edited what is asked, one person id a line."""


def ask(
    draft: Draft,
    content: Content,
    judgement: Judgement,
    what: str,
    *,
    position: int | None = None,
    operation_id: str = "",
    tool: ToolSpec | None = None,
    place: Place | None = None,
) -> ApprovalRequest:
    """Put a question to people, durably. Raises ContractError where it cannot be put: too large to be read
    (APPROVAL_VALIDATION_ERROR), or nobody could ever agree (NO_REVIEWER)."""
    state, now_ms = draft.state, draft.now_ms
    _check_roster(draft, content, judgement, place)
    expires_at = None if judgement.expires_after_ms is None else later(now_ms, judgement.expires_after_ms)
    use_by = None if judgement.use_within_ms is None else later(expires_at or now_ms, judgement.use_within_ms)
    request = create_request(
        tenant=state.tenant,
        run_id=state.run_id,
        scope=content.kind,
        boundary=boundary_of(content),
        content=content,
        requested_at_ms=now_ms,
        reason=judgement.reason,
        initiator=state.initiating_person,
        operation_id=operation_id,
        tool_version=tool.version if tool else "",
        tool_schema_digest=tool.schema_digest if tool else "",
        policy_version=judgement.policy_version,
        app_version=draft.facts.app_version,
        expires_at_ms=expires_at,
        use_by_ms=use_by,
        quorum=judgement.quorum,
        asker_machine=RUN,
        generation=place.generation if place else 1,
        supersedes=place.request_id if place else "",
        requesters=place.requesters if place else "",
        remind_at_ms=_remind_at(judgement, now_ms, expires_at),
        rule=judgement.rule,
        policy_digest=judgement.policy_digest,
        reviewers="\n".join(judgement.reviewers or ()),
    )
    draft.requests.append(
        PendingRequest(
            scope=request.scope,
            boundary=request.boundary,
            request_id=request.request_id,
            request_hash=request.request_hash,
            what=what,
            position=position,
            operation_id=operation_id or None,
            asked_at_ms=now_ms,
            generation=request.generation,
            requesters=request.requesters,
            on_expiry=judgement.on_expiry,
        )
    )
    draft.send(
        RequestApproval(tenant=state.tenant, run_id=state.run_id, request_id=request.request_id, request=request)
    )
    if not operation_id or place:  # the leaf of an operation's proposal names its first question
        draft.audit(
            "approval.requested",
            request.request_id,
            scope=request.scope,
            boundary=request.boundary,
            request_hash=request.request_hash,
            rule=judgement.rule,
            policy=judgement.policy_digest or None,
            supersedes=request.supersedes or None,
        )
    return request


def _check_roster(draft: Draft, content: Content, judgement: Judgement, place: Place | None) -> None:
    """Refuse what nobody could ever let happen: it would wait in silence (public_failures 88)."""
    if judgement.reviewers is None:
        return
    asking = set((place.requesters if place else "").split("\n"))
    if content.kind != "question":  # whoever started the run may answer, but not approve
        asking.add(draft.state.initiating_person.strip())
    able = [person for person in judgement.reviewers if person not in asking]
    if len(able) < judgement.quorum:
        who = f"only {', '.join(able)} may decide" if able else "nobody may decide"
        told = f"nobody can let this happen: {judgement.quorum} must agree, and {who} what {judgement.rule} asks"
        raise ContractError(Code.NO_REVIEWER, told, rule=judgement.rule, quorum=judgement.quorum)


def _remind_at(judgement: Judgement, now_ms: Instant, expires_at_ms: Instant | None) -> int | None:
    """No reminder of what expires sooner than that."""
    if judgement.remind_before_ms is None or expires_at_ms is None:
        return None
    at_ms = expires_at_ms - judgement.remind_before_ms
    return at_ms if at_ms > now_ms else None


# ── what gates look at ─────────────────────────────────────────────────────────────────


def task_subject(task: PlannedTask) -> TaskSubject:
    """A task as gates see it."""
    return TaskSubject(
        id=task.id,
        title=task.title,
        description=task.description,
        assignee=task.assignee,
        depends_on=task.depends_on,
    )


def plan_subject(draft: Draft, tasks: Iterable[PlannedTask] | None = None) -> PlanSubject:
    """The plan as gates see it; `tasks`: as it would become."""
    state = draft.state
    return PlanSubject(
        run_id=state.run_id,
        team=state.team,
        goal=state.goal,
        tasks=tuple(task_subject(task) for task in (live(draft) if tasks is None else tasks)),
        continuation="plan_only" if state.mode == "plan_only" else "execute",
        initiator=state.initiator.id,
    )


def round_subject(draft: Draft, completed: list[Task], upcoming: list[Task]) -> RoundSubject:
    """A round as gates see it."""
    return RoundSubject(
        run_id=draft.state.run_id,
        team=draft.state.team,
        completed=tuple(task_subject(task) for task in completed),
        next=tuple(task_subject(task) for task in upcoming),
        initiator=draft.state.initiator.id,
    )


def patch_subject(draft: Draft, patch: Patch) -> PlanPatchSubject:
    """A change of the plan as gates see it."""
    state, removed = draft.state, set(patch.remove)
    return PlanPatchSubject(
        run_id=state.run_id,
        team=state.team,
        goal=state.goal,
        tasks=tuple(task_subject(task) for task in live(draft)),
        added=tuple(task_subject(task) for task in patch.add),
        changed=tuple(task_subject(task) for task in patch.change),
        removed=tuple(task_subject(task) for task in live(draft) if task.id in removed),
        reason=patch.reason,
        proposed_by=patch.by.id,
        initiator=state.initiator.id,
    )


def named(tasks: Iterable[Task | str]) -> str:
    """The tasks' ids in a few words."""
    ids = [task if isinstance(task, str) else task.id for task in tasks]
    more = len(ids) - NAMED_MAX
    return ", ".join(ids if more <= 0 else [*ids[:NAMED_MAX], f"{more} more"])
