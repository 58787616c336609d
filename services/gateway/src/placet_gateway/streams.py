"""Decides how a run is watched: its audit leaves as server-sent events, each exactly once, until the run ends.

The facts are read from the store; a hint only says that it is worth looking. An event's id is the leaf's number in the
run, so that a reader who was cut off goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from placet.errors import RetryableError
from placet.runtime.ports import Door
from placet.views import RunEvent

HEARTBEAT_S = 15.0
"""A comment this often keeps proxies from cutting a silent stream; each time the store is asked as well."""
RETRY_MS = 1_000
"""How long a browser waits before it reconnects."""

Look = Callable[[int], Awaitable[tuple[list[RunEvent], str | None]]]
"""The events after a number, and the run's status where that is an end."""


class Streams:
    """All open streams of one process, so that a stopping server can end them."""

    def __init__(self, door: Door, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._door = door
        self._heartbeat_s = heartbeat_s
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every stream now; readers reconnect elsewhere, or later."""
        self._closing.set()

    async def follow(self, run_id: str, after: int, look: Look) -> AsyncIterator[str]:
        """The stream's text: events after number `after`, then `end` with the run's status."""
        changes = self._door.changes(run_id)
        # Listening begins before the first look, so that nothing committed in between is missed.
        hint = asyncio.ensure_future(_next(changes))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            yield f"retry: {RETRY_MS}\n\n"
            while True:
                events, end, after = await self._look(look, after)
                for event in events:
                    yield told(event)
                if end is not None:
                    yield _frame("end", {"status": end})
                    return
                waiting = {hint, closing}
                await asyncio.wait(waiting, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if closing.done() or (hint.done() and not hint.result()):
                    return
                if hint.done():
                    hint = asyncio.ensure_future(_next(changes))
                else:
                    yield ": still here\n\n"
        finally:
            for waiter in (hint, closing):
                waiter.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiter
            if hasattr(changes, "aclose"):
                await changes.aclose()

    @staticmethod
    async def _look(look: Look, after: int) -> tuple[list[RunEvent], str | None, int]:
        try:
            events, end = await look(after)
        except RetryableError:
            # The store is away; the stream stays and looks again with the next heartbeat.
            return [], None, after
        return events, end, events[-1].seq if events else after


async def _next(changes: AsyncIterator[None]) -> bool:
    """Wait for a hint; false when there will be no more."""
    try:
        await anext(changes)
    except StopAsyncIteration:
        return False
    return True


def told(event: RunEvent) -> str:
    """One event as it goes over the wire."""
    return _frame(event.kind, event.model_dump(mode="json", exclude_none=True), event.seq)


def _frame(kind: str, data: dict[str, Any], event_id: int | None = None) -> str:
    # JSON on one line, in ASCII: no text of an agent can begin a line of its own.
    name = "".join(kind.split())
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
