"""A run: how it is submitted, planned, scheduled and ended, and what it remembers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet import limits
from placet.calls import UserText
from placet.errors import Code, ErrorClass, Failure
from placet.instants import Instant
from placet.machine import Send
from placet.messages import CancelOperation, CloseApproval, CloseThread, RunTimedOut, TakeTurn, TurnFailed, TurnTaken
from placet.plans import PlannedTask
from placet.rows import AuditLeafRow, audit_leaf
from placet.values import Principal, PrincipalKind
from tests.builders import (
    ALICE,
    BOB,
    T0,
    FakeApplication,
    a_call,
    a_direct_task,
    a_submission,
    a_task,
    a_team,
    a_tool,
    drive,
    reply,
    sent,
    suspend,
)
from tests.cases import case
from tests.machines.run_play import HERE, MACHINE, Play, usage


def text_of(turn: TakeTurn) -> str:
    """What the agent is told, in words."""
    [said] = turn.append
    assert isinstance(said, UserText)
    return said.text


BROKE = Failure(code=Code.MODEL_FAILED, message="the model is gone")


# ── submission ─────────────────────────────────────────────────────────────────────────


def test_a_goal_goes_to_the_planner() -> None:
    play = Play().submit(goal="cut a release")
    assert play.status == "planning"
    assert play.last is not None
    assert reply(play.last).answer == "accepted"
    [turn] = play.turns()
    assert (turn.thread_id, turn.turn, turn.purpose, turn.agent) == ("plan", 1, "plan", "worker")
    assert turn.append == (UserText(text="cut a release"),)


def test_the_teams_planner_plans() -> None:
    app = FakeApplication(teams={"team": a_team(agents={"worker": (), "boss": ()}, planner="boss")})
    assert Play(app).submit().turns()[0].agent == "boss"


def test_given_tasks_start_without_a_planner() -> None:
    play = Play().submit(a_task("a"), a_task("b"), a_task("c", "a"))
    assert play.status == "running"
    assert [turn.thread_id for turn in play.turns()] == ["task:a", "task:b"]
    assert play.statuses() == {"a": "running", "b": "running", "c": "pending"}


def test_the_same_submission_again_is_answered_and_changes_nothing() -> None:
    play = Play().submit(a_task("a"))
    transition = play.tell(a_submission(a_task("a")))
    assert transition.kind == "absorbed"
    assert (reply(transition).answer, reply(transition).status) == ("duplicate", "running")


@pytest.mark.parametrize("changes", [{"timeout_ms": 5}, {"tasks": (a_task("b"),)}, {"mode": "frozen_plan"}])
def test_another_submission_under_the_same_id_is_a_conflict(changes: dict[str, Any]) -> None:
    play = Play().submit(a_task("a"))
    transition = play.tell(a_submission(a_task("a"), **changes))
    assert transition.kind == "refused"
    assert transition.failure is not None
    assert transition.failure.code is Code.RUN_EXISTS
    assert reply(transition).answer == "conflict"


@pytest.mark.parametrize(
    ("submission", "code", "pointer"),
    [
        (a_submission(team="nobody"), Code.SUBMISSION_INVALID, "/team"),
        (a_submission(goal=" "), Code.SUBMISSION_INVALID, "/goal"),
        (a_submission(mode="plan_only", goal=""), Code.SUBMISSION_INVALID, "/goal"),
        (a_submission(goal="g", mode="goal", tasks=(a_task("a"),)), Code.SUBMISSION_INVALID, "/tasks"),
        (a_submission(mode="tasks", goal=""), Code.SUBMISSION_INVALID, "/tasks"),
        (a_submission(a_task("a"), goal="g"), Code.SUBMISSION_INVALID, "/goal"),
        (a_submission(a_task("a"), a_task("a")), Code.PLAN_INVALID, "/tasks/1/id"),
        (a_submission(a_task("a", "b"), mode="frozen_plan"), Code.PLAN_INVALID, "/tasks/0/depends_on/0"),
        (a_submission(a_direct_task("a", tool="rm")), Code.TOOL_UNKNOWN, "/tasks/0/call/tool"),
        (a_submission(a_direct_task("a", tool="pay")), Code.TOOL_NOT_GRANTED, "/tasks/0/call/tool"),
        (a_submission(a_direct_task("a", n=float("nan"))), Code.JSON_NUMBER, "/tasks/0/call/input/n"),
        (a_submission(a_direct_task("a", n={1, 2})), Code.JSON_TYPE, "/tasks/0/call/input/n"),
    ],
)
def test_a_bad_submission_is_refused_with_a_place_and_leaves_nothing(submission: Any, code: Code, pointer: str) -> None:
    app = FakeApplication()
    app.tools["pay"] = a_tool("pay")
    transition = drive(MACHINE, None, submission, app=app)
    assert transition.kind == "refused"
    assert transition.failure is not None
    assert (transition.failure.code, transition.failure.pointer) == (code, pointer)
    assert reply(transition).failure == transition.failure


def test_a_team_without_agents_cannot_work() -> None:
    transition = drive(MACHINE, None, a_submission(), app=FakeApplication(teams={"team": a_team(agents={})}))
    assert transition.failure is not None
    assert transition.failure.pointer == "/team"


@case("I09")
def test_another_tenant_is_told_what_is_told_of_an_unknown_run() -> None:
    play = Play().submit(a_task("a"))
    foreign = [
        play.cancel(tenant="rival"),
        play.tell(a_submission(a_task("a")), tenant="rival"),
        play.tell(TurnTaken(**HERE, thread_id="task:a", turn=1, text="x"), tenant="rival"),
    ]
    unknown = Play().cancel(tenant="rival")
    for transition in foreign:
        assert transition.kind == "refused"
        assert reply(transition) == reply(unknown)
        assert reply(transition).answer == "not_found"


# ── planning ───────────────────────────────────────────────────────────────────────────


def test_a_proposed_plan_is_carried_out_and_summed_up() -> None:
    play = Play().submit().plan(a_task("a"), a_task("b", "a"))
    assert play.statuses() == {"a": "running", "b": "pending"}
    play.say("a", "one").say("b", "two")
    answer = play.turns()[-1]
    assert (answer.thread_id, answer.purpose, answer.turn) == ("answer", "answer", 1)
    assert all(word in text_of(answer) for word in ("cut a release", "one", "two"))
    assert play.status == "running"
    play.tell(TurnTaken(**HERE, thread_id="answer", turn=1, text="all done"))
    assert (play.status, play.run.answer) == ("succeeded", "all done")
    assert play.statuses() == {"a": "succeeded", "b": "succeeded"}


def test_a_plan_of_one_task_needs_no_summary() -> None:
    play = Play().submit().plan(a_task("a")).say("a", "it")
    assert (play.status, play.run.answer) == ("succeeded", "it")


def test_a_second_plan_is_absorbed() -> None:
    play = Play().submit().plan(a_task("a"))
    before = play.run
    assert play.plan(a_task("z")).last.kind == "absorbed"  # type: ignore[union-attr]
    assert play.run == before


@case("E19")
@pytest.mark.parametrize(
    ("task", "code"),
    [
        (a_task("a", assignee="nobody"), Code.INVALID_TASK_REQUIREMENTS),
        (a_task("a", "a"), Code.PLAN_INVALID),
        (a_direct_task("a", tool="rm"), Code.TOOL_UNKNOWN),
        (a_direct_task("a", tool="deploy", n=2**60), Code.JSON_NUMBER),
    ],
)
def test_a_forged_or_unfit_plan_fails_the_run_before_any_gate_is_asked(task: PlannedTask, code: Code) -> None:
    play = Play().submit().plan(task)
    assert play.status == "failed"
    assert play.run.failure is not None
    assert play.run.failure.code is code
    assert play.app.asked == []


def test_a_planner_that_fails_fails_the_run() -> None:
    play = Play().submit()
    play.tell(TurnFailed(**HERE, thread_id="plan", turn=1, failure=BROKE))
    assert (play.status, play.run.failure) == ("failed", BROKE)


# ── the task graph ─────────────────────────────────────────────────────────────────────


def test_higher_priority_starts_first_then_plan_order() -> None:
    play = Play().submit(a_task("a"), a_task("b", priority=2), a_task("c"), a_task("d", priority=2))
    assert [turn.thread_id for turn in play.turns()] == ["task:b", "task:d", "task:a", "task:c"]


def test_a_task_is_told_what_its_dependencies_brought() -> None:
    play = Play().submit(a_task("a"), a_task("b"), a_task("c", "a", "b"))
    play.say("a", "from a").say("b", "from b")
    text = text_of(play.turns()[-1])
    assert all(part in text for part in ("T c", "do c", "from a", "from b"))


def test_a_long_result_is_cut_in_sight_when_handed_on_and_kept_whole() -> None:
    long = "é" * limits.CONTENT_BYTES_MAX
    play = Play().submit(a_task("a"), a_task("b", "a")).say("a", long)
    text = text_of(play.turns()[-1])
    assert "[cut: the first" in text
    assert len(text.encode()) < limits.CONTENT_BYTES_MAX
    assert play.task("a").output == long


def test_both_parents_end_and_the_child_starts_once() -> None:
    play = Play().submit(a_task("p1"), a_task("p2"), a_task("child", "p1", "p2"))
    play.say("p1").say("p2")
    play.say("p2", turn=1).say("p1", turn=1)
    assert [turn.thread_id for turn in play.turns()].count("task:child") == 1


def test_a_failed_task_skips_what_depends_on_it_and_the_rest_goes_on() -> None:
    play = Play().submit(
        a_task("a"), a_task("b", "a"), a_task("c", "b"), a_task("x"), a_task("y", "x"), a_task("z", "y", "c")
    )
    play.fail("a", BROKE)
    assert play.status == "running"
    play.say("x").say("y")
    assert play.statuses() == {
        "a": "failed", "b": "skipped", "c": "skipped", "x": "succeeded", "y": "succeeded", "z": "skipped",
    }  # fmt: skip
    assert play.status == "failed"
    assert play.run.failure is not None
    assert play.run.failure.code is Code.TASK_FAILED
    assert play.run.failure.details == {"task": "a", "code": "MODEL_FAILED", "failed": 1}
    assert play.task("c").failure is not None
    assert "'b'" in play.task("c").failure.message  # type: ignore[union-attr]


def test_no_more_tasks_are_at_work_than_the_bound_and_all_get_their_turn() -> None:
    count = limits.TASKS_AT_WORK_MAX + 10
    play = Play().submit(*(a_task(f"t{n}") for n in range(count)))
    assert len(play.turns()) == limits.TASKS_AT_WORK_MAX
    for n in range(count):
        play.say(f"t{n}")
    assert play.status == "succeeded"
    assert len(play.turns()) == count


def test_the_answer_of_several_last_tasks_names_each() -> None:
    play = Play().submit(a_task("a"), a_task("b"), a_task("c", "a")).say("a", "1").say("b", "2").say("c", "3")
    assert json.loads(play.run.answer or "") == {"b": "2", "c": "3"}
    assert Play().submit(a_task("a"), a_task("b", "a")).say("a", "1").say("b", "2").run.answer == "2"


def test_a_turn_of_another_number_or_thread_is_absorbed() -> None:
    play = Play().submit(a_task("a"), a_task("b", "a"))
    for thread_id, turn in [("task:a", 2), ("task:a", 0), ("task:b", 1), ("task:z", 1), ("answer", 1), ("plan", 1)]:
        assert play.tell(TurnTaken(**HERE, thread_id=thread_id, turn=turn, text="x")).kind == "absorbed"
        assert play.tell(TurnFailed(**HERE, thread_id=thread_id, turn=turn, failure=BROKE)).kind == "absorbed"


# ── budget ─────────────────────────────────────────────────────────────────────────────


def a_poor_app() -> FakeApplication:
    return FakeApplication(teams={"team": a_team(tokens_max=100)})


def test_a_spent_budget_drains_and_skips_the_rest() -> None:
    play = Play(a_poor_app()).submit(a_task("a"), a_task("b"), a_task("c", "a"))
    play.say("a", usage=usage(101))
    assert play.status == "running"
    assert play.task("c").status == "pending"
    play.say("b", usage=usage(10))
    assert play.status == "budget_exhausted"
    assert play.statuses() == {"a": "succeeded", "b": "succeeded", "c": "skipped"}
    assert play.run.failure is not None
    assert play.run.failure.code is Code.BUDGET
    assert play.run.usage.input_tokens + play.run.usage.output_tokens == 111


def test_a_spent_budget_starts_no_call_whose_result_no_model_would_read() -> None:
    play = Play(a_poor_app()).submit(a_task("a")).call("a", a_call(), usage=usage(101))
    assert (play.status, play.statuses()) == ("budget_exhausted", {"a": "skipped"})
    assert play.executed() == []


def test_work_that_is_done_is_not_undone_by_the_budget() -> None:
    assert Play(a_poor_app()).submit(a_task("a")).say("a", usage=usage(101)).status == "succeeded"


def test_a_plan_that_cost_the_budget_is_not_begun() -> None:
    play = Play(a_poor_app()).submit().plan(a_task("a"), usage=usage(101))
    assert (play.status, play.run.tasks) == ("budget_exhausted", ())


# ── ends ───────────────────────────────────────────────────────────────────────────────


def a_busy_run() -> Play:
    """`a` with its model, `b` in a tool, `c` before a person, `d` waiting."""
    app = FakeApplication()
    app.gates = {"tool_call": lambda call: suspend() if call.input["env"] == "production" else None}  # type: ignore[dict-item]
    play = Play(app).submit(a_task("a"), a_task("b"), a_task("c"), a_task("d", "a"))
    return play.call("b", a_call()).call("c", a_call(input_text='{"env":"production"}'))


@case("J01")
def test_a_cancelled_run_stops_everything_and_stays_cancelled() -> None:
    play = a_busy_run()
    [request_id] = play.pending()
    transition = play.cancel(reason="changed my mind")
    assert (reply(transition).answer, reply(transition).status) == ("accepted", "cancelled")
    assert [m.thread_id for m in sent(transition, CloseThread)] == ["task:a"]
    assert [m.operation_id for m in sent(transition, CancelOperation)] == [play.executed()[0].operation_id]
    assert [(m.request_id, m.outcome) for m in sent(transition, CloseApproval)] == [(request_id, "cancelled")]
    assert set(play.statuses().values()) == {"skipped"}
    assert (play.run.requests, play.run.active, play.run.ready) == ((), (), ())
    assert play.decide(request_id).last.kind == "absorbed"  # type: ignore[union-attr]
    again = play.cancel(by=BOB)
    assert (again.kind, reply(again).answer) == ("absorbed", "closed")
    assert reply(again).failure is not None
    assert reply(again).failure.code is Code.RUN_TERMINAL  # type: ignore[union-attr]
    assert len(play.executed()) == 1


def test_whoever_repeats_an_own_cancel_is_told_that_it_stands() -> None:
    play = a_busy_run()
    play.cancel()
    again = play.cancel(reason="no answer came")
    assert (again.kind, reply(again).answer, reply(again).status) == ("absorbed", "duplicate", "cancelled")
    robot = play.cancel(by=Principal(kind=PrincipalKind.SERVICE, id=ALICE.id))
    assert reply(robot).answer == "closed", "of the same name, and somebody else"


def test_after_a_cancel_every_call_has_exactly_one_answer() -> None:
    play = a_busy_run()
    play.cancel()
    answers = {task.id: [(call.status, call.ok, call.text) for call in task.calls] for task in play.run.tasks}
    assert answers["b"] == [("done", False, "cancelled during execution")]
    assert answers["c"] == [("done", False, "cancelled before execution")]


@case("J09")
def test_a_cancel_after_a_failure_changes_nothing() -> None:
    play = Play().submit(a_task("a")).fail("a", BROKE)
    assert play.cancel().kind == "absorbed"
    assert play.status == "failed"


def test_a_run_that_is_planned_or_summed_up_is_cancelled_with_its_thread() -> None:
    play = Play().submit()
    assert [m.thread_id for m in sent(play.cancel(), CloseThread)] == ["plan"]
    play = Play().submit().plan(a_task("a"), a_task("b")).say("a").say("b")
    assert [m.thread_id for m in sent(play.cancel(), CloseThread)] == ["answer"]


def test_the_wall_deadline_ends_the_run_and_not_before() -> None:
    play = Play().submit(a_task("a"), timeout_ms=1_000)
    assert play.last is not None
    [timer] = [e for e in play.last.effects if isinstance(e, Send) and isinstance(e.message, RunTimedOut)]
    assert timer.not_before == T0 + 1_000
    assert [e for e in play.tell(timer.message).effects if isinstance(e, Send)] == [timer], "it comes again"
    assert play.status == "running"
    play.now_ms = Instant(T0 + 1_000)
    play.tell(timer.message)
    assert play.status == "timed_out"
    assert play.run.failure is not None
    assert (play.run.failure.code, play.run.failure.error_class) == (Code.DEADLINE, ErrorClass.TIMEOUT)


def test_a_run_without_a_deadline_is_not_timed_out_by_a_forged_timer() -> None:
    assert Play().submit(a_task("a")).tell(RunTimedOut(**HERE)).kind == "absorbed"


# ── what it remembers ──────────────────────────────────────────────────────────────────


def test_every_step_leaves_audit_leaves_and_they_form_one_chain() -> None:
    play = a_busy_run()
    play.say("a").done(play.executed()[0].operation_id)
    before = play.run.audit_seq
    play.cancel()
    assert play.run.audit_seq > before
    leaves = sorted((row for row in play.rows.values() if isinstance(row, AuditLeafRow)), key=lambda row: row.seq)
    assert [leaf.seq for leaf in leaves] == list(range(1, len(leaves) + 1))
    for previous, leaf in zip(["", *(leaf.leaf for leaf in leaves)], leaves, strict=False):
        assert leaf.previous == previous
        again = leaf.model_dump(exclude={"leaf", "detail_text"}) | {"detail": json.loads(leaf.detail_text)}
        assert audit_leaf(**again) == leaf
    assert (play.run.audit_seq, play.run.audit_last) == (leaves[-1].seq, leaves[-1].leaf)


def test_the_state_holds_the_results_of_the_current_turn_only() -> None:
    play = Play().submit(a_task("a"))
    sizes = []
    for turn in range(1, 8):
        play.call("a", a_call(f"call-{turn}")).done(play.executed()[-1].operation_id, result='"' + "x" * 500 + '"')
        sizes.append(len(play.run.model_dump_json()))
    assert max(sizes) - min(sizes) < 20


def test_usage_adds_up_over_plan_and_turns() -> None:
    play = Play().submit().plan(a_task("a"), usage=usage(10)).call("a", a_call(), usage=usage(20))
    play.done(play.executed()[0].operation_id).say("a", usage=usage(30))
    assert play.run.usage.input_tokens + play.run.usage.output_tokens == 60
