"""Decides what happens next in a run: what is released, what goes on, what is admitted, and when it is over.

Nothing is admitted while any request is undecided; what is in flight goes on until it ends or needs something
admitted itself. So a run that waits for people drains first and then holds nothing at all.
"""

from __future__ import annotations

from placet import limits
from placet.calls import ToolResult, ToolResults, UserText
from placet.canonical import canonical_text
from placet.errors import Code, ContractError, ErrorClass, Failure, require
from placet.gates import Boundary, DispatchSubject
from placet.messages import ANSWER_THREAD, task_thread
from placet_dispatcher.asking import (
    ask,
    dispatch_content,
    live,
    named,
    round_content,
    round_subject,
    round_tasks,
    task_subject,
)
from placet_dispatcher.decisions import release
from placet_dispatcher.draft import Draft, gate_failure
from placet_dispatcher.graph import fail, in_order, skip_dependents, succeed
from placet_dispatcher.proposals import propose, propose_direct
from placet_dispatcher.states import Ending, Past, Task
from placet_dispatcher.words import answer_again_text, answer_text, task_text

BUDGET = Ending(
    status="budget_exhausted",
    failure=Failure(code=Code.BUDGET, message="the team's tokens for one run are spent", error_class=ErrorClass.BUDGET),
    more_turns=False,
)
_REJECTED = frozenset({Code.APPROVAL_REJECTED, Code.APPROVAL_REVOKED, Code.GATE_DENIED})


def advance(draft: Draft) -> None:
    """Bring the run as far as it can go by itself, and say how it stands."""
    going = True
    while going and not draft.state.is_over:
        release(draft)
        going = _settle(draft)
        if draft.state.phase == "working" and draft.state.ending is None and not draft.is_undecided:
            going = _admit(draft) or going
    _conclude(draft)


# ── what goes on ───────────────────────────────────────────────────────────────────────


def _settle(draft: Draft) -> bool:
    """Let every task at work go on whose calls are all answered. Whether anything did."""
    held = {each.thread_id for each in draft.state.held} if draft.state.ending is None else set()
    answered = [position for position in draft.active if _is_answered(draft.tasks[position])]
    answered = [position for position in answered if task_thread(draft.tasks[position].id) not in held]
    for position in answered:
        _go_on(draft, position)
    return bool(answered)


def _is_answered(task: Task) -> bool:
    return not task.thinking and bool(task.calls) and all(call.status == "done" for call in task.calls)


def _go_on(draft: Draft, position: int) -> None:
    task, ending = draft.tasks[position], draft.state.ending
    is_held = any(held.thread_id == task_thread(task.id) for held in draft.state.held)
    if task.call is not None:
        call = task.calls[0]
        if call.ok:
            succeed(draft, position, call.text)
        elif task.halted:
            give_up(draft, position)
        else:
            fail(draft, position, call.failure or Failure(code=Code.TOOL_FAILED, message=call.text))
    elif task.halted or (ending is not None and (is_held or not ending.more_turns)):
        give_up(draft, position)
    elif draft.is_over_budget:
        draft.end_soon(BUDGET)
        give_up(draft, position)
    elif task.turn >= limits.TURNS_MAX:
        limit = f"the task has taken {limits.TURNS_MAX} turns, which is the most a task may take"
        fail(draft, position, Failure(code=Code.TURN_LIMIT, message=limit))
    else:
        _next_turn(draft, position)


def give_up(draft: Draft, position: int) -> None:
    """The run is ending and the task cannot come to its own end."""
    draft.end_task(position, "skipped")
    skip_dependents(draft, position)


def _next_turn(draft: Draft, position: int) -> None:
    task = draft.tasks[position]
    results = tuple(ToolResult(call_id=call.call_id, tool=call.tool, ok=call.ok, text=call.text) for call in task.calls)
    source = None if task.past is None else task.past.source
    draft.change_task(position, turn=task.turn + 1, thinking=True, calls=(), past=None)
    said = ToolResults(results=results)
    draft.take_turn(task_thread(task.id), task.turn + 1, "work", task.assignee or "", said, forked_from=source)


# ── what is admitted ───────────────────────────────────────────────────────────────────


def _admit(draft: Draft) -> bool:
    """Start what may start. Whether anything did.

    Direct calls are proposed only after everything that may start has started: each was admitted when nothing was
    undecided, so three gated calls side by side become three questions, not one after the other.
    """
    if (draft.ready or draft.cleared) and draft.is_over_budget:
        draft.end_soon(BUDGET)
        return True
    if draft.state.round_gate:
        _open_round(draft)
    started: list[int] = []
    while len(draft.active) < limits.TASKS_AT_WORK_MAX:
        position = _next_admitted(draft)
        if position is None:
            break
        _start(draft, position)
        started.append(position)
    for position in started:
        task = draft.tasks[position]
        if task.call is not None:
            propose_direct(draft, position, task.call)
        elif task.past is not None:
            propose(draft, position, task.past.calls)
    return bool(started)


def _next_admitted(draft: Draft) -> int | None:
    if draft.cleared:
        return draft.cleared.pop(0)
    if draft.state.round_gate or not draft.ready:
        return None
    return draft.ready.pop(0) if _dispatch_is_allowed(draft, draft.ready[0]) else None


def _dispatch_is_allowed(draft: Draft, position: int) -> bool:
    """Ask the dispatch gate; its no ends the run, its doubt is put to a person. Those behind are not asked (E13)."""
    state, task = draft.state, draft.tasks[position]
    subject = DispatchSubject(
        run_id=state.run_id, team=state.team, task=task_subject(task), initiator=state.initiator.id
    )
    judgement = draft.facts.judge(Boundary.DISPATCH, subject)
    if judgement is None or judgement.verdict == "allow":
        return True
    if judgement.verdict == "suspend":
        try:
            ask(draft, dispatch_content(state, task), judgement, f"start task {task.id}", position=position)
        except ContractError as error:
            draft.end_soon(Ending(status="failed", failure=error.failure()))
    elif judgement.verdict == "deny":
        failure = gate_failure(judgement, Code.GATE_DENIED, f"the task {task.id!r}")
        draft.end_soon(Ending(status="rejected", failure=failure))
    else:
        failure = gate_failure(judgement, Code.GATE_FAILED, f"the task {task.id!r}")
        draft.end_soon(Ending(status="failed", failure=failure))
    return False


def _open_round(draft: Draft) -> None:
    """All ready tasks are the next round, once the last has ended. The gate is asked between rounds only (E08)."""
    if draft.active or draft.cleared or not draft.ready:
        return
    completed, upcoming = round_tasks(draft)
    if completed:
        judgement = draft.facts.judge(Boundary.ROUND, round_subject(draft, completed, upcoming))
        if judgement is not None and judgement.verdict != "allow":
            if judgement.verdict == "suspend":
                try:
                    content = round_content(draft.state, completed, upcoming)
                    ask(draft, content, judgement, f"start the next round: {named(upcoming)}")
                except ContractError as error:
                    draft.end_soon(Ending(status="failed", failure=error.failure()))
                return
            code, status = (
                (Code.GATE_DENIED, "rejected") if judgement.verdict == "deny" else (Code.GATE_FAILED, "failed")
            )
            draft.end_soon(Ending(status=status, failure=gate_failure(judgement, code, "the next round")))
            return
    draft.cleared = in_order(draft.tasks, draft.ready)
    draft.ready.clear()
    draft.change(round_done=())


def _start(draft: Draft, position: int) -> None:
    is_agents, past = draft.tasks[position].call is None, draft.tasks[position].past
    if is_agents and past is not None:
        _start_again(draft, position, past)
        return
    task = draft.change_task(
        position, status="running", started_at_ms=draft.now_ms, turn=int(is_agents), thinking=is_agents
    )
    draft.active.append(position)
    draft.audit("task.started", task.id, assignee=task.assignee)
    if is_agents:
        text = task_text(task, [draft.tasks[at] for at in draft.positions_of(task.depends_on)])
        draft.take_turn(task_thread(task.id), 1, "work", task.assignee or "", UserText(text=text))


def _start_again(draft: Draft, position: int, past: Past) -> None:
    """In a fork: the task goes on where it was, with its calls, or with the turn that was asked for."""
    thinking = not past.calls
    task = draft.change_task(
        position,
        status="running",
        started_at_ms=draft.now_ms,
        turn=past.turn,
        thinking=thinking,
        past=None if thinking else past,
    )
    draft.active.append(position)
    draft.audit("task.started", task.id, assignee=task.assignee, from_turn=past.turn)
    if thinking:
        thread = task_thread(task.id)
        draft.take_turn(thread, past.turn, "work", task.assignee or "", *past.append, forked_from=past.source)


# ── how it stands ──────────────────────────────────────────────────────────────────────


def _conclude(draft: Draft) -> None:
    state = draft.state
    if state.is_over:
        return
    ending = state.ending
    if ending is not None and not draft.is_in_flight and (ending.over_doubt or not draft.is_in_doubt):
        draft.end_now(ending.status, ending.failure)
        return
    waiting = draft.active or draft.ready or draft.cleared or draft.requests
    if state.ending is None and state.phase == "working" and not waiting:
        _complete(draft)
        if draft.state.is_over:
            return
    in_flight = draft.is_in_flight
    if draft.is_held and draft.is_over_budget and not in_flight and not draft.is_undecided:
        draft.end_now(BUDGET.status, BUDGET.failure)  # no instruction could lead on from here
        return
    waits = in_flight or draft.is_undecided or draft.is_held
    require(waits, "a run that has not ended waits for a model, a tool or a person")
    status = "suspended" if not in_flight else "planning" if draft.state.phase == "planning" else "running"
    draft.change(status=status)


def _complete(draft: Draft) -> None:
    """No task is left: the run has failed, or its answer is known or asked for."""
    failed = [task for task in draft.tasks if task.status == "failed"]
    if failed:
        draft.end_now(*_failed(failed))
    elif draft.state.mode == "goal" and len(live(draft)) > 1:
        if draft.is_over_budget:
            draft.end_now(BUDGET.status, BUDGET.failure)
            return
        _ask_for_answer(draft)
    else:
        draft.change(answer=_answer(live(draft)))
        draft.end_now("succeeded", None)


def _ask_for_answer(draft: Draft) -> None:
    """What is known already is not told a second time."""
    state = draft.state
    if state.answer_turn:
        since_ms = state.continuations[-1].at_ms if state.continuations else 0
        text = answer_again_text(task for task in draft.tasks if (task.ended_at_ms or 0) >= since_ms)
    else:
        text = answer_text(state, live(draft))
    turn = state.answer_turn + 1
    draft.change(phase="answering", answer_turn=turn)
    draft.take_turn(ANSWER_THREAD, turn, "answer", state.planner, UserText(text=text))


def _failed(failed: list[Task]) -> tuple[str, Failure]:
    """How a run with failed tasks ends: what people or gates refused is not reported as a failure, nor the reverse."""
    for task in failed:
        if task.failure is None or task.failure.code not in _REJECTED | {Code.APPROVAL_EXPIRED}:
            code = task.failure.code.value if task.failure else None
            message = f"task {task.id!r} failed: {task.failure.message if task.failure else 'no reason is known'}"
            details = {"task": task.id, "code": code, "failed": len(failed)}
            return "failed", Failure(code=Code.TASK_FAILED, message=message, details=details)
    refused = next((task for task in failed if task.failure and task.failure.code in _REJECTED), failed[0])
    require(refused.failure is not None, "a refused task says why")
    failure = refused.failure or Failure(code=Code.TASK_FAILED, message="")
    told = failure.model_copy(update={"message": f"task {refused.id!r}: {failure.message}"})
    return ("rejected" if failure.code in _REJECTED else "expired"), told


def _answer(tasks: list[Task]) -> str:
    """The output of the last task; where several are last, each by its id."""
    last = [task for task in tasks if not task.dependents]
    if len(last) == 1:
        return last[0].output or ""
    return canonical_text({task.id: task.output or "" for task in last})
