"""What the pages of the web inbox are put together from: marked text, differences, forms, the drawing of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet.canonical import canonical_text
from placet.views import TaskView
from placet_gateway.inbox.bodies import Form
from placet_gateway.inbox.cards import asks_for_nothing, inner_command
from placet_gateway.inbox.differences import changes
from placet_gateway.inbox.forms import Field, faults_at, field_of, read_field
from placet_gateway.inbox.graph import TASKS_DRAWN_MAX, graph_of
from placet_gateway.inbox.marking import marked, marked_change
from placet_gateway.inbox.wording import ago, left, ordinal, span

TEXT = st.text(st.sampled_from("ab \n\t\u0445\u202e\u200b\u2066é\\u{}'\"<&\u0440\u3164\ud800"), max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | TEXT.filter(lambda text: "\ud800" not in text),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("abcd"), part, max_size=3),
    max_leaves=8,
)


# ── marked text ────────────────────────────────────────────────────────────────────────


@given(TEXT)
def test_of_marked_text_nothing_is_lost_and_nothing_hidden_is_left(text: str) -> None:
    pieces = marked(text)
    rebuilt = "".join(
        chr(int(piece.text[2:], 16)) if piece.kind == "hidden" else piece.text
        for piece in pieces
        if piece.kind != "blank"
    )
    blanks = sum(piece.kind == "blank" for piece in pieces)
    assert rebuilt == text or blanks
    assert not set("\u202e\u200b\u2066\u3164\ud800") & {c for piece in pieces for c in piece.text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", [("plain", "plain")]),
        ("", []),
        ("a\u202eb", [("plain", "a"), ("hidden", "U+202E"), ("plain", "b")]),
        ("pay p\u0430ypal now", [("plain", "pay "), ("mixed", "p\u0430ypal"), ("plain", " now")]),
        ("a" + " " * 40 + "b", [("plain", "a"), ("blank", "⟨40 blanks⟩"), ("plain", "b")]),
        ("a" + "\n" * 413 + "b", [("plain", "a"), ("blank", "⟨412 blank lines⟩"), ("plain", "b")]),
        ("line\n\tline", [("plain", "line\n\tline")]),
        ("café 日本語", [("plain", "café 日本語")]),
    ],
)
def test_text_is_marked_where_it_does_not_read_as_it_is(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(piece.kind, piece.text) for piece in marked(text)] == expected


def test_a_letter_that_took_a_latin_ones_place_is_told_by_its_code_point() -> None:
    assert [(piece.kind, piece.text) for piece in marked_change("\u0430", "c-19")] == [
        ("mixed", "\u0430"),
        ("hidden", "U+0430"),
    ]
    assert [piece.kind for piece in marked_change("\u0434\u0430", "")] == ["plain"]  # there it is how people write
    assert [piece.kind for piece in marked_change("Gr\u00fc\u00dfe", "")] == ["plain"]


# ── differences ────────────────────────────────────────────────────────────────────────


@given(JSON, JSON)
def test_two_values_differ_exactly_where_their_bytes_do(before: Any, after: Any) -> None:
    assert bool(changes(before, after)) == (canonical_text(before) != canonical_text(after))
    assert changes(after, after) == []


def test_a_difference_names_the_place_and_the_changed_stretch() -> None:
    before: Any = {"to": "alice@example.test", "cents": 40, "gone": True, "list": [1, 2]}
    after: Any = {"to": "al\u0456ce@example.test", "cents": 41, "new": None, "list": [1, 3]}
    found = {change.pointer: change for change in changes(before, after)}
    assert (found["/to"].before, found["/to"].after) == ("i", "\u0456")  # look-alikes are not alike
    assert (found["/to"].same_before, found["/to"].same_after) == ("al", "ce@example.test")
    assert (found["/cents"].before, found["/cents"].after) == ("40", "41")
    assert (found["/gone"].after, found["/new"].before) == (None, None)
    assert (found["/list/1"].before, found["/list/1"].after) == ("2", "3")


def test_one_and_the_text_one_are_not_the_same() -> None:
    assert len(changes({"a": 1}, {"a": "1"})) == 1
    assert len(changes({"a": True}, {"a": 1})) == 1


# ── forms ──────────────────────────────────────────────────────────────────────────────

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "count"],
    "properties": {
        "name": {"type": "string", "description": "Whose"},
        "count": {"type": "integer", "maximum": 9},
        "ratio": {"type": "number"},
        "yes": {"type": "boolean"},
        "kind": {"enum": ["a", "b", 3]},
        "note": {"type": "string"},
        "where": {"$ref": "#/$defs/Where"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "$defs": {"Where": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
VALUE: dict[str, Any] = {
    "name": "x", "count": 3, "ratio": 0.5, "yes": False, "kind": 3, "note": "two\nlines", "where": {"city": "Bern"},
    "tags": ["a"],
}  # fmt: skip


def sent(field: Field, **changed: str) -> Form:
    """What a browser sends of a form that nobody has touched, but for these."""
    pairs: list[tuple[str, str]] = []

    def walk(at: Field) -> None:
        if at.kind != "group":
            pairs.append((at.name, changed.get(at.label, at.value).replace("\n", "\r\n")))
        for member in at.fields:
            walk(member)

    walk(field)
    return Form(pairs)


def test_a_form_that_nobody_touches_gives_the_same_value_back() -> None:
    field = field_of(SCHEMA, "value", VALUE, is_there=True)
    kinds = {member.label: member.kind for member in field.fields}
    assert kinds == {
        "name": "text", "count": "number", "ratio": "number", "yes": "boolean", "kind": "choice", "note": "text",
        "where": "group", "tags": "json",
    }  # fmt: skip
    assert read_field(field, sent(field)) == (VALUE, {})


@given(st.dictionaries(st.sampled_from(["name", "note", "tags", "x"]), JSON, max_size=4))
def test_whatever_stands_in_a_form_comes_back_as_it_was(value: dict[str, Any]) -> None:
    field = field_of({"type": "object", "properties": SCHEMA["properties"]}, "value", value, is_there=True)
    assert read_field(field, sent(field)) == (value, {})


def test_what_cannot_be_read_is_told_at_its_field() -> None:
    field = field_of(SCHEMA, "value", VALUE, is_there=True)
    _, faults = read_field(field, sent(field, count="three", ratio="", tags='["a"'))
    by_label = {member.label: faults.get(member.name) for member in field.fields}
    assert by_label["count"] is not None
    assert by_label["tags"] is not None
    assert by_label["ratio"] is None  # left out
    _, faults = read_field(field, sent(field, count=""))
    assert faults == {"value.1": "This is needed."}


def test_a_text_with_hidden_characters_is_edited_as_json_so_that_they_are_seen() -> None:
    field = field_of(
        {"type": "object", "properties": {"a": {"type": "string"}}}, "value", {"a": "x\u202ey"}, is_there=True
    )
    assert (field.fields[0].kind, field.fields[0].value) == ("json", '"x\\u202Ey"')
    assert read_field(field, sent(field)) == ({"a": "x\u202ey"}, {})


def test_a_finding_of_the_schema_stands_at_the_deepest_field_that_it_is_about() -> None:
    field = field_of(SCHEMA, "value", VALUE, is_there=True)
    assert faults_at(field, "/where/city", "no") == {"value.6.0": "no"}
    assert faults_at(field, "/tags/0", "no") == {"value.7": "no"}
    assert faults_at(field, "/unknown", "no") == {"value": "no"}


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$ref": "#/$defs/none"}, {"$ref": 3}, {"type": ["string", "null"]}, {}]
)
def test_a_schema_that_says_little_gives_a_field_of_json(schema: dict[str, Any]) -> None:
    assert field_of(schema, "value", {"a": 1}, is_there=True).kind == "json"


# ── the rest ───────────────────────────────────────────────────────────────────────────


def test_tasks_stand_right_of_what_has_to_be_done_before() -> None:
    tasks = [
        TaskView(id=name, title=name, status="pending", depends_on=after)
        for name, after in {"z": ["b", "c"], "a": [], "b": ["a"], "c": ["a"], "lost": ["nobody"]}.items()
    ]
    graph = graph_of(tasks)
    assert graph is not None
    places = {node.task.id: node.x for node in graph.nodes}
    assert places["a"] == places["lost"] < places["b"] == places["c"] < places["z"]
    assert len({(node.x, node.y) for node in graph.nodes}) == 5
    assert len(graph.edges) == 4


def test_a_run_without_tasks_or_with_too_many_is_not_drawn_and_a_cycle_ends() -> None:
    assert graph_of([]) is None
    assert graph_of([TaskView(id=str(n), status="pending") for n in range(TASKS_DRAWN_MAX + 1)]) is None
    around = [TaskView(id="a", status="x", depends_on=["b"]), TaskView(id="b", status="x", depends_on=["a"])]
    assert graph_of(around) is not None


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ({"argv": ["/bin/bash", "-lc", "make deploy"]}, "make deploy  — run by bash"),
        ({"argv": ["C:\\Windows\\cmd.exe", "/c", "dir"]}, "dir  — run by cmd"),
        ({"argv": ["/bin/ls", "-l", "/srv"]}, ""),
        ({"argv": ["bash", "script.sh", "x"]}, ""),
        ({"command": "make deploy"}, ""),
    ],
)
def test_what_a_shell_is_told_to_run_is_found(arguments: dict[str, Any], command: str) -> None:
    assert inner_command(arguments) == command


def test_a_call_without_a_command_field_is_not_called_blank() -> None:
    assert not asks_for_nothing({})
    assert not asks_for_nothing({"text": ""})
    assert not asks_for_nothing({"command": "ls"})
    assert asks_for_nothing({"Command": "\u200b " * 0 + " "})


def test_lengths_of_time_and_numbers_are_told_shortly() -> None:
    assert [span(ms) for ms in (0, 59_999, 60_000, 3_599_999, 3_600_000, 90_000_000)] == [
        "0 s",
        "59 s",
        "1 min",
        "59 min",
        "1 h",
        "1 d",
    ]
    assert [left(ms) for ms in (-5, 61_000, 7_140_000, 97_200_000)] == ["0 s", "1 min", "1 h 59 min", "1 d 3 h"]
    assert (ago(0, 1_000), ago(0, 61_000)) == ("just now", "1 min ago")
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 41, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "41st", "111th",
    ]  # fmt: skip
