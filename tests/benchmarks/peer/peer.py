"""Measures Placet by a harness that measures its peers alike: same job, same loops, same counting.

Such a harness brings `common.job` (a class `Peer` and `main`) and runs each peer as `PEER/peer.py OPTIONS`. Copy this
folder next to the others as `placet`, or say where the harness is in BENCH_ROOT. It needs the project's environment:

    PYTHONPATH=CHECKOUT CHECKOUT/.venv/bin/python peer.py --n 1500       BENCH_MODE: five (default) or three processes

The services are one "worker" there: their CPU and memory are added up, and the crash kills all of them at once.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != HERE]
sys.path.append(os.environ.get("BENCH_ROOT") or str(HERE.parent))

from common import job  # type: ignore[import-not-found]  # noqa: E402  the harness's

from tests.benchmarks.application import EFFECTS  # noqa: E402
from tests.benchmarks.driver import Asked, Driver  # noqa: E402
from tests.benchmarks.plant import MODES, counters, planted  # noqa: E402


class Placet(job.Peer):  # type: ignore[misc]
    """All services and their servers, started and driven as by the project's own measurement."""

    name = "placet"

    async def up(self) -> None:
        """Start everything."""
        self._mode = os.environ.get("BENCH_MODE", "five")
        if self._mode not in MODES:
            raise SystemExit(f"BENCH_MODE is {self._mode!r}: one of {', '.join(MODES)}")
        self._asked: dict[str, Asked] = {}
        self._stack = AsyncExitStack()
        self._plant = self._stack.enter_context(planted(effects=Path(os.environ[EFFECTS])))
        for name, server in self._plant.servers.items():
            self.procs.running[name] = [SimpleNamespace(pid=server.pid)]
        await self.respawn()
        self._driver = await Driver.open(self._plant.rabbitmq.url, self._plant.postgres.url, self._plant.key)
        self._stack.push_async_callback(self._driver.close)

    async def respawn(self) -> None:
        """Start the services, for the first time and after they were killed."""
        self._plant.services.clear()
        await asyncio.to_thread(self._plant.start, self._mode)
        self.procs.running[self.worker_label] = [service.process for service in self._plant.services]

    async def start(self, run_id: str) -> None:
        """Returns when the run is suspended durably."""
        self._asked[run_id] = await self._driver.start(run_id)

    async def approve(self, run_id: str) -> None:
        """Returns when the decision is durable."""
        await self._driver.approve(run_id, self._asked.pop(run_id))

    async def done(self, run_id: str) -> None:
        """Returns when the run has ended durably."""
        await self._driver.done(run_id)

    async def counters(self) -> dict[str, int]:
        """PostgreSQL's."""
        return await counters(self._plant)

    async def down(self) -> None:
        """End everything; the harness finds nothing left to stop."""
        self.procs.running.clear()
        await self._stack.aclose()

    def versions(self) -> dict[str, object]:
        """Of what was measured."""
        return {"placet": version("placet"), "python": platform.python_version(), "config": {"mode": self._mode}}


if __name__ == "__main__":
    job.main(Placet)
