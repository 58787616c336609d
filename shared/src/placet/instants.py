"""Decides how time is written: an instant is an integer of milliseconds since 1970, UTC.

No function here reads a clock. The store's clock is the only one compared with a deadline (DESIGN §4).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NewType

Instant = NewType("Instant", int)
"""Milliseconds since 1970-01-01T00:00:00Z."""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def later(instant: Instant, by_ms: int) -> Instant:
    """The instant `by_ms` milliseconds after `instant`."""
    return Instant(instant + by_ms)


def rfc3339(instant: Instant) -> str:
    """RFC 3339 text in UTC with milliseconds, e.g. `2026-08-08T00:00:00.000Z`."""
    whole, ms = divmod(instant, 1_000)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03d}Z"
