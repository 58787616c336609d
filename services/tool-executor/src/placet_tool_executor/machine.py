"""Decides when a side effect is started, whether it is tried again, and what its outcome is.

Status: started ⇄ waiting (for the next attempt); reconciling (the tool's world is asked), needs_operator (a person is);
ends: succeeded, failed, refused (a guard said no), cancelled.

The two crash windows are told apart by the record alone: no attempt, so it is started; an attempt that nobody reports
on, so the effect class decides. A message is a hint: guards are read from rows, and whatever is repeated is absorbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placet.calls import EffectClass, Executed, NotExecuted, ToolOutcome, Unsure
from placet.canonical import canonical_text
from placet.errors import Certainty, Code, ErrorClass, Failure, TerminalError
from placet.facts import Facts
from placet.freezing import FreezeOperations
from placet.instants import Instant, later
from placet.machine import Effect, Invoke, Receipt, Reply, Transition, Withdraw, absorb, move, not_yet, pass_on, refuse
from placet.messages import (
    OPERATION,
    RUN,
    ApprovalDecided,
    CancelOperation,
    ExecuteOperation,
    Message,
    OperationLeaseEnded,
    ProbeOperation,
    RetryOperation,
    ToolProbed,
    ToolReturned,
)
from placet.requests import verify_request
from placet.rows import STATE, FactKey
from placet.statuses import OPERATION_TERMINAL, RUN_TERMINAL
from placet_tool_executor.doubt import again, ask, begin_probe, doubtful, must_ask, probe_again
from placet_tool_executor.freezes import FROZEN_MS, freeze_key, opened, switch
from placet_tool_executor.guard import Freeze, Hold, Permit, Refusal, judge_start
from placet_tool_executor.late import happened_before
from placet_tool_executor.pools import at_home, elsewhere
from placet_tool_executor.state import OperationState
from placet_tool_executor.steps import (
    attempt_ended,
    cancelled,
    executed,
    finish,
    lease_ended,
    question_closed,
    start,
    stopped,
)

UNRELEASED_MS = 10_000
"""When to look again whether the run has released what it holds."""


class OperationMachine:
    """The tool-executor's rules. `pool`: whose calls begin in this process ("": the common one); None: all."""

    name = OPERATION
    state_type = OperationState
    messages: frozenset[type[Message]] = frozenset(
        {
            ExecuteOperation,
            RetryOperation,
            ToolReturned,
            ToolProbed,
            OperationLeaseEnded,
            ProbeOperation,
            CancelOperation,
            ApprovalDecided,
            FreezeOperations,
        }
    )

    def __init__(self, pool: str | None = None) -> None:
        self._pool = pool

    def reads(self, message: Message) -> Sequence[FactKey]:
        """For a start: proposal, run and approval. Otherwise only what a question to a person needs."""
        run_id = message.run_id
        match message:
            case ExecuteOperation() | RetryOperation():
                own: tuple[FactKey, ...] = (
                    FactKey("operation", run_id, message.operation_id),
                    FactKey(STATE, run_id, RUN, ""),
                    freeze_key(message.tenant),
                )
                return own if message.request_id is None else own + _approval(run_id, message.request_id)
            case CancelOperation():
                return FactKey("operation", run_id, message.operation_id), FactKey(STATE, run_id, RUN, "")
            case OperationLeaseEnded() | ProbeOperation():
                return (FactKey("operation", run_id, message.operation_id),)
            case ToolReturned() | ToolProbed() if not isinstance(message.outcome, Executed):
                return (FactKey("operation", run_id, message.operation_id),)
            case ApprovalDecided():
                return _approval(run_id, message.request_id)[:2]
            case _:
                return ()

    def transition(
        self, state: OperationState | None, message: Message, facts: Facts, now_ms: Instant
    ) -> Transition[OperationState]:
        """What the message does. Another tenant's operation looks like none."""
        known = state if state is not None and state.tenant == message.tenant else None
        if isinstance(message, FreezeOperations):
            return switch(known, message, facts, now_ms)
        if isinstance(message, ExecuteOperation):
            return _execute(state, known, message, facts, now_ms, self._pool)
        if isinstance(message, CancelOperation) and state is None:
            return _cancel_unstarted(message, facts)
        if known is None:
            key = message.to().key
            return refuse(Code.NOT_FOUND, f"there is no operation {key} in run {message.run_id}", run_id=message.run_id)
        match message:
            case RetryOperation():
                return _retry(known, message, facts, now_ms, self._pool)
            case ToolReturned():
                return _reported(known, message, _returned(known, message, facts, now_ms))
            case ToolProbed():
                return _reported(known, message, _probed(known, message, facts, now_ms))
            case OperationLeaseEnded():
                return _lease_ended(known, message, facts, now_ms)
            case ProbeOperation():
                return begin_probe(known, message, facts, now_ms, self._pool)
            case CancelOperation():
                return _cancel(known, message, facts)
            case ApprovalDecided():
                return _settled(known, message, facts)
            case _:
                told = f"an operation has no rule for {type(message).__name__}"
                return refuse(Code.MESSAGE_UNEXPECTED, told, run_id=message.run_id)


def _approval(run_id: str, request_id: str) -> tuple[FactKey, ...]:
    return (
        FactKey("approval_request", run_id, request_id),
        FactKey("approval_outcome", run_id, request_id),
        FactKey("approval_revocation", run_id, request_id),
    )


# ── starts ─────────────────────────────────────────────────────────────────────────────


def _execute(
    state: OperationState | None,
    known: OperationState | None,
    message: ExecuteOperation,
    facts: Facts,
    now_ms: Instant,
    served: str | None,
) -> Transition[OperationState]:
    """The first start. A second one finds the approval consumed."""
    if state is not None and known is None:
        return absorb(f"there is no operation {message.operation_id} in run {message.run_id}")
    if known is not None and (known.status != "lapsed" or known.request_id == message.request_id):
        told = f"{Code.OPERATION_CONSUMED}: the operation is {known.status}"
        failure = Failure(code=Code.OPERATION_CONSUMED, message=told, error_class=ErrorClass.APPROVAL)
        receipt = Receipt(answer="closed", run_id=message.run_id, status=known.status, failure=failure)
        return absorb(told, Reply(receipt))
    verdict = judge_start(message, facts, now_ms)
    match verdict:
        case Hold():
            return absorb(verdict.reason)
        case Freeze():
            return pass_on(message, verdict.reason, later(now_ms, FROZEN_MS))
        case Permit() if served not in (None, verdict.spec.pool):
            return elsewhere(message, verdict.spec, now_ms)
        case Permit():
            return opened(start(None, verdict, facts.incarnation, now_ms), message.tenant, facts)
        case Refusal():
            return _never_started(message, verdict)


def _never_started(message: ExecuteOperation | CancelOperation, refusal: Refusal) -> Transition[OperationState]:
    state = OperationState(
        tenant=message.tenant,
        run_id=message.run_id,
        status="refused",
        operation_id=message.operation_id,
        pool=message.pool,
        request_id=message.request_id if isinstance(message, ExecuteOperation) else None,
    )
    if refusal.run_ended:
        return cancelled(state, Certainty.NOT_EXECUTED)
    return finish(state, "lapsed" if refusal.lapsed else "refused", failure=refusal.failure)


def _retry(
    state: OperationState, message: RetryOperation, facts: Facts, now_ms: Instant, served: str | None
) -> Transition[OperationState]:
    """The next attempt, if every guard still holds."""
    if state.status != "waiting" or message.attempt != state.n + 1 or message.request_id != state.request_id:
        return absorb(f"attempt {message.attempt} is not due: the operation is {state.status} at attempt {state.n}")
    if now_ms < state.due_ms:
        return not_yet(state, at_home(state, message), state.due_ms)
    verdict = judge_start(message, facts, now_ms)
    match verdict:
        case Hold(for_now=True):
            return not_yet(state, at_home(state, message), later(now_ms, UNRELEASED_MS))
        case Hold():
            return absorb(verdict.reason)
        case Freeze():
            return not_yet(state, at_home(state, message), later(now_ms, FROZEN_MS))
        case Permit() if state.contradicted is not None:
            return ask(state, facts, now_ms)
        case Permit() if served not in (None, verdict.spec.pool):
            return elsewhere(message, verdict.spec, now_ms)
        case Permit():
            return start(state, verdict, facts.incarnation, now_ms)
        case Refusal():
            return _not_again(state, verdict, facts, now_ms)


def _not_again(state: OperationState, refusal: Refusal, facts: Facts, now_ms: Instant) -> Transition[OperationState]:
    """No further attempt. An outcome that is unknown stays unknown: it is asked about, or told as such."""
    certainty = Certainty.NOT_EXECUTED if state.surely_not else Certainty.UNKNOWN
    if refusal.run_ended:
        return cancelled(state, certainty)
    if state.surely_not:
        return finish(state, "refused", failure=refusal.failure)
    if must_ask(state):
        return ask(state, facts, now_ms)
    return finish(state, "failed", failure=refusal.failure.model_copy(update={"certainty": certainty}))


# ── results ────────────────────────────────────────────────────────────────────────────


def _reported(
    state: OperationState, message: ToolReturned | ToolProbed, then: Transition[OperationState]
) -> Transition[OperationState]:
    """Where the call that a lease covers has reported, nobody need ask what became of it."""
    covered = (state.n, state.probe) if state.probing else (state.n, 0)
    reported = (message.attempt, message.probe if isinstance(message, ToolProbed) else 0)
    under_way = state.probing or state.status == "started"
    if then.kind != "moved" or not under_way or covered != reported:
        return then
    return replace(then, effects=(*then.effects, Withdraw(lease_ended(state))))


def _returned(
    state: OperationState, message: ToolReturned, facts: Facts, now_ms: Instant
) -> Transition[OperationState]:
    """What attempt n came to, or an attempt before it that reports after all."""
    if 1 <= message.attempt < state.n and isinstance(message.outcome, Executed):
        return happened_before(state, message.attempt, message.outcome, now_ms)
    if message.attempt != state.n or state.status in OPERATION_TERMINAL:
        return absorb(f"attempt {message.attempt} is over: the operation is {state.status} at attempt {state.n}")
    if state.status != "started":
        return _late(state, message.outcome, facts, now_ms)
    outcome = message.outcome
    end = attempt_ended(state, _word(outcome, cancelling=state.cancelling), now_ms, outcome.model_dump_json())
    if state.cancelling:
        unknown = isinstance(outcome, NotExecuted) and (_in_doubt_before(state) or state.contradicted is not None)
        return cancelled(state, Certainty.UNKNOWN if unknown else Certainty(outcome.certainty), end)
    match outcome:
        case Executed():
            return executed(state, outcome, end)
        case NotExecuted():
            failure = outcome.failure or _silent("the tool did nothing and does not say why")
            lost = _came_too_late(outcome)
            if _in_doubt_before(state):
                return doubtful(state, failure, facts, now_ms, end, lost=lost)
            failed = state.model_copy(update={"failures": state.failures + (not lost), "lost": lost})
            return again(failed, failure, Certainty.NOT_EXECUTED, facts, now_ms, end)
        case Unsure():
            failure = outcome.failure or _unknown("the tool does not know whether it happened")
            return doubtful(state, failure, facts, now_ms, end, lost=False)


def _in_doubt_before(state: OperationState) -> bool:
    """Whether an earlier attempt may have had the effect: then it is not said that there was none."""
    return state.earlier is not None and state.effect is not EffectClass.READ_ONLY


def _came_too_late(outcome: NotExecuted) -> bool:
    """Whether nobody called the tool: the worker's failure, not the tool's."""
    return outcome.failure is not None and outcome.failure.code is Code.TOOL_NOT_BEGUN


def _word(outcome: ToolOutcome, *, cancelling: bool) -> str:
    """How the attempt ended, for its row."""
    if cancelling or isinstance(outcome, Unsure):
        return outcome.certainty
    failed = isinstance(outcome, NotExecuted) or outcome.failure is not None
    return "failed" if failed else "succeeded"


def _late(state: OperationState, outcome: ToolOutcome, facts: Facts, now_ms: Instant) -> Transition[OperationState]:
    """Attempt n reports after all: believed where it ends the doubt about this very attempt."""
    if state.doubt is None or isinstance(outcome, Unsure):
        return absorb(f"nothing new about attempt {state.n}: the operation is {state.status}")
    if isinstance(outcome, NotExecuted):
        if state.status == "waiting":
            return absorb("the next attempt is due already")
        if _in_doubt_before(state):
            return absorb("an earlier attempt is in doubt as well")
        lost = _came_too_late(outcome)
        failures = state.failures + (state.lost and not lost)
        counted = state.model_copy(update={"lost": lost, "failures": failures})
        return _did_not_happen(counted, outcome.failure or _silent("the tool did nothing"), facts, now_ms)
    return executed(state, outcome, *question_closed(state, "succeeded"))


def _did_not_happen(
    state: OperationState, failure: Failure, facts: Facts, now_ms: Instant
) -> Transition[OperationState]:
    """Attempt n surely had no effect. Once a person was asked, nothing is started again silently (M39)."""
    if state.status != "needs_operator":
        return again(state, failure, Certainty.NOT_EXECUTED, facts, now_ms)
    if state.contradicted is not None:
        return absorb("an earlier attempt says that it happened: the person is asked about both")
    told = failure.model_copy(update={"certainty": Certainty.NOT_EXECUTED})
    known = state.model_copy(update={"doubt": None})
    return finish(known, "failed", *question_closed(state, "failed"), failure=told)


def _probed(state: OperationState, message: ToolProbed, facts: Facts, now_ms: Instant) -> Transition[OperationState]:
    """What the tool's world says about attempt n. A clear answer of an earlier probe counts; a vague one does not."""
    begun = state.probe if state.probing or state.status == "needs_operator" else state.probe - 1
    in_doubt = state.status in ("reconciling", "needs_operator")
    if not in_doubt or message.attempt != state.n or not 1 <= message.probe <= begun:
        return absorb(f"no such probe is under way: the operation is {state.status} at attempt {state.n}")
    match message.outcome:
        case Executed():
            return executed(state, message.outcome, *question_closed(state, "succeeded"))
        case NotExecuted():
            failure = state.doubt or message.outcome.failure or _silent("it did not happen")
            return _did_not_happen(state, failure, facts, now_ms)
        case Unsure():
            if not state.probing or message.probe != state.probe:
                return absorb("an earlier probe knows nothing")
            failure = message.outcome.failure or _unknown("the probe brought no answer")
            return probe_again(state, failure, facts, now_ms)


def _lease_ended(
    state: OperationState, message: OperationLeaseEnded, facts: Facts, now_ms: Instant
) -> Transition[OperationState]:
    """Nobody reported. Believed only once the lease is over, or the store has had another owner since."""
    of_probe = message.probe > 0
    under_way = state.probing if of_probe else state.status == "started"
    if not under_way or message.attempt != state.n or (of_probe and message.probe != state.probe):
        return absorb(f"that lease is settled: the operation is {state.status} at attempt {state.n}")
    if not state.believed_lost(now_ms, facts.incarnation):
        return not_yet(state, at_home(state, message), state.lease_until_ms)
    if of_probe:
        return probe_again(state, _unknown("whoever probed it did not report back"), facts, now_ms)
    end = attempt_ended(state, "unknown", now_ms, None)
    if state.cancelling:
        return cancelled(state, Certainty.UNKNOWN, end)
    failure = _unknown(f"whoever ran attempt {state.n} did not report back")
    return doubtful(state, failure, facts, now_ms, end, lost=True)


def _unknown(message: str) -> Failure:
    return Failure(
        code=Code.OPERATION_OUTCOME_UNKNOWN,
        message=message,
        error_class=ErrorClass.TRANSIENT,
        certainty=Certainty.UNKNOWN,
    )


def _silent(message: str) -> Failure:
    return Failure(code=Code.TOOL_FAILED, message=message)


# ── people and the run ─────────────────────────────────────────────────────────────────


def _settled(state: OperationState, message: ApprovalDecided, facts: Facts) -> Transition[OperationState]:
    """A person said whether it happened; read from the row, never from the message."""
    if state.status != "needs_operator" or message.request_id != state.question_id:
        return absorb(f"nobody waits for request {message.request_id}: the operation is {state.status}")
    outcome = facts.outcome(state.run_id, message.request_id)
    if outcome is None:
        return absorb(f"request {message.request_id} has no outcome")
    request = facts.request(state.run_id, message.request_id)
    try:
        if request is None or not state.question_hash == request.request_hash == outcome.request_hash:
            raise TerminalError(Code.APPROVAL_INTEGRITY_ERROR, "the answer is to another question than was asked")
        verify_request(request)
    except TerminalError as error:
        return refuse(error.code, error.message, run_id=state.run_id)
    by = outcome.decided_by or ""
    known = state.model_copy(update={"doubt": None})
    if outcome.outcome == "executed":
        return finish(known, "succeeded", result_text=canonical_text({"settled_by": by}))
    if outcome.outcome == "not_executed":
        told = f"it did not happen, says {by}: propose the call again if it is still wanted"
        return finish(known, "failed", failure=_final(told, Certainty.NOT_EXECUTED))
    told = f"the question whether it happened was {outcome.outcome}: nobody knows"
    return finish(state, "failed", failure=_final(told, Certainty.UNKNOWN))


def _final(message: str, certainty: Certainty) -> Failure:
    return Failure(code=Code.OPERATION_OUTCOME_UNKNOWN, message=message, certainty=certainty)


def _cancel_unstarted(message: CancelOperation, facts: Facts) -> Transition[OperationState]:
    row = facts.operation(message.run_id, message.operation_id)
    if row is None or row.tenant != message.tenant:
        told = f"there is no operation {message.operation_id} in run {message.run_id}"
        return refuse(Code.NOT_FOUND, told, run_id=message.run_id)
    if facts.status(message.run_id, RUN, "") not in RUN_TERMINAL:
        return absorb("the run has not ended")
    ended = Failure(code=Code.CANCELLED, message="the run has ended", error_class=ErrorClass.CANCELLED)
    return _never_started(message, Refusal(ended, run_ended=True))


def _cancel(state: OperationState, message: CancelOperation, facts: Facts) -> Transition[OperationState]:
    """The run has ended, says the run: start nothing more; what runs gets the signal, its result is evidence."""
    if state.status in OPERATION_TERMINAL or state.cancelling:
        return absorb(f"the operation is {'being cancelled' if state.cancelling else state.status}")
    if facts.status(state.run_id, RUN, "") not in RUN_TERMINAL:
        return absorb("the run has not ended")
    stop = stopped(state, message.reason)
    if state.status == "started":
        return move(state.model_copy(update={"cancelling": True}), Invoke(stop))
    signals: tuple[Effect, ...] = (Invoke(stop),) if state.probing else ()
    certainty = Certainty.NOT_EXECUTED if state.surely_not else Certainty.UNKNOWN
    return cancelled(state, certainty, *signals, *question_closed(state, "cancelled"))
