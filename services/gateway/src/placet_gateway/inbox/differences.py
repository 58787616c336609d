"""Decides how two JSON values are compared for a person: place by place, byte for byte, the changed stretch of a text.

Two texts that look alike and are not are told apart, since what is compared is what is hashed, and each side is shown
with its hidden and look-alike characters marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from placet.canonical import canonical_text
from placet.sentences import pretty
from placet.strict_json import JsonValue, pointer_of

CHANGES_MAX = 200
"""Written out; past it the two are simply different."""
AROUND_CHARS = 60
"""What is shown of a long text before and after the stretch that differs."""


class Change(NamedTuple):
    """One place that differs. The old or the new side is None where there was or is nothing."""

    pointer: str
    before: str | None
    after: str | None
    same_before: str = ""
    """What the changed stretch of two texts begins with, on both sides."""
    same_after: str = ""


def changes(before: JsonValue, after: JsonValue) -> list[Change]:
    """Every place that differs, in the order of the new value; what is gone comes last within its object."""
    found: list[Change] = []
    for change in _changes(before, after, []):
        if len(found) >= CHANGES_MAX:
            return [Change("", pretty(before), pretty(after))]
        found.append(change)
    return found


def _changes(before: JsonValue, after: JsonValue, path: list[str | int]) -> Iterator[Change]:
    if canonical_text(before) == canonical_text(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name, value in after.items():
            if name in before:
                yield from _changes(before[name], value, [*path, name])
            else:
                yield Change(pointer_of([*path, name]), None, _text(value))
        for name, value in before.items():
            if name not in after:
                yield Change(pointer_of([*path, name]), _text(value), None)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changes(old, new, [*path, at])
    elif isinstance(before, str) and isinstance(after, str):
        yield _texts(pointer_of(path), before, after)
    else:
        yield Change(pointer_of(path), _text(before), _text(after))


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else pretty(value)


def _texts(pointer: str, before: str, after: str) -> Change:
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    same = before[:start]
    rest = before[len(before) - end :]
    return Change(
        pointer,
        before[start : len(before) - end],
        after[start : len(after) - end],
        same if len(same) <= AROUND_CHARS else f"… {same[-AROUND_CHARS:]}",
        rest if len(rest) <= AROUND_CHARS else f"{rest[:AROUND_CHARS]} …",
    )
