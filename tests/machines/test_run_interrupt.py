"""A user stops the turn in work: which, what becomes of it, and how the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from placet import limits
from placet.calls import ToolResults, UserText
from placet.errors import Code
from placet.instants import Instant
from placet.machine import Receipt
from placet.messages import PLAN_THREAD, InterruptRun, PlanProposed, RunTimedOut, StopTurn, TurnFailed
from tests.builders import ALICE, a_call, a_task, reply
from tests.cases import case
from tests.machines.run_play import HERE, Play
from tests.machines.test_run_continue import STOPPED, answer, done, failed, refused, say_more


def interrupt(play: Play, **changes: Any) -> Receipt:
    name = f"int-{len(play.run.interruptions)}"
    return reply(play.tell(InterruptRun(**HERE, interrupt_id=name, by=ALICE), **changes))


def interrupted() -> Play:
    """The only task's first turn, stopped."""
    play = Play().submit(a_task("a"))
    interrupt(play)
    return play.fail("a", STOPPED)


def test_an_interrupted_turn_ends_and_the_run_waits_for_the_next_instruction() -> None:
    play = Play().submit(a_task("a"), a_task("b", "a"))
    told = interrupt(play, reason="wrong way")
    assert (told.answer, told.turn) == ("accepted", "task:a/1")
    [stop] = [message for message in play.sent if isinstance(message, StopTurn)]
    assert (stop.thread_id, stop.turn) == ("task:a", 1)
    assert interrupt(play).answer == "duplicate"
    play.fail("a", STOPPED)
    assert (play.status, play.statuses()) == ("suspended", {"a": "running", "b": "pending"})
    assert interrupt(play).answer == "nothing_interrupted"
    assert say_more(play, "This way.").turn == "task:a/2"
    assert [type(message) for message in play.turns()[-1].append] == [UserText]
    assert play.say("a").say("b").status == "succeeded"


@case("I21")
def test_where_nothing_is_in_work_nothing_is_interrupted() -> None:
    for make in (done, failed, interrupted):
        play = make()
        before = play.run
        told = interrupt(play)
        assert (told.answer, told.status) == ("nothing_interrupted", play.status)
        assert play.run == before.model_copy(update={"interruptions": play.run.interruptions})


@pytest.mark.parametrize("make", [done, lambda: Play().submit(a_task("a"))])
def test_an_interruption_that_comes_again_later_stops_no_other_turn(make: Callable[[], Play]) -> None:
    play = make()
    interrupt(play, interrupt_id="once")
    if play.run.held:
        play.fail("a", STOPPED)
    say_more(play)
    before = play.run
    assert interrupt(play, interrupt_id="once").answer == "duplicate"
    assert play.run is before
    assert interrupt(play, interrupt_id="twice").turn == "task:a/2"


def test_of_interruptions_the_last_ids_are_kept() -> None:
    play = done()
    for number in range(limits.INTERRUPTIONS_MAX + 5):
        interrupt(play, interrupt_id=f"n{number}")
    assert len(play.run.interruptions) == limits.INTERRUPTIONS_MAX
    assert play.run.interruptions[-1] == f"n{limits.INTERRUPTIONS_MAX + 4}"


@case("J12")
@pytest.mark.parametrize("turn", ["task:a/1", "task:a/3", "task:b/1", "plan/1", "task:zzz/2", "nonsense"])
def test_a_finished_or_foreign_turn_cannot_be_interrupted_and_the_current_one_is_untouched(turn: str) -> None:
    play = done()
    say_more(play)
    before = play.run
    told = interrupt(play, turn=turn)
    assert told.failure is not None
    assert (told.answer, told.failure.code) == ("refused", Code.TURN_MISMATCH)
    assert play.run is before
    assert interrupt(play, turn="task:a/2").answer == "accepted"


@case("J18")
def test_calls_of_an_interrupted_turn_are_not_made_and_each_has_its_one_answer() -> None:
    play = Play().submit(a_task("a"))
    interrupt(play)
    play.call("a", a_call("c1"), a_call("c2", tool="search"))
    assert (play.status, play.executed()) == ("suspended", [])
    say_more(play)
    results, words = play.turns()[-1].append
    assert isinstance(results, ToolResults)
    assert [(each.call_id, each.ok) for each in results.results] == [("c1", False), ("c2", False)]
    assert all("cancelled before execution" in each.text for each in results.results)
    assert isinstance(words, UserText)


def test_what_a_tool_is_at_ends_first_and_its_result_comes_with_the_instruction() -> None:
    play = Play().submit(a_task("a")).call("a", a_call())
    assert interrupt(play).turn == "task:a/1"
    assert not [message for message in play.sent if isinstance(message, StopTurn)], "no model is at work"
    assert play.status == "running"
    assert refused(play).code is Code.TURN_BUSY
    play.done(play.executed()[0].operation_id)
    assert (play.status, len(play.turns())) == ("suspended", 1)
    say_more(play)
    results, _ = play.turns()[-1].append
    assert isinstance(results, ToolResults)
    assert results.results[0].ok


def test_an_interruption_that_comes_too_late_changes_nothing() -> None:
    play = Play().submit(a_task("a"))
    interrupt(play)
    assert play.say("a").status == "succeeded"
    play = Play().submit().plan(a_task("a"), a_task("b")).say("a").say("b")
    assert interrupt(play).turn == "answer/1"
    assert answer(play, 1).status == "succeeded"


@pytest.mark.parametrize("came", ["stopped", "planned"])
def test_an_interrupted_planner_plans_again_with_the_next_instruction(came: str) -> None:
    play = Play().submit()
    assert interrupt(play).turn == "plan/1"
    if came == "stopped":
        play.tell(TurnFailed(**HERE, thread_id=PLAN_THREAD, turn=1, failure=STOPPED))
    else:
        play.plan(a_task("a", assignee="worker"))
    assert (play.status, play.run.tasks) == ("suspended", ())
    assert say_more(play, "Plan it smaller.").turn == "plan/2"
    play.tell(PlanProposed(**HERE, thread_id=PLAN_THREAD, turn=2, tasks=(a_task("a", assignee="worker"),)))
    assert play.say("a").status == "succeeded"


def test_an_interrupted_run_can_be_cancelled_and_its_time_can_end() -> None:
    play = interrupted()
    play.cancel()
    assert (play.status, play.run.held) == ("cancelled", ())
    play = Play().submit(a_task("a"), timeout_ms=1_000)
    interrupt(play)
    play.fail("a", STOPPED)
    play.now_ms = Instant(play.now_ms + 2_000)
    play.tell(RunTimedOut(**HERE))
    assert play.status == "timed_out"


def test_of_several_turns_one_can_be_interrupted_and_the_others_go_on() -> None:
    play = Play().submit(a_task("a"), a_task("b"))
    assert interrupt(play, turn="task:b/1").turn == "task:b/1"
    play.fail("b", STOPPED)
    assert play.status == "running"
    assert say_more(play, task="b").turn == "task:b/2"
    assert play.say("b").say("a").status == "succeeded"


def test_of_several_interrupted_tasks_one_is_to_be_named() -> None:
    play = Play().submit(a_task("a"), a_task("b"))
    assert interrupt(play).turn == "task:a/1, task:b/1"
    play.fail("a", STOPPED).fail("b", STOPPED)
    assert play.status == "suspended"
    assert refused(play).details["tasks"] == ["a", "b"]
    say_more(play, task="a")
    say_more(play, "And b.", "i-2", task="b")
    assert play.say("a").say("b").status == "succeeded"
