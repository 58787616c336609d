"""Decides what every message does to a run: the transition table of the dispatcher and of the resume consumer.

The rules themselves are in the modules beside this one, all of them pure: `planning` (the plan and its gate),
`schedule` (what happens next), `proposals` (tool calls), `decisions` (what a person's word sets free), `asking` (what
people are asked), on the state of `states` by way of a `draft`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.facts import Facts
from placet.instants import Instant, later
from placet.machine import Receipt, Reply, Transition, absorb, refuse
from placet.messages import (
    ANSWER_THREAD,
    OPERATION,
    PLAN_THREAD,
    RUN,
    ApprovalDecided,
    ApprovalExpiring,
    CancelRun,
    ContinueRun,
    ForkRun,
    GateAnswered,
    GateLeaseEnded,
    InterruptRun,
    Message,
    OperationDone,
    OperationDoubtful,
    PatchPlan,
    PlanProposed,
    RunTimedOut,
    SubmitRun,
    TurnFailed,
    TurnTaken,
)
from placet.plans import plan_digest
from placet.rows import CHECKPOINT, STATE, FactKey
from placet_dispatcher import continuing, interrupting, patching
from placet_dispatcher.consulting import heard
from placet_dispatcher.decisions import decide
from placet_dispatcher.draft import Draft
from placet_dispatcher.edits import renew
from placet_dispatcher.forking import fork_digest, forked
from placet_dispatcher.graph import fail, succeed
from placet_dispatcher.interrupting import has_ended, let_go, not_made, stop_models, turn_is_over
from placet_dispatcher.planning import adopt, checked
from placet_dispatcher.proposals import judge_again, propose
from placet_dispatcher.schedule import BUDGET, advance, give_up
from placet_dispatcher.states import Ending, PendingRequest, RunState
from placet_dispatcher.submission import opened, submission_digest
from placet_dispatcher.words import edited, told

__all__ = ["RunMachine", "RunState"]


class RunMachine:
    """The rules of a run. Holds nothing: what it answers depends on state, message, facts and now alone."""

    name = RUN
    state_type = RunState
    messages: frozenset[type[Message]] = frozenset(
        {
            SubmitRun,
            ForkRun,
            PlanProposed,
            TurnTaken,
            TurnFailed,
            OperationDone,
            OperationDoubtful,
            ApprovalDecided,
            ApprovalExpiring,
            CancelRun,
            ContinueRun,
            InterruptRun,
            PatchPlan,
            GateAnswered,
            GateLeaseEnded,
            RunTimedOut,
        }
    )

    def reads(self, message: Message) -> Sequence[FactKey]:
        """Decisions are believed from their rows, the end of an operation from the status of its record."""
        run_id = message.run_id
        if isinstance(message, ApprovalDecided):
            tables = ("approval_request", "approval_outcome", "approval_revocation")
            return [FactKey(table, run_id, message.request_id) for table in tables]
        if isinstance(message, ForkRun):
            return [FactKey(CHECKPOINT, run_id, message.forked_from, str(message.at))]
        if isinstance(message, OperationDone | OperationDoubtful):
            return [FactKey(STATE, run_id, OPERATION, message.operation_id)]
        return ()

    def transition(
        self, state: RunState | None, message: Message, facts: Facts, now_ms: Instant
    ) -> Transition[RunState]:
        """What the message does."""
        if type(message) not in self.messages:
            return refuse(Code.MESSAGE_UNEXPECTED, f"a run takes no {type(message).__name__}", run_id=message.run_id)
        if isinstance(message, SubmitRun) and (state is None or state.tenant == message.tenant):
            return _submit(state, message, facts, now_ms)
        if isinstance(message, ForkRun) and (state is None or state.tenant == message.tenant):
            return _fork(state, message, facts, now_ms)
        if state is None or state.tenant != message.tenant:  # told apart by nobody
            return _refused("not_found", Code.RUN_NOT_FOUND, f"there is no run {message.run_id}", message.run_id)
        if isinstance(message, ContinueRun | InterruptRun):
            return _instructed(state, message, facts, now_ms)
        if isinstance(message, PatchPlan):
            return _patched(state, message, facts, now_ms)
        if state.is_over:
            return _late(state, message)
        draft = Draft(state, facts, now_ms)
        if isinstance(message, CancelRun):
            return _cancel(draft, message)
        reason = _apply(draft, message)
        if reason is not None:
            return absorb(reason)
        advance(draft)
        return draft.moved()


def _refused(answer: str, code: Code, text: str, run_id: str) -> Transition[Any]:
    failure = Failure(code=code, message=text, error_class=ErrorClass.INVALID)
    reply = Reply(Receipt(answer=answer, run_id=run_id, failure=failure))
    return Transition("refused", None, (reply,), failure=failure)


# ── commands from outside ──────────────────────────────────────────────────────────────


def _submit(state: RunState | None, message: SubmitRun, facts: Facts, now_ms: Instant) -> Transition[RunState]:
    run_id = message.run_id
    try:
        content_digest = submission_digest(message)
    except ContractError as error:
        return refuse(error.code, error.message, run_id=run_id, pointer=error.pointer, **error.details)
    if state is not None:
        return _again(state, content_digest)
    try:
        draft = opened(message, content_digest, facts, now_ms)
        team = draft.team()
        if message.tasks and team is not None:
            adopt(draft, checked(message.tasks, team, draft.tool))
    except ContractError as error:
        return refuse(error.code, error.message, run_id=run_id, pointer=error.pointer, **error.details)
    advance(draft)
    if message.timeout_ms is not None and not draft.state.is_over:
        draft.send(RunTimedOut(tenant=message.tenant, run_id=run_id), later(now_ms, message.timeout_ms))
    return draft.moved(_accepted(draft))


def _fork(state: RunState | None, message: ForkRun, facts: Facts, now_ms: Instant) -> Transition[RunState]:
    if state is not None:
        return _again(state, fork_digest(message))
    try:
        draft = forked(message, facts, now_ms)
    except ContractError as error:
        if error.code is Code.RUN_NOT_FOUND:
            return _refused("not_found", error.code, error.message, message.run_id)
        return refuse(error.code, error.message, run_id=message.run_id, pointer=error.pointer, **error.details)
    advance(draft)
    if draft.state.deadline_ms is not None and not draft.state.is_over:
        draft.send(RunTimedOut(tenant=message.tenant, run_id=message.run_id), Instant(draft.state.deadline_ms))
    return draft.moved(_accepted(draft))


def _again(state: RunState, content_digest: str) -> Transition[RunState]:
    """A run of that id exists: the same submission again, or another one."""
    if state.content_digest != content_digest:
        text = f"the run {state.run_id} exists already, with other content: choose another id"
        return _refused("conflict", Code.RUN_EXISTS, text, state.run_id)
    return absorb("submitted already", Reply(Receipt(answer="duplicate", run_id=state.run_id, status=state.status)))


def _accepted(draft: Draft) -> Reply:
    state = draft.state
    return Reply(Receipt(answer="accepted", run_id=state.run_id, status=state.status, recorded_at_ms=draft.now_ms))


def _instructed(
    state: RunState, message: ContinueRun | InterruptRun, facts: Facts, now_ms: Instant
) -> Transition[RunState]:
    """A further instruction, or a stop of the turn in work."""
    try:
        if isinstance(message, ContinueRun):
            made = continuing.continued(state, message, facts, now_ms)
        else:
            made = interrupting.interrupted(state, message, facts, now_ms)
    except ContractError as error:
        return continuing.refusal(error, state.run_id)
    if not isinstance(made, Draft):
        return made
    advance(made)
    if isinstance(message, ContinueRun):
        return made.moved(continuing.accepted(made))
    return made.moved(interrupting.accepted(made, state))


def _patched(state: RunState, message: PatchPlan, facts: Facts, now_ms: Instant) -> Transition[RunState]:
    """A change of the plan under way."""
    try:
        made = patching.patched(state, message, facts, now_ms)
    except ContractError as error:
        return patching.refusal(error, state.run_id)
    if not isinstance(made, Draft):
        return made
    advance(made)
    return made.moved(patching.accepted(made))


def _cancel(draft: Draft, message: CancelRun) -> Transition[RunState]:
    who = message.by.id
    text = f"cancelled by {who}" + (f": {message.reason}" if message.reason else "")
    failure = Failure(code=Code.CANCELLED, message=text, error_class=ErrorClass.CANCELLED)
    draft.end_now("cancelled", failure, by=who)
    draft.change(cancelled_by=message.by)
    return draft.moved(_accepted(draft))


def _late(state: RunState, message: Message) -> Transition[RunState]:
    """The run has ended: nothing changes it any more."""
    if not isinstance(message, CancelRun):
        return absorb(f"the run is {state.status}")
    if state.cancelled_by == message.by:
        told = Receipt(answer="duplicate", run_id=state.run_id, status=state.status)
        return absorb("cancelled already, by the same", Reply(told))
    failure = Failure(
        code=Code.RUN_TERMINAL,
        message=f"the run {state.run_id} has ended: it is {state.status}",
        error_class=ErrorClass.INVALID,
    )
    receipt = Receipt(answer="closed", run_id=state.run_id, status=state.status, failure=failure)
    return absorb(f"the run is {state.status}", Reply(receipt))


# ── news from the other machines ───────────────────────────────────────────────────────


def _apply(draft: Draft, message: Message) -> str | None:
    """Enter a message into the draft; the reason to absorb it, where it changes nothing."""
    match message:
        case PlanProposed():
            return _plan_proposed(draft, message)
        case TurnTaken():
            return _turn_taken(draft, message)
        case TurnFailed():
            return _turn_failed(draft, message)
        case OperationDone():
            return _operation_done(draft, message)
        case OperationDoubtful():
            return _operation_doubtful(draft, message)
        case GateAnswered() | GateLeaseEnded():
            return _consulted(draft, message)
        case ApprovalDecided():
            return decide(draft, message)
        case ApprovalExpiring():
            return _expiring(draft, message)
        case _:  # RunTimedOut
            return _timed_out(draft, message)


def _plan_proposed(draft: Draft, message: PlanProposed) -> str | None:
    if draft.state.phase != "planning" or message.thread_id != PLAN_THREAD or message.turn != draft.state.plan_turn:
        return "the run waits for no plan"
    if has_ended(draft, message.thread_id, message.turn):
        return "the turn was interrupted, and has ended"
    if turn_is_over(draft, PLAN_THREAD):
        draft.change(usage=draft.state.usage.plus(message.usage))
        return None
    draft.change(phase="deciding", usage=draft.state.usage.plus(message.usage))
    if draft.is_over_budget:
        draft.end_now(BUDGET.status, BUDGET.failure)
        return None
    team = draft.team()
    if team is None:
        failure = Failure(code=Code.SUBMISSION_INVALID, message=f"the team {draft.state.team!r} is gone")
        draft.end_now("failed", failure)
        return None
    try:  # checked by the planner too; but what a message says is not believed
        planned = checked(message.tasks, team, draft.tool)
        draft.audit("plan.proposed", draft.state.run_id, tasks=len(planned), plan=plan_digest(planned))
        adopt(draft, planned)
    except ContractError as error:
        draft.end_now("failed", error.failure())
    return None


def _turn_taken(draft: Draft, message: TurnTaken) -> str | None:
    state = draft.state
    if (message.thread_id, state.phase, message.turn) == (ANSWER_THREAD, "answering", state.answer_turn or 1):
        draft.change(phase="working", usage=draft.state.usage.plus(message.usage), answer=message.text or "")
        draft.end_now("succeeded", None)
        return None
    position = _awaited(draft, message)
    if position is None:
        return "the run waits for no such turn"
    draft.change(usage=draft.state.usage.plus(message.usage))
    draft.change_task(position, thinking=False)
    if not message.calls:
        let_go(draft, message.thread_id)
        succeed(draft, position, message.text or "")
        return None
    if turn_is_over(draft, message.thread_id):
        draft.change_task(position, calls=not_made(message.turn, message.calls))
        return None
    if draft.is_over_budget:
        draft.end_soon(BUDGET)
    ending = draft.state.ending
    if draft.is_over_budget or (ending is not None and not ending.more_turns):
        give_up(draft, position)  # no model would read the results
    else:
        propose(draft, position, message.calls)
    return None


def _turn_failed(draft: Draft, message: TurnFailed) -> str | None:
    phase = draft.state.phase
    thread = {"planning": PLAN_THREAD, "answering": ANSWER_THREAD}.get(phase)
    turn = draft.state.plan_turn if phase == "planning" else draft.state.answer_turn or 1
    if message.thread_id == thread and message.turn == turn:
        if has_ended(draft, thread, turn):
            return "the turn was interrupted, and has ended"
        draft.change(usage=draft.state.usage.plus(message.usage))
        if turn_is_over(draft, message.thread_id):
            return None
        draft.change(phase="working")
        draft.end_now("failed", message.failure)
        return None
    position = _awaited(draft, message)
    if position is None:
        return "the run waits for no such turn"
    draft.change(usage=draft.state.usage.plus(message.usage))
    if turn_is_over(draft, message.thread_id):
        draft.change_task(position, thinking=False, calls=())
        return None
    if draft.state.ending is not None and message.failure.code is Code.TURN_INTERRUPTED:
        give_up(draft, position)
        return None
    fail(draft, position, message.failure)
    return None


def _awaited(draft: Draft, message: TurnTaken | TurnFailed) -> int | None:
    """Position of the task whose model is at exactly this turn."""
    position = draft.active_task(message.thread_id)
    if position is None:
        return None
    task = draft.tasks[position]
    return position if task.thinking and task.turn == message.turn else None


def _operation_done(draft: Draft, message: OperationDone) -> str | None:
    found = draft.call_of(message.operation_id)
    if found is None or draft.tasks[found[0]].calls[found[1]].status in ("judging", "done"):
        return "no call waits for this operation"
    if draft.facts.status(message.run_id, OPERATION, message.operation_id) != message.status:
        return "the operation's own record says otherwise"
    asked = [request for request in draft.requests if request.operation_id == message.operation_id]
    if any(request.decision not in (None, "approved") for request in asked):
        return "the call was not let through"
    position, at = found
    call = draft.tasks[position].calls[at]
    if message.status == "lapsed":
        if call.status != "running" or call.request_id != message.request_id:
            return "people were asked about it anew already"
        renew(draft, found, None)
        return None
    failure = None
    if message.status != "succeeded":
        unknown = Failure(code=Code.TOOL_FAILED, message=f"the operation ended as {message.status}")
        failure = message.failure or unknown
    text = (message.result_text or "null") if failure is None else told(failure)
    if draft.tasks[position].call is None:  # a model reads it
        text = edited(text, call.edited_text)
    draft.answer_call(position, at, ok=failure is None, text=text, failure=failure)
    # Where it was asked about, the question is answered or moot: nobody is to decide on what is over.
    for request in asked:
        draft.close_request(request, "the operation has ended")
        draft.requests.remove(request)
    draft.audit(
        "operation.done", message.operation_id, status=message.status, code=failure.code.value if failure else None
    )
    return None


def _consulted(draft: Draft, message: GateAnswered | GateLeaseEnded) -> str | None:
    found = heard(draft, message)
    if isinstance(found, str):
        return found or None
    judge_again(draft, *found)
    return None


def _expiring(draft: Draft, message: ApprovalExpiring) -> str | None:
    """Write down that people were reminded, which is the event that others hear of."""
    asked = [r for r in draft.requests if r.is_own and r.request_id == message.request_id and r.decision is None]
    if not asked or asked[0].reminded:
        return "written down already, or not an open question of this run"
    draft.requests[draft.requests.index(asked[0])] = asked[0].model_copy(update={"reminded": True})
    draft.audit("approval.expiring", message.request_id, expires_at_ms=message.expires_at_ms)
    return None


def _operation_doubtful(draft: Draft, message: OperationDoubtful) -> str | None:
    found = draft.call_of(message.operation_id)
    if found is None or draft.tasks[found[0]].calls[found[1]].status != "running":
        return "no call is under way for this operation"
    if draft.facts.status(message.run_id, OPERATION, message.operation_id) != "needs_operator":
        return "the operation's own record says otherwise"
    position, at = found
    call = draft.change_call(position, at, status="doubtful", request_id=message.request_id)
    draft.requests.append(
        PendingRequest(
            scope="operation_outcome",
            boundary=f"outcome:{message.operation_id}",
            request_id=message.request_id,
            request_hash="",
            what=f"did {call.tool} happen for task {draft.tasks[position].id}?",
            position=position,
            operation_id=message.operation_id,
            asked_at_ms=draft.now_ms,
        )
    )
    draft.audit("operation.doubtful", message.operation_id, request_id=message.request_id)
    return None


def _timed_out(draft: Draft, message: Message) -> str | None:
    deadline_ms = draft.state.deadline_ms
    if deadline_ms is None:
        return "the run has no deadline"
    if draft.now_ms < deadline_ms:  # as machine.not_yet
        draft.send(message, Instant(deadline_ms))
        return None
    ending = draft.state.ending
    if ending is not None and ending.status == "timed_out":
        return "the run's time is over already"
    failure = Failure(code=Code.DEADLINE, message="the run's time is over", error_class=ErrorClass.TIMEOUT)
    if ending is not None or not draft.is_with_a_tool:
        draft.end_now("timed_out", failure)
        return None
    # A tool has no more time than the run: what it is at ends by itself, and its result is known then (J19).
    draft.end_soon(Ending(status="timed_out", failure=failure, more_turns=False, over_doubt=True))
    stop_models(draft, "the run's time is over")
    return None
