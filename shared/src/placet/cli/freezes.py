"""Decides how a person stops everything at once, or one tool, looks what is stopped, and lets it go on."""

from __future__ import annotations

from typing import Annotated

import typer

from placet.cli import exits, output, session
from placet.cli.session import Json, Person


def stop(
    ctx: typer.Context,
    reason: Annotated[str | None, typer.Option(help="Stop, and why; kept with it.")] = None,
    tool: Annotated[str | None, typer.Option(metavar="TOOL", help="Only this tool; without it, all.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Let it go on.")] = False,
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Start no operation more, of all tools or of one, until `--off`; without an option: what is stopped.

    What has started goes on. What is approved stays approved, is not counted as tried, and runs once it may.
    """
    from placet.errors import Code, ContractError

    if off and reason is not None:
        raise ContractError(Code.PARAMETER_INVALID, "give --reason to stop, or --off to go on, not both")
    if tool is not None and not off and reason is None:
        raise ContractError(Code.PARAMETER_INVALID, "a stop says why: give --reason")
    client = session.of(ctx).client(person)
    if off:
        receipt = client.thaw(tool)
    elif reason is not None:
        receipt = client.freeze(reason, tool)
    else:
        return _show(ctx, as_json=as_json)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        output.line(f"{receipt.answer}: {output.safe(receipt.status or '')}")
    return exits.OK


def _show(ctx: typer.Context, *, as_json: bool) -> int:
    from placet.cli.times import at

    view = session.of(ctx).client().frozen()
    if as_json:
        output.document(view)
    elif not view.items:
        output.line("Nothing is stopped.")
    else:
        rows = [
            [output.safe(item.tool or "every tool"), at(item.since_ms), output.safe(item.by), output.safe(item.reason)]
            for item in view.items
        ]
        output.table(["stopped", "since", "by", "because"], rows)
        output.note("Let it go on: placet stop --off [--tool TOOL]")
    return exits.OK
