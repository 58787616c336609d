"""One side effect whose question another one has followed: what was edited, or what was not used in time."""

from __future__ import annotations

from typing import Any

import pytest

from placet.activities import ProbeTool, RunTool
from placet.canonical import canonical_text
from placet.errors import Code
from placet.requests import ApprovalRequest, verified_content
from placet.rows import AttemptRow, RequestRow
from tests.cases import case
from tests.machines.bench import RUN_ID, TENANT, invoked, recorded, sent
from tests.machines.builders_operation import (
    NOT_DONE,
    OPERATION_ID,
    QUIESCENCE_MS,
    OperationBench,
    a_call_request,
    a_content,
    done,
)

EDITED = {"env": "staging", "replicas": 2}


def edited(bench: OperationBench, outcome: str | None = "approved", **changes: Any) -> ApprovalRequest:
    """Somebody has edited the input; the question about that has come to the place of the first, and is answered."""
    first = bench.request
    bench.decide("superseded", value_text=canonical_text(EDITED), use_by_ms=None)
    fields: dict[str, Any] = {"generation": 2, "supersedes": first.request_id, "requesters": "alice"}
    content = a_content(raw_input=EDITED, input=EDITED, consequential=bench.spec.consequential)
    return followed(bench, a_call_request(content, **{**fields, **changes}), outcome)


def followed(bench: OperationBench, request: ApprovalRequest, outcome: str | None = "approved") -> ApprovalRequest:
    """A question in another's place, and its answer."""
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=request))
    if outcome is not None:
        bench.decide(outcome, request, decided_by="bob")
    return request


def code_of(transition: Any) -> Code | None:
    """Why it was not made."""
    failure = done(transition).failure
    return failure.code if failure is not None else None


def reviewed(request: ApprovalRequest) -> Any:
    """What people looked at."""
    return verified_content(request)


@case("E39", "F01")
def test_what_was_edited_and_approved_by_another_person_is_what_runs_and_it_is_the_same_operation() -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench)
    started = bench.give(bench.execute(request_id=request.request_id))
    (call,) = invoked(started)
    assert isinstance(call, RunTool)
    assert (call.operation_id, call.idempotency_key) == (OPERATION_ID, OPERATION_ID)
    assert call.input_text == canonical_text(EDITED) == canonical_text(reviewed(request).input)
    assert (bench.state.request_id, bench.state.edited_text) == (request.request_id, canonical_text(EDITED))
    assert len(recorded(started, AttemptRow)) == 1


@case("E39")
def test_the_input_as_it_was_does_not_run_once_it_was_edited() -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench)
    assert bench.give(bench.execute()).kind == "absorbed"
    assert bench.state is None, "and the edited one may still run"
    assert bench.give(bench.execute(request_id=request.request_id)).kind == "moved"


@pytest.mark.parametrize("outcome", [None, "rejected", "cancelled", "expired"])
def test_what_was_edited_does_not_run_before_it_is_approved(outcome: str | None) -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench, outcome)
    held = bench.give(bench.execute(request_id=request.request_id))
    assert invoked(held) == recorded(held) == []


def test_a_question_that_does_not_follow_from_the_operation_s_own_starts_nothing() -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench, supersedes="apr_0")
    assert bench.give(bench.execute(request_id=request.request_id)).kind == "absorbed"
    assert bench.state is None


def test_a_question_about_another_operation_starts_nothing() -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench, operation_id="op_2")
    assert bench.give(bench.execute(request_id=request.request_id)).kind == "absorbed"


def test_of_an_edited_call_nothing_else_may_differ() -> None:
    bench = OperationBench(outcome=None)
    content = a_content(raw_input=EDITED, input=EDITED, agent_name="intern")
    bench.decide("superseded", value_text=canonical_text(EDITED))
    other = followed(bench, a_call_request(content, generation=2, supersedes=bench.request.request_id))
    refused = bench.give(bench.execute(request_id=other.request_id))
    assert code_of(refused) is Code.APPROVAL_STALE_DECISION


def test_the_tool_has_to_read_the_edited_input_as_it_was_reviewed() -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench)
    bench.app.schemas["deploy"] = lambda raw: {**raw, "force": True}
    refused = bench.give(bench.execute(request_id=request.request_id))
    assert code_of(refused) is Code.APPROVAL_STALE_DECISION


def test_every_later_attempt_probe_and_question_is_about_the_edited_input() -> None:
    bench = OperationBench(outcome=None)
    request = edited(bench)
    bench.give(bench.execute(request_id=request.request_id))
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    (again,) = invoked(bench.give(bench.retry(request_id=request.request_id)))
    assert again.input_text == canonical_text(EDITED)

    peeking = OperationBench("peeking", outcome=None)
    request = edited(peeking)
    peeking.give(peeking.execute(request_id=request.request_id))
    peeking.lose_worker()
    peeking.later(QUIESCENCE_MS)
    (probe,) = invoked(peeking.give(peeking.probe_due()))
    assert isinstance(probe, ProbeTool)
    assert probe.input_text == canonical_text(EDITED)

    once = OperationBench("non_retriable", outcome=None)
    request = edited(once)
    once.give(once.execute(request_id=request.request_id))
    asked = once.lose_worker()
    assert reviewed(sent(asked)[0].request).input == EDITED


@case("M07")
def test_an_approval_that_was_not_used_in_time_starts_nothing_and_another_one_may() -> None:
    bench = OperationBench()
    bench.later(600_000)
    late = bench.give(bench.execute())
    assert invoked(late) == recorded(late) == []
    assert (bench.state.status, done(late).status) == ("lapsed", "lapsed")
    assert code_of(late) is Code.APPROVAL_EXPIRED
    assert bench.give(bench.execute()).kind == "absorbed", "the late one stays late"

    renewed = a_call_request(
        generation=2, supersedes=bench.request.request_id, requested_at_ms=bench.now_ms, use_by_ms=None
    )
    assert bench.give(bench.execute(request_id=renewed.request_id)).kind == "absorbed", "nobody has been asked"
    followed(bench, renewed)
    started = bench.give(bench.execute(request_id=renewed.request_id))
    assert (len(invoked(started)), bench.state.n, bench.state.edited_text) == (1, 1, "")


@case("M07")
def test_a_retry_after_the_use_by_is_refused() -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(600_000)
    refused = bench.give(bench.retry())
    assert (invoked(refused), done(refused).status) == ([], "refused")
    assert code_of(refused) is Code.APPROVAL_EXPIRED
