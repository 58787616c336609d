"""Decides which JSON is taken at all: one strict reader for every door, and the same rules for values in memory.

Python's own reader takes a doubled key, NaN, `1e400` as infinity, half of a surrogate pair and integers of any length,
and dies of deep nesting. Whatever two readers may read differently is refused here, before it is hashed or shown.

The rules, for both directions:

- UTF-8 without a byte order mark; no lone surrogate in a value or a key (an escaped pair is one character).
- An object names a key once.
- A number is finite. An *integer literal* lies within ±(2^53 - 1), the range of RFC 7493: beyond it readers round
  differently and in silence. A literal with a fraction or an exponent is a double and may be any finite double, also
  `1e20`, since everybody reads it alike.
- Depth and size have bounds. `[]` has depth 1.

Text of JSON comes from RFC 8259, pointers from RFC 6901, the range of integers from RFC 7493.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any, NoReturn

from pydantic import JsonValue

from placet import limits
from placet.errors import Code, ContractError, InvariantError
from placet.plain_json import is_plain

__all__ = ["JsonValue", "check_json_value", "is_simple", "name_of", "parse", "pointer_of"]

Path = Sequence[str | int]

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPED_PAIR = re.compile(rb"\\.", re.DOTALL)
_DIGITS_MAX = len(str(limits.INTEGER_MAX))
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level down or, as a signed byte, one up."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def pointer_of(path: Path) -> str:
    """The RFC 6901 pointer of a path: `/input/a/0`; the empty text is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def name_of(path: Path) -> str:
    """A path as people write it: `input.a[0]`, `input["odd key"]`; `the value` for the whole."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif _PLAIN_NAME.fullmatch(part):
            shown += f".{part}"
        else:
            shown += f"[{json.dumps(part)}]"
    return shown.removeprefix(".") or "the value"


def _narrowed(depth_max: int) -> None:
    if depth_max > limits.JSON_DEPTH_MAX:
        raise InvariantError("the bound of depth may be narrowed, not widened: readers recurse")


# ── text to value ──────────────────────────────────────────────────────────────────────


def parse(
    data: bytes | str,
    *,
    bytes_max: int = limits.JSON_BYTES_MAX,
    depth_max: int = limits.JSON_DEPTH_MAX,
    long_integers_are_doubles: bool = False,
) -> JsonValue:
    """The value that `data`, one JSON document in UTF-8, stands for. Linear in its size.

    `depth_max` may be narrowed only. `long_integers_are_doubles` is for canonical text, where the double 1e20 is
    written out as an integer literal: with it such a literal is read as a double, and the caller must then compare the
    canonical form of what was read with the text (`canonical.parse_canonical` does).

    Raises ContractError: TOO_LARGE, TOO_DEEP, JSON_TEXT (not UTF-8, byte order mark, lone surrogate),
    JSON_DUPLICATE_KEY, JSON_NUMBER (NaN, infinities, out of range), JSON_SYNTAX (everything else, also an empty
    document and text after its end). `pointer` names the place; where there is none yet, `details["offset"]` does, in
    bytes for what is not UTF-8 and in characters otherwise.
    """
    _narrowed(depth_max)
    text = _text_of(data, bytes_max)
    if text.count("[") + text.count("{") > depth_max and _deeper_than(text, depth_max):
        raise ContractError(Code.TOO_DEEP, f"nested deeper than {depth_max} levels", depth_max=depth_max)
    try:
        value: JsonValue = (_CANONICAL if long_integers_are_doubles else _STRICT).decode(text)
    except JSONDecodeError as error:
        raise _syntax(text, error) from None
    except _RefusedError:
        _explain(text, _marked_double if long_integers_are_doubles else _marked_integer)
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        _refuse_faults(value, [])
    return value


def _text_of(data: bytes | str, bytes_max: int) -> str:
    if isinstance(data, str):
        return _text_of_str(data, bytes_max)
    if len(data) > bytes_max:
        raise _too_large(bytes_max)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ContractError(
            Code.JSON_TEXT, f"not UTF-8 at byte {error.start}: {error.reason}", offset=error.start
        ) from None
    _refuse_mark(text)
    return text


def _text_of_str(text: str, bytes_max: int) -> str:
    if len(text) > bytes_max:
        raise _too_large(bytes_max)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise ContractError(
                Code.JSON_TEXT, f"half of a surrogate pair at character {error.start}", offset=error.start
            ) from None
        if size > bytes_max:
            raise _too_large(bytes_max)
    _refuse_mark(text)
    return text


def _too_large(bytes_max: int) -> ContractError:
    return ContractError(Code.TOO_LARGE, f"more than {bytes_max} bytes of JSON", bytes_max=bytes_max)


def _refuse_mark(text: str) -> None:
    if text.startswith("\ufeff"):
        raise ContractError(Code.JSON_TEXT, "starts with a byte order mark: send JSON without one", offset=0)


def _deeper_than(text: str, depth_max: int) -> bool:
    """Whether nesting passes the bound, found without recursion and before any recursive reader sees the text.

    Right for a broken document too, as far as a reader would descend into it.
    """
    data = text.encode()
    if b"\\" in data:
        data = _ESCAPED_PAIR.sub(b"", data)
    outside_strings = b"".join(data.translate(None, _NOT_STRUCTURE).split(b'"')[::2])
    steps = memoryview(outside_strings.translate(_STEPS)).cast("b")
    return max(accumulate(steps), default=0) > depth_max


def _syntax(text: str, error: JSONDecodeError) -> ContractError:
    if not text.strip(" \t\n\r"):
        return ContractError(Code.JSON_SYNTAX, "empty: one JSON value is needed", offset=0)
    if error.msg == "Extra data":
        return ContractError(
            Code.JSON_SYNTAX, f"text after the end of the value, at character {error.pos}", offset=error.pos
        )
    reason = error.msg[:1].lower() + error.msg[1:]
    return ContractError(
        Code.JSON_SYNTAX, f"not JSON: {reason} (line {error.lineno}, column {error.colno})", offset=error.pos
    )


# The C scanner calls these. The strict ones stop at the first fault, without knowing where they are; then the document
# is read once more by the marking ones, which leave a `_Fault` in its place, so that its path can be told.


class _RefusedError(Exception):
    """Something in the document may not stand."""


class _Fault:
    """Stands where something was refused."""

    def __init__(self, code: Code, message: str, key: str | None = None) -> None:
        self.code = code
        self.message = message
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _RefusedError
    return made


def _constant(_name: str) -> NoReturn:
    raise _RefusedError


def _in_range(literal: str) -> bool:
    # The length goes first: Python refuses to convert a few thousand digits, with an error of its own.
    return len(literal) < _DIGITS_MAX or (
        len(literal) <= _DIGITS_MAX + 1 and -limits.INTEGER_MAX < int(literal) < limits.INTEGER_MAX
    )


def _integer(literal: str) -> int:
    if len(literal) < _DIGITS_MAX or _in_range(literal):
        return int(literal)
    raise _RefusedError


def _integer_or_double(literal: str) -> int | float:
    return int(literal) if _in_range(literal) else _double(literal)


def _double(literal: str) -> float:
    value = float(literal)
    if not isfinite(value):
        raise _RefusedError
    return value


def _marked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Fault(Code.JSON_DUPLICATE_KEY, f"the key {json.dumps(key)} stands twice in one object", key)
        seen.add(key)
    return dict(pairs)


def _marked_constant(name: str) -> _Fault:
    return _Fault(Code.JSON_NUMBER, f"{name} is not a number of JSON")


def _marked_integer(_literal: str) -> _Fault:
    return _Fault(Code.JSON_NUMBER, "an integer beyond ±(2^53 - 1): write it as text, or with an exponent as a double")


def _marked_double(literal: str) -> float | _Fault:
    value = float(literal)
    return value if isfinite(value) else _Fault(Code.JSON_NUMBER, "a number beyond the range of doubles")


_STRICT = JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_double)
_CANONICAL = JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer_or_double, parse_float=_double
)


def _explain(text: str, long_integer: Callable[[str], int | float | _Fault]) -> NoReturn:
    """Raise the error for a document that was refused, with its place."""
    marking = JSONDecoder(
        object_pairs_hook=_marked_object,
        parse_constant=_marked_constant,
        parse_int=lambda literal: int(literal) if _in_range(literal) else long_integer(literal),
        parse_float=_marked_double,
    )
    try:
        _refuse_faults(marking.decode(text), [])
    except JSONDecodeError as error:
        raise _syntax(text, error) from None
    raise InvariantError("refused by the strict reader, accepted by the marking one")


def _refuse_faults(value: Any, path: list[str | int]) -> None:
    """Raise for the first fault in document order. The depth is already known to be bounded."""
    if isinstance(value, _Fault):
        if value.key is not None:
            path.append(value.key)
        raise ContractError(value.code, f"{name_of(path)}: {value.message}", pointer=pointer_of(path))
    if isinstance(value, str):
        if not _is_whole(value):
            raise _lone_surrogate(path, "the text")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not _is_whole(key):
                raise _lone_surrogate(path, "a key")
            path.append(key)
            _refuse_faults(item, path)
            path.pop()
    elif isinstance(value, list):
        for at, item in enumerate(value):
            path.append(at)
            _refuse_faults(item, path)
            path.pop()


def _is_whole(text: str) -> bool:
    """Whether the text has no lone surrogate, so that it has a form in UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lone_surrogate(path: Path, what: str) -> ContractError:
    return ContractError(
        Code.JSON_TEXT, f"{name_of(path)}: {what} has half of a surrogate pair", pointer=pointer_of(path)
    )


# ── values in memory ───────────────────────────────────────────────────────────────────


def check_json_value(value: object, *, depth_max: int = limits.JSON_DEPTH_MAX) -> None:
    """Refuse what JSON cannot carry, by exact type: nothing is turned into text in silence.

    Taken: None, bool, int, float, str, list, tuple (an array too) and dict with keys of type str. Refused: subclasses
    of these (StrEnum, IntEnum, …), dates, Decimal, bytes, sets, models and all else; NaN and infinities; integers
    beyond ±(2^53 - 1); lone surrogates; a value that contains itself (one that stands in two places is fine).

    Raises ContractError: JSON_TYPE, JSON_NUMBER, JSON_TEXT, TOO_DEEP, TOO_LARGE (more values than `JSON_BYTES_MAX`,
    as a few objects that refer to each other can spell out). The message names the place as `input.a[0]`, `pointer`
    as `/input/a/0`.
    """
    is_simple(value, depth_max=depth_max)


def is_simple(value: object, *, depth_max: int = limits.JSON_DEPTH_MAX) -> bool:
    """`check_json_value`, and whether any sorted encoder is canonical for it: no float, no key beyond ASCII."""
    _narrowed(depth_max)
    if is_plain(value, depth_max):
        return True
    walk = _Walk(depth_max)
    try:
        walk.visit(value, 1)
    except _FoundError as found:
        path = found.path[::-1][: found.levels]
        raise ContractError(found.code, f"{name_of(path)} {found.message}", pointer=pointer_of(path)) from None
    return walk.simple


class _FoundError(Exception):
    """A fault, gathering its path, innermost first, on the way up."""

    def __init__(self, code: Code, message: str, levels: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.levels = levels
        """How much of the path to tell; all where None."""
        self.path: list[str | int] = []


class _Walk:
    """One check of one value."""

    def __init__(self, depth_max: int) -> None:
        self.simple = True
        self._depth_max = depth_max
        self._values_left = limits.JSON_BYTES_MAX
        self._above: list[object] = []

    def visit(self, value: object, depth: int) -> None:
        kind = type(value)
        if kind is str:
            if not _is_whole(value):  # type: ignore[arg-type]
                raise _FoundError(Code.JSON_TEXT, "has half of a surrogate pair")
        elif kind is dict or kind is list or kind is tuple:
            self._enter(value, depth)
            if kind is dict:
                self._visit_object(value, depth)  # type: ignore[arg-type]
            else:
                self._visit_array(value, depth)  # type: ignore[arg-type]
            self._above.pop()
        elif kind is int:
            if not -limits.INTEGER_MAX < value < limits.INTEGER_MAX:  # type: ignore[operator]
                raise _FoundError(Code.JSON_NUMBER, "is an integer beyond ±(2^53 - 1): write it as text")
        elif kind is float:
            self.simple = False
            if not isfinite(value):  # type: ignore[arg-type]
                raise _FoundError(Code.JSON_NUMBER, f"is {value}, which is not a number of JSON")
        elif kind is not bool and value is not None:
            raise _FoundError(Code.JSON_TYPE, f"is {_named(kind)}, which JSON does not have")

    def _enter(self, value: Any, depth: int) -> None:
        if depth > self._depth_max:
            path = [*self._above, value]
            for levels, above in enumerate(path):
                if any(above is again for again in path[levels + 1 :]):
                    raise _FoundError(Code.JSON_TYPE, "contains itself", levels)
            raise _FoundError(Code.TOO_DEEP, f"is nested deeper than {self._depth_max} levels")
        self._above.append(value)
        self._values_left -= len(value)
        if self._values_left < 0:
            raise _FoundError(Code.TOO_LARGE, f"spells out more than {limits.JSON_BYTES_MAX} values")

    def _visit_object(self, value: dict[object, object], depth: int) -> None:
        for key, item in value.items():
            if type(key) is str and key.isascii() and (item is None or (type(item) is str and item.isascii())):
                continue  # nearly all of what there is
            if type(key) is not str:
                raise _FoundError(Code.JSON_TYPE, f"has a key that is {_named(type(key))}, not text")
            if not key.isascii():
                self.simple = False
                if not _is_whole(key):
                    raise _FoundError(Code.JSON_TEXT, "has a key with half of a surrogate pair")
            try:
                self.visit(item, depth + 1)
            except _FoundError as found:
                found.path.append(key)
                raise

    def _visit_array(self, value: Sequence[object], depth: int) -> None:
        for at, item in enumerate(value):
            if item is None or (type(item) is str and item.isascii()):
                continue
            try:
                self.visit(item, depth + 1)
            except _FoundError as found:
                found.path.append(at)
                raise


def _named(kind: type) -> str:
    """`an int`, `a datetime.datetime`: the type as people name it."""
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "builtins":
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    return f"a value of type {name}"
