"""Tool calls: from what a model wrote to an operation, a question or an error result, and back to the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet import ids, limits
from placet.calls import EffectClass
from placet.errors import Certainty, Code, Failure
from placet.gates import Boundary, Judgement
from placet.requests import verify_request
from placet.rows import AuditLeafRow, OperationRow
from placet.strict_json import parse
from tests.builders import (
    FakeApplication,
    a_call,
    a_direct_task,
    a_task,
    a_team,
    a_tool,
    allow,
    broken,
    deny,
    suspend,
)
from tests.cases import case
from tests.machines.run_play import Play

PRODUCTION = '{"env":"production"}'


def by_env(subject: Any) -> Judgement | None:
    """Production needs a person."""
    return suspend("touches production") if subject.input.get("env") == "production" else allow()


def gated(gate: Any = by_env, **tools: Any) -> FakeApplication:
    return FakeApplication(gates={Boundary.TOOL_CALL: gate})


def judged(judgement: Judgement | None) -> FakeApplication:
    return gated(lambda subject: judgement)


def playing(app: FakeApplication | None = None) -> Play:
    return Play(app).submit(a_task("task-1"))


def operations(play: Play) -> list[OperationRow]:
    return [row for row in play.rows.values() if isinstance(row, OperationRow)]


def the_result(play: Play) -> Any:
    """The one result of the turn before the last."""
    [result] = play.results()
    return result


# ── allowed ────────────────────────────────────────────────────────────────────────────


def test_an_allowed_call_is_recorded_executed_and_its_result_goes_to_the_model() -> None:
    play = playing(gated()).call("task-1", a_call())
    [row] = operations(play)
    [execute] = play.executed()
    assert (execute.operation_id, execute.request_id) == (row.operation_id, None)
    assert row.operation_id == ids.operation_id("run-1", "task:task-1", 1, "call-1.1")
    assert (row.authority, row.rule, row.request_id, row.call_id) == ("policy", "rule", None, "call-1.1")
    assert (row.input_text, row.agent_name, row.effect) == ('{"env":"staging"}', "worker", "idempotent")
    assert (row.tool_version, row.app_version, row.policy_version) == ("1", "app-1", "p1")
    assert row.initiator == "alice", "who must not settle a question about it, whatever allowed it"
    play.done(row.operation_id, result='{"id":7}')
    result = the_result(play)
    assert (result.call_id, result.tool, result.ok, result.text) == ("call-1", "deploy", True, '{"id":7}')
    assert (play.turns()[-1].turn, play.turns()[-1].purpose) == (2, "work")
    assert play.say("task-1", "deployed").run.answer == "deployed"


def test_results_wait_for_each_other_and_keep_the_order_of_the_calls() -> None:
    calls = (a_call("x"), a_call("y", input_text="nonsense"), a_call("z"))
    play = playing().call("task-1", *calls)
    first, second = (execute.operation_id for execute in play.executed())
    play.done(second, result='"z"')
    assert play.task("task-1").turn == 1
    play.done(first, result='"x"')
    assert [(result.call_id, result.ok) for result in play.results()] == [("x", True), ("y", False), ("z", True)]


def test_a_failed_operation_is_told_to_the_model_and_the_run_goes_on() -> None:
    play = playing().call("task-1", a_call())
    failure = Failure(code=Code.TOOL_TIMEOUT, message="no answer in 1 s", certainty=Certainty.UNKNOWN)
    play.done(play.executed()[0].operation_id, "failed", None, failure=failure)
    assert (the_result(play).ok, the_result(play).text) == (False, "TOOL_TIMEOUT: no answer in 1 s")
    assert play.say("task-1").status == "succeeded"


def test_a_result_longer_than_a_model_should_read_is_cut_in_sight() -> None:
    play = playing().call("task-1", a_call())
    play.done(play.executed()[0].operation_id, result='"' + "x" * limits.RESULT_BYTES_MAX + '"')
    assert the_result(play).text.endswith("[cut: the first 65,472 of 65,538 bytes]")


# ── refused before any gate ────────────────────────────────────────────────────────────


@case("E20")
def test_a_tool_that_is_not_granted_is_refused_before_the_gate() -> None:
    app = gated()
    app.tools["pay"] = a_tool("pay")
    play = playing(app).call("task-1", a_call(tool="pay"))
    assert the_result(play).text.startswith("TOOL_NOT_GRANTED")
    assert (app.asked_at(Boundary.TOOL_CALL), play.requests(), operations(play)) == ([], [], [])


def test_a_granted_tool_that_does_not_exist_is_refused() -> None:
    app = FakeApplication(teams={"team": a_team(agents={"worker": ("ghost",)})})
    assert the_result(playing(app).call("task-1", a_call(tool="ghost"))).text.startswith("TOOL_UNKNOWN")


@case("E21")
def test_input_that_fails_the_schema_is_an_error_before_the_gate() -> None:
    app = gated()
    wrong = Failure(code=Code.TOOL_INPUT_INVALID, message="env: no such environment", pointer="/env")
    app.schemas["deploy"] = lambda raw: wrong
    play = playing(app).call("task-1", a_call())
    assert (the_result(play).ok, the_result(play).text) == (False, "TOOL_INPUT_INVALID: env: no such environment")
    assert (app.asked_at(Boundary.TOOL_CALL), play.requests(), operations(play)) == ([], [], [])


@pytest.mark.parametrize(
    "text",
    [
        '{"path":"a.txt","content":"#!/bin/sh\\necho',
        "[]",
        "null",
        '"{}"',
        '{"path":"a"} trailing',
        '```json\n{"path":"a"}\n```',
        "{'path':'a'}",
        '{"n":NaN}',
        '{"a":1,"a":2}',
        "[" * 500,
    ],
)
def test_mangled_input_is_never_run_and_never_asked_about(text: str) -> None:
    app = gated()
    play = playing(app).call("task-1", a_call(input_text=text))
    assert not the_result(play).ok
    assert "cut or unreadable" in the_result(play).text
    assert (play.executed(), play.requests(), app.asked_at(Boundary.TOOL_CALL)) == ([], [], [])
    assert play.say("task-1").status == "succeeded"


def test_no_input_at_all_is_no_arguments_where_the_tool_takes_none() -> None:
    play = playing().call("task-1", a_call(input_text=""))
    assert operations(play)[0].input_text == "{}"
    app = FakeApplication()
    missing = Failure(code=Code.TOOL_INPUT_INVALID, message="env is missing")
    app.schemas["deploy"] = lambda raw: raw if "env" in raw else missing
    assert the_result(playing(app).call("task-1", a_call(input_text=""))).text.endswith("env is missing")


def test_a_schema_that_yields_what_json_cannot_carry_runs_nothing() -> None:
    app = FakeApplication()
    app.schemas["deploy"] = lambda raw: {"n": float("inf")}
    assert the_result(playing(app).call("task-1", a_call())).text.startswith("TOOL_INPUT_INVALID")


def test_more_calls_than_a_turn_may_make_are_answered_and_not_made() -> None:
    calls = [a_call(f"c{n}") for n in range(limits.CALLS_PER_TURN_MAX + 2)]
    play = playing().call("task-1", *calls)
    assert len(play.executed()) == limits.CALLS_PER_TURN_MAX
    for execute in play.executed():
        play.done(execute.operation_id)
    assert [result.ok for result in play.results()[-3:]] == [True, False, False]


def test_a_thread_takes_no_more_turns_than_the_bound() -> None:
    play = playing()
    state = play.run
    task = state.tasks[0].model_copy(update={"turn": limits.TURNS_MAX})
    play.state = state.model_copy(update={"tasks": (task,)})
    play.call("task-1", a_call()).done(play.executed()[0].operation_id)
    assert play.status == "failed"
    assert play.task("task-1").failure.code is Code.TURN_LIMIT  # type: ignore[union-attr]


# ── suspended, approved, rejected ──────────────────────────────────────────────────────


@case("E22")
def test_a_suspended_call_stores_raw_and_validated_input_and_runs_nothing() -> None:
    app = gated()
    app.schemas["deploy"] = lambda raw: {"dry_run": False, **raw}
    play = playing(app).call("task-1", a_call(input_text=PRODUCTION))
    assert (play.status, play.executed(), len(play.turns())) == ("suspended", [], 1)
    [row] = operations(play)
    assert (row.raw_input_text, row.input_text) == (PRODUCTION, '{"dry_run":false,"env":"production"}')
    request = play.requests()[0].request
    verify_request(request)
    assert json.loads(request.content_text) == {
        "kind": "tool_call", "toolName": "deploy", "rawInput": {"env": "production"},
        "input": {"dry_run": False, "env": "production"}, "agentName": "worker", "taskId": "task-1",
        "toolCallId": "call-1.1", "consequential": False,
    }  # fmt: skip
    assert (request.boundary, request.reason) == ("task-1:call-1.1", "touches production")
    assert (row.authority, row.request_id, row.request_hash) == ("approval", request.request_id, request.request_hash)
    assert (request.operation_id, request.tool_version) == (row.operation_id, "1")
    assert (request.tool_schema_digest, request.agent_name) == (row.tool_schema_digest, "worker")


@case("E23")
def test_an_approved_call_is_made_once_as_reviewed_and_no_gate_is_asked_again() -> None:
    play = playing(gated()).call("task-1", a_call(input_text=PRODUCTION))
    [row] = operations(play)
    [request_id] = play.pending()
    play.decide(request_id)
    play.decide(request_id)
    [execute] = play.executed()
    assert (execute.operation_id, execute.request_id) == (row.operation_id, request_id)
    assert len(play.app.asked_at(Boundary.TOOL_CALL)) == 1
    assert play.status == "running"
    play.done(row.operation_id, result='"deployed"')
    assert (the_result(play).call_id, the_result(play).ok, the_result(play).text) == ("call-1", True, '"deployed"')


@case("E24", "E36")
@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("use staging first", "A reviewer refused this call: use staging first"),
        (None, "A reviewer refused this call."),
    ],
)
def test_a_rejected_call_is_told_to_the_model_in_the_reviewers_words_and_the_run_may_end_well(
    reason: str | None, text: str
) -> None:
    play = playing(gated()).call("task-1", a_call(input_text=PRODUCTION))
    play.decide(play.pending()[0], "rejected", reason=reason)
    assert (the_result(play).ok, the_result(play).text) == (False, text)
    assert play.executed() == []
    assert play.say("task-1", "then not").status == "succeeded"


@pytest.mark.parametrize(
    ("outcome", "words"), [("expired", "in time"), ("cancelled", "closed"), ("superseded", "superseded")]
)
def test_a_call_nobody_let_through_is_an_error_result(outcome: str, words: str) -> None:
    play = playing(gated()).call("task-1", a_call(input_text=PRODUCTION))
    play.decide(play.pending()[0], outcome)
    assert not the_result(play).ok
    assert words in the_result(play).text
    assert play.executed() == []


def test_a_call_whose_approval_was_taken_back_is_not_made() -> None:
    play = playing(gated()).call("task-1", a_call(input_text=PRODUCTION))
    play.revoke(play.pending()[0]).decide(play.pending()[0])
    assert "taken back: wrong one" in the_result(play).text
    assert play.executed() == []


@case("E25")
def test_an_allowed_call_runs_beside_a_suspended_one_and_not_again_after_it() -> None:
    play = playing(gated()).call("task-1", a_call("free"), a_call("asked", input_text=PRODUCTION))
    [free] = play.executed()
    assert play.status == "running"
    play.done(free.operation_id)
    assert play.status == "suspended"
    play.decide(play.pending()[0])
    assert [execute.operation_id for execute in play.executed()].count(free.operation_id) == 1
    play.done(play.executed()[1].operation_id)
    assert [(result.call_id, result.ok) for result in play.results()] == [("free", True), ("asked", True)]


@case("E27", "E35")
def test_a_denied_call_is_an_error_with_the_reason_and_no_question_to_anybody() -> None:
    play = playing(judged(deny("never in production"))).call("task-1", a_call())
    assert not the_result(play).ok
    assert "never in production" in the_result(play).text
    assert (play.requests(), operations(play), play.executed()) == ([], [], [])


@case("E28")
def test_a_gate_that_cannot_judge_lets_nothing_through_and_the_run_goes_on() -> None:
    play = playing(judged(broken())).call("task-1", a_call())
    assert the_result(play).text.startswith("GATE_FAILED")
    assert (play.requests(), play.executed()) == ([], [])
    assert play.say("task-1").status == "succeeded"


def test_why_a_call_was_refused_stands_in_the_runs_events_cut_and_as_text() -> None:
    judgement = broken().model_copy(update={"reason": "\ud800" + "x" * 1_000})
    play = playing(judged(judgement)).call("task-1", a_call())
    leaves = [row for row in play.rows.values() if isinstance(row, AuditLeafRow) and row.kind == "call.refused"]
    why = json.loads(leaves[0].detail_text)["why"]
    assert len(why) == 300
    assert "?x" in why
    assert "\ud800" not in why


def test_a_consequential_call_without_a_gate_waits_for_a_person() -> None:
    app = FakeApplication()
    app.tools["deploy"] = a_tool(consequential=True, effect=EffectClass.NON_RETRIABLE)
    play = playing(app).call("task-1", a_call())
    assert (play.status, play.executed()) == ("suspended", [])
    assert (operations(play)[0].rule, operations(play)[0].consequential) == ("consequential", True)
    play.decide(play.pending()[0], "rejected")
    assert "refused" in the_result(play).text
    harmless = playing().call("task-1", a_call())
    assert (operations(harmless)[0].rule, operations(harmless)[0].authority) == ("default", "policy")


def test_a_call_that_no_person_could_read_is_not_asked_about() -> None:
    large = json.dumps({"env": "production", "text": "x" * 150_000})
    play = playing(gated()).call("task-1", a_call(input_text=large))
    assert the_result(play).text.startswith("APPROVAL_VALIDATION_ERROR")
    assert (play.requests(), operations(play)) == ([], [])


# ── identities ─────────────────────────────────────────────────────────────────────────


@case("E34")
def test_a_call_id_that_stands_twice_in_one_turn_is_one_call_with_one_answer() -> None:
    play = playing().call("task-1", a_call("same"), a_call("same"), a_call("same", input_text=PRODUCTION))
    [execute] = play.executed()
    play.done(execute.operation_id)
    assert the_result(play).call_id == "same"


def test_odd_call_ids_are_told_apart_and_doubled_ones_still_are_one() -> None:
    play = playing().call("task-1", a_call(""), a_call(""), a_call("a b"), a_call("a b"), a_call("é"))
    assert len({execute.operation_id for execute in play.executed()}) == len(play.executed()) == 4


def test_the_same_call_id_in_another_turn_is_another_operation() -> None:
    play = playing().call("task-1", a_call())
    play.done(play.executed()[0].operation_id).call("task-1", a_call())
    assert len({execute.operation_id for execute in play.executed()}) == 2


def test_a_rejected_call_that_is_proposed_again_is_refused_and_not_asked_as_if_it_were_new() -> None:
    play = playing(gated()).call("task-1", a_call(input_text=PRODUCTION))
    play.decide(play.pending()[0], "rejected")
    for turn in range(3):
        play.call("task-1", a_call(f"again-{turn}", input_text='{ "env": "production" }'))
        assert "refused exactly this call before" in the_result(play).text
    assert (len(play.requests()), len(play.app.asked_at(Boundary.TOOL_CALL)), play.executed()) == (1, 1, [])
    play.call("task-1", a_call("other", input_text='{"env":"production","dry":true}'))
    assert len(play.requests()) == 2


def test_a_rejected_call_is_the_same_one_however_its_note_is_worded() -> None:
    app = gated()
    app.tools["deploy"] = a_tool(advisory=("note",), volatile=("asked",))
    play = playing(app).call("task-1", a_call(input_text='{"env":"production","note":"please","asked":1}'))
    play.decide(play.pending()[0], "rejected")
    play.call("task-1", a_call("again", input_text='{"env":"production","note":"it is urgent","asked":2}'))
    assert "refused exactly this call before" in the_result(play).text
    assert (len(play.requests()), play.executed()) == (1, [])
    play.call("task-1", a_call("other", input_text='{"env":"production","note":"please","asked":1,"dry":true}'))
    assert len(play.requests()) == 2


# ── direct calls ───────────────────────────────────────────────────────────────────────


def test_a_direct_task_is_one_call_whose_result_is_its_output() -> None:
    play = Play().submit(a_direct_task("d", env="staging", n=1e20))
    [row] = operations(play)
    assert (row.turn, row.call_id, row.agent_name) == (0, "direct.0", "worker")
    assert (row.operation_id, row.task_id) == (ids.operation_id("run-1", "task:d", 0, "direct.0"), "d")
    assert parse(row.input_text, long_integers_are_doubles=True) == {"env": "staging", "n": 1e20}
    assert play.turns() == []
    play.done(row.operation_id, result='{"id":7}')
    assert (play.status, play.task("d").output, play.run.answer) == ("succeeded", '{"id":7}', '{"id":7}')


def test_gated_direct_calls_side_by_side_are_as_many_questions_though_they_are_equal() -> None:
    tasks = [a_direct_task(task_id, tool="search", q=q) for task_id, q in (("q1", "X"), ("q2", "Y"), ("q3", "X"))]
    play = Play(judged(suspend())).submit(*tasks)
    asked = [request.request for request in play.requests()]
    assert len({request.request_id for request in asked}) == len({request.operation_id for request in asked}) == 3
    second = asked[1]
    play.decide(second.request_id)
    assert (play.status, play.executed()) == ("suspended", [])
    assert play.pending() == [asked[0].request_id, asked[2].request_id]
    play.decide(asked[0].request_id).decide(asked[2].request_id)
    assert [e.operation_id for e in play.executed()] == [request.operation_id for request in asked]
    for at, execute in enumerate(play.executed()):
        play.done(execute.operation_id, result=f'"{at}"')
    assert json.loads(play.run.answer or "") == {"q1": '"0"', "q2": '"1"', "q3": '"2"'}


def test_a_rejected_direct_call_skips_what_depends_on_it_and_nothing_else() -> None:
    gate = lambda subject: suspend() if subject.task_id == "gated" else None  # noqa: E731
    tasks = [
        a_direct_task("free"),
        a_direct_task("gated"),
        a_direct_task("after_free", "free"),
        a_direct_task("after_gated", "gated"),
        a_direct_task("after_both", "free", "gated"),
    ]
    play = Play(gated(gate)).submit(*tasks)
    play.done(play.executed()[0].operation_id).decide(play.pending()[0], "rejected", reason="no")
    play.done(play.executed()[1].operation_id)
    assert play.statuses() == {
        "free": "succeeded", "gated": "failed", "after_free": "succeeded", "after_gated": "skipped",
        "after_both": "skipped",
    }  # fmt: skip
    assert play.task("after_both").failure is not None
    assert len(play.requests()) == 1


@case("J23")
@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        ("rejected", "rejected", Code.APPROVAL_REJECTED),
        ("expired", "expired", Code.APPROVAL_EXPIRED),
        ("cancelled", "failed", Code.TASK_FAILED),
    ],
)
def test_a_run_whose_only_call_was_not_approved_is_not_told_as_done_nor_as_broken(
    outcome: str, status: str, code: Code
) -> None:
    play = Play(judged(suspend())).submit(a_direct_task("d"))
    play.decide(play.pending()[0], outcome)
    assert play.status == status
    assert play.run.failure is not None
    assert play.run.failure.code is code


def test_a_denied_direct_call_ends_as_rejected_and_a_broken_gate_as_failed() -> None:
    assert Play(judged(deny())).submit(a_direct_task("d")).status == "rejected"
    assert Play(judged(broken())).submit(a_direct_task("d")).status == "failed"
