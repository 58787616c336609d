"""Decides how a user stops the turn in work without ending the run: which turn, and what comes of it.

The conversation itself says how its turn ended; until then the run waits for that. What a tool is at goes on to its
end, for an effect is not torn in two; what the turn still wanted is not done. Then the run waits for an instruction.
"""

from __future__ import annotations

from placet import ids, limits
from placet.calls import ToolCall
from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.facts import Facts
from placet.instants import Instant
from placet.machine import Receipt, Reply, Transition, absorb
from placet.messages import ANSWER_THREAD, PLAN_THREAD, InterruptRun, StopTurn, task_thread, turn_name
from placet.values import Principal
from placet_dispatcher.draft import Draft
from placet_dispatcher.states import Call, Held, RunState
from placet_dispatcher.words import INTERRUPTED

Turn = tuple[str, int]


def is_theirs(state: RunState, person: Principal) -> bool:
    """Whether somebody may say how the run goes on: who started it, and nobody else (I09)."""
    return (person.kind, person.id) == (state.initiator.kind, state.initiator.id)


def held_of(state: RunState, thread_id: str) -> Held | None:
    """That a conversation is interrupted."""
    return next((held for held in state.held if held.thread_id == thread_id), None)


def in_work(state: RunState) -> list[Turn]:
    """The turns that a model or its tools are at."""
    if state.phase in ("planning", "answering") and not state.is_over:
        turn = (PLAN_THREAD, state.plan_turn) if state.phase == "planning" else (ANSWER_THREAD, state.answer_turn or 1)
        held = held_of(state, turn[0])
        return [] if held is not None and held.over else [turn]
    found = []
    for task in (state.tasks[at] for at in state.active):
        at_work = task.thinking or any(call.status == "running" for call in task.calls)
        if task.call is None and at_work:
            found.append((task_thread(task.id), task.turn))
    return found


def interrupted(state: RunState, message: InterruptRun, facts: Facts, now_ms: Instant) -> Draft | Transition[RunState]:
    """The run with its turns told to stop; or that there is nothing to stop.

    Raises ContractError: RUN_NOT_FOUND (also for whose run it is not), TURN_MISMATCH for a turn that is not in work.
    """
    if not is_theirs(state, message.by):
        raise ContractError(Code.RUN_NOT_FOUND, f"there is no run {state.run_id}")
    turns = in_work(state)
    if message.interrupt_id in state.interruptions:
        again = Receipt(answer="duplicate", run_id=state.run_id, status=state.status)
        return absorb("taken in already", Reply(again))
    if message.turn:
        named = [turn for turn in turns if turn_name(*turn) == message.turn]
        if not named:
            now = ", ".join(turn_name(*turn) for turn in turns) or None
            told = f"{message.turn} is not in work" + (f": {now} is" if now else "")
            raise ContractError(Code.TURN_MISMATCH, told, pointer="/turn", turn=now)
        turns = named
    draft = Draft(state, facts, now_ms)
    draft.change(interruptions=(*state.interruptions, message.interrupt_id)[-limits.INTERRUPTIONS_MAX :])
    fresh = [turn for turn in turns if held_of(state, turn[0]) is None]
    if not fresh:  # the id is kept all the same: if this came again, it would find a turn that it is not about
        now = turn_name(*turns[0]) if turns else None
        answer = "duplicate" if turns else "nothing_interrupted"
        return draft.moved(Reply(Receipt(answer=answer, run_id=state.run_id, status=state.status, turn=now)))
    for thread_id, turn in fresh:
        _hold(draft, message, thread_id, turn)
    return draft


def accepted(draft: Draft, before: RunState) -> Reply:
    """The answer to an interruption: the turn, where it is one."""
    known = {held.thread_id for held in before.held}
    held = [turn_name(each.thread_id, each.turn) for each in draft.state.held if each.thread_id not in known]
    told = Receipt(
        answer="accepted",
        run_id=draft.state.run_id,
        status=draft.state.status,
        turn=", ".join(held) or None,
        recorded_at_ms=draft.now_ms,
    )
    return Reply(told)


def _hold(draft: Draft, message: InterruptRun, thread_id: str, turn: int) -> None:
    state = draft.state
    position = draft.active_task(thread_id)
    thinking = position is None or draft.tasks[position].thinking
    draft.change(held=(*state.held, Held(thread_id=thread_id, turn=turn, over=not thinking)))
    draft.audit("turn.interrupted", turn_name(thread_id, turn), by=message.by.id, why=message.reason or None)
    if thinking:
        reason = f"interrupted by {message.by.id}" + (f": {message.reason}" if message.reason else "")
        draft.send(StopTurn(tenant=state.tenant, run_id=state.run_id, thread_id=thread_id, turn=turn, reason=reason))


def stop_models(draft: Draft, reason: str) -> None:
    """Tell every model that is at work for a task to stop: nobody will read what it says."""
    state = draft.state
    for task in (draft.tasks[at] for at in draft.active):
        if task.thinking:
            thread_id = task_thread(task.id)
            draft.send(
                StopTurn(tenant=state.tenant, run_id=state.run_id, thread_id=thread_id, turn=task.turn, reason=reason)
            )


def turn_is_over(draft: Draft, thread_id: str) -> bool:
    """Whether the turn that has just ended was interrupted: then the conversation waits for an instruction."""
    held = held_of(draft.state, thread_id)
    if held is None:
        return False
    others = tuple(each for each in draft.state.held if each.thread_id != thread_id)
    draft.change(held=(*others, held.model_copy(update={"over": True})))
    return True


def has_ended(draft: Draft, thread_id: str, turn: int) -> bool:
    """Whether the turn was interrupted and its end was heard of already: heard again, it costs nothing more."""
    held = held_of(draft.state, thread_id)
    return held is not None and held.over and held.turn == turn


def let_go(draft: Draft, thread_id: str) -> None:
    """The conversation came to its own end before it could be interrupted."""
    if draft.state.held:
        draft.change(held=tuple(each for each in draft.state.held if each.thread_id != thread_id))


def not_made(turn: int, calls: tuple[ToolCall, ...]) -> tuple[Call, ...]:
    """The calls of an interrupted turn, each with its one answer (J18)."""
    failure = Failure(code=Code.TURN_INTERRUPTED, message=INTERRUPTED, error_class=ErrorClass.CANCELLED)
    once = {call.call_id or f"unnamed {at}": call for at, call in enumerate(calls)}.values()
    return tuple(
        Call(
            call_id=call.call_id,
            tool_call_id=ids.tool_call_id(turn, at, call.call_id),
            tool=call.tool,
            status="done",
            text=INTERRUPTED,
            failure=failure,
        )
        for at, call in enumerate(once)
    )
