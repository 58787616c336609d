"""Decides what must occur nowhere: secrets that the simulated processes hold, in every form in which they may leak.

They are where real ones are: a model's key comes back in the provider's error, a database's password in the driver's,
the signing key signs every decision, a tool reads its own from its environment. Whatever is kept, sent, told or logged
is searched for them when the world has ended.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from placet.adapters.models import caller
from placet.errors import Code, RetryableError
from placet.hosting.logs import JsonLines
from placet.runtime.ports import Unit
from tests.signing import GATEWAY
from tests.simulation.history import History

MODEL_KEY = "sk-canary-7f2b9c1d4e6a8035"
TOOL_TOKEN = "tok-canary-91d0c3e57ab2f468"
DATABASE_PASSWORD = "pw-canary-c04e8a6b2d917f35"
STORE_URL = f"postgresql://placet:{DATABASE_PASSWORD}@db.internal/placet"

_LOG = logging.getLogger("placet")


def forms_of(secret: bytes) -> tuple[bytes, ...]:
    """As it is, in hexadecimal digits, and in both base64 alphabets without the end, which is padded or not."""
    end = -(len(secret) % 3) or None
    encoded = {base64.b64encode(secret[:end]), base64.urlsafe_b64encode(secret[:end])}
    return (secret, secret.hex().encode(), secret.hex().upper().encode(), *sorted(encoded))


CANARIES: Mapping[str, tuple[bytes, ...]] = {
    "a model's key": forms_of(MODEL_KEY.encode()),
    "a tool's token": forms_of(TOOL_TOKEN.encode()),
    "the database's password": forms_of(DATABASE_PASSWORD.encode()),
    "the gateway's signing key": forms_of(GATEWAY._private.private_bytes_raw()),
}


class Spoken:
    """Everything that left a process, or that it kept."""

    def __init__(self) -> None:
        self._said: list[bytes] = []

    def text(self, *texts: str) -> None:
        """A reply, a row, a line of the log."""
        self._said += [text.encode(errors="surrogatepass") for text in texts]

    def unit(self, unit: Unit) -> None:
        """What a commit has written, but for its rows."""
        said = self._said
        said += [write.body for write in unit.states]
        said += [outgoing.body for outgoing in unit.outbox]
        for entry in unit.journal:
            said += (entry.message, entry.facts.encode())
        for letter in unit.dead_letters:
            said += (letter.body, letter.reason.encode())

    def search(self, history: History) -> None:
        """Violate for every secret that was said."""
        everything = b"\n".join(self._said)
        for name, forms in CANARIES.items():
            found = next((at for form in forms if (at := everything.find(form)) >= 0), None)
            around = "" if found is None else everything[max(0, found - 60) : found + 40].decode(errors="replace")
            history.check(found is None, "I25", f"{name} is told: …{around}…")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the log meanwhile, as a service would write it."""
        handler = _Handler(self)
        _LOG.addHandler(handler)
        was_passed_on, _LOG.propagate = _LOG.propagate, False
        try:
            yield
        finally:
            _LOG.propagate = was_passed_on
            _LOG.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, spoken: Spoken) -> None:
        super().__init__(logging.INFO)
        self._spoken = spoken
        self.setFormatter(JsonLines("simulation"))

    def emit(self, record: logging.LogRecord) -> None:
        self._spoken.text(self.format(record))


def provider_says(what: str) -> str:
    """A provider's error that echoes the key it was called with, as the adapter shows it."""
    return caller._shown(RuntimeError(f"{what}: 401 for Bearer {MODEL_KEY}"), [MODEL_KEY])


def store_away() -> RetryableError:
    """The driver's error, with the address it was given, password and all."""
    return RetryableError(Code.STORE_UNAVAILABLE, f"{STORE_URL}: the store is away")
