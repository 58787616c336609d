"""Decides the life of a process: its loops, what a failing store does to them, and the order of its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from placet.errors import RetryableError
from placet.ids import fraction_of
from placet.runtime.engine import Settlement
from placet.runtime.fold import HELD_MS
from placet.runtime.relay import Relay
from placet.runtime.worker import Worker

log = logging.getLogger("placet.process")

BACKOFF_MS = 50
BACKOFF_MS_MAX = 5_000
FLUSHES_MAX = 4
"""Turns of a relay that ends: what is due after them is any other relay's."""


def backoff_ms(name: str, failures: int) -> float:
    """How long a loop rests after so many failures in a row: doubling, bounded, with a jitter of its own."""
    longest_ms: int = min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** min(failures, 10))
    return longest_ms * (0.5 + fraction_of(name, str(failures)) / 2)


COLLECT_AFTER = 20_000
"""Objects made since the last collection: a batch makes thousands, and drops nearly all of them by itself."""


def calm_collector() -> None:
    """Look for garbage rarely, and never among what was imported. Called once, when everything is loaded.

    A batch is short-lived models without cycles; with Python's own thresholds, looking for cycles among them took a
    seventh of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 50, 100)


UNREADABLE_MAX = 20
"""States that cannot be read and are named in health; the log names all."""


@dataclass
class Health:
    """What the probes ask: is each loop alive, and did its last turn succeed."""

    failing: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    draining: bool = False
    monotonic_s: Callable[[], float] = time.monotonic
    _unreadable: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each was met last, and why it cannot be read."""

    def settled(self, settlement: Settlement) -> None:
        """Remember the states that could not be read. What is for them comes again, and so does the finding."""
        now_s = self.monotonic_s()
        for address, reason in settlement.unreadable.items():
            name = address.text()
            if name not in self._unreadable:
                log.error("state.unreadable", extra={"state": name, "what": reason})
            self._unreadable[name] = (now_s, reason)

    @property
    def unreadable(self) -> dict[str, str]:
        """States that this program could not read lately, and why. The process is well, and works on everything else:
        either it is older than another that writes to the store, or a person has to repair them.
        """
        long_ago_s = self.monotonic_s() - 3 * HELD_MS / 1_000
        self._unreadable = {name: met for name, met in self._unreadable.items() if met[0] > long_ago_s}
        return {name: reason for name, (_, reason) in list(self._unreadable.items())[:UNREADABLE_MAX]}

    @property
    def live(self) -> bool:
        """No loop has ended that should run."""
        return not self.ended

    @property
    def ready(self) -> bool:
        """Every loop's last turn succeeded, and nobody has asked the process to end."""
        return self.live and not self.failing and not self.draining


class Loops:
    """The worker and relay loops of one process."""

    def __init__(self, worker: Worker, relay: Relay) -> None:
        self._worker = worker
        self._relay = relay
        self._due = asyncio.Event()
        """Look at `_look_at_s` again: it is earlier now, or the end has come."""
        self._look_at_s = 0.0
        """When the relay looks at the outbox."""
        self._flushing = False
        self._tasks: list[asyncio.Task[None]] = []
        self.health = Health()

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [
            asyncio.create_task(self._kept("worker", self._work), name="worker"),
            asyncio.create_task(self._kept("relay", self._publish), name="relay"),
        ]

    @property
    def outbox_lag_ms(self) -> int:
        """How long the first row that nobody has claimed has been due, as the relay saw it last; 0 where none is."""
        return self._relay.lag_ms

    @property
    def started(self) -> bool:
        """Whether there is anything to end."""
        return bool(self._tasks)

    def settled(self, settlement: Settlement) -> None:
        """A batch is done. One of its rows may be due before what the relay waits for."""
        self.health.settled(settlement)
        if settlement.timer_ms is not None:
            due_s = asyncio.get_running_loop().time() + settlement.timer_ms / 1_000
            if due_s < self._look_at_s:
                self._look_at_s = due_s
                self._due.set()

    async def ended_or(self, other: asyncio.Task[None]) -> None:
        """Wait until `other` is done, or a loop has ended that should run; its error is raised."""
        done, _ = await asyncio.wait([*self._tasks, other], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop_relay(self) -> None:
        """No timer comes in any more; a claimed row lapses."""
        for task in self._tasks[1:]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks[1:])

    async def flush_relay(self, timeout_ms: int) -> None:
        """End the relay behind its own work: what is claimed is published, and what has just become due as well.

        What is not published within that time lapses, and any other relay publishes it.
        """
        self._flushing = True
        self._look_at_once()
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks[1:], timeout=timeout_ms / 1_000)
            if unfinished:
                log.warning("relay.flush_unfinished", extra={"timeout_ms": timeout_ms})
                await self.stop_relay()

    async def ended(self) -> None:
        """Wait until a loop has ended, which should run."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.exception()  # seen: it has been logged, and health says it

    async def worker_ended(self, timeout_ms: int) -> bool:
        """Wait for the worker, whose inbox has been closed, to finish what it had taken. Whether it did.

        One that cannot, since the store is away, is not waited for longer: what it has not committed comes again.
        """
        _, unfinished = await asyncio.wait(self._tasks[:1], timeout=timeout_ms / 1_000)
        return not unfinished

    async def stop(self) -> None:
        """End what still runs. What a worker has taken and not committed comes again."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self) -> bool:
        return await self._worker.turn()

    async def _publish(self) -> bool:
        if self._flushing:
            for _ in range(FLUSHES_MAX):
                if await self._relay.turn():
                    break
            return False
        loop = asyncio.get_running_loop()
        self._look_at_s = math.inf  # of a row that is committed while the relay looks, it may know nothing
        wait_ms = await self._relay.turn()
        self.health.failing.pop("relay", None)  # now, not when the wait for the next row is over
        self._look_at_s = min(self._look_at_s, loop.time() + wait_ms / 1_000)
        while (left_s := self._look_at_s - loop.time()) > 0:
            self._due.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._due.wait()
            except TimeoutError:
                break  # the next row is due
        return True

    def _look_at_once(self) -> None:
        self._look_at_s = 0.0
        self._due.set()

    async def _kept(self, name: str, turn: Callable[[], Awaitable[bool]]) -> None:
        failures = 0
        while True:
            try:
                if not await turn():
                    return
                failures = 0
                self.health.failing.pop(name, None)
            except RetryableError as error:
                failures += 1
                delay_ms = backoff_ms(name, failures)
                self.health.failing[name] = error.message
                log.warning("loop.backs_off", extra={"loop": name, "code": error.code, "delay_ms": delay_ms})
                await asyncio.sleep(delay_ms / 1_000)
            except Exception as error:
                self.health.ended[name] = f"{type(error).__name__}: {error}"
                log.exception("loop.ended", extra={"loop": name})
                raise
