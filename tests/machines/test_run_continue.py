"""A run goes on with a further instruction: in which conversation, what joins, what is refused, what is told."""

from __future__ import annotations

from typing import Any

import pytest

from placet import limits
from placet.calls import UserText
from placet.errors import Code, Failure
from placet.gates import Boundary
from placet.instants import Instant
from placet.machine import Receipt
from placet.messages import (
    PLAN_THREAD,
    ContinueRun,
    InterruptRun,
    PlanProposed,
    RunTimedOut,
    TurnFailed,
    TurnTaken,
)
from placet.values import Principal, PrincipalKind
from placet_dispatcher.words import CONTINUATION
from tests.builders import (
    ALICE,
    BOB,
    RUN_ID,
    FakeApplication,
    a_call,
    a_direct_task,
    a_task,
    a_team,
    deny,
    reply,
    suspend,
)
from tests.cases import case
from tests.machines.run_play import HERE, Play, usage

GONE = Failure(code=Code.MODEL_FAILED, message="the model is away")
STOPPED = Failure(code=Code.TURN_INTERRUPTED, message="interrupted")
PRODUCTION = '{"env":"production"}'


def an_instruction(text: str = "And now the changelog.", instruction_id: str = "i-1", **changes: Any) -> ContinueRun:
    fields: dict[str, Any] = {**HERE, "instruction_id": instruction_id, "text": text, "by": ALICE}
    return ContinueRun(**{**fields, **changes})


def say_more(play: Play, *args: Any, **changes: Any) -> Receipt:
    """What the run answers to a further instruction."""
    return reply(play.tell(an_instruction(*args, **changes)))


def refused(play: Play, *args: Any, **changes: Any) -> Failure:
    """Why the run does not take it; it is then as it was."""
    before = play.run
    told = say_more(play, *args, **changes)
    assert play.run is before, "nothing is changed"
    assert told.failure is not None
    return told.failure


def done() -> Play:
    """One task, done."""
    return Play().submit(a_task("a")).say("a")


def failed() -> Play:
    """One task, whose turn failed."""
    return Play().submit(a_task("a")).fail("a", GONE)


def said(play: Play) -> str:
    """The words that the last turn begins with."""
    last = play.turns()[-1].append[-1]
    assert isinstance(last, UserText)
    return last.text


# ── one conversation goes on ───────────────────────────────────────────────────────────


@case("K01", "K07")
def test_an_instruction_is_a_note_and_the_words_in_the_same_conversation_and_never_the_task_again() -> None:
    play = done()
    receipt = say_more(play, "Then tell the customer.")
    assert (receipt.answer, receipt.status, receipt.turn) == ("accepted", "running", "task:a/2")
    first, second = play.turns()
    assert (second.thread_id, second.turn, second.agent) == (first.thread_id, 2, first.agent)
    assert said(play) == f"{CONTINUATION}\n\nThen tell the customer."
    assert "do not repeat it" in CONTINUATION
    assert "T a" not in said(play), "the first task is in the conversation already"
    play.say("a", "Told.")
    assert (play.status, play.run.answer, play.run.attempt) == ("succeeded", "Told.", 2)


@case("J03")
def test_a_failed_turn_keeps_run_and_conversation_and_another_turn_may_succeed() -> None:
    play = failed()
    assert play.status == "failed"
    assert say_more(play, "Try once more.").answer == "accepted"
    assert (play.run.run_id, play.turns()[-1].thread_id, play.turns()[-1].turn) == (RUN_ID, "task:a", 2)
    assert play.run.failure is None, "it has not failed any more"
    assert play.say("a").status == "succeeded"


@case("J03")
def test_what_waited_for_a_failed_task_goes_on_when_it_succeeds_after_all() -> None:
    play = Play().submit(a_task("a"), a_task("b", "a"), a_task("c", "b"), a_task("x")).say("x").fail("a", GONE)
    assert play.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "x": "succeeded"}
    say_more(play)
    assert play.statuses() == {"a": "running", "b": "pending", "c": "pending", "x": "succeeded"}
    play.say("a").say("b").say("c")
    assert play.status == "succeeded"
    assert [turn.thread_id for turn in play.turns()].count("task:x") == 1, "finished work is not repeated"


@case("J03")
def test_what_waits_for_another_failed_task_as_well_stays_skipped() -> None:
    play = (
        Play().submit(a_task("a"), a_task("y"), a_task("b", "a", "y"), a_task("c", "b")).fail("a", GONE).fail("y", GONE)
    )
    assert refused(play).details["tasks"] == ["a", "y"]
    say_more(play, task="a")
    assert play.statuses() == {"a": "running", "y": "failed", "b": "skipped", "c": "skipped"}
    play.say("a")
    assert play.status == "failed"
    assert play.statuses() == {"a": "succeeded", "y": "failed", "b": "skipped", "c": "skipped"}
    say_more(play, instruction_id="i-2", task="y")
    assert play.say("y").statuses()["b"] == "running", "now nothing is missing"
    assert play.say("b").say("c").status == "succeeded"


def test_what_was_done_on_the_strength_of_a_first_result_stays_done() -> None:
    play = Play().submit(a_task("a"), a_task("b", "a")).say("a").say("b", "first")
    say_more(play, task="a")
    play.say("a", "second")
    assert (play.status, play.run.answer) == ("succeeded", "first")
    assert play.task("b").waiting == 0
    say_more(play, instruction_id="i-2", task="a")
    play.fail("a", GONE)
    assert (play.status, play.statuses()) == ("failed", {"a": "failed", "b": "succeeded"})


@case("J03")
def test_a_planner_that_failed_plans_in_the_same_conversation() -> None:
    play = Play().submit()
    play.tell(TurnFailed(**HERE, thread_id=PLAN_THREAD, turn=1, failure=GONE))
    assert play.status == "failed"
    assert say_more(play).turn == "plan/2"
    assert (play.status, play.turns()[-1].purpose) == ("planning", "plan")
    assert "cut a release" not in said(play)
    play.tell(PlanProposed(**HERE, thread_id=PLAN_THREAD, turn=2, tasks=(a_task("a", assignee="worker"),)))
    assert play.say("a").status == "succeeded"


def test_a_plan_that_was_asked_for_alone_is_planned_further() -> None:
    play = Play().submit(mode="plan_only").plan(a_task("a", assignee="worker"))
    assert play.status == "succeeded"
    assert say_more(play, "Add a review.").turn == "plan/2"
    tasks = (a_task("a", assignee="worker"), a_task("b", "a", assignee="worker"))
    play.tell(PlanProposed(**HERE, thread_id=PLAN_THREAD, turn=2, tasks=tasks))
    assert play.status == "succeeded"
    assert [task.id for task in play.run.tasks] == ["a", "b"]


def several() -> Play:
    """A goal of two tasks, answered."""
    play = Play().submit().plan(a_task("a"), a_task("b")).say("a").say("b")
    return answer(play, 1)


def answer(play: Play, turn: int, text: str = "all is well") -> Play:
    play.tell(TurnTaken(**HERE, thread_id="answer", turn=turn, text=text))
    return play


def test_of_several_tasks_the_one_that_answered_goes_on_unless_a_task_is_named() -> None:
    play = several()
    assert say_more(play, "Shorter.").turn == "answer/2"
    assert "The goal was" not in said(play)
    answer(play, 2, "Well.")
    assert (play.status, play.run.answer) == ("succeeded", "Well.")
    assert say_more(play, "Check again.", "i-2", task="a").turn == "task:a/2"
    play.say("a", "checked")
    assert play.turns()[-1].thread_id == "answer"
    assert play.turns()[-1].turn == 3
    text = said_last(play)
    assert "checked" in text
    assert "The goal was" not in text
    assert "[b]" not in text, "what is known is not told again"
    assert answer(play, 3).status == "succeeded"


def said_last(play: Play) -> str:
    [message] = play.turns()[-1].append
    assert isinstance(message, UserText)
    return message.text


def test_of_given_tasks_the_last_one_goes_on_and_of_several_last_ones_one_is_to_be_named() -> None:
    play = Play().submit(a_task("a"), a_task("b", "a")).say("a").say("b")
    assert say_more(play).turn == "task:b/2"
    play = Play().submit(a_task("a"), a_task("b")).say("a").say("b")
    failure = refused(play)
    assert (failure.code, failure.pointer, failure.details["tasks"]) == (Code.SUBMISSION_INVALID, "/task", ["a", "b"])
    assert say_more(play, task="b").turn == "task:b/2"


def test_an_answer_that_failed_is_asked_for_again() -> None:
    play = Play().submit().plan(a_task("a"), a_task("b")).say("a").say("b")
    play.tell(TurnFailed(**HERE, thread_id="answer", turn=1, failure=GONE))
    assert play.status == "failed"
    assert say_more(play).turn == "answer/2"
    assert answer(play, 2).status == "succeeded"


def test_calls_of_a_further_turn_meet_the_same_gates() -> None:
    play = done()
    play.app.gates[Boundary.TOOL_CALL] = lambda call: suspend()
    say_more(play)
    play.call("a", a_call(input_text=PRODUCTION))
    assert (play.status, play.executed()) == ("suspended", [])
    play.decide(play.pending()[0])
    assert len(play.executed()) == 1


@pytest.mark.parametrize("task", ["zzz", "d", "c"])
def test_a_task_with_which_nobody_has_talked_is_refused(task: str) -> None:
    play = Play().submit(a_task("a"), a_direct_task("d"), a_task("c", "a", "b"), a_task("b"))
    play.done(play.executed()[0].operation_id).fail("b", GONE).say("a")
    failure = refused(play, task=task)
    assert (failure.code, failure.pointer) == (Code.SUBMISSION_INVALID, "/task")


# ── the same and another one, while a turn is in work ──────────────────────────────────


@case("I10")
def test_the_same_instruction_twice_is_one_turn_and_stays_one_for_ever() -> None:
    play = done()
    say_more(play)
    again = say_more(play)
    assert (again.answer, again.turn) == ("duplicate", "task:a/2")
    joined = say_more(play, instruction_id="i-2")
    assert (joined.answer, joined.turn) == ("joined", "task:a/2")
    assert len(play.turns()) == 2
    play.say("a")
    for known in ("i-1", "i-2"):
        assert say_more(play, instruction_id=known).answer == "duplicate", "a late repeat is no new instruction"
    assert (play.status, len(play.turns())) == ("succeeded", 2)


@case("I10")
def test_another_instruction_while_one_is_in_work_is_refused_aloud_and_names_the_turn() -> None:
    play = done()
    say_more(play)
    for other in (an_instruction("Something else.", "i-2"), an_instruction("Something else.", "i-3", task="a")):
        failure = refused(play, other.text, other.instruction_id, task=other.task)
        assert (failure.code, failure.details["turn"]) == (Code.TURN_BUSY, "task:a/2")
    play.say("a")
    assert say_more(play, "Something else.", "i-2").answer == "accepted", "it was not dropped, but can be said now"


def test_one_id_names_one_instruction() -> None:
    play = done()
    say_more(play)
    for changes in ({"text": "Another."}, {"task": "a"}, {"timeout_ms": 5_000}):
        before = play.run
        told = reply(play.tell(an_instruction(**changes)))
        assert told.failure is not None
        assert (told.answer, told.failure.code) == ("conflict", Code.INSTRUCTION_EXISTS)
        assert play.run is before


@case("I22")
def test_other_settings_for_an_instruction_in_work_are_not_applied_and_the_caller_is_told() -> None:
    play = done()
    say_more(play, timeout_ms=60_000)
    deadline_ms = play.run.deadline_ms
    failure = refused(play, instruction_id="i-2", timeout_ms=90_000)
    assert (failure.code, failure.details["not_applied"]) == (Code.TURN_BUSY, ["timeout_ms"])
    assert play.run.deadline_ms == deadline_ms
    assert say_more(play, instruction_id="i-3", timeout_ms=60_000).answer == "joined"


@case("I24")
def test_an_instruction_that_follows_another_history_is_refused() -> None:
    play = done()
    failure = refused(play, after="task:a/7")
    assert (failure.code, failure.details["turn"]) == (Code.TURN_MISMATCH, "task:a/1")
    assert say_more(play, after="task:a/1").answer == "accepted"
    assert refused(play, instruction_id="i-2", after="task:b/1").code is Code.TURN_MISMATCH


@case("K03", "I18")
def test_a_run_that_waits_for_approval_takes_no_note_and_calls_no_model() -> None:
    app = FakeApplication()
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend()
    play = Play(app).submit(a_task("a")).call("a", a_call())
    failure = refused(play)
    assert (failure.code, failure.details["turn"]) == (Code.TURN_BUSY, "task:a/1")
    assert failure.details["waiting_for"] == play.pending()
    assert (play.status, len(play.turns())) == ("suspended", 1)


# ── whose it is ────────────────────────────────────────────────────────────────────────


@case("I09")
@pytest.mark.parametrize(
    "stranger",
    [
        {"by": BOB},
        {"by": Principal(kind=PrincipalKind.SERVICE, id="alice")},
        {"tenant": "globex"},
        {"by": BOB, "after": "task:a/9"},
        {"by": BOB, "text": " "},
    ],
)
@pytest.mark.parametrize("make", [done, failed, lambda: Play().submit(a_task("a"))])
def test_who_has_not_started_the_run_is_told_what_is_told_of_no_run(make: Any, stranger: dict[str, Any]) -> None:
    play = make()
    nowhere = Play().tell(an_instruction())
    for message in (
        an_instruction(),
        InterruptRun(**HERE, interrupt_id="x", by=ALICE),
        InterruptRun(**HERE, interrupt_id="y", by=ALICE, turn="task:a/1"),
    ):
        given = {name: value for name, value in stranger.items() if name in type(message).model_fields}
        told = play.tell(message, **given)
        assert (told.kind, told.state) == ("refused", None)
        if given:
            told_of, of_none = reply(told), reply(nowhere)
            assert told_of.answer == of_none.answer == "not_found"
            assert told_of.failure is not None
            assert of_none.failure is not None
            assert (told_of.failure.code, told_of.failure.message) == (of_none.failure.code, of_none.failure.message)
            assert told_of.status is None


# ── what does not go on ────────────────────────────────────────────────────────────────


def over(status: str) -> Play:
    play = Play(FakeApplication(teams={"team": a_team(tokens_max=10)}))
    if status == "rejected":
        play.app.gates[Boundary.PLAN] = lambda plan: deny()
        return play.submit(a_task("a"))
    if status == "expired":
        play.app.gates[Boundary.PLAN] = lambda plan: suspend()
        play.submit(a_task("a"))
        return play.decide(play.pending()[0], "expired")
    play.submit(a_task("a"), a_task("b", "a"), timeout_ms=1_000)
    if status == "cancelled":
        play.cancel()
    elif status == "timed_out":
        play.now_ms = Instant(play.now_ms + 2_000)
        play.tell(RunTimedOut(**HERE))
    else:
        play.say("a", usage=usage(11))
    return play


@case("J23")
@pytest.mark.parametrize("status", ["rejected", "expired", "cancelled", "timed_out", "budget_exhausted"])
def test_an_end_that_was_decided_upon_is_for_ever(status: str) -> None:
    play = over(status)
    assert play.status == status
    told = say_more(play)
    assert told.failure is not None
    assert (told.answer, told.failure.code, play.status) == ("closed", Code.RUN_TERMINAL, status)


@case("J23")
@pytest.mark.parametrize("outcome", ["rejected", "expired", "cancelled"])
def test_not_even_what_was_finished_in_such_a_run_goes_on(outcome: str) -> None:
    app = FakeApplication()
    app.gates[Boundary.DISPATCH] = lambda subject: suspend() if subject.task.id == "b" else None
    play = Play(app).submit(a_task("a"), a_task("b", "a")).say("a")
    if outcome == "cancelled":
        play.cancel()
    else:
        play.decide(play.pending()[0], outcome)
    assert (play.status, play.statuses()) == (outcome, {"a": "succeeded", "b": "skipped"})
    assert refused(play, task="a").code is Code.RUN_TERMINAL


def test_a_failed_run_in_which_something_was_stopped_does_not_go_on() -> None:
    app = FakeApplication()
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend()
    play = Play(app).submit(a_task("a"), a_task("b")).say("b").call("a", a_call())
    app.teams["team"] = a_team(agents={"worker": ()})
    play.decide(play.pending()[0])
    assert play.status == "failed"
    for task in ("", "a", "b"):
        assert refused(play, task=task).code is Code.RUN_TERMINAL


def test_a_run_over_its_budget_takes_no_further_instruction() -> None:
    play = Play(FakeApplication(teams={"team": a_team(tokens_max=10)})).submit(a_task("a")).say("a", usage=usage(11))
    assert play.status == "succeeded"
    assert refused(play).code is Code.BUDGET


def test_a_conversation_takes_so_many_turns_and_a_run_so_many_instructions() -> None:
    play = done()
    play.state = play.run.model_copy(update={"tasks": (play.task("a").model_copy(update={"turn": limits.TURNS_MAX}),)})
    assert refused(play).code is Code.TURN_LIMIT
    play = done()
    say_more(play)
    play.say("a")
    entry = play.run.continuations[0]
    many = tuple(entry.model_copy(update={"instruction_id": f"i{at}"}) for at in range(limits.CONTINUATIONS_MAX))
    play.state = play.run.model_copy(update={"continuations": many})
    assert refused(play, instruction_id="one more").code is Code.TURN_LIMIT


def test_an_agent_that_is_gone_takes_no_further_instruction() -> None:
    play = done()
    play.app.teams["team"] = a_team(agents={"other": ()})
    assert refused(play).code is Code.SUBMISSION_INVALID
    play.app.teams.clear()
    assert refused(play).code is Code.SUBMISSION_INVALID


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_instruction_has_words(text: str) -> None:
    assert refused(done(), text).code is Code.SUBMISSION_INVALID


# ── its time ───────────────────────────────────────────────────────────────────────────


@case("J19")
def test_an_instruction_has_as_long_as_the_run_had_or_as_long_as_it_is_given() -> None:
    play = Play().submit(a_task("a"), timeout_ms=1_000).say("a")
    began_ms = play.now_ms = Instant(play.now_ms + 50_000)
    say_more(play)
    assert play.run.deadline_ms == began_ms + 1_000
    play.tell(RunTimedOut(**HERE))
    assert play.status == "running", "the timer of the first time is early"
    play.now_ms = Instant(began_ms + 1_000)
    play.tell(RunTimedOut(**HERE))
    assert play.status == "timed_out"
    say_more(play := done(), timeout_ms=5_000)
    assert any(isinstance(message, RunTimedOut) for message in play.sent), "a timer of its own"
