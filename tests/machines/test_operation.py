"""One side effect: who may start it, that no two attempts run at once, and what a crash comes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from placet import limits
from placet.activities import ProbeTool, RunTool, Stop
from placet.calls import EffectClass, Executed, NotExecuted, Unsure
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.instants import Instant
from placet.messages import (
    CloseApproval,
    OperationDone,
    OperationDoubtful,
    OperationLeaseEnded,
    ProbeOperation,
    RequestApproval,
    RetryOperation,
    TakeTurn,
)
from placet.requests import verify_request
from placet.retries import RetryDecision, RetryInputs, RetryPolicy, decide
from placet.rows import AttemptEndRow, AttemptRow, OutcomeRow, RequestRow, RetryRow
from placet.statuses import OPERATION_STATUSES, OPERATION_TERMINAL, RUN_TERMINAL
from placet_tool_executor.machine import OperationMachine
from tests.builders import FakeApplication
from tests.cases import case
from tests.machines.bench import (
    ELSEWHERE,
    RUN_ID,
    T0,
    TENANT,
    code,
    every,
    invoked,
    recorded,
    reply,
    sent,
    timers,
)
from tests.machines.builders_operation import (
    DENIED,
    DONE,
    LEASE_MS,
    NOT_DONE,
    OPERATION_ID,
    QUIESCENCE_MS,
    TIMED_OUT,
    TIMEOUT_MS,
    TRANSIENT,
    UNSURE,
    USE_BY_MS,
    OperationBench,
    a_call_request,
    a_content,
)


def done(transition: Any) -> OperationDone:
    """The one word to the run that the operation has ended."""
    [message] = sent(transition, OperationDone)
    assert isinstance(message, OperationDone)
    return message


def ended(transition: Any) -> list[tuple[int, str]]:
    """The attempts that a transition closes, and how."""
    return [(row.n, row.ended) for row in recorded(transition, AttemptEndRow)]


# ── the start ──────────────────────────────────────────────────────────────────────────


@case("F02")
def test_an_approved_operation_that_was_never_started_is_started() -> None:
    bench = OperationBench()
    started = bench.give(bench.execute())
    [attempt] = recorded(started)
    assert attempt == AttemptRow(
        tenant=TENANT,
        run_id=RUN_ID,
        operation_id=OPERATION_ID,
        n=1,
        fence=1,
        idempotency_key=OPERATION_ID,
        incarnation=0,
        started_at_ms=T0,
        lease_until_ms=T0 + LEASE_MS,
    )
    assert invoked(started) == [
        RunTool(
            tenant=TENANT,
            run_id=RUN_ID,
            operation_id=OPERATION_ID,
            attempt=1,
            tool="deploy",
            agent="operator",
            input_text='{"env":"staging"}',
            idempotency_key=OPERATION_ID,
            timeout_ms=TIMEOUT_MS,
            deadline_ms=None,
        )
    ]
    assert timers(started) == [(bench.lease_end(), T0 + LEASE_MS)]
    assert sent(started, OperationDone) == []


def test_a_call_that_a_policy_allowed_needs_no_approval() -> None:
    bench = OperationBench(authority="policy")
    started = bench.give(bench.execute())
    assert invoked(started, RunTool)
    assert started.before_ms is None


@pytest.mark.parametrize(
    ("deadline_ms", "before_ms", "timeout_ms"),
    [(None, USE_BY_MS, 1_000), (T0 + 400, T0 + 400, 400), (USE_BY_MS + 1, USE_BY_MS, 1_000)],
)
def test_a_start_must_commit_before_use_by_and_deadline(
    deadline_ms: int | None, before_ms: int, timeout_ms: int
) -> None:
    started = (bench := OperationBench(row={"deadline_ms": deadline_ms})).give(bench.execute())
    assert started.before_ms == before_ms
    [call] = invoked(started, RunTool)
    assert (call.timeout_ms, call.deadline_ms) == (timeout_ms, deadline_ms)


@case("F14")
def test_a_second_start_finds_the_approval_consumed() -> None:
    bench = OperationBench().started()
    second = bench.give(bench.execute())
    assert (second.kind, code(second)) == ("absorbed", Code.OPERATION_CONSUMED)
    assert Code.OPERATION_CONSUMED in second.reason
    assert len(bench.all_written(AttemptRow)) == 1
    bench.give(bench.returned())
    assert code(bench.give(bench.execute())) is Code.OPERATION_CONSUMED


@case("G19")
def test_a_redelivery_before_the_start_is_committed_is_no_attempt() -> None:
    bench = OperationBench()
    for _ in range(3):
        assert [call.attempt for call in invoked(bench.look(bench.execute()))] == [1]
    assert bench.started().state.n == 1


# ── the guard of every start ───────────────────────────────────────────────────────────


def _other_outcome(**changes: Any) -> Callable[[OperationBench], None]:
    return lambda bench: bench.decide("approved", **changes)


def _other_tool(**changes: Any) -> Callable[[OperationBench], None]:
    def change(bench: OperationBench) -> None:
        bench.app.tools["deploy"] = bench.spec.model_copy(update=changes)

    return change


def _other_schema(answer: object) -> Callable[[OperationBench], None]:
    def change(bench: OperationBench) -> None:
        bench.app.schemas["deploy"] = lambda raw: answer  # type: ignore[assignment,return-value]

    return change


def _other_request(**changes: Any) -> Callable[[OperationBench], None]:
    """The stored question says something else than the operation, consistently or not."""

    def change(bench: OperationBench) -> None:
        edited = bench.request.model_copy(update=changes)
        key = RequestRow(tenant=TENANT, run_id=RUN_ID, request=bench.request).fact_key()
        bench.rows[key] = RequestRow(tenant=TENANT, run_id=RUN_ID, request=edited)

    return change


def _without_request(bench: OperationBench) -> None:
    del bench.rows[RequestRow(tenant=TENANT, run_id=RUN_ID, request=bench.request).fact_key()]


def _reviewed_otherwise(**content: Any) -> Callable[[OperationBench], None]:
    """A question about another call that was approved, put in the place of the operation's own."""

    def change(bench: OperationBench) -> None:
        other = a_call_request(a_content(**content))
        row = {"request_id": other.request_id, "request_hash": other.request_hash}
        bench.row = bench.row.model_copy(update=row)
        bench.put(bench.row, RequestRow(tenant=TENANT, run_id=RUN_ID, request=other))
        bench.decide("approved", other)

    return change


REFUSALS: list[tuple[str, Code, Callable[[OperationBench], Any]]] = [
    ("rejected", Code.OPERATION_NOT_APPROVED, lambda bench: bench.decide("rejected")),
    ("cancelled", Code.OPERATION_NOT_APPROVED, lambda bench: bench.decide("cancelled")),
    ("superseded", Code.OPERATION_NOT_APPROVED, lambda bench: bench.decide("superseded")),
    ("executed", Code.OPERATION_NOT_APPROVED, lambda bench: bench.decide("executed")),
    ("expired", Code.APPROVAL_EXPIRED, lambda bench: bench.decide("expired")),
    ("revoked", Code.APPROVAL_REVOKED, OperationBench.revoke),
    ("past use-by", Code.APPROVAL_EXPIRED, lambda bench: bench.later(600_000)),
    ("outcome's hash", Code.APPROVAL_STALE_DECISION, _other_outcome(request_hash="0" * 64)),
    ("another tenant's outcome", Code.APPROVAL_INTEGRITY_ERROR, _other_outcome(tenant=ELSEWHERE)),
    ("no request row", Code.APPROVAL_INTEGRITY_ERROR, _without_request),
    ("request's hash", Code.APPROVAL_INTEGRITY_ERROR, _other_request(request_hash="0" * 64)),
    ("request's content", Code.APPROVAL_INTEGRITY_ERROR, _other_request(content_text='{"kind":"plan"}')),
    ("request's tenant", Code.APPROVAL_INTEGRITY_ERROR, _other_request(tenant=ELSEWHERE)),
    ("another input", Code.APPROVAL_STALE_DECISION, _reviewed_otherwise(input={"env": "production"})),
    ("another tool", Code.APPROVAL_STALE_DECISION, _reviewed_otherwise(tool_name="destroy")),
    ("another call", Code.APPROVAL_STALE_DECISION, _reviewed_otherwise(tool_call_id="call-2")),
    ("another task", Code.APPROVAL_STALE_DECISION, _reviewed_otherwise(task_id="task-2")),
    ("another agent", Code.APPROVAL_STALE_DECISION, _reviewed_otherwise(agent_name="intern")),
    ("not consequential", Code.APPROVAL_STALE_DECISION, _reviewed_otherwise(consequential=False)),
    ("tool gone", Code.TOOL_UNKNOWN, lambda bench: bench.app.tools.clear()),
    ("tool's version", Code.APPROVAL_STALE_DECISION, _other_tool(version="2")),
    ("tool's schema", Code.APPROVAL_STALE_DECISION, _other_tool(schema_digest="1" * 64)),
    ("tool's effect", Code.APPROVAL_STALE_DECISION, _other_tool(effect=EffectClass.NON_RETRIABLE)),
    ("tool's consequence", Code.APPROVAL_STALE_DECISION, _other_tool(consequential=False)),
    ("a new default", Code.APPROVAL_STALE_DECISION, _other_schema({"env": "staging", "force": False})),
    ("a default that is no JSON", Code.TOOL_INPUT_INVALID, _other_schema({"env": float("nan")})),
    (
        "input refused",
        Code.TOOL_INPUT_INVALID,
        _other_schema(Failure(code=Code.TOOL_INPUT_INVALID, message="env is no longer a field")),
    ),
]


@pytest.mark.parametrize(("expected", "change"), [pytest.param(c, f, id=name) for name, c, f in REFUSALS])
def test_nothing_starts_when_a_guard_says_no(expected: Code, change: Callable[[OperationBench], Any]) -> None:
    bench = OperationBench()
    change(bench)
    refused = bench.give(bench.execute())
    assert invoked(refused) == recorded(refused) == []
    assert bench.state.status == "refused"
    message = done(refused)
    assert (message.status, message.failure and message.failure.code) == ("refused", expected)


@pytest.mark.parametrize(("expected", "change"), [pytest.param(c, f, id=name) for name, c, f in REFUSALS])
def test_a_retry_is_held_to_the_same_guards(expected: Code, change: Callable[[OperationBench], Any]) -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    request_id = bench.row.request_id
    change(bench)
    if bench.row.request_id != request_id:
        assert bench.give(bench.retry(request_id=request_id)).kind == "absorbed", "the row is another one"
        return
    refused = bench.give(bench.retry())
    assert invoked(refused) == recorded(refused) == []
    message = done(refused)
    assert (message.status, message.failure and message.failure.code) == ("refused", expected)
    assert message.failure is not None
    assert message.failure.certainty is Certainty.NOT_EXECUTED


@case("M25")
def test_an_approval_that_was_taken_back_starts_nothing() -> None:
    bench = OperationBench()
    bench.revoke()
    refused = done(bench.give(bench.execute()))
    assert refused.failure is not None
    assert refused.failure.code is Code.APPROVAL_REVOKED
    assert bench.all_written(AttemptRow) == []


@case("M07")
@pytest.mark.parametrize("late_ms", [0, 1, 86_400_000])
def test_an_approval_that_was_not_used_in_time_starts_nothing(late_ms: int) -> None:
    bench = OperationBench()
    bench.now_ms = Instant(USE_BY_MS + late_ms)
    refused = done(bench.give(bench.execute()))
    assert refused.failure is not None
    assert refused.failure.code is Code.APPROVAL_EXPIRED
    assert bench.all_written(AttemptRow) == []


@case("D13", "M51")
@pytest.mark.parametrize("change", [_other_tool(version="2"), _other_schema({"env": "staging", "force": False})])
def test_a_tool_that_is_another_one_today_makes_the_approval_stale(change: Callable[[OperationBench], Any]) -> None:
    bench = OperationBench()
    change(bench)
    refused = bench.give(bench.execute())
    assert done(refused).failure.code is Code.APPROVAL_STALE_DECISION  # type: ignore[union-attr]
    assert bench.give(bench.retry()).kind == "absorbed", "one try only, whatever the policy says"


def test_an_operation_past_its_deadline_is_not_started() -> None:
    bench = OperationBench(row={"deadline_ms": T0})
    assert done(bench.give(bench.execute())).failure.code is Code.DEADLINE  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "row",
    [
        {"authority": "hope"},
        {"authority": "policy"},
        {"authority": "approval", "request_id": None},
        {"authority": "", "request_id": None},
    ],
)
def test_an_authority_nobody_knows_is_none(row: dict[str, Any]) -> None:
    bench = OperationBench(row=row)
    assert done(bench.give(bench.execute())).failure.code is Code.OPERATION_NOT_APPROVED  # type: ignore[union-attr]


@pytest.mark.parametrize("raw_input_text", ["{", "[]", '{"env":"staging","env":"staging"}', '{"env":NaN}'])
def test_an_input_that_cannot_be_read_is_not_executed(raw_input_text: str) -> None:
    bench = OperationBench(row={"raw_input_text": raw_input_text})
    assert done(bench.give(bench.execute())).status == "refused"


def test_no_arguments_at_all_stand_for_an_empty_object() -> None:
    bench = OperationBench(authority="policy", row={"raw_input_text": "", "input_text": "{}"})
    assert invoked(bench.give(bench.execute()), RunTool)[0].input_text == "{}"


@pytest.mark.parametrize("status", sorted(RUN_TERMINAL))
def test_nothing_starts_for_a_run_that_has_ended(status: str) -> None:
    bench = OperationBench()
    bench.run_is(status)
    cancelled = bench.give(bench.execute())
    assert invoked(cancelled) == recorded(cancelled) == []
    assert done(cancelled).status == "cancelled"


# ── hints that say nothing true ────────────────────────────────────────────────────────


@case("C20")
def test_a_hint_without_a_decision_starts_nothing_and_loses_nothing() -> None:
    bench = OperationBench(outcome=None)
    early = bench.give(bench.execute())
    assert (early.kind, bench.state) == ("absorbed", None)
    bench.decide("approved")
    assert invoked(bench.give(bench.execute()), RunTool)


@pytest.mark.parametrize(
    "changes",
    [{"operation_id": "op_forged"}, {"request_id": None}, {"request_id": "apr_forged"}, {"tenant": ELSEWHERE}],
)
def test_a_forged_hint_is_harmless(changes: dict[str, Any]) -> None:
    bench = OperationBench()
    assert bench.give(bench.execute(**changes)).kind == "absorbed"
    assert invoked(bench.give(bench.execute()), RunTool)


def test_a_policy_cannot_be_claimed_for_an_operation_that_waits_for_a_person() -> None:
    bench = OperationBench(outcome=None)
    assert bench.give(bench.execute(request_id=None)).kind == "absorbed"


def test_without_a_run_nothing_starts() -> None:
    bench = OperationBench()
    bench.rows = {key: row for key, row in bench.rows.items() if key.table != "state"}
    assert bench.give(bench.execute()).kind == "absorbed"


def test_another_tenants_operation_looks_like_none() -> None:
    known, unknown = OperationBench("peeking").probing(), OperationBench("peeking")
    for name, message in known.every_message().items():
        foreign = message.model_copy(update={"tenant": ELSEWHERE})
        here, nowhere = known.look(foreign), unknown.look(foreign)
        assert here.kind == nowhere.kind != "moved", name
        assert here.failure == nowhere.failure, name


# ── results ────────────────────────────────────────────────────────────────────────────


def test_a_result_ends_attempt_and_operation_in_one_step() -> None:
    bench = OperationBench().started()
    succeeded = bench.give(bench.returned())
    [end] = recorded(succeeded)
    assert (end.n, end.ended, end.evidence_text) == (1, "succeeded", DONE.model_dump_json())
    assert (done(succeeded).status, done(succeeded).result_text) == ("succeeded", '{"tag":"v1"}')
    assert bench.state.status == "succeeded"


def test_a_tool_that_ran_and_went_wrong_is_not_tried_again() -> None:
    bench = OperationBench().started()
    failed = bench.give(bench.returned(Executed(failure=TRANSIENT)))
    assert ended(failed) == [(1, "failed")]
    message = done(failed)
    assert message.failure is not None
    assert (message.status, message.failure.certainty) == ("failed", Certainty.EXECUTED)


@pytest.mark.parametrize("effect", ["read_only", "idempotent", "sealing", "peeking", "non_retriable"])
def test_what_surely_had_no_effect_is_tried_again_by_the_policy(effect: str) -> None:
    bench = OperationBench(effect).started()
    for n in (1, 2):
        failed = bench.give(bench.returned(NOT_DONE))
        assert ended(failed) == [(n, "failed")]
        [(retry, due_ms)] = timers(failed)
        assert retry == bench.retry(n + 1)
        assert bench.state.status == "waiting"
        assert bench.give(retry).kind == "absorbed", "not before the back-off is over"
        bench.now_ms = Instant(due_ms)
        assert invoked(bench.give(retry), RunTool)[0].attempt == n + 1
    given_up = bench.give(bench.returned(NOT_DONE))
    message = done(given_up)
    assert message.failure is not None
    assert (message.status, message.failure.code, message.failure.details) == (
        "failed", Code.TOOL_FAILED, {"gave_up": "attempts"},
    )  # fmt: skip
    assert [row.n for row in bench.all_written(AttemptRow)] == [1, 2, 3]


@case("G04", "G06")
@pytest.mark.parametrize("error_class", [c for c in ErrorClass if c not in (ErrorClass.TRANSIENT, ErrorClass.TIMEOUT)])
def test_a_failure_that_cannot_pass_ends_the_operation_at_once(error_class: ErrorClass) -> None:
    bench = OperationBench().started()
    failure = DENIED.model_copy(update={"error_class": error_class})
    assert done(bench.give(bench.returned(NotExecuted(failure=failure)))).status == "failed"
    assert len(bench.all_written(AttemptRow)) == 1


def test_a_tool_that_does_not_say_why_is_not_tried_again() -> None:
    bench = OperationBench().started()
    message = done(bench.give(bench.returned(NotExecuted())))
    assert message.failure is not None
    assert message.failure.code is Code.TOOL_FAILED


@case("G04")
def test_no_retry_is_planned_that_could_not_start_in_time() -> None:
    bench = OperationBench(row={"deadline_ms": T0 + 400}).started()
    message = done(bench.give(bench.returned(NOT_DONE)))
    assert message.failure is not None
    assert message.failure.details == {"gave_up": "deadline"}


@case("G17")
def test_each_decision_about_a_retry_is_stored_with_its_inputs() -> None:
    bench = OperationBench().started()
    for _ in range(3):
        bench.give(bench.returned(NOT_DONE))
        bench.later(5_000)
        bench.give(bench.retry())
    rows = bench.all_written(RetryRow)
    assert [(row.subject, row.attempt) for row in rows] == [(OPERATION_ID, n) for n in (1, 2, 3)]
    for row in rows:
        inputs = RetryInputs.model_validate_json(row.inputs_text)
        assert (inputs.subject, inputs.error_class, inputs.policy) == (OPERATION_ID, "transient", bench.spec.retry)
        assert inputs.deadline_left_ms == USE_BY_MS - row.decided_at_ms
        assert decide(inputs) == RetryDecision.model_validate_json(row.decision_text)


@pytest.mark.parametrize("outcome", [DONE, NOT_DONE, UNSURE])
def test_a_result_of_an_earlier_attempt_changes_nothing(outcome: Any) -> None:
    bench = OperationBench().started()
    bench.lose_worker()
    bench.give(bench.retry())
    assert bench.state.n == 2
    assert bench.give(bench.returned(outcome, attempt=1)).kind == "absorbed"
    assert bench.give(bench.returned(outcome, attempt=3)).kind == "absorbed", "nor of one that was never begun"


# ── crash windows ──────────────────────────────────────────────────────────────────────


@case("F20")
def test_the_two_crash_windows_are_told_apart_by_the_record_alone() -> None:
    never_started = OperationBench("non_retriable")
    assert invoked(never_started.give(never_started.execute()), RunTool)
    started = OperationBench("non_retriable").started()
    started.later(LEASE_MS)
    again = started.give(started.execute())
    assert (again.kind, invoked(again)) == ("absorbed", [])
    assert sent(started.give(started.lease_end()), OperationDoubtful)


@case("F03", "F04")
@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_a_lost_attempt_of_a_repeatable_tool_is_made_again_under_the_same_key(effect: str) -> None:
    bench = OperationBench(effect, retry=RetryPolicy()).started()
    lost = bench.lose_worker()
    assert ended(lost) == [(1, "unknown")]
    assert sent(lost) == [bench.retry(2)]
    assert timers(lost) == [], "at once: a lost worker says nothing about the tool"
    [call] = invoked(bench.give(bench.retry(2)), RunTool)
    assert (call.attempt, call.idempotency_key) == (2, OPERATION_ID)
    assert {row.idempotency_key for row in bench.all_written(AttemptRow)} == {OPERATION_ID}
    assert done(bench.give(bench.returned())).status == "succeeded"


@case("F03")
def test_a_lost_attempt_that_must_not_be_repeated_is_a_persons_question() -> None:
    bench = OperationBench("non_retriable").started()
    lost = bench.lose_worker()
    assert ended(lost) == [(1, "unknown")]
    assert invoked(lost) == []
    [request] = sent(lost, RequestApproval)
    verify_request(request.request)
    question = json.loads(request.request.content_text)
    assert question == {
        "kind": "operation_outcome",
        "operationId": OPERATION_ID,
        "toolName": "deploy",
        "input": {"env": "staging"},
        "agentName": "operator",
        "taskId": "task-1",
        "toolCallId": "call-1",
        "startedAt": "2026-08-08T00:00:00.000Z",
        "reason": "whoever ran attempt 1 did not report back",
    }
    assert (request.request.asker_machine, request.request.asker_key) == ("operation", OPERATION_ID)
    assert [message.request_id for message in sent(lost, OperationDoubtful)] == [request.request_id]
    assert [json.loads(row.decision_text)["action"] for row in recorded(lost, RetryRow)] == ["ask"]
    assert bench.state.status == "needs_operator"


@pytest.mark.parametrize("wait_ms", [0, LEASE_MS - 1])
def test_a_lease_is_not_over_because_somebody_says_so(wait_ms: int) -> None:
    bench = OperationBench().started()
    bench.later(wait_ms)
    assert bench.give(bench.lease_end()).kind == "absorbed"
    assert bench.state.status == "started"


def test_a_new_owner_of_the_store_knows_at_once_that_the_old_ones_work_is_lost() -> None:
    bench = OperationBench()
    bench.incarnation = 4
    bench.started()
    assert bench.give(bench.lease_end()).kind == "absorbed"
    bench.incarnation = 5
    assert sent(bench.give(bench.lease_end())) == [bench.retry(2)]
    bench.give(bench.retry(2))
    assert [row.incarnation for row in bench.all_written(AttemptRow)] == [4, 5]


@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_workers_that_are_lost_for_ever_end_in_a_bounded_number_of_attempts(effect: str) -> None:
    bench = OperationBench(effect, retry=RetryPolicy(), consequential=effect != "read_only").started()
    for _ in range(limits.ATTEMPTS_MAX - 1):
        bench.lose_worker()
        bench.give(bench.retry())
    last = bench.lose_worker()
    assert len(bench.all_written(AttemptRow)) == limits.ATTEMPTS_MAX
    assert bench.state.status == ("failed" if effect == "read_only" else "needs_operator")
    assert recorded(last, RetryRow)[0].attempt == limits.ATTEMPTS_MAX


def test_lost_workers_and_failures_of_the_tool_are_counted_apart() -> None:
    bench = OperationBench("read_only", retry=RetryPolicy(attempts_max=2)).started()
    for _ in range(5):
        bench.lose_worker()
        bench.give(bench.retry())
    assert sent(bench.give(bench.returned(NOT_DONE)), RetryOperation), "the tool's first failure"
    bench.later(1_000)
    bench.give(bench.retry())
    assert done(bench.give(bench.returned(NOT_DONE))).status == "failed", "its second"
    assert bench.state.n == 7


@pytest.mark.parametrize("outcome", [NOT_DONE, NotExecuted(failure=DENIED), NotExecuted()])
def test_that_a_repetition_did_nothing_says_nothing_about_the_attempt_before_it(outcome: Any) -> None:
    bench = OperationBench(retry=RetryPolicy()).started()
    bench.lose_worker()
    bench.give(bench.retry())
    last = bench.give(bench.returned(outcome))
    assert sent(last, OperationDone) == [], "attempt 1 may have had its effect"
    assert len(sent(last, OperationDoubtful)) == 1
    assert bench.give(bench.returned(outcome)).kind == "absorbed", "nor does it when it comes again"
    bench.run_is("cancelled")
    message = done(bench.give(bench.cancel()))
    assert message.failure is not None
    assert message.failure.certainty is Certainty.UNKNOWN


def test_a_cancelled_repetition_does_not_deny_the_attempt_before_it() -> None:
    bench = OperationBench().started()
    bench.lose_worker()
    bench.give(bench.retry())
    bench.run_is("cancelled")
    bench.give(bench.cancel())
    message = done(bench.give(bench.returned(NOT_DONE)))
    assert message.failure is not None
    assert message.failure.certainty is Certainty.UNKNOWN


@pytest.mark.parametrize(("effect", "repeats"), [("read_only", True), ("idempotent", True), ("non_retriable", False)])
def test_a_tool_that_does_not_know_is_repeated_only_where_that_is_harmless(effect: str, repeats: bool) -> None:
    bench = OperationBench(effect).started()
    unsure = bench.give(bench.returned(UNSURE))
    assert ended(unsure) == [(1, "unknown")]
    assert bool(sent(unsure, RetryOperation)) is repeats
    assert bool(sent(unsure, OperationDoubtful)) is not repeats


@pytest.mark.parametrize(
    ("effect", "consequential", "status"),
    [
        ("read_only", True, "failed"),
        ("idempotent", False, "failed"),
        ("idempotent", True, "needs_operator"),
        ("non_retriable", False, "needs_operator"),
    ],
)
def test_an_effect_that_perhaps_happened_is_not_told_as_a_mere_failure(
    effect: str, consequential: bool, status: str
) -> None:
    bench = OperationBench(effect, consequential=consequential, retry=RetryPolicy()).started()
    last = bench.give(bench.returned(UNSURE))
    assert bench.state.status == status
    for message in sent(last, OperationDone):
        assert message.failure.certainty is Certainty.UNKNOWN


def test_a_late_success_of_the_same_attempt_spares_the_repetition() -> None:
    bench = OperationBench().started()
    retry = sent(bench.lose_worker())[0]
    late = bench.give(bench.returned())
    assert done(late).status == "succeeded"
    assert bench.give(retry).kind == "absorbed"
    assert len(bench.all_written(AttemptRow)) == 1


def test_an_unknown_outcome_stays_unknown_when_the_guards_stop_the_repetition() -> None:
    bench = OperationBench().started()
    bench.lose_worker()
    bench.revoke()
    assert sent(bench.give(bench.retry()), OperationDoubtful)
    read = OperationBench("read_only").started()
    read.lose_worker()
    read.revoke()
    message = done(read.give(read.retry()))
    assert message.failure is not None
    assert (message.status, message.failure.code, message.failure.certainty) == (
        "failed", Code.APPROVAL_REVOKED, Certainty.UNKNOWN,
    )  # fmt: skip


# ── asking the tool's world ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["lost", "unsure"])
def test_an_attempt_that_can_be_sealed_is_sealed_at_once(how: str) -> None:
    bench = OperationBench("sealing").started()
    assert bench.state.key == f"{OPERATION_ID}:1"
    doubt = bench.lose_worker() if how == "lost" else bench.give(bench.returned(UNSURE))
    assert ended(doubt) == [(1, "unknown")]
    assert (sent(doubt), timers(doubt)) == ([bench.probe_due(1)], [])
    [probe] = invoked(bench.give(bench.probe_due(1)))
    assert probe == ProbeTool(
        tenant=TENANT,
        run_id=RUN_ID,
        operation_id=OPERATION_ID,
        attempt=1,
        probe=1,
        tool="deploy",
        agent="operator",
        input_text='{"env":"staging"}',
        idempotency_key=f"{OPERATION_ID}:1",
        seal=True,
        timeout_ms=TIMEOUT_MS,
    )


@pytest.mark.parametrize("how", ["lost", "unsure"])
def test_an_attempt_that_can_only_be_looked_for_is_looked_for_when_all_is_quiet(how: str) -> None:
    bench = OperationBench("peeking").started()
    doubt = bench.lose_worker() if how == "lost" else bench.give(bench.returned(UNSURE))
    [(message, due_ms)] = timers(doubt)
    assert (message, due_ms) == (bench.probe_due(1), T0 + LEASE_MS + QUIESCENCE_MS)
    bench.now_ms = Instant(due_ms - 1)
    assert bench.give(message).kind == "absorbed", "a late request might still arrive"
    bench.later(1)
    [probe] = invoked(bench.give(message), ProbeTool)
    assert (probe.seal, probe.idempotency_key) == (False, OPERATION_ID)
    assert bench.give(message).kind == "absorbed", "one probe at a time"


def test_a_dead_worker_does_not_make_the_world_quiet_any_sooner() -> None:
    bench = OperationBench("peeking")
    bench.incarnation = 1
    bench.started()
    bench.incarnation = 2
    [(message, due_ms)] = timers(bench.give(bench.lease_end()))
    assert (type(message), due_ms) == (ProbeOperation, T0 + LEASE_MS + QUIESCENCE_MS)


@pytest.mark.parametrize("effect", ["sealing", "peeking"])
def test_a_probe_that_finds_the_effect_ends_the_operation(effect: str) -> None:
    bench = OperationBench(effect).probing()
    found = bench.give(bench.probed(DONE))
    assert (done(found).status, done(found).result_text) == ("succeeded", DONE.result_text)
    assert len(bench.all_written(AttemptRow)) == 1


@pytest.mark.parametrize(("effect", "keys"), [("sealing", [":1", ":2"]), ("peeking", ["", ""])])
def test_a_probe_that_finds_nothing_lets_the_next_attempt_start(effect: str, keys: list[str]) -> None:
    bench = OperationBench(effect, retry=RetryPolicy()).probing()
    absent = bench.give(bench.probed(NotExecuted()))
    assert sent(absent) == [bench.retry(2)], "the worker was lost, so the tool's policy is not asked"
    assert invoked(bench.give(bench.retry(2)), RunTool)[0].attempt == 2
    assert [row.idempotency_key for row in bench.all_written(AttemptRow)] == [OPERATION_ID + key for key in keys]


def test_a_probe_that_finds_nothing_of_what_the_tool_failed_asks_the_tools_policy() -> None:
    for attempts_max, status in ((1, "failed"), (2, "waiting")):
        bench = OperationBench("sealing", retry=RetryPolicy(attempts_max=attempts_max)).started()
        bench.give(bench.returned(UNSURE))
        bench.give(bench.probe_due())
        last = bench.give(bench.probed(NotExecuted()))
        assert bench.state.status == status
        for message in sent(last, OperationDone):
            assert message.failure.code is TIMED_OUT.code
            assert message.failure.certainty is Certainty.NOT_EXECUTED


def test_a_probe_without_an_answer_is_repeated_and_in_the_end_a_person_is_asked() -> None:
    bench = OperationBench("peeking").probing()
    for probe in range(1, 8):
        vague = bench.give(bench.probed(Unsure()))
        [(message, due_ms)] = timers(vague)
        assert message == bench.probe_due(probe + 1)
        bench.now_ms = Instant(due_ms)
        bench.give(message)
    last = bench.give(bench.probed(Unsure()))
    assert sent(last, OperationDoubtful)
    assert [row.attempt for row in bench.all_written(RetryRow)] == list(range(1, 9))
    assert bench.state.status == "needs_operator"


def test_a_lost_probe_is_repeated() -> None:
    bench = OperationBench("peeking").probing()
    assert bench.give(bench.lease_end(probe=1)).kind == "absorbed"
    bench.later(LEASE_MS)
    assert sent(bench.give(bench.lease_end(probe=1)), ProbeOperation) == [bench.probe_due(2)]
    assert bench.give(bench.probed(Unsure(), probe=1)).kind == "absorbed", "what an earlier probe does not know"
    assert done(bench.give(bench.probed(DONE, probe=1))).status == "succeeded", "what it does know counts"


@pytest.mark.parametrize("when", ["before the doubt", "before the probe"])
def test_a_tool_that_can_no_longer_be_asked_leaves_it_to_a_person(when: str) -> None:
    bench = OperationBench("peeking").started()
    if when == "before the doubt":
        bench.app.tools.clear()
        assert sent(bench.lose_worker(), OperationDoubtful)
        return
    bench.lose_worker()
    bench.later(QUIESCENCE_MS)
    bench.app.tools["deploy"] = bench.spec.model_copy(update={"can_reconcile": False})
    assert sent(bench.give(bench.probe_due()), OperationDoubtful)


def test_an_attempt_without_a_key_of_its_own_is_never_sealed() -> None:
    bench = OperationBench("peeking").started()
    bench.app.tools["deploy"] = bench.spec.model_copy(update={"can_seal": True})
    assert timers(bench.lose_worker()), "sealing the operation's key would forbid every later attempt too"
    bench.later(QUIESCENCE_MS)
    assert invoked(bench.give(bench.probe_due()), ProbeTool)[0].seal is False


def test_the_attempt_itself_may_report_while_its_world_is_asked() -> None:
    bench = OperationBench("peeking").probing()
    assert done(bench.give(bench.returned(DONE))).status == "succeeded"
    assert bench.give(bench.probed(DONE)).kind == "absorbed"
    other = OperationBench("peeking").probing()
    assert sent(other.give(other.returned(NOT_DONE)), RetryOperation)


# ── asking a person ────────────────────────────────────────────────────────────────────


@case("M38")
def test_what_a_person_says_happened_is_a_success_with_a_manual_mark() -> None:
    bench = OperationBench("non_retriable").asked_person()
    bench.decide("executed", bench.question)
    settled = bench.give(bench.told("executed"))
    assert (done(settled).status, done(settled).result_text) == ("succeeded", '{"settled_by":"alice"}')
    assert invoked(settled) == []
    assert len(bench.all_written(AttemptRow)) == 1


@case("M39")
def test_what_a_person_says_did_not_happen_is_not_silently_tried_again() -> None:
    bench = OperationBench("non_retriable").asked_person()
    bench.decide("not_executed", bench.question)
    settled = bench.give(bench.told("not_executed"))
    message = done(settled)
    assert message.failure is not None
    assert (message.status, message.failure.code, message.failure.certainty) == (
        "failed", Code.OPERATION_OUTCOME_UNKNOWN, Certainty.NOT_EXECUTED,
    )  # fmt: skip
    assert "alice" in message.failure.message
    assert sent(settled, RetryOperation) == invoked(settled) == []
    assert code(bench.give(bench.execute())) is Code.OPERATION_CONSUMED


@case("C20")
def test_an_answer_without_its_row_is_no_answer() -> None:
    bench = OperationBench("non_retriable").asked_person()
    assert bench.give(bench.told("executed")).kind == "absorbed"
    bench.decide("not_executed", bench.question)
    assert done(bench.give(bench.told("executed"))).status == "failed", "the row is believed, not the message"


def test_an_answer_to_another_question_settles_nothing() -> None:
    bench = OperationBench("non_retriable").asked_person()
    assert bench.give(bench.told("executed", request_id=bench.request.request_id)).kind == "absorbed"
    bench.decide("executed", bench.question, request_hash="0" * 64)
    assert bench.give(bench.told()).kind == "refused"
    bench.decide("executed", bench.question)
    edited = bench.question.model_copy(update={"content_text": "{}"})
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=edited))
    refused = bench.give(bench.told())
    assert (refused.kind, code(refused)) == ("refused", Code.APPROVAL_INTEGRITY_ERROR)
    assert bench.state.status == "needs_operator"


@pytest.mark.parametrize("outcome", ["expired", "cancelled", "superseded"])
def test_a_question_nobody_answered_leaves_the_outcome_unknown(outcome: str) -> None:
    bench = OperationBench("non_retriable").asked_person()
    bench.decide(outcome, bench.question, decided_by=None)
    message = done(bench.give(bench.told(outcome)))
    assert message.failure is not None
    assert (message.status, message.failure.certainty) == ("failed", Certainty.UNKNOWN)


@pytest.mark.parametrize(("outcome", "status"), [(DONE, "succeeded"), (NOT_DONE, "failed")])
def test_an_attempt_that_reports_after_all_closes_the_question(outcome: Any, status: str) -> None:
    bench = OperationBench("non_retriable").asked_person()
    late = bench.give(bench.returned(outcome))
    assert done(late).status == status
    [close] = sent(late, CloseApproval)
    assert (close.request_id, close.outcome) == (bench.question.request_id, "superseded")
    assert sent(late, RetryOperation) == [], "once a person was asked, nothing is started again silently"


def test_a_question_that_is_too_large_to_be_put_ends_in_an_unknown_outcome() -> None:
    large = {"text": "x" * limits.CONTENT_BYTES_MAX}
    text = json.dumps(large, separators=(",", ":"))
    bench = OperationBench(
        "non_retriable", authority="policy", row={"raw_input_text": text, "input_text": text}
    ).started()
    message = done(bench.lose_worker())
    assert message.failure is not None
    assert (message.failure.code, message.failure.certainty) == (Code.OPERATION_OUTCOME_UNKNOWN, Certainty.UNKNOWN)


# ── cancelling ─────────────────────────────────────────────────────────────────────────


@case("J04", "F07")
@pytest.mark.parametrize(
    ("outcome", "word", "certainty"),
    [
        (DONE, "executed", Certainty.EXECUTED),
        (NOT_DONE, "not_executed", Certainty.NOT_EXECUTED),
        (UNSURE, "unknown", Certainty.UNKNOWN),
    ],
)
def test_a_cancel_signals_the_tool_and_its_result_is_evidence_only(
    outcome: Any, word: str, certainty: Certainty
) -> None:
    bench = OperationBench().started()
    bench.run_is("cancelled")
    signalled = bench.give(bench.cancel())
    assert [(stop.machine, stop.key) for stop in invoked(signalled, Stop)] == [("operation", OPERATION_ID)]
    assert sent(signalled) == []
    assert bench.give(bench.cancel()).kind == "absorbed"
    result = bench.give(bench.returned(outcome))
    assert ended(result) == [(1, word)]
    message = done(result)
    assert message.failure is not None
    assert (message.status, message.result_text, message.failure.certainty) == ("cancelled", None, certainty)


def test_a_cancelled_attempt_nobody_reports_on_ends_with_its_lease() -> None:
    bench = OperationBench("peeking").started()
    bench.run_is("cancelled")
    bench.give(bench.cancel())
    lost = bench.lose_worker()
    assert ended(lost) == [(1, "unknown")]
    assert done(lost).status == "cancelled"


@case("G07")
def test_a_cancel_during_the_back_off_ends_at_once_without_another_attempt() -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.run_is("cancelled")
    assert done(bench.give(bench.cancel())).status == "cancelled"
    bench.later(60_000)
    assert bench.give(bench.retry()).kind == "absorbed"
    assert len(bench.all_written(AttemptRow)) == 1


def test_a_retry_finds_out_by_itself_that_the_run_has_ended() -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.run_is("timed_out")
    bench.later(60_000)
    assert done(bench.give(bench.retry())).status == "cancelled"


def test_a_cancel_closes_the_question_to_a_person() -> None:
    bench = OperationBench("non_retriable").asked_person()
    bench.run_is("cancelled")
    cancelled = bench.give(bench.cancel())
    assert [(close.request_id, close.outcome) for close in sent(cancelled, CloseApproval)] == [
        (bench.question.request_id, "cancelled")
    ]
    message = done(cancelled)
    assert message.failure is not None
    assert (message.status, message.failure.certainty) == ("cancelled", Certainty.UNKNOWN)


def test_a_cancel_signals_a_probe() -> None:
    bench = OperationBench("peeking").probing()
    bench.run_is("cancelled")
    cancelled = bench.give(bench.cancel())
    assert len(invoked(cancelled, Stop)) == 1
    assert bench.give(bench.probed(DONE)).kind == "absorbed"


def test_a_cancel_before_the_start_is_on_record() -> None:
    bench = OperationBench()
    bench.run_is("cancelled")
    assert done(bench.give(bench.cancel())).status == "cancelled"
    assert bench.give(bench.execute()).kind == "absorbed"


@pytest.mark.parametrize("status", [None, "started", "waiting"])
def test_a_forged_cancel_of_a_run_that_goes_on_is_harmless(status: str | None) -> None:
    bench = OperationBench()
    if status is not None:
        bench.started()
    if status == "waiting":
        bench.give(bench.returned(NOT_DONE))
    assert bench.give(bench.cancel()).kind == "absorbed"


# ── the whole table ────────────────────────────────────────────────────────────────────


def in_status(status: str) -> OperationBench:
    """An operation that has come to `status`; the run goes on."""
    match status:
        case "absent":
            return OperationBench()
        case "started":
            return OperationBench().started()
        case "cancelling":
            bench = OperationBench().started()
            bench.run_is("cancelled")
            bench.give(bench.cancel())
            return bench
        case "waiting" | "failed":
            bench = OperationBench().started()
            bench.give(bench.returned(NOT_DONE if status == "waiting" else NotExecuted(failure=DENIED)))
            bench.later(1_000)
            return bench
        case "waiting in doubt":
            bench = OperationBench().started()
            bench.lose_worker()
            return bench
        case "reconciling":
            bench = OperationBench("peeking").reconciling()
            bench.later(QUIESCENCE_MS)
            return bench
        case "probing":
            return OperationBench("peeking").probing()
        case "needs_operator":
            bench = OperationBench("non_retriable").asked_person()
            bench.decide("executed", bench.question)
            return bench
        case "succeeded":
            bench = OperationBench().started()
            bench.give(bench.returned())
            return bench
        case "refused":
            bench = OperationBench(outcome="rejected")
            bench.give(bench.execute())
            return bench
        case "cancelled":
            bench = OperationBench()
            bench.run_is("cancelled")
            bench.give(bench.execute())
            return bench
        case _:
            raise AssertionError(status)


KINDS = ["execute", "retry", "returned", "probed", "lease", "probe", "cancel", "decided"]
STAYS = every(KINDS, "absorbed")
TABLE: dict[str, dict[str, str]] = {
    "absent": every(KINDS, "refused") | {"execute": "moved", "cancel": "absorbed"},
    "started": STAYS | {"returned": "moved"},
    "cancelling": STAYS | {"returned": "moved"},
    "waiting": STAYS | {"retry": "moved"},
    "waiting in doubt": STAYS | {"retry": "moved", "returned": "moved"},
    "reconciling": STAYS | {"probe": "moved", "returned": "moved"},
    "probing": STAYS | {"probed": "moved", "returned": "moved"},
    "needs_operator": STAYS | {"returned": "moved", "decided": "moved"},
    **dict.fromkeys(sorted(OPERATION_TERMINAL), STAYS),
}
"""The lease is not over and the run goes on, except where they are; in `needs_operator` the person has answered."""
OF_RUN_ENDED = {"started", "waiting", "waiting in doubt", "reconciling", "probing", "needs_operator", "absent"}
"""What a cancel moves once the run has ended."""


def test_the_table_covers_every_status_and_every_message() -> None:
    named = {"absent", "cancelling", "waiting in doubt", "probing"}
    assert set(TABLE) - named == OPERATION_STATUSES
    messages = OperationBench().every_message()
    assert {type(message) for message in messages.values()} == OperationMachine.messages
    assert set(messages) == set(KINDS)


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status in TABLE for kind in KINDS])
def test_every_message_in_every_status_has_its_answer(status: str, kind: str) -> None:
    bench = in_status(status)
    before = bench.state
    assert bench.give(bench.every_message()[kind]).kind == TABLE[status][kind]
    if status in OPERATION_TERMINAL:
        assert bench.state is before, "terminal stays terminal"


@pytest.mark.parametrize("status", sorted(TABLE))
def test_once_the_run_has_ended_a_cancel_ends_what_is_not_ended(status: str) -> None:
    bench = in_status(status)
    bench.run_is("cancelled")
    assert bench.give(bench.cancel()).kind == ("moved" if status in OF_RUN_ENDED else "absorbed")


@pytest.mark.parametrize("status", sorted(TABLE))
@pytest.mark.parametrize("outcome", [DONE, NOT_DONE, UNSURE, Executed(failure=TRANSIENT), NotExecuted(), Unsure()])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_no_result_of_any_attempt_raises_in_any_status(status: str, outcome: Any, shift: int) -> None:
    bench = in_status(status)
    attempt = bench.n + shift or 7
    for message in (
        bench.returned(outcome, attempt=attempt),
        bench.probed(outcome, attempt=attempt),
        bench.probed(outcome, probe=bench.probe + 1),
        bench.lease_end(attempt=attempt),
        bench.lease_end(probe=bench.probe),
        bench.retry(attempt=attempt),
        bench.probe_due(attempt=attempt),
    ):
        bench.look(message)
        bench.later(LEASE_MS)
        bench.look(message)


@pytest.mark.parametrize("status", sorted(TABLE))
def test_a_word_that_is_not_for_an_operation_is_refused(status: str) -> None:
    stray = TakeTurn(
        tenant=TENANT, run_id=RUN_ID, thread_id="plan", turn=1, purpose="plan", team="t", agent="a", append=()
    )
    assert in_status(status).give(stray).kind == "refused"


def test_the_leases_end_is_the_last_word_of_a_start() -> None:
    bench = OperationBench()
    assert isinstance(timers(bench.give(bench.execute()))[0][0], OperationLeaseEnded)
    bench.give(bench.returned())
    bench.later(LEASE_MS)
    assert bench.give(bench.lease_end()).kind == "absorbed"


def test_the_state_of_an_operation_is_small_whatever_its_input() -> None:
    text = json.dumps({"text": "x" * 50_000}, separators=(",", ":"))
    bench = OperationBench(authority="policy", row={"raw_input_text": text, "input_text": text}).started()
    assert len(bench.state.model_dump_json()) < 700


def test_an_outcome_row_alone_says_what_was_decided() -> None:
    bench = OperationBench("non_retriable").asked_person()
    bench.decide("executed", bench.question)
    [row] = [row for row in bench.rows.values() if isinstance(row, OutcomeRow) and row.outcome == "executed"]
    assert row.request_hash == bench.question.request_hash
    assert reply(bench.give(bench.execute())).status == "needs_operator"


def test_a_plain_application_has_no_say_in_a_policy_start() -> None:
    bench = OperationBench(authority="policy")
    bench.app = FakeApplication(tools={})
    assert done(bench.give(bench.execute())).failure.code is Code.TOOL_UNKNOWN  # type: ignore[union-attr]
