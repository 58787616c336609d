"""Decides how a file that a person names is read: bounded, strict JSON, one line of error for everything else."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from placet import limits, strict_json
from placet.canonical import parse_canonical
from placet.errors import Code, ContractError

_PLACE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def read_bytes(name: str, bytes_max: int = limits.JSON_BYTES_MAX) -> bytes:
    """The bytes of a file, or of standard input for `-`. Raises ContractError: PARAMETER_INVALID, TOO_LARGE."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(bytes_max + 1)
    except OSError as error:
        raise ContractError(Code.PARAMETER_INVALID, f"{name}: {error.strerror or error}") from error
    if len(data) > bytes_max:
        raise ContractError(Code.TOO_LARGE, f"{name}: more than {bytes_max} bytes", bytes_max=bytes_max)
    return data


def read_json(name: str) -> strict_json.JsonValue:
    """The JSON document in a file. Raises ContractError with the file's name before the reason."""
    data = read_bytes(name)
    try:
        return _parsed(data)
    except ContractError as error:
        raise ContractError(
            error.code, f"{'standard input' if name == '-' else name}: {error.message}", pointer=error.pointer
        ) from error


def _parsed(data: bytes) -> strict_json.JsonValue:
    """Strictly read; canonical text may hold what only canonical text can mean, such as 1e20 written out."""
    try:
        return strict_json.parse(data)
    except ContractError as error:
        if error.code is not Code.JSON_NUMBER:
            raise
        try:
            return parse_canonical(data.decode().strip())
        except ContractError:
            raise error from None


def read_tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a plan file: an array of tasks, or an object with `tasks` and perhaps `version`."""
    value = read_json(name)
    if isinstance(value, dict):
        unknown = sorted(set(value) - {"tasks", "version"})
        if unknown:
            raise _no_plan(name, f"unknown field {unknown[0]!r}: a plan has `tasks` and perhaps `version`")
        if value.get("version", 1) != 1:
            raise _no_plan(name, f"version {value['version']!r} of plans is not known, only 1")
        value = value.get("tasks")
    if not isinstance(value, list) or not all(isinstance(task, dict) for task in value):
        raise _no_plan(name, "no array of tasks")
    return [task for task in value if isinstance(task, dict)]


def _no_plan(name: str, reason: str) -> ContractError:
    return ContractError(Code.PLAN_INVALID, f"{name}: {reason}")


def variables(given: list[str]) -> dict[str, str]:
    """`NAME=VALUE` each. Raises ContractError(PARAMETER_INVALID)."""
    found: dict[str, str] = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ContractError(Code.PARAMETER_INVALID, f"--var {item!r}: write NAME=VALUE")
        if name in found:
            raise ContractError(Code.PARAMETER_INVALID, f"--var {name} is given twice")
        found[name] = value
    return found


def filled(value: Any, values: dict[str, str]) -> Any:
    """Texts with `{{NAME}}` replaced, before anything is sent, so that what is shown and hashed has the values.

    Without any variable texts are left alone. With one, every place must have its value and every value its place:
    raises ContractError(PARAMETER_INVALID) otherwise. A value put in is not looked through again.
    """
    if not values:
        return value
    used: set[str] = set()
    made = _filled(value, values, used)
    unused = sorted(set(values) - used)
    if unused:
        raise ContractError(Code.PARAMETER_INVALID, f"--var {unused[0]}: there is no {{{{{unused[0]}}}}} to replace")
    return made


def _filled(value: Any, values: dict[str, str], used: set[str]) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(lambda match: _value_of(match.group(1), values, used), value)
    if isinstance(value, list):
        return [_filled(item, values, used) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, values, used) for key, item in value.items()}
    return value


def _value_of(name: str, values: dict[str, str], used: set[str]) -> str:
    if name not in values:
        raise ContractError(Code.PARAMETER_INVALID, f"{{{{{name}}}}} has no value: add --var {name}=VALUE")
    used.add(name)
    return values[name]
