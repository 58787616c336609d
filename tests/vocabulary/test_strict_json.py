"""Which JSON is taken at all, from text and from values in memory."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from placet import limits
from placet.errors import Code, ContractError, InvariantError
from placet.plain_json import PLAIN_MAX, is_plain
from placet.strict_json import check_json_value, is_simple, name_of, parse, pointer_of

JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=20,
)


def refused(data: bytes | str, **options: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        parse(data, **options)
    return caught.value


# ── text ───────────────────────────────────────────────────────────────────────────────


@given(JSON_VALUES)
def test_what_json_writes_is_read_back_equal(value: Any) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped)
        assert parse(text) == parse(text.encode()) == value


def test_types_are_kept() -> None:
    assert parse('[1, 1.0, true, null, "1", -0, 1e2]') == [1, 1.0, True, None, "1", 0, 100.0]
    assert [type(item) for item in parse("[1, 1.0, true, 1e2]")] == [int, float, bool, float]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "pointer", "key"),
    [
        ('{"a":1,"a":1}', "/a", "a"),
        ('{"tool":"pay","args":{"to":"ACC-1","amount":1,"amount":1000}}', "/args/amount", "amount"),
        ('[0,{"x":[{"b/~":1,"b/~":{"deep":{}}}]}]', "/1/x/0/b~1~0", "b/~"),
        ('{"\\u0061":1,"a":2}', "/a", "a"),
        ('{"":1,"":2}', "/", ""),
    ],
)
def test_a_key_that_stands_twice_is_refused_by_name(text: str, pointer: str, key: str) -> None:
    # json.loads and orjson take the last one: shown 1, paid 1000.
    error = refused(text)
    assert (error.code, error.pointer) == (Code.JSON_DUPLICATE_KEY, pointer)
    assert json.dumps(key) in error.message


def test_the_outermost_of_several_doubled_keys_is_named() -> None:
    text = '{"tool":"pay","args":{"to":"ACC-1","amount":1,"amount":1000},"tool":"pay_all"}'
    assert refused(text).pointer == "/tool"


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("NaN", ""),
        ('{"args":{"amount":NaN,"fee":-Infinity}}', "/args/amount"),
        ("[Infinity]", "/0"),
        ("[0,-Infinity]", "/1"),
        ('{"n":1e400}', "/n"),
        ('{"n":[1,-1E+999]}', "/n/1"),
        ("9" * 400 + ".5", ""),
        ("9007199254740992", ""),
        ('{"a":{"b":[-9007199254740992]}}', "/a/b/0"),
        ('{"n":' + "1" * 5_000 + "}", "/n"),
    ],
)
def test_a_number_that_readers_read_differently_is_refused_with_its_place(text: str, pointer: str) -> None:
    error = refused(text)
    assert (error.code, error.pointer) == (Code.JSON_NUMBER, pointer)


def test_the_largest_integers_pass_and_any_finite_double_does() -> None:
    assert parse("[9007199254740991,-9007199254740991]") == [2**53 - 1, -(2**53) + 1]
    assert parse("[1e20,1e300,1.7976931348623157e308,5e-324,9007199254740993.0]") == [
        1e20, 1e300, 1.7976931348623157e308, 5e-324, 9007199254740992.0,
    ]  # fmt: skip
    assert parse("1e-400") == 0.0


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ('{"args":{"to":"c1@example.test","body":"ok \\ud83d end"}}', "/args/body"),
        ('["\\udc00"]', "/0"),
        ('["\\ud83d\\ud83d\\ude00"]', "/0"),
        ('{"a":{"\\uD800":1}}', "/a"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_in_values_and_keys(text: str, pointer: str) -> None:
    # json.loads takes it; the first write in UTF-8 then fails, at every retry.
    error = refused(text)
    assert (error.code, error.pointer) == (Code.JSON_TEXT, pointer)
    assert refused(text.encode()).pointer == pointer


def test_an_escaped_surrogate_pair_is_one_character() -> None:
    value = parse(b'{"body":"ok \\ud83c\\udf78 end"}')
    assert value == {"body": "ok \U0001f378 end"}
    assert parse('"\\\\ud83d"') == "\\ud83d", "an escaped backslash starts no escape"


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"\xff\xfe\x00A", 0), (b"\x80", 0), (b'["\xed\xa0\x80"]', 2), (b'{"a":"\xc3("}', 6), (b"\xef\xbb\xbf{}", 0),
        ("\ufeff{}", 0), ('["\ud800"]', 2),
    ],
)  # fmt: skip
def test_what_is_not_utf8_is_refused_at_its_offset(data: bytes | str, offset: int) -> None:
    error = refused(data)
    assert (error.code, error.pointer, error.details["offset"]) == (Code.JSON_TEXT, None, offset)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0), ("  \n", 0), ("{", 1), ("{} trailing", 3), ("[1,]", 3), ("{'a':1}", 1), ("nul", 0), ("\x00", 0),
        ('"a\nb"', 2), ("01", 1), ("+1", 0), (".5", 0), ("1.", 1), ('{"a":1,"a":2', 12), ("[NaN", 4), ("\u00a0{}", 0),
        ("```json\n{}\n```", 0), ('{"path":"a.txt","content":"#!/bin/sh\\necho', 26), ('["\\x41"]', 2),
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused_at_its_offset(text: str, offset: int) -> None:
    error = refused(text)
    assert (error.code, error.details["offset"]) == (Code.JSON_SYNTAX, offset)
    assert text == "" or text.strip() == "" or error.message != refused("").message


@pytest.mark.parametrize("depth", [65, 900, 1_500, 20_000, 400_000])
@pytest.mark.parametrize("closed", [True, False])
def test_nesting_beyond_the_bound_is_refused_before_a_reader_recurses(depth: int, closed: bool) -> None:
    # json.loads raises RecursionError, which is no ValueError, near 1,000.
    text = "[" * depth + ("]" * depth if closed else "")
    assert refused(text).code == Code.TOO_DEEP
    assert str(limits.JSON_DEPTH_MAX) in refused(text).message
    assert refused('{"a":' * depth + "0" + ("}" * depth if closed else ""), bytes_max=2**22).code == Code.TOO_DEEP


def test_the_bound_of_depth_is_exact_and_may_be_narrowed_only() -> None:
    assert parse("[" * 64 + "]" * 64) is not None
    assert refused("[" * 65 + "]" * 65).code == Code.TOO_DEEP
    assert parse('{"a":[{}]}', depth_max=3) == {"a": [{}]}
    assert refused('{"a":[{}]}', depth_max=2).code == Code.TOO_DEEP
    with pytest.raises(InvariantError):
        parse("1", depth_max=limits.JSON_DEPTH_MAX + 1)


def test_brackets_in_text_and_side_by_side_are_not_depth() -> None:
    brackets = "[{" * 500
    assert parse(json.dumps([brackets, '"' + brackets, "\\" + brackets, {brackets: 1}]))
    assert parse(json.dumps([[]] * 10_000)) == [[]] * 10_000
    assert refused("]" * 500 + "[" * 60).code == Code.JSON_SYNTAX


@given(JSON_VALUES, st.integers(0, 6))
def test_depth_is_judged_as_a_count_by_hand_judges_it(value: Any, depth_max: int) -> None:
    def depth(item: Any) -> int:
        if isinstance(item, dict | list):
            return 1 + max(map(depth, item.values() if isinstance(item, dict) else item), default=0)
        return 0

    text = json.dumps(value)
    if depth(value) <= depth_max:
        assert parse(text, depth_max=depth_max) == value
        check_json_value(value, depth_max=depth_max)
    else:
        assert refused(text, depth_max=depth_max).code == Code.TOO_DEEP
        with pytest.raises(ContractError, match="nested deeper"):
            check_json_value(value, depth_max=depth_max)


def test_size_is_bounded_in_bytes_whatever_the_characters() -> None:
    assert parse('"' + "é" * 4 + '"', bytes_max=10) == "éééé"
    for data in ('"éééé"', '"éééé"'.encode(), '"12345678"', b'"12345678"'):
        error = refused(data, bytes_max=9)
        assert (error.code, error.details) == (Code.TOO_LARGE, {"bytes_max": 9})
    assert refused(b" " * (limits.JSON_BYTES_MAX + 1)).code == Code.TOO_LARGE


def test_each_kind_of_refusal_has_its_own_code() -> None:
    broken = ['{"a":1,"a":2}', "NaN", '"\\ud800"', "[" * 100, "{", '"' + "x" * limits.JSON_BYTES_MAX + '"']
    assert len({refused(text).code for text in broken}) == len(broken)


@given(st.binary(max_size=60) | JSON_TEXT)
def test_any_input_is_read_or_refused_with_a_code_of_ours(data: bytes | str) -> None:
    try:
        value = parse(data)
    except ContractError as error:
        refusal = error.code
    else:
        check_json_value(value)
        return
    assert refusal.name.startswith(("JSON_", "TOO_"))


# ── values in memory ───────────────────────────────────────────────────────────────────


class Word(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    A = 1


class Model(BaseModel):
    a: int = 1


@dataclasses.dataclass
class Record:
    a: int = 1


class Text(str):
    __slots__ = ()


def faulty(value: object) -> ContractError:
    with pytest.raises(ContractError) as caught:
        check_json_value(value)
    return caught.value


FOREIGN = [
    datetime.datetime(2026, 8, 8, tzinfo=datetime.UTC), datetime.date(2026, 8, 8), decimal.Decimal("1.10"), b"a", {1},
    uuid.UUID(int=1), Word.A, Number.A, Record(), Model(), len, Text("a"), object(), range(3), frozenset(), 1j,
    bytearray(b"a"), iter(()),
]  # fmt: skip


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_a_value_that_json_does_not_have_is_refused_with_path_and_type(value: object) -> None:
    # json.dumps and pydantic turn several of these into text or numbers without a word.
    error = faulty({"input": {"a": [0, value]}})
    assert (error.code, error.pointer) == (Code.JSON_TYPE, "/input/a/1")
    assert "input.a[1]" in error.message
    assert type(value).__name__ in error.message


@pytest.mark.parametrize("key", [1, None, True, ("a",), Word.A, 1.5, b"a"], ids=repr)
def test_a_key_that_is_not_text_is_refused(key: object) -> None:
    # json.dumps writes 1 as "1", True as "true", None as "null".
    error = faulty({"input": {key: 1}})
    assert (error.code, error.pointer) == (Code.JSON_TYPE, "/input")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 2**53, -(2**53), 10**5_000], ids=lambda value: type(value).__name__
)
def test_a_number_out_of_range_is_refused(value: float) -> None:
    error = faulty({"input": {"a": [value]}})
    assert (error.code, error.pointer) == (Code.JSON_NUMBER, "/input/a/0")


@pytest.mark.parametrize(("value", "pointer"), [({"a": "x\ud83d"}, "/a"), ({"a": {"\udc00": 1}}, "/a"), ("\ud800", "")])
def test_half_of_a_surrogate_pair_in_memory_is_refused(value: object, pointer: str) -> None:
    error = faulty(value)
    assert (error.code, error.pointer) == (Code.JSON_TEXT, pointer)


def test_a_value_that_contains_itself_is_refused_and_one_used_twice_is_not() -> None:
    loop: list[object] = [1]
    loop.append({"again": loop})
    error = faulty({"input": loop})
    assert (error.code, error.pointer) == (Code.JSON_TYPE, "/input")
    assert "contains itself" in error.message
    twice = {"b": [1, 2]}
    check_json_value({"x": twice, "y": twice, "z": [twice, twice]})
    deep: Any = twice
    for _ in range(limits.JSON_DEPTH_MAX - 1):
        deep = [deep]
    assert faulty([twice, deep]).code == Code.TOO_DEEP, "met again, but not within itself"


def test_a_few_objects_cannot_spell_out_a_huge_value() -> None:
    value: list[object] = []
    for _ in range(40):
        value = [value, value]
    assert faulty(value).code == Code.TOO_LARGE


def test_nesting_in_memory_is_bounded_without_recursion_errors() -> None:
    value: object = 1
    for _ in range(100_000):
        value = [value]
    assert faulty(value).code == Code.TOO_DEEP
    while isinstance(value, list):  # taken apart by hand: Python would recurse to free it
        value = value.pop()


@given(JSON_VALUES)
def test_everything_that_is_read_passes_the_check_in_memory(value: Any) -> None:
    check_json_value(parse(json.dumps(value)))
    check_json_value(tuple(value) if isinstance(value, list) else value)


def test_paths_are_written_for_people_and_as_pointers() -> None:
    path: list[str | int] = ["input", "a/b~", 0, "odd key"]
    assert name_of(path) == 'input["a/b~"][0]["odd key"]'
    assert pointer_of(path) == "/input/a~1b~0/0/odd key"
    assert (name_of([]), pointer_of([])) == ("the value", "")


# ── a glance ───────────────────────────────────────────────────────────────────────────


class Named(enum.StrEnum):
    ONE = "one"


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        float("nan"),
        limits.INTEGER_MAX,
        -limits.INTEGER_MAX,
        "\xe9",
        {"\xe9": 1},
        {1: "a"},
        {"a": Named.ONE},
        {Named.ONE: "a"},
        [b"a"],
        [{"a": {1, 2}}],
        [[]] * (PLAIN_MAX + 1),
    ],
)
def test_what_is_not_plain_is_looked_at_closely(value: Any) -> None:
    assert not is_plain(value, limits.JSON_DEPTH_MAX)


def test_a_glance_goes_no_deeper_than_the_bound_and_no_further_than_its_own() -> None:
    assert is_plain([[[]]], 3)
    assert not is_plain([[[]]], 2)
    twice: Any = "a"
    for _ in range(limits.JSON_DEPTH_MAX):
        twice = [twice, twice]
    assert not is_plain(twice, limits.JSON_DEPTH_MAX)


@given(JSON_VALUES)
def test_what_is_plain_at_a_glance_is_simple_when_looked_at_closely(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        glance = is_plain(value, limits.JSON_DEPTH_MAX)
        patch.setattr("placet.strict_json.is_plain", lambda value, depth_max: False)
        assert not glance or is_simple(value)
