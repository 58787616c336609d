"""Decides whether a plan becomes the run's plan, and whether work on it may begin: the plan gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placet.calls import ToolSpec
from placet.errors import Code, ContractError
from placet.gates import Boundary
from placet.plans import PlannedTask, TeamSpec, check_plan, plan_text
from placet.strict_json import check_json_value
from placet_dispatcher.asking import Place, ask, named, plan_content, plan_subject
from placet_dispatcher.draft import Draft, gate_failure
from placet_dispatcher.graph import first_ready, planted


def checked(
    tasks: Sequence[PlannedTask], team: TeamSpec, tool: Callable[[str], ToolSpec | None]
) -> tuple[PlannedTask, ...]:
    """The tasks as `plans.check_plan` completes them, and every direct call within reach of the team.

    Raises ContractError as `check_plan` and `check_inputs` do, TOOL_UNKNOWN and TOOL_NOT_GRANTED; `pointer` names the
    place.
    """
    check_inputs(tasks)
    complete = check_plan(tasks, team)
    for at, task in enumerate(complete):
        if task.call is None:
            continue
        pointer, name = f"/tasks/{at}/call/tool", task.call.tool
        if tool(name) is None:
            text = f"task {task.id!r} calls {name!r}, which is no tool"
            raise ContractError(Code.TOOL_UNKNOWN, text, pointer=pointer)
        if team.agent_with(name, task.assignee) is None:
            whom = f"not granted to {task.assignee!r}" if task.assignee else f"granted to no agent of {team.name!r}"
            text = f"task {task.id!r} calls {name!r}, which is {whom}"
            raise ContractError(Code.TOOL_NOT_GRANTED, text, pointer=pointer)
    return complete


def check_inputs(tasks: Sequence[PlannedTask]) -> None:
    """Refuse inputs of direct calls that JSON cannot carry, which only a caller in this process can send.

    Raises ContractError JSON_* with the pointer of the value.
    """
    for at, task in enumerate(tasks):
        if task.call is not None:
            try:
                check_json_value(task.call.input)
            except ContractError as error:
                pointer = f"/tasks/{at}/call/input{error.pointer or ''}"
                raise ContractError(error.code, f"task {task.id!r}: {error.message}", pointer=pointer) from error


def adopt(draft: Draft, planned: Sequence[PlannedTask]) -> None:
    """Make a checked plan the run's own, and put it before its gate."""
    draft.tasks = list(planted(planned))
    draft.change(planned_at_ms=draft.now_ms)
    put_before_gate(draft)


def put_before_gate(draft: Draft) -> None:
    """Ask the plan gate whether work on the run's plan may begin."""
    draft.change(phase="deciding")
    judgement = draft.facts.judge(Boundary.PLAN, plan_subject(draft))
    if judgement is None or judgement.verdict == "allow":
        begin(draft)
    elif judgement.verdict == "suspend":
        what = f"{'give out' if draft.state.mode == 'plan_only' else 'carry out'} a plan: {named(draft.tasks)}"
        try:
            ask(draft, plan_content(draft.state, draft.tasks), judgement, what, place=_place(draft))
        except ContractError as error:
            draft.end_now("failed", error.failure())
    elif judgement.verdict == "deny":
        draft.end_now("rejected", gate_failure(judgement, Code.GATE_DENIED, "this plan"))
    else:
        draft.end_now("failed", gate_failure(judgement, Code.GATE_FAILED, "this plan"))


def _place(draft: Draft) -> Place | None:
    """The place of the plan that a person wanted changed."""
    state = draft.state
    return Place(state.plan_asked, state.plan_generation + 1) if state.plan_asked else None


def begin(draft: Draft) -> None:
    """The plan may go ahead: its first tasks become ready, or, with `plan_only`, it is the answer."""
    if draft.state.mode == "plan_only":
        draft.change(answer=plan_text(draft.tasks))
        draft.end_now("succeeded", None)
        return
    draft.change(phase="working")
    draft.ready = first_ready(draft.tasks)
