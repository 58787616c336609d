"""Decides who is asking: the one place where a request becomes a person.

`Identity` is what the routes know. `DevelopmentIdentity` is for one person on one machine: whoever can read the token
file is let in and says by `Placet-Person` whom they speak for. Signing in for real replaces this module's second half.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ValidationError

from placet.errors import Code, ContractError, TerminalError
from placet.values import Principal, PrincipalKind

PERSON_HEADER = "Placet-Person"
TOKEN_FILE = "token"

Role = Literal["reader", "submitter", "reviewer"]
"""What the caller is about to do. It grants nothing: the machines decide who may vote."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose data the caller sees, and who the caller is."""

    tenant: str
    principal: Principal


class Identity(Protocol):
    """Tells who is asking, from the request's headers alone, or refuses."""

    def person(self, headers: Mapping[str, str], role: Role) -> Principal:
        """Raises PlacetError(UNAUTHENTICATED) when nobody known is asking."""


class DevelopmentIdentity:
    """One token for one machine; the person is taken at their word.

    Without the header, who submits is `developer` and who decides is `reviewer`: two people, so that separation of
    duties holds from the first run on.
    """

    DEFAULTS: Mapping[Role, str] = {"reader": "developer", "submitter": "developer", "reviewer": "reviewer"}

    WHERE = "it is in the file `token` of the data directory that `placet dev` names"

    def __init__(self, token: str, where: str = WHERE) -> None:
        """`where`: tells who comes without the token where it is."""
        self._token = token.encode()
        self._where = where

    def person(self, headers: Mapping[str, str], role: Role) -> Principal:
        """See `Identity`. The person's name is UTF-8 in the header."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            raise ContractError(Code.UNAUTHENTICATED, f"a bearer token is needed: {self._where}")
        return _person(headers.get(PERSON_HEADER.lower()), self.DEFAULTS[role])


def _person(named: str | None, otherwise: str) -> Principal:
    if named is None:
        return Principal(kind=PrincipalKind.HUMAN, id=otherwise)
    try:
        # Header values arrive as Latin-1, whatever was sent.
        return Principal(kind=PrincipalKind.HUMAN, id=named.encode("latin-1").decode("utf-8"))
    except (UnicodeError, ValidationError) as error:
        raise ContractError(
            Code.PARAMETER_INVALID,
            f"{PERSON_HEADER} must be a name of 1 to 128 characters on one line, in UTF-8",
            parameter=PERSON_HEADER,
        ) from error


def development_token(data_dir: Path) -> str:
    """The token in `data_dir`, made on first use: 256 bits in a file that only its owner can read.

    Raises TerminalError(SETTING_INVALID) for a file that others can read, or that holds no token.
    """
    path = data_dir / TOKEN_FILE
    data_dir.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _kept_token(path)
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    return token


def _kept_token(path: Path) -> str:
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise TerminalError(Code.SETTING_INVALID, f"others can read {path}: run chmod 600 {path}")
    token = path.read_text(encoding="ascii").strip()
    if len(token) < 32:
        raise TerminalError(Code.SETTING_INVALID, f"{path} holds no token: remove it, a new one is made")
    return token
