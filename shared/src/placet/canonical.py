"""Decides the one text of a JSON value, and its hash: RFC 8785, SHA-256.

`json.dumps(sort_keys=True)` is not it: it writes 1.0 as `1.0`, 1e-7 as `1e-07`, sorts keys by code point and escapes
what is not ASCII. The numbers and the order of keys come from the rfc8785 library, proven on the vectors of the tests.
Values without floats and with ASCII keys only, which are nearly all, take the C encoder instead: for those both write
the same bytes (a property that the tests hold), six times faster.
"""

from __future__ import annotations

import hashlib
from json import JSONEncoder, encoder
from json.encoder import encode_basestring

import rfc8785

from placet import limits
from placet.errors import Code, ContractError, InvariantError
from placet.strict_json import JsonValue, is_simple, parse

_SIMPLE = JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":"))

_STRING = encode_basestring
"""As `_SIMPLE` writes a text."""

_in_c = getattr(encoder, "c_make_encoder", None)
_CHUNKS = _in_c and _in_c(None, _SIMPLE.default, _STRING, None, ":", ",", True, False, False)
"""What `_SIMPLE.encode` makes anew for each value; None where Python has no encoder in C."""


def canonical_text(value: object, *, depth_max: int = limits.JSON_DEPTH_MAX) -> str:
    """The canonical JSON of `value`, as text. Raises ContractError as `strict_json.check_json_value` does."""
    if is_simple(value, depth_max=depth_max):
        return _SIMPLE.encode(value) if _CHUNKS is None else "".join(_CHUNKS(value, 0))
    try:
        return rfc8785.dumps(value).decode()  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as error:
        raise InvariantError(f"checked and yet not canonical: {error}") from error


def canonical_string(text: str) -> str:
    """The canonical JSON of a text alone. Raises ContractError(JSON_TEXT) for a lone surrogate."""
    if text.isascii():
        return _STRING(text)
    return canonical_text(text)


def canonical_bytes(value: object, *, depth_max: int = limits.JSON_DEPTH_MAX) -> bytes:
    """The same in UTF-8: the bytes that are hashed, signed and shown."""
    return canonical_text(value, depth_max=depth_max).encode()


def digest(value: object) -> str:
    """SHA-256 of the canonical bytes, as 64 lower-case hexadecimal digits."""
    return digest_of_text(canonical_text(value))


def digest_of_text(text: str) -> str:
    """SHA-256 of a text in UTF-8, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_canonical(
    text: str, *, bytes_max: int = limits.JSON_BYTES_MAX, depth_max: int = limits.JSON_DEPTH_MAX
) -> JsonValue:
    """The value of a text that must be canonical already, byte for byte.

    A double such as 1e20 stands there as an integer literal and is read as that double. A double that is a small
    integer, such as 1.0, stands there as `1` and is read as an int: JSON has one kind of number.

    Raises ContractError as `strict_json.parse` does, and JSON_SYNTAX for another form than the canonical one.
    """
    value = parse(text, bytes_max=bytes_max, depth_max=depth_max, long_integers_are_doubles=True)
    if canonical_text(value, depth_max=depth_max) != text:
        raise ContractError(Code.JSON_SYNTAX, "not in canonical form (RFC 8785)")
    return value
