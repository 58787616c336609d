"""Decides how a JSON schema becomes a form, and how what a person puts in becomes a JSON value again.

Simple fields (text, numbers, choices, yes or no) have a control of their own, and objects of simple fields are groups.
Everything else is a field of JSON, so that there is nothing that cannot be edited. Whether the whole fits is for the
schema's own check to say; here is only told what cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placet.characters import findings
from placet.errors import ContractError
from placet.sentences import literal, pretty
from placet.strict_json import JsonValue, parse
from placet_gateway.inbox.bodies import Form

DEPTH_MAX = 3
"""Of groups within groups; what lies deeper is JSON."""
FIELDS_MAX = 60
"""Of one form; a larger object is one field of JSON."""
CHOICES_MAX = 64
LONG_CHARS = 60
"""A text that is longer gets several lines."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form. `kind`: text, number, choice, boolean, json or group."""

    name: str
    label: str
    kind: str
    is_required: bool
    hint: str
    value: str
    """What stands in it at first; a choice by its number."""
    is_there: bool
    """Whether there is a value at first."""
    choices: tuple[tuple[str, str], ...] = ()
    choice_values: tuple[JsonValue, ...] = ()
    fields: tuple[Field, ...] = ()
    is_long: bool = False
    pointer: str = ""
    key: str = ""


def field_of(
    schema: Mapping[str, Any],
    name: str,
    value: JsonValue = None,
    *,
    is_there: bool = False,
    label: str = "",
    is_required: bool = True,
    pointer: str = "",
    key: str = "",
    root: Mapping[str, Any] | None = None,
    depth: int = 0,
) -> Field:
    """The field for a value of that schema. `root`: where its references point into."""
    root = schema if root is None else root
    schema = _followed(schema, root)
    kind = _kind(schema, value, is_there, depth)
    about: dict[str, Any] = {
        "name": name,
        "label": label or str(schema.get("title") or name),
        "is_required": is_required,
        "hint": _hint(schema),
        "is_there": is_there,
        "pointer": pointer,
        "key": key,
    }
    if kind == "group":
        return Field(kind=kind, value="", fields=_members(schema, name, value, pointer, root, depth), **about)
    if kind == "choice":
        values = tuple(_choices(schema))
        at = next((n for n, one in enumerate(values) if is_there and literal(one) == literal(value)), None)
        shown = tuple((str(n), one if isinstance(one, str) else literal(one)) for n, one in enumerate(values))
        return Field(kind=kind, value="" if at is None else str(at), choices=shown, choice_values=values, **about)
    if kind == "boolean":
        return Field(kind=kind, value="" if not is_there else literal(value), **about)
    if kind in ("text", "number"):
        text = "" if not is_there else str(value) if kind == "text" else literal(value)
        is_long = len(text) > LONG_CHARS or "\n" in text or (not is_there and depth == 0)
        return Field(kind=kind, value=text, is_long=kind == "text" and is_long, **about)
    return Field(kind="json", value=pretty(value) if is_there else "", is_long=True, **about)


def _kind(schema: Mapping[str, Any], value: JsonValue, is_there: bool, depth: int) -> str:
    if _choices(schema):
        return "choice"
    types = _types(schema)
    if types == ["object"] and depth < DEPTH_MAX and isinstance(schema.get("properties"), Mapping):
        known = set(schema["properties"])
        fits = not is_there or (isinstance(value, Mapping) and set(value) <= known)
        return "group" if fits and len(known) <= FIELDS_MAX else "json"
    if types == ["string"] and (not is_there or (isinstance(value, str) and _is_typable(value))):
        return "text"
    if types in (["integer"], ["number"]) and (not is_there or _is_number(value)):
        return "number"
    if types == ["boolean"] and (not is_there or isinstance(value, bool)):
        return "boolean"
    return "json"


def _is_typable(text: str) -> bool:
    """Whether a browser gives a text back as it was, and a person sees all of it. Else it is edited as JSON."""
    return not findings(text.replace("\n", "").replace("\t", ""))


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _types(schema: Mapping[str, Any]) -> list[str]:
    named = schema.get("type")
    return [named] if isinstance(named, str) else [str(one) for one in named] if isinstance(named, list) else []


def _choices(schema: Mapping[str, Any]) -> list[JsonValue]:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) and 0 < len(values) <= CHOICES_MAX else []


def _followed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference within the same document means; one that cannot be followed means anything."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target: Any = root
        for step in reference.removeprefix("#/").split("/"):
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = {**target, **{word: value for word, value in schema.items() if word != "$ref"}}
    return {}


def _hint(schema: Mapping[str, Any]) -> str:
    told = [str(schema.get("description") or "")]
    bounds = {
        "minimum": "at least {}", "maximum": "at most {}", "exclusiveMinimum": "more than {}",
        "exclusiveMaximum": "less than {}", "minLength": "at least {} characters", "maxLength": "at most {} characters",
        "pattern": "of the form {}", "format": "a {}",
    }  # fmt: skip
    told += [text.format(schema[word]) for word, text in bounds.items() if word in schema]
    if "default" in schema and schema["default"] is not None:
        told.append(f"left out, it is {literal(schema['default'])}")
    return "; ".join(part for part in told if part)


def _members(
    schema: Mapping[str, Any], name: str, value: JsonValue, pointer: str, root: Mapping[str, Any], depth: int
) -> tuple[Field, ...]:
    required = set(schema.get("required") or ())
    given: Mapping[str, JsonValue] = value if isinstance(value, Mapping) else {}
    return tuple(
        field_of(
            part if isinstance(part, Mapping) else {},
            f"{name}.{n}",
            given.get(key),
            is_there=key in given,
            label=key,
            is_required=key in required,
            pointer=f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}",
            key=key,
            root=root,
            depth=depth + 1,
        )
        for n, (key, part) in enumerate(schema["properties"].items())
    )


# ── reading it back ────────────────────────────────────────────────────────────────────


def read_field(field: Field, form: Form) -> tuple[JsonValue, dict[str, str]]:
    """The value in a form, and what is wrong by the name of the field; the value counts only where nothing is."""
    faults: dict[str, str] = {}
    value = _read(field, form, faults)
    if value is _ABSENT:
        return None, {field.name: "This is needed."}
    return value, faults


def _read(field: Field, form: Form, faults: dict[str, str]) -> Any:
    if field.kind == "group":
        found = {member.key: _read(member, form, faults) for member in field.fields}
        return {key: value for key, value in found.items() if value is not _ABSENT}
    text = form.one(field.name)
    if text == "":
        # Emptied is an empty text where there has to be one, or was one; else it is left out.
        if field.kind == "text" and field.is_there and (field.is_required or field.value == ""):
            return ""
        if field.is_required:
            faults[field.name] = "This is needed."
        return _ABSENT
    try:
        return _value(field, text)
    except (ContractError, ValueError, IndexError) as error:
        told = error.message if isinstance(error, ContractError) else "This cannot be read."
        faults[field.name] = told[:1].upper() + told[1:]
        return _ABSENT


def _value(field: Field, text: str) -> JsonValue:
    match field.kind:
        case "text":
            return text
        case "choice":
            return field.choice_values[int(text)]
        case "boolean":
            return {"true": True, "false": False}[text] if text in {"true", "false"} else _raise(text)
        case "number":
            value = parse(text.strip().encode())
            return value if _is_number(value) else _raise(text)
        case _:
            return parse(text.encode())


def _raise(text: str) -> JsonValue:
    raise ValueError(text)


def kept(field: Field, given: Mapping[str, str]) -> str:
    """What stands in a field that was sent before; else what stands in it at first."""
    return given.get(field.name, field.value)


def faults_at(field: Field, pointer: str, message: str) -> dict[str, str]:
    """A finding of a schema's check, at the field that it is about: the deepest whose pointer leads to it."""
    best = field
    at: Field | None = field
    while at is not None:
        best = at
        at = next((one for one in at.fields if pointer == one.pointer or pointer.startswith(f"{one.pointer}/")), None)
    return {best.name: message}
