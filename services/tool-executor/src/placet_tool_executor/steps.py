"""Decides what an operation's steps write and send: its start, the end of an attempt, its own end."""

from __future__ import annotations

from placet import limits
from placet.activities import RunTool, Stop
from placet.calls import Executed
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.instants import Instant, later
from placet.machine import Effect, Invoke, Record, Send, Transition, move, timer
from placet.messages import OPERATION, CloseApproval, OperationDone, OperationLeaseEnded
from placet.rows import AttemptEndRow, AttemptRow
from placet_tool_executor.guard import Permit
from placet_tool_executor.state import OperationState, Status, key_for


def start(
    state: OperationState | None, permit: Permit, incarnation: int, now_ms: Instant
) -> Transition[OperationState]:
    """The next attempt: approval consumed, row, lease and call in one step. The call begins after the commit."""
    row, spec = permit.row, permit.spec
    n = (state.n if state else 0) + 1
    left_ms = spec.timeout_ms if row.deadline_ms is None else row.deadline_ms - now_ms
    timeout_ms = min(spec.timeout_ms, left_ms)
    key = key_for(row.operation_id, n, spec)
    until_ms = later(now_ms, timeout_ms + limits.LEASE_MARGIN_MS)
    started = OperationState(
        tenant=row.tenant,
        run_id=row.run_id,
        status="started",
        operation_id=row.operation_id,
        request_id=row.request_id,
        edited_text=row.input_text if permit.edited else "",
        tool=row.tool,
        pool=spec.pool,
        effect=spec.effect,
        consequential=row.consequential,
        n=n,
        key=key,
        started_at_ms=now_ms,
        lease_until_ms=until_ms,
        incarnation=incarnation,
        before_ms=permit.before_ms,
        failures=state.failures if state else 0,
        earlier=(state.doubt or state.earlier) if state else None,
    )
    attempt = AttemptRow(
        tenant=row.tenant,
        run_id=row.run_id,
        operation_id=row.operation_id,
        n=n,
        fence=n,
        idempotency_key=key,
        incarnation=incarnation,
        started_at_ms=now_ms,
        lease_until_ms=until_ms,
    )
    call = RunTool(
        tenant=row.tenant,
        run_id=row.run_id,
        operation_id=row.operation_id,
        attempt=n,
        tool=row.tool,
        agent=row.agent_name,
        input_text=row.input_text,
        idempotency_key=key,
        timeout_ms=timeout_ms,
        pool=spec.pool,
    )
    lease = timer(lease_ended(started), until_ms)
    return move(started, Record(attempt), Invoke(call), lease, before_ms=permit.before_ms)


def lease_ended(state: OperationState) -> OperationLeaseEnded:
    """The word that comes back if nobody reports on the attempt, or on its probe."""
    return OperationLeaseEnded(
        tenant=state.tenant,
        run_id=state.run_id,
        operation_id=state.operation_id,
        pool=state.pool,
        attempt=state.n,
        probe=state.probe,
        request_id=state.request_id,
    )


def attempt_ended(state: OperationState, ended: str, now_ms: Instant, evidence_text: str | None) -> Record:
    """The row that closes attempt n."""
    return Record(
        AttemptEndRow(
            tenant=state.tenant,
            run_id=state.run_id,
            operation_id=state.operation_id,
            n=state.n,
            ended=ended,
            ended_at_ms=now_ms,
            evidence_text=evidence_text,
        )
    )


def finish(
    state: OperationState,
    status: Status,
    *effects: Effect,
    result_text: str | None = None,
    failure: Failure | None = None,
) -> Transition[OperationState]:
    """The end, and the word to the run."""
    done = OperationDone.model_validate(
        {
            "tenant": state.tenant,
            "run_id": state.run_id,
            "operation_id": state.operation_id,
            "status": status,
            "result_text": result_text,
            "failure": failure,
            "request_id": state.request_id if status == "lapsed" else None,
        }
    )
    return move(state.model_copy(update={"status": status, "probing": False}), *effects, Send(done))


def executed(state: OperationState, outcome: Executed, *effects: Effect) -> Transition[OperationState]:
    """It happened: succeeded, or failed where the tool itself says that it went wrong (what it did, stands)."""
    known = state.model_copy(update={"doubt": None})
    if outcome.failure is None:
        return finish(known, "succeeded", *effects, result_text=outcome.result_text)
    failure = outcome.failure.model_copy(update={"certainty": Certainty.EXECUTED})
    return finish(known, "failed", *effects, failure=failure)


def cancelled(state: OperationState, certainty: Certainty, *effects: Effect) -> Transition[OperationState]:
    """The run has ended. Whether the effect happened is said as far as it is known."""
    failure = Failure(
        code=Code.CANCELLED, message="the run has ended", error_class=ErrorClass.CANCELLED, certainty=certainty
    )
    return finish(state, "cancelled", *effects, failure=failure)


def question_closed(state: OperationState, now_is: Status) -> tuple[Send, ...]:
    """Closes what a person is being asked, because the answer has come from elsewhere or is no longer wanted."""
    if state.status != "needs_operator" or state.question_id is None:
        return ()
    close = CloseApproval(
        tenant=state.tenant,
        run_id=state.run_id,
        request_id=state.question_id,
        outcome="cancelled" if now_is == "cancelled" else "superseded",
        reason=f"the operation is {now_is}",
    )
    return (Send(close),)


def stopped(state: OperationState, reason: str) -> Stop:
    """The signal to whatever runs for this operation."""
    return Stop(tenant=state.tenant, run_id=state.run_id, machine=OPERATION, key=state.operation_id, reason=reason)
