"""Decides what the approval rules ask before anything else: is a decision the word of whom it names?

Three answers to that: nobody is believed, whoever stands at this process's own door is, or a signature is
(`placet.believing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from placet.errors import Code, Failure
from placet.facts import Facts
from placet.instants import Instant
from placet.messages import DecideApproval


@dataclass(frozen=True, slots=True)
class Heard:
    """A voice that is believed."""

    not_before_ms: Instant | None = None
    until_ms: Instant | None = None
    """Between these instants of the store's clock it may be recorded; a repeat of what was recorded has no such end."""


class Voices(Protocol):
    """Tells whether a decision is the word of whom it names."""

    def hear(self, message: DecideApproval, facts: Facts, now_ms: Instant) -> Heard | Failure:
        """What lets it be believed, or why it is not: SIGNATURE_INVALID, SIGNATURE_MISMATCH, or a code of its form."""


class NoVoices:
    """Believes nobody: what a machine has that has not been told whom to believe."""

    def hear(self, message: DecideApproval, facts: Facts, now_ms: Instant) -> Heard | Failure:
        """As Voices."""
        return Failure(code=Code.SIGNATURE_INVALID, message="no decision is believed here: nobody's key is known")


class OwnDoor:
    """Believes what comes by the queue of this very process.

    For the whole system in one process, where that queue is an object in memory: only the gateway in the same process
    puts decisions into it, after it has found out who is asking. Whoever could put another one there could as well
    change the rules, or write to the database file. With a queue that anybody else can reach it must not be used.
    """

    def hear(self, message: DecideApproval, facts: Facts, now_ms: Instant) -> Heard | Failure:
        """As Voices."""
        return Heard()
