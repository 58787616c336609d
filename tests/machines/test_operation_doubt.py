"""One side effect nobody knows the outcome of: repeated, probed, or a person's question, by its class."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet import limits
from placet.activities import ProbeTool, RunTool
from placet.calls import NotExecuted, Unsure
from placet.errors import Certainty, Code
from placet.instants import Instant
from placet.messages import (
    CloseApproval,
    OperationDone,
    OperationDoubtful,
    ProbeOperation,
    RequestApproval,
    RetryOperation,
)
from placet.requests import verify_request
from placet.retries import RetryPolicy
from placet.rows import AttemptRow, RequestRow, RetryRow
from tests.cases import case
from tests.machines.bench import (
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
    QUIESCENCE_MS,
    TIMED_OUT,
    TIMEOUT_MS,
    UNSURE,
    OperationBench,
    done,
    ended,
)

# ── crash windows ───────────────────────────────────────────────────────────────────────


@case("F20")
def test_the_two_crash_windows_are_told_apart_by_the_record_alone() -> None:
    never_started = OperationBench("non_retriable")
    assert invoked(never_started.give(never_started.execute()), RunTool)
    started = OperationBench("non_retriable").started()
    started.later(LEASE_MS)
    again = started.give(started.execute())
    assert (again.kind, invoked(again)) == ("absorbed", [])
    assert sent(started.give(started.lease_end()), OperationDoubtful)


@case("F03")
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
    assert timers(bench.give(bench.lease_end())) == [(bench.lease_end(), T0 + LEASE_MS)], "it comes again"
    assert bench.state.status == "started"


def test_a_new_owner_of_the_store_knows_at_once_that_the_old_ones_work_is_lost() -> None:
    bench = OperationBench()
    bench.incarnation = 4
    bench.started()
    assert sent(bench.give(bench.lease_end())) == [bench.lease_end()]
    assert bench.state.status == "started"
    bench.incarnation = 5
    assert sent(bench.give(bench.lease_end())) == [bench.retry(2)]
    bench.give(bench.retry(2))
    assert [row.incarnation for row in bench.all_written(AttemptRow)] == [4, 5]


@case("P138")
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


# ── asking the tool's world ─────────────────────────────────────────────────────────────


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
    assert timers(bench.give(message)) == [(message, due_ms)], "a late request might still arrive"
    bench.later(1)
    [probe] = invoked(bench.give(message), ProbeTool)
    assert (probe.seal, probe.idempotency_key) == (False, OPERATION_ID)
    assert bench.give(message).kind == "absorbed", "one probe at a time"


def test_a_worker_known_to_be_dead_sends_nothing_more_so_only_what_is_on_its_way_is_waited_for() -> None:
    bench = OperationBench("peeking")
    bench.incarnation = 1
    bench.started()
    bench.incarnation = 2
    bench.later(100)
    [(message, due_ms)] = timers(bench.give(bench.lease_end()))
    assert (type(message), due_ms) == (ProbeOperation, T0 + 100 + QUIESCENCE_MS)


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
    assert [message for message, _ in timers(bench.give(bench.lease_end(probe=1)))] == [bench.lease_end(probe=1)]
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


# ── asking a person ─────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize(("consequential", "status"), [(True, "needs_operator"), (False, "failed")])
def test_that_a_later_attempt_did_nothing_says_nothing_of_one_in_doubt(consequential: bool, status: str) -> None:
    bench = OperationBench("idempotent", consequential=consequential).started()
    [(retry, due_ms)] = timers(bench.give(bench.returned(UNSURE)))
    bench.now_ms = Instant(due_ms)
    bench.give(retry)
    last = bench.give(bench.returned(NotExecuted(failure=DENIED)))
    assert bench.state.status == status
    assert [m.failure.certainty for m in sent(last, OperationDone)] == [Certainty.UNKNOWN] * (status == "failed")


def test_the_doubt_about_an_earlier_attempt_outlives_a_cancel() -> None:
    bench = OperationBench("idempotent").started()
    [(retry, due_ms)] = timers(bench.give(bench.returned(UNSURE)))
    bench.now_ms = Instant(due_ms)
    bench.give(retry)
    bench.run_is("cancelled")
    bench.give(bench.cancel())
    message = done(bench.give(bench.returned(NotExecuted(failure=DENIED))))
    assert message.failure is not None
    assert (message.status, message.failure.certainty) == ("cancelled", Certainty.UNKNOWN)
