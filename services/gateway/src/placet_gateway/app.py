"""Decides what the gateway is made of: one FastAPI application over a door, a read side and an identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastapi import FastAPI

from placet.describing import Described
from placet.runtime.ports import Door, Overheard
from placet.runtime.reading import Reader
from placet.views import AppView
from placet_gateway import application as application_routes
from placet_gateway import (
    batches,
    freezes,
    instructions,
    letters,
    openapi,
    operations,
    patches,
    problems,
    requests,
    runs,
)
from placet_gateway.context import Gateway, Health, SendAgain, Signer, wall_clock_ms
from placet_gateway.guards import Guard
from placet_gateway.identity import Identity
from placet_gateway.inbox import routes as inbox_pages
from placet_gateway.inbox.pages import Inbox
from placet_gateway.streams import HEARTBEAT_S, Streams

ASK_TIMEOUT_MS = 10_000
"""How long a caller waits for the machines before being told that the outcome is unknown."""
API_VERSION = "1"


def gateway(
    door: Door,
    reader: Reader,
    identity: Identity,
    *,
    tenant: str,
    application: Described | AppView | None = None,
    health: Health | None = None,
    hosts: Iterable[str] = (),
    signer: Signer | None = None,
    operators: bool = False,
    send_again: SendAgain | None = None,
    ask_timeout_ms: int = ASK_TIMEOUT_MS,
    heartbeat_s: float = HEARTBEAT_S,
    overheard: Overheard | None = None,
    inbox: Inbox | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> FastAPI:
    """The HTTP API. `hosts`: names it answers to besides loopback. `signer`: vouches for decisions, where the rules
    that take them are in another process. `operators`: whether dead letters of no known tenant are shown as well.
    `inbox`: the web pages; without it there are none. `send_again`: publishes what outsiders once did.
    `app.state.gateway.streams.close()` ends all streams, which a stopping server should do first, since they would
    outlast its patience.
    """
    app = FastAPI(
        title="Placet",
        version=API_VERSION,
        description="Runs of agent teams, and the questions they wait for. Errors are RFC 9457 problems.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.gateway = Gateway(
        door=door,
        reader=reader,
        identity=identity,
        tenant=tenant,
        application=application,
        health=health,
        streams=Streams(door, heartbeat_s, overheard),
        ask_timeout_ms=ask_timeout_ms,
        signer=signer,
        operators=operators,
        send_again=send_again,
        now_ms=now_ms,
    )
    for part in (runs, instructions, patches, requests, operations, freezes, batches, letters, application_routes):
        app.include_router(part.router)
    if inbox is not None:
        inbox_pages.install(app, inbox)
    problems.install(app)
    bodies = (
        runs.RunSubmission,
        runs.Fork,
        runs.Cancellation,
        requests.Decision,
        requests.Revocation,
        batches.Batch,
        patches.PlanPatch,
    )
    openapi.install(
        app, (*bodies, instructions.Instruction, instructions.Interruption, letters.Redrive, freezes.FreezeOrder)
    )
    app.add_middleware(Guard, hosts=tuple(hosts))
    return app
