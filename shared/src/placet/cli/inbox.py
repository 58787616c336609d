"""Decides how a person sees what waits for them: the inbox, and one request in full, before anything can be decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from placet.cli import exits, output, session
from placet.cli.session import Json

if TYPE_CHECKING:
    from placet.views import RequestView

SHORT_ID_CHARS = 12
"""`apr_` and eight digits: enough to tell a few thousand requests apart."""


def complete_request(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Open requests, for the shell's completion; nothing where no gateway answers."""
    from placet.errors import PlacetError

    try:
        page = session.of(ctx).client().requests(limit=100)
    except PlacetError:
        return []
    return [(item.request_id, item.sentence) for item in page.items if item.request_id.startswith(incomplete)]


RequestId = Annotated[
    str,
    typer.Argument(metavar="REQUEST", help="Its id, or the first characters of it.", autocompletion=complete_request),
]


def inbox(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also what has been decided.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="REQUEST", help="Go on after this request.")] = None,
    as_json: Json = False,
) -> int:
    """What waits for a decision, oldest first."""
    from placet.cli.times import ago, ahead

    page = session.of(ctx).client().requests(state="all" if everything else "open", limit=limit, after=after)
    if as_json:
        output.document(page)
        return exits.OK
    if not page.items:
        output.line("Nothing is waiting for a decision.")
        return exits.OK
    rows = []
    for item in page.items:
        status = (
            item.status
            if item.status != "open" or item.expires_at_ms is None
            else "open, expires " + ahead(item.expires_at_ms, page.as_of_ms)
        )
        mark = {0: "", None: " (long)"}.get(item.hazards, f" (!{item.hazards})")
        told = output.shortened(output.safe(item.sentence), 160) + mark
        rows.append([item.request_id[:SHORT_ID_CHARS], status, ago(item.requested_at_ms, page.as_of_ms), told])
    output.table(["request", "status", "asked", "what"], rows)
    if page.next is not None:
        output.note(f"There are more: placet inbox --after {page.next}")
    output.note("Look at one: placet show REQUEST")
    return exits.OK


def show(
    ctx: typer.Context,
    request: RequestId,
    as_json: Json = False,
) -> int:
    """One request: a plain sentence, the exact content with hidden characters escaped, the hash, what came of it."""
    here = session.of(ctx)
    view = here.client().request(here.request_id(request))
    check_hash(view)
    if as_json:
        output.document(view)
        return exits.OK
    tell(view)
    if view.status == "open":
        known = {"operation_outcome": "resolve", "question": "respond (or reject)"}
        words = known.get(view.scope, "approve (or reject)")
        output.note(f"Decide: placet {words} {view.request_id[:SHORT_ID_CHARS]}")
    return exits.OK


def check_hash(view: RequestView) -> None:
    """Refuse to show content under a hash that is not its own: what is shown must be what is hashed.

    Raises TerminalError(APPROVAL_INTEGRITY_ERROR), also where the gateway itself is what is wrong.
    """
    from placet.canonical import parse_canonical
    from placet.errors import Code, ContractError, TerminalError
    from placet.requests import request_hash

    try:
        content = parse_canonical(view.content_text)
        is_its_own = isinstance(content, dict) and request_hash(view.scope, view.boundary, content) == view.request_hash
        reason = "its hash is another one"
    except ContractError as error:
        is_its_own, reason = False, error.message
    if not is_its_own:
        raise TerminalError(
            Code.APPROVAL_INTEGRITY_ERROR,
            f"the content of {view.request_id} is not what its hash says ({reason}): tell the operator, decide nothing",
        )


def tell(view: RequestView) -> None:
    """A request in full. Made here from the hashed content, not taken from the gateway's words."""
    from placet.canonical import parse_canonical
    from placet.cli.times import at
    from placet.sentences import pretty, sentence, warnings

    content = parse_canonical(view.content_text)
    output.line(sentence(view.content_text, run_id=view.run_id, reason=view.reason))
    output.line()
    output.line(pretty(content))
    output.line()
    for found in warnings(content):
        where = found.pointer or "/"
        output.line(
            f"warning: {output.safe(where)} at {found.position}: {found.code_point} {found.name} ({found.hazard})"
        )
    beside = {
        "request": view.request_id,
        "run": output.safe(view.run_id),
        "asked": f"{at(view.requested_at_ms)} for {output.safe(view.initiator or 'nobody')}",
        "reason": output.safe(view.reason) if view.reason else "",
        "instead of": view.supersedes or "",
        "edited by": output.safe(", ".join(view.requesters)),
        "needs": f"{view.quorum} people" if view.quorum > 1 else "",
        "for": output.safe(", ".join(view.reviewers)),
        "expires": at(view.expires_at_ms),
        "use by": at(view.use_by_ms),
        "advisory": output.safe(", ".join(view.advisory)),
        "volatile": output.safe(", ".join(view.volatile)),
        "tool version": output.safe(view.tool_version or ""),
        "rule": output.safe(view.rule or ""),
        "policy": output.safe(f"{view.policy_version or ''} {view.policy_digest or ''}".strip()),
        "hash": view.request_hash,
        "status": view.status,
    }
    for name, value in beside.items():
        if value:
            output.line(f"{name + ':':<14}{value}")
    _tell_outcome(view)


def _tell_outcome(view: RequestView) -> None:
    from placet.cli.times import at

    for vote in view.votes:
        why = f": {output.safe(vote.reason)}" if vote.reason else ""
        output.line(f"{'vote:':<14}{vote.decision} by {output.safe(vote.person_id)} at {at(vote.voted_at_ms)}{why}")
    if view.decision is not None:
        by = f" by {output.safe(view.decision.decided_by)}" if view.decision.decided_by else ""
        output.line(f"{'decided:':<14}{view.decision.outcome}{by} at {at(view.decision.decided_at_ms)}")
        if view.decision.successor is not None:
            output.line(f"{'now asked:':<14}{view.decision.successor}")
    if view.revocation is not None:
        output.line(
            f"{'revoked:':<14}by {output.safe(view.revocation.revoked_by)} at {at(view.revocation.revoked_at_ms)}"
        )
    if view.operation is not None:
        output.line(f"{'carried out:':<14}{view.operation.status or 'not started'}")
        for attempt in view.operation.attempts:
            end = f"{attempt.ended} at {at(attempt.ended_at_ms)}" if attempt.ended else "not reported yet"
            output.line(f"{'':<14}attempt {attempt.n}: started at {at(attempt.started_at_ms)}, {end}")
