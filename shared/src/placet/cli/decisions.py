"""Decides how a person decides by command: the request is shown in full, and the hash that was shown is sent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from placet.cli import exits, output, session
from placet.cli.inbox import RequestId, check_hash, tell
from placet.cli.session import Json, Person

if TYPE_CHECKING:
    from placet.machine import Receipt
    from placet.messages import DecisionWord
    from placet.views import RequestView

BUSY_TRIES_MAX = 5
"""A decision that meets another one being recorded asks again this often, a second apart."""

Reason = Annotated[str | None, typer.Option(help="Why; kept with the decision.")]
Hash = Annotated[str | None, typer.Option("--hash", help="Decide only if this is the hash of what is asked.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; needed where there is no terminal.")]


def approve(
    ctx: typer.Context,
    request: RequestId,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Show a request and approve exactly what was shown."""
    return _decide(ctx, request, "approve", reason, expected, person, yes=yes, as_json=as_json)


def reject(
    ctx: typer.Context,
    request: RequestId,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Show a request and reject it. A rejected tool call is not made; a rejected plan ends the run."""
    return _decide(ctx, request, "reject", reason, expected, person, yes=yes, as_json=as_json)


def resolve(
    ctx: typer.Context,
    request: RequestId,
    executed: Annotated[bool, typer.Option("--executed", help="It happened.")] = False,
    not_executed: Annotated[bool, typer.Option("--not-executed", help="It did not happen.")] = False,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Say whether an operation of unknown outcome happened. It is never run again because of the answer."""
    from placet.errors import Code, ContractError

    if executed == not_executed:
        raise ContractError(Code.PARAMETER_INVALID, "say what is so: --executed or --not-executed")
    word: DecisionWord = "executed" if executed else "not_executed"
    return _decide(ctx, request, word, reason, expected, person, yes=yes, as_json=as_json)


def revoke(
    ctx: typer.Context,
    request: RequestId,
    reason: Annotated[str, typer.Option(help="Why; kept with the revocation.")] = "",
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Take an approval back before it is used. What has started is not stopped by it."""
    here = session.of(ctx)
    client = here.client(person)
    receipt = client.revoke(here.request_id(request), reason)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        output.line(f"{receipt.answer}: the approval of {receipt.request_id or request} is taken back.")
    return exits.OK


def _decide(
    ctx: typer.Context,
    request: str,
    word: DecisionWord,
    reason: str | None,
    expected: str | None,
    person: str | None,
    *,
    yes: bool,
    as_json: bool,
) -> int:
    here = session.of(ctx)
    here.client(person)
    _require_a_way_to_confirm(yes=yes, as_json=as_json)
    view = here.client().request(here.request_id(request))
    check_hash(view)
    _require_the_word_fits(view, word)
    _require_expected(view, expected)
    what = {
        "url": here.client().connection.url,
        "request_id": view.request_id,
        "request_hash": view.request_hash,
        "decision": word,
        "reason": reason,
        "person": person or here.client().connection.person,
    }
    if not as_json:
        tell(view)
    if not yes and not _asked(view, word, what):
        output.note("Nothing was decided.")
        return exits.REFUSED
    receipt = _send(here, view, word, reason, what)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        by = f" by {output.safe(receipt.decided_by)}" if receipt.decided_by else ""
        output.line(f"{receipt.outcome or receipt.answer}{by}: {receipt.request_id}")
    return exits.OK


def _asked(view: RequestView, word: DecisionWord, what: Mapping[str, str | None]) -> bool:
    """Whether the person confirms. What is closed is not asked about, unless an answer of one's own was lost."""
    from placet.cli.kept import earlier, state_dir
    from placet.errors import Code, TerminalError

    if view.status == "open" or earlier(state_dir(os.environ), what) is not None:
        return _confirmed(word)
    by = f" by {view.decided_by}" if view.decided_by else ""
    code = {"expired": Code.APPROVAL_EXPIRED, "cancelled": Code.APPROVAL_CLOSED, "superseded": Code.APPROVAL_CLOSED}
    raise TerminalError(
        code.get(view.status, Code.APPROVAL_CONFLICT), f"nothing was decided: already {view.outcome or view.status}{by}"
    )


def _require_a_way_to_confirm(*, yes: bool, as_json: bool) -> None:
    """A pipe, a closed input or a job is nobody who could confirm: neither a yes nor a silent no."""
    from placet.errors import Code, ContractError

    if yes:
        return
    if as_json:
        raise ContractError(Code.PARAMETER_INVALID, "--json asks nothing: add --yes to decide, or leave --json out")
    if sys.stdin is None or not sys.stdin.isatty():
        raise ContractError(
            Code.PARAMETER_INVALID,
            "there is no terminal to confirm on, so nothing was decided: add --yes (and --hash, to decide only what "
            "you have seen)",
        )


def _require_the_word_fits(view: RequestView, word: DecisionWord) -> None:
    from placet.errors import Code, ContractError

    is_doubt = view.scope == "operation_outcome"
    if is_doubt != (word in {"executed", "not_executed"}):
        use = "placet resolve --executed|--not-executed" if is_doubt else "placet approve or placet reject"
        raise ContractError(Code.APPROVAL_VALIDATION_ERROR, f"this request is of scope {view.scope}: use {use}")


def _require_expected(view: RequestView, expected: str | None) -> None:
    from placet.errors import Code, TerminalError

    if expected is not None and expected != view.request_hash:
        raise TerminalError(
            Code.APPROVAL_STALE_DECISION,
            f"nothing was decided: what is asked has the hash {view.request_hash}, not {expected}",
        )


def _confirmed(word: str) -> bool:
    """Whether the person types the word itself. What was typed before the question is thrown away."""
    output.line()
    sys.stdout.flush()
    _forget_typed_ahead()
    sys.stderr.write(f"Type {word} to {_MEANING[word]}; anything else leaves it undecided: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == word


_MEANING = {
    "approve": "approve exactly this",
    "reject": "reject this",
    "executed": "state that it happened",
    "not_executed": "state that it did not happen",
}


def _forget_typed_ahead() -> None:
    try:
        import termios
    except ImportError:  # Windows has no such queue to empty.
        return
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _send(
    here: session.Session, view: RequestView, word: DecisionWord, reason: str | None, what: Mapping[str, str | None]
) -> Receipt:
    from placet.cli.kept import kept, state_dir
    from placet.errors import Code, PlacetError, RetryableError

    client = here.client()
    on_its_way = kept(state_dir(os.environ), what)
    if on_its_way.is_repeat:
        output.note(f"Repeating an earlier decision whose answer was lost ({on_its_way.decision_id}).")
    for tries_left in reversed(range(BUSY_TRIES_MAX)):
        try:
            receipt = client.decide(
                view.request_id,
                decision=word,
                request_hash=view.request_hash,
                decision_id=on_its_way.decision_id,
                reason=reason,
            )
        except RetryableError as error:
            if error.code is not Code.APPROVAL_BUSY or not tries_left:
                raise  # The id stays: the same command repeats the same decision.
            time.sleep(1)
        except PlacetError:
            on_its_way.settled()
            raise
        else:
            on_its_way.settled()
            return receipt
    raise AssertionError("the last try returns or raises")
