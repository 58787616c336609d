"""Decides which part of a tool's input an approval is for: what is load-bearing, and what may differ without a new one.

The hash covers the whole input, and what is executed is the stored input, byte for byte: nothing of it can change after
the review. A tool declares for some of its fields that they do not steer the effect:

- *load-bearing* (every field that is not declared otherwise): any difference is another call;
- *advisory*: words for people, such as a note. They are shown, and a call with other words is the same call: whoever
  refused it has refused it however it is worded;
- *volatile*: noise, such as the time of asking. It may also read differently today than when it was reviewed.

Where an input is read anew, or two calls are compared, only the load-bearing part counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placet.calls import ToolSpec
from placet.canonical import canonical_text, parse_canonical


def is_declared(spec: ToolSpec) -> bool:
    """Whether there is anything in its input that may differ."""
    return bool(spec.advisory or spec.volatile)


def load_bearing(spec: ToolSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an input that any difference of which makes another call."""
    loose = {*spec.advisory, *spec.volatile}
    return {name: value for name, value in given.items() if name not in loose}


def load_bearing_text(spec: ToolSpec, given: Mapping[str, Any]) -> str:
    """That part as canonical JSON. Raises ContractError as `canonical_text` does."""
    return canonical_text(load_bearing(spec, given))


def reads_as_reviewed(spec: ToolSpec, read: Mapping[str, Any], reviewed_text: str) -> bool:
    """Whether an input that was read anew is the reviewed one, as far as an approval rests on it.

    Raises ContractError where it is not JSON. What runs is the reviewed text all the same.
    """
    if not is_declared(spec):
        return canonical_text(dict(read)) == reviewed_text
    reviewed = parse_canonical(reviewed_text)
    return isinstance(reviewed, dict) and load_bearing_text(spec, read) == load_bearing_text(spec, reviewed)


def bound_schema(schema: Mapping[str, Any], advisory: tuple[str, ...], volatile: tuple[str, ...]) -> dict[str, Any]:
    """Of a tool's schema, what an approval is bound to: what says nothing of its loose fields but that they are there.

    The schema itself where there are none, so that its digest is what it always was.
    """
    if not (advisory or volatile):
        return dict(schema)
    loose = {*advisory, *volatile}
    properties = {name: {} if name in loose else part for name, part in schema.get("properties", {}).items()}
    required = [name for name in schema.get("required", ()) if name not in loose]
    bound = {**schema, "properties": properties, "required": required}
    return {"schema": bound, "advisory": sorted(advisory), "volatile": sorted(volatile)}
