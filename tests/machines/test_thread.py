"""One conversation: turns one after another, what is said in which order, and plans that can be used."""

from __future__ import annotations

import json

import pytest

from placet import limits
from placet.activities import CallModel
from placet.calls import ModelReply, ToolCall, UserText
from placet.errors import Code
from placet.messages import (
    PlanProposed,
    TurnTaken,
)
from placet.plans import PLAN_TOOL, PlannedTask
from placet.rows import RetryRow
from placet.values import Usage
from placet_planner.machine import CORRECTIONS_MAX
from tests.builders import a_call, a_team
from tests.cases import case
from tests.machines.bench import ELSEWHERE, RUN_ID, T0, TENANT, invoked, recorded, sent, timers
from tests.machines.builders_thread import (
    FORBIDDEN,
    LEASE_MS,
    TEN,
    ThreadBench,
    a_plan_call,
    a_planned,
    a_reply,
    failure,
    results,
)

# ── turns ───────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_written_down_and_the_model_asked_under_a_lease() -> None:
    bench = ThreadBench()
    taken = bench.give(bench.take(1, UserText(text="do a"), UserText(text="and b")))
    assert bench.conversation() == [
        ("user", {"role": "user", "text": "do a"}),
        ("user", {"role": "user", "text": "and b"}),
    ]
    assert invoked(taken) == [
        CallModel(
            tenant=TENANT,
            run_id=RUN_ID,
            thread_id="task:a",
            turn=1,
            attempt=1,
            purpose="work",
            team="team",
            agent="worker",
            messages=2,
            timeout_ms=limits.MODEL_TIMEOUT_MS,
        )
    ]
    assert timers(taken) == [(bench.lease_end(), T0 + LEASE_MS)]
    assert bench.state.status == "calling"


def test_a_call_may_take_as_long_as_its_agent_says_and_its_lease_is_a_little_longer() -> None:
    bench = ThreadBench()
    bench.app.model_timeouts_ms["worker"] = 7_000
    taken = bench.give(bench.take(1))
    [call] = invoked(taken)
    assert isinstance(call, CallModel)
    assert call.timeout_ms == 7_000
    [(_, due_ms)] = timers(taken)
    assert due_ms == T0 + 7_000 + limits.LEASE_MARGIN_MS


def test_a_reply_is_written_down_and_passed_on_with_its_calls_byte_for_byte() -> None:
    bench = ThreadBench().calling()
    mangled = ToolCall(call_id="c1", tool="deploy", input_text='{"env": "stag')
    answered = bench.give(bench.answered(a_reply(None, mangled)))
    assert sent(answered) == [
        TurnTaken(tenant=TENANT, run_id=RUN_ID, thread_id="task:a", turn=1, text=None, calls=(mangled,), usage=TEN)
    ]
    role, body = bench.conversation()[-1]
    assert role == "assistant"
    assert ModelReply.model_validate_json(json.dumps(body["reply"])) == a_reply(None, mangled)
    assert bench.state.status == "idle"


def test_the_conversation_grows_turn_by_turn_without_gaps() -> None:
    bench = ThreadBench().calling()
    bench.give(bench.answered(a_reply(None, a_call("c1"))))
    taken = bench.give(bench.take(2, results("c1")))
    assert [call.messages for call in invoked(taken, CallModel)] == [3]
    bench.give(bench.answered())
    assert [role for role, _ in bench.conversation()] == ["user", "assistant", "tool", "assistant"]


@case("I10")
def test_the_same_turn_again_is_one_turn() -> None:
    bench = ThreadBench().calling()
    assert bench.give(bench.take(1)).kind == "absorbed"
    bench.give(bench.answered())
    assert bench.give(bench.take(1)).kind == "absorbed"
    bench.give(bench.take(2))
    bench.give(bench.answered())
    assert bench.give(bench.take(1)).kind == "absorbed", "however late it comes"
    assert len(bench.conversation()) == 4


@case("I10")
@pytest.mark.parametrize("turn", [1, 2])
def test_another_instruction_while_a_turn_is_in_work_is_refused_aloud(turn: int) -> None:
    bench = ThreadBench().calling()
    refused = bench.give(bench.take(turn, UserText(text="something else")))
    assert refused.failure is not None
    assert (refused.kind, refused.failure.code, refused.failure.details) == (
        "refused", Code.TURN_BUSY, {"turn": 1},
    )  # fmt: skip


@pytest.mark.parametrize(("turn", "ahead"), [(3, "skipped"), (1, "another content")])
def test_turns_come_one_after_another(turn: int, ahead: str) -> None:
    bench = ThreadBench().idle()
    refused = bench.give(bench.take(turn, UserText(text=ahead)))
    assert refused.failure is not None
    assert refused.failure.code is Code.TURN_MISMATCH
    assert ThreadBench().give(ThreadBench().take(2)).kind == "refused"


@pytest.mark.parametrize("turn", [0, -1])
def test_turns_are_numbered_from_one(turn: int) -> None:
    bench = ThreadBench()
    message = bench.take(1).model_copy(update={"turn": turn})
    assert bench.give(message).kind == "refused"


@case("J03")
def test_a_failed_turn_is_over_and_another_one_is_possible_in_the_same_conversation() -> None:
    bench = ThreadBench().calling()
    bench.give(bench.failed(FORBIDDEN))
    assert bench.state.status == "failed"
    assert bench.give(bench.take(1)).kind == "absorbed"
    assert invoked(bench.give(bench.take(2)), CallModel)
    bench.give(bench.answered())
    assert (bench.state.status, bench.state.turn) == ("idle", 2)
    assert [role for role, _ in bench.conversation()] == ["user", "user", "assistant"]


@pytest.mark.parametrize(("turn", "attempt"), [(1, 2), (2, 1), (2, 2)])
def test_a_reply_to_something_else_is_dropped(turn: int, attempt: int) -> None:
    bench = ThreadBench().calling()
    assert bench.give(bench.answered(turn=turn, attempt=attempt)).kind == "absorbed"
    assert bench.state.status == "calling"


def test_another_tenants_conversation_looks_like_none() -> None:
    known, unknown = ThreadBench().calling(), ThreadBench()
    for name in ("answered", "failed", "retry", "lease"):
        foreign = known.every_message()[name].model_copy(update={"tenant": ELSEWHERE})
        here, nowhere = known.look(foreign), unknown.look(foreign)
        assert (here.kind, here.failure) == (nowhere.kind, nowhere.failure)
        assert here.failure is not None
        assert here.failure.code is Code.NOT_FOUND
    assert known.look(known.take(1).model_copy(update={"tenant": ELSEWHERE})).kind == "refused"


@pytest.mark.parametrize("purpose", ["work", "answer"])
def test_too_many_calls_at_a_time_are_given_back(purpose: str) -> None:
    bench = ThreadBench(purpose).calling()
    calls = [a_call(f"c{at}") for at in range(limits.CALLS_PER_TURN_MAX + 1)]
    given_back = bench.give(bench.answered(a_reply(None, *calls)))
    assert sent(given_back, TurnTaken) == []
    _, body = bench.conversation()[-1]
    assert [result["call_id"] for result in body["results"]] == [call.call_id for call in calls]
    assert bench.state.attempt == 2
    ok = ThreadBench().calling()
    assert sent(ok.give(ok.answered(a_reply(None, *calls[1:]))), TurnTaken)


def test_an_answer_is_words_and_no_calls() -> None:
    bench = ThreadBench("answer", thread_id="answer").calling()
    given_back = bench.give(bench.answered(a_reply("I look it up", a_call("c1"))))
    assert sent(given_back, TurnTaken) == []
    assert bench.conversation()[-1][1]["results"][0]["text"] == "Answer in words. There are no tools here."
    [taken] = sent(bench.give(bench.answered(a_reply("All is well."))), TurnTaken)
    assert (taken.text, taken.calls) == ("All is well.", ())


# ── plans ───────────────────────────────────────────────────────────────────────────────


def planning() -> ThreadBench:
    """The planner's model is asked for a plan."""
    return ThreadBench("plan", thread_id="plan").calling()


def test_a_plan_is_proposed_with_its_assignees_filled_in() -> None:
    bench = planning()
    call = a_plan_call({"id": "a", "title": "A"}, a_planned("b", depends_on=["a"], priority=3))
    proposed = bench.give(bench.answered(a_reply("Here it is.", call)))
    assert sent(proposed) == [
        PlanProposed(
            tenant=TENANT,
            run_id=RUN_ID,
            thread_id="plan",
            turn=1,
            tasks=(
                PlannedTask(id="a", title="A", assignee="worker"),
                PlannedTask(id="b", title="T b", assignee="worker", depends_on=("a",), priority=3),
            ),
            usage=TEN,
        )
    ]
    assert [role for role, _ in bench.conversation()] == ["user", "assistant", "tool"], "every call has its answer"
    assert bench.state.status == "idle"


BAD_PLANS: dict[str, tuple[ModelReply, str]] = {
    "words only": (a_reply("First A, then B."), "You called: none."),
    "another function": (a_reply(None, a_call()), "You called: deploy."),
    "twice": (a_reply(None, a_plan_call(a_planned()), a_plan_call(a_planned(), call_id="c2")), "exactly once"),
    "cut": (a_reply(None, ToolCall(call_id="c", tool=PLAN_TOOL, input_text='{"tasks": [')), "cannot be used"),
    "doubled key": (
        a_reply(None, ToolCall(call_id="c", tool=PLAN_TOOL, input_text='{"tasks":[],"tasks":[]}')), "tasks",
    ),
    "no object": (a_reply(None, ToolCall(call_id="c", tool=PLAN_TOOL, input_text="[]")), "cannot be used"),
    "empty": (a_reply(None, a_plan_call()), "at least one task"),
    "unknown field": (a_reply(None, a_plan_call(a_planned(owner="me"))), "/tasks/0/owner"),
    "wrong type": (a_reply(None, a_plan_call(a_planned(priority="high"))), "/tasks/0/priority"),
    "unknown assignee": (a_reply(None, a_plan_call(a_planned(assignee="nobody"))), "nobody"),
    "unknown dependency": (a_reply(None, a_plan_call(a_planned(depends_on=["z"]))), "z"),
    "cycle": (
        a_reply(None, a_plan_call(a_planned("a", depends_on=["b"]), a_planned("b", depends_on=["a"]))), "cycle",
    ),
    "same id": (a_reply(None, a_plan_call(a_planned(), a_planned())), "same id"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_plan_that_cannot_be_used_is_given_back_with_the_reason(name: str) -> None:
    reply, reason = BAD_PLANS[name]
    bench = planning()
    given_back = bench.give(bench.answered(reply))
    assert sent(given_back, PlanProposed) == []
    role, body = bench.conversation()[-1]
    texts = [body["text"]] if role == "user" else [result["text"] for result in body["results"]]
    assert all(reason in text for text in texts)
    if reply.calls:
        assert {result["call_id"] for result in body["results"]} == {call.call_id for call in reply.calls}
        assert not any(result["ok"] for result in body["results"])
    [call] = invoked(given_back, CallModel)
    assert (call.turn, call.attempt, call.messages) == (1, 2, 3)
    assert recorded(given_back, RetryRow) == [], "a correction is no retry"


def test_after_two_corrections_the_turn_fails() -> None:
    bench = planning()
    for _ in range(CORRECTIONS_MAX):
        assert invoked(bench.give(bench.answered(a_reply("no plan"))), CallModel)
    last = bench.give(bench.answered(a_reply("no plan")))
    assert failure(last).code is Code.MODEL_ANSWER_INVALID
    assert invoked(last) == []
    assert len(bench.conversation()) == 7, "the last reply and its fault are on record as well"
    assert bench.state.status == "failed"


def test_a_corrected_plan_is_as_good_as_any_and_costs_all_its_attempts() -> None:
    bench = planning()
    bench.give(bench.answered(a_reply("no plan")))
    [plan] = sent(bench.give(bench.answered(a_reply(None, a_plan_call(a_planned())))), PlanProposed)
    assert plan.usage == Usage(input_tokens=14, output_tokens=6)


def test_a_fault_that_a_model_is_told_is_bounded() -> None:
    bench = planning()
    bench.give(bench.answered(a_reply(None, *[a_call(f"c{at}", tool="x" * 1_000) for at in range(5)])))
    assert all(len(result["text"]) <= 2_000 for result in bench.conversation()[-1][1]["results"])


def test_a_team_that_is_gone_ends_the_turn() -> None:
    bench = planning()
    bench.app.teams.clear()
    assert failure(bench.give(bench.answered(a_reply(None, a_plan_call(a_planned()))))).code is Code.SUBMISSION_INVALID


def test_a_plan_of_several_agents_names_who_does_what() -> None:
    bench = planning()
    bench.app.teams["team"] = a_team(agents={"one": (), "two": ()})
    given_back = bench.give(bench.answered(a_reply(None, a_plan_call({"id": "a", "title": "A"}))))
    assert invoked(given_back, CallModel)
    assert "one, two" in bench.conversation()[-1][1]["results"][0]["text"]
