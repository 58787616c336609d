"""Decides what time it is, for stores that have no server to ask."""

from __future__ import annotations

import threading
import time

from placet.instants import Instant


class SystemClock:
    """The machine's clock. It never goes backwards within a process, whatever time synchronisation does to it."""

    _lock = threading.Lock()
    _last_ms = 0

    def now_ms(self) -> Instant:
        """Milliseconds since 1970, UTC; the latest that anybody in this process has been told, or later."""
        with SystemClock._lock:
            SystemClock._last_ms = max(SystemClock._last_ms, time.time_ns() // 1_000_000)
            return Instant(SystemClock._last_ms)
