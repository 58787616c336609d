"""Decides how a run's past is looked at by command, checked against what is stored, and gone on with in a new run."""

from __future__ import annotations

import importlib
import json
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placet.cli import exits, output, session
from placet.cli.runs import RunId
from placet.cli.session import Json, Person

if TYPE_CHECKING:
    from placet.client import PlacetClient
    from placet.kept_views import RunFacts
    from placet.runtime.replay import Step
    from placet.runtime.verifying import Kept, Verified

LOOKS_MAX = 5
"""How often a run is read again that moved while it was read."""


def replay(
    ctx: typer.Context,
    run: RunId,
    to: Annotated[int | None, typer.Option("--to", min=1, metavar="N", help="Show it as of this version.")] = None,
    as_json: Json = False,
) -> int:
    """Replay a run from its journal by the rules installed here, and compare every step with what is stored.

    Exit code 1 where anything is not what the journal says; the first difference is named.
    """
    from placet.ids import Address
    from placet.messages import RUN
    from placet.runtime.verifying import verify

    here = session.of(ctx)
    client, run_id = here.client(), here.run_id(run)
    verified = verify(rules(), _kept(client, run_id))
    steps = verified.steps.get(Address(run_id, RUN, ""), [])
    shown = _shown(steps, to, verified)
    if as_json:
        output.document(_document(run_id, shown, verified))
    else:
        _tell(run_id, shown, verified, in_full=to is not None)
    return exits.REFUSED if verified.differences else exits.OK


def fork(
    ctx: typer.Context,
    run: RunId,
    at: Annotated[int, typer.Option("--at", min=1, metavar="N", help="The version to begin from.")],
    new_id: Annotated[
        str | None, typer.Option("--id", metavar="NEW", help="The new run's id; the same again is the same run.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="End the new run after this long: 90s, 10m, 2h.")] = None,
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Start a new run from what a run was at a version. Its gates are asked anew; what was done stands.

    What was under way then is not repeated unless a person says so. Versions: placet run replay RUN.
    """
    from placet.cli.times import length_ms
    from placet.errors import Code, PlacetError

    here = session.of(ctx)
    client = here.client(person)
    name = new_id or f"run-{uuid.uuid4().hex[:20]}"
    try:
        receipt = client.fork_run(
            here.run_id(run), at=at, fork_id=name, timeout_ms=length_ms(timeout) if timeout is not None else None
        )
    except PlacetError as error:
        if error.code is Code.OUTCOME_UNKNOWN and new_id is None:
            output.note(f"To ask again for the same run, add --id {name}")
        raise
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        output.line(receipt.run_id)
        output.note(f"{receipt.answer}. Watch it: placet run watch {receipt.run_id}")
    return exits.OK


def rules() -> Any:
    """Every machine, as it is for replaying: it believes the voices that a journal holds the keys of."""
    # By name: the library knows no service; the rules are installed with them.
    from placet.believing import ReplayedVoices
    from placet.errors import Code, TerminalError

    try:
        return importlib.import_module("placet_embedded.system").machines(ReplayedVoices())
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("placet_"):
            raise
        raise TerminalError(
            Code.SETTING_INVALID, f"{error.name} is not installed: install the distribution placet-embedded"
        ) from error


# ── reading ────────────────────────────────────────────────────────────────────────────


def _kept(client: PlacetClient, run_id: str) -> Kept:
    """All that is stored of the run, as of one instant: read until nothing has moved meanwhile."""
    from placet.errors import Code, RetryableError

    before = client.facts(run_id)
    for _ in range(LOOKS_MAX):
        journals = _journals(client, run_id)
        after = client.facts(run_id)
        if after.states == before.states:
            return _as_kept(run_id, before, journals)
        before = after
    raise RetryableError(Code.STORE_UNAVAILABLE, f"{run_id} is moving: replay it when it has ended, or waits")


def _journals(client: PlacetClient, run_id: str) -> list[Any]:
    page = client.journal(run_id)
    items = list(page.items)
    while page.next is not None:
        page = client.journal(run_id, after=page.next)
        items += page.items
    return items


def _as_kept(run_id: str, facts: RunFacts, items: list[Any]) -> Kept:
    from placet.ids import Address
    from placet.instants import Instant
    from placet.runtime.ports import JournalEntry, StoredState
    from placet.runtime.verifying import Kept

    journals: dict[Address, list[JournalEntry]] = {}
    for item in items:
        address = Address(run_id, item.machine, item.key)
        entry = JournalEntry(
            address, item.version, item.message_id, item.message.encode(), item.facts, Instant(item.at_ms)
        )
        journals.setdefault(address, []).append(entry)
    states = {
        Address(run_id, state.machine, state.key): StoredState(state.version, state.status, state.body.encode())
        for state in facts.states
    }
    return Kept(states, journals, facts.tables)


# ── showing ────────────────────────────────────────────────────────────────────────────


def _shown(steps: list[Step], to: int | None, verified: Verified) -> list[Step]:
    """The steps up to the version. Raises ContractError(PARAMETER_INVALID) where there is none such."""
    from placet.errors import Code, ContractError

    if to is None:
        return steps
    if not steps or not steps[0].version <= to <= steps[-1].version:
        if verified.differences and (not steps or to > steps[-1].version):
            return steps  # what is in the way is told
        there = f"versions {steps[0].version} to {steps[-1].version}" if steps else "no version"
        pruned = "; what was before was pruned" if steps and steps[0].version > 1 else ""
        raise ContractError(Code.PARAMETER_INVALID, f"--to {to}: the run has {there}{pruned}", parameter="to")
    return [step for step in steps if step.version <= to]


def _document(run_id: str, steps: list[Step], verified: Verified) -> dict[str, Any]:
    last = steps[-1] if steps else None
    return {
        "run_id": run_id,
        "version": last.version if last else None,
        "verified": not verified.differences,
        "states": len(verified.steps),
        "entries": sum(map(len, verified.steps.values())),
        "differences": [
            {"address": each.address.text(), "version": each.version, "what": each.what}
            for each in verified.differences
        ],
        "steps": [_plain(step) for step in steps],
        "state": json.loads(last.state.json_bytes()) if last else None,
    }


def _plain(step: Step) -> dict[str, Any]:
    return {
        "version": step.version,
        "at_ms": step.entry.at_ms,
        "type": _type(step),
        "message_id": step.entry.message_id,
        "status": step.state.status,
        "events": _events(step),
    }


def _type(step: Step) -> str:
    if step.message is not None:
        return step.message.type
    told: str = json.loads(step.entry.message)["message"]["type"]
    return told


def _events(step: Step) -> list[str]:
    from placet.machine import Record
    from placet.rows import AuditLeafRow

    rows = [effect.row for effect in step.effects if isinstance(effect, Record)]
    return [f"{row.kind} {row.subject}".rstrip() for row in rows if isinstance(row, AuditLeafRow)]


def _tell(run_id: str, steps: list[Step], verified: Verified, *, in_full: bool) -> None:
    from placet.cli.times import at

    for step in steps:
        output.line(f"{step.version:>5}  {at(step.entry.at_ms)}  {_type(step):<20} {step.state.status}")
        for event in _events(step):
            output.line(f"{'':>33}{output.safe(event)}")
    if in_full and steps:
        output.line(json.dumps(json.loads(steps[-1].state.json_bytes()), indent=2, ensure_ascii=True))
    if verified.differences:
        first, more = verified.differences[0], len(verified.differences) - 1
        output.line(f"NOT WHAT IS STORED: {output.safe(first.sentence())}" + (f" (and {more} more)" if more else ""))
        return
    entries = sum(map(len, verified.steps.values()))
    output.note(f"{output.safe(run_id)}: {entries} steps of {len(verified.steps)} states replayed; all is as stored")
