"""Decides how a run is told by command what to do next: a further instruction, or a stop of the turn in work."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated

import typer

from placet.cli import exits, output, runs, session
from placet.cli.runs import RunId
from placet.cli.session import Json, Person


def continue_run(
    ctx: typer.Context,
    run: RunId,
    instruction: Annotated[str, typer.Argument(metavar="INSTRUCTION", help="What to do next, in words.")],
    task: Annotated[
        str | None, typer.Option(help="In the conversation of this task; else where the answer came from.")
    ] = None,
    instruction_id: Annotated[
        str | None, typer.Option("--id", help="The instruction's id; the same again is the same instruction.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="TURN", help="Only if this is the last turn there, such as task:a/3.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="End the run after this long: 90s, 10m, 2h.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it ends, or waits for a person (exit code 3).")
    ] = False,
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Give a run that has ended, or was interrupted, a further instruction: one more turn in the same conversation.

    Only who started the run may. Nothing that is finished is done again.
    """
    from placet.cli.times import length_ms
    from placet.errors import Code, PlacetError

    here = session.of(ctx)
    client = here.client(person)
    run_id = here.run_id(run)
    name = instruction_id or f"ins-{uuid.uuid4().hex[:20]}"
    seen = client.run_receipt(run_id).audit.leaves if wait else 0
    try:
        receipt = client.continue_run(
            run_id,
            instruction,
            instruction_id=name,
            task=task,
            after=after,
            timeout_ms=length_ms(timeout) if timeout is not None else None,
        )
    except PlacetError as error:
        if error.code is Code.OUTCOME_UNKNOWN and instruction_id is None:
            output.note(f"To ask again for the same instruction, add --id {name}")
        raise
    if wait:
        if not as_json:
            output.note(f"{receipt.answer}: {output.safe(receipt.turn or '')}")
        return runs.wait_for(client, run_id, as_json=as_json, after=seen)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
        return exits.OK
    output.line(f"{receipt.answer}: {output.safe(run_id)} goes on in {output.safe(receipt.turn or 'its conversation')}")
    output.note(f"Watch it: placet run watch {output.safe(run_id)}")
    return exits.OK


def interrupt(
    ctx: typer.Context,
    run: RunId,
    turn: Annotated[
        str | None, typer.Option(metavar="TURN", help="Only this one: its number, or such as task:a/3.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the run.")] = "",
    interrupt_id: Annotated[
        str | None, typer.Option("--id", help="The interruption's id; the same again stops no later turn.")
    ] = None,
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Stop the turn in work without ending the run: it then waits for its next instruction."""
    from placet.errors import Code, PlacetError

    here = session.of(ctx)
    client = here.client(person)
    run_id, name = here.run_id(run), interrupt_id or f"int-{uuid.uuid4().hex[:20]}"
    if turn is not None and turn.isdigit():
        numbered = [each.turn for each in client.run(run_id).turns if each.turn.rpartition("/")[2] == turn]
        turn = numbered[0] if len(numbered) == 1 else turn
    try:
        receipt = client.interrupt_run(run_id, interrupt_id=name, turn=turn, reason=reason)
    except PlacetError as error:
        if error.code is Code.OUTCOME_UNKNOWN and interrupt_id is None:
            output.note(f"To ask again for the same interruption, add --id {name}")
        raise
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
        return exits.OK
    name = output.safe(receipt.run_id)
    if receipt.answer == "nothing_interrupted":
        output.line(f"nothing interrupted: {name} is {receipt.status}, and no turn is in work")
        return exits.OK
    output.line(f"{receipt.answer}: {output.safe(receipt.turn or '')} is stopped")
    output.note(f'Say what it shall do: placet run continue {name} "…"')
    return exits.OK


COMMANDS: dict[str, Callable[..., int]] = {"continue": continue_run, "interrupt": interrupt}
