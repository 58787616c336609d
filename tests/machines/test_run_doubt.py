"""Doubt about a side effect, as a run meets it: it waits for whoever can say what happened, and ends only then."""

from __future__ import annotations

from typing import Any

import pytest

from placet.errors import Code
from placet.gates import Boundary, Judgement
from placet.messages import CancelOperation, CloseApproval, RunTimedOut
from tests.builders import (
    FakeApplication,
    a_call,
    a_task,
    allow,
    suspend,
)
from tests.machines.run_play import HERE, Play

PRODUCTION = '{"env":"production"}'


def by_env(subject: Any) -> Judgement | None:
    """Production needs a person."""
    return suspend("touches production") if subject.input.get("env") == "production" else allow()


def gated(gate: Any = by_env, **tools: Any) -> FakeApplication:
    return FakeApplication(gates={Boundary.TOOL_CALL: gate})


def the_result(play: Play) -> Any:
    """The one result of the turn before the last."""
    [result] = play.results()
    return result


def test_a_doubtful_operation_suspends_the_run_until_somebody_says_what_happened() -> None:
    play = Play(gated()).submit(a_task("a"), a_task("b", "a")).call("a", a_call())
    operation_id = play.executed()[0].operation_id
    play.doubt(operation_id)
    assert (play.status, play.pending()) == ("suspended", ["apr_did_it_happen"])
    assert play.run.requests[0].scope == "operation_outcome"
    play.done(operation_id, result='{"settled_by":"bob"}')
    assert (play.status, play.pending(), the_result(play).ok) == ("running", [], True)


def test_a_doubtful_operation_holds_approved_calls_back() -> None:
    play = Play(gated()).submit(a_task("a")).call("a", a_call("free"), a_call("asked", input_text=PRODUCTION))
    free = play.executed()[0].operation_id
    play.doubt(free).decide(play.pending()[0])
    assert (play.status, len(play.executed())) == ("suspended", 1)
    play.done(free)
    assert (play.status, len(play.executed())) == ("running", 2)


def in_doubt_beside_a_question() -> tuple[Play, str, str]:
    """Whether task b may start is asked; meanwhile nobody knows whether the call of task a happened."""
    app = gated()
    app.gates[Boundary.DISPATCH] = lambda subject: suspend() if subject.task.id == "b" else None
    play = Play(app).submit(a_task("a"), a_task("b")).call("a", a_call())
    operation_id = play.executed()[0].operation_id
    play.doubt(operation_id)
    [request_id] = [request.request_id for request in play.run.requests if request.is_own]
    assert play.status == "suspended"
    return play, operation_id, request_id


def test_a_rejection_elsewhere_does_not_take_back_the_question_whether_it_happened() -> None:
    play, operation_id, request_id = in_doubt_beside_a_question()
    play.decide(request_id, "rejected")
    assert (play.status, play.pending()) == ("suspended", ["apr_did_it_happen"])
    assert [m for m in play.sent if isinstance(m, CancelOperation | CloseApproval)] == []
    play.done(operation_id, result='{"settled_by":"bob"}')
    assert (play.status, the_result(play).ok) == ("running", True), "what was begun comes to its own end"
    play.say("a")
    assert (play.status, play.statuses()) == ("rejected", {"a": "succeeded", "b": "skipped"})


def test_a_decision_that_is_not_to_be_believed_ends_the_run_once_the_doubt_is_settled() -> None:
    play, operation_id, request_id = in_doubt_beside_a_question()
    play.decide(request_id, request_hash="0" * 64)
    assert (play.status, play.pending()) == ("suspended", ["apr_did_it_happen"])
    play.done(operation_id, result='{"settled_by":"bob"}')
    assert (play.status, play.run.failure and play.run.failure.code) == ("failed", Code.APPROVAL_INTEGRITY_ERROR)
    assert play.statuses() == {"a": "skipped", "b": "skipped"}


@pytest.mark.parametrize("how", ["cancelled", "timed_out"])
def test_a_person_or_the_deadline_ends_a_run_whatever_is_in_doubt(how: str) -> None:
    play, _, request_id = in_doubt_beside_a_question()
    play.decide(request_id, "rejected")
    if how == "cancelled":
        play.cancel()
    else:
        play.state = play.run.model_copy(update={"deadline_ms": play.now_ms})
        play.tell(RunTimedOut(**HERE))
    assert play.status == how
    assert len([m for m in play.sent if isinstance(m, CancelOperation)]) == 1


def test_the_question_of_the_operation_is_not_the_runs_to_close() -> None:
    play = Play(gated()).submit(a_task("a")).call("a", a_call())
    play.doubt(play.executed()[0].operation_id)
    play.cancel()
    assert [m for m in play.sent if isinstance(m, CloseApproval)] == []
