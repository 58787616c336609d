"""The one text of a JSON value and its hash, on vectors that other programs computed."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from placet.canonical import (
    canonical_bytes,
    canonical_string,
    canonical_text,
    digest,
    digest_of_text,
    parse_canonical,
)
from placet.errors import Code, ContractError
from placet.rows import audit_leaf
from placet.strict_json import parse
from tests.vocabulary.test_strict_json import JSON_TEXT, JSON_VALUES

GOLDEN = Path(__file__).parent / "golden"
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())


def double(hexadecimal: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(hexadecimal))[0]
    return value


@pytest.mark.parametrize(("literal", "canonical"), NUMBERS["literals"])
def test_number_text_is_that_of_the_written_rule(literal: str, canonical: str) -> None:
    assert canonical_text(parse(literal)) == canonical
    assert canonical_text(parse_canonical(canonical)) == canonical


def test_plain_json_writes_other_numbers() -> None:
    plain = {literal: json.dumps(json.loads(literal)) for literal, _ in NUMBERS["literals"]}
    differ = {literal for literal, canonical in NUMBERS["literals"] if plain[literal] != canonical}
    assert {"10.0", "-0.0", "1e-7", "1e20"} <= differ, "were plain JSON canonical, these vectors would prove nothing"


@pytest.mark.parametrize(("bits", "text"), NUMBERS["rfc8785"] + NUMBERS["engine"])
def test_doubles_have_the_text_that_ecmascript_gives_them(bits: str, text: str) -> None:
    assert canonical_text(double(bits)) == text


@given(st.binary(min_size=8, max_size=8))
def test_the_text_of_a_double_leads_back_to_it(bits: bytes) -> None:
    value: float = struct.unpack(">d", bits)[0]
    if value - value == 0:  # finite
        assert float(canonical_text(value)) == value


def test_text_is_escaped_as_little_as_possible() -> None:
    control = "".join(map(chr, range(0x20)))
    escaped = "".join({8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}.get(c, f"\\u{c:04x}") for c in range(0x20))
    assert canonical_text(control + '"\\/\x7fé\u2028\U0001f600') == f'"{escaped}\\"\\\\/\x7fé\u2028\U0001f600"'


def test_keys_are_sorted_by_utf16_code_units() -> None:
    # By code point U+FB33 would stand before the emoji, whose first unit is D83D. The example of RFC 8785 §3.2.3.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = list(json.loads(canonical_text(dict.fromkeys(keys))))
    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"] != sorted(keys)


@given(JSON_VALUES)
def test_both_encoders_write_what_the_library_writes(value: Any) -> None:
    """The fast path may be taken only where it gives the same bytes."""
    assert canonical_bytes(value) == rfc8785.dumps(value)


SIMPLE_VALUES = st.recursive(
    st.integers(-9, 9) | st.text('aé\x1f"\\\u2028\U0001f600\ufb33'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a~\x1f\x7f"), inner, max_size=4),
)


@given(SIMPLE_VALUES)
def test_the_fast_encoder_writes_what_the_library_writes(value: Any) -> None:
    assert canonical_bytes(value) == rfc8785.dumps(value)


@given(JSON_VALUES)
def test_reading_undoes_writing(value: Any) -> None:
    text = canonical_text(value)
    assert parse_canonical(text) == value
    assert canonical_text(parse_canonical(text)) == text


@given(JSON_VALUES, st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(value: Any, random: Any) -> None:
    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            keys = list(item)
            random.shuffle(keys)
            return {key: shuffled(item[key]) for key in keys}
        return [shuffled(inner) for inner in item] if isinstance(item, list) else item

    assert canonical_bytes(shuffled(value)) == canonical_bytes(value)


@given(st.text())
def test_a_text_alone_is_written_as_within_a_value(text: str) -> None:
    assert canonical_string(text) == canonical_text(text)


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()), st.integers(0, 2**53 - 1))
def test_a_leaf_is_the_digest_of_the_canonical_json_of_all_its_other_fields(
    tenant: str, subject: str, detail: dict[str, str], at_ms: int
) -> None:
    leaf = audit_leaf(
        tenant=tenant, run_id="run-1", seq=7, kind="k", subject=subject, detail=detail, at_ms=at_ms, previous="p"
    )
    assert leaf.leaf == digest(leaf.model_dump(exclude={"leaf"}))


@given(JSON_VALUES, JSON_VALUES)
def test_different_values_have_different_text(first: Any, second: Any) -> None:
    same_text = canonical_text(first) == canonical_text(second)
    assert same_text == (_typed(first) == _typed(second))


def _typed(value: Any) -> Any:
    """The value with true and 1 told apart, which Python's equality does not."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (isinstance(value, bool), value)


def test_a_digest_is_that_of_the_canonical_bytes() -> None:
    value = {"b": 1.0, "a": "é"}
    assert canonical_bytes(value) == b'{"a":"\xc3\xa9","b":1}'
    assert digest(value) == hashlib.sha256(canonical_bytes(value)).hexdigest() == digest_of_text(canonical_text(value))
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [float("nan"), 2**53, {1: 2}, "\ud800", b"a", {"a": (1, {2})}])
def test_what_json_cannot_carry_has_no_canonical_form(value: object) -> None:
    with pytest.raises(ContractError):
        canonical_bytes(value)


def test_a_large_double_survives_although_its_text_is_an_integer_literal() -> None:
    text = canonical_text({"n": 1e20})
    assert text == '{"n":100000000000000000000}'
    value = parse_canonical(text)
    assert value == {"n": 1e20}
    with pytest.raises(ContractError, match="beyond"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"b":1,"a":2}', '{"a": 1}', "1.0", "1e21", "-0", '"\\u00e9"', '"\\/"', "[1]\n", "9007199254740993", "9" * 400,
        '{"a":1,"a":1}', '{"n":100000000000000000000,"a":1}',
    ],
)  # fmt: skip
def test_a_text_in_another_form_is_not_taken_for_canonical(text: str) -> None:
    with pytest.raises(ContractError) as caught:
        parse_canonical(text)
    assert caught.value.code in {Code.JSON_SYNTAX, Code.JSON_NUMBER, Code.JSON_DUPLICATE_KEY}


@given(JSON_TEXT)
def test_text_is_not_normalised(text: str) -> None:
    assert parse_canonical(canonical_text(text)) == text
    assert canonical_text("\u00e9") != canonical_text("e\u0301")
