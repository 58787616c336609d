"""Decides what the deploy step does to the servers before a service may start: schema, roles, queues. Repeatable."""

from __future__ import annotations

import asyncio
from typing import Any

from placet.hosting.opening import reached
from placet.settings import Settings
from placet.topology import Topology, make_topology


async def prepare_database(settings: Settings) -> dict[str, Any]:
    """Bring the schema up to date and give each service's role its rights; what was done, by name."""
    from placet.adapters.sql.postgres_migrating import migrate

    url, prefix, passwords = settings.database_url or "", settings.role_prefix, settings.role_passwords
    until_s = asyncio.get_running_loop().time() + settings.start_timeout_ms / 1_000
    return await reached("migrate", "database", lambda: migrate(url, prefix=prefix, passwords=passwords), until_s)


async def declare_topology(settings: Settings) -> Topology:
    """Make what the broker lacks. Raises as placet.adapters.rabbitmq.declare."""
    from placet.adapters.rabbitmq import declare

    topology = make_topology(settings.tool_pools)
    await declare(settings.amqp_url or "", topology, wait_ms=settings.start_timeout_ms)
    return topology


async def verify_topology(settings: Settings) -> Topology:
    """Look whether it holds everything. Raises as placet.adapters.rabbitmq.verify."""
    from placet.adapters.rabbitmq import verify

    topology = make_topology(settings.tool_pools)
    await verify(settings.amqp_url or "", topology, wait_ms=settings.start_timeout_ms)
    return topology
