"""Decides how `placet dev` runs: the embedded system and the gateway in one process, on loopback."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from placet.adapters.models import ModelCaller
from placet.application import App
from placet.errors import Code, ContractError
from placet.ids import Address
from placet.messages import THREAD
from placet.runtime.process import calm_collector
from placet_embedded.embedded import Embedded
from placet_gateway import gateway
from placet_gateway.context import wall_clock_ms
from placet_gateway.identity import DevelopmentIdentity, development_token
from placet_gateway.inbox.pages import Inbox
from placet_gateway.inbox.sessions import SealedSessions, Tickets
from placet_gateway.server import Server

log = logging.getLogger("placet.embedded")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REVIEWER = DevelopmentIdentity.DEFAULTS["reviewer"]
WARNING = (
    "Development mode. This inbox is one machine's own: whoever has its token is believed to be whoever they say. Do "
    "not expose it."
)


async def serve(
    app: App,
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7300,
    tenant: str = "default",
    on_ready: Callable[[str, str], None] = lambda url, way_in: None,
    on_stopping: Callable[[Sequence[str]], None] = lambda waits_for: None,
) -> None:
    """Run until SIGINT or SIGTERM, which drain; a second one ends at once. `on_ready` gets the URL,
    and the path of a link that signs the reviewer in once. `on_stopping` gets what is still at work, and is waited for.

    Raises ContractError(SETTING_INVALID) for an address that is not loopback: development mode trusts whoever
    reaches it with the token.
    """
    if host not in LOOPBACK:
        raise ContractError(
            Code.SETTING_INVALID, f"development mode listens on loopback only, not on {host}", pointer="/host"
        )
    models = ModelCaller(app)
    embedded = await Embedded.start(app, data_dir, models=models)
    warming = asyncio.create_task(models.warm(), name="models")
    try:
        token = development_token(data_dir)
        inbox = Inbox(SealedSessions(token), development=True, warning=WARNING, tickets=Tickets())
        http = gateway(
            embedded.door,
            embedded.store,
            DevelopmentIdentity(token),
            tenant=tenant,
            application=app,
            health=embedded.loops.health,
            operators=True,
            inbox=inbox,
            overheard=embedded.partials,
        )
        config = uvicorn.Config(
            http, host=host, port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=2
        )
        server = Server(config, before_exit=http.state.gateway.streams.close)
        calm_collector()
        await _until_stopped(
            server, embedded, lambda url: on_ready(url, inbox.way_in(REVIEWER, wall_clock_ms())), on_stopping
        )
    finally:
        await asyncio.wait([warming])  # a thread that imports cannot be interrupted
        await embedded.stop()


async def _until_stopped(
    server: Server,
    embedded: Embedded,
    on_ready: Callable[[str], None],
    on_stopping: Callable[[Sequence[str]], None],
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            os._exit(130)  # the second signal: end now; everything promised is already on disk
        server.exit_soon()
        on_stopping(sorted({_told(owner) for owner in embedded.invoker.owners()}))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve(), name="http")
    try:
        if (port := await server.port_of(serving)) is not None:
            on_ready(f"http://{server.config.host}:{port}")
        await embedded.loops.ended_or(serving)
    finally:
        server.exit_soon()
        await serving


def _told(owner: Address) -> str:
    """What is at work for a state, in a few words."""
    what = "a model" if owner.machine == THREAD else "a tool"
    return f"{what} for {owner.key} of {owner.run_id}"
