"""Decides how a service consumes: bounded, acknowledged after the commit, given back without a trace, never twice.

A delivery is acknowledged only when everything in its AMQP message is done. What is given back is handed out again
here, so that an outage of the store spends nothing of the delivery limit. What cannot be read is parked. What waits for
long is passed on to whoever is free: nothing is held while tools run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from aio_pika.abc import AbstractConnection
from aiormq.abc import DeliveredMessage

from placet.adapters.rabbitmq.holding import Held, Hold
from placet.adapters.rabbitmq.link import Lane, Link, open_lane, reason_of
from placet.adapters.rabbitmq.waiting import Waiting
from placet.adapters.rabbitmq.wire import Incoming, ReturnAddress, incoming, is_answerable
from placet.errors import InvariantError, PlacetError, RetryableError
from placet.machine import Receipt
from placet.messages import Envelope, row_id
from placet.runtime.ports import Delivery, OutboxRow, Replies
from placet.topology import PREFIX, Source

log = logging.getLogger("placet.rabbitmq")

ROOM_CHECK_MS = 100
"""A place for a call to the world may become free without a message that says so."""
PASS_ON_S = 15.0
"""What has waited so long for a place goes back to the queue, and no more is taken until there is a place."""
HOLD_S_MAX = 600.0
"""Nothing is held longer, whatever the reason: the broker would close the channel for it."""
LOOK_S = 5.0
"""How often it is looked whether something is held for long."""
PARK_AGAIN_S = 1.0
CANCEL_TIMEOUT_S = 2.0
UNLIMITED = 1_000_000

Opener = Callable[[Incoming], Awaitable[Envelope]]
"""Reads what an outsider published. Raises ContractError: refused; RetryableError: it cannot tell now."""


class Exit(Protocol):
    """Where goes what is not settled here; an outlet."""

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """As ports.Outlet."""

    async def park(self, message: Incoming, body: bytes, error: PlacetError) -> bool:
        """True: confirmed. False: unknown, to be tried again."""


class RabbitInbox:
    """Inbox of one service, on a connection of its own. Results of this process's activities enter by `put`."""

    def __init__(
        self,
        url: str,
        sources: Sequence[Source],
        name: str,
        outlet: Exit,
        *,
        openers: Mapping[str, Opener] | None = None,
        replies: Replies | None = None,
        room: Callable[[str], int] = lambda queue: UNLIMITED,
    ) -> None:
        """`openers`: who reads each public queue, by its name. `replies`: tells an outsider that its message was
        refused. `room`: how many calls to the world what a throttled queue brings may start now; asked before
        each batch, by the queue's name.

        Raises InvariantError for a public source that nobody opens.
        """
        self._sources = sources
        self._openers = dict(openers or {})
        for source in sources:
            if source.public and source.queue not in self._openers:
                raise InvariantError(f"nobody opens what outsiders publish to {source.queue}")
        self._outlet = outlet
        self._replies = replies
        self._room = room
        self._waiting = Waiting(sources, self._park)
        self._unopened: deque[Held] = deque()
        self._hold: Hold | None = None
        self._lane: Lane | None = None
        self._consumers: dict[str, str] = {}
        """Consumer tags by queue."""
        self._full_since_s: dict[str, float] = {}
        """By throttled queue: since when there has been no room for what waits of it."""
        self._look_at_s = 0.0
        self._passing_on: asyncio.Task[None] | None = None
        self._some = asyncio.Event()
        self._asking = asyncio.Event()
        self._parkings: set[asyncio.Task[None]] = set()
        self._paused: set[str] = set()
        """Throttled queues that are not consumed until there is room."""
        self._taking_in = True
        self._closed = False
        self._link = Link(url, f"{name} inbox", self._opened, self._lost)

    # ── life ───────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to connect and to consume."""
        self._link.start()

    @property
    def trouble(self) -> str | None:
        """Why nothing can come from the broker now; None when all is well."""
        return self._link.trouble

    @property
    def held(self) -> int:
        """AMQP messages that are not acknowledged."""
        return 0 if self._hold is None else len(self._hold)

    def report(self) -> dict[str, Any]:
        """For the probes: what is held here, and which queues rest until there is a place for their calls."""
        return {"held": self.held, "resting": sorted(self._paused)}

    async def stop_intake(self) -> None:
        """Consume no more, and give back what no worker has: somebody else gets it at once.

        Results of this process are still handed out, and what a worker has can still be settled.
        """
        hold = self._hold
        self._taking_in = False  # first: whatever comes while consumers end is given back
        for queue in list(self._consumers):
            await self._stop_consuming(queue)
        waiting = [*self._unopened, *self._waiting.forget()]
        self._unopened.clear()
        if hold is not None and not hold.void:
            await hold.give_back(waiting)

    def close(self) -> None:
        """`take` hands out results that are there, and then returns nothing."""
        self._closed = True
        self._taking_in = False
        self._some.set()

    async def disconnect(self) -> None:
        """The very end: whatever was not settled is delivered again, to somebody else. Twice is harmless."""
        self.close()
        tasks = [*self._parkings, *([] if self._passing_on is None else [self._passing_on])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._link.close()

    async def drained(self) -> None:
        """Wait until no result of this process waits and the worker has ended its last turn."""
        while self._waiting.has_local or not self._asking.is_set():
            await self._asking.wait()
            await asyncio.sleep(0)  # whoever was woken by the same event goes first

    def put(self, envelope: Envelope) -> None:
        """A result. Not durable: with this process its activities are lost as well, and their leases find that out."""
        self._waiting.put(envelope)
        self._some.set()

    # ── the port ───────────────────────────────────────────────────────────────────────

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        """As ports.Inbox. Raises RetryableError when an opener cannot tell now; nothing is lost by that."""
        while True:
            self._some.clear()
            if self._taking_in:
                rooms = {source.queue: self._room(source.queue) for source in self._sources if source.throttled}
                await self._open(batch_max)
                await self._mind(rooms)
                batch = self._waiting.batch(batch_max, rooms)
            else:
                batch = self._waiting.local_batch(batch_max)
            if batch:
                self._asking.clear()
                return batch
            if self._closed:
                return ()
            self._asking.set()
            await self._wait()

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        """As ports.Inbox. What came by a channel that is gone is forgotten: the broker delivers it again."""
        for delivery in done:
            held = self._waiting.done(delivery)
            if held is not None:
                held.hold.finish(held)
        for delivery in reversed(back):
            self._waiting.back(delivery)
        given_up = [] if self._taking_in else self._waiting.forget()
        hold = self._hold
        if hold is not None and not hold.void:
            await hold.acknowledge()
            await hold.give_back(given_up)
        if back:
            self._some.set()

    async def _wait(self) -> None:
        """Until something may have come; not long where a place for a call may become free."""
        looks = self._taking_in and (self._paused or self._waiting.throttled)
        patience_s = ROOM_CHECK_MS / 1_000 if looks else None
        try:
            async with asyncio.timeout(patience_s):
                await self._some.wait()
        except TimeoutError:
            pass  # look at the room again

    # ── passing on ─────────────────────────────────────────────────────────────────────

    async def _mind(self, rooms: Mapping[str, int]) -> None:
        """Hold nothing for long: neither what waits for a place, nor what an outage of the store keeps here."""
        now_s = asyncio.get_running_loop().time()
        waiting = self._waiting.throttled
        for queue, room in rooms.items():
            if room > 0:
                self._full_since_s.pop(queue, None)
                await self._go_on(queue)
            elif queue in waiting:
                self._full_since_s.setdefault(queue, now_s)
        if now_s < self._look_at_s or (self._passing_on is not None and not self._passing_on.done()):
            return
        self._look_at_s = now_s + min(LOOK_S, PASS_ON_S)
        found = self._waiting.withdraw(lambda held: now_s - held.since_s > HOLD_S_MAX)
        full = {queue for queue, since_s in self._full_since_s.items() if now_s - since_s > PASS_ON_S}
        if full:
            self._paused |= full
            for queue in full:
                await self._stop_consuming(queue)
            found += self._waiting.withdraw(lambda held: held.message.queue in full)
        if found:
            self._passing_on = asyncio.get_running_loop().create_task(self._pass_on(found))

    async def _go_on(self, queue: str) -> None:
        """There is room again: consume again. A channel that has ended does so anyway with its successor."""
        if queue not in self._paused:
            return
        self._paused.discard(queue)
        lane, hold = self._lane, self._hold
        for source in self._sources:
            if lane is not None and hold is not None and source.queue == queue and queue not in self._consumers:
                try:
                    await self._consume(lane, hold, source)
                except Exception as error:  # noqa: BLE001  told, and made again with the link
                    self._link.give_up(reason_of(error))

    async def _pass_on(self, found: list[tuple[Delivery, Held]]) -> None:
        """Publish it anew, which is no delivery, and be done with it here; what is not confirmed stays here."""
        rows = [_row_of(delivery, held) for delivery, held in found]
        confirmed: set[str] = set()
        try:
            confirmed = set(await self._outlet.publish(rows))
        except PlacetError as error:
            log.warning("inbox.not_passed_on", extra={"messages": len(rows), "reason": error.message})
        else:
            log.info("inbox.passed_on", extra={"messages": len(confirmed), "queue": found[0][1].message.queue})
        gone = [row.id in confirmed for row in rows]
        await self.settle(
            [delivery for (delivery, _), is_gone in zip(found, gone, strict=True) if is_gone],
            [delivery for (delivery, _), is_gone in zip(found, gone, strict=True) if not is_gone],
        )

    # ── opening and parking ────────────────────────────────────────────────────────────

    async def _open(self, batch_max: int) -> None:
        """Open what outsiders published, one AMQP message after the other, up to a batch of good ones."""
        opened = 0
        while self._unopened and opened < batch_max:
            held = self._unopened[0]
            try:
                envelope = await self._openers[held.message.queue](held.message)
            except RetryableError:
                raise
            except PlacetError as error:
                await self._refuse(held, error)
                continue
            except Exception as error:
                log.exception("inbox.opener_raised", extra={"queue": held.message.queue})
                await self._refuse(held, InvariantError(f"it could not be opened: {reason_of(error)}"))
                continue
            if self._take_first(held):
                self._waiting.add_opened(held, envelope)
                opened += 1

    def _take_first(self, held: Held) -> bool:
        """Whether it still is there: the channel may have ended while it was opened, and then it comes again."""
        if not self._unopened or self._unopened[0] is not held:
            return False
        self._unopened.popleft()
        return True

    async def _refuse(self, held: Held, error: PlacetError) -> None:
        if self._take_first(held):
            held.open = 1
            self._park(held, held.message.body, error)
            await self._tell(held.message, error)

    async def _tell(self, message: Incoming, error: PlacetError) -> None:
        """Best effort: the publisher learns that its message was refused, and why."""
        if self._replies is not None and is_answerable(message.reply_to):
            address = ReturnAddress(False, message.reply_to or "", message.correlation_id or "")
            refusal = Receipt(answer="refused", run_id="", failure=error.failure())
            await self._replies.send(address.text(), refusal.model_dump_json(exclude_none=True))

    def _park(self, held: Held, body: bytes, error: PlacetError) -> None:
        task = asyncio.get_running_loop().create_task(self._park_until_confirmed(held, body, error))
        self._parkings.add(task)
        task.add_done_callback(self._parkings.discard)

    async def _park_until_confirmed(self, held: Held, body: bytes, error: PlacetError) -> None:
        while not held.hold.void:
            if await self._outlet.park(held.message, body, error):
                held.hold.finish(held)
                await held.hold.acknowledge()
                return
            await asyncio.sleep(PARK_AGAIN_S)

    # ── the channel ────────────────────────────────────────────────────────────────────

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._channel, lane = await open_lane(connection, confirms=False)
        self._hold, self._lane, self._consumers = Hold(lane), lane, {}
        lane.on_consumer_cancel_callbacks.add(self._cancelled_by_broker)
        for source in self._sources:
            if self._taking_in and source.queue not in self._paused:
                await self._consume(lane, self._hold, source)
        return [lane]

    async def _consume(self, lane: Lane, hold: Hold, source: Source) -> None:
        await lane.basic_qos(prefetch_count=source.prefetch)  # for the consumers made after it
        consumed = await lane.basic_consume(source.queue, self._receiver(source, hold))
        self._consumers[source.queue] = consumed.consumer_tag or ""
        if not self._taking_in:
            await self._stop_consuming(source.queue)

    async def _stop_consuming(self, queue: str) -> None:
        tag = self._consumers.pop(queue, None)
        if tag is None:
            return  # with its channel, which ended meanwhile
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                if self._lane is not None:
                    await self._lane.basic_cancel(tag)
        except Exception as error:  # noqa: BLE001  with the channel gone there is no consumer
            log.debug("inbox.cancel_failed", extra={"reason": reason_of(error)})

    def _receiver(self, source: Source, hold: Hold) -> Callable[[DeliveredMessage], Coroutine[Any, Any, None]]:
        async def receive(message: DeliveredMessage) -> None:
            tag = message.delivery_tag
            if tag is None or hold.void:
                return  # the broker has it back with the end of the channel
            hold.add(tag)
            now_s = asyncio.get_running_loop().time()
            held = Held(tag, hold, incoming(message, source.queue), now_s)
            if not self._taking_in:
                await hold.give_back([held])
                return
            if source.public:
                self._unopened.append(held)
            else:
                self._waiting.add(held)
            self._some.set()

        return receive

    async def _cancelled_by_broker(self, frame: object) -> None:
        self._link.give_up("the broker ended a consumer: its queue was deleted or moved")

    def _lost(self) -> None:
        if self._hold is not None:
            self._hold.void = True
        self._hold = self._lane = None
        self._consumers = {}
        self._unopened.clear()
        self._waiting.forget_all()


def _row_of(delivery: Delivery, held: Held) -> OutboxRow:
    """What is published when a delivery is passed on: the bytes that came, which may be those of a row in the store."""
    body = delivery.body
    if body is None:  # whoever asked has given up by now
        body = delivery.envelope.model_copy(update={"reply_to": None}).encode()
    return OutboxRow(
        id=delivery.outbox_id or row_id(delivery.envelope.id, body),
        destination=held.message.queue.removeprefix(PREFIX),
        run_id=delivery.envelope.message.run_id,
        type=delivery.envelope.message.type,
        not_before_ms=0,
        body=body,
    )
