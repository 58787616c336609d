"""Decides what may stand in a request beside its content: names, texts, instants, and whose place it takes."""

from __future__ import annotations

import re

from placet import limits
from placet.contents import fault_of_name
from placet.errors import Code, ContractError

_NOT_IN_TEXT = re.compile("[\x00\ud800-\udfff]")
_INSTANT_MS_MAX = limits.INTEGER_MAX - 1


def refusal(field: str, message: str, below: str = "") -> ContractError:
    """The one error of a request that cannot be made; `below`: a pointer within the field."""
    pointer = "/" + field.replace("~", "~0").replace("/", "~1") + below
    return ContractError(Code.APPROVAL_VALIDATION_ERROR, message, pointer=pointer)


def identity(field: str, value: object, chars_max: int) -> str:
    """The trimmed text. The preimage of ids is joined by line feeds, so none may be inside."""
    if type(value) is not str:
        raise refusal(field, f"{field} is not text")
    fault = fault_of_name(value.strip(), chars_max)
    if fault is not None:
        raise refusal(field, f"{field} {fault}")
    return value.strip()


def check_texts(**fields: object) -> None:
    """Texts that every store can keep; only `reason` may be None."""
    for field, value in fields.items():
        if field == "reason" and value is None:
            continue
        if type(value) is not str:
            raise refusal(field, f"{field} is not text")
        if len(value) > limits.TEXT_CHARS_MAX:
            raise refusal(field, f"{field} has {len(value)} characters, at most {limits.TEXT_CHARS_MAX} are allowed")
        if _NOT_IN_TEXT.search(value):
            raise refusal(field, f"{field} holds U+0000 or half of a surrogate pair, which no store can keep")


def check_instants(*, requested_at_ms: object, **later: object) -> None:
    """Milliseconds since 1970; whatever is later than the asking, is later."""
    if type(requested_at_ms) is not int or not 0 <= requested_at_ms <= _INSTANT_MS_MAX:
        raise refusal("requested_at_ms", "requested_at_ms is not a number of milliseconds since 1970")
    for field, value in later.items():
        if value is not None and (type(value) is not int or not requested_at_ms < value <= _INSTANT_MS_MAX):
            raise refusal(field, f"{field} is not a number of milliseconds after requested_at_ms")


def check_generation(generation: object, supersedes: str) -> None:
    """The first question about something takes nobody's place; every later one says whose."""
    if type(generation) is not int or not 1 <= generation <= limits.GENERATIONS_MAX:
        raise refusal("generation", f"generation is not an integer from 1 to {limits.GENERATIONS_MAX}")
    if (generation == 1) != (supersedes == ""):
        raise refusal("supersedes", "a request of a later generation names the one whose place it takes")


def agreed(field: str, given: str, reviewed: str) -> str:
    """One value for a field that the content may name as well."""
    if given and reviewed and given != reviewed:
        raise refusal(field, f"{field} {given!r} differs from the {reviewed!r} of the content")
    return given or reviewed
