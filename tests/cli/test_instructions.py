"""Further instructions and interruptions by command."""

from __future__ import annotations

from placet.errors import Code, Failure
from placet.machine import Receipt
from placet.messages import ContinueRun, InterruptRun
from tests.cases import case
from tests.cli.conftest import Placet
from tests.gateway.test_instructions import add_thread
from tests.gateway.world import World


def test_an_instruction_goes_out_under_an_id_and_the_turn_is_named(world: World, placet: Placet) -> None:
    world.add_run("r1")
    result = placet("run", "continue", "r1", "And the changelog.", "--task", "cut", "--timeout", "10m", "--as", "alice")
    assert (result.code, result.err.splitlines()[-1]) == (0, "Watch it: placet run watch r1")
    assert "task:cut/2" in result.out
    (message, _) = world.asked[0]
    assert isinstance(message, ContinueRun)
    assert (message.text, message.task, message.timeout_ms) == ("And the changelog.", "cut", 600_000)
    assert message.by.id == "alice"
    assert message.instruction_id.startswith("ins-")


def test_an_instruction_can_be_repeated_by_its_id(world: World, placet: Placet) -> None:
    world.add_run("r1")
    world.silent = True
    unknown = placet("run", "continue", "r1", "Go on.")
    assert unknown.code == 4
    (message, _) = world.asked[0]
    assert isinstance(message, ContinueRun)
    assert f"--id {message.instruction_id}" in unknown.err
    world.silent = False
    again = placet("run", "continue", "r1", "Go on.", "--id", message.instruction_id, "--json")
    assert again.document["answer"] == "accepted"
    assert world.asked[-1][0] == message


@case("I10")
def test_a_busy_run_says_with_what_and_what_can_be_done(world: World, placet: Placet) -> None:
    world.add_run("r1")
    failure = Failure(code=Code.TURN_BUSY, message="task:cut/2 in work", details={"turn": "task:cut/2"})
    world.scripted.append(Receipt(answer="refused", run_id="r1", failure=failure))
    busy = placet("run", "continue", "r1", "Else.", "--json")
    assert (busy.code, busy.error["code"], busy.error["details"]["turn"]) == (1, "TURN_BUSY", "task:cut/2")
    assert "placet run interrupt" in busy.error["next_step"]


def test_waiting_for_a_continuation_tells_what_is_new_only(world: World, placet: Placet) -> None:
    world.add_run("r1", "succeeded", answer="Told.")
    world.add_leaf("run.ended", "succeeded")
    result = placet("run", "continue", "r1", "Go on.", "--wait")
    assert result.code == 0, result.err
    assert "Told." in result.out
    assert "run is succeeded" not in result.err


@case("I21")
def test_interrupting_says_what_was_stopped_and_what_comes_next(world: World, placet: Placet) -> None:
    task = {"id": "cut", "title": "Cut it", "status": "running", "assignee": "releaser", "turn": 1}
    world.add_run("r1", "running", phase="working", tasks=[task])
    add_thread(world, "calling", turn=1)
    stopped = placet("run", "interrupt", "r1", "--turn", "1", "--reason", "wrong way")
    assert stopped.code == 0
    assert "task:cut/1 is stopped" in stopped.out
    assert "placet run continue r1" in stopped.err
    (message, _) = world.asked[0]
    assert isinstance(message, InterruptRun)
    assert (message.turn, message.reason) == ("task:cut/1", "wrong way")
    world.scripted.append(Receipt(answer="nothing_interrupted", run_id="r1", status="succeeded"))
    assert "nothing interrupted" in placet("run", "interrupt", "r1").out


@case("K08")
def test_an_interrupted_turn_is_shown_with_what_the_run_waits_for(world: World, placet: Placet) -> None:
    task = {"id": "cut", "title": "Cut it", "status": "running", "assignee": "releaser", "turn": 2}
    world.add_run("r1", "suspended", phase="working", tasks=[task])
    add_thread(world, "failed", stop=2)
    shown = placet("run", "show", "r1").out
    assert "task:cut/2 was interrupted" in shown
    assert "waits:   for an instruction: placet run continue r1" in shown
    add_thread(world, "calling", lease_until_ms=9_999_999_999_999, lost=1, attempt=2)
    assert "task:cut/2 was interrupted, and is at attempt 2" in placet("run", "show", "r1").out


def test_watching_tells_sentences_and_ends_badly_with_a_run_that_failed(world: World, placet: Placet) -> None:
    world.add_run("r1", "failed")
    world.add_leaf("task.started", "cut", assignee="releaser")
    world.add_leaf("approval.requested", "apr_1", scope="tool_call")
    world.add_leaf("approval.decided", "apr_1", outcome="rejected", decided_by="bob")
    world.add_leaf("news.of.tomorrow", "x")
    world.add_leaf("run.ended", "failed", code="TASK_FAILED")
    result = placet("run", "watch", "r1")
    assert result.code == 1
    for told in (
        "task cut began, by releaser",
        "waits for a person, about a call: placet show apr_1",
        "apr_1 is rejected by bob",
        "news.of.tomorrow x",
        "the run is failed: TASK_FAILED",
    ):
        assert told in result.out
    assert "{" not in result.out
