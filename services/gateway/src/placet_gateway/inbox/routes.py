"""Decides which pages there are."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from placet_gateway.inbox import (
    assets,
    deciding,
    editing,
    feeds,
    history,
    queue_pages,
    run_pages,
    signing_in,
)
from placet_gateway.inbox.pages import Inbox, PageRoute, error_page

_rest = APIRouter(prefix="/inbox", route_class=PageRoute, include_in_schema=False)


@_rest.get("/{path:path}")
async def nowhere(path: str, request: Request) -> Response:
    """No page."""
    return error_page(request, 404, "There is no such page.")


def install(app: FastAPI, inbox: Inbox) -> None:
    """Add the pages to the gateway."""
    app.state.inbox = inbox
    parts = (assets, signing_in, queue_pages, feeds, history, run_pages, editing, deciding)
    for part in parts:
        app.include_router(part.router)
    app.include_router(signing_in.leaving)
    app.include_router(_rest)
