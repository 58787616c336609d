"""Saying more than a word: an edit, an answer, what should be changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placet.canonical import canonical_text
from placet.cli import exits, saying
from placet.errors import Code
from placet.machine import Receipt
from tests.cli.conftest import Placet
from tests.cli.test_requests import DOUBT, decided
from tests.gateway.world import World

QUESTION = {"kind": "question", "question": "Which?", "agentName": "a", "taskId": "cut", "toolCallId": "c1.1"}
NEW = {"name": "v2", "commit": "1"}


def edited(world: World) -> None:
    world.scripted.append(
        Receipt(
            answer="accepted", run_id="r1", request_id="apr_1", outcome="superseded", decided_by="bob",
            successor="apr_0123456789abcdef",
        )
    )  # fmt: skip


def test_an_edit_sends_the_whole_input_and_says_who_has_to_look_at_it_next(world: World, placet: Placet) -> None:
    row = world.add_request()
    edited(world)
    result = placet("edit", row["request_id"], "--input", json.dumps(NEW), "--yes", "--reason", "the right one")
    assert result.code == exits.OK, result.err
    (message,) = decided(world)
    assert (message.decision, message.value_text, message.reason) == ("edit", canonical_text(NEW), "the right one")
    assert message.request_hash == row["request_hash"]
    assert "differs in: commit, name" in result.out
    assert "superseded by bob" in result.out
    assert "placet show apr_01234567" in result.err


def test_the_input_may_be_in_a_file(world: World, placet: Placet, tmp_path: Path) -> None:
    row = world.add_request()
    edited(world)
    file = tmp_path / "new.json"
    file.write_text(json.dumps(NEW))
    assert placet("edit", row["request_id"], "--input", str(file), "--yes", "--json").code == exits.OK
    assert decided(world)[0].value_text == canonical_text(NEW)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('{"a":1,"a":2}', "no JSON"),
        ("{", "no JSON"),
        ("no-such-file.json", "a file that can be read"),
    ],
)
def test_what_cannot_be_read_is_not_sent(world: World, placet: Placet, given: str, told: str) -> None:
    row = world.add_request()
    result = placet("edit", row["request_id"], "--input", given, "--yes", "--json")
    assert (result.code, result.error["code"]) == (exits.USAGE, Code.PARAMETER_INVALID)
    assert told in result.error["message"]
    assert world.asked == []


def test_without_an_input_an_editor_is_needed_and_a_pipe_has_none(
    world: World, placet: Placet, environment: pytest.MonkeyPatch
) -> None:
    row = world.add_request()
    environment.setenv("EDITOR", "true")
    result = placet("edit", row["request_id"], "--yes", "--json")
    assert (result.code, world.asked) == (exits.USAGE, [])
    assert "--input" in result.error["message"]


def test_the_editor_is_given_the_input_as_it_is_and_gives_back_what_it_should_be(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    program = tmp_path / "editor.py"
    program.write_text(
        "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\n"
        f"pathlib.Path({str(seen)!r}).write_text(file.read_text())\nfile.write_text('{json.dumps(NEW)}')\n"
    )
    import sys

    environment.setenv("EDITOR", f"{sys.executable} {program}")
    environment.delenv("VISUAL", raising=False)
    environment.setattr("sys.stdin", Terminal())
    assert saying._from_editor({"name": "v1"}) == NEW
    assert json.loads(seen.read_text()) == {"name": "v1"}


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(["by hand"], "by hand"), (["--value", '{"n":3}'], {"n": 3}), (["--value", "null"], None)],
)
def test_an_answer_is_text_or_json(world: World, placet: Placet, arguments: list[str], value: Any) -> None:
    row = world.add_request(QUESTION, boundary="question:cut:c1.1")
    world.scripted.append(Receipt(answer="accepted", run_id="r1", request_id=row["request_id"], outcome="answered"))
    result = placet("respond", row["request_id"], *arguments, "--yes")
    assert result.code == exits.OK, result.err
    (message,) = decided(world)
    assert (message.decision, message.value_text) == ("respond", canonical_text(value))
    assert "answered" in result.out
    assert "placet run show r1" in result.err


@pytest.mark.parametrize("arguments", [[], ["text", "--value", "1"], ["--value", "x"]])
def test_two_answers_or_none_are_a_mistake(world: World, placet: Placet, arguments: list[str]) -> None:
    row = world.add_request(QUESTION, boundary="question:cut:c1.1")
    assert placet("respond", row["request_id"], *arguments, "--yes").code == exits.USAGE
    assert world.asked == []


def test_changes_are_asked_for_in_words(world: World, placet: Placet) -> None:
    row = world.add_request()
    world.scripted.append(Receipt(answer="accepted", run_id="r1", request_id=row["request_id"], outcome="superseded"))
    result = placet("request-changes", row["request_id"], "name the release", "--yes")
    assert result.code == exits.OK, result.err
    (message,) = decided(world)
    assert (message.decision, message.reason, message.value_text) == ("request_changes", "name the release", None)
    assert "placet inbox" in result.err


@pytest.mark.parametrize(
    ("content", "boundary", "command", "use"),
    [
        (QUESTION, "question:cut:c1.1", ["approve"], "placet respond, placet reject"),
        (QUESTION, "question:cut:c1.1", ["edit", "--input", "{}"], "placet respond, placet reject"),
        (DOUBT, "outcome:op_1", ["respond", "yes"], "placet resolve --executed|--not-executed"),
    ],
)
def test_the_word_of_another_question_names_the_right_command(
    world: World, placet: Placet, content: dict[str, Any], boundary: str, command: list[str], use: str
) -> None:
    row = world.add_request(content, boundary=boundary)
    word, *more = command
    result = placet(word, row["request_id"], *more, "--yes", "--json")
    assert result.error["code"] == Code.APPROVAL_VALIDATION_ERROR
    assert result.error["message"].endswith(f"use {use}")
    assert world.asked == []


def test_another_value_is_another_decision_after_a_lost_answer(world: World, placet: Placet) -> None:
    row = world.add_request()
    world.silent = True
    for name in ("v2", "v2", "v3"):
        placet("edit", row["request_id"], "--input", json.dumps({"name": name}), "--yes")
    first, again, other = [message.decision_id for message in decided(world)]
    assert first == again != other


def test_what_was_edited_says_so(world: World, placet: Placet) -> None:
    first = world.add_request()
    second = world.add_request(generation=2, supersedes=first["request_id"], requesters="bob")
    out = placet("show", second["request_id"]).out
    assert f"instead of:   {first['request_id']}" in out
    assert "edited by:    bob" in out
