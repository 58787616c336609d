"""One side effect of which an attempt reports when another has been started: no proof is thrown away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet.activities import RunTool, Stop
from placet.calls import NotExecuted
from placet.errors import Certainty
from placet.messages import CloseApproval, RequestApproval, RetryOperation
from placet.retries import RetryPolicy
from placet.rows import AttemptEndRow, AttemptRow
from tests.machines.bench import invoked, recorded, sent
from tests.machines.builders_operation import (
    DENIED,
    DONE,
    LEASE_MS,
    NOT_DONE,
    OPERATION_ID,
    UNSURE,
    OperationBench,
    done,
    ended,
)


def test_a_late_success_of_the_same_attempt_spares_the_repetition() -> None:
    bench = OperationBench().started()
    retry = sent(bench.lose_worker())[0]
    late = bench.give(bench.returned())
    assert done(late).status == "succeeded"
    assert bench.give(retry).kind == "absorbed"
    assert len(bench.all_written(AttemptRow)) == 1


def lost_then(status: str) -> OperationBench:
    """Attempt 1 of an idempotent tool was lost, and attempt 2, under the same key, has come to `status`."""
    bench = OperationBench(retry=RetryPolicy(attempts_max=2)).started()
    bench.lose_worker()
    bench.give(bench.retry())
    if status == "waiting":
        bench.give(bench.returned(UNSURE))
    elif status == "needs_operator":
        for _ in range(2):
            bench.give(bench.returned(UNSURE))
            bench.later(60_000)
            bench.give(bench.retry())
        assert bench.state.status == "needs_operator"
    elif status == "cancelling":
        bench.run_is("cancelled")
        bench.give(bench.cancel())
    return bench


def test_a_late_result_under_the_shared_key_is_the_result_and_stops_the_repetition() -> None:
    bench = lost_then("started")
    late = bench.give(bench.returned(DONE, attempt=1))
    assert (done(late).status, done(late).result_text) == ("succeeded", DONE.result_text)
    assert ended(late) == [(2, "executed")]
    [end] = recorded(late, AttemptEndRow)
    assert json.loads(end.evidence_text) == {"outcome": DONE.model_dump(), "reported_by_attempt": 1}
    assert [stop.key for stop in invoked(late, Stop)] == [OPERATION_ID]
    assert bench.give(bench.returned(UNSURE, attempt=2)).kind == "absorbed"
    bench.later(LEASE_MS)
    assert bench.give(bench.lease_end(attempt=2)).kind == "absorbed"


def test_a_late_result_under_the_shared_key_spares_the_next_repetition() -> None:
    bench = lost_then("waiting")
    late = bench.give(bench.returned(DONE, attempt=1))
    assert (done(late).status, ended(late)) == ("succeeded", [])
    bench.later(60_000)
    assert bench.give(bench.retry(3)).kind == "absorbed"
    assert len(bench.all_written(AttemptRow)) == 2


def test_a_late_result_under_the_shared_key_answers_what_a_person_was_asked() -> None:
    bench = lost_then("needs_operator")
    late = bench.give(bench.returned(DONE, attempt=1))
    assert done(late).status == "succeeded"
    assert [close.outcome for close in sent(late, CloseApproval)] == ["superseded"]


def test_a_late_result_under_the_shared_key_says_what_was_cancelled() -> None:
    bench = lost_then("cancelling")
    late = bench.give(bench.returned(DONE, attempt=1))
    failure = done(late).failure
    assert failure is not None
    assert failure.certainty is Certainty.EXECUTED
    assert ended(late) == [(2, "executed")]


def test_an_attempt_that_did_nothing_cannot_have_done_something_later() -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    bench.give(bench.retry())
    assert bench.give(bench.returned(DONE, attempt=1)).kind == "absorbed"
    assert bench.state.status == "started"


@pytest.mark.parametrize("outcome", [NOT_DONE, NotExecuted(failure=DENIED), UNSURE])
@pytest.mark.parametrize("when", ["while attempt 2 runs", "before attempt 2"])
def test_a_late_result_that_contradicts_the_record_is_kept_and_put_before_a_person(when: str, outcome: Any) -> None:
    bench = OperationBench("non_retriable", retry=RetryPolicy(attempts_max=9)).started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    if when == "while attempt 2 runs":
        bench.give(bench.retry())
    else:  # attempt 2 did nothing either
        bench.give(bench.retry())
        bench.give(bench.returned(NOT_DONE))
        bench.later(60_000)
    kept = bench.give(bench.returned(DONE, attempt=1))
    assert (kept.kind, sent(kept), bench.state.contradicted) == (
        "moved", [], "attempt 1 reports after all that it happened",
    )  # fmt: skip
    assert bench.give(bench.returned(DONE, attempt=1)).kind == "absorbed"
    last = bench.give(bench.retry() if bench.state.status == "waiting" else bench.returned(outcome))
    assert (invoked(last, RunTool), sent(last, RetryOperation)) == ([], []), "nothing is started again silently"
    [question] = sent(last, RequestApproval)
    assert "attempt 1 reports after all that it happened" in (question.request.reason or "")


def test_a_contradicted_record_is_never_told_as_not_executed() -> None:
    bench = OperationBench("non_retriable", retry=RetryPolicy(attempts_max=9)).started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    bench.give(bench.retry())
    bench.give(bench.returned(DONE, attempt=1))
    bench.run_is("cancelled")
    bench.give(bench.cancel())
    failure = done(bench.give(bench.returned(NOT_DONE))).failure
    assert failure is not None
    assert failure.certainty is Certainty.UNKNOWN
