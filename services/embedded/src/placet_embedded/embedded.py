"""Decides how the whole system runs in one process: all machines, one worker, one relay, one SQLite file."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from placet.adapters.clocks import SystemClock
from placet.adapters.memory_queue import MemoryDoor, MemoryQueue
from placet.adapters.models import ModelCaller
from placet.adapters.sql.sqlite import SqliteStore
from placet.application import App
from placet.partials import Overhearing
from placet.runtime.conversing import at_hand
from placet.runtime.engine import Engine, Settlement
from placet.runtime.files import ToolFiles
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import Clock, Gates, Models
from placet.runtime.process import Loops
from placet.runtime.relay import CLAIM_MS, Relay
from placet.runtime.tools import ToolRunner
from placet.runtime.worker import Worker
from placet_embedded.system import machines

log = logging.getLogger("placet.embedded")

DATABASE = "placet.db"
GRACE_MS = 10_000
"""How long a stopping process waits for model calls and tools in work."""
TOOLS_MAX = 1_024
"""Tool calls at a time. An `async` one costs little; one that waits for a place too long does not begin."""
THREADS_MAX = 64
"""Of these, plain functions: each has a thread."""
LAST_TURN_MS = 2_000
"""How long it then waits for the worker's last commit."""


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can look into, if it is not there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


@dataclass
class Embedded:
    """The running system. `door` asks it, `store` reads from it."""

    app: App
    store: SqliteStore
    queue: MemoryQueue
    door: MemoryDoor
    models: Models
    invoker: TaskInvoker
    loops: Loops
    partials: Overhearing = field(default_factory=Overhearing)
    """Where replies are heard while they come."""
    gates: Gates | None = None
    _stopped: asyncio.Future[None] | None = None

    @classmethod
    async def start(
        cls,
        app: App,
        data_dir: Path,
        *,
        clock: Clock | None = None,
        models: Models | None = None,
        tool_files: Path | None = None,
    ) -> Embedded:
        """Open (or make) the database in `data_dir` and go on where the last process stopped.

        `tool_files`: the folder whose files tools may be given; by default the current one.

        Raises PlacetError: STORE_IN_USE when another process has it open, CHECKPOINT_* when it cannot be read.
        """
        await asyncio.to_thread(make_private, data_dir)
        store = await SqliteStore.open(data_dir / DATABASE, clock=clock or SystemClock())
        queue = MemoryQueue()
        door = MemoryDoor(queue)
        models = models or ModelCaller(app)
        tools = ToolRunner(app, threads_max=THREADS_MAX, files=ToolFiles(tool_files or Path.cwd()))
        partials = Overhearing()
        gates = _gates(app)
        invoker = TaskInvoker(models, tools, store, queue.put, tools_max=TOOLS_MAX, partials=partials, gates=gates)

        def settled(settlement: Settlement) -> None:
            loops.settled(settlement)
            door.hint(settlement.changed)

        engine = Engine(machines(), app, store, claim_ms=CLAIM_MS, at_hand=at_hand(models), partials=partials)
        worker = Worker(engine, queue, invoker, door, outlet=queue, on_settled=settled)
        loops = Loops(worker, Relay(store, queue))
        loops.start()
        log.info("embedded.started", extra={"database": str(data_dir / DATABASE), "store": store.describe()})
        return cls(app, store, queue, door, models, invoker, loops, partials, gates)

    async def stop(self, grace_ms: int = GRACE_MS) -> None:
        """Drain and stop. Stopping twice, also at once, is one stop.

        The order: timers → model calls → wait for tools and for what their results bring → worker → models → store.
        What has not ended after `grace_ms` is signalled; an attempt that is lost so is settled by its effect class.
        """
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop(grace_ms))
        await asyncio.shield(self._stopped)

    async def _stop(self, grace_ms: int) -> None:
        try:
            await self.loops.stop_relay()
            self.invoker.drain()
            try:
                async with asyncio.timeout(grace_ms / 1_000):
                    await self._quiet()
            except TimeoutError:
                log.warning("embedded.grace_over", extra={"running": self.invoker.running})
                await self.invoker.stop()
            self.queue.close()
            await self.loops.worker_ended(LAST_TURN_MS)
            await self.loops.stop()
        finally:
            try:
                await self.models.close()
                if self.gates is not None:
                    await self.gates.close()
            finally:
                await self.store.close()

    async def _quiet(self) -> None:
        while True:
            await self.invoker.settled()
            if not self.loops.health.live:
                return
            await self.queue.drained()
            if not self.invoker.running:
                return


def _gates(app: App) -> Gates | None:
    """Who asks the application's gates outside, where it has any: the client is loaded only then."""
    if not app.http_gates:
        return None
    from placet.adapters.http_gates import HttpGates

    return HttpGates(app.http_gates)
