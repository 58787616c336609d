"""Conformance section A: hash and identity of requests, and which stored rows are believed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from placet import requests
from placet.canonical import canonical_bytes, canonical_text, digest
from placet.errors import Code, ContractError, TerminalError
from placet.requests import (
    ApprovalRequest,
    Content,
    ToolCallContent,
    boundary_of,
    content_text,
    create_request_from,
    follows,
    request_from_row,
    request_hash,
    request_id,
    same_request,
    successor_id,
    verified_content,
    verify_request,
)
from tests.cases import case
from tests.vocabulary.reviewed import (
    AT_MS,
    CONTENTS,
    HASH_A01,
    ID_A01,
    broken,
    create,
    create_kind,
    plan,
    refused,
    tool_call,
)
from tests.vocabulary.test_strict_json import JSON_TEXT, JSON_VALUES

GOLDEN = json.loads((Path(__file__).parent / "golden" / "contents.json").read_text())["rows"]


def hash_of(given: object) -> str:
    created = create(tool_call(given)).request_hash
    assert created == request_hash("tool_call", "task-1:call-1", tool_call(given)), "one hash by both ways"
    assert created == digest({"scope": "tool_call", "boundary": "task-1:call-1", "content": tool_call(given)})
    return created


def mutant(given: object, **encoding: Any) -> str:
    """The hash that plain `json.dumps` would give, so that a vector shows which shortcut it refutes."""
    hashed = {"scope": "tool_call", "boundary": "task-1:call-1", "content": tool_call(given)}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, separators=(",", ":"), **encoding).encode()).hexdigest()


# ── A. hash and identity ───────────────────────────────────────────────────────────────


@case("A01")
def test_the_hash_and_the_id_are_those_of_the_other_implementation() -> None:
    made = create()
    assert (made.request_hash, made.request_id) == (HASH_A01, ID_A01)
    assert made.content_text == canonical_text(tool_call({"env": "staging"}))


@case("A02")
def test_the_order_of_keys_does_not_matter_at_any_depth() -> None:
    nested = {"b": {"y": [{"q": 1, "p": 2}], "x": 1}, "a": 1}
    turned = {"a": 1, "b": {"x": 1, "y": [{"p": 2, "q": 1}]}}
    assert hash_of(nested) == hash_of(turned)
    backwards = dict(reversed(tool_call({"env": "staging"}).items()))
    assert (create(backwards).request_hash, create(backwards).request_id) == (HASH_A01, ID_A01)


@case("A03")
def test_run_and_boundary_are_trimmed_and_stored_trimmed() -> None:
    made = create(run_id=" run-1 ", boundary="\ttask-1:call-1 \n")
    assert (made.run_id, made.boundary) == ("run-1", "task-1:call-1")
    assert (made.request_hash, made.request_id) == (HASH_A01, ID_A01)


@case("A04")
def test_reason_and_time_are_not_hashed_nor_is_anything_beside_the_content() -> None:
    made = create(reason="other", requested_at_ms=1, initiator="alice", tool_version="2", policy_version="3", quorum=2)
    assert (made.request_hash, made.request_id) == (HASH_A01, ID_A01)


@case("A05")
def test_another_run_has_the_same_hash_and_another_id() -> None:
    made = create(run_id="run-2")
    assert (made.request_hash, made.request_id) == (HASH_A01, "apr_799eb82fd2301a06972d39fa4fcdb82c")


@case("A06")
def test_another_boundary_has_another_hash_although_no_request_of_it_is_made() -> None:
    content = tool_call({"env": "staging"})
    hashed = request_hash("tool_call", "task-1:call-2", content)
    assert hashed == "dfb1846dc11ead3f194dd5ac1089c096239bf7f1bdaf392c98d800e88bd6fdc1"
    refused("/boundary", content, boundary="task-1:call-2")


@case("A07")
@pytest.mark.parametrize(
    ("number", "hashed"),
    [
        (1, "a9028b01013eb7075aafcf6d2a947b8bcf48b10241cd307319366bcf203ba25f"),
        (1.0, "a9028b01013eb7075aafcf6d2a947b8bcf48b10241cd307319366bcf203ba25f"),
        (1e21, "bfa3b8d0b1419c1a01cc492692136b4ac8f1bd97ad668bb0a0cacfe6c4ad2eb9"),
        (0.1, "c6f95096d965d9f02901a8abeaa79c8f82926cfa3bb967683b10f91c81869820"),
        (1e-7, "5415aef8c53c4c19df034cb1fbd6ee75b87085a7ed3e638ea06e5aa9eb312a43"),
    ],
)
def test_numbers_are_hashed_as_ecmascript_writes_them(number: float, hashed: str) -> None:
    assert hash_of({"n": number}) == hashed


@case("A07")
def test_plain_python_json_gives_the_hashes_that_betray_it() -> None:
    assert mutant({"n": 1.0}).startswith("feb248187469")
    assert mutant({"n": 1e-7}).startswith("96b5d15ea47b")


@case("A09")
def test_zero_has_no_sign() -> None:
    zero = "4130d8e371648151510a30942ea1233e66e4dd4ab5ed7bf8fd8087a0de0c8721"
    assert hash_of({"n": 0}) == hash_of({"n": -0.0}) == zero != mutant({"n": -0.0})


@case("A10")
def test_keys_are_sorted_by_utf16_code_unit() -> None:
    value = {"\U0001f600": 1, "\ufffd": 2, "\u00e9": 3, "a": 4}
    assert hash_of(value) == "2cface42afad53c8d5b91adf50e4332dd7930fcc9f1ac304f40491934a8854c6"
    assert mutant(value, ensure_ascii=False).startswith("dd2014233bba"), "the mutant sorts by code point"


@case("A12")
def test_text_is_neither_normalised_nor_escaped() -> None:
    composed, decomposed = {"s": "\u00e9"}, {"s": "e\u0301"}
    assert hash_of(composed) == "5d983ed127a438d0fcf1bfcdf19a6bf2bd445d792d84841754c7eb0406bd9987"
    assert hash_of(decomposed) == "58d7ca685f5f77ef07587793faf534312fa8e6e786e610fa64359419659f6a1c"
    assert mutant(composed).startswith("cf33b0ea4447"), "the mutant writes ASCII only"


@case("A14")
@pytest.mark.parametrize(
    ("value", "hashed"),
    [
        ({"a": [1, 2]}, "694a4f50feb4bca0ce1a9f9f5736d93c675b85efa540d15f185c7b66458d10dd"),
        ({"a": [2, 1]}, "97a4942f3b22ed2cb11e6fc420bc34057449b37e836336429675889a9f20ab43"),
        ({"a": None}, "fd496d12cf4c3aa95a0d26e6ebe1e2b06a88ef15e521124a22a715ae2414b8fd"),
        ({}, "f0714fb2ad207c005ca730cee47e227f745b3992d593407efa4030243a6bd21b"),
    ],
)
def test_order_in_arrays_and_null_are_content(value: object, hashed: str) -> None:
    assert hash_of(value) == hashed


@case("A16")
@pytest.mark.parametrize(
    ("continuation", "hashed"),
    [
        ("execute", "9d5f3defaff8bf7b03ca6d4c2bde03634d40e118b6631c075dddb4cb90874676"),
        ("plan_only", "c30e383e682b46787b6a1e5cfc78bb528c2b58fd24e627f8d7aa00c12698992a"),
    ],
)
def test_an_approval_of_a_preview_never_fits_an_execution(continuation: str, hashed: str) -> None:
    made = create(plan(continuation), scope="plan", boundary="coordinator-plan")
    assert made.request_hash == hashed == request_hash("plan", "coordinator-plan", plan(continuation))


@case("A18")
def test_the_consequential_flag_is_content() -> None:
    made = create(tool_call({"env": "staging"}, consequential=False))
    assert made.request_hash == "c8a65ca16a404f10686bc6cff7dcabdc1f1e151699b00e7c295ced044a0adcb8"


@case("A20")
def test_a_field_more_inside_the_content_changes_the_hash_and_one_beside_it_is_refused() -> None:
    more = tool_call({"env": "staging"}, note="x")
    assert request_hash("tool_call", "task-1:call-1", more) != HASH_A01
    assert "note" in refused("/content/note", more)
    document = {
        "tenant": "acme", "run_id": "run-1", "scope": "tool_call", "boundary": "task-1:call-1",
        "content": tool_call({"env": "staging"}), "requested_at_ms": AT_MS,
    }  # fmt: skip
    assert create_request_from(document) == create()
    for name, value in (("note", "x"), ("requestHash", HASH_A01), ("content_bytes_max", 10**9), ("a/b", 1)):
        with pytest.raises(ContractError) as caught:
            create_request_from(document | {name: value})
        assert caught.value.code == Code.APPROVAL_VALIDATION_ERROR
        assert caught.value.pointer == "/" + name.replace("/", "~1")
    del document["boundary"]
    with pytest.raises(ContractError, match="boundary is missing"):
        create_request_from(document)


@case("A22")
@pytest.mark.parametrize("hashed", [HASH_A01.upper(), HASH_A01[:-1], HASH_A01 + "0", "", f" {HASH_A01}"])
def test_a_hash_in_another_spelling_equals_none_and_is_broken_in_a_stored_row(hashed: str) -> None:
    assert hashed != create().request_hash
    broken(create().model_copy(update={"request_hash": hashed}))


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["name"])
def test_content_of_every_kind_has_the_hash_that_an_ecmascript_engine_gives_it(row: dict[str, Any]) -> None:
    scope, boundary, content = row["scope"], row["boundary"], row["content"]
    made = create(content, scope=scope, boundary=boundary)
    assert made.request_hash == row["hash"] == request_hash(scope, boundary, content)
    typed = verified_content(made)
    assert boundary_of(typed) == boundary
    assert request_hash(scope, boundary, typed) == row["hash"]


@given(st.dictionaries(JSON_TEXT, JSON_VALUES, max_size=4))
def test_json_inside_content_is_carried_without_coercion(value: dict[str, Any]) -> None:
    made = create(tool_call(value))
    typed = verified_content(made)
    assert isinstance(typed, ToolCallContent)
    assert canonical_bytes(typed.input) == canonical_bytes(typed.raw_input) == canonical_bytes(value)
    assert create(typed) == made, "from the model as from plain JSON"
    by_wire = TypeAdapter[Content](Content).validate_json(json.dumps(tool_call(value)))
    assert create(by_wire) == made
    assert ApprovalRequest.model_validate_json(made.model_dump_json()) == made


@given(st.data())
def test_any_changed_character_of_content_changes_hash_and_id(data: st.DataObject) -> None:
    text = create().content_text
    at = data.draw(st.integers(0, len(text) - 1))
    changed = (
        text[:at] + data.draw(st.characters(exclude_categories=["Cs"]).filter(lambda c: c != text[at])) + text[at + 1 :]
    )
    broken(create().model_copy(update={"content_text": changed}))
    try:
        other = json.loads(changed)
    except ValueError:
        return
    if isinstance(other, dict) and other != tool_call({"env": "staging"}):
        assert request_hash("tool_call", "task-1:call-1", other) != HASH_A01


@given(JSON_TEXT, JSON_TEXT)
def test_the_spliced_hash_is_that_of_the_whole_object(scope: str, boundary: str) -> None:
    content = tool_call({"n": 1.5, "é": "\U0001f600"})
    assert request_hash(scope, boundary, content) == digest({"scope": scope, "boundary": boundary, "content": content})


# ── rows ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", CONTENTS)
def test_every_created_request_verifies_and_reads_back(kind: str) -> None:
    made = create_kind(kind, reason="")
    verify_request(made)
    assert request_from_row(made.model_dump(), stored_under=made.request_id) == made
    assert verified_content(made).kind == kind
    assert content_text(verified_content(made)) == made.content_text


@case("D24")
@pytest.mark.parametrize(
    "changed",
    [
        {"content_text": content_text(tool_call({"env": "production"}))},
        {"content_text": '{"env":"staging"}'},
        {"content_text": json.dumps(tool_call({"env": "staging"}))},
        {"content_text": create().content_text + " "},
        {"content_text": "not json"},
        {"content_text": "null"},
        {"content_text": ""},
        {"boundary": "task-1:call-2"},
        {"scope": "plan"},
        {"run_id": "run-2"},
        {"run_id": " run-1 "},
        {"run_id": ""},
        {"tenant": ""},
        {"request_id": "apr_799eb82fd2301a06972d39fa4fcdb82c"},
        {"request_id": ID_A01.upper()},
        {"version": 2},
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_row_that_was_changed_is_not_believed(changed: dict[str, Any], known: bool) -> None:
    requests._GOOD.clear()
    if known:  # what was found good is remembered by its hash, and by nothing that can be changed beside it
        verify_request(create())
    broken(create().model_copy(update=changed))
    assert list(requests._GOOD) == ([create().request_hash] if known else [])


def test_what_is_remembered_as_good_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "GOOD_MAX", 2)
    requests._GOOD.clear()
    made = [create(content=tool_call({"n": number})) for number in range(3)]
    for each in made:
        verify_request(each)
    assert list(requests._GOOD) == [each.request_hash for each in made[1:]]


def test_a_row_changed_together_with_its_hash_and_id_must_still_be_what_could_be_created() -> None:
    def forged(content: Any = None, scope: str = "tool_call", run_id: str = "run-1") -> dict[str, Any]:
        text = content_text(tool_call({}) if content is None else content)
        hashed = request_hash(scope, "task-1:call-1", json.loads(text))
        named = request_id(run_id, scope, "task-1:call-1", hashed)
        return {"content_text": text, "request_hash": hashed, "request_id": named, "scope": scope, "run_id": run_id}

    verify_request(create().model_copy(update=forged()))
    for changed in (
        forged(tool_call({}, consequential="true")),
        forged(tool_call({}, toolCallId="call-2")),
        forged({"kind": "tool_call"}),
        forged(scope="task_dispatch"),
        forged(run_id=" run-1 "),
        forged(run_id="run\n1"),
    ):
        broken(create().model_copy(update=changed))


@pytest.mark.parametrize("row", [{}, {"request_id": ID_A01}, {"scope": "deploy"}, {"quorum": "1"}, {"note": "x"}])
def test_a_row_of_another_shape_or_under_another_key_is_not_believed(row: dict[str, Any]) -> None:
    whole = create().model_dump()
    damaged = whole | row if row.keys() - {"request_id"} else row
    with pytest.raises(TerminalError) as caught:
        request_from_row(damaged, stored_under=ID_A01)
    assert caught.value.code == Code.APPROVAL_INTEGRITY_ERROR
    with pytest.raises(TerminalError, match="stored under this id"):
        request_from_row(whole, stored_under="apr_" + "0" * 32)


def test_two_creations_put_the_same_question_whatever_was_not_asked() -> None:
    first = create(reason="a", expires_at_ms=AT_MS + 5)
    assert same_request(first, create(reason=None, requested_at_ms=AT_MS + 1, tool_version="2", quorum=3))
    for other in (
        create(run_id="run-2"),
        create(tenant="other"),
        create(tool_call({"env": "production"})),
        create(initiator="alice"),
        create(asker_key="x"),
        first.model_copy(update={"content_text": first.content_text + " "}),
    ):
        assert not same_request(first, other)


@case("A22")
def test_hash_and_id_have_one_spelling() -> None:
    made = create()
    assert len(made.request_hash) == 64
    assert set(made.request_hash) <= set("0123456789abcdef")
    assert made.request_id.removeprefix("apr_") == made.request_id[4:].lower()
    assert len(made.request_id) == 36


# ── questions that follow one another ────────────────────────────────────────────────────


def test_a_later_question_is_named_after_the_one_whose_place_it_takes_and_hashes_as_any() -> None:
    first = create()
    again = create(generation=2, supersedes=first.request_id)
    assert again.request_hash == first.request_hash, "the hash says what is asked, not how often"
    assert again.request_id == successor_id(first.run_id, first.request_id, 2) != first.request_id
    third = create(generation=3, supersedes=again.request_id)
    verify_request(again)
    verify_request(third)
    assert all(follows(request, first.request_id) for request in (first, again, third))
    assert not follows(third, again.request_id)
    assert not follows(create(generation=2, supersedes="apr_0"), first.request_id)
    assert not follows(third.model_copy(update={"generation": 10**9}), first.request_id)
    assert not same_request(again, create(generation=2, supersedes=first.request_id, requesters="bob"))
    assert again.model_copy(update={"requesters": "bob\neve"}).requesting == {"bob", "eve"}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"generation": 0}, "/generation"),
        ({"generation": 65, "supersedes": "apr_1"}, "/generation"),
        ({"generation": True}, "/generation"),
        ({"generation": 2}, "/supersedes"),
        ({"supersedes": "apr_1"}, "/supersedes"),
        ({"requesters": 5}, "/requesters"),
        ({"remind_at_ms": AT_MS}, "/remind_at_ms"),
    ],
)
def test_a_place_that_is_none_is_refused_at_creation(changes: dict[str, Any], pointer: str) -> None:
    refused(pointer, **changes)


@pytest.mark.parametrize("changes", [{"generation": 2}, {"supersedes": "apr_1"}, {"generation": 3}, {"generation": 0}])
def test_a_row_whose_place_was_changed_is_not_believed(changes: dict[str, Any]) -> None:
    first = create()
    second = create(generation=2, supersedes=first.request_id)
    for request in (first, second):
        moved = request.model_copy(update=changes)
        if moved == request:
            continue
        with pytest.raises(TerminalError) as caught:
            verify_request(moved)
        assert caught.value.code == Code.APPROVAL_INTEGRITY_ERROR
