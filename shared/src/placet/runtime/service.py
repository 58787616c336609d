"""Decides what one service process is made of, over its ports, and the order of its end.

The end (case L01): take nothing more → hand nothing over any more → wait for model calls and tools → signal what is
left, give back what is not done → publish what is due → close models, broker, store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from placet.facts import Application
from placet.messages import Envelope
from placet.runtime.conversing import at_hand
from placet.runtime.eager import Eager
from placet.runtime.engine import Engine, Settlement
from placet.runtime.fold import Machines
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import (
    Arbiter,
    Changed,
    Delivery,
    Gates,
    Inbox,
    Models,
    Outlet,
    Partials,
    Replies,
    Stops,
    Store,
    Tools,
)
from placet.runtime.process import Health, Loops
from placet.runtime.refusing import NoModels, NoTools, OnlyInvoker
from placet.runtime.relay import CLAIM_MS, Relay
from placet.runtime.stopping import Stopping
from placet.runtime.worker import Worker

log = logging.getLogger("placet.service")

SETTLE_MS = 3_000
"""How long what signalled work has said in time may take to be committed."""
FLUSH_MS = 3_000
CLOSE_MS = 5_000
"""How long each thing that is closed may take."""
STALLED_MS = 120_000
"""A batch in hand for that long: longer than every time limit within it, so that it will never end."""

Close = Callable[[], Awaitable[None]]


class ServiceInbox(Inbox, Protocol):
    """All queues of a process and the results of its own calls, in one."""

    def put(self, envelope: Envelope) -> None:
        """A result of a call that this process has made. It goes first, and nobody else waits for it."""

    async def stop_intake(self) -> None:
        """Take nothing more from the queues and give back what no worker has; results still come in."""

    async def drained(self) -> None:
        """Wait until no result waits and the worker has ended its last turn."""

    def close(self) -> None:
        """`take` hands out results that are there, and then returns nothing."""


@dataclass(frozen=True)
class Ports:
    """What a service stands on. `closing`: what is closed at the end, by name and in order, the store last of all."""

    machines: Machines
    application: Application
    store: Store
    inbox: ServiceInbox
    outlet: Outlet
    replies: Replies
    models: Models | None = None
    """Only where planners' machines are hosted."""
    tools: Tools | None = None
    """Only where tool executors' machines are hosted."""
    gates: Gates | None = None
    """Only where runs' machines are hosted, and gates are asked over the network."""
    arbiter: Arbiter | None = None
    stops: Stops | None = None
    """Only where calls to the world are made."""
    partials: Partials | None = None
    """Who is told of replies while they come; only where models are called. Of one that is at hand, which comes at
    once, nobody elsewhere is told."""
    hint: Callable[[Changed], None] = lambda changed: None
    """Told what has changed."""
    events_from: str | None = None
    """The source that events for the outside name; without one, none are sent."""
    troubles: Mapping[str, Callable[[], str | None]] = field(default_factory=dict)
    """Why a connection cannot be used now, or None, by what it is for. The process is not ready then."""
    notes: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """What the probes tell besides, by its name; it makes nobody unready."""
    closing: Sequence[tuple[str, Close]] = ()
    models_max: int = 64
    tools_max: int = 16


@dataclass(frozen=True)
class Report:
    """What the probes are told."""

    live: bool
    ready: bool
    body: dict[str, Any]


class Service:
    """One process: a worker over all its queues, a relay, and calls to the world where it may make any."""

    def __init__(self, name: str, ports: Ports) -> None:
        self.name = name
        self._ports = ports
        self._inbox = ports.inbox
        self._watched = _Watched(ports.inbox)
        self._engine = Engine(
            ports.machines,
            ports.application,
            ports.store,
            events_from=ports.events_from,
            claim_ms=CLAIM_MS,
            at_hand=at_hand(ports.models),
        )
        self._eager = Eager(ports.store, ports.outlet)
        self._invoker = TaskInvoker(
            ports.models or NoModels(),
            ports.tools or NoTools(),
            ports.store,
            self._inbox.put,
            models_max=ports.models_max,
            tools_max=ports.tools_max,
            partials=ports.partials,
            gates=ports.gates,
        )
        self._stopping = Stopping(self._invoker, ports.store, ports.stops) if ports.stops is not None else None
        invoker = self._stopping or self._invoker
        only = OnlyInvoker(invoker, models=ports.models is not None, tools=ports.tools is not None)
        worker = Worker(
            self._engine,
            self._watched,
            only,
            ports.replies,
            arbiter=ports.arbiter,
            outlet=self._eager,
            on_settled=self._settled,
        )
        self._loops = Loops(worker, Relay(ports.store, ports.outlet))
        self._stopped: asyncio.Future[bool] | None = None

    @property
    def health(self) -> Health:
        """The state of each loop."""
        return self._loops.health

    @property
    def running(self) -> int:
        """Calls to the world in work or waiting for a place."""
        return self._invoker.running

    def running_of(self, machine: str) -> int:
        """Those of one machine's states: model calls, or calls of tools."""
        return self._invoker.running_of(machine)

    def start(self) -> None:
        """Begin to work."""
        self._loops.start()
        log.info("service.started", extra={"machines": sorted(self._ports.machines)})

    async def ended(self) -> None:
        """Wait until a loop has ended that should run."""
        await self._loops.ended()

    def report(self) -> Report:
        """Alive: no loop has ended and no batch is stuck. Ready: also every loop's last turn succeeded, every
        connection is up, and nobody has asked for the end.
        """
        health, stalled = self.health, self._stalled()
        troubles = {name: trouble() for name, trouble in self._ports.troubles.items()}
        said = {**health.failing, **stalled, **health.ended}
        body: dict[str, Any] = {
            "service": self.name,
            "loops": {name: said.get(name, "ok") for name in ("worker", "relay")},
            "connections": {name: trouble or "ok" for name, trouble in troubles.items()},
            "running": self._invoker.running,
            "unreadable": health.unreadable,
            "draining": health.draining,
            "unpublished": self._eager.waiting,
            "outbox_lag_ms": self._loops.outbox_lag_ms,
            "turns": self._watched.turns,
            "messages": self._watched.messages,
            **{name: note() for name, note in self._ports.notes.items()},
        }
        live = health.live and not stalled
        return Report(live, live and health.ready and not any(troubles.values()), body)

    def _stalled(self) -> dict[str, str]:
        since = self._watched.busy_since
        busy_ms = 0 if since is None else round((asyncio.get_running_loop().time() - since) * 1_000)
        return {"worker": f"a batch has been in hand for {busy_ms} ms"} if busy_ms > STALLED_MS else {}

    async def stop(self, grace_ms: int) -> bool:
        """Drain and end; whether everything could be closed. Stopping twice, also at once, is one stop.

        Work may go on for `grace_ms`. What has not ended then is signalled; an attempt that is lost so is settled by
        its effect class, a model call comes back by its lease.
        """
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop(grace_ms))
        return await asyncio.shield(self._stopped)

    async def _stop(self, grace_ms: int) -> bool:
        self.health.draining = True
        log.info("service.stopping", extra={"running": self._invoker.running, "grace_ms": grace_ms})
        try:
            if self._loops.started:
                await self._drain(grace_ms)
        finally:
            await self._loops.stop()
            if self._stopping is not None:
                await self._stopping.close()
            closed = [await _closed(name, close) for name, close in self._ports.closing]
            closed.append(await _closed("store", self._ports.store.close))
        log.info("service.stopped")
        return all(closed)

    async def _drain(self, grace_ms: int) -> None:
        self._engine.hand_over_no_more()
        await self._inbox.stop_intake()
        if not await _within(grace_ms, self._quiet()):
            log.warning("service.grace_over", extra={"running": self._invoker.running})
            await self._invoker.stop()
            await _within(SETTLE_MS, self._inbox.drained())
        self._inbox.close()
        if not await self._loops.worker_ended(SETTLE_MS):
            log.warning("service.worker_given_up")
        await self._loops.flush_relay(FLUSH_MS)
        await self._eager.finished(FLUSH_MS)

    async def _quiet(self) -> None:
        """Until no call runs and what it brought has been committed."""
        while True:
            await self._invoker.settled()
            if not self.health.live:
                return
            await self._inbox.drained()
            if not self._invoker.running:
                return

    def _settled(self, settlement: Settlement) -> None:
        self._loops.settled(settlement)
        if settlement.changed:
            self._ports.hint(settlement.changed)


class _Watched:
    """The inbox, and since when the worker has had the batch that it has in hand."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.busy_since: float | None = None
        self.turns = 0
        self.messages = 0
        """What all turns together took: how full batches are is what a message costs."""

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        self.busy_since = None
        taken = await self._inbox.take(batch_max)
        self.busy_since = asyncio.get_running_loop().time()
        self.turns += bool(taken)
        self.messages += len(taken)
        return taken

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        await self._inbox.settle(done, back)


async def _within(limit_ms: int, work: Awaitable[None]) -> bool:
    """Whether it ended in time; it is given up otherwise."""
    try:
        async with asyncio.timeout(limit_ms / 1_000):
            await work
    except TimeoutError:
        return False
    return True


async def _closed(name: str, close: Close) -> bool:
    """Whether it could be closed; whatever happens, the next one is closed as well (case L03)."""
    try:
        async with asyncio.timeout(CLOSE_MS / 1_000):
            await close()
    except Exception:
        log.exception("service.close_failed", extra={"part": name})
        return False
    return True
