"""The gates of plan, round and dispatch: what is asked when, and what a yes, a no and a failure come to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet.contents import PLAN_BOUNDARY
from placet.errors import Code
from placet.gates import Boundary, Judgement
from placet.messages import CloseApproval, RequestApproval
from placet.plans import plan_text
from placet.requests import verify_request
from tests.builders import (
    FakeApplication,
    a_call,
    a_direct_task,
    a_task,
    a_team,
    allow,
    broken,
    deny,
    suspend,
)
from tests.cases import case
from tests.machines.run_play import Play, usage


def an_app(boundary: Boundary, judgement: Judgement | None, **team: Any) -> FakeApplication:
    return FakeApplication(teams={"team": a_team(**team)}, gates={boundary: lambda subject: judgement})


def code_of(play: Play) -> Code | None:
    return play.run.failure.code if play.run.failure else None


def content_of(play: Play, at: int = 0) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(play.requests()[at].request.content_text)
    return content


# ── plan ───────────────────────────────────────────────────────────────────────────────


@case("E01")
def test_a_suspended_plan_shows_all_tasks_and_starts_none() -> None:
    play = Play(an_app(Boundary.PLAN, suspend("look first"))).submit()
    play.plan(a_task("a"), a_direct_task("b", "a", env="production"))
    assert (play.status, play.turns()[1:], play.executed()) == ("suspended", [], [])
    assert set(play.statuses().values()) == {"pending"}
    request = play.requests()[0].request
    verify_request(request)
    assert (request.scope, request.boundary, request.reason) == ("plan", PLAN_BOUNDARY, "look first")
    content = content_of(play)
    assert content["continuation"] == "execute"
    assert [task["id"] for task in content["tasks"]] == ["a", "b"]
    assert content["tasks"][1]["call"] == {"toolName": "deploy", "input": {"env": "production"}}
    assert content["tasks"][1]["dependsOn"] == ["a"]
    pending = play.run.requests[0]
    assert (pending.request_id, pending.request_hash) == (request.request_id, request.request_hash)
    assert pending.what == "carry out a plan: a, b"


@case("E02")
def test_an_approved_plan_is_carried_out_as_it_is_and_not_planned_again() -> None:
    play = Play(an_app(Boundary.PLAN, suspend())).submit().plan(a_task("a"), a_task("b", "a"))
    play.decide(play.pending()[0])
    assert play.status == "running"
    assert play.run.attempt == 2
    play.say("a").say("b")
    assert [turn.thread_id for turn in play.turns()] == ["plan", "task:a", "task:b", "answer"]
    assert len(play.requests()) == 1
    assert len(play.app.asked_at(Boundary.PLAN)) == 1


@case("E03")
def test_a_rejected_plan_ends_the_run_for_ever() -> None:
    play = Play(an_app(Boundary.PLAN, suspend())).submit().plan(a_task("a"), a_task("b", "a"))
    [request_id] = play.pending()
    play.decide(request_id, "rejected", reason="too risky")
    assert (play.status, code_of(play)) == ("rejected", Code.APPROVAL_REJECTED)
    assert "too risky" in play.run.failure.message  # type: ignore[union-attr]
    assert set(play.statuses().values()) == {"skipped"}
    before = play.run
    play.decide(request_id, "rejected").wake(request_id, "approved")
    assert play.run == before
    assert [turn.thread_id for turn in play.turns()] == ["plan"]


@case("J23")
@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        ("rejected", "rejected", Code.APPROVAL_REJECTED),
        ("expired", "expired", Code.APPROVAL_EXPIRED),
        ("cancelled", "cancelled", Code.APPROVAL_CLOSED),
        ("superseded", "cancelled", Code.APPROVAL_CLOSED),
    ],
)
def test_every_way_of_not_being_approved_is_told_by_its_own_name(outcome: str, status: str, code: Code) -> None:
    play = Play(an_app(Boundary.PLAN, suspend())).submit(a_task("a"))
    play.decide(play.pending()[0], outcome)
    assert (play.status, code_of(play)) == (status, code)


def test_an_approval_that_was_taken_back_in_time_frees_nothing() -> None:
    play = Play(an_app(Boundary.PLAN, suspend())).submit(a_task("a"))
    [request_id] = play.pending()
    play.revoke(request_id).decide(request_id)
    assert (play.status, code_of(play), play.turns()) == ("rejected", Code.APPROVAL_REVOKED, [])


@case("E04")
def test_a_plan_only_run_gives_its_plan_out_and_starts_nothing() -> None:
    play = Play(an_app(Boundary.PLAN, suspend())).submit(mode="plan_only").plan(a_task("a"), a_task("b", "a"))
    assert content_of(play)["continuation"] == "plan_only"
    [request_id] = play.pending()
    play.decide(request_id)
    assert play.status == "succeeded"
    assert set(play.statuses().values()) == {"pending"}
    assert play.run.answer == plan_text(play.run.tasks)
    assert [task["id"] for task in json.loads(play.run.answer or "")["tasks"]] == ["a", "b"]
    before = play.run
    assert play.decide(request_id).run == before
    assert [turn.thread_id for turn in play.turns()] == ["plan"]


def test_the_plan_of_a_plan_only_run_can_be_run_as_it_is() -> None:
    answer = Play().submit(mode="plan_only").plan(a_task("a", priority=3), a_direct_task("b", "a", n=1)).run.answer
    plan = json.loads(answer or "")
    again = Play().submit(
        *(a_task("x").model_validate_json(json.dumps(task)) for task in plan["tasks"]), mode="frozen_plan"
    )
    assert [task.id for task in again.run.tasks] == ["a", "b"]
    assert plan_text(again.run.tasks) == answer


@case("E06")
@pytest.mark.parametrize("mode", ["goal", "plan_only", "tasks", "frozen_plan"])
def test_a_plan_gate_that_cannot_judge_stops_the_run_without_asking_anybody(mode: str) -> None:
    play = Play(an_app(Boundary.PLAN, broken()))
    if mode in ("goal", "plan_only"):
        play.submit(mode=mode).plan(a_task("a"), a_task("b"))
    else:
        play.submit(a_task("a"), a_task("b"), mode=mode)
    assert (play.status, code_of(play)) == ("failed", Code.GATE_FAILED)
    assert set(play.statuses().values()) == {"skipped"}
    assert play.requests() == []


def test_a_denied_plan_is_rejected_without_asking_anybody() -> None:
    play = Play(an_app(Boundary.PLAN, deny("not on a Friday"))).submit(a_task("a"))
    assert (play.status, code_of(play), play.requests()) == ("rejected", Code.GATE_DENIED, [])
    assert "not on a Friday" in play.run.failure.message  # type: ignore[union-attr]


def test_a_plan_too_large_to_be_read_is_not_asked_about() -> None:
    play = Play(an_app(Boundary.PLAN, suspend()))
    play.submit(*(a_task(f"t{n}", description="x" * 30_000) for n in range(10)))
    assert (play.status, code_of(play)) == ("failed", Code.APPROVAL_VALIDATION_ERROR)
    assert (play.requests(), play.turns()) == ([], [])


def test_what_a_gate_sets_for_its_question_is_frozen_with_it() -> None:
    gate = suspend(quorum=2, expires_after_ms=1_000, use_within_ms=500)
    play = Play(an_app(Boundary.PLAN, gate)).submit(a_task("a"))
    request = play.requests()[0].request
    asked_at = request.requested_at_ms
    assert (request.quorum, request.expires_at_ms, request.use_by_ms) == (2, asked_at + 1_000, asked_at + 1_500)
    assert (request.initiator, request.asker_machine, request.asker_key) == ("alice", "run", "")
    assert (request.policy_version, request.app_version) == ("p1", "app-1")


# ── round ──────────────────────────────────────────────────────────────────────────────


def in_rounds(judgement: Judgement | None) -> Play:
    play = Play(an_app(Boundary.ROUND, judgement, round_gate=True))
    return play.submit(a_task("a"), a_task("b"), a_task("c", "a"), a_task("d", "c", "b"))


@case("E08")
def test_the_round_gate_is_asked_between_rounds_only() -> None:
    play = in_rounds(allow())
    assert [turn.thread_id for turn in play.turns()] == ["task:a", "task:b"]
    play.say("a")
    assert play.task("c").status == "pending", "a round ends before the next begins"
    play.say("b").say("c").say("d")
    assert play.status == "succeeded"
    asked = play.app.asked_at(Boundary.ROUND)
    assert [([t.id for t in s.completed], [t.id for t in s.next]) for s in asked] == [
        (["a", "b"], ["c"]),
        (["c"], ["d"]),
    ]
    assert play.app.asked_at(Boundary.DISPATCH) == []


@case("E09")
def test_an_approved_round_runs_and_the_last_is_not_repeated() -> None:
    play = in_rounds(suspend()).say("a", "A").say("b", "B")
    assert play.status == "suspended"
    request = play.requests()[0].request
    assert (request.scope, request.boundary) == ("task_round", "a,b->c")
    assert [task["result"] for task in content_of(play)["completedTasks"]] == ["A", "B"]
    play.decide(request.request_id)
    assert [turn.thread_id for turn in play.turns()] == ["task:a", "task:b", "task:c"]
    play.say("c")
    assert play.requests()[1].request.boundary == "c->d"


@case("E10")
def test_a_rejected_round_keeps_what_is_done_and_skips_the_rest_for_ever() -> None:
    play = in_rounds(suspend()).say("a", "A").say("b", "B")
    [request_id] = play.pending()
    play.decide(request_id, "rejected")
    assert play.status == "rejected"
    assert play.statuses() == {"a": "succeeded", "b": "succeeded", "c": "skipped", "d": "skipped"}
    assert play.task("a").output == "A"
    before = play.run
    assert play.decide(request_id, "rejected").wake(request_id).run == before


@pytest.mark.parametrize(
    ("judgement", "status", "code"),
    [(deny(), "rejected", Code.GATE_DENIED), (broken(), "failed", Code.GATE_FAILED)],
)
def test_a_round_that_is_denied_or_cannot_be_judged_does_not_begin(
    judgement: Judgement, status: str, code: Code
) -> None:
    play = in_rounds(judgement).say("a").say("b")
    assert (play.status, code_of(play), play.requests()) == (status, code, [])


def test_a_round_after_which_nothing_comes_asks_nobody() -> None:
    play = Play(an_app(Boundary.ROUND, suspend(), round_gate=True)).submit(a_task("a"), a_task("b"))
    assert play.say("a").say("b").status == "succeeded"
    assert play.requests() == []


# ── dispatch ───────────────────────────────────────────────────────────────────────────


def a_dispatch_app(**verdicts: Judgement) -> FakeApplication:
    return FakeApplication(gates={Boundary.DISPATCH: lambda subject: verdicts.get(subject.task.id)})


@case("E13")
def test_a_suspended_dispatch_lets_work_in_flight_end_and_asks_about_nothing_else() -> None:
    play = Play(a_dispatch_app(a=suspend())).submit(a_task("c", priority=1), a_task("a"), a_task("b"))
    assert play.status == "running"
    assert [subject.task.id for subject in play.app.asked_at(Boundary.DISPATCH)] == ["c", "a"]
    play.say("c", "kept")
    assert play.status == "suspended"
    assert play.statuses() == {"c": "succeeded", "a": "pending", "b": "pending"}
    assert play.task("c").output == "kept"
    assert [subject.task.id for subject in play.app.asked_at(Boundary.DISPATCH)] == ["c", "a"]
    request = play.requests()[0].request
    assert (request.scope, request.boundary, content_of(play)["task"]["id"]) == ("task_dispatch", "a", "a")


def test_work_in_flight_takes_turns_and_calls_while_a_person_thinks() -> None:
    play = Play(a_dispatch_app(a=suspend())).submit(a_task("c", priority=1), a_task("a"), a_task("b"))
    play.call("c", a_call())
    assert (play.status, len(play.executed())) == ("running", 1)
    play.done(play.executed()[0].operation_id)
    assert (play.status, play.turns()[-1].turn) == ("running", 2)
    assert play.say("c").status == "suspended"


@case("E14")
def test_an_approved_dispatch_starts_without_a_second_question_and_then_the_next_is_asked() -> None:
    play = Play(a_dispatch_app(a=suspend(), b=suspend())).submit(a_task("a"), a_task("b"))
    play.decide(play.pending()[0])
    assert play.task("a").status == "running"
    assert [subject.task.id for subject in play.app.asked_at(Boundary.DISPATCH)] == ["a", "b"]
    assert [request.request.boundary for request in play.requests()] == ["a", "b"]
    assert [turn.thread_id for turn in play.turns()] == ["task:a"]
    play.decide(play.pending()[0]).say("a").say("b")
    assert play.status == "succeeded"
    assert [turn.thread_id for turn in play.turns()] == ["task:a", "task:b"]


@case("E15")
def test_a_rejected_dispatch_drains_then_skips_the_rest_and_keeps_what_was_done() -> None:
    play = Play(a_dispatch_app(a=suspend())).submit(a_task("c", priority=1), a_task("a"), a_task("b"))
    play.decide(play.pending()[0], "rejected")
    assert play.status == "running", "C is still in flight"
    play.call("c", a_call()).done(play.executed()[0].operation_id).say("c", "kept")
    assert (play.status, code_of(play)) == ("rejected", Code.APPROVAL_REJECTED)
    assert play.statuses() == {"c": "succeeded", "a": "skipped", "b": "skipped"}
    assert play.task("c").output == "kept"


def test_while_a_rejected_run_drains_nobody_is_asked_anything_more() -> None:
    app = a_dispatch_app(a=suspend())
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend()
    play = Play(app).submit(a_task("c", priority=1), a_task("a"))
    play.decide(play.pending()[0], "rejected").call("c", a_call())
    assert (play.status, play.statuses()) == ("rejected", {"c": "skipped", "a": "skipped"})
    assert len(play.requests()) == 1
    assert play.executed() == []


def test_the_first_reason_to_end_is_the_one_that_is_told() -> None:
    app = a_dispatch_app(a=suspend())
    app.teams["team"] = a_team(tokens_max=100)
    play = Play(app).submit(a_task("c", priority=1), a_task("a"))
    play.decide(play.pending()[0], "rejected").call("c", a_call(), usage=usage(101))
    assert (play.status, code_of(play), play.executed()) == ("rejected", Code.APPROVAL_REJECTED, [])


def test_a_rejected_dispatch_closes_the_other_open_questions() -> None:
    app = a_dispatch_app(a=suspend())
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend()
    play = Play(app).submit(a_task("c", priority=1), a_task("a")).call("c", a_call())
    dispatch, call = play.pending()
    play.decide(dispatch, "rejected")
    assert play.status == "rejected"
    assert [m.request_id for m in play.sent if isinstance(m, CloseApproval)] == [call]
    assert play.decide(call).last.kind == "absorbed"  # type: ignore[union-attr]
    assert play.executed() == []


@pytest.mark.parametrize(
    ("judgement", "status", "code"),
    [(deny(), "rejected", Code.GATE_DENIED), (broken(), "failed", Code.GATE_FAILED)],
)
def test_a_dispatch_that_is_denied_or_cannot_be_judged_drains_and_ends(
    judgement: Judgement, status: str, code: Code
) -> None:
    play = Play(a_dispatch_app(a=judgement)).submit(a_task("c", priority=1), a_task("a"), a_task("b"))
    assert play.status == "running"
    play.say("c", "kept")
    assert (play.status, code_of(play), play.requests()) == (status, code, [])
    assert play.statuses() == {"c": "succeeded", "a": "skipped", "b": "skipped"}


def test_boundaries_are_unique_within_a_run() -> None:
    app = a_dispatch_app(a=suspend(), b=suspend())
    app.gates[Boundary.PLAN] = lambda plan: suspend()
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend()
    play = Play(app).submit(a_task("a"), a_task("b", "a"))
    play.decide(play.pending()[0]).decide(play.pending()[0])
    for task_id in ("a", "b"):
        for _ in range(3):  # the model repeats its call id and its input in every turn
            play.call(task_id, a_call()).decide(play.pending()[0])
            play.done(play.executed()[-1].operation_id)
        play.say(task_id)
        if play.pending():
            play.decide(play.pending()[0])
    assert play.status == "succeeded"
    asked = [request.request for request in play.sent if isinstance(request, RequestApproval)]
    assert len({(request.scope, request.boundary) for request in asked}) == len(asked) == 9
    assert len({request.request_id for request in asked}) == 9
