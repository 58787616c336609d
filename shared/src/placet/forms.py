"""Decides what form an answer may be asked in: JSON Schema (2020-12) of a closed list of words; and whether one fits.

An agent's model writes the form, a person fills it in, and the approval service checks it. So the words are few: none
that refers elsewhere or counts backwards (`$ref`, `unevaluated…`), and none whose check a clever text can make endless
(`pattern`). `format` is an annotation, as the standard has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match

from placet import limits
from placet.canonical import canonical_text
from placet.characters import visible
from placet.contents import QuestionContent
from placet.errors import Code, ContractError
from placet.strict_json import JsonValue, Path, pointer_of

FORM_BYTES_MAX = 16 * limits.KIB
FORM_NODES_MAX = 256
"""Schemas within a schema."""
ANSWER_PARTS_MAX = 512
"""Values within an answer. Some checks compare each with each other."""
CHECKS_MAX = 20_000
"""Schemas times values, since each may be held against each: less than a second."""
_SHOWN_CHARS_MAX = 300

_ONE = frozenset({"items", "additionalProperties"})
_SEVERAL = frozenset({"prefixItems", "anyOf", "oneOf", "allOf"})
_NAMED = frozenset({"properties"})
_PLAIN = (
    frozenset(("$schema", "title", "description", "default", "examples", "format", "type", "enum", "const", "required"))
    | frozenset(("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
    | frozenset(("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"))
)
WORDS = _ONE | _SEVERAL | _NAMED | _PLAIN
"""What a form may say."""


def check_form(schema: Mapping[str, Any]) -> None:
    """Raises ContractError(APPROVAL_VALIDATION_ERROR) with a pointer into the schema for one that is no form."""
    if len(canonical_text(dict(schema)).encode()) > FORM_BYTES_MAX:
        raise _refusal((), f"the form has more than {FORM_BYTES_MAX} bytes")
    for count, (path, node) in enumerate(_nodes(schema, ()), start=1):
        if count > FORM_NODES_MAX:
            raise _refusal(path, f"the form has more than {FORM_NODES_MAX} parts")
        unknown = next((word for word in node if word not in WORDS), None) if isinstance(node, Mapping) else None
        if unknown is not None:
            raise _refusal((*path, unknown), f"{visible(unknown)!r} is no word of a form")
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        raise _refusal(tuple(error.absolute_path), _shown(error.message)) from None


def _nodes(node: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every schema within a schema, itself first. What is of the wrong type is for the meta-schema to say."""
    yield path, node
    if not isinstance(node, Mapping):
        return
    for word, value in node.items():
        if word in _ONE:
            yield from _nodes(value, (*path, word))
        elif word in _SEVERAL and isinstance(value, list):
            for at, item in enumerate(value):
                yield from _nodes(item, (*path, word, at))
        elif word in _NAMED and isinstance(value, Mapping):
            for name, item in value.items():
                yield from _nodes(item, (*path, word, name))


def form_of(content: QuestionContent) -> dict[str, Any]:
    """The form of a question's answer: its own; else one of its options; else any text that is not blank."""
    if content.answer_schema is not None:
        return dict(content.answer_schema)
    if content.options is not None:
        return {"enum": list(content.options)}
    return {"type": "string", "minLength": 1}


def check_answer(schema: Mapping[str, Any], value: JsonValue) -> None:
    """Raises ContractError(APPROVAL_VALIDATION_ERROR) where an answer does not fit; `pointer` is into the answer."""
    check_form(schema)
    parts, nodes = _count(value), sum(1 for _ in _nodes(schema, ()))
    if parts > ANSWER_PARTS_MAX or parts * nodes > CHECKS_MAX:
        raise _refusal((), f"the answer has {parts} parts, too many for its form")
    try:
        error = best_match(Draft202012Validator(dict(schema)).iter_errors(value))  # type: ignore[no-untyped-call]
    except (ArithmeticError, RecursionError, ValueError) as defect:
        raise _refusal((), f"the answer cannot be held against the form: {type(defect).__name__}") from defect
    if error is not None:
        raise _refusal(tuple(error.absolute_path), _shown(error.message))


def _count(value: JsonValue) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(_count(item) for item in value.values())
    if isinstance(value, list):
        return 1 + sum(_count(item) for item in value)
    return 1


def _refusal(path: Path, reason: str) -> ContractError:
    pointer = pointer_of(path)
    where = f"{visible(pointer)}: " if pointer else ""
    return ContractError(Code.APPROVAL_VALIDATION_ERROR, f"{where}{reason}", pointer=pointer)


def _shown(text: str) -> str:
    told = visible(text)
    return told if len(told) <= _SHOWN_CHARS_MAX else f"{told[:_SHOWN_CHARS_MAX]}…"
