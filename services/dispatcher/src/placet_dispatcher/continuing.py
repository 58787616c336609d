"""Decides how a run goes on with a further instruction: in which conversation, from which ends, and what joins.

An instruction is taken in the conversation that it belongs to: the one of a task that is named; else the one that the
run's answer came from, or that it failed in. What was said there stays; a short note and the words follow. Cancelled,
rejected, expired, timed out and over its budget a run stays for ever; of a failed one, what failed goes on.
"""

from __future__ import annotations

from typing import NamedTuple

from placet import limits
from placet.calls import ChatMessage, ToolResult, ToolResults, UserText
from placet.canonical import digest
from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.facts import Facts
from placet.instants import Instant, later
from placet.machine import Receipt, Reply, Transition, absorb
from placet.messages import (
    ANSWER_THREAD,
    PLAN_THREAD,
    ContinueRun,
    Purpose,
    RunTimedOut,
    task_thread,
    turn_name,
)
from placet_dispatcher.draft import Draft
from placet_dispatcher.graph import revive_dependents
from placet_dispatcher.interrupting import in_work, is_theirs
from placet_dispatcher.states import Continuation, Held, RunState, Task
from placet_dispatcher.words import continuation_text

_GOES_ON = frozenset({"succeeded", "failed"})
"""Ends that a further instruction leads out of."""
_PLANNED = ("goal", "plan_only")


class _Place(NamedTuple):
    """A conversation that the instruction can be taken in."""

    thread_id: str
    turn: int
    """The last one that was taken there."""
    purpose: Purpose
    position: int | None = None
    """Of the task whose it is."""


def continued(state: RunState, message: ContinueRun, facts: Facts, now_ms: Instant) -> Draft | Transition[RunState]:
    """The run with the instruction taken in, to be brought forward; or why it is not.

    Raises ContractError: RUN_NOT_FOUND (also for whose run it is not), INSTRUCTION_EXISTS, SUBMISSION_INVALID,
    RUN_TERMINAL, TURN_BUSY (names the turn in work), TURN_MISMATCH, TURN_LIMIT, BUDGET.
    """
    if not is_theirs(state, message.by):
        raise ContractError(Code.RUN_NOT_FOUND, f"there is no run {state.run_id}")
    if not message.text.strip():
        raise ContractError(Code.SUBMISSION_INVALID, "an instruction has words", pointer="/instruction")
    content, said = _digests(message)
    known = next((each for each in state.continuations if each.instruction_id == message.instruction_id), None)
    if known is not None:
        return _again(state, known, content)
    joined = _joined(state, said)
    if joined is not None:
        return _join(state, message, joined, facts, now_ms)
    place = _place(state, message.task)
    _check_turn(place, message.after)
    draft = Draft(state, facts, now_ms)
    _check_means(draft, place)
    entry = Continuation(
        instruction_id=message.instruction_id,
        content_digest=content,
        said_digest=said,
        thread_id=place.thread_id,
        turn=place.turn + 1,
        at_ms=now_ms,
        span_ms=_span_ms(state, message),
    )
    _take(draft, message, place, entry)
    return draft


def accepted(draft: Draft) -> Reply:
    """The answer to an instruction that was taken in."""
    state, last = draft.state, draft.state.continuations[-1]
    turn = turn_name(last.thread_id, last.turn)
    told = Receipt(answer="accepted", run_id=state.run_id, status=state.status, turn=turn, recorded_at_ms=draft.now_ms)
    return Reply(told)


def _digests(message: ContinueRun) -> tuple[str, str]:
    """Of all that is wanted, and of what is said where."""
    content = digest(message.model_dump(mode="json", include={"text", "task", "after", "timeout_ms"}))
    return content, digest(message.model_dump(mode="json", include={"text", "task"}))


# ── the same instruction again ─────────────────────────────────────────────────────────


def _again(state: RunState, known: Continuation, content: str) -> Transition[RunState]:
    if known.content_digest != content:
        told = f"the instruction {known.instruction_id} says something else: choose another id"
        raise ContractError(Code.INSTRUCTION_EXISTS, told, pointer="/instruction_id")
    turn = turn_name(known.thread_id, known.turn)
    return absorb(
        "taken in already",
        Reply(Receipt(answer="duplicate", run_id=state.run_id, status=state.status, turn=turn)),
    )


def _joined(state: RunState, said: str) -> Continuation | None:
    """The instruction in work, where it says the same."""
    last = state.continuations[-1] if state.continuations else None
    return None if state.is_over or last is None or last.said_digest != said or state.held else last


def _join(
    state: RunState, message: ContinueRun, joined: Continuation, facts: Facts, now_ms: Instant
) -> Transition[RunState]:
    """One turn for both; the id is kept, so that a repeat of it is no new instruction either. Settings do not change
    while it runs, and who wants others is told (I22)."""
    turn = turn_name(joined.thread_id, joined.turn)
    if message.timeout_ms not in (None, joined.span_ms):
        told = f"{turn} is in work on this instruction with another timeout, which is not changed while it runs"
        raise ContractError(Code.TURN_BUSY, told, turn=turn, not_applied=["timeout_ms"])
    if message.after not in ("", turn_name(joined.thread_id, joined.turn - 1)):
        raise _mismatch(f"{turn} is in work on this instruction, and does not follow {message.after}", turn)
    _check_count(state)
    content, _ = _digests(message)
    also = joined.model_copy(update={"instruction_id": message.instruction_id, "content_digest": content})
    draft = Draft(state, facts, now_ms)
    draft.change(continuations=(*state.continuations, also))
    told_so = Receipt(answer="joined", run_id=state.run_id, status=state.status, turn=turn, recorded_at_ms=now_ms)
    return draft.moved(Reply(told_so))


# ── where ──────────────────────────────────────────────────────────────────────────────


def _place(state: RunState, task_id: str) -> _Place:
    if not state.is_over:
        return _held_place(state, task_id)
    if state.status not in _GOES_ON or _was_stopped(state):
        raise _ended(state)
    if task_id:
        return _task_place(state, task_id)
    if state.status == "failed":
        return _failed_place(state)
    if state.mode == "plan_only":
        return _plan_place(state)
    if len(state.tasks) > 1 and state.mode == "goal":
        return _answer_place(state)
    last = [at for at, task in enumerate(state.tasks) if not task.dependents and _talks(task)]
    return _only(state, last, "answered")


def _held_place(state: RunState, task_id: str) -> _Place:
    """The run has not ended: only a conversation that was interrupted takes an instruction."""
    if state.ending is not None:
        told = f"the run {state.run_id} is coming to its end, as {state.ending.status}: it takes no further instruction"
        raise ContractError(Code.RUN_TERMINAL, told)
    thread_id = task_thread(task_id) if task_id else ""
    waiting = [held for held in state.held if held.over and thread_id in ("", held.thread_id)]
    waiting = [held for held in waiting if not _has_open_calls(state, held)]
    if len(waiting) == 1:
        return _of_thread(state, waiting[0])
    if waiting:
        names = [held.thread_id.removeprefix("task:") for held in waiting]
        raise _which(names, "several tasks were interrupted")
    turns = [turn_name(*each) for each in in_work(state)]
    asked = [request.request_id for request in state.requests if request.decision is None]
    now = f"{', '.join(turns) or 'nothing'} in work" if turns or not asked else "waiting for a person"
    told = f"the run {state.run_id} is {state.status}, {now}: it takes a further instruction when that is done"
    # What waits for people is the turn that asked them.
    turn = turns[0] if turns else _asking_turn(state)
    raise ContractError(Code.TURN_BUSY, told, turn=turn, waiting_for=asked)


def _asking_turn(state: RunState) -> str | None:
    at_work = [state.tasks[at] for at in state.active if state.tasks[at].turn]
    return turn_name(task_thread(at_work[0].id), at_work[0].turn) if at_work else None


def _has_open_calls(state: RunState, held: Held) -> bool:
    return any(
        call.status != "done"
        for at in state.active
        if task_thread(state.tasks[at].id) == held.thread_id
        for call in state.tasks[at].calls
    )


def _of_thread(state: RunState, held: Held) -> _Place:
    if held.thread_id == PLAN_THREAD:
        return _plan_place(state)
    if held.thread_id == ANSWER_THREAD:
        return _answer_place(state)
    at = next(at for at in state.active if task_thread(state.tasks[at].id) == held.thread_id)
    return _Place(held.thread_id, state.tasks[at].turn, "work", at)


def _plan_place(state: RunState) -> _Place:
    return _Place(PLAN_THREAD, state.plan_turn, "plan")


def _answer_place(state: RunState) -> _Place:
    return _Place(ANSWER_THREAD, state.answer_turn or 1, "answer")


def _task_place(state: RunState, task_id: str) -> _Place:
    at = next((at for at, task in enumerate(state.tasks) if task.id == task_id), None)
    if at is None:
        raise ContractError(Code.SUBMISSION_INVALID, f"the run has no task {task_id!r}", pointer="/task")
    task = state.tasks[at]
    if not _talks(task):
        why = "is one call, with which there is no conversation" if task.call is not None else "has not begun"
        raise ContractError(Code.SUBMISSION_INVALID, f"the task {task_id!r} {why}", pointer="/task")
    return _Place(task_thread(task.id), task.turn, "work", at)


def _failed_place(state: RunState) -> _Place:
    failed = [at for at, task in enumerate(state.tasks) if task.status == "failed"]
    if failed:
        return _only(state, [at for at in failed if _talks(state.tasks[at])], "failed")
    if state.mode in _PLANNED and all(task.started_at_ms is None for task in state.tasks):
        return _plan_place(state)
    if state.mode == "goal" and all(task.status == "succeeded" for task in state.tasks):
        return _answer_place(state)
    raise _ended(state)


def _only(state: RunState, positions: list[int], what: str) -> _Place:
    if len(positions) == 1:
        return _task_place(state, state.tasks[positions[0]].id)
    if positions:
        raise _which([state.tasks[at].id for at in positions], f"several tasks {what}")
    raise _ended(state)


def _which(names: list[str], why: str) -> ContractError:
    told = f"{why}: say which one goes on: {', '.join(names)}"
    return ContractError(Code.SUBMISSION_INVALID, told, pointer="/task", tasks=names)


def _talks(task: Task) -> bool:
    """Whether an agent works on it, and has begun."""
    return task.call is None and task.turn > 0 and task.status in ("succeeded", "failed")


def _was_stopped(state: RunState) -> bool:
    """Whether something was in work when the run ended: nobody knows how it would go on."""
    return any(task.status == "skipped" and task.started_at_ms is not None for task in state.tasks)


def _ended(state: RunState) -> ContractError:
    told = f"the run {state.run_id} has ended: it is {state.status}"
    return ContractError(Code.RUN_TERMINAL, told)


# ── whether ────────────────────────────────────────────────────────────────────────────


def _check_turn(place: _Place, after: str) -> None:
    """Refuse a caller whose history is not the run's (I24)."""
    last = turn_name(place.thread_id, place.turn)
    if after not in ("", last):
        raise _mismatch(f"the conversation is at {last}, not at {after}: look at it, and say it again", last)


def _mismatch(told: str, turn: str) -> ContractError:
    return ContractError(Code.TURN_MISMATCH, told, pointer="/after", turn=turn)


def _check_means(draft: Draft, place: _Place) -> None:
    team, state = draft.team(), draft.state
    agent = state.planner if place.position is None else state.tasks[place.position].assignee or ""
    if team is None or team.agent(agent) is None:
        what = f"the team {state.team!r}" if team is None else f"the agent {agent!r} of the team {state.team!r}"
        raise ContractError(Code.SUBMISSION_INVALID, f"{what} is gone")
    if place.turn >= limits.TURNS_MAX:
        told = f"the conversation has taken {limits.TURNS_MAX} turns, which is the most that one may take"
        raise ContractError(Code.TURN_LIMIT, told)
    if draft.is_over_budget:
        raise ContractError(Code.BUDGET, "the team's tokens for one run are spent")
    _check_count(state)


def _check_count(state: RunState) -> None:
    if len(state.continuations) >= limits.CONTINUATIONS_MAX:
        told = f"the run has taken {limits.CONTINUATIONS_MAX} instructions, which is the most that one may take"
        raise ContractError(Code.TURN_LIMIT, told)


# ── taking it ──────────────────────────────────────────────────────────────────────────


def _span_ms(state: RunState, message: ContinueRun) -> int | None:
    """How long the run is given: what is asked for, else as long as before."""
    if message.timeout_ms is not None:
        return message.timeout_ms
    if state.continuations:
        return state.continuations[-1].span_ms
    return None if state.deadline_ms is None else state.deadline_ms - state.submitted_at_ms


def _take(draft: Draft, message: ContinueRun, place: _Place, entry: Continuation) -> None:
    state, was = draft.state, draft.state.status
    deadline_ms = state.deadline_ms
    if state.is_over or message.timeout_ms is not None:
        deadline_ms = None if entry.span_ms is None else later(draft.now_ms, entry.span_ms)
    draft.change(
        status="running",
        phase={"plan": "planning", "answer": "answering"}.get(place.purpose, "working"),
        attempt=state.attempt + 1,
        continuations=(*state.continuations, entry),
        held=tuple(held for held in state.held if held.thread_id != place.thread_id),
        deadline_ms=deadline_ms,
        ended_at_ms=None,
        failure=None,
        answer=None,
    )
    if deadline_ms is not None and deadline_ms != state.deadline_ms:
        draft.send(RunTimedOut(tenant=state.tenant, run_id=state.run_id), Instant(deadline_ms))
    draft.audit(
        "run.continued",
        entry.instruction_id,
        by=message.by.id,
        turn=turn_name(entry.thread_id, entry.turn),
        after=was,
        instruction=digest({"text": message.text}),
    )
    said: list[ChatMessage] = []
    agent = state.planner
    if place.position is not None:
        agent = draft.tasks[place.position].assignee or ""
        said += _reopened(draft, place.position, entry.turn)
    elif place.purpose == "plan":
        draft.change(plan_turn=entry.turn)
    else:
        draft.change(answer_turn=entry.turn)
    said.append(UserText(text=continuation_text(message.text)))
    draft.take_turn(place.thread_id, entry.turn, place.purpose, agent, *said)


def _reopened(draft: Draft, position: int, turn: int) -> list[ChatMessage]:
    """The task is at work again; the answers to the calls of an interrupted turn, which its agent has not read yet."""
    task = draft.tasks[position]
    unread = [ToolResult(call_id=call.call_id, tool=call.tool, ok=call.ok, text=call.text) for call in task.calls]
    if task.status != "running":
        draft.active.append(position)
        revive_dependents(draft, position)
    draft.change_task(
        position,
        status="running",
        turn=turn,
        thinking=True,
        calls=(),
        output=None,
        failure=None,
        ended_at_ms=None,
    )
    return [ToolResults(results=tuple(unread))] if unread else []


def refusal(error: ContractError, run_id: str) -> Transition[RunState]:
    """Why an instruction, or an interruption, was not taken, told to whoever asked. Nothing is changed by it."""
    answer = {Code.RUN_NOT_FOUND: "not_found", Code.RUN_TERMINAL: "closed", Code.INSTRUCTION_EXISTS: "conflict"}
    failure = Failure(
        code=error.code,
        message=error.message,
        error_class=ErrorClass.INVALID,
        pointer=error.pointer,
        details={name: value for name, value in error.details.items() if value not in (None, [])},
    )
    told = Receipt(answer=answer.get(error.code, "refused"), run_id=run_id, failure=failure)
    return Transition("refused", None, (Reply(told),), failure=failure)
