"""Decides what an agent's model is asked next, and what its reply comes to.

Status: idle ⇄ calling ⇄ waiting (for the next attempt of the same turn), failed (the last turn failed for good, or was
interrupted by a user; a further instruction is another turn); end: closed (the run ended). Turns are numbered from 1
and taken one after another; a repeated one is the same turn.

A model call is a read. So an attempt that nobody reports on is simply made again, and a reply that comes after its
attempt was given up is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import TypeAdapter

from placet import limits
from placet.activities import Stop
from placet.calls import AssistantReply, ChatMessage, ModelReply
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.facts import Facts
from placet.ids import digest_hex
from placet.instants import Instant, later
from placet.machine import Effect, Invoke, Record, Send, Transition, Withdraw, absorb, move, not_yet, refuse, timer
from placet.messages import (
    RUN,
    THREAD,
    CloseThread,
    Message,
    ModelAnswered,
    ModelFailed,
    PlanProposed,
    RetryTurn,
    StopTurn,
    TakeTurn,
    ThreadMessageBase,
    TurnFailed,
    TurnLeaseEnded,
    TurnTaken,
)
from placet.plans import PlannedTask
from placet.retries import LOST_WORKER, RetryInputs, RetryPolicy, decide
from placet.rows import CONVERSATION, STATE, FactKey, RetryRow, ThreadMessageRow
from placet.statuses import RUN_TERMINAL
from placet.values import Usage
from placet_planner.replies import Fault, check_words, correction, read_plan, received
from placet_planner.state import ThreadState

MODEL_RETRIES = RetryPolicy(attempts_max=4)
"""A model call is a read, and providers are busy at times: four attempts over some seven seconds."""
_CHAT: TypeAdapter[ChatMessage] = TypeAdapter(ChatMessage)
CORRECTIONS_MAX = 2
"""Replies of one turn that are given back because they cannot be used."""


class ThreadMachine:
    """The planner's rules."""

    name = THREAD
    state_type = ThreadState
    messages: frozenset[type[Message]] = frozenset(
        {TakeTurn, ModelAnswered, ModelFailed, RetryTurn, TurnLeaseEnded, StopTurn, CloseThread}
    )

    def reads(self, message: Message) -> Sequence[FactKey]:
        """Only whether the run has ended, where a message says so. A turn itself rests on no fact."""
        if isinstance(message, TakeTurn) and message.forked_from is not None:
            sub = f"{message.turn - 1}@{message.forked_from}"
            return (FactKey(CONVERSATION, message.run_id, message.thread_id, sub),)
        return (FactKey(STATE, message.run_id, RUN, ""),) if isinstance(message, CloseThread) else ()

    def transition(
        self, state: ThreadState | None, message: Message, facts: Facts, now_ms: Instant
    ) -> Transition[ThreadState]:
        """What the message does. Another tenant's conversation looks like none."""
        if not isinstance(message, ThreadMessageBase):
            told = f"a thread has no rule for {type(message).__name__}"
            return refuse(Code.MESSAGE_UNEXPECTED, told, run_id=message.run_id)
        if state is not None and state.tenant != message.tenant:
            return _unknown(message)
        if isinstance(message, TakeTurn):
            return _take(state, message, facts, now_ms)
        if isinstance(message, CloseThread):
            return _close(state, message, facts)
        if isinstance(message, StopTurn):
            return _stop(state, message)
        if state is None:
            return _unknown(message)
        match message:
            case ModelAnswered():
                return _answered(state, message, facts, now_ms)
            case ModelFailed():
                return _failed(state, message, facts, now_ms)
            case RetryTurn():
                return _retry(state, message, facts, now_ms)
            case TurnLeaseEnded():
                return _lease_ended(state, message, facts, now_ms)
            case _:
                told = f"a thread has no rule for {type(message).__name__}"
                return refuse(Code.MESSAGE_UNEXPECTED, told, run_id=message.run_id)


def _unknown(message: ThreadMessageBase) -> Transition[ThreadState]:
    told = f"there is no thread {message.thread_id} in run {message.run_id}"
    return refuse(Code.NOT_FOUND, told, run_id=message.run_id)


# ── a turn begins ──────────────────────────────────────────────────────────────────────


def _take(state: ThreadState | None, message: TakeTurn, facts: Facts, now_ms: Instant) -> Transition[ThreadState]:
    """Take the next turn; a repeat of one that was taken changes nothing."""
    bodies = [said.model_dump_json() for said in message.append]
    asked = digest_hex(message.purpose, message.team, message.agent, *bodies)
    before, earlier = (state, ()) if state is not None else _first(message, facts)
    if before.status == "closed":
        return absorb("the conversation is closed")
    if (message.turn == before.turn and asked == before.asked) or 0 < message.turn < before.turn:
        return absorb(f"turn {message.turn} was taken already")
    if before.in_turn:
        told = f"turn {before.turn} is in work: turn {message.turn} can only follow it"
        return refuse(Code.TURN_BUSY, told, run_id=message.run_id, turn=before.turn)
    if message.turn != before.turn + 1:
        told = f"turn {before.turn + 1} is next, not turn {message.turn}"
        return refuse(Code.TURN_MISMATCH, told, run_id=message.run_id, turn=before.turn)
    turn = before.model_copy(
        update={
            "team": message.team,
            "agent": message.agent,
            "purpose": message.purpose,
            "turn": message.turn,
            "asked": asked,
            "attempt": 0,
            "failures": 0,
            "corrections": 0,
            "lost": 0,
            "partial_text": "",
            "usage": Usage(),
        }
    )
    if earlier is None:
        lost = f"what was said in the run {message.forked_from} before turn {message.turn} is not known"
        return _give_up(turn, Failure(code=Code.NOT_FOUND, message=lost))
    said = [*(_CHAT.validate_json(body) for body in earlier), *message.append]
    rows = _rows(before, said, [*earlier, *bodies], now_ms)
    begun = turn.model_copy(update={"messages": before.messages + len(rows)})
    if begun.stop == begun.turn:  # the interruption has overtaken it
        return _give_up(begun, INTERRUPTED, *rows)
    return _call(begun, facts, now_ms, *rows)


def _first(message: TakeTurn, facts: Facts) -> tuple[ThreadState, tuple[str, ...] | None]:
    """A conversation that begins, and what was said in it before the run was forked; None where nobody knows."""
    state = ThreadState(tenant=message.tenant, run_id=message.run_id, status="idle", thread_id=message.thread_id)
    if message.forked_from is None:
        return state, ()
    before = state.model_copy(update={"turn": message.turn - 1})
    row = facts.conversation(message.run_id, message.thread_id, message.forked_from, message.turn - 1)
    return before, row.bodies if row is not None and row.tenant == message.tenant else None


def _call(state: ThreadState, facts: Facts, now_ms: Instant, *effects: Effect) -> Transition[ThreadState]:
    """The next attempt of the turn, under a lease."""
    timeout_ms = facts.model_timeout_ms(state.agent)
    until_ms = later(now_ms, timeout_ms + limits.LEASE_MARGIN_MS)
    calling = state.model_copy(
        update={
            "status": "calling",
            "attempt": state.attempt + 1,
            "lease_until_ms": until_ms,
            "incarnation": facts.incarnation,
        }
    )
    return move(calling, *effects, Invoke(calling.call(timeout_ms)), timer(_lease(calling), until_ms))


def _lease(state: ThreadState) -> TurnLeaseEnded:
    """What comes back if nobody reports on the current attempt."""
    return TurnLeaseEnded(
        tenant=state.tenant,
        run_id=state.run_id,
        thread_id=state.thread_id,
        turn=state.turn,
        attempt=state.attempt,
    )


def _rows(
    state: ThreadState, said: Sequence[ChatMessage], bodies: Sequence[str], now_ms: Instant
) -> tuple[Record, ...]:
    """What was said, as the next rows of the conversation."""
    return tuple(
        Record(
            ThreadMessageRow.trusted(
                tenant=state.tenant,
                run_id=state.run_id,
                thread_id=state.thread_id,
                n=state.messages + at,
                role=message.role,
                body_text=body,
                said_at_ms=now_ms,
            )
        )
        for at, (message, body) in enumerate(zip(said, bodies, strict=True), start=1)
    )


def _said(state: ThreadState, now_ms: Instant, *said: ChatMessage) -> tuple[ThreadState, tuple[Record, ...]]:
    rows = _rows(state, said, [message.model_dump_json() for message in said], now_ms)
    return state.model_copy(update={"messages": state.messages + len(rows)}), rows


# ── a turn ends ────────────────────────────────────────────────────────────────────────


def _answered(state: ThreadState, message: ModelAnswered, facts: Facts, now_ms: Instant) -> Transition[ThreadState]:
    """The model's reply to the current attempt: passed on if it can be used, otherwise given back, twice at most."""
    if not _is_current(state, message):
        return _late(state, message)
    return _reported(state, _heard(state, message.reply, facts, now_ms))


def _reported(state: ThreadState, then: Transition[ThreadState]) -> Transition[ThreadState]:
    """Somebody has reported on the current attempt: nobody need ask what became of it."""
    return replace(then, effects=(*then.effects, Withdraw(_lease(state))))


def _heard(before: ThreadState, reply: ModelReply, facts: Facts, now_ms: Instant) -> Transition[ThreadState]:
    state = before.model_copy(update={"usage": before.usage.plus(reply.usage)})
    if reply.handle and before.handle not in ("", reply.handle):
        lost = "the model went on in another session: the one of this conversation is lost, and none takes its place"
        return _give_up(state, Failure(code=Code.HANDLE_LOST, message=lost))
    if reply.handle != before.handle and reply.handle:
        state = state.model_copy(update={"handle": reply.handle})
    if state.purpose != "plan":
        fault = check_words(reply, state.purpose)
        return _spoken(state, reply, now_ms) if fault is None else _correct(state, reply, fault, facts, now_ms)
    team = facts.team(state.team)
    if team is None:
        told = Failure(code=Code.SUBMISSION_INVALID, message=f"there is no team {state.team!r} any more")
        return _give_up(state, told)
    plan = read_plan(reply, team)
    if isinstance(plan, Fault):
        return _correct(state, reply, plan, facts, now_ms)
    return _planned(state, reply, plan, now_ms)


def _is_current(state: ThreadState, message: ModelAnswered | ModelFailed | TurnLeaseEnded) -> bool:
    return state.status == "calling" and (message.turn, message.attempt) == (state.turn, state.attempt)


def _late(state: ThreadState, message: ModelAnswered | ModelFailed | TurnLeaseEnded) -> Transition[ThreadState]:
    return absorb(
        f"attempt {message.attempt} of turn {message.turn} is over: "
        f"the conversation is {state.status} at attempt {state.attempt} of turn {state.turn}"
    )


def _spoken(state: ThreadState, reply: ModelReply, now_ms: Instant) -> Transition[ThreadState]:
    heard, rows = _said(state, now_ms, AssistantReply(reply=reply))
    taken = TurnTaken(
        tenant=state.tenant,
        run_id=state.run_id,
        thread_id=state.thread_id,
        turn=state.turn,
        text=reply.text,
        calls=reply.calls,
        usage=state.usage,
    )
    return move(heard.model_copy(update={"status": "idle"}), *rows, Send(taken))


def _planned(
    state: ThreadState, reply: ModelReply, tasks: tuple[PlannedTask, ...], now_ms: Instant
) -> Transition[ThreadState]:
    heard, rows = _said(state, now_ms, AssistantReply(reply=reply), received(reply))
    proposed = PlanProposed(
        tenant=state.tenant,
        run_id=state.run_id,
        thread_id=state.thread_id,
        turn=state.turn,
        tasks=tasks,
        usage=state.usage,
    )
    return move(heard.model_copy(update={"status": "idle"}), *rows, Send(proposed))


def _correct(
    state: ThreadState, reply: ModelReply, fault: Fault, facts: Facts, now_ms: Instant
) -> Transition[ThreadState]:
    """Give an unusable reply back to the model, with the reason; the conversation keeps both."""
    told, rows = _said(state, now_ms, AssistantReply(reply=reply), correction(reply, fault))
    if state.corrections >= CORRECTIONS_MAX or state.attempt >= limits.ATTEMPTS_MAX:
        failure = Failure(
            code=Code.MODEL_ANSWER_INVALID,
            message=f"{state.corrections + 1} replies could not be used; the last: {fault.message}",
        )
        return _give_up(told, failure, *rows)
    return _call(told.model_copy(update={"corrections": state.corrections + 1}), facts, now_ms, *rows)


def _give_up(state: ThreadState, failure: Failure, *effects: Effect) -> Transition[ThreadState]:
    failed = TurnFailed(
        tenant=state.tenant,
        run_id=state.run_id,
        thread_id=state.thread_id,
        turn=state.turn,
        failure=failure,
        usage=state.usage,
    )
    return move(state.model_copy(update={"status": "failed"}), *effects, Send(failed))


# ── again ──────────────────────────────────────────────────────────────────────────────


def _failed(state: ThreadState, message: ModelFailed, facts: Facts, now_ms: Instant) -> Transition[ThreadState]:
    if not _is_current(state, message):
        return _left_over(state, message) or _late(state, message)
    counted = state.model_copy(update={"failures": state.failures + 1, "usage": state.usage.plus(message.usage)})
    return _reported(state, _again(counted, message.failure, facts, now_ms, lost=False))


def _lease_ended(state: ThreadState, message: TurnLeaseEnded, facts: Facts, now_ms: Instant) -> Transition[ThreadState]:
    """Nobody reported. Believed only once the lease is over, or the store has had another owner since."""
    if not _is_current(state, message):
        return _late(state, message)
    if not state.believed_lost(now_ms, facts.incarnation):
        return not_yet(state, message, state.lease_until_ms)
    failure = Failure(
        code=Code.MODEL_FAILED,
        message=f"whoever made attempt {state.attempt} did not report back",
        error_class=ErrorClass.TRANSIENT,
    )
    return _again(state.model_copy(update={"lost": state.lost + 1}), failure, facts, now_ms, lost=True)


def _again(
    state: ThreadState, failure: Failure, facts: Facts, now_ms: Instant, *, lost: bool
) -> Transition[ThreadState]:
    """What the one retry rule says, written down with its inputs.

    A lost worker is not the model's failure: such attempts count against ATTEMPTS_MAX only and are made again at once.
    """
    whole = lost or state.attempt >= limits.ATTEMPTS_MAX
    inputs = RetryInputs(
        subject=f"{state.thread_id}/{state.turn}",
        # A session that is gone is gone, whatever its adapter thinks of trying again.
        error_class=ErrorClass.PERMANENT if failure.code is Code.HANDLE_LOST else failure.error_class,
        certainty=Certainty.NOT_EXECUTED,
        repeatable=True,
        attempt=state.attempt if whole else state.failures,
        retry_after_ms=failure.retry_after_ms,
        policy=LOST_WORKER if lost else MODEL_RETRIES,
    )
    decision = decide(inputs)
    written = Record(
        RetryRow(
            tenant=state.tenant,
            run_id=state.run_id,
            machine=THREAD,
            key=state.thread_id,
            subject=inputs.subject,
            attempt=state.attempt,
            inputs_text=inputs.model_dump_json(),
            decision_text=decision.model_dump_json(),
            decided_at_ms=now_ms,
        )
    )
    if decision.action != "retry":
        details = {**failure.details, "gave_up": decision.reason}
        return _give_up(state, failure.model_copy(update={"details": details}), written)
    if decision.delay_ms == 0:
        return _call(state, facts, now_ms, written)
    due_ms = later(now_ms, decision.delay_ms)
    retry = RetryTurn(
        tenant=state.tenant,
        run_id=state.run_id,
        thread_id=state.thread_id,
        turn=state.turn,
        attempt=state.attempt + 1,
    )
    waiting = state.model_copy(update={"status": "waiting", "due_ms": due_ms})
    return move(waiting, written, Send(retry, not_before=due_ms))


def _retry(state: ThreadState, message: RetryTurn, facts: Facts, now_ms: Instant) -> Transition[ThreadState]:
    if state.status != "waiting" or (message.turn, message.attempt) != (state.turn, state.attempt + 1):
        return absorb(f"attempt {message.attempt} of turn {message.turn} is not due")
    if now_ms < state.due_ms:
        return not_yet(state, message, state.due_ms)
    return _call(state, facts, now_ms)


# ── the run ends ───────────────────────────────────────────────────────────────────────


def _close(state: ThreadState | None, message: CloseThread, facts: Facts) -> Transition[ThreadState]:
    """The run has ended, says the run: take no more turns, signal the model call."""
    if facts.status(message.run_id, RUN, "") not in RUN_TERMINAL:
        return absorb("the run has not ended")
    if state is None:
        # It has overtaken the turn, which must not begin when it comes.
        return move(
            ThreadState(tenant=message.tenant, run_id=message.run_id, status="closed", thread_id=message.thread_id)
        )
    if state.status == "closed":
        return absorb("the conversation is closed")
    stop = Stop(tenant=state.tenant, run_id=state.run_id, machine=THREAD, key=state.thread_id, reason=message.reason)
    signals = (Invoke(stop), Withdraw(_lease(state))) if state.status == "calling" else ()
    return move(state.model_copy(update={"status": "closed"}), *signals)


# ── a user interrupts a turn ───────────────────────────────────────────────────────────

INTERRUPTED = Failure(
    code=Code.TURN_INTERRUPTED, message="the turn was interrupted by a user", error_class=ErrorClass.CANCELLED
)


def _stop(state: ThreadState | None, message: StopTurn) -> Transition[ThreadState]:
    """End the turn that is named; any other one is left alone (J12)."""
    before = state or ThreadState(
        tenant=message.tenant, run_id=message.run_id, status="idle", thread_id=message.thread_id
    )
    if before.status == "closed":
        return absorb("the conversation is closed")
    if message.turn == before.turn + 1 and not before.in_turn and before.stop != message.turn:
        return move(before.model_copy(update={"stop": message.turn}))  # the turn has not come yet, and need not begin
    if message.turn != before.turn or not before.in_turn:
        return absorb(f"turn {message.turn} is not in work")
    stop = Stop(tenant=before.tenant, run_id=before.run_id, machine=THREAD, key=before.thread_id, reason=message.reason)
    signals = (Invoke(stop), Withdraw(_lease(before))) if before.status == "calling" else ()
    return _give_up(before.model_copy(update={"stop": message.turn}), INTERRUPTED, *signals)


def _left_over(state: ThreadState, message: ModelFailed) -> Transition[ThreadState] | None:
    """What a stopped call had said by then is kept, once, as evidence; it changes nothing else (J08)."""
    stopped = state.status in ("failed", "closed") and (message.turn, message.attempt) == (state.turn, state.attempt)
    if not stopped or not message.partial_text or state.partial_text:
        return None
    return move(state.model_copy(update={"partial_text": message.partial_text}))
