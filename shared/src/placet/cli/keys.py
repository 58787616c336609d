"""Decides how a key comes to be: the private half into a file of its owner, the public half as an entry to register."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placet.cli import exits, output

if TYPE_CHECKING:
    from placet.keys import RegisteredKey
    from placet.signatures import SigningKey

File = Annotated[str, typer.Argument(metavar="FILE", help="The file of the private key.")]
Tenants = Annotated[
    list[str] | None, typer.Option("--tenant", help="Whose requests it may decide; may be given several times.")
]


def new(
    file: File,
    person: Annotated[
        str | None, typer.Option(help="Whose key it is, as the person is named elsewhere; without: a gateway's.")
    ] = None,
    tenant: Tenants = None,
    label: Annotated[str | None, typer.Option(help="For whoever looks after the registry.")] = None,
) -> int:
    """Make a key. Prints the entry for the registry (`keys` of the file that PLACET_DECISION_KEYS_FILE names)."""
    from placet.signatures import SigningKey

    _require_a_person(person)
    key = SigningKey.generate(person)
    entry = _entry(key, tenant, label)
    _keep(Path(file), key.file().model_dump_json(exclude_none=True))
    output.document(entry.model_dump(mode="json", exclude_none=True, exclude_defaults=True))
    output.note(f"Keep {file} to yourself. What was printed goes into the registry of the approval service.")
    return exits.OK


def show(file: File, tenant: Tenants = None) -> int:
    """The entry for the registry that belongs to a private key: its public half."""
    entry = _entry(read_key(file), tenant, None)
    output.document(entry.model_dump(mode="json", exclude_none=True, exclude_defaults=True))
    return exits.OK


def read_key(file: str) -> SigningKey:
    """The private key in a file. Raises ContractError(PARAMETER_INVALID, JSON_*) for what holds none."""
    from placet.cli.files import read_bytes
    from placet.errors import Code, ContractError
    from placet.keys import parse_private_key
    from placet.signatures import SigningKey

    try:
        return SigningKey.of(parse_private_key(read_bytes(file)))
    except ContractError as error:
        what = error.message if file in error.message else f"{file} holds no private key: {error.message}"
        raise ContractError(Code.PARAMETER_INVALID, what) from None


def _entry(key: SigningKey, tenants: list[str] | None, label: str | None) -> RegisteredKey:
    from pydantic import ValidationError

    from placet.errors import Code
    from placet.messages import invalid

    try:
        return key.entry(tenants=tuple(tenants or ("default",)), label=label)
    except ValidationError as error:
        raise invalid(error, Code.PARAMETER_INVALID) from error


def _require_a_person(person: str | None) -> None:
    from placet.errors import Code, ContractError

    if person is not None and not person.strip():
        raise ContractError(Code.PARAMETER_INVALID, "--person is empty")


def _keep(path: Path, text: str) -> None:
    """A file that only its owner can read, made anew: a key that is overwritten is lost."""
    from placet.errors import Code, ContractError

    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ContractError(Code.PARAMETER_INVALID, f"{path} is there already: name another file") from None
    except OSError as error:
        raise ContractError(Code.PARAMETER_INVALID, f"{path}: {error.strerror or error}") from error


COMMANDS: dict[str, Callable[..., int]] = {"new": new, "show": show}
