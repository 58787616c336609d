"""Decides whether Redis is asked at all: not while it keeps failing, and again once a probe has succeeded."""

from __future__ import annotations

import random
from collections.abc import Callable

FAILURES_MAX = 3
"""Failed calls in a row after which nobody is asked any more until a probe succeeds."""
BACKOFF_MS = 100
BACKOFF_MS_MAX = 5_000


class Breaker:
    """Closed until FAILURES_MAX failures in a row. Probes come after a growing wait; after a successful one a single
    failure opens it again."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._failures = 0
        self._openings = 0
        self._probe_at_s = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether Redis is asked."""
        return self._failures < FAILURES_MAX

    def is_probe_due(self) -> bool:
        """Whether it is time to look if Redis is back."""
        return not self.is_closed and self._monotonic_s() >= self._probe_at_s

    def succeeded(self) -> None:
        """A call went well."""
        self._failures = self._openings = 0

    def probed(self) -> None:
        """A probe went well."""
        self._failures = FAILURES_MAX - 1

    def failed(self) -> bool:
        """A call or a probe did not; whether that opened it."""
        was_closed = self.is_closed
        self._failures += 1
        if self.is_closed:
            return False
        longest_ms = min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** min(self._openings, 10))
        self._openings += 1
        # Spread, so that processes do not come back in step.
        self._probe_at_s = self._monotonic_s() + random.uniform(0.5, 1.0) * longest_ms / 1_000
        return was_closed
