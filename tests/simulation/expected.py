"""Decides how a predictable run must end: computed from the workload alone, without a machine, a message or a clock.

Whatever befalls the processes, the store and the messages on the way, a run that nobody contradicts or cancels has one
possible end: its status, its answer, and every effect exactly once.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from placet.calls import ToolCall
from placet.canonical import canonical_text
from placet.contents import ToolCallContent, boundary_of
from placet.ids import tool_call_id
from placet.messages import ANSWER_THREAD, task_thread
from placet.plans import PlannedTask
from placet.strict_json import parse
from tests.simulation.application import LOOK, SimApplication, judgement
from tests.simulation.faults import FAULTS
from tests.simulation.workload import RunPlan, Workload, edited

HARMFUL = frozenset(("freeze", "clock_jumps", "tool_changed", "model_fails", "model_hangs", "model_blunders")) | {
    name for name in FAULTS if name.startswith(("tool_", "gate_"))
}
"""Faults after which a run may rightly end otherwise: the tool or the model said so, or was not waited for. A process
that stands still may hear of an answer when it waits no more, and a leap of the clock makes a request too late."""
HARMLESS = frozenset(FAULTS) - HARMFUL
"""Faults that must change nothing about how a predictable run ends."""


class End(NamedTuple):
    """How a run ends."""

    status: str
    answer: str | None
    effects: Counter[tuple[str, str, str]]
    """By task, tool and input; reads are none."""


class _Task(NamedTuple):
    ok: bool
    output: str
    code: str
    """Of the failure: rejected, expired, or failed."""


def expected(workload: Workload, run: RunPlan) -> End:
    """The one possible end of a run."""
    gate = judgement(run.gates.get("plan", "none"))
    if gate is not None and gate.verdict == "suspend":
        fate = workload.fate(run.run_id, "plan", "coordinator-plan", run.gates["plan"])
        if fate == "silent":
            return End("expired" if run.submit.timeout_ms is None else "timed_out", None, Counter())
        verdict = "allow" if fate == "approve" else "deny"
    else:
        verdict = "allow" if gate is None else gate.verdict
    if verdict != "allow":
        return End("rejected" if verdict == "deny" else "failed", None, Counter())
    if run.submit.mode == "plan_only":
        return End("succeeded", _plan_text(run.plan), Counter())
    effects: Counter[tuple[str, str, str]] = Counter()
    tasks: dict[str, _Task] = {}
    for task in run.plan:  # dependencies stand before their dependents
        if all(dependency in tasks and tasks[dependency].ok for dependency in task.depends_on):
            tasks[task.id] = (
                _direct(workload, run, task, effects) if task.call else _agents(workload, run, task, effects)
            )
    failed = [task for task in tasks.values() if not task.ok]
    if failed:
        codes = {task.code for task in failed}
        return End(next(code for code in ("failed", "rejected", "expired") if code in codes), None, effects)
    if run.submit.mode == "goal" and len(run.plan) > 1:
        return End("succeeded", str(run.says[ANSWER_THREAD][0]), effects)
    depended_on = {dependency for task in run.plan for dependency in task.depends_on}
    last = [task.id for task in run.plan if task.id not in depended_on]
    if len(last) == 1:
        return End("succeeded", tasks[last[0]].output, effects)
    return End("succeeded", canonical_text({task_id: tasks[task_id].output for task_id in last}), effects)


def _plan_text(tasks: tuple[PlannedTask, ...]) -> str:
    plain: list[Any] = [task.model_dump(mode="json") for task in tasks]
    return canonical_text({"version": 1, "tasks": plain})


def _direct(workload: Workload, run: RunPlan, task: PlannedTask, effects: Counter[tuple[str, str, str]]) -> _Task:
    assert task.call is not None
    call = ToolCall(call_id="direct", tool=task.call.tool, input_text=canonical_text(task.call.input))
    said = _call(workload, run, task, call, tool_call_id(0, 0, "direct"), set(), effects)
    ok = said in ("made", "respond") or said.startswith("{")
    output = {"respond": "done by hand", "made": _validated(call.input_text) or ""}.get(said, said)
    codes = {"rejected": "rejected", "deny": "rejected", "request_changes": "rejected", "silent": "expired"}
    return _Task(ok, output if ok else "", codes.get(said, "failed"))


def _agents(workload: Workload, run: RunPlan, task: PlannedTask, effects: Counter[tuple[str, str, str]]) -> _Task:
    script = run.says[task_thread(task.id)]
    rejected: set[tuple[str, str]] = set()
    for turn, calls in enumerate(script, start=1):
        if isinstance(calls, str):
            return _Task(True, calls, "")
        refused: set[tuple[str, str]] = set()
        seen: set[str] = set()
        for at, call in enumerate(calls):
            if call.call_id in seen:
                continue
            seen.add(call.call_id)
            said = _call(workload, run, task, call, tool_call_id(turn, at, call.call_id), rejected, effects)
            if said == "rejected":
                refused.add((call.tool, _validated(call.input_text) or ""))
        rejected |= refused
    raise AssertionError("a script ends with words")


def _call(
    workload: Workload,
    run: RunPlan,
    task: PlannedTask,
    call: ToolCall,
    call_id: str,
    rejected: set[tuple[str, str]],
    effects: Counter[tuple[str, str, str]],
) -> str:
    """`made`; the input that it was made with, where a person has edited it; or why not."""
    validated = _validated(call.input_text)
    if call.tool not in workload.profile.tools or validated is None:
        return "invalid"
    if (call.tool, validated) in rejected:
        return "rejected before"
    value = json.loads(validated)
    judged = judgement(value["gate"])
    verdict = judged.verdict if judged is not None else "allow" if call.tool == LOOK else "suspend"
    if verdict == "suspend":
        content = ToolCallContent(
            tool_name=call.tool,
            raw_input={},
            input=value,
            agent_name="ann",
            task_id=task.id,
            tool_call_id=call_id,
            consequential=call.tool != LOOK,
        )
        fate = workload.fate(run.run_id, "tool_call", boundary_of(content), value["gate"])
        if fate == "edit":
            made = canonical_text({**value, **edited(json.loads(call.input_text))})
            if call.tool != LOOK:
                effects[task.id, call.tool, made] += 1
            return made
        if fate != "approve":
            return "rejected" if fate == "reject" else fate
    elif verdict != "allow":
        return verdict
    if call.tool != LOOK:
        effects[task.id, call.tool, validated] += 1
    return "made"


def _validated(input_text: str) -> str | None:
    """The input as today's schema reads it; None where it is none."""
    try:
        raw = parse(input_text or "{}")
    except Exception:  # noqa: BLE001  # whatever is wrong with it, the call is not made
        return None
    read = SimApplication({}, attempts_max=1).validate_input("", raw) if isinstance(raw, dict) else None
    return canonical_text(read) if isinstance(read, dict) else None
