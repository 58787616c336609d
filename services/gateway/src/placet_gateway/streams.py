"""Decides how a run is watched: its audit leaves as server-sent events, each exactly once, until the run ends.

The facts are read from the store; a hint only says that it is worth looking. An event's id is the leaf's number in the
run, so that a reader who was cut off goes on where it stopped. Between them come, to who asks for it, pieces of replies
that models are giving: without an id, since nothing is made of them and nobody can ask for them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from placet.errors import RetryableError
from placet.partials import Partial
from placet.runtime.ports import Door, Overheard
from placet.views import RunEvent

HEARTBEAT_S = 15.0
"""A comment this often keeps proxies from cutting a silent stream; each time the store is asked as well."""
PIECES_MAX = 4_096
"""Pieces of replies that wait for a slow reader. The oldest go: the whole reply is a fact soon."""
RETRY_MS = 1_000
"""How long a browser waits before it reconnects."""

Look = Callable[[int], Awaitable[tuple[list[RunEvent], str | None]]]
"""The events after a number, and the run's status where that is an end."""


class Streams:
    """All open streams of one process, so that a stopping server can end them."""

    def __init__(self, door: Door, heartbeat_s: float = HEARTBEAT_S, overheard: Overheard | None = None) -> None:
        self._door = door
        self._overheard = overheard
        self._heartbeat_s = heartbeat_s
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every stream now; readers reconnect elsewhere, or later."""
        self._closing.set()

    async def closed(self) -> None:
        """Wait until every stream is to end."""
        await self._closing.wait()

    async def follow(self, run_id: str, after: int, look: Look, *, partial: bool = False) -> AsyncIterator[str]:
        """The stream's text: events after number `after`, then `end` with the run's status. `partial`: and pieces of
        replies, as they come."""
        pieces: deque[Partial] = deque(maxlen=PIECES_MAX)
        heard = asyncio.Event()

        def overhear(piece: Partial) -> None:
            pieces.append(piece)
            heard.set()

        listens = partial and self._overheard is not None
        end_listening = self._overheard.overhear(run_id, overhear) if self._overheard and listens else None
        changes = self._door.changes(run_id)
        # Listening begins before the first look, so that nothing committed in between is missed.
        hint = asyncio.ensure_future(_next(changes))
        closing = asyncio.ensure_future(self._closing.wait())
        speaking = asyncio.ensure_future(heard.wait())
        try:
            yield f"retry: {RETRY_MS}\n\n"
            looks = True
            events: list[RunEvent] = []
            while True:
                while pieces:
                    yield spoken(pieces.popleft())
                if not looks:
                    events, end = [], None
                else:
                    events, end, after = await self._look(look, after)
                for event in events:
                    yield told(event)
                if end is not None:
                    yield _frame("end", {"status": end})
                    return
                waiting = {hint, closing, speaking}
                await asyncio.wait(waiting, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if closing.done() or (hint.done() and not hint.result()):
                    return
                looks = hint.done() or not speaking.done()
                if speaking.done():
                    heard.clear()
                    speaking = asyncio.ensure_future(heard.wait())
                elif not hint.done():
                    yield ": still here\n\n"
                if hint.done():
                    hint = asyncio.ensure_future(_next(changes))
        finally:
            if end_listening is not None:
                end_listening()
            for waiter in (hint, closing, speaking):
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


def spoken(piece: Partial) -> str:
    """A piece of a reply as it goes over the wire."""
    return _frame("turn.partial", piece.model_dump(mode="json", include={"turn", "attempt", "at", "text"}))


def _frame(kind: str, data: dict[str, Any], event_id: int | None = None) -> str:
    # JSON on one line, in ASCII: no text of an agent can begin a line of its own.
    name = "".join(kind.split())
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
