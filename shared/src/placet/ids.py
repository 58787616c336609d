"""Decides identities: every id is derived from what it identifies, so that a replay mints the same one.

Nothing here draws a random number. Ids that an outsider mints (`run_id`, `decision_id`) arrive from outside.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Address(NamedTuple):
    """Where a message goes: the state of one machine under one key of one run."""

    run_id: str
    machine: str
    key: str

    def text(self) -> str:
        """`machine:run_id/key`, for logs, causes and derived ids."""
        return f"{self.machine}:{self.run_id}/{self.key}"


def digest_hex(*parts: str) -> str:
    """SHA-256 over the parts joined by line feeds, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def derived_id(prefix: str, *parts: str) -> str:
    """`prefix_` and the first 32 digits of the digest of the parts."""
    return f"{prefix}_{digest_hex(*parts)[:32]}"


def message_id(sender: Address, version: int, position: int) -> str:
    """The id of the `position`-th message that the step to `version` of `sender` sent."""
    return derived_id("msg", sender.text(), str(version), str(position))


def operation_id(run_id: str, thread_id: str, turn: int, call_id: str) -> str:
    """Minted once, when the call is proposed; the same in request, attempt, key, result and audit."""
    return derived_id("op", run_id, thread_id, str(turn), call_id)


def trace_id(run_id: str, attempt: int) -> str:
    """The trace of one attempt of a run (W3C Trace Context: 32 hexadecimal digits): every continuation has its own."""
    return digest_hex("trace", run_id, str(attempt))[:32]


def tool_call_id(turn: int, position: int, model_call_id: str) -> str:
    """The id of a tool call within its thread.

    Models repeat call ids across turns; a repeated id with equal input would otherwise find the approval of the
    earlier call. Hence the turn is part of it. Ids that are not plain text become a digest.
    """
    plain = 0 < len(model_call_id) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in model_call_id)
    shown = model_call_id if plain else derived_id("call", str(position), model_call_id)[:21]
    return f"{shown}.{turn}"


def fraction_of(*parts: str) -> float:
    """A number in [0, 1) derived from the parts: jitter without a random generator."""
    return int(digest_hex(*parts)[:13], 16) / float(1 << 52)
