"""Decides what a person has to do before a command decides: see it, and type the word; what does not fit is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from placet.cli import output

if TYPE_CHECKING:
    from placet.messages import DecisionWord
    from placet.views import RequestView


def asked(view: RequestView, word: DecisionWord, what: Mapping[str, str | None]) -> bool:
    """Whether the person confirms. What is closed is not asked about, unless an answer of one's own was lost."""
    from placet.cli.kept import earlier, state_dir
    from placet.errors import Code, TerminalError

    if view.status == "open" or earlier(state_dir(os.environ), what) is not None:
        return confirmed(word)
    by = f" by {view.decided_by}" if view.decided_by else ""
    code = {"expired": Code.APPROVAL_EXPIRED, "cancelled": Code.APPROVAL_CLOSED, "superseded": Code.APPROVAL_CLOSED}
    raise TerminalError(
        code.get(view.status, Code.APPROVAL_CONFLICT), f"nothing was decided: already {view.outcome or view.status}{by}"
    )


def require_a_way_to_confirm(*, yes: bool, as_json: bool) -> None:
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


def require_the_word_fits(view: RequestView, word: DecisionWord) -> None:
    """Raises ContractError(APPROVAL_VALIDATION_ERROR) for the word of another kind of question."""
    from placet.decision_words import WORDS_FOR
    from placet.errors import Code, ContractError

    words = WORDS_FOR.get(view.scope, ())  # type: ignore[call-overload]  # whatever scope a newer gateway tells
    if word not in words:
        use = ", ".join(dict.fromkeys(COMMANDS[known] for known in words)) or "a newer placet"
        raise ContractError(Code.APPROVAL_VALIDATION_ERROR, f"this request is of scope {view.scope}: use {use}")


COMMANDS: Mapping[str, str] = {
    "approve": "placet approve",
    "reject": "placet reject",
    "edit": "placet edit",
    "respond": "placet respond",
    "request_changes": "placet request-changes",
    "executed": "placet resolve --executed|--not-executed",
    "not_executed": "placet resolve --executed|--not-executed",
}
"""The command that says each word."""


def require_expected(view: RequestView, expected: str | None) -> None:
    """Raises TerminalError(APPROVAL_STALE_DECISION) where another hash was expected."""
    from placet.errors import Code, TerminalError

    if expected is not None and expected != view.request_hash:
        raise TerminalError(
            Code.APPROVAL_STALE_DECISION,
            f"nothing was decided: what is asked has the hash {view.request_hash}, not {expected}",
        )


def confirmed(word: str) -> bool:
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
    "edit": "have this asked about instead",
    "respond": "answer this, instead of the call where it is one",
    "request_changes": "send this back for changes",
    "executed": "state that it happened",
    "not_executed": "state that it did not happen",
}


def _forget_typed_ahead() -> None:
    try:
        import termios
    except ImportError:  # Windows has no such queue to empty.
        return
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
