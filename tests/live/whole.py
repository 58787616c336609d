"""Decides how a fault test gets the whole system: deployed on given servers, its application one that keeps a book."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.live.killable import FOLDER as KILLS
from tests.live.killable import Kills
from tests.live.recorded import FOLDER, Ledger
from tests.live.system import System, deploy, own_roles, placet


class Servers(NamedTuple):
    """Where they are."""

    amqp_url: str
    postgres_url: str
    redis_url: str


@dataclass
class WholeSystem(System):
    """All services, and the world that their tools act on."""

    app: str = "tests.live.recorded:app"
    forked: bool = True
    watched: bool = False
    """Whether they run under `killable`, which also shortens their leases."""

    @property
    def ledger(self) -> Ledger:
        """What really happened."""
        return Ledger(Path(self.environment[FOLDER]))

    @property
    def kills(self) -> Kills:
        """The plans of the services' deaths."""
        return Kills(Path(self.environment[KILLS]))

    def command(self, name: str) -> Sequence[str]:
        """The service as an operator starts it, or the launcher."""
        return ("tests.live.killable", name) if self.watched else super().command(name)

    def deploy(self, *command: str) -> None:
        """A step of the deployment, as an operator types it, such as `topology declare`."""
        placet(self.settings, self.folder, *command)


@asynccontextmanager
async def whole_system(
    folder: Path, servers: Servers, *, environment: str = "whole", watched: bool = False
) -> AsyncIterator[WholeSystem]:
    """Deployed, and nothing runs yet; ended with the context."""
    settings = {
        "DATABASE_URL": servers.postgres_url,
        "AMQP_URL": servers.amqp_url,
        "ENVIRONMENT": environment,
        "LOG_LEVEL": "info",
        "REDIS_URL": servers.redis_url,
    }
    await asyncio.to_thread(deploy, settings, folder)
    places = {FOLDER: str(folder / "ledger"), KILLS: str(folder / "kills")}
    system = WholeSystem(folder, settings, own_roles(servers.postgres_url), places, watched=watched)
    (folder / "ledger").mkdir()
    system.kills.prepare()
    try:
        yield system
    finally:
        await asyncio.to_thread(system.close)
