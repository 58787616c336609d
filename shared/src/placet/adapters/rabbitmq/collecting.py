"""Decides how dead letters get from the broker to where people see them: stored, then acknowledged, and only so many.

What cannot be stored now goes to the end of its queue and is tried again after a rest, so that its neighbours flow. The
queue is bounded and refuses: nothing is dropped on the way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aio_pika.abc import AbstractConnection
from aiormq.abc import DeliveredMessage

from placet.adapters.rabbitmq.letters import TRIED_HEADER, UNEXPLAINED, Parked, again, parked
from placet.adapters.rabbitmq.link import Lane, Link, open_lane, raise_if_cancelled, reason_of
from placet.adapters.rabbitmq.wire import Incoming, incoming
from placet.errors import PlacetError
from placet.runtime.ports import Fate, Quarantine, Unit
from placet.topology import DEAD_EXCHANGE, DEAD_QUEUE, Topology

log = logging.getLogger("placet.rabbitmq")

PREFETCH = 32
"""AMQP messages in hand: stored together, and at most so many megabytes."""
REST_S = 5.0
"""After a pass through what could not be stored; longer when the pass was long."""
REST_PER_PASS = 20
BACKOFF_S = 0.2
BACKOFF_S_MAX = 30.0
CONFIRM_TIMEOUT_S = 8.0


@dataclass(slots=True, eq=False)
class _Taken:
    """An AMQP message in hand, good on the lane that brought it."""

    tag: int
    lane: Lane
    message: Incoming
    found: Parked


class Collector:
    """Empties the queue for dead letters into a store. Two of them are harmless: a letter is one row by its id."""

    def __init__(self, url: str, name: str, store: Quarantine, topology: Topology, *, rows_max: int) -> None:
        """`rows_max`: of the rows taken from one queue. Each process counts for itself what others add meanwhile, so
        that a few more may be kept."""
        self._store = store
        self._topology = topology
        self._rows_max = rows_max
        self._waiting: deque[_Taken] = deque()
        self._held: list[_Taken] = []
        """Tried in this pass already: they rest, with everything behind them that has no place in the prefetch."""
        self._rest_until_s = 0.0
        self._pass_began_ms = 0
        self._some = asyncio.Event()
        self._lane: Lane | None = None
        self._publishing: Lane | None = None
        self._full: dict[str, str] = {}
        self._failing: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._link = Link(url, f"{name} quarantine", self._opened, self._lost)
        self.kept = 0
        """Dead letters stored by this process."""

    def start(self) -> None:
        """Begin to connect and to collect. Starting twice is harmless."""
        if self._task is None:
            self._begin_pass()
            self._link.start()
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="quarantine")

    async def close(self) -> None:
        """End; what was not acknowledged stays at the broker. Twice is harmless."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._link.close()

    def report(self) -> dict[str, Any]:
        """For people: how many were kept, and what stays at the broker and why. Nothing waits for dead letters."""
        troubles = [self._link.trouble, self._failing, *self._full.values()]
        return {"kept": self.kept, "trouble": "; ".join(each for each in troubles if each) or "none"}

    # ── the loop ───────────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        failures = 0
        while True:
            await self._until_some()
            try:
                await self._turn()
                failures, self._failing = 0, None
            except Exception as error:  # noqa: BLE001  told; what is in hand stays in hand
                told = error.message if isinstance(error, PlacetError) else reason_of(error)
                self._failing = f"dead letters cannot be stored: {told}"
                failures += 1
                delay_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures, 10))
                log.error("quarantine.backs_off", extra={"reason": told, "delay_ms": round(delay_s * 1_000)})
                await asyncio.sleep(delay_s)

    async def _until_some(self) -> None:
        """Until there is a letter to store, or those that rest have rested."""
        while not self._waiting:
            self._some.clear()
            left_s = self._rest_until_s - asyncio.get_running_loop().time() if self._held else None
            if left_s is not None and left_s <= 0:
                await self._release()
                continue
            try:
                async with asyncio.timeout(left_s):
                    await self._some.wait()
            except TimeoutError:
                pass  # they have rested

    async def _turn(self) -> None:
        """Store what waits, acknowledge what is stored, send the rest to the end of the queue."""
        batch = list(self._waiting)[:PREFETCH]
        stored, others = await self._stored([each for each in batch if not self._was_tried(each)])
        gone = set(map(id, batch))
        self._waiting = deque(each for each in self._waiting if id(each) not in gone)
        for taken in stored:
            await _acknowledge(taken)
        moved = [taken for taken in others if await self._moved(taken)]
        for taken in batch:
            if taken not in stored and taken not in moved:
                self._hold(taken)

    async def _stored(self, batch: Sequence[_Taken]) -> tuple[list[_Taken], list[_Taken]]:
        """Those that are stored now, and the others. Raises PlacetError where the store cannot say."""
        if not batch:
            return [], []
        now_ms, _ = await self._store.next_due_ms()
        room = {
            queue: self._rows_max - await self._store.count_dead_letters(queue, self._rows_max)
            for queue in {taken.found.queue for taken in batch}
        }
        units: list[Unit] = []
        storing: list[_Taken] = []
        others: list[_Taken] = []
        for taken in batch:
            letters, queue = taken.found.letters(now_ms), taken.found.queue
            if len(letters) > room[queue]:
                others.append(taken)
                continue
            room[queue] -= len(letters)
            # With its row it is over: no relay sends again what the broker has given up.
            units.append(Unit(dead_letters=letters, consumed=taken.found.rows))
            storing.append(taken)
        self._tell_full({taken.found.queue for taken in others}, {taken.found.queue for taken in storing})
        results = await self._store.commit(units) if units else ()
        stored: list[_Taken] = []
        for taken, unit, result in zip(storing, units, results, strict=True):
            if result.fate is Fate.COMMITTED:
                self.kept += len(unit.dead_letters)
                stored.append(taken)
            else:
                others.append(taken)
                told = {"queue": taken.found.queue, "fate": result.fate.value, "constraint": result.constraint}
                log.error("quarantine.refused", extra=told)
        if stored:
            queues = dict(Counter(taken.found.queue for taken in stored))
            log.warning("quarantine.kept", extra={"messages": len(stored), "queues": queues})
        return stored, others

    def _tell_full(self, full: set[str], roomy: set[str]) -> None:
        for queue in roomy - full:
            self._full.pop(queue, None)
        for queue in full - self._full.keys():
            text = f"{self._rows_max} dead letters of {queue} are kept: more of them stay in {DEAD_QUEUE}"
            self._full[queue] = text
            log.error("quarantine.full", extra={"queue": queue, "what": text})

    # ── what cannot be stored ──────────────────────────────────────────────────────────

    def _was_tried(self, taken: _Taken) -> bool:
        tried_ms = taken.message.headers.get(TRIED_HEADER)
        return isinstance(tried_ms, int) and tried_ms >= self._pass_began_ms

    async def _moved(self, taken: _Taken) -> bool:
        """Put it at the end of the queue, and be done with it here once that is confirmed; a full queue refuses."""
        lane, found = self._publishing, taken.found
        if lane is None:
            return False
        try:
            await lane.basic_publish(
                found.body,
                exchange=DEAD_EXCHANGE,
                routing_key=found.queue,
                properties=again(taken.message, found, _wall_clock_ms()),
                mandatory=True,
                timeout=CONFIRM_TIMEOUT_S,
                wait=False,
            )
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told; it stays where it is
            raise_if_cancelled(error)
            log.warning("quarantine.not_moved", extra={"queue": found.queue, "reason": reason_of(error)})
            return False
        await _acknowledge(taken)
        return True

    def _hold(self, taken: _Taken) -> None:
        if taken.lane is not self._lane:
            return  # it is handed out again
        if not self._held:
            pass_s = (_wall_clock_ms() - self._pass_began_ms) / 1_000
            now_s = asyncio.get_running_loop().time()
            self._rest_until_s = now_s + max(REST_S, REST_PER_PASS * pass_s if pass_s > REST_S else 0)
        self._held.append(taken)

    async def _release(self) -> None:
        """Another pass: they come again at once, and are tried again."""
        held, self._held = self._held, []
        self._begin_pass()
        for taken in held:
            try:
                await taken.lane.basic_nack(taken.tag, requeue=True, wait=False)
            except Exception as error:  # noqa: BLE001  with the channel gone it is back already
                log.debug("quarantine.stale", extra={"tag": taken.tag, "reason": reason_of(error)})

    def _begin_pass(self) -> None:
        self._pass_began_ms = _wall_clock_ms()

    # ── the channels ───────────────────────────────────────────────────────────────────

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._channels = [await open_lane(connection, confirms=False), await open_lane(connection, confirms=True)]
        (_, lane), (_, publishing) = self._channels
        self._lane, self._publishing = lane, publishing

        async def receive(message: DeliveredMessage) -> None:
            if message.delivery_tag is not None:
                came = incoming(message, DEAD_QUEUE)
                self._waiting.append(_Taken(message.delivery_tag, lane, came, self._understood(came)))
                self._some.set()

        lane.on_consumer_cancel_callbacks.add(self._cancelled_by_broker)
        await lane.basic_qos(prefetch_count=PREFETCH)
        await lane.basic_consume(DEAD_QUEUE, receive)
        return [lane, publishing]

    def _understood(self, message: Incoming) -> Parked:
        """Whatever it is, it is kept: one that we fail to understand is a letter like any other."""
        try:
            return parked(message, self._topology)
        except Exception:
            log.exception("quarantine.not_understood")
            return Parked(DEAD_QUEUE, *UNEXPLAINED, {}, message.body, public=True)

    def _lost(self) -> None:
        """All of it is handed out again."""
        self._lane = self._publishing = None
        self._waiting.clear()
        self._held.clear()

    async def _cancelled_by_broker(self, frame: object) -> None:
        self._link.give_up("the broker ended the consumer of dead letters: their queue was deleted or moved")


async def _acknowledge(taken: _Taken) -> None:
    try:
        await taken.lane.basic_ack(taken.tag, wait=False)
    except Exception as error:  # noqa: BLE001  it comes again, and is the same row
        log.debug("quarantine.stale", extra={"tag": taken.tag, "reason": reason_of(error)})


def _wall_clock_ms() -> int:
    """Only ever compared with what another collector noted: one that is wrong makes a pass longer or shorter."""
    return time.time_ns() // 1_000_000
