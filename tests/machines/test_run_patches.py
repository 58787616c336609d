"""A change of a plan under way, in the rules of a run: what is dropped, what stays, what rounds and limits say."""

from __future__ import annotations

from typing import Any

import pytest

from placet import limits
from placet.errors import Code, ErrorClass, Failure
from placet.gates import Boundary
from placet.machine import Receipt, Reply
from placet.messages import PatchPlan
from placet.plans import plan_digest
from tests.builders import ALICE, BOB, FakeApplication, a_task, a_team, suspend
from tests.cases import case
from tests.machines.run_play import HERE, Play

BROKE = Failure(code=Code.MODEL_FAILED, message="the model is away", error_class=ErrorClass.PERMANENT)


def asking(**terms: Any) -> FakeApplication:
    """Every patch is put to a person."""
    return FakeApplication(gates={Boundary.PLAN_PATCH: lambda patch: suspend(**terms)})


def propose(play: Play, name: str = "p-1", **patch: Any) -> Receipt:
    moved = play.tell(PatchPlan(**HERE, patch_id=name, by=ALICE, **patch))
    return next(effect.receipt for effect in moved.effects if isinstance(effect, Reply))


def dropped(play: Play) -> str:
    [entry] = play.run.patches
    assert play.run.patch is None
    return entry.outcome


@pytest.mark.parametrize("outcome", ["rejected", "expired", "cancelled", "superseded"])
def test_a_patch_that_is_not_approved_is_dropped_and_the_run_goes_on(outcome: str) -> None:
    play = Play(asking()).submit(a_task("a"), a_task("b", "a"))
    propose(play, add=(a_task("c"),), remove=("b",))
    play.decide(play.pending()[0], outcome).say("a")
    assert dropped(play) == outcome
    assert [turn.thread_id for turn in play.turns()] == ["task:a", "task:b"]
    assert play.say("b").status == "succeeded"


def test_a_patch_whose_approval_is_taken_back_is_dropped() -> None:
    play = Play(asking()).submit(a_task("a"), a_task("b", "a"))
    propose(play, add=(a_task("c"),))
    [request_id] = play.pending()
    play.revoke(request_id).decide(request_id).say("a").say("b")
    assert (dropped(play), play.status, list(play.statuses())) == ("revoked", "succeeded", ["a", "b"])


def test_a_patch_that_nobody_decides_fails_the_run_only_where_its_gate_says_so() -> None:
    play = Play(asking(expires_after_ms=1_000, on_expiry="fail")).submit(a_task("a"))
    propose(play, add=(a_task("c"),))
    play.decide(play.pending()[0], "expired").say("a")
    assert play.status == "expired"


def test_an_approved_patch_that_no_longer_fits_the_plan_is_stale_and_changes_nothing() -> None:
    """What the patch changes is skipped while people think, since what it depends on fails."""
    play = Play(asking()).submit(a_task("a"), a_task("b", "a"))
    propose(play, change=(a_task("b", "a", title="changed"),), add=(a_task("c"),))
    [request_id] = play.pending()
    play.fail("a", BROKE)
    assert (play.status, play.statuses()) == ("suspended", {"a": "failed", "b": "skipped"})
    play.decide(request_id)
    assert (dropped(play), play.status, play.statuses()) == ("stale", "failed", {"a": "failed", "b": "skipped"})


@case("D08", "D09")
@pytest.mark.parametrize(
    "changed",
    [{"add": (a_task("c", title="another"),)}, {"add": ()}, {"remove": ("b",)}, {"reason": "another"}, {"by": BOB}],
)
def test_a_patch_that_was_changed_in_the_snapshot_after_its_approval_is_not_applied(changed: dict[str, Any]) -> None:
    play = Play(asking()).submit(a_task("a"), a_task("b", "a"))
    propose(play, add=(a_task("c"),))
    assert play.run.patch is not None
    play.state = play.run.model_copy(update={"patch": play.run.patch.model_copy(update=changed)})
    play.decide(play.pending()[0])
    assert (dropped(play), list(play.statuses())) == ("stale", ["a", "b"])
    assert play.say("a").say("b").status == "succeeded"


def test_an_approved_patch_that_todays_tools_refuse_is_stale() -> None:
    play = Play(asking()).submit(a_task("a"))
    propose(play, add=(a_task("c", assignee="worker"),))
    play.app.teams["team"] = a_team(agents={"other": ("deploy",)})
    play.decide(play.pending()[0])
    assert dropped(play) == "stale"


def test_what_an_approved_patch_adds_runs_and_what_it_removes_does_not() -> None:
    play = Play(asking()).submit(a_task("a"), a_task("b", "a"), a_task("c", "b"))
    before = plan_digest(play.run.tasks)
    propose(play, base=before, add=(a_task("d", "a", priority=5),), remove=("c",), change=(a_task("b", "d"),))
    play.say("a")
    assert len(play.turns()) == 1, "nothing is admitted while it is undecided"
    play.decide(play.pending()[0])
    assert play.turns()[-1].thread_id == "task:d"
    play.say("d").say("b")
    assert (play.status, play.statuses()["c"], play.task("c").removed) == ("succeeded", "skipped", True)
    assert [turn.thread_id for turn in play.turns()] == ["task:a", "task:d", "task:b"]


def test_what_has_begun_or_is_asked_about_is_not_touched() -> None:
    app = FakeApplication(gates={Boundary.DISPATCH: lambda subject: suspend() if subject.task.id == "b" else None})
    play = Play(app).submit(a_task("a", priority=1), a_task("b"), a_task("c", "a"))
    for name, is_free in (("a", False), ("b", False), ("c", True)):
        receipt = propose(play, f"p-{name}", remove=(name,))
        assert (receipt.outcome == "applied") is is_free
        assert is_free or (receipt.failure is not None and receipt.failure.code is Code.PLAN_INVALID)


def test_a_task_is_not_added_behind_one_that_has_failed() -> None:
    play = Play().submit(a_task("a"), a_task("b")).fail("a", BROKE)
    receipt = propose(play, add=(a_task("c", "a"),))
    assert receipt.failure is not None
    assert (receipt.failure.code, receipt.failure.pointer) == (Code.PLAN_INVALID, "/add/0/depends_on/0")


def test_with_rounds_what_is_added_belongs_to_the_next_round_and_an_open_round_is_decided_first() -> None:
    app = FakeApplication(teams={"team": a_team(round_gate=True)})
    play = Play(app).submit(a_task("a"), a_task("b", "a"))
    assert propose(play, add=(a_task("c"),)).outcome == "applied"
    assert [turn.thread_id for turn in play.turns()] == ["task:a"]
    app.gates[Boundary.ROUND] = lambda subject: suspend()
    play.say("a")
    assert play.requests()[-1].request.boundary == "a->b,c"
    receipt = propose(play, "p-2", add=(a_task("d"),))
    assert receipt.failure is not None
    assert receipt.failure.code is Code.PLAN_BUSY
    play.decide(play.pending()[0]).say("b").say("c")
    assert play.status == "succeeded"


def test_a_goal_whose_plan_was_patched_is_answered_from_what_is_in_the_plan() -> None:
    play = Play().submit().plan(a_task("a"), a_task("b", "a"))
    propose(play, remove=("b",), add=(a_task("c", "a"),))
    play.say("a", "A").say("c", "C")
    [said] = play.turns()[-1].append
    assert "[a]" in said.text  # type: ignore[union-attr]
    assert "[c]" in said.text  # type: ignore[union-attr]
    assert "[b]" not in said.text  # type: ignore[union-attr]


def test_a_plan_is_changed_only_so_often() -> None:
    play = Play().submit(a_task("a"))
    for n in range(limits.PATCHES_MAX):
        assert propose(play, f"p-{n}", add=(a_task(f"t{n}", "a"),)).outcome == "applied"
    receipt = propose(play, "one-more", add=(a_task("x"),))
    assert receipt.failure is not None
    assert receipt.failure.code is Code.PLAN_INVALID
