"""Decides what is remembered of a simulated world: events, violations, and how often interesting things happened."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.scheduler import START_MS


class Event(NamedTuple):
    """Something that happened."""

    at_ms: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{(self.at_ms - START_MS) / 1_000:>10.3f}s  {self.kind:<10} {self.text}"


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold; `invariant` is its number in the list of invariants."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class History:
    """One seed's record. `sometimes` counts branches that a long simulation must have seen."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.sometimes: Counter[str] = Counter()
        self.now_ms = START_MS

    def note(self, kind: str, text: str) -> None:
        """Remember an event."""
        self.events.append(Event(self.now_ms, kind, text))

    def violate(self, invariant: str, text: str) -> None:
        """An invariant does not hold; the world ends at the next step."""
        self.violations.append(Violation(invariant, text))
        self.note("VIOLATION", f"{invariant}: {text}")

    def check(self, condition: bool, invariant: str, text: str) -> None:
        """Violate unless `condition`."""
        if not condition:
            self.violate(invariant, text)

    def digest(self) -> str:
        """A hash over all events: two runs of one seed have the same."""
        hashed = hashlib.sha256()
        for event in self.events:
            hashed.update(f"{event.at_ms}\t{event.kind}\t{event.text}\n".encode())
        return hashed.hexdigest()
