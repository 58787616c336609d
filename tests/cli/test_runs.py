"""Runs by command: start, wait, list, look, watch, cancel, account for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placet.errors import Code, Failure
from placet.machine import Receipt
from placet.messages import CancelRun, SubmitRun
from tests.cli.conftest import Placet
from tests.gateway.test_runs import filled
from tests.gateway.world import World

TASKS = [{"id": "cut", "title": "Cut {{version}}", "depends_on": []}]


def submitted(world: World) -> SubmitRun:
    (message,) = [message for message, _ in world.asked if isinstance(message, SubmitRun)]
    return message


def test_a_goal_starts_a_run_under_a_fresh_id_that_is_printed(world: World, placet: Placet) -> None:
    result = placet("run", "start", "release", "--goal", "cut v1.2.0", "--timeout", "10m")
    message = submitted(world)
    assert (result.code, result.out.strip()) == (0, message.run_id)
    assert (message.team, message.mode, message.goal, message.timeout_ms) == ("release", "goal", "cut v1.2.0", 600_000)
    assert message.initiator.id == "developer"


def test_the_same_id_is_the_same_run(placet: Placet) -> None:
    arguments = ("run", "start", "release", "--goal", "x", "--id", "r7", "--json")
    assert placet(*arguments).document["answer"] == "accepted"
    assert placet(*arguments).document["answer"] == "duplicate"
    other = placet("run", "start", "release", "--goal", "y", "--id", "r7")
    assert other.code == 1
    assert "[RUN_EXISTS]" in other.err


@pytest.mark.parametrize(("option", "mode"), [("--tasks", "tasks"), ("--plan", "frozen_plan")])
@pytest.mark.parametrize("form", ["array", "object", "stdin"])
def test_tasks_and_plans_come_from_a_file(
    world: World, placet: Placet, tmp_path: Path, option: str, mode: str, form: str
) -> None:
    document = json.dumps(TASKS if form == "array" else {"version": 1, "tasks": TASKS})
    (tmp_path / "plan.json").write_text(document)
    name = "-" if form == "stdin" else "plan.json"
    result = placet("run", "start", "release", option, name, "--var", "version=v1.2.0", stdin=document.encode())
    assert result.code == 0, result.err
    message = submitted(world)
    assert message.mode == mode
    assert [(task.id, task.title) for task in message.tasks] == [("cut", "Cut v1.2.0")]


def test_a_plan_only_run_plans_a_goal(world: World, placet: Placet) -> None:
    assert placet("run", "start", "release", "--goal", "x", "--plan-only").code == 0
    assert submitted(world).mode == "plan_only"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--goal", "x", "--plan", "p.json"),
        ("--plan-only", "--plan", "p.json"),
        ("--goal", "x", "--timeout", "soon"),
        ("--goal", "x", "--timeout", "0"),
        ("--goal", "x", "--var", "novalue"),
        ("--goal", "x", "--var", "unused=1"),
        ("--goal", "{{a}} {{b}}", "--var", "a=1"),
        ("--goal", "{{a}}", "--var", "a=1", "--var", "a=2"),
        ("--tasks", "missing.json"),
        ("--tasks", "words.json"),
        ("--tasks", "goal.json"),
        ("--tasks", "twice.json"),
    ],
)
def test_a_bad_command_asks_nothing_and_exits_2(
    world: World, placet: Placet, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "words.json").write_text('["not", "tasks"]')
    (tmp_path / "goal.json").write_text('{"goal": "x", "tasks": []}')
    (tmp_path / "twice.json").write_text('[{"id": "a", "id": "b"}]')
    result = placet("run", "start", "release", *arguments)
    assert (result.code, result.out) == (2, "")
    assert len([line for line in result.err.splitlines() if line.startswith("error:")]) == 1
    assert world.asked == []


def test_a_plan_that_the_machines_refuse_exits_2_with_the_place(world: World, placet: Placet, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(TASKS))
    failure = Failure(code=Code.PLAN_INVALID, message="task 'cut' depends on itself", pointer="/tasks/0/depends_on/0")
    world.scripted.append(Receipt(answer="refused", run_id="r", failure=failure))
    result = placet("run", "start", "release", "--plan", "plan.json", "--json")
    assert result.code == 2
    assert (result.error["code"], result.error["pointer"]) == ("PLAN_INVALID", "/tasks/0/depends_on/0")


def test_every_finding_about_a_submission_is_told(placet: Placet, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('[{"id": "a"}, {"title": "b"}]')
    result = placet("run", "start", "release", "--plan", "plan.json")
    assert result.code == 2
    assert "/tasks/0/title" in result.err
    assert "/tasks/1/id" in result.err


def test_after_a_lost_answer_the_id_to_repeat_with_is_told(world: World, placet: Placet) -> None:
    world.silent = True
    result = placet("run", "start", "release", "--goal", "x")
    assert result.code == 4
    assert f"--id {submitted(world).run_id}" in result.err


@pytest.mark.parametrize(
    ("status", "code"),
    [("succeeded", 0), ("suspended", 3), ("failed", 1), ("rejected", 1), ("cancelled", 1), ("timed_out", 1)],
)
def test_waiting_ends_with_the_run_or_with_a_question(world: World, placet: Placet, status: str, code: int) -> None:
    world.scripted.append(Receipt(answer="accepted", run_id="r1", status="planning"))
    world.add_run(status=status, answer="v1.2.0 is out" if status == "succeeded" else None)
    questions = [world.add_request()["request_id"]] if status == "suspended" else []
    result = placet("run", "start", "release", "--goal", "x", "--id", "r1", "--wait")
    assert result.code == code
    assert f"r1: {status}" in result.out
    for question in questions:
        assert f"placet show {question}" in result.out
    if status == "succeeded":
        assert "v1.2.0 is out" in result.out


def test_waiting_follows_the_run_while_it_works(world: World, placet: Placet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is at work when it is first looked at; its events say when to look again."""
    world.scripted.append(Receipt(answer="accepted", run_id="r1", status="planning"))
    world.add_run(status="running")
    world.add_leaf("run.submitted")
    looked = []
    of_world = world.state

    async def state(tenant: str, address: Any) -> Any:
        looked.append(address)
        if len(looked) == 3:  # the command's first look, the stream's first, and now the one after an event
            world.end_run()
        return await of_world(tenant, address)

    monkeypatch.setattr(world, "state", state)
    result = placet("run", "start", "release", "--goal", "x", "--id", "r1", "--wait", "--json")
    assert (result.code, result.document["status"]) == (0, "succeeded")


def test_runs_are_listed_and_shown(world: World, placet: Placet) -> None:
    world.add_run("r1", "suspended")
    world.add_run("r2", "succeeded", answer="done\x1b[2J")
    row = world.add_request()
    listed = placet("run", "list").out
    assert listed.index("r2") < listed.index("r1")
    assert [run["run_id"] for run in placet("run", "list", "--json").document["items"]] == ["r2", "r1"]
    assert [r["run_id"] for r in placet("run", "list", "--status", "suspended", "--json").document["items"]] == ["r1"]
    shown = placet("run", "show", "r1").out
    assert "r1: suspended" in shown
    assert "Cut it" in shown
    assert f"placet show {row['request_id']}" in shown
    assert "done\\u{1B}[2J" in placet("run", "show", "r2").out
    assert placet("run", "show", "r2", "--json").document["status"] == "succeeded"


def test_a_run_given_in_full_is_found_though_it_begins_another(world: World, placet: Placet) -> None:
    for name in ("r1", "r12", "release-1"):
        world.add_run(name)
    assert placet("run", "show", "r1", "--json").document["run_id"] == "r1"
    assert placet("run", "show", "rel", "--json").document["run_id"] == "release-1"
    assert placet("run", "show", "r", "--json").code == 2
    assert placet("run", "show", "x").code == 1


def test_watching_prints_every_event_and_ends_with_the_run(world: World, placet: Placet) -> None:
    world.add_run(status="succeeded")
    for kind in ("run.submitted", "task.started", "run.ended"):
        world.add_leaf(kind, "cut", assignee="\u202e")
    result = placet("run", "watch", "r1")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["1", "2", "3"]
    assert "\\u{202E}" in result.out
    assert "\u202e" not in result.out
    assert "has ended: succeeded" in result.err
    lines = placet("run", "watch", "r1", "--after", "1", "--json").out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [2, 3]
    assert placet("run", "watch", "r1", "--after", "3", "--json").out == ""


def test_cancelling_says_who_and_why(world: World, placet: Placet) -> None:
    world.add_run()
    result = placet("run", "cancel", "r1", "--reason", "wrong branch", "--as", "alice", "--json")
    assert (result.code, result.document["answer"]) == (0, "accepted")
    (message, _) = world.asked[0]
    assert isinstance(message, CancelRun)
    assert (message.by.id, message.reason) == ("alice", "wrong branch")


def test_the_receipt_and_the_trace_account_for_everything(world: World, placet: Placet) -> None:
    row = filled(world)
    receipt = placet("run", "receipt", "r1")
    assert receipt.code == 0
    assert "approved by reviewer" in receipt.out
    assert row["request_hash"] in receipt.out
    assert "audit: 2 leaves, intact" in receipt.out
    assert placet("run", "receipt", "r1", "--json").document["audit"]["intact"] is True
    trace = placet("run", "trace", "r1").out
    for source in ("journal", "approval_request", "approval_outcome", "operation_attempt", "audit_leaf", "outbox"):
        assert source in trace
    entries = placet("run", "trace", "r1", "--json").document["entries"]
    assert len(entries) == len(trace.splitlines())


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        (
            '{"certainty":"unknown","failure":{"message":"ValueError: bank is \\u202e down"}}',
            "because ValueError: bank is",
        ),
        ('{"certainty":"executed","failure":null}', None),
        ("settled by reviewer", None),
        (None, None),
    ],
)
def test_the_receipt_says_why_an_attempt_failed_where_the_tool_has_said_so(
    world: World, placet: Placet, evidence: str | None, told: str | None
) -> None:
    filled(world)
    for attempt in world.tables["operation_attempt"]:
        attempt |= {"ended": "failed", "evidence_text": evidence}
    receipt = placet("run", "receipt", "r1")
    assert receipt.code == 0
    assert ("because" in receipt.out) is (told is not None)
    assert (told or "") in receipt.out
    assert "\u202e" not in receipt.out


def test_a_broken_audit_chain_is_a_failure(world: World, placet: Placet) -> None:
    filled(world)
    world.tables["audit_leaf"][0]["kind"] = "changed"
    result = placet("run", "receipt", "r1")
    assert result.code == 1
    assert "NOT INTACT" in result.out
