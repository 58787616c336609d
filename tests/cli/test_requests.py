"""Looking at requests and deciding them: what is shown is what is hashed, and what was shown is what is decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placet.errors import Code, Failure
from placet.machine import Receipt
from placet.messages import DecideApproval, RevokeApproval
from tests.cli.conftest import Placet
from tests.gateway.test_runs import filled
from tests.gateway.world import BIDI, TAG, World

DOUBT = {
    "kind": "operation_outcome",
    "operationId": "op_1",
    "toolName": "create_tag",
    "input": {"name": "v1.2.0"},
    "agentName": "releaser",
    "taskId": "cut",
    "toolCallId": "c1.1",
    "startedAt": "2026-08-08T00:00:00.000Z",
    "reason": "the worker was lost",
}


def decided(world: World) -> list[DecideApproval]:
    return [message for message, _ in world.asked if isinstance(message, DecideApproval)]


def test_an_empty_inbox_says_so(placet: Placet) -> None:
    assert placet("inbox").out == "Nothing is waiting for a decision.\n"
    assert placet("inbox", "--json").document["items"] == []


def test_the_inbox_tells_each_request_in_one_sentence(world: World, placet: Placet) -> None:
    row = world.add_request()
    result = placet("inbox")
    assert result.code == 0
    assert row["request_id"][:12] in result.out
    assert "releaser wants to run create_tag(" in result.out
    (item,) = placet("inbox", "--json").document["items"]
    assert item["request_id"] == row["request_id"]


def test_show_prints_the_sentence_then_the_call_then_the_hash(world: World, placet: Placet) -> None:
    row = world.add_request()
    out = placet("show", row["request_id"]).out
    sentence, blank, *rest = out.splitlines()
    assert sentence == (
        'releaser wants to run create_tag(commit="4f2a", name="v1.2.0") in run r1 — consequential. '
        "Reason: touches production."
    )
    assert blank == ""
    shown = "\n".join(rest[: rest.index("")])
    assert json.loads(shown) == TAG
    after = rest[rest.index("") :]
    assert f"hash:         {row['request_hash']}" in after


def test_hidden_characters_are_escaped_warned_of_and_still_the_same_value(world: World, placet: Placet) -> None:
    row = world.add_request(TAG | {"input": BIDI, "rawInput": BIDI})
    out = placet("show", row["request_id"]).out
    for character in "\u202e\u2066\u2069\u200b\u2028":
        assert character not in out
        assert f"\\u{ord(character):04X}" in out
        assert f"U+{ord(character):04X}" in out
    assert "warning: /input/url at 25: U+202E RIGHT-TO-LEFT OVERRIDE (bidirectional)" in out
    shown = out.splitlines()[2:]
    assert json.loads("\n".join(shown[: shown.index("")]))["input"] == BIDI
    document = placet("show", row["request_id"], "--json")
    assert document.out.isascii()
    assert json.loads(document.document["content_text"])["input"] == BIDI


def test_a_terminal_is_never_told_what_to_do(world: World, placet: Placet) -> None:
    attack = "\x1b]0;owned\x07\x1b[2J\x1b]52;c;eA==\x07\r\x08\x9b31m\x7f"
    row = world.add_request(TAG | {"input": {"x": attack}, "rawInput": {}}, reason=attack)
    for arguments in (("show", row["request_id"]), ("inbox",), ("show", row["request_id"], "--json")):
        out = placet(*arguments).out
        assert not [character for character in out if ord(character) < 32 and character != "\n"]
        assert not [character for character in out if 127 <= ord(character) < 160]


def test_a_long_value_is_shown_whole_before_it_can_be_decided(world: World, placet: Placet) -> None:
    command = "set -u; " + "printf STEP; " * 5_000 + "rm -rf /srv/example-data"
    row = world.add_request(TAG | {"input": {"command": command}, "rawInput": {"command": command}})
    assert command in placet("show", row["request_id"]).out
    assert command in placet("approve", row["request_id"], "--yes").out
    listed = placet("inbox", "--all").out
    assert command not in listed
    assert "rm -rf /srv/example-data" in listed


def test_a_wall_of_blanks_is_warned_of(world: World, placet: Placet) -> None:
    hidden = {"command": "ls" + "\n" * 500 + "rm -rf /srv"}
    row = world.add_request(TAG | {"input": hidden, "rawInput": hidden})
    assert "500 blanks in a row (padding)" in placet("show", row["request_id"]).out


def test_content_that_is_not_what_its_hash_says_is_not_shown_and_not_decided(world: World, placet: Placet) -> None:
    row = world.add_request()
    row["content_text"] = row["content_text"].replace("v1.2.0", "v6.6.6")
    for arguments in (("show",), ("approve", "--yes"), ("show", "--json")):
        result = placet(*arguments, row["request_id"])
        assert (result.code, result.out) == (1, "")
        assert "APPROVAL_INTEGRITY_ERROR" in result.err
    assert decided(world) == []


def test_show_tells_by_which_rule_of_which_policy_it_is_asked_and_of_whom(world: World, placet: Placet) -> None:
    row = world.add_request(rule="big, late", policy_version="7+ab", policy_digest="c" * 64, reviewers="ann\nben")
    out = placet("show", row["request_id"]).out
    assert "rule:         big, late" in out
    assert f"policy:       7+ab {'c' * 64}" in out
    assert "for:          ann, ben" in out
    view = placet("show", row["request_id"], "--json").document
    assert (view["rule"], view["policy_digest"], view["reviewers"]) == ("big, late", "c" * 64, ["ann", "ben"])


def test_show_tells_what_became_of_it(world: World, placet: Placet) -> None:
    row = filled(world)
    out = placet("show", row["request_id"]).out
    assert "decided:      approved by reviewer at " in out
    assert "carried out:  succeeded" in out
    assert "attempt 1: started at " in out


# ── ids ────────────────────────────────────────────────────────────────────────────────


def test_the_first_characters_of_an_id_are_enough(world: World, placet: Placet) -> None:
    row = world.add_request()
    world.add_request(TAG | {"toolCallId": "c2.1"})
    name = row["request_id"]
    for short in (name[:9], name[4:9], name):
        assert f"request:      {name}" in placet("show", short).out


def test_an_ambiguous_id_is_refused_and_names_those_it_could_be(world: World, placet: Placet) -> None:
    names = [world.add_request(TAG | {"toolCallId": f"c{n}.1"})["request_id"] for n in range(2)]
    result = placet("approve", "apr_", "--yes")
    assert result.code == 2
    assert all(name in result.err for name in names)
    assert decided(world) == []


def test_an_id_of_nothing_is_not_found(placet: Placet) -> None:
    for given in ("apr_ffff", "apr_" + "f" * 32, "zz"):
        result = placet("show", given)
        assert result.code == 1
        assert "APPROVAL_NOT_FOUND" in result.err
        assert "placet inbox" in result.err
    assert placet("show", " ").code == 2


# ── deciding ───────────────────────────────────────────────────────────────────────────


def test_approving_sends_the_hash_that_was_shown(world: World, placet: Placet) -> None:
    row = world.add_request()
    result = placet("approve", row["request_id"], "--yes", "--reason", "checked")
    assert result.code == 0
    (message,) = decided(world)
    assert (message.decision, message.request_hash, message.reason) == ("approve", row["request_hash"], "checked")
    assert message.reviewer.id == "reviewer"
    assert f"hash:         {row['request_hash']}" in result.out
    assert result.out.splitlines()[-1] == f"approved by reviewer: {row['request_id']}"


def test_rejecting_for_somebody_named(world: World, placet: Placet) -> None:
    row = world.add_request()
    result = placet("reject", row["request_id"], "--yes", "--as", "Mária", "--json")
    assert (result.code, result.document["outcome"]) == (0, "rejected")
    (message,) = decided(world)
    assert (message.decision, message.reviewer.id) == ("reject", "Mária")


def test_an_expected_hash_that_is_another_one_decides_nothing(world: World, placet: Placet) -> None:
    row = world.add_request()
    result = placet("approve", row["request_id"], "--yes", "--hash", "0" * 64)
    assert result.code == 1
    assert "APPROVAL_STALE_DECISION" in result.err
    assert decided(world) == []
    assert placet("approve", row["request_id"], "--yes", "--hash", row["request_hash"]).code == 0


@pytest.mark.parametrize("stdin", [b"", b"approve\n", b"y\n"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_without_a_terminal_and_without_yes_nothing_is_decided(
    world: World, placet: Placet, stdin: bytes, more: tuple[str, ...]
) -> None:
    row = world.add_request()
    result = placet("approve", row["request_id"], *more, stdin=stdin)
    assert result.code == 2
    assert "--yes" in result.err
    assert decided(world) == []


def test_a_lost_race_exits_1_and_names_the_winner(world: World, placet: Placet) -> None:
    row = world.add_request()
    assert placet("approve", row["request_id"], "--yes", "--as", "alice").code == 0
    lost = placet("reject", row["request_id"], "--yes", "--as", "bob")
    assert lost.code == 1
    assert "already approved by alice [APPROVAL_CONFLICT]" in lost.err
    as_json = placet("reject", row["request_id"], "--yes", "--as", "bob", "--json")
    assert (as_json.out, as_json.error["code"]) == ("", "APPROVAL_CONFLICT")
    assert as_json.error["details"]["receipt"]["decided_by"] == "alice"


def test_after_a_lost_answer_the_same_command_repeats_the_same_decision(
    world: World, placet: Placet, tmp_path: Path
) -> None:
    row = world.add_request()
    world.silent = True
    lost = placet("approve", row["request_id"], "--yes")
    assert lost.code == 4
    assert "repeat the same command" in lost.err
    world.silent = False
    again = placet("approve", row["request_id"], "--yes")
    assert again.code == 0
    assert "Repeating an earlier decision" in again.err
    first, second = decided(world)
    assert first.decision_id == second.decision_id
    assert not list((tmp_path / "state" / "decisions").iterdir())


def test_another_decision_after_a_lost_answer_is_another_decision(world: World, placet: Placet) -> None:
    row = world.add_request()
    world.silent = True
    placet("approve", row["request_id"], "--yes")
    placet("reject", row["request_id"], "--yes")
    first, second = decided(world)
    assert first.decision_id != second.decision_id


def test_the_kept_decision_is_for_its_owner_only(world: World, placet: Placet, tmp_path: Path) -> None:
    row = world.add_request()
    world.silent = True
    placet("approve", row["request_id"], "--yes")
    (kept,) = (tmp_path / "state" / "decisions").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())["decision_id"] == decided(world)[0].decision_id


def test_a_decision_that_cannot_be_kept_is_not_sent(
    world: World, placet: Placet, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    environment.setenv("PLACET_STATE_DIR", str(tmp_path / "a-file"))
    row = world.add_request()
    result = placet("approve", row["request_id"], "--yes")
    assert result.code == 1
    assert "PLACET_STATE_DIR" in result.err
    assert decided(world) == []


def test_a_decision_that_meets_another_one_being_recorded_asks_again(
    world: World, placet: Placet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("placet.cli.decisions.time.sleep", pauses.append)
    row = world.add_request()
    world.scripted += [Receipt(answer="busy", final=False, run_id="r1")] * 2
    assert placet("approve", row["request_id"], "--yes").code == 0
    assert len({message.decision_id for message in decided(world)}) == 1
    assert len(pauses) == 2
    world.add_request(TAG | {"toolCallId": "c2.1"})
    world.scripted += [Receipt(answer="busy", final=False, run_id="r1")] * 5
    assert placet("approve", world.tables["approval_request"][1]["request_id"], "--yes").code == 4


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("expired", Code.APPROVAL_EXPIRED),
        ("closed", Code.APPROVAL_CLOSED),
        ("stale", Code.APPROVAL_STALE_DECISION),
        ("not_allowed", Code.APPROVER_NOT_ALLOWED),
    ],
)
def test_a_refusal_exits_1_and_forgets_the_decision(
    world: World, placet: Placet, tmp_path: Path, answer: str, code: Code
) -> None:
    row = world.add_request()
    failure = Failure(code=code, message="because")
    world.scripted.append(Receipt(answer=answer, run_id="r1", failure=failure))
    result = placet("approve", row["request_id"], "--yes")
    assert result.code == 1
    assert f"because [{code}]" in result.err
    assert not list((tmp_path / "state" / "decisions").iterdir())


@pytest.mark.parametrize(("flag", "word"), [("--executed", "executed"), ("--not-executed", "not_executed")])
def test_an_unknown_outcome_is_settled_in_its_own_words(world: World, placet: Placet, flag: str, word: str) -> None:
    row = world.add_request(DOUBT, boundary="outcome:op_1")
    assert 'Did create_tag(name="v1.2.0") happen?' in placet("show", row["request_id"]).out
    wrong = placet("approve", row["request_id"], "--yes")
    assert wrong.code == 2
    assert "placet resolve" in wrong.err
    assert placet("resolve", row["request_id"], "--yes").code == 2
    assert placet("resolve", row["request_id"], "--yes", "--executed", "--not-executed").code == 2
    assert decided(world) == []
    assert placet("resolve", row["request_id"], "--yes", flag).code == 0
    assert [message.decision for message in decided(world)] == [word]


def test_a_tool_call_is_not_settled_but_approved(world: World, placet: Placet) -> None:
    row = world.add_request()
    assert placet("resolve", row["request_id"], "--yes", "--executed").code == 2
    assert decided(world) == []


def test_revoking_names_who_and_why(world: World, placet: Placet) -> None:
    row = world.add_request()
    assert placet("revoke", row["request_id"], "--reason", "wrong commit", "--as", "alice").code == 0
    (message, _) = world.asked[0]
    assert isinstance(message, RevokeApproval)
    assert (message.by.id, message.reason) == ("alice", "wrong commit")


def test_every_command_about_requests_prints_one_document_under_json(world: World, placet: Placet) -> None:
    row = world.add_request()
    shapes: dict[tuple[str, ...], set[str]] = {
        ("inbox",): {"items", "next", "as_of_ms"},
        ("show", row["request_id"]): {"request_id", "content_text", "request_hash", "findings", "sentence", "status"},
        ("revoke", row["request_id"]): {"answer", "run_id"},
        ("approve", row["request_id"], "--yes"): {"answer", "request_id", "decision_id", "outcome"},
    }
    for arguments, keys in shapes.items():
        result = placet(*arguments, "--json")
        document: dict[str, Any] = result.document
        assert result.code == 0
        assert keys <= set(document)
