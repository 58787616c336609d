"""Decides how a service process is put together from its parts and its servers, and lives until it is told to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

from placet import topology as topologies
from placet.application import App
from placet.hosting import exits
from placet.hosting.broker import Broker
from placet.hosting.opening import Opening
from placet.hosting.parts import Parts, parts_of
from placet.runtime.loading import load_app
from placet.runtime.probes import Probes
from placet.runtime.refusing import NoApplication
from placet.runtime.service import Ports, Report, Service
from placet.settings import Settings
from placet.topology import Source, Topology

log = logging.getLogger("placet.hosting")

T = TypeVar("T")


def needed_by(own: Parts, queues: Iterable[str]) -> Mapping[str, str]:
    """Which settings must be there, and for what."""
    needed = {"database_url": "every service", "amqp_url": "every service"}
    for parts in parts_of(queues, own):
        if parts.application:
            needed.setdefault("app", f"the {parts.service}")
    return needed


async def serve(
    own: Parts, queues: Sequence[str], settings: Settings, ending: asyncio.Event, *, check_only: bool = False
) -> int:
    """The life of a service process; its exit code. Raises PlacetError for what is wrong at the start."""
    hosted = Hosted(own, tuple(queues), settings)
    async with AsyncExitStack() as stack:
        if settings.health_port is not None:
            probes = Probes(hosted.report)
            await probes.start(settings.health_host, settings.health_port)
            stack.push_async_callback(probes.close)
        service = await unless_ending(ending, hosted.open())
        if service is None:
            return exits.OK
        if not check_only:
            service.start()
            await unless_ending(ending, service.ended())
        by_itself = not (ending.is_set() or check_only)
        closed = await service.stop(0 if check_only else settings.grace_ms)
        if by_itself:
            return exits.DEFECT
        return exits.OK if closed else exits.UNCLEAN


async def unless_ending(ending: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What it comes to, or None when the process is told to end before that; it is cancelled then."""
    task = asyncio.ensure_future(work)
    told = asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, told):
            each.cancel()
        await asyncio.wait({task, told})


class Hosted:
    """The parts, servers and rules of one process, which become a service."""

    def __init__(self, own: Parts, queues: tuple[str, ...], settings: Settings) -> None:
        # What wakes a waiting run comes before what starts new ones.
        self._queues = tuple(sorted(queues, key=lambda queue: queue != topologies.RESUME))
        self._parts = parts_of(queues, own)
        self._settings = settings
        self._service: Service | None = None
        self.name = "+".join(queues)

    def report(self) -> Report:
        """What the probes are told, also before there is a service."""
        if self._service is not None:
            return self._service.report()
        return Report(True, False, {"service": self.name, "starting": True})

    async def open(self) -> Service:
        """Load the application, reach the servers, check them, put everything together; nothing runs yet.

        Raises PlacetError; whatever was opened is closed again then.
        """
        async with AsyncExitStack() as stack:
            app = self._application()
            opening = Opening(self.name, self._settings)
            store = await opening.store()
            stack.push_async_callback(store.close)
            topology = await opening.topology()
            arbiter = await opening.arbiter() if any(parts.arbiter for parts in self._parts) else None
            if arbiter is not None:
                stack.push_async_callback(arbiter.close)
            models = [await parts.models(app) for parts in self._parts if app and parts.models]
            tools = [parts.tools(app, self._settings) for parts in self._parts if app and parts.tools]
            for each in models:
                stack.push_async_callback(each.close)
            broker = self._broker(topology)
            closing = [
                *(("models", each.close) for each in models),
                *broker.closing(),
                *([("redis", arbiter.close)] if arbiter is not None else []),
            ]
            ports = Ports(
                machines={machine.name: machine for machine in (parts.machine() for parts in self._parts)},
                application=app or NoApplication(),
                store=store,
                inbox=broker.inbox,
                outlet=broker.outlet,
                replies=broker.replies,
                models=models[0] if models else None,
                tools=tools[0] if tools else None,
                arbiter=arbiter,
                hint=broker.replies.hint,
                events_from=f"/placet/{self._settings.environment}",
                troubles=broker.troubles(),
                closing=closing,
                models_max=self._settings.models_max,
                tools_max=self._settings.tools_max,
            )
            self._service = Service(self.name, ports)
            broker.start()
            stack.pop_all()
        return self._service

    def _application(self) -> App | None:
        if not any(parts.application for parts in self._parts):
            return None
        app = load_app(self._settings.app or "")
        log.info("check.ok", extra={"check": "application", "app": app.name, "version": app.version})
        return app

    def _broker(self, topology: Topology) -> Broker:
        sources = [source for queue in self._queues for source in self._sources(topology, queue)]
        return Broker(self.name, self._settings.amqp_url or "", topology, sources, self._room)

    def _sources(self, topology: Topology, queue: str) -> Sequence[Source]:
        pool = topologies.tool_pool(self._settings.tool_pool or "")
        found = topology.sources[pool if queue == topologies.TOOL_EXECUTOR else queue]
        prefetch = self._settings.prefetch
        return [replace(source, prefetch=prefetch or source.prefetch) for source in found]

    def _room(self) -> int:
        """How many calls to the world may be started now."""
        places = sum(
            (self._settings.models_max if parts.models else 0) + (self._settings.tools_max if parts.tools else 0)
            for parts in self._parts
        )
        return places - (self._service.running if self._service is not None else 0)
