"""Decides what is published when: outbox rows that are due, which is also every timer, retry, lease and deadline."""

from __future__ import annotations

from placet.runtime.ports import Outlet, Store

RELAY_MAX = 512
"""Rows claimed at a time."""
CLAIM_MS = 30_000
"""How long a claimed row stays away from other relays: longer than any publish, shorter than anybody's patience."""
IDLE_MS = 60_000
"""Look again at least this often, whatever the store said about the next due row."""


class Relay:
    """Publishes what is due. Two relays are harmless; a row published twice has one message id."""

    def __init__(self, store: Store, outlet: Outlet) -> None:
        self._store = store
        self._outlet = outlet

    async def turn(self) -> int:
        """Publish what is due now. Returns how many milliseconds may pass before the next row is due (0: more now)."""
        rows = await self._store.claim_due(RELAY_MAX, CLAIM_MS)
        if rows:
            confirmed = await self._outlet.publish(rows)
            if confirmed:
                await self._store.discard(confirmed)
        if len(rows) == RELAY_MAX:
            return 0
        now, due = await self._store.next_due_ms()
        return IDLE_MS if due is None else max(0, min(IDLE_MS, due - now))
