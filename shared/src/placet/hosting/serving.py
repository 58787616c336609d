"""Decides how a service process is put together from its parts and its servers, and lives until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

from placet import topology as topologies
from placet.adapters.rabbitmq import Collector
from placet.application import App
from placet.errors import InvariantError
from placet.hosting import exits
from placet.hosting.broker import Broker
from placet.hosting.deciding import Deciding, deciding
from placet.hosting.opening import Opening
from placet.hosting.parts import Parts, parts_of
from placet.hosting.pools import check_pools
from placet.messages import OPERATION, THREAD
from placet.runtime.loading import load_app
from placet.runtime.ports import Quarantine
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
        if parts.decides:
            needed.setdefault("decision_keys", f"the {parts.service}")
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
            hosted.begin()
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
        self._starts: list[Callable[[], None]] = []
        self.name = "+".join(queues)

    def report(self) -> Report:
        """What the probes are told, also before there is a service."""
        if self._service is not None:
            return self._service.report()
        return Report(True, False, {"service": self.name, "starting": True})

    async def open(self) -> Service:
        """Load the application, reach the servers, check them, put everything together; nothing runs until `begin`.

        Raises PlacetError; whatever was opened is closed again then.
        """
        async with AsyncExitStack() as stack:
            app = self._application()
            judged = deciding(self._settings, os.environ) if any(parts.decides for parts in self._parts) else None
            opening = Opening(self.name, self._settings)
            store = await opening.store()
            stack.push_async_callback(store.close)
            topology = await opening.topology()
            arbiter = await opening.arbiter() if any(parts.arbiter for parts in self._parts) else None
            if arbiter is not None:
                stack.push_async_callback(arbiter.close)
            models = [await parts.models(app) for parts in self._parts if app and parts.models]
            tools = [parts.tools(app, self._settings) for parts in self._parts if app and parts.tools]
            asked = [parts.gates(app) for parts in self._parts if app and parts.gates]
            gates = next((each for each in asked if each is not None), None)
            for each in models:
                stack.push_async_callback(each.close)
            if gates is not None:
                stack.push_async_callback(gates.close)
            broker = self._broker(topology, judged)
            quarantine = self._quarantine(topology, store)
            closing = [
                *(("models", each.close) for each in models),
                *([("gates", gates.close)] if gates is not None else []),
                *([("quarantine", quarantine.close)] if quarantine is not None else []),
                *broker.closing(),
                *([("redis", arbiter.close)] if arbiter is not None else []),
            ]
            machines = [
                parts.decides(judged.voices) if parts.decides and judged else parts.machine(self._settings)
                for parts in self._parts
            ]
            ports = Ports(
                machines={machine.name: machine for machine in machines},
                application=app or NoApplication(),
                store=store,
                inbox=broker.inbox,
                outlet=broker.outlet,
                replies=broker.replies,
                models=models[0] if models else None,
                tools=tools[0] if tools else None,
                gates=gates,
                arbiter=arbiter,
                hint=broker.replies.hint,
                stops=broker.stops,
                partials=broker.replies if models else None,
                events_from=f"/placet/{self._settings.environment}" if self._settings.events else None,
                troubles=broker.troubles(),
                notes={
                    **broker.notes(),
                    **({"quarantine": quarantine.report} if quarantine is not None else {}),
                    **opening.notes,
                },
                closing=closing,
                models_max=self._settings.models_max,
                tools_max=self._settings.tools_max,
            )
            self._service = Service(self.name, ports)
            self._starts = [broker.start, *([quarantine.start] if quarantine is not None else [])]
            stack.pop_all()
        return self._service

    def begin(self) -> None:
        """Work. A check ends before this: it takes nothing from any queue."""
        if self._service is None:
            raise InvariantError("it is opened before it begins")
        for start in self._starts:
            start()
        self._service.start()

    def _application(self) -> App | None:
        if not any(parts.application for parts in self._parts):
            return None
        app = load_app(self._settings.app or "")
        check_pools(app, self._settings)
        log.info("check.ok", extra={"check": "application", "app": app.name, "version": app.version})
        return app

    def _broker(self, topology: Topology, judged: Deciding | None) -> Broker:
        sources = [source for queue in self._queues for source in self._sources(topology, queue)]
        calling = sorted({topologies.QUEUES[queue] for queue in self._queues} & {OPERATION, THREAD})
        return Broker(self.name, self._settings.amqp_url or "", topology, sources, self._room, judged, calling)

    def _quarantine(self, topology: Topology, store: Quarantine) -> Collector | None:
        """What nobody could handle is collected where runs are scheduled: it is no other service's matter."""
        if topologies.DISPATCHER not in self._queues:
            return None
        url, rows_max = self._settings.amqp_url or "", self._settings.dead_letters_max
        return Collector(url, f"placet {self.name}", store, topology, rows_max=rows_max)

    def _sources(self, topology: Topology, queue: str) -> Sequence[Source]:
        pool = topologies.tool_pool(self._settings.tool_pool or "")
        found = topology.sources[pool if queue == topologies.TOOL_EXECUTOR else queue]
        prefetch = self._settings.prefetch
        return [replace(source, prefetch=prefetch or source.prefetch) for source in found]

    def _room(self, queue: str) -> int:
        """How many calls to the world what this queue of the broker brings may start now."""
        machine = THREAD if queue == topologies.PREFIX + topologies.PLANNER else OPERATION
        places = self._settings.models_max if machine == THREAD else self._settings.tools_max
        return places - (self._service.running_of(machine) if self._service is not None else 0)
