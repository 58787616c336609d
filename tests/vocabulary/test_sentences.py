"""The words in which a request is told, and the exact content beside them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet.canonical import canonical_text, parse_canonical
from placet.sentences import VALUE_CHARS_MAX, call_text, literal, pretty, sentence, warnings
from placet.strict_json import parse
from tests.vocabulary.reviewed import plan, task, tool_call

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def told(content: dict[str, Any], reason: str | None = None) -> str:
    return sentence(canonical_text(content), run_id="r1", reason=reason)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            tool_call({"env": "staging"}),
            'operator wants to run deploy(env="staging") in run r1 — consequential.',
        ),
        (tool_call({}, consequential=False), "operator wants to run deploy() in run r1 — not consequential."),
        (
            plan("execute", task("a", assignee="writer"), task("b")),
            'Run r1 wants to carry out this plan: 2 tasks, a "T a" (by writer); b "T b".',
        ),
        (plan("plan_only", task("a")), 'Run r1 wants to give out this plan as its result: 1 task, a "T a".'),
        (
            plan("execute", task("a", call={"toolName": "deploy", "input": {"env": "x"}})),
            'Run r1 wants to carry out this plan: 1 task, a "T a" (deploy(env="x")).',
        ),
        (plan("execute"), "Run r1 wants to carry out this plan: no tasks."),
        (
            {"kind": "task_round", "completedTasks": [task("a")], "nextTasks": [task("b")]},
            'Run r1 has finished 1 task, a "T a" and wants to go on with 1 task, b "T b".',
        ),
        (
            {"kind": "task_dispatch", "task": task("a", assignee="writer")},
            'Run r1 wants to start a "T a" (by writer).',
        ),
        (
            {
                "kind": "operation_outcome", "operationId": "op_1", "toolName": "deploy", "input": {"env": "x"},
                "agentName": "operator", "taskId": "t", "toolCallId": "c", "reason": "lost",
                "startedAt": "2026-08-08T00:00:00.000Z",
            },
            'Did deploy(env="x") happen? Run r1 started it at 2026-08-08T00:00:00.000Z and never learned the outcome.',
        ),
        (
            {"kind": "dance"},
            "Run r1 asks something that this version of Placet cannot read: look at the content itself.",
        ),
    ],
)  # fmt: skip
def test_each_kind_of_question_has_its_sentence(content: dict[str, Any], expected: str) -> None:
    assert told(content) == expected


def test_the_reason_follows_the_question() -> None:
    assert told(tool_call({}), "touches production.").endswith(" — consequential. Reason: touches production.")


def test_text_that_is_no_content_is_said_to_be_unreadable() -> None:
    for text in ("", "{", "[]", '{"kind":"plan"}', '{"b":1, "a":2}'):
        assert "cannot read" in sentence(text, run_id="r1")


def test_a_long_value_is_folded_with_its_size_head_and_tail() -> None:
    command = "echo harmless; " + "x" * 1_000 + "; rm -rf /srv/example-data"
    shown = call_text("shell", {"command": command})
    assert "rm -rf /srv/example-data" in shown
    assert f"({len(command):,} characters)" in shown
    assert len(shown) < VALUE_CHARS_MAX * 3


def test_many_arguments_are_counted() -> None:
    assert call_text("t", {f"k{n}": n for n in range(20)}).endswith("… 12 more arguments)")


def test_what_cannot_be_seen_is_written_out_and_warned_of() -> None:
    text = "a\u202eb\u200bc\U000e0041\x00\x1b\x85\u00ad"
    assert literal(text) == '"a\\u202Eb\\u200Bc\\uDB40\\uDC41\\u0000\\u001B\\u0085\\u00AD"'
    found = {(warned.pointer, warned.code_point) for warned in warnings({"x": [text]})}
    assert {("/x/0", "U+202E"), ("/x/0", "U+200B"), ("/x/0", "U+E0041"), ("/x/0", "U+0000")} <= found


def test_a_written_escape_and_a_hidden_character_are_told_apart() -> None:
    assert literal("\\u202E") == '"\\\\u202E"'
    assert literal("\u202e") == '"\\u202E"'
    assert warnings({"x": "\\u202E"}) == []


def test_a_hidden_character_in_a_key_is_warned_of_at_its_value() -> None:
    (warned,) = warnings({"pay\u200bee": 1})
    assert (warned.pointer, warned.code_point) == ("/pay\u200bee", "U+200B")


def test_ordinary_writing_brings_no_warning() -> None:
    assert warnings({"text": "Zażółć gęślą jaźń\nЮля\t日本語　の文", "n": [1, None, True]}) == []


def test_look_alike_letters_are_warned_of_and_stay_readable() -> None:
    (warned,) = warnings({"host": "p\u0430ypal.example"})
    assert warned.hazard == "mixed_alphabets"
    assert literal("p\u0430ypal") == '"p\u0430ypal"'


@given(VALUES)
def test_what_is_shown_reads_back_as_the_same_value(value: Any) -> None:
    text = canonical_text(value)
    content = parse_canonical(text)
    for shown in (pretty(content), literal(content)):
        assert canonical_text(parse(shown, long_integers_are_doubles=True)) == text


@given(st.text())
def test_nothing_that_is_shown_can_move_the_cursor(text: str) -> None:
    for shown in (pretty({text: [text]}), told(tool_call({"x": text}), text)):
        assert all(character.isprintable() or character == "\n" for character in shown)
