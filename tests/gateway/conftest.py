"""What the gateway's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.gateway.inbox_world import Desk
from tests.gateway.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with world.http() as client:
        yield client


@pytest.fixture
def desk(world: World) -> Desk:
    """The web inbox in front of one run."""
    world.add_run()
    return Desk(world)
