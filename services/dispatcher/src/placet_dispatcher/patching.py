"""Decides how a plan under way is changed: what a patch may touch, who is asked about it, and when it takes effect.

A patch adds tasks, and changes or takes out such as have not begun. The whole plan must be a plan afterwards. It goes
before the `plan_patch` gate; where that says nothing, before the plan gate, as the plan would become: what has been
approved as a plan is not changed behind the reviewer's back. While people think nothing more is admitted; what they
have rejected, and what no longer fits the plan, changes nothing, and the run goes on as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from placet import limits
from placet.canonical import digest
from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.facts import Facts
from placet.gates import Boundary, Judgement
from placet.instants import Instant
from placet.machine import Receipt, Reply, Transition, absorb
from placet.messages import PatchPlan
from placet.plans import PlannedTask, plan_digest
from placet.values import PrincipalKind
from placet_dispatcher.asking import Place, ask, asks, is_free, live, named, patch_content, patch_subject, plan_subject
from placet_dispatcher.draft import Draft, gate_failure
from placet_dispatcher.graph import in_order
from placet_dispatcher.interrupting import is_theirs
from placet_dispatcher.planning import checked
from placet_dispatcher.states import Patch, PatchEntry, PendingRequest, RunState, Task

_PLACE = re.compile(r"/tasks/(\d+)(.*)")
_CHANGEABLE = ("goal", "tasks")
"""Modes whose plan may change: a frozen plan is carried out exactly, and one that is given out is not under way."""


def patched(state: RunState, message: PatchPlan, facts: Facts, now_ms: Instant) -> Draft | Transition[RunState]:
    """The run with the patch applied or put to people, to be brought forward; or the answer to a repeat.

    Raises ContractError: RUN_NOT_FOUND (also for whose run it is not), PATCH_EXISTS, RUN_TERMINAL, SUBMISSION_INVALID,
    PLAN_BUSY (something is decided about the plan), PLAN_CHANGED (it is not the one at `base`), those of
    `planning.checked` with `pointer` into the patch, GATE_DENIED, GATE_FAILED, and those of `asking.ask`.
    """
    if not is_theirs(state, message.by):
        raise ContractError(Code.RUN_NOT_FOUND, f"there is no run {state.run_id}")
    content = digest(message.model_dump(mode="json", include={"base", "add", "change", "remove", "reason"}))
    known = next((each for each in state.patches if each.patch_id == message.patch_id), None)
    if known is not None:
        return _again(state, known, content)
    _check_run(state)
    draft = Draft(state, facts, now_ms)
    before = plan_digest(live(draft))
    if message.base not in ("", before):
        told = f"the plan is not the one that the patch is for: its digest is {before}"
        raise ContractError(Code.PLAN_CHANGED, told, pointer="/base", plan=before)
    new = _completed(draft, message)
    ids = {task.id for task in message.add}, {task.id for task in message.change}
    patch = Patch(
        patch_id=message.patch_id,
        by=message.by,
        base=before,
        add=tuple(task for task in new if task.id in ids[0]),
        change=tuple(next(task for task in new if task.id == given.id) for given in message.change),
        remove=message.remove,
        reason=message.reason,
    )
    _put_before_gate(draft, patch, new, content)
    return draft


def accepted(draft: Draft) -> Reply:
    """The answer to a patch that was applied, or that people are asked about."""
    entry = draft.state.patches[-1]
    return Reply(_receipt(draft.state, entry, "accepted").model_copy(update={"recorded_at_ms": draft.now_ms}))


def refusal(error: ContractError, run_id: str) -> Transition[RunState]:
    """Why a patch was not taken, told to whoever proposed it. Nothing is changed by it."""
    answer = {Code.RUN_NOT_FOUND: "not_found", Code.RUN_TERMINAL: "closed", Code.PATCH_EXISTS: "conflict"}
    denied = error.code in (Code.GATE_DENIED, Code.NO_REVIEWER)
    failure = Failure(
        code=error.code,
        message=error.message,
        error_class=ErrorClass.DENIED if denied else ErrorClass.INVALID,
        pointer=error.pointer,
        details={name: value for name, value in error.details.items() if value not in (None, [])},
    )
    told = Receipt(answer=answer.get(error.code, "refused"), run_id=run_id, failure=failure)
    return Transition("refused", None, (Reply(told),), failure=failure)


def _receipt(state: RunState, entry: PatchEntry, answer: str) -> Receipt:
    return Receipt(
        answer=answer,
        run_id=state.run_id,
        status=state.status,
        outcome=None if entry.outcome == "asked" else entry.outcome,
        request_id=entry.request_id,
    )


def _again(state: RunState, known: PatchEntry, content: str) -> Transition[RunState]:
    if known.content_digest != content:
        told = f"the patch {known.patch_id} says something else: choose another id"
        raise ContractError(Code.PATCH_EXISTS, told, pointer="/patch_id")
    return absorb("proposed already", Reply(_receipt(state, known, "duplicate")))


def _check_run(state: RunState) -> None:
    if state.is_over:
        raise ContractError(Code.RUN_TERMINAL, f"the run {state.run_id} has ended: it is {state.status}")
    if state.mode not in _CHANGEABLE:
        raise ContractError(Code.SUBMISSION_INVALID, f"the plan of a run in mode {state.mode!r} is not changed")
    if state.ending is not None or state.phase != "working":
        raise ContractError(
            Code.PLAN_BUSY, "the plan is not under way: the run is planned, decided or answered just now"
        )
    if state.patch is not None:
        raise ContractError(
            Code.PLAN_BUSY, f"the patch {state.patch.patch_id} is decided first", patch=state.patch.patch_id
        )
    if any(request.scope == "task_round" for request in state.requests):
        raise ContractError(Code.PLAN_BUSY, "the next round is decided first")
    if len(state.patches) >= limits.PATCHES_MAX:
        raise ContractError(Code.PLAN_INVALID, f"a plan is changed at most {limits.PATCHES_MAX} times")


# ── what the plan would become ─────────────────────────────────────────────────────────


def _completed(draft: Draft, message: PatchPlan) -> tuple[PlannedTask, ...]:
    """The tasks of the plan as they would be, checked and completed in whole."""
    if not (message.add or message.change or message.remove):
        raise ContractError(Code.PLAN_INVALID, "the patch changes nothing", pointer="")
    _check_names(draft, message)
    return _checked(draft, message.add, message.change, message.remove)


def _check_names(draft: Draft, message: PatchPlan) -> None:
    positions = {task.id: at for at, task in enumerate(draft.tasks)}
    for at, task in enumerate(message.add):
        if task.id in positions:
            raise ContractError(Code.PLAN_INVALID, f"there is a task {task.id!r} already", pointer=f"/add/{at}/id")
    seen: set[str] = set()
    changed = [(f"/change/{at}/id", task.id) for at, task in enumerate(message.change)]
    for pointer, name in (*changed, *((f"/remove/{at}", name) for at, name in enumerate(message.remove))):
        if name not in positions or draft.tasks[positions[name]].removed:
            raise ContractError(Code.PLAN_INVALID, f"there is no task {name!r} in the plan", pointer=pointer)
        if name in seen:
            raise ContractError(Code.PLAN_INVALID, f"the patch names {name!r} twice", pointer=pointer)
        seen.add(name)
        if not is_free(draft, positions[name]):
            status = draft.tasks[positions[name]].status
            told = f"the task {name!r} is not to be touched: it is {status}, approved, or asked about"
            raise ContractError(Code.PLAN_INVALID, told, pointer=pointer)


def _checked(
    draft: Draft, add: Iterable[PlannedTask], change: Iterable[PlannedTask], remove: Iterable[str]
) -> tuple[PlannedTask, ...]:
    """Raises ContractError as `planning.checked`, with pointers into the patch."""
    given, gone, added = {task.id: task for task in change}, set(remove), list(add)
    kept: list[PlannedTask] = [given.get(task.id, task) for task in live(draft) if task.id not in gone]
    team = draft.team()
    if team is None:
        raise ContractError(Code.PLAN_INVALID, f"the team {draft.state.team!r} is gone", pointer="")
    if len(draft.tasks) + len(added) > limits.TASKS_MAX:
        raise ContractError(Code.PLAN_INVALID, f"a plan has at most {limits.TASKS_MAX} tasks", pointer="/add")
    try:
        whole = checked([_plain(task) for task in (*kept, *added)], team, draft.tool)
    except ContractError as error:
        pointer = _pointer(error.pointer or "", kept, list(given))
        raise ContractError(error.code, error.message, pointer=pointer, **error.details) from error
    status = {task.id: task.status for task in draft.tasks}
    for at, task in enumerate(whole):
        if at < len(kept) and task.id not in given:
            continue
        for to, dependency in enumerate(task.depends_on):
            if status.get(dependency) in ("failed", "skipped"):
                told = f"task {task.id!r} depends on {dependency!r}, which is {status[dependency]}"
                pointer = _pointer(f"/tasks/{at}/depends_on/{to}", kept, list(given))
                raise ContractError(Code.PLAN_INVALID, told, pointer=pointer)
    return whole


def _plain(task: PlannedTask) -> PlannedTask:
    return PlannedTask(**{name: getattr(task, name) for name in PlannedTask.model_fields})


def _pointer(pointer: str, kept: list[PlannedTask], changed: list[str]) -> str:
    """Where it stands in the patch; what the patch does not mention fails because of what it takes out."""
    found = _PLACE.fullmatch(pointer)
    if found is None:
        return ""
    at, rest = int(found[1]), found[2]
    if at >= len(kept):
        return f"/add/{at - len(kept)}{rest}"
    return f"/change/{changed.index(kept[at].id)}{rest}" if kept[at].id in changed else "/remove"


# ── before the gate ────────────────────────────────────────────────────────────────────


def _put_before_gate(draft: Draft, patch: Patch, new: tuple[PlannedTask, ...], content: str) -> None:
    judgement = draft.facts.judge(Boundary.PLAN_PATCH, patch_subject(draft, patch))
    if judgement is None:
        judgement = draft.facts.judge(Boundary.PLAN, plan_subject(draft, new))
    entry = PatchEntry(patch_id=patch.patch_id, content_digest=content, outcome="applied")
    if judgement is None or judgement.verdict == "allow":
        _apply(draft, patch, new)
    elif judgement.verdict == "suspend":
        request_id = _ask(draft, patch, judgement)
        entry = entry.model_copy(update={"outcome": "asked", "request_id": request_id})
        draft.change(patch=patch)
    else:
        code = Code.GATE_DENIED if judgement.verdict == "deny" else Code.GATE_FAILED
        failure = gate_failure(judgement, code, "this change of the plan")
        raise ContractError(code, failure.message, **failure.details)
    draft.change(patches=(*draft.state.patches, entry))


def _ask(draft: Draft, patch: Patch, judgement: Judgement) -> str:
    parts = (
        ("add", [task.id for task in patch.add]),
        ("change", [task.id for task in patch.change]),
        ("take out", list(patch.remove)),
    )
    what = "; ".join(f"{word} {named(ids)}" for word, ids in parts if ids)
    person = patch.by.id if patch.by.kind is PrincipalKind.HUMAN else ""
    request = ask(
        draft,
        patch_content(draft, patch),
        judgement,
        f"change the plan: {what}",
        place=Place("", 1, person),
    )
    return request.request_id


# ── what people said ───────────────────────────────────────────────────────────────────


def settle(draft: Draft, request: PendingRequest) -> None:
    """Act upon the decision about the patch: apply it, if it is still what was approved; else the plan stays."""
    patch = draft.state.patch
    if patch is None:
        return
    draft.change(patch=None)
    outcome = request.decision or ""
    if outcome == "approved":
        outcome = "applied" if _is_applied(draft, patch, request) else "stale"
    if outcome != "applied":
        draft.audit("plan.patch_dropped", patch.patch_id, outcome=outcome, request_id=request.request_id)
    draft.change(
        patches=tuple(
            each.model_copy(update={"outcome": outcome, "request_id": request.request_id})
            if each.patch_id == patch.patch_id
            else each
            for each in draft.state.patches
        )
    )


def _is_applied(draft: Draft, patch: Patch, request: PendingRequest) -> bool:
    """Whether the approved patch was applied: compared letter by letter, and checked by today's tools and grants."""
    try:
        if not asks(request, patch_content(draft, patch)):
            return False
        new = _checked(draft, patch.add, patch.change, patch.remove)
    except ContractError:
        return False
    _apply(draft, patch, new)
    return True


# ── applying ───────────────────────────────────────────────────────────────────────────


def _apply(draft: Draft, patch: Patch, new: tuple[PlannedTask, ...]) -> None:
    """Change the plan. What was taken out stays in the run's memory as skipped, so that positions and history hold."""
    by_id, added = {task.id: task for task in new}, {task.id for task in patch.add}
    gone = Failure(
        code=Code.CANCELLED,
        message=f"taken out of the plan by the patch {patch.patch_id}",
        error_class=ErrorClass.CANCELLED,
    )
    changed = {task.id for task in patch.change}
    for position, task in enumerate(draft.tasks):
        if task.id in patch.remove:
            draft.end_task(position, "skipped", failure=gone)
            draft.change_task(position, removed=True)
        elif task.id in changed:
            fields = by_id[task.id]
            draft.change_task(position, **{name: getattr(fields, name) for name in PlannedTask.model_fields})
    draft.tasks += [Task(**dict(by_id[task.id])) for task in patch.add if task.id in added]
    _count(draft)
    draft.audit(
        "plan.patched",
        patch.patch_id,
        by=patch.by.id,
        plan=plan_digest(live(draft)),
        base=patch.base,
        added=[task.id for task in patch.add],
        changed=[task.id for task in patch.change],
        removed=list(patch.remove),
    )


def _count(draft: Draft) -> None:
    """Who waits for whom, and who is ready, from the plan as it is now."""
    index = {task.id: position for position, task in enumerate(draft.tasks)}
    dependents: list[list[int]] = [[] for _ in draft.tasks]
    waiting = [0] * len(draft.tasks)
    for position, task in enumerate(draft.tasks):
        if task.removed:
            continue
        for dependency in task.depends_on:
            dependents[index[dependency]].append(position)
            waiting[position] += draft.tasks[index[dependency]].status != "succeeded"
    for position in range(len(draft.tasks)):
        draft.change_task(position, dependents=tuple(dependents[position]), waiting=waiting[position])
    ready = (
        position
        for position, task in enumerate(draft.tasks)
        if task.status == "pending" and not task.waiting and position not in draft.cleared
    )
    draft.ready = in_order(draft.tasks, ready)
