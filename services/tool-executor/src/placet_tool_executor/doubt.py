"""Decides what follows an attempt that did not succeed: again, a probe, a question to a person, or the end.

Where nobody knows whether the effect happened, the effect class decides (reliability b15): what may be repeated is
repeated; what can be asked about is probed, sealed first where the tool can, else once its world is quiet; for the
rest a person is asked "did it happen?". Nothing is guessed.
"""

from __future__ import annotations

from placet import limits
from placet.activities import ProbeTool
from placet.calls import EffectClass, ToolSpec
from placet.canonical import parse_canonical
from placet.errors import Certainty, Code, ContractError, Failure
from placet.facts import Facts
from placet.instants import Instant, later, rfc3339
from placet.machine import Effect, Invoke, Record, Send, Transition, absorb, move, not_yet, timer
from placet.messages import (
    OPERATION,
    OperationDoubtful,
    ProbeOperation,
    RequestApproval,
    RetryOperation,
)
from placet.requests import ApprovalRequest, OperationOutcomeContent, boundary_of, create_request
from placet.retries import BUSY_WORKER, LOST_WORKER, RetryDecision, RetryInputs, RetryPolicy, decide
from placet.rows import RetryRow
from placet_tool_executor.pools import at_home, elsewhere
from placet_tool_executor.state import REPEATABLE, OperationState
from placet_tool_executor.steps import finish, lease_ended

PROBES = RetryPolicy(attempts_max=8, delay_ms_max=60_000)
"""A probe is a read. When eight of them, over about two minutes, brought no answer, a person is asked."""


def doubtful(
    state: OperationState, failure: Failure, facts: Facts, now_ms: Instant, *effects: Effect, lost: bool
) -> Transition[OperationState]:
    """Nobody knows the outcome of attempt n. `lost`: because its worker is gone, not because the tool says so."""
    unsure = state.model_copy(
        update={
            "doubt": failure.model_copy(update={"certainty": Certainty.UNKNOWN}),
            "lost": lost,
            "failures": state.failures + (not lost),
        }
    )
    if state.effect is not EffectClass.RECONCILABLE:
        return again(unsure, failure, Certainty.UNKNOWN, facts, now_ms, *effects)
    spec = facts.tool(state.tool)
    if spec is None or not (unsure.seals(spec) or spec.can_reconcile):
        return ask(unsure, facts, now_ms, *effects)
    # A request may still be on its way, so that silence means "never" only once this time is over. Whoever sent it is
    # gone when its lease has ended, or at once where the whole process is known to be dead.
    is_dead = facts.incarnation > state.incarnation
    quiet_ms = later(now_ms if is_dead else state.lease_until_ms, spec.quiescence_ms)
    due_ms = now_ms if unsure.seals(spec) else quiet_ms
    return _probe_at(unsure, 1, due_ms, now_ms, *effects)


# ── again ──────────────────────────────────────────────────────────────────────────────


def again(
    state: OperationState,
    failure: Failure,
    certainty: Certainty,
    facts: Facts,
    now_ms: Instant,
    *effects: Effect,
) -> Transition[OperationState]:
    """What the one retry rule says, written down with its inputs.

    A lost worker is not the tool's failure: such attempts do not count against the tool's policy, only against
    ATTEMPTS_MAX, and are repeated at once; after the rule's delay where the worker lives and has too much to do.
    """
    if state.contradicted is not None:
        return ask(state, facts, now_ms, *effects)
    spec = facts.tool(state.tool)
    counted = state.n if state.lost or state.n >= limits.ATTEMPTS_MAX else max(state.failures, 1)
    inputs = RetryInputs(
        subject=state.operation_id,
        error_class=failure.error_class,
        certainty=certainty,
        repeatable=state.effect in REPEATABLE,
        attempt=counted,
        deadline_left_ms=None if state.before_ms is None else state.before_ms - now_ms,
        retry_after_ms=failure.retry_after_ms,
        policy=_policy(state, failure, spec),
    )
    decision = decide(inputs)
    written = _written(state, inputs, decision, state.n, now_ms)
    if decision.action == "retry":
        return _retry_after(state, certainty, decision.delay_ms, now_ms, *effects, written)
    if decision.action == "ask" or (certainty is Certainty.UNKNOWN and must_ask(state)):
        return ask(state, facts, now_ms, *effects, written)
    told = failure.model_copy(
        update={"certainty": certainty, "details": {**failure.details, "gave_up": decision.reason}}
    )
    return finish(state, "failed", *effects, written, failure=told)


def _policy(state: OperationState, failure: Failure, spec: ToolSpec | None) -> RetryPolicy:
    if failure.code is Code.TOOL_NOT_BEGUN:
        return BUSY_WORKER
    if state.lost:
        return LOST_WORKER
    return spec.retry if spec is not None else RetryPolicy()


def must_ask(state: OperationState) -> bool:
    """Whether an effect that perhaps happened must not be told as a mere failure: the agent might propose it anew."""
    if state.effect is EffectClass.IDEMPOTENT:
        return state.consequential
    return state.effect is not EffectClass.READ_ONLY


def _retry_after(
    state: OperationState, certainty: Certainty, delay_ms: int, now_ms: Instant, *effects: Effect
) -> Transition[OperationState]:
    due_ms = later(now_ms, delay_ms)
    waiting = state.model_copy(
        update={
            "status": "waiting",
            "due_ms": due_ms,
            "probing": False,
            "doubt": state.doubt if certainty is Certainty.UNKNOWN else None,
        }
    )
    retry = RetryOperation(
        tenant=state.tenant,
        run_id=state.run_id,
        operation_id=state.operation_id,
        pool=state.pool,
        attempt=state.n + 1,
        request_id=state.request_id,
    )
    return move(waiting, *effects, Send(retry, not_before=due_ms if delay_ms else None))


def _written(
    state: OperationState, inputs: RetryInputs, decision: RetryDecision, attempt: int, now_ms: Instant
) -> Record:
    return Record(
        RetryRow(
            tenant=state.tenant,
            run_id=state.run_id,
            machine=OPERATION,
            key=state.operation_id,
            subject=inputs.subject,
            attempt=attempt,
            inputs_text=inputs.model_dump_json(),
            decision_text=decision.model_dump_json(),
            decided_at_ms=now_ms,
        )
    )


# ── a probe ────────────────────────────────────────────────────────────────────────────


def _probe_at(
    state: OperationState, probe: int, due_ms: Instant, now_ms: Instant, *effects: Effect
) -> Transition[OperationState]:
    reconciling = state.model_copy(update={"status": "reconciling", "probe": probe, "probing": False, "due_ms": due_ms})
    message = ProbeOperation(
        tenant=state.tenant,
        run_id=state.run_id,
        operation_id=state.operation_id,
        pool=state.pool,
        attempt=state.n,
        probe=probe,
    )
    return move(reconciling, *effects, Send(message, not_before=due_ms if due_ms > now_ms else None))


def begin_probe(
    state: OperationState, message: ProbeOperation, facts: Facts, now_ms: Instant, served: str | None
) -> Transition[OperationState]:
    """Ask the tool's world about attempt n, under a lease of its own. `served`: the pool of this process; None: all."""
    expected = state.status == "reconciling" and not state.probing
    if not expected or (message.attempt, message.probe) != (state.n, state.probe):
        return absorb("no such probe is due")
    if now_ms < state.due_ms:  # a late request of the attempt might still arrive
        return not_yet(state, at_home(state, message), state.due_ms)
    row = facts.operation(state.run_id, state.operation_id)
    spec = facts.tool(state.tool)
    if row is None or spec is None or not (state.seals(spec) or spec.can_reconcile):
        return ask(state, facts, now_ms)
    if served is not None and spec.pool != served:
        return elsewhere(message, spec, now_ms)
    call = ProbeTool(
        tenant=state.tenant,
        run_id=state.run_id,
        operation_id=state.operation_id,
        attempt=state.n,
        probe=state.probe,
        tool=state.tool,
        agent=row.agent_name,
        input_text=state.edited_text or row.input_text,
        idempotency_key=state.key,
        seal=state.seals(spec),
        timeout_ms=spec.timeout_ms,
        pool=spec.pool,
    )
    until_ms = later(now_ms, spec.timeout_ms + limits.LEASE_MARGIN_MS)
    probing = state.model_copy(
        update={"probing": True, "lease_until_ms": until_ms, "incarnation": facts.incarnation, "pool": spec.pool}
    )
    return move(probing, Invoke(call), timer(lease_ended(probing), until_ms))


def probe_again(state: OperationState, failure: Failure, facts: Facts, now_ms: Instant) -> Transition[OperationState]:
    """The probe brought no answer: another one by the retry rule, and in the end a person."""
    inputs = RetryInputs(
        subject=f"{state.operation_id}/probe/{state.n}",
        error_class=failure.error_class,
        certainty=Certainty.UNKNOWN,
        repeatable=True,
        attempt=state.probe,
        retry_after_ms=failure.retry_after_ms,
        policy=PROBES,
    )
    decision = decide(inputs)
    written = _written(state, inputs, decision, state.probe, now_ms)
    if decision.action == "retry":
        return _probe_at(state, state.probe + 1, later(now_ms, decision.delay_ms), now_ms, written)
    return ask(state, facts, now_ms, written)


# ── a person ───────────────────────────────────────────────────────────────────────────


def ask(state: OperationState, facts: Facts, now_ms: Instant, *effects: Effect) -> Transition[OperationState]:
    """Ask a person whether attempt n had its effect, and tell the run that its call waits for that answer."""
    question = _question(state, facts, now_ms)
    if isinstance(question, Failure):
        return finish(state, "failed", *effects, failure=question)
    asked = state.model_copy(
        update={
            "status": "needs_operator",
            "probing": False,
            "question_id": question.request_id,
            "question_hash": question.request_hash,
        }
    )
    request = RequestApproval(
        tenant=state.tenant,
        run_id=state.run_id,
        request_id=question.request_id,
        request=question,
        asker_pool=state.pool,
    )
    told = OperationDoubtful(
        tenant=state.tenant,
        run_id=state.run_id,
        operation_id=state.operation_id,
        request_id=question.request_id,
    )
    return move(asked, *effects, Send(request), Send(told))


def _question(state: OperationState, facts: Facts, now_ms: Instant) -> ApprovalRequest | Failure:
    """The frozen question; a failure with an unknown outcome where it cannot even be put."""
    known = [state.doubt.message if state.doubt is not None else None, state.contradicted]
    why = "; ".join(text for text in known if text is not None) or "nobody knows the outcome"
    row = facts.operation(state.run_id, state.operation_id)
    if row is None:
        return _unaskable(f"the operation's row is missing; {why}")
    try:
        given = parse_canonical(state.edited_text or row.input_text)
        content = OperationOutcomeContent(
            operation_id=row.operation_id,
            tool_name=row.tool,
            input=given if isinstance(given, dict) else {},
            agent_name=row.agent_name,
            task_id=row.task_id,
            tool_call_id=row.call_id,
            started_at=rfc3339(state.started_at_ms),
            reason=why,
        )
        return create_request(
            tenant=state.tenant,
            run_id=state.run_id,
            scope=content.kind,
            boundary=boundary_of(content),
            content=content,
            requested_at_ms=now_ms,
            reason=why,
            initiator=row.initiator,
            tool_version=row.tool_version,
            tool_schema_digest=row.tool_schema_digest,
            policy_version=row.policy_version,
            policy_digest=row.policy_digest,
            app_version=row.app_version,
            asker_machine=OPERATION,
            asker_key=state.operation_id,
        )
    except (ContractError, ValueError) as error:
        return _unaskable(f"{why}; nor can a person be asked: {error}")


def _unaskable(message: str) -> Failure:
    return Failure(code=Code.OPERATION_OUTCOME_UNKNOWN, message=message, certainty=Certainty.UNKNOWN)
