"""Decides how an open window hears that something was committed: by hints, coalesced, never taken for facts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from placet.adapters.rabbitmq.hearing import Channel, Hearing
from placet.topology import EVENTS_EXCHANGE, HINTS_KEY, PREFIX

HINTS = Channel(EVENTS_EXCHANGE, (HINTS_KEY,), f"{PREFIX}watch.")


class Watch:
    """Hears hints. After every gap everybody looks again."""

    def __init__(self, url: str, name: str) -> None:
        self._hearing = Hearing(url, name, HINTS, self._hinted, self._wake_all)
        self._watchers: dict[str | None, set[asyncio.Event]] = {}

    def start(self) -> None:
        """Begin to connect."""
        self._hearing.start()

    async def close(self) -> None:
        """End the connection. Twice is harmless."""
        await self._hearing.close()

    @property
    def trouble(self) -> str | None:
        """Why no hint can come now; None when all is well."""
        return self._hearing.trouble

    async def changes(self, run_id: str | None) -> AsyncIterator[None]:
        """As ports.Door.changes."""
        changed = asyncio.Event()
        self._watchers.setdefault(run_id, set()).add(changed)
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            watchers = self._watchers[run_id]
            watchers.discard(changed)
            if not watchers:
                del self._watchers[run_id]

    def _hinted(self, body: bytes) -> None:
        run_ids = [line.rpartition("\t")[2] for line in body.decode(errors="replace").split("\n")]
        if run_ids == [""]:
            self._wake_all()  # more than fits into a hint
            return
        for run_id in (*run_ids, None):
            for changed in self._watchers.get(run_id, ()):
                changed.set()

    def _wake_all(self) -> None:
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()
