"""Decides what an error of PostgreSQL or its driver means: a constraint, a race, surely nothing written, or unknown.

The rule (reliability b6): an ERROR that the server itself reports ends the transaction, so nothing was written.
Whatever ends the connection while a commit is on its way, and a commit that came with a WARNING, leaves nobody knowing.
"""

from __future__ import annotations

from typing import Any

from asyncpg.exceptions import (
    DataError,
    InterfaceError,
    InternalClientError,
    InvalidCachedStatementError,
    PostgresError,
)

from placet.adapters.sql.units import Refused
from placet.errors import Code, InvariantError, PlacetError, RetryableError, TerminalError

FAILURES = (OSError, EOFError, PostgresError, InterfaceError, InternalClientError)
"""What the driver raises when the server, or the way to it, fails. OSError includes TimeoutError."""
_ADVICE = {
    "25": "the server takes no writes, as a standby does: connect to the primary",
    "28": "the server does not let the user in: see the user's name and password, or run `placet migrate`, which makes "
    "the roles",
    "3D": "there is no such database: create it",
    "53": "the server lacks disk, memory or connections",
    "55": "something needed is locked by others",
    "57": "the server ends or cancels what it does",
    "58": "the server's disk or system fails",
}
"""By the first two characters of the SQLSTATE, for errors that may pass."""


class Contended(Exception):  # noqa: N818  not an error: once more
    """Others were in the way; nothing was written, and trying again at once is right."""


def meaning(error: BaseException, where: str, *, undecided: bool) -> Exception:
    """The error as `Refused`, `Contended` or a PlacetError. `undecided`: a commit was on its way.

    `where` names the database in messages. Raises what is no error of the database again.
    """
    if isinstance(error, PlacetError | Refused | Contended):
        return error
    if isinstance(error, PostgresError) and _is_reported(error):
        return _reported(error, where)
    if _is_no_value(error):
        return Refused("unstorable")
    if isinstance(error, FAILURES):
        return _lost(error, where, undecided=undecided)
    raise error


def survives(error: BaseException) -> bool:
    """Whether the connection on which the error came can be used again. After a FATAL error it looks as if it could."""
    return _is_no_value(error) or (isinstance(error, PostgresError) and _is_reported(error))


def _is_reported(error: PostgresError) -> bool:
    return getattr(error, "severity_en", None) == "ERROR"


def _is_no_value(error: BaseException) -> bool:
    """Whether the driver could not send a value: half a surrogate pair, more than 64 bits, a type no column has."""
    unsent = isinstance(error, DataError) and getattr(error, "severity_en", None) is None
    return unsent or isinstance(error, UnicodeEncodeError | OverflowError)


def _reported(error: Any, where: str) -> Exception:
    """What the server reports while it goes on: the transaction is undone."""
    state = error.sqlstate or ""
    if state in ("40001", "40P01", "55P03"):
        return Contended(_told(error))
    if state == "22021":
        return Refused("text_nul")
    if state[:2] == "22":
        return Refused("unstorable")
    if state == "23502":
        return Refused("unstorable")
    if state[:2] == "23":
        return Refused(error.constraint_name or state)
    if state in ("XX001", "XX002"):
        return TerminalError(Code.CHECKPOINT_CORRUPT, f"{where} is damaged: restore a backup ({_told(error)})")
    if state == "42501":
        what = f"{where}: this role has not the right; connect as the role of this service ({_told(error)})"
        return TerminalError(Code.STORE_UNAVAILABLE, what)
    if state[:2] in _ADVICE or isinstance(error, InvalidCachedStatementError):
        return _unavailable(error, where)
    return InvariantError(f"{where}: {_told(error)}")


def _lost(error: BaseException, where: str, *, undecided: bool) -> PlacetError:
    """What ends the connection."""
    if undecided:
        return unknown(where, f"the connection was lost ({_told(error)})")
    return _unavailable(error, where)


def _unavailable(error: BaseException, where: str) -> RetryableError:
    state = getattr(error, "sqlstate", None) or ""
    advice = _ADVICE.get(state[:2], "the server cannot be reached, or has just gone")
    return RetryableError(Code.STORE_UNAVAILABLE, f"{where}: {advice}; nothing was written ({_told(error)})")


def unknown(where: str, why: str) -> RetryableError:
    """Whether the commit happened cannot be known."""
    return RetryableError(
        Code.OUTCOME_UNKNOWN, f"{where}: {why}; whether the commit happened is not known: ask again with the same ids"
    )


def _told(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None)
    text = str(error).strip().partition("\n")[0]
    name = state if isinstance(state, str) else type(error).__name__
    return f"{name}: {text}" if text else name
