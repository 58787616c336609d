"""How runs end: each end is its own, and what was in work when they end is told, signalled or waited for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from placet.errors import Code, Failure
from placet.gates import Boundary, OnExpiry
from placet.instants import Instant
from placet.messages import (
    CancelOperation,
    CloseApproval,
    CloseThread,
    RunTimedOut,
    StopTurn,
    TurnFailed,
)
from tests.builders import FakeApplication, a_call, a_direct_task, a_task, a_team, deny, reply, suspend
from tests.cases import case
from tests.machines.run_play import HERE, Play, usage

PRODUCTION = '{"env":"production"}'
GONE = Failure(code=Code.MODEL_FAILED, message="away")


def gated() -> FakeApplication:
    """A person is asked about production."""
    app = FakeApplication()
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend() if call.input.get("env") == "production" else None
    return app


def time_out(play: Play) -> Play:
    assert play.run.deadline_ms is not None
    play.now_ms = Instant(max(play.run.deadline_ms, play.now_ms))
    play.tell(RunTimedOut(**HERE))
    return play


def sent(play: Play, kind: type) -> list[str]:
    """Whom messages of a kind went to."""
    return [message.to().key for message in play.sent if isinstance(message, kind)]


# ── cancel reaches everything ──────────────────────────────────────────────────────────


def busy() -> Play:
    """One agent thinks, one tool of another runs, a direct call runs, and a person is asked about a fourth thing."""
    play = Play(gated()).submit(
        a_task("thinks"), a_task("acts"), a_direct_task("job", env="x"), a_task("asks"), a_task("z", "asks")
    )
    return play.call("acts", a_call("c1")).call("asks", a_call("c2", input_text=PRODUCTION), a_call("c3"))


@case("J17", "J04", "J01")
def test_a_cancel_reaches_every_agent_every_tool_and_every_question_and_each_once() -> None:
    play = busy()
    running = set(sent(play, CancelOperation))
    assert not running
    operations = {message.operation_id for message in play.executed()}
    request_id = play.pending()[0]
    play.cancel()
    assert play.status == "cancelled"
    assert sent(play, CloseThread) == ["task:thinks"]
    assert sorted(sent(play, CancelOperation)) == sorted(operations)
    assert sent(play, CloseApproval) == [request_id]
    before = len(play.sent)
    assert reply(play.cancel()).answer == "duplicate"
    assert len(play.sent) == before, "nothing is signalled twice"


@case("J18")
def test_after_a_cancel_every_call_has_exactly_one_answer_and_what_never_ran_says_so() -> None:
    play = busy()
    play.cancel()
    for task_id in ("acts", "asks", "job"):
        assert all(call.status == "done" and call.failure and call.text for call in play.task(task_id).calls)
    asked, ordered = play.task("asks").calls
    assert asked.text == "cancelled before execution"
    assert ordered.text.startswith("cancelled")
    assert play.statuses() == dict.fromkeys(("thinks", "acts", "job", "asks", "z"), "skipped")


@case("J09")
def test_a_cancel_after_a_failure_changes_nothing() -> None:
    play = Play().submit(a_task("a")).fail("a", GONE)
    before = play.run
    told = reply(play.cancel())
    assert (told.answer, told.status, told.failure and told.failure.code) == ("closed", "failed", Code.RUN_TERMINAL)
    assert play.run is before


# ── the time is over ───────────────────────────────────────────────────────────────────


@case("J19")
def test_when_the_time_is_over_a_tool_at_work_is_waited_for_and_the_rest_is_skipped() -> None:
    play = Play(gated()).submit(a_task("acts"), a_task("thinks"), a_task("later", "acts"), timeout_ms=10_000)
    play.call("acts", a_call())
    time_out(play)
    assert play.status == "running", "it drains"
    assert sent(play, StopTurn) == ["task:thinks"]
    assert sent(play, CancelOperation) == []
    assert play.tell(RunTimedOut(**HERE)).kind == "absorbed"
    play.fail("thinks", Failure(code=Code.TURN_INTERRUPTED, message="stopped"))
    assert play.status == "running"
    play.done(play.executed()[0].operation_id)
    assert (play.status, play.run.failure and play.run.failure.code) == ("timed_out", Code.DEADLINE)
    assert play.statuses() == dict.fromkeys(("acts", "thinks", "later"), "skipped")
    assert len(play.turns()) == 2, "no model is asked any more"


@case("J19")
def test_the_result_of_a_direct_call_that_ends_in_the_last_moment_is_kept() -> None:
    play = Play().submit(a_direct_task("a"), a_task("b", "a"), timeout_ms=1_000)
    time_out(play)
    play.done(play.executed()[0].operation_id, result='"done"')
    assert (play.status, play.task("a").output) == ("timed_out", '"done"')
    assert play.statuses() == {"a": "succeeded", "b": "skipped"}


@case("J19")
def test_a_tool_whose_outcome_nobody_knows_does_not_hold_up_the_end_of_the_time() -> None:
    play = Play().submit(a_task("a"), timeout_ms=1_000).call("a", a_call())
    time_out(play)
    operation_id = play.executed()[0].operation_id
    play.doubt(operation_id)
    assert play.status == "timed_out"
    assert sent(play, CancelOperation) == [operation_id]


@case("J19", "J23")
def test_a_cancel_while_it_drains_is_a_cancel() -> None:
    play = Play().submit(a_task("a"), timeout_ms=1_000).call("a", a_call())
    time_out(play)
    play.cancel()
    assert play.status == "cancelled"


@case("J19")
def test_a_run_that_only_waits_ends_at_once_and_its_questions_are_closed() -> None:
    play = Play(gated()).submit(a_task("a"), timeout_ms=1_000).call("a", a_call(input_text=PRODUCTION))
    [request_id] = play.pending()
    time_out(play)
    assert (play.status, sent(play, CloseApproval)) == ("timed_out", [request_id])


# ── every end is its own ───────────────────────────────────────────────────────────────


def rejected() -> Play:
    app = FakeApplication()
    app.gates[Boundary.PLAN] = lambda plan: deny()
    return Play(app).submit(a_task("a"))


def decided(outcome: str, on_expiry: OnExpiry | None = None) -> Play:
    app = FakeApplication()
    app.gates[Boundary.PLAN] = lambda plan: suspend()
    play = Play(app).submit(a_task("a"))
    return play.decide(play.pending()[0], outcome)


def revoked() -> Play:
    app = FakeApplication()
    app.gates[Boundary.PLAN] = lambda plan: suspend()
    play = Play(app).submit(a_task("a"))
    request_id = play.pending()[0]
    return play.revoke(request_id).decide(request_id, "approved")


def spent() -> Play:
    play = Play(FakeApplication(teams={"team": a_team(tokens_max=10)})).submit(a_task("a"), a_task("b", "a"))
    return play.say("a", usage=usage(11))


def cancelled() -> Play:
    play = Play().submit(a_task("a"))
    play.cancel()
    return play


ENDS: dict[str, tuple[Callable[[], Play], str, Code | None]] = {
    "succeeded": (lambda: Play().submit(a_task("a")).say("a"), "succeeded", None),
    "failed turn": (lambda: Play().submit(a_task("a")).fail("a", GONE), "failed", Code.TASK_FAILED),
    "denied": (rejected, "rejected", Code.GATE_DENIED),
    "rejected": (lambda: decided("rejected"), "rejected", Code.APPROVAL_REJECTED),
    "revoked": (revoked, "rejected", Code.APPROVAL_REVOKED),
    "expired": (lambda: decided("expired"), "expired", Code.APPROVAL_EXPIRED),
    "cancelled": (cancelled, "cancelled", Code.CANCELLED),
    "out of time": (lambda: time_out(Play().submit(a_task("a"), timeout_ms=1)), "timed_out", Code.DEADLINE),
    "out of tokens": (spent, "budget_exhausted", Code.BUDGET),
}


@case("J23")
@pytest.mark.parametrize("name", ENDS)
def test_each_end_has_a_status_and_a_code_of_its_own(name: str) -> None:
    make, status, code = ENDS[name]
    play = make()
    assert (play.status, play.run.failure and play.run.failure.code) == (status, code)


@case("J23")
def test_no_two_ends_are_told_alike() -> None:
    told = [(status, code) for _, status, code in ENDS.values()]
    assert len(set(told)) == len(told)


def test_the_tokens_of_a_turn_that_failed_are_counted() -> None:
    play = Play(FakeApplication(teams={"team": a_team(tokens_max=10)})).submit(a_task("a"), a_task("b"))
    play.tell(TurnFailed(**HERE, thread_id="task:a", turn=1, failure=GONE, usage=usage(8)))
    assert play.run.usage == usage(8)
