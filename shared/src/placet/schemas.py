"""Decides what input a tool takes: a signature as JSON schema, and raw input as the one input that is shown and run.

The one order (public_failures 2): raw input → canonical JSON → validate → fill in defaults → canonical JSON. That form
is shown, hashed, stored and run. Rules that follow from it:

- *Strict.* Nothing is cast: `"7"` is no integer, `1` no boolean. What JSON has no type for is read from its one text
  form (dates, UUIDs, enumerations by value, decimals). `7.0` is the integer 7, as in RFC 8785 and JSON Schema.
- *Closed.* An unknown field is refused at every depth, also where a nested model would drop it in silence.
- *Stable.* Validating the output gives the output again, in every process; types that cannot promise it are refused
  when the tool is registered (sets, secrets) or when it shows (a validator that changes its own result).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from placet import limits
from placet.canonical import canonical_text, digest
from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.strict_json import parse, pointer_of
from placet.tooling import ToolContext

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FINDINGS_MAX = 10
_CLOSED = ConfigDict(
    extra="forbid",
    strict=True,
    validate_default=True,
    protected_namespaces=(),
    hide_input_in_errors=True,
)


class _Schema(GenerateJsonSchema):
    """Without a title for each field: it repeats the name and costs the model tokens."""

    schema_dialect = DIALECT

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class ToolInput:
    """The parameters of one tool after its `ctx`. Raises ContractError(APP_INVALID) for one that has no schema."""

    def __init__(self, tool: str, function: Callable[..., Any]) -> None:
        self.tool = tool
        self.names, self._model = _model_of(tool, function)
        self.schema = _schema_of(tool, self._model)
        """JSON Schema 2020-12."""
        self.schema_digest = digest(self.schema)

    def check(self, raw: dict[str, Any]) -> dict[str, Any] | Failure:
        """The validated input with its defaults, as JSON values, or TOOL_INPUT_INVALID with a pointer."""
        try:
            text = canonical_text(raw)
            if len(text.encode()) > limits.CONTENT_BYTES_MAX:
                return self._refused(f"larger than {limits.CONTENT_BYTES_MAX} bytes", "")
            value = self._read(text)
            if value != text and self._read(value) != value:  # what reads as itself has just been read back
                return self._refused(
                    "its types do not read their own output back: a validator changes what it has validated", ""
                )
        except ValidationError as error:
            return self._findings(error, raw)
        except ContractError as error:
            return self._refused(error.message, error.pointer)
        except Exception as error:  # noqa: BLE001 — a validator is the application's code; a check that fails refuses
            return self._refused(f"a validator raised {type(error).__name__}: {error}", "")
        checked: dict[str, Any] = parse(value, long_integers_are_doubles=True)  # type: ignore[assignment]  # an object
        return checked

    def arguments(self, text: str) -> dict[str, Any]:
        """Validated input as the typed arguments of a call. Raises ValidationError if it no longer fits."""
        model = self._parse(text)
        return {name: getattr(model, field) for name, field in self.names.items()}

    def _parse(self, text: str) -> BaseModel:
        return self._model.model_validate_json(text, strict=True, extra="forbid", by_alias=True)

    def _read(self, text: str) -> str:
        return canonical_text(self._parse(text).model_dump(mode="json", by_alias=True))

    def _refused(self, what: str, pointer: str | None, **details: Any) -> Failure:
        return Failure(
            code=Code.TOOL_INPUT_INVALID,
            message=f"the input of {self.tool} is refused: {what}",
            error_class=ErrorClass.INVALID,
            pointer=pointer,
            details=details,
        )

    def _findings(self, error: ValidationError, raw: dict[str, Any]) -> Failure:
        found = [
            {"pointer": _pointer(raw, item["loc"], item["type"]), "message": item["msg"]}
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        first = found[0]
        rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return self._refused(
            f"{first['pointer'] or 'the whole'}: {first['message']}{rest}",
            first["pointer"],
            findings=found[:FINDINGS_MAX],
        )


def _pointer(raw: object, loc: tuple[int | str, ...], kind: str) -> str:
    """The place in the input. pydantic also names union members on the way; those are no place."""
    path: list[int | str] = []
    at: Any = raw
    for part in loc:
        inside = part in at if isinstance(at, dict) else isinstance(at, list) and part in range(len(at))
        if inside:
            at = at[part]
        elif not (kind == "missing" and part is loc[-1]):
            continue
        path.append(part)
    return pointer_of(path)


# ── the signature ──────────────────────────────────────────────────────────────────────


def _refuse(tool: str, what: str) -> ContractError:
    return ContractError(Code.APP_INVALID, f"tool {tool!r}: {what}")


def _model_of(tool: str, function: Callable[..., Any]) -> tuple[dict[str, str], type[BaseModel]]:
    """A closed model of the parameters, and its field for each parameter.

    The fields have neutral names and the parameters are aliases: a parameter may be called `schema`, `copy` or `_x`.
    """
    hints = _hints(tool, function)
    context, *parameters = _parameters(tool, function, hints)
    names: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for at, parameter in enumerate(parameters):
        if parameter.name not in hints:
            raise _refuse(tool, f"parameter {parameter.name!r} has no type: the schema is made from the types")
        if parameter.kind is parameter.POSITIONAL_ONLY or context.name == parameter.name:
            raise _refuse(tool, f"parameter {parameter.name!r} is positional-only: a call names its arguments")
        if isinstance(parameter.default, FieldInfo):
            raise _refuse(tool, f"parameter {parameter.name!r}: write `Annotated[type, Field(…)] = default`")
        more: dict[str, Any] = {} if parameter.default is parameter.empty else {"default": parameter.default}
        names[parameter.name] = f"p{at}"
        fields[f"p{at}"] = (Annotated[hints[parameter.name], Field(alias=parameter.name)], Field(**more))
    try:
        return names, create_model(tool, __config__=_CLOSED, **fields)
    except (PydanticUserError, NameError, TypeError) as error:
        raise _refuse(tool, f"its parameters have no JSON schema: {_first_line(error)}") from error


def _hints(tool: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise _refuse(
            tool, f"a type cannot be read when the program runs ({error}): import it outside `if TYPE_CHECKING`"
        ) from error
    except TypeError as error:
        raise _refuse(tool, f"its types cannot be read: {_first_line(error)}") from error


def _parameters(tool: str, function: Callable[..., Any], hints: dict[str, Any]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or hints.get(parameters[0].name) is not ToolContext:
        raise _refuse(tool, "its first parameter must be `ctx: ToolContext`")
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _refuse(tool, f"parameter {parameter} stands for any number: name each one")
    return parameters


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# ── the schema ─────────────────────────────────────────────────────────────────────────


def _schema_of(tool: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_Schema)
    except PydanticUserError as error:
        raise _refuse(tool, f"its parameters have no JSON schema: {_first_line(error)}") from error
    schema.pop("title", None)
    for part in _parts(schema):
        if part.get("writeOnly") is True:
            raise _refuse(
                tool, "a secret is no input, since what is approved is shown: take it from the tool's settings"
            )
        if part.get("uniqueItems") is True:
            raise _refuse(tool, "a set has no order, so its text differs between processes: use a list")
        if "properties" in part and part.setdefault("additionalProperties", False) is not False:
            raise _refuse(tool, "a model with extra fields cannot be closed: use dict[str, …] for the free part")
    _check_defaults(tool, model)
    return {"$schema": DIALECT, **schema}


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """Every schema within a schema. A property's name is no keyword, even if it is called `properties`."""
    if isinstance(schema, list):
        for item in schema:
            yield from _parts(item)
    elif isinstance(schema, dict):
        yield schema
        for key, item in schema.items():
            if key in ("properties", "$defs", "patternProperties") and isinstance(item, dict):
                for inner in item.values():
                    yield from _parts(inner)
            elif key not in ("default", "examples", "enum", "const"):
                yield from _parts(item)


def _check_defaults(tool: str, model: type[BaseModel]) -> None:
    """A default must itself be valid input, or a call that leaves it out could never be made."""
    for field in model.model_fields.values():
        if field.is_required():
            continue
        try:
            default = field.get_default(call_default_factory=True)
            one = create_model(tool, __config__=_CLOSED, value=(field.rebuild_annotation(), default))
            canonical_text(one().model_dump(mode="json"))
        except (ValidationError, ContractError) as error:
            what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.message
            raise _refuse(tool, f"the default of {field.alias!r} does not fit its type: {what}") from error
