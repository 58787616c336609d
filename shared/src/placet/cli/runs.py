"""Decides how runs are started, looked at, watched, ended and accounted for by command."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placet.cli import exits, output, session
from placet.cli.session import Json, Person

if TYPE_CHECKING:
    from placet.client import PlacetClient
    from placet.plans import Release
    from placet.views import RunEvent, RunView


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recent runs, for the shell's completion; nothing where no gateway answers."""
    from placet.errors import PlacetError

    try:
        page = session.of(ctx).client().runs(limit=100)
    except PlacetError:
        return []
    return [run.run_id for run in page.items if run.run_id.startswith(incomplete)]


RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id, or the first characters of it.", autocompletion=complete_run)
]


def _release(given: str | None) -> Release | None:
    """When approved calls are made. Raises ContractError(PARAMETER_INVALID)."""
    from placet.errors import Code, ContractError

    if given is None:
        return None
    if given == "all":
        return "all"
    if given == "each":
        return "each"
    raise ContractError(Code.PARAMETER_INVALID, f"--release is all or each, not {given!r}")


def start(
    ctx: typer.Context,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="A team of the application.")],
    goal: Annotated[str | None, typer.Option(help="What to reach; the team's planner plans it.")] = None,
    tasks: Annotated[str | None, typer.Option(metavar="FILE", help="Tasks to work on, as JSON; - is input.")] = None,
    plan: Annotated[str | None, typer.Option(metavar="FILE", help="A plan to carry out exactly as it is.")] = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Stop at the plan; it is the answer.")] = False,
    run_id: Annotated[str | None, typer.Option("--id", help="The run's id; the same again is the same run.")] = None,
    timeout: Annotated[str | None, typer.Option(help="End the run after this long: 90s, 10m, 2h.")] = None,
    release: Annotated[
        str | None,
        typer.Option(metavar="all|each", help="Make approved calls when nothing waits any more, or each at once."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it ends, or waits for a person (exit code 3).")
    ] = False,
    var: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Replaces {{NAME}} in all texts.")] = None,
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Start a run: from a goal, from tasks, or from a plan."""
    from placet.cli.times import length_ms
    from placet.errors import Code, PlacetError

    submission = _submission(goal, tasks, plan, var or [], plan_only=plan_only)
    client = session.of(ctx).client(person)
    name = run_id or f"run-{uuid.uuid4().hex[:20]}"
    try:
        receipt = client.submit_run(
            team,
            run_id=name,
            timeout_ms=length_ms(timeout) if timeout is not None else None,
            release=_release(release),
            **submission,
        )
    except PlacetError as error:
        if error.code is Code.OUTCOME_UNKNOWN and run_id is None:
            output.note(f"To ask again for the same run, add --id {name}")
        raise
    if not wait:
        if as_json:
            output.document(receipt.model_dump(mode="json", exclude_none=True))
        else:
            output.line(receipt.run_id)
            output.note(f"{receipt.answer}. Watch it: placet run watch {receipt.run_id}")
        return exits.OK
    if not as_json:
        output.note(f"{receipt.answer}: {receipt.run_id}")
    return wait_for(client, receipt.run_id, as_json=as_json)


def _submission(
    goal: str | None, tasks: str | None, plan: str | None, var: list[str], *, plan_only: bool
) -> dict[str, Any]:
    from placet.cli import files
    from placet.errors import Code, ContractError

    if sum(source is not None for source in (goal, tasks, plan)) != 1:
        raise ContractError(Code.SUBMISSION_INVALID, "give one of --goal, --tasks and --plan")
    if plan_only and goal is None:
        raise ContractError(Code.SUBMISSION_INVALID, "--plan-only plans a goal: give it by --goal")
    values = files.variables(var)
    if goal is not None:
        return {"mode": "plan_only" if plan_only else "goal", "goal": files.filled(goal, values)}
    mode, file = ("tasks", tasks) if tasks is not None else ("frozen_plan", plan)
    return {"mode": mode, "tasks": files.filled(files.read_tasks(file or "-"), values)}


def wait_for(client: PlacetClient, run_id: str, *, as_json: bool, after: int = 0) -> int:
    """Look at the run after each event; the events themselves only say that it is worth looking."""
    view = client.run(run_id)
    if not _rests(view):
        for event in client.watch(run_id, after=after):
            if not as_json:
                output.note(_event_line(event))
            view = client.run(run_id)
            if _rests(view):
                break
        else:
            view = client.run(run_id)
    if as_json:
        output.document(view)
    else:
        _tell(view)
    if view.status == "suspended":
        return exits.WAITING
    return exits.OK if view.status == "succeeded" else exits.REFUSED


def _rests(view: RunView) -> bool:
    return view.terminal or view.status == "suspended"


def list_runs(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="RUN", help="Go on before this run.")] = None,
    as_json: Json = False,
) -> int:
    """Runs, newest first."""
    from placet.cli.times import ago

    page = session.of(ctx).client().runs(status=status, limit=limit, before=before)
    if as_json:
        output.document(page)
        return exits.OK
    if not page.items:
        output.line("There are no such runs." if status else "There are no runs yet.")
        return exits.OK
    output.table(
        ["run", "status", "started", "team", "goal"],
        [
            [
                output.safe(run.run_id),
                run.status,
                ago(run.created_at_ms, page.as_of_ms),
                output.safe(run.team or ""),
                output.shortened(output.safe(run.goal or f"({run.mode})")),
            ]
            for run in page.items
        ],
    )
    if page.next is not None:
        output.note(f"There are more: placet run list --before {page.next}")
    return exits.OK


def show(ctx: typer.Context, run: RunId, as_json: Json = False) -> int:
    """One run: its tasks, what it waits for, what it came to."""
    here = session.of(ctx)
    view = here.client().run(here.run_id(run))
    if as_json:
        output.document(view)
    else:
        _tell(view)
    return exits.OK


def _tell(view: RunView) -> None:
    from placet.cli.times import ago

    output.line(f"{output.safe(view.run_id)}: {view.status}, {ago(view.updated_at_ms, view.as_of_ms)}")
    if view.goal:
        output.line(f"goal:    {output.safe(view.goal)}")
    if view.failure is not None:
        output.line(f"failure: {output.safe(view.failure.message)} [{output.safe(view.failure.code)}]")
    if view.tasks:
        output.table(
            ["task", "status", "by", "title"],
            [
                [
                    output.safe(task.id),
                    "removed" if task.removed else task.status,
                    output.safe(task.assignee or ""),
                    output.safe(task.title),
                ]
                for task in view.tasks
            ],
        )
    if view.plan_digest and not view.terminal:
        output.line(f"plan:    {view.plan_digest}")
    if view.answer is not None:
        from placet.characters import visible

        output.line("answer:")
        output.line(visible(view.answer, keep_lines=True))
    for parked in view.parked:
        output.line(f"parked:  {output.safe(parked.reason)} [{output.safe(parked.code)}]")
        output.line(f"         placet dead-letters show {output.safe(parked.id)}")
    for turn in view.turns:
        if turn.status == "interrupted" or turn.interruptions:
            again = f", and is at attempt {turn.attempt}" if turn.status in ("calling", "waiting") else ""
            output.line(f"turn:    {output.safe(turn.turn)} was interrupted{again}")
    if view.status == "suspended" and any(turn.status == "interrupted" for turn in view.turns):
        output.line(f'waits:   for an instruction: placet run continue {output.safe(view.run_id)} "…"')
    for waiting in view.waiting_for:
        output.line(f"waits:   {output.safe(waiting.sentence)}")
        output.line(f"         placet show {waiting.request_id}")


def watch(
    ctx: typer.Context,
    run: RunId,
    after: Annotated[int, typer.Option(min=0, help="Begin after the event of this number.")] = 0,
    as_json: Json = False,
) -> int:
    """What happens to a run, and what its agents say while they say it, until it ends; exit code 1 where it does not
    succeed. With --json one document per line: those with `text` are pieces of replies, and no events."""
    here = session.of(ctx)
    run_id = here.run_id(run)
    speaking = output.Speaking(as_json=as_json)
    for event in here.client().watch(run_id, after=after, on_text=speaking.heard):
        speaking.pause()
        if as_json:
            output.json_line(event)
        else:
            output.line(_event_line(event))
    speaking.pause()
    view = here.client().run(run_id)
    if not as_json:
        output.note(f"{output.safe(run_id)} has ended: {view.status}")
    return exits.REFUSED if view.terminal and view.status != "succeeded" else exits.OK


def _event_line(event: RunEvent) -> str:
    from placet.cli.times import at
    from placet.run_events import told_of

    return f"{event.seq:>5}  {at(event.at_ms)}  {output.safe(told_of(event))}"


def cancel(
    ctx: typer.Context,
    run: RunId,
    reason: Annotated[str, typer.Option(help="Why; kept with the run.")] = "",
    person: Person = None,
    as_json: Json = False,
) -> int:
    """End a run for good. What was done stays done; its open requests are closed."""
    here = session.of(ctx)
    client = here.client(person)
    receipt = client.cancel_run(here.run_id(run), reason)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        output.line(f"{receipt.answer}: {output.safe(receipt.run_id)} is {receipt.status or 'being cancelled'}")
    return exits.OK


def receipt(ctx: typer.Context, run: RunId, as_json: Json = False) -> int:
    """Every side effect of a run, on whose word it ran, and how it ended."""
    from placet.cli.times import at

    here = session.of(ctx)
    view = here.client().run_receipt(here.run_id(run))
    if as_json:
        output.document(view)
        return exits.OK
    output.line(f"{output.safe(view.run_id)}: {view.status}, started by {output.safe(view.initiator or 'nobody')}")
    decided = {request.request_id: request for request in view.decisions}
    for operation in view.operations:
        request = decided.get(operation.request_id or "")
        word = (
            f"approved by {output.safe(request.decided_by)}"
            if request and request.outcome == "approved"
            else (
                f"{request.outcome or request.status}"
                if request
                else f"by the rule {output.safe(operation.rule or '')}"
            )
        )
        output.line(f"- {output.safe(operation.tool)} {output.safe(operation.input_text or '')}")
        output.line(f"  {operation.operation_id}: {operation.status or 'not started'}, {word}")
        for attempt in operation.attempts:
            output.line(f"  attempt {attempt.n} at {at(attempt.started_at_ms)}: {attempt.ended or 'not reported yet'}")
            why = _why(attempt.evidence)
            if why:
                output.line(f"    because {output.safe(why)}")
        if operation.request_hash:
            output.line(f"  hash {operation.request_hash}")
    audit = view.audit
    output.line(f"audit: {audit.leaves} leaves, {'intact' if audit.intact else 'NOT INTACT'}, last {audit.last or '-'}")
    return exits.OK if audit.intact else exits.REFUSED


def _why(evidence: str | None) -> str:
    """What the tool said went wrong, where the evidence of an attempt holds that."""
    import json

    try:
        told = json.loads(evidence or "null")
    except ValueError:  # words of a person
        return ""
    failure = told.get("failure") if isinstance(told, dict) else None
    return str(failure.get("message") or "") if isinstance(failure, dict) else ""


def trace(ctx: typer.Context, run: RunId, as_json: Json = False) -> int:
    """Every fact of a run by time, each with where it is kept."""
    from placet.cli.times import at

    here = session.of(ctx)
    view = here.client().trace(here.run_id(run))
    if as_json:
        output.document(view)
        return exits.OK
    for entry in view.entries:
        subject = output.shortened(output.safe(entry.subject))
        output.line(
            f"{at(entry.at_ms) or 'at once':<24}  {entry.source:<19} {output.safe(entry.what):<28} {subject}".rstrip()
        )
    output.note(f"{len(view.entries)} facts; the run is {view.status}. In full: --json")
    return exits.OK


COMMANDS: dict[str, Callable[..., int]] = {
    "start": start,
    "list": list_runs,
    "show": show,
    "watch": watch,
    "cancel": cancel,
    "receipt": receipt,
    "trace": trace,
}
