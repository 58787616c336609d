"""Decides how a person sees messages that no rule accepted, and sends one again when that can help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from placet.cli import exits, output, session
from placet.cli.session import Json

if TYPE_CHECKING:
    from placet.views import DeadLetter

LetterId = Annotated[str, typer.Argument(metavar="ID", help="Its id, as the list shows it.")]


def list_letters(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only those of this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at most.")] = 50,
    as_json: Json = False,
) -> int:
    """Messages that nobody accepted, newest first: refused by a rule, unreadable, or given up by the broker."""
    from placet.cli.times import ago

    here = session.of(ctx)
    page = here.client().dead_letters(run_id=None if run is None else here.run_id(run), limit=limit)
    if as_json:
        output.document(page)
        return exits.OK
    if not page.items:
        output.line("There are no dead letters.")
        return exits.OK
    rows = [
        [
            output.safe(letter.id),
            ago(letter.at_ms, page.as_of_ms),
            output.safe(letter.run_id or "-"),
            output.safe(letter.destination or "-"),
            output.safe(letter.code),
            output.shortened(output.safe(letter.reason)),
        ]
        for letter in page.items
    ]
    output.table(["id", "parked", "run", "for", "code", "reason"], rows)
    output.note("Look at one: placet dead-letters show ID")
    return exits.OK


def show(ctx: typer.Context, letter: LetterId, as_json: Json = False) -> int:
    """One of them: why it was parked, the message, and whether it has been applied since."""
    from placet.cli.times import at

    view = session.of(ctx).client().dead_letter(letter)
    if as_json:
        output.document(view)
        return exits.OK
    beside = {
        "dead letter": view.id,
        "run": view.run_id,
        "parked": at(view.at_ms),
        "for": view.destination or "nobody",
        **_way_of(view),
        "code": view.code,
        "reason": view.reason,
        "applied": "since then" if view.applied else "not yet",
    }
    for name, value in beside.items():
        output.line(f"{name + ':':<14}{output.safe(value)}")
    output.line()
    output.line(output.safe(view.body or ""))
    if view.body_base64 is not None:
        output.note("It is no text: what stands behind a backslash is a byte. --json has it as it was.")
    if not view.applied:
        output.note(f"Once what was in its way is repaired: placet dead-letters redrive {output.safe(view.id)}")
    return exits.OK


def _way_of(letter: DeadLetter) -> dict[str, str]:
    """Whence the broker had it, and who had published it; nothing for what never was there."""
    if letter.queue is None:
        return {}
    about = letter.about or {}
    came = [f"{name} {about[name]}" for name in ("user_id", "exchange", "content_type") if about.get(name)]
    return {"came by": ", ".join([letter.queue, *came])}


def redrive(ctx: typer.Context, letter: LetterId, as_json: Json = False) -> int:
    """Send its message again, as the same message; repeating it is harmless."""
    told = session.of(ctx).client().redrive(letter)
    if as_json:
        output.document(told)
    elif told.answer == "applied":
        output.line(f"applied: {output.safe(told.message_id)}")
    else:
        output.line(f"sent: {output.safe(told.message_id)}")
        output.note(f"Whether it was applied: placet dead-letters show {output.safe(told.id)}")
    return exits.OK


COMMANDS: dict[str, Callable[..., int]] = {"list": list_letters, "show": show, "redrive": redrive}
