"""Proves what form an agent may ask an answer in, and that an answer fits it or is told where it does not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from placet.contents import QuestionContent
from placet.errors import Code, ContractError
from placet.forms import (
    ANSWER_PARTS_MAX,
    FORM_BYTES_MAX,
    FORM_NODES_MAX,
    WORDS,
    check_answer,
    check_form,
    form_of,
)

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1, "maximum": 10},
        "why": {"type": "string", "minLength": 2},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
    },
    "required": ["amount"],
    "additionalProperties": False,
}


def refused(form: dict[str, Any], answer: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        check_answer(form, answer)
    assert caught.value.code is Code.APPROVAL_VALIDATION_ERROR
    return caught.value


@pytest.mark.parametrize("answer", [{"amount": 1}, {"amount": 10, "why": "so", "tags": ["a", "b"]}, {"amount": 7.0}])
def test_an_answer_that_fits_is_taken(answer: Any) -> None:
    check_answer(FORM, answer)


@pytest.mark.parametrize(
    ("answer", "pointer"),
    [
        ({"amount": 0}, "/amount"),
        ({"amount": "1"}, "/amount"),
        ({"amount": True}, "/amount"),
        ({}, ""),
        ({"amount": 1, "more": 1}, ""),
        ({"amount": 1, "why": "x"}, "/why"),
        ({"amount": 1, "tags": ["a", "c"]}, "/tags/1"),
        ({"amount": 1, "tags": ["a", "a"]}, "/tags"),
        ([], ""),
        (None, ""),
        ("yes", ""),
    ],
)
def test_one_that_does_not_is_told_where(answer: Any, pointer: str) -> None:
    assert refused(FORM, answer).pointer == pointer


@pytest.mark.parametrize(
    ("form", "pointer"),
    [
        ({"type": "string", "pattern": "(a+)+$"}, "/pattern"),
        ({"$ref": "https://example.test/schema"}, "/$ref"),
        ({"properties": {"x": {"$ref": "#"}}}, "/properties/x/$ref"),
        ({"items": {"not": {}}}, "/items/not"),
        ({"anyOf": [{}, {"unevaluatedProperties": False}]}, "/anyOf/1/unevaluatedProperties"),
        ({"type": "strin"}, "/type"),
        ({"minimum": "1"}, "/minimum"),
        ({"required": "x"}, "/required"),
        ({"properties": {"x": 1}}, "/properties/x"),
    ],
)
def test_what_is_no_form_is_refused_before_anybody_is_asked(form: dict[str, Any], pointer: str) -> None:
    with pytest.raises(ContractError) as caught:
        check_form(form)
    assert caught.value.pointer == pointer


def test_a_property_may_be_called_like_any_word() -> None:
    form = {"type": "object", "properties": {name: {"type": "string"} for name in ("pattern", "$ref", "properties")}}
    check_form(form)
    check_answer(form, {"pattern": "x"})


def test_forms_and_answers_have_bounds() -> None:
    with pytest.raises(ContractError, match="bytes"):
        check_form({"enum": ["x" * FORM_BYTES_MAX]})
    with pytest.raises(ContractError, match="parts"):
        check_form({"anyOf": [{}] * FORM_NODES_MAX})
    assert "parts" in refused({"type": "array"}, [0] * ANSWER_PARTS_MAX).message


def test_no_answer_keeps_the_rules_busy() -> None:
    form = {"allOf": [{"type": "array", "uniqueItems": True, "items": {"anyOf": [{"multipleOf": 1e-300}, {}]}}] * 60}
    check_form(form)
    began = time.monotonic()
    assert "parts" in refused(form, [1e300] * 500).message
    check_answer({"type": "array", "uniqueItems": True}, [{"n": n} for n in range(ANSWER_PARTS_MAX // 2 - 1)])
    assert time.monotonic() - began < 5


def test_no_word_of_a_form_refers_elsewhere_or_runs_a_pattern() -> None:
    assert not {"$ref", "$dynamicRef", "$id", "$defs", "pattern", "patternProperties", "propertyNames"} & WORDS
    assert not {word for word in WORDS if word.startswith("unevaluated")}


def test_without_a_form_the_answer_is_an_option_or_some_text() -> None:
    about: dict[str, Any] = {"question": "Which?", "agent_name": "a", "task_id": "t", "tool_call_id": "c"}
    assert form_of(QuestionContent(**about, options=("x", "y"))) == {"enum": ["x", "y"]}
    refused(form_of(QuestionContent(**about)), "")
    refused(form_of(QuestionContent(**about)), 1)
    check_answer(form_of(QuestionContent(**about)), "that one")
    assert form_of(QuestionContent(**about, options=("x",), answer_schema={"type": "null"})) == {"type": "null"}
