"""Decides how an open page learns that something has changed: a hint on a stream, and then it asks for what is true.

A hint says nothing about what has changed, so that nothing of another tenant is in it. Several within a moment are one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from placet.addressees import RUN
from placet.ids import Address
from placet_gateway.inbox.pages import PageRoute, Visit, Visiting, session_of
from placet_gateway.streams import RETRY_MS

router = APIRouter(prefix="/inbox/events", route_class=PageRoute, include_in_schema=False)

MOMENT_S = 0.15
"""Hints within it are one: a run that does much does not have every page ask all the time."""
BEAT_S = 10.0
"""How often a silent stream is written to, and the session looked at again."""


@router.get("")
async def events(at: Visiting, run: str = "") -> Response:
    """Hints about a run, or about anything."""
    if run:
        stored = await at.here.reader.state(at.here.tenant, Address(run, RUN, ""))
        if stored is None:
            return Response(status_code=204)  # nothing to listen to: do not reconnect
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_hints(at, run or None), media_type="text/event-stream", headers=headers)


async def _hints(at: Visit, run_id: str | None) -> AsyncIterator[str]:
    changes = at.here.door.changes(run_id)
    waiting = asyncio.ensure_future(_next(changes))
    closing = asyncio.ensure_future(at.here.streams.closed())
    try:
        # The first one at once: what happened before the page listened is seen too.
        yield f"retry: {RETRY_MS}\n\nevent: changed\ndata: {{}}\n\n"
        while _is_signed_in(at.request):
            await asyncio.wait({waiting, closing}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if closing.done():
                return
            if not waiting.done():
                yield ": still here\n\n"
                continue
            if not waiting.result():
                return
            waiting = asyncio.ensure_future(_next(changes))
            await asyncio.sleep(MOMENT_S)
            yield "event: changed\ndata: {}\n\n"
    finally:
        for task in (waiting, closing):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if hasattr(changes, "aclose"):
            await changes.aclose()


async def _next(changes: AsyncIterator[None]) -> bool:
    """Wait for a hint; false when there will be no more."""
    return await anext(changes, False) is not False


def _is_signed_in(request: Request) -> bool:
    return session_of(request) is not None
