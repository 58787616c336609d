"""Decides how a browser stays signed in: a session that says who it is, and a secret that only its own pages know.

`Sessions` is what the pages know. `SealedSessions` keeps nothing: the cookie says who it is, sealed with a key of the
installation, so that it outlives a restart and is good at every gateway of it. What is signed out is remembered only by
the process that was told; a new key ends every session everywhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from placet.values import Principal

LONGEST_MS = 12 * 3_600_000
"""From signing in: a working day."""
IDLE_MS = 2 * 3_600_000
"""From the last page."""
RENEW_AFTER_MS = 5 * 60_000
"""A cookie that is older is replaced with the next page."""
SIGNED_OUT_MAX = 10_000
"""Of sessions that a process remembers as ended, the oldest first to go: by then they are over by themselves."""
TICKET_MS = 10 * 60_000
"""How long a link that signs in is good for."""


@dataclass(frozen=True, slots=True)
class Session:
    """One browser of one person."""

    id: str
    person: Principal
    signed_in_at_ms: int
    seen_at_ms: int
    secret: bytes

    def token(self, *about: str) -> str:
        """What only a page of this session can have: proof that the server has given it out about just this."""
        text = json.dumps(about).encode()
        return base64.urlsafe_b64encode(hmac.digest(self.secret, text, "sha256")).decode().rstrip("=")

    def has_given(self, token: str, *about: str) -> bool:
        """Whether `token` is that proof."""
        return hmac.compare_digest(token.encode(), self.token(*about).encode())


class Sessions(Protocol):
    """Who is signed in. Never raises for a cookie that is none."""

    def sign_in(self, person: Principal, now_ms: int) -> str:
        """The cookie of a new session."""

    def find(self, cookie: str, now_ms: int) -> Session | None:
        """Whose cookie that is; None where it is nobody's, any more."""

    def renewed(self, session: Session, now_ms: int) -> str | None:
        """The cookie to use from now on, where it is time for another."""

    def sign_out(self, session: Session) -> None:
        """End it."""


class SealedSessions:
    """As the module says. `secret`: what only this installation knows."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"placet web sessions", "sha256")
        self._signed_out: dict[str, None] = {}

    def sign_in(self, person: Principal, now_ms: int) -> str:
        """See `Sessions`."""
        return self._sealed(secrets.token_urlsafe(24), person, now_ms, now_ms)

    def find(self, cookie: str, now_ms: int) -> Session | None:
        """See `Sessions`."""
        text, _, seal = cookie.partition(".")
        if not seal or not hmac.compare_digest(seal.encode(), self._seal(text).encode()):
            return None
        try:
            said = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            person = Principal.model_validate_json(json.dumps(said["person"]))
            name, since_ms, seen_ms = str(said["id"]), int(said["since_ms"]), int(said["seen_ms"])
        except (ValueError, KeyError, TypeError, binascii.Error, ValidationError):
            return None
        is_over = now_ms - since_ms >= LONGEST_MS or now_ms - seen_ms >= IDLE_MS
        if is_over or name in self._signed_out:
            return None
        secret = hmac.digest(self._key, f"session {name}".encode(), "sha256")
        return Session(name, person, since_ms, seen_ms, secret)

    def renewed(self, session: Session, now_ms: int) -> str | None:
        """See `Sessions`."""
        if now_ms - session.seen_at_ms < RENEW_AFTER_MS:
            return None
        return self._sealed(session.id, session.person, session.signed_in_at_ms, now_ms)

    def sign_out(self, session: Session) -> None:
        """See `Sessions`."""
        self._signed_out[session.id] = None
        while len(self._signed_out) > SIGNED_OUT_MAX:
            del self._signed_out[next(iter(self._signed_out))]

    def _sealed(self, name: str, person: Principal, since_ms: int, seen_ms: int) -> str:
        said = {"id": name, "person": person.model_dump(mode="json"), "since_ms": since_ms, "seen_ms": seen_ms}
        text = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
        return f"{text}.{self._seal(text)}"

    def _seal(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=32).hexdigest()


class Tickets:
    """Links that sign a person in once, soon after they were made: for the terminal of the very machine."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[Principal, int]] = {}

    def give(self, person: Principal, now_ms: int) -> str:
        """A new one."""
        ticket = secrets.token_urlsafe(32)
        self._given[_digest(ticket)] = (person, now_ms + TICKET_MS)
        return ticket

    def take(self, ticket: str, now_ms: int) -> Principal | None:
        """Whom it signs in, this once; None for one that was used, is too old, or is none."""
        person, until_ms = self._given.pop(_digest(ticket), (None, 0))
        return person if now_ms < until_ms else None


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
