"""Decides how what has just been committed gets out: at once, in the background, by the process that committed it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from placet.errors import PlacetError
from placet.runtime.ports import OutboxRow, Outlet, Store
from placet.runtime.relay import told_confirmed
from placet.topology import EVENTS

log = logging.getLogger("placet.eager")

EAGER_ROWS_MAX = 10_000
"""Rows that wait for a slow broker in one process. What comes then is left to its claim and the relay."""


class Eager:
    """Publishes what has just been committed, in the background: nobody waits for the broker, and rows keep their
    order. What cannot be published now is a row whose claim lapses, so the relay publishes it."""

    def __init__(self, store: Store, outlet: Outlet) -> None:
        self._store = store
        self._outlet = outlet
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Rows that wait here for the broker."""
        return self._waiting

    @property
    def connections(self) -> int:
        """As ports.Outlet."""
        return self._outlet.connections

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """As ports.Outlet; returns at once and confirms nothing."""
        if self._waiting + len(rows) > EAGER_ROWS_MAX:
            log.warning("eager.full", extra={"waiting": self._waiting, "rows": len(rows)})
            return ()
        self._waiting += len(rows)
        task = asyncio.get_running_loop().create_task(self._publish(rows), name="eager")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ()

    async def finished(self, timeout_ms: int) -> None:
        """Wait until all is published, but no longer than that; what is given up then lapses."""
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=timeout_ms / 1_000)
            for task in unfinished:
                task.cancel()

    async def _publish(self, rows: Sequence[OutboxRow]) -> None:
        try:
            confirmed = set(await self._outlet.publish(rows))
            await told_confirmed(self._store, [row for row in rows if row.destination == EVENTS], confirmed)
        except PlacetError as error:
            log.warning("eager.left_to_the_relay", extra={"rows": len(rows), "reason": error.message})
        except Exception:  # a defect: nobody awaits this task, and the relay meets it again and says so in health
            log.exception("eager.failed", extra={"rows": len(rows)})
        finally:
            self._waiting -= len(rows)
