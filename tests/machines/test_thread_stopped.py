"""A turn that a user interrupts, a worker that is lost, and a live session elsewhere that is gone."""

from __future__ import annotations

import pytest

from placet.activities import CallModel, Stop
from placet.calls import UserText
from placet.errors import Code, ErrorClass, Failure
from placet.machine import Withdraw
from placet.messages import TurnFailed, TurnTaken
from tests.cases import case
from tests.machines.bench import invoked, sent
from tests.machines.builders_thread import LEASE_MS, ThreadBench, a_reply, failure

LOST = Failure(code=Code.HANDLE_LOST, message="no such session", error_class=ErrorClass.TRANSIENT)
CANCELLED = Failure(code=Code.CANCELLED, message="stopped", error_class=ErrorClass.CANCELLED)


# ── a user interrupts ──────────────────────────────────────────────────────────────────


@case("J12")
def test_an_interrupted_turn_is_signalled_once_and_ends_and_the_next_one_is_another_turn() -> None:
    bench = ThreadBench().calling()
    stopped = bench.give(bench.stop())
    assert [(stop.machine, stop.key) for stop in invoked(stopped, Stop)] == [("thread", "task:a")]
    assert [effect.message for effect in stopped.effects if isinstance(effect, Withdraw)] == [bench.lease_end()]
    assert failure(stopped).code is Code.TURN_INTERRUPTED
    assert bench.give(bench.stop()).kind == "absorbed"
    assert bench.give(bench.answered()).kind == "absorbed", "a late reply is dropped"
    bench.later(LEASE_MS)
    assert bench.give(bench.lease_end()).kind == "absorbed"
    assert invoked(bench.give(bench.take(2)), CallModel)
    assert [role for role, _ in bench.conversation()] == ["user", "user"]


@case("J12")
@pytest.mark.parametrize("turn", [1, 4])
def test_a_word_about_a_finished_or_a_far_turn_leaves_the_current_one_alone(turn: int) -> None:
    bench = ThreadBench().idle()
    bench.give(bench.take(2))
    assert bench.give(bench.stop(turn)).kind == "absorbed"
    assert bench.state.status == "calling"


def test_an_interruption_during_the_back_off_makes_no_further_attempt() -> None:
    bench = ThreadBench().waiting()
    assert failure(bench.give(bench.stop())).code is Code.TURN_INTERRUPTED
    bench.later(60_000)
    assert bench.give(bench.retry()).kind == "absorbed"


@case("J07")
def test_an_interruption_that_overtakes_its_turn_keeps_the_model_from_being_called() -> None:
    bench = ThreadBench()
    bench.give(bench.stop(1))
    taken = bench.give(bench.take(1))
    assert invoked(taken) == []
    assert failure(taken).code is Code.TURN_INTERRUPTED
    assert invoked(bench.give(bench.take(2)), CallModel), "the next one is called"


@case("J07")
@pytest.mark.parametrize("status", ["absent", "idle", "failed"])
def test_a_cancel_before_the_turn_starts_calls_no_model(status: str) -> None:
    bench = ThreadBench()
    turn = 1
    if status != "absent":
        bench.calling()
        bench.give(bench.answered() if status == "idle" else bench.failed(CANCELLED))
        turn = 2
    bench.run_is("cancelled")
    bench.give(bench.close())
    taken = bench.give(bench.take(turn))
    assert (taken.kind, bench.state.status) == ("absorbed", "closed")


# ── what had come by then ──────────────────────────────────────────────────────────────


@case("J08")
@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
def test_what_a_stopped_reply_had_come_to_is_kept_once_and_is_no_part_of_the_conversation(how: str) -> None:
    bench = ThreadBench().calling()
    if how == "cancelled":
        bench.run_is("cancelled")
        bench.give(bench.close())
    else:
        bench.give(bench.stop())
    status, said = bench.state.status, len(bench.conversation())
    kept = bench.give(bench.failed(CANCELLED, partial_text="I have fou"))
    assert (kept.effects, bench.state.partial_text, bench.state.status) == ((), "I have fou", status)
    assert len(bench.conversation()) == said
    for late in (bench.failed(CANCELLED, partial_text="more"), bench.failed(CANCELLED), bench.answered()):
        assert bench.give(late).kind == "absorbed", "no write afterwards"


def test_the_leavings_of_an_earlier_attempt_or_of_a_turn_that_went_on_are_dropped() -> None:
    bench = ThreadBench().calling()
    bench.later(LEASE_MS)
    bench.give(bench.lease_end())
    bench.give(bench.stop())
    assert bench.give(bench.failed(CANCELLED, attempt=1, partial_text="old")).kind == "absorbed"
    bench.give(bench.take(2))
    assert bench.state.partial_text == ""


# ── a worker that is lost ──────────────────────────────────────────────────────────────


@case("K02")
def test_a_crash_between_the_note_and_the_model_call_leaves_one_note() -> None:
    bench = ThreadBench().idle()
    note = UserText(text="note and words")
    bench.give(bench.take(2, note))
    bench.incarnation = 1
    again = bench.give(bench.lease_end())
    assert [call.messages for call in invoked(again, CallModel)] == [3]
    assert bench.give(bench.take(2, note)).kind == "absorbed", "and so does the instruction that comes again"
    bench.give(bench.answered())
    assert [role for role, _ in bench.conversation()] == ["user", "assistant", "user", "assistant"]


@case("K08")
def test_an_attempt_that_nobody_reported_on_is_counted_as_an_interruption_of_its_turn() -> None:
    bench = ThreadBench().calling()
    bench.incarnation = 1
    bench.give(bench.lease_end())
    assert (bench.state.lost, bench.state.attempt) == (1, 2)
    bench.give(bench.answered())
    bench.give(bench.take(2))
    assert bench.state.lost == 0


# ── a live session elsewhere ───────────────────────────────────────────────────────────


def with_a_session() -> ThreadBench:
    """The model has named a session in its first turn, and is asked for the second."""
    bench = ThreadBench().calling()
    bench.give(bench.answered(a_reply().model_copy(update={"handle": "session-7"})))
    return bench


@case("K04")
def test_a_session_is_given_back_in_every_further_turn() -> None:
    bench = with_a_session()
    for turn in (2, 3):
        [call] = invoked(bench.give(bench.take(turn)), CallModel)
        assert call.handle == "session-7"
        bench.give(bench.answered())
    assert bench.state.handle == "session-7", "a reply without one changes nothing"


@case("K04")
def test_a_session_that_is_gone_ends_the_turn_with_its_own_code_and_is_not_replaced() -> None:
    bench = with_a_session()
    bench.give(bench.take(2))
    lost = bench.give(bench.failed(LOST))
    assert invoked(lost) == [], "it is not tried again, and nothing is opened in its place"
    assert failure(lost).code is Code.HANDLE_LOST
    assert bench.state.status == "failed", "which is not waiting"
    [call] = invoked(bench.give(bench.take(3)), CallModel)
    assert call.handle == "session-7", "a further turn asks for the same one"


@case("K04")
def test_a_reply_out_of_another_session_is_not_believed() -> None:
    bench = with_a_session()
    bench.give(bench.take(2))
    said = len(bench.conversation())
    lost = bench.give(bench.answered(a_reply("Hello!").model_copy(update={"handle": "session-8"})))
    assert sent(lost, TurnTaken) == []
    assert [message.failure.code for message in sent(lost, TurnFailed)] == [Code.HANDLE_LOST]
    assert (bench.state.handle, len(bench.conversation())) == ("session-7", said)
