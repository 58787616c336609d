"""Decides which stored states this program reads: its own, older ones that it can upgrade, none of a newer program.

A state that says it is of a newer program is refused as a whole, whatever of it could be read; so is one that cannot be
read at all. Neither is ever taken for none, or a fresh one would be written over it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from placet.errors import Code, ContractError, PlacetError, TerminalError
from placet.machine import State

S = TypeVar("S", bound=State)


class ReadState(NamedTuple):
    """A stored state as this program knows it."""

    state: State
    upgraded: bool
    """Whether it was stored by an older program: the bytes that are kept are not what it is now."""


def schema_version_of(kind: type[State]) -> int:
    """The schema version of the states that this program writes."""
    version: int = kind.model_fields["schema_version"].default
    return version


def read_state(kind: type[State], body: bytes) -> ReadState:
    """The state that `body` is.

    Raises ContractError(CHECKPOINT_VERSION_UNSUPPORTED) for one of a newer program, or of one so old that nothing
    upgrades it; TerminalError(CHECKPOINT_CORRUPT) for what is no state.
    """
    current = schema_version_of(kind)
    try:
        state = kind.model_validate_json(body)
    except ValidationError as error:
        return _other(kind, current, body, error)
    # A state without the field was written before there was one.
    if state.schema_version == current and (current == 1 or "schema_version" in state.model_fields_set):
        return ReadState(state, upgraded=False)
    return _other(kind, current, body, None)


def _other(kind: type[State], current: int, body: bytes, error: ValidationError | None) -> ReadState:
    try:
        value = json.loads(body)
    except ValueError as fault:
        raise _corrupt(f"it is no JSON: {fault}") from fault
    version = value.get("schema_version", 1) if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise _corrupt(_first(error) if error is not None else f"{version!r} is no schema version")
    if version > current:
        raise _unsupported(f"it is of schema version {version}, and this program knows up to {current}")
    if version < current:
        return ReadState(_upgraded(kind, value, version, current), upgraded=True)
    if error is not None and all(fault["type"] == "extra_forbidden" for fault in error.errors()):
        names = sorted({".".join(map(str, fault["loc"])) for fault in error.errors()})
        raise _unsupported(f"it has what only another program knows: {', '.join(names[:5])}") from error
    raise _corrupt(_first(error) if error is not None else "it cannot be read") from error


def _upgraded(kind: type[State], value: dict[str, Any], version: int, current: int) -> State:
    for step in range(version, current):
        upgrade = kind.upgraders.get(step)
        if upgrade is None:
            raise _unsupported(f"it is of schema version {version}, and nothing upgrades version {step}")
        try:
            value = {**upgrade(value), "schema_version": step + 1}
        except PlacetError:
            raise
        except Exception as error:
            raise _corrupt(f"the upgrade from schema version {step}: {type(error).__name__}: {error}") from error
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise _corrupt(f"upgraded from schema version {version}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else str(fault["msg"])


def _corrupt(what: str) -> TerminalError:
    return TerminalError(Code.CHECKPOINT_CORRUPT, what)


def _unsupported(what: str) -> ContractError:
    return ContractError(Code.CHECKPOINT_VERSION_UNSUPPORTED, what)
