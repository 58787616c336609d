"""One side effect: its start, its results, its retries, and what a cancel does."""

from __future__ import annotations

from typing import Any

import pytest

from placet.activities import RunTool, Stop
from placet.calls import Executed, NotExecuted
from placet.errors import Certainty, Code, ErrorClass
from placet.instants import Instant
from placet.messages import (
    CloseApproval,
    OperationDone,
)
from placet.retries import RetryDecision, RetryInputs, decide
from placet.rows import AttemptRow, RetryRow
from tests.cases import case
from tests.machines.bench import (
    ELSEWHERE,
    RUN_ID,
    T0,
    TENANT,
    code,
    invoked,
    recorded,
    sent,
    timers,
)
from tests.machines.builders_operation import (
    DENIED,
    DONE,
    LEASE_MS,
    NOT_DONE,
    OPERATION_ID,
    TIMEOUT_MS,
    TRANSIENT,
    UNSURE,
    USE_BY_MS,
    OperationBench,
    done,
    ended,
)

# ── the start ───────────────────────────────────────────────────────────────────────────


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
    assert call.timeout_ms == timeout_ms


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


# ── hints that say nothing true ─────────────────────────────────────────────────────────


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


# ── results ─────────────────────────────────────────────────────────────────────────────


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
        assert timers(bench.give(retry)) == [(retry, due_ms)], "not before the back-off is over"
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


@pytest.mark.parametrize("outcome", [NOT_DONE, UNSURE])
def test_what_an_earlier_attempt_does_not_know_changes_nothing(outcome: Any) -> None:
    bench = OperationBench().started()
    bench.lose_worker()
    bench.give(bench.retry())
    assert bench.state.n == 2
    assert bench.give(bench.returned(outcome, attempt=1)).kind == "absorbed"
    assert bench.give(bench.returned(outcome, attempt=3)).kind == "absorbed", "nor of one that was never begun"


# ── cancelling ──────────────────────────────────────────────────────────────────────────


@case("F07")
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


@case("D04")
def test_what_a_waiting_run_has_not_released_is_not_started_by_a_forged_word() -> None:
    bench = OperationBench()
    bench.run_is("suspended")
    held = bench.give(bench.execute())
    assert (held.kind, bench.state) == ("absorbed", None)
    bench.run_is("running")
    assert invoked(bench.give(bench.execute()), RunTool)
