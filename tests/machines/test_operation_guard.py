"""One side effect: nothing starts, first or again, unless every guard holds at that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from placet.activities import RunTool
from placet.calls import EffectClass
from placet.errors import Certainty, Code, Failure
from placet.instants import Instant
from placet.rows import AttemptRow, RequestRow
from placet.statuses import RUN_TERMINAL
from tests.cases import case
from tests.machines.bench import (
    ELSEWHERE,
    RUN_ID,
    T0,
    TENANT,
    invoked,
    recorded,
    timers,
)
from tests.machines.builders_operation import (
    NOT_DONE,
    USE_BY_MS,
    OperationBench,
    a_call_request,
    a_content,
    done,
)

# ── the guard of every start ────────────────────────────────────────────────────────────


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


def test_a_retry_that_meets_a_waiting_run_comes_again_instead_of_being_forgotten() -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    bench.run_is("suspended")
    held = bench.give(bench.retry())
    [(message, due_ms)] = timers(held)
    assert (message, due_ms > bench.now_ms, invoked(held)) == (bench.retry(), True, [])
    bench.now_ms = Instant(due_ms)
    bench.run_is("running")
    assert len(invoked(bench.give(message), RunTool)) == 1
