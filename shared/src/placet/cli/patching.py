"""Decides how a change of a plan under way is proposed by command."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated, Any

import typer

from placet.cli import exits, output, session
from placet.cli.runs import RunId
from placet.cli.session import Json, Person

_KEYS = ("add", "change", "remove", "base", "reason")


def patch(
    ctx: typer.Context,
    run: RunId,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="JSON with add, change (tasks in whole) and remove (ids); - is input."),
    ],
    reason: Annotated[str | None, typer.Option(help="Why; whoever decides reads it.")] = None,
    patch_id: Annotated[
        str | None, typer.Option("--id", help="The patch's id; the same again is the same patch.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Only if the plan is still this one; see placet run show.")
    ] = None,
    var: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What stands for {{ NAME }} in the file.")
    ] = None,
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Propose a change of a plan under way: add tasks, and change or remove such as have not begun.

    The gates judge it first; where they ask a person, nothing more begins until it is decided (exit code 3).
    """
    from placet.cli import files
    from placet.errors import Code, PlacetError

    given = _patch_of(files.filled(files.read_json(file), files.variables(var or [])), file)
    given |= {name: value for name, value in (("reason", reason), ("base", base)) if value is not None}
    here = session.of(ctx)
    name = patch_id or f"patch-{uuid.uuid4().hex[:20]}"
    try:
        receipt = here.client(person).patch_plan(here.run_id(run), patch_id=name, **given)
    except PlacetError as error:
        if error.code is Code.OUTCOME_UNKNOWN and patch_id is None:
            output.note(f"To ask again for the same patch, add --id {name}")
        raise
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    elif receipt.outcome is not None:
        output.line(f"{receipt.answer}: the change of the plan is {output.safe(receipt.outcome)}")
    else:
        output.line(f"{receipt.answer}: a person is asked about the change of the plan")
        output.note(f"Look at it: placet show {output.safe(receipt.request_id or '')}")
    return exits.OK if receipt.outcome is not None else exits.WAITING


def _patch_of(document: Any, file: str) -> dict[str, Any]:
    """Raises ContractError(PARAMETER_INVALID): no object, or a key that a patch does not have."""
    from placet.errors import Code, ContractError

    if not isinstance(document, dict):
        raise ContractError(Code.PARAMETER_INVALID, f"{file}: a patch is an object with {', '.join(_KEYS)}")
    for key in document:
        if key not in _KEYS:
            raise ContractError(Code.PARAMETER_INVALID, f"{file}: there is no {key!r}, only {', '.join(_KEYS)}")
    return dict(document)


COMMANDS: dict[str, Callable[..., int]] = {"patch": patch}
