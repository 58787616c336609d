"""Starts the gateway: the door for people and programs. It owns nothing and loads no application.

PLACET_TOKEN_FILE=… python -m placet_gateway
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import uvicorn

from placet.adapters.rabbitmq import RabbitDoor
from placet.errors import Code, TerminalError
from placet.hosting import exits
from placet.hosting.opening import Opening
from placet.hosting.program import run_process
from placet.hosting.serving import unless_ending
from placet.settings import Settings
from placet.signatures import Evidence
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity
from placet_gateway.inbox.pages import Inbox
from placet_gateway.inbox.sessions import SealedSessions
from placet_gateway.server import Server
from placet_gateway.signing import signer_of

log = logging.getLogger("placet.gateway")

NEEDED = dict.fromkeys(("database_url", "amqp_url", "token", "signing_key"), "the gateway")
IDENTITY = (
    "whoever has the token is let in, and is believed to be whoever they say they are: let nobody reach this gateway "
    "whom you would not let approve"
)

EVIDENCE = Evidence(method="development-token", detail="the person is whom the header Placet-Person names")
"""What is signed with every decision of such a caller."""


class Health:
    """What the probes are told of this process."""

    live = True

    def __init__(self, door: RabbitDoor) -> None:
        self._door = door
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether it can serve now."""
        return not self.failing

    @property
    def failing(self) -> Mapping[str, str]:
        """What does not work, and why."""
        found = {"broker": self._door.trouble, "process": "it is ending" if self.draining else None}
        return {name: trouble for name, trouble in found.items() if trouble}

    @property
    def unreadable(self) -> Mapping[str, str]:
        """None: this process reads no states for the machines. The services' own probes name theirs."""
        return {}


async def serve(settings: Settings, ending: asyncio.Event, *, check_only: bool) -> int:
    """The life of the process; its exit code. Raises PlacetError for what is wrong at the start."""
    signer = signer_of(settings.signing_key or "", settings.environment, EVIDENCE)
    async with AsyncExitStack() as stack:
        opening = Opening("gateway", settings)
        store = await unless_ending(ending, opening.store())
        if store is None:
            return exits.OK
        stack.push_async_callback(store.close)
        topology = await unless_ending(ending, opening.topology())
        if topology is None or check_only:
            return exits.OK
        door = RabbitDoor(settings.amqp_url or "", topology, f"placet gateway {socket.gethostname()}:{os.getpid()}")
        stack.push_async_callback(door.close)
        door.start()
        health = Health(door)
        log.info("gateway.signs", extra={"keyid": signer.keyid})
        log.warning("identity.development", extra={"what": IDENTITY})
        http = gateway(
            door,
            store,
            DevelopmentIdentity(settings.token or "", "it is the gateway's PLACET_TOKEN"),
            tenant=settings.tenant,
            application=settings.app_view,
            health=health,
            hosts=settings.http_names,
            signer=signer,
            operators=settings.operators,
            send_again=door.send_as_it_came,
            overheard=door,
            inbox=Inbox(SealedSessions(settings.token or ""), warning=f"Development identities: {IDENTITY}."),
        )
        config = uvicorn.Config(
            http,
            log_config=None,
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=max(1, settings.grace_ms // 1_000),
        )
        server = Server(config, before_exit=http.state.gateway.streams.close)
        return await _until_ended(server, _listening(settings), ending, health)


def _listening(settings: Settings) -> socket.socket:
    host, port = settings.http_host, settings.http_port
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        what = f"the gateway cannot listen on {host}, port {port}: {error.strerror or error}"
        raise TerminalError(Code.SETTING_INVALID, what) from error


async def _until_ended(server: Server, listening: socket.socket, ending: asyncio.Event, health: Health) -> int:
    serving = asyncio.create_task(server.serve([listening]), name="http")
    told = asyncio.create_task(ending.wait())
    try:
        if (port := await server.port_of(serving)) is not None:
            log.info("gateway.listening", extra={"host": listening.getsockname()[0], "port": port})
        await asyncio.wait([serving, told], return_when=asyncio.FIRST_COMPLETED)
        by_itself = not ending.is_set()
        health.draining = True
        server.exit_soon()
        await serving
    finally:
        told.cancel()
    log.info("gateway.stopped")
    return exits.DEFECT if by_itself else exits.OK


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to end; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m placet_gateway",
        description="Placet's gateway. It is set up by PLACET_* variables; see deploy/env.example.",
    )
    parser.add_argument("--check", action="store_true", help="look whether everything needed is there, and end")
    options = parser.parse_args(argv)

    async def body(settings: Settings, ending: asyncio.Event) -> int:
        return await serve(settings, ending, check_only=options.check)

    return run_process("gateway", lambda settings: NEEDED, body)


if __name__ == "__main__":
    sys.exit(main())
