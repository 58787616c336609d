"""What a run hears twice is heard once, and where no instruction can lead on it says so: found by the simulator."""

from __future__ import annotations

import pytest

from placet.errors import Code
from placet.gates import Boundary, Judgement
from placet.messages import ANSWER_THREAD, PLAN_THREAD, ApprovalExpiring, RunTimedOut, TurnFailed
from placet.rows import AuditLeafRow
from tests.builders import FakeApplication, a_call, a_task, a_team
from tests.machines.run_play import HERE, Play, usage
from tests.machines.test_run_continue import STOPPED, refused, say_more
from tests.machines.test_run_interrupt import interrupt


@pytest.mark.parametrize("came", ["stopped", "planned"])
def test_the_end_of_an_interrupted_planners_turn_costs_its_tokens_once(came: str) -> None:
    play = Play().submit()
    interrupt(play)
    for kind in ("moved", "absorbed"):
        if came == "stopped":
            play.tell(TurnFailed(**HERE, thread_id=PLAN_THREAD, turn=1, failure=STOPPED, usage=usage(7)))
        else:
            play.plan(a_task("a", assignee="worker"), usage=usage(7))
        assert play.last is not None
        assert play.last.kind == kind
    assert play.run.usage == usage(7)


def test_the_end_of_an_interrupted_answer_costs_its_tokens_once() -> None:
    play = Play().submit().plan(a_task("a"), a_task("b")).say("a").say("b")
    interrupt(play)
    before = play.run.usage
    for _ in range(2):
        play.tell(TurnFailed(**HERE, thread_id=ANSWER_THREAD, turn=1, failure=STOPPED, usage=usage(7)))
    assert play.run.usage == before.plus(usage(7))


def test_that_a_question_expires_soon_is_written_down_once() -> None:
    asking = Judgement(verdict="suspend", rule="r", policy_version="1", expires_after_ms=9_000, remind_before_ms=1_000)
    play = (
        Play(FakeApplication(gates={Boundary.TOOL_CALL: lambda subject: asking}))
        .submit(a_task("a"))
        .call("a", a_call())
    )
    [request_id] = play.pending()
    for _ in range(3):
        play.tell(ApprovalExpiring(**HERE, request_id=request_id, expires_at_ms=play.now_ms + 1_000))
    leaves = [row for row in play.rows.values() if isinstance(row, AuditLeafRow) and row.kind == "approval.expiring"]
    assert len(leaves) == 1


def test_a_run_that_waits_for_an_instruction_which_its_budget_forbids_has_ended() -> None:
    play = Play(FakeApplication(teams={"team": a_team(tokens_max=10)})).submit(a_task("a"), a_task("b"))
    interrupt(play)
    play.fail("a", STOPPED).fail("b", STOPPED)
    assert play.status == "suspended"
    say_more(play, task="a")
    play.say("a", usage=usage(11))
    assert play.status == "budget_exhausted"


def test_a_run_that_is_coming_to_its_end_takes_no_instruction() -> None:
    play = Play().submit(a_task("a"), a_task("b"), timeout_ms=1_000).call("b", a_call())
    interrupt(play, turn="task:a/1")
    play.fail("a", STOPPED)
    play.now_ms = type(play.now_ms)(play.now_ms + 1_000)
    play.tell(RunTimedOut(**HERE))
    assert play.run.ending is not None
    for task in ("", "a"):
        assert refused(play, task=task).code is Code.RUN_TERMINAL
