"""Decides how `placet dev` runs: the embedded system and the gateway in one process, on loopback."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import uvicorn

from placet.adapters.models import ModelCaller
from placet.application import App
from placet.errors import Code, ContractError
from placet.runtime.process import calm_collector
from placet_embedded.embedded import Embedded
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity, development_token
from placet_gateway.server import Server

log = logging.getLogger("placet.embedded")

LOOPBACK = ("127.0.0.1", "localhost", "::1")


async def serve(
    app: App,
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7300,
    tenant: str = "default",
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Run until SIGINT or SIGTERM, which drain; a second one ends at once. `on_ready` gets the URL.

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
        http = gateway(
            embedded.door,
            embedded.store,
            DevelopmentIdentity(development_token(data_dir)),
            tenant=tenant,
            application=app,
            health=embedded.loops.health,
            operators=True,
        )
        config = uvicorn.Config(
            http, host=host, port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=2
        )
        server = Server(config, before_exit=http.state.gateway.streams.close)
        calm_collector()
        await _until_stopped(server, embedded, on_ready)
    finally:
        await asyncio.wait([warming])  # a thread that imports cannot be interrupted
        await embedded.stop()


async def _until_stopped(server: Server, embedded: Embedded, on_ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            os._exit(130)  # the second signal: end now; everything promised is already on disk
        server.exit_soon()

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
