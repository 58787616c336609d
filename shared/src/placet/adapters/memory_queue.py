"""Decides how messages travel inside one process: an asyncio queue, futures for answers, a claim map.

Nothing here is durable, and nothing needs to be: what must not be lost is an outbox row until the transaction that
applies it deletes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count

from placet import limits
from placet.messages import Envelope, Message, decode_envelope
from placet.runtime.ports import Changed, Clock, Delivery, Mark, OutboxRow

MARKS_MAX = 10_000
"""Decided requests that the referee remembers. One that it has forgotten is raced for again, and the facts decide."""


class MemoryQueue:
    """Inbox and Outlet of one process. A row that is still waiting or in work is not taken in twice."""

    connections = 1
    """There is no broker that could be lost."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._some = asyncio.Event()
        self._asking = asyncio.Event()
        self._closed = False
        self._tokens = count(1)
        self._rows: set[str] = set()

    def put(self, envelope: Envelope) -> None:
        """From outside, or an activity's result."""
        self._add(Delivery(envelope, next(self._tokens)))

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Confirms nothing: the receiver deletes the row in the commit that applies it.

        Raises ContractError for a row that cannot be read; those before it have been taken in by then.
        """
        for row in rows:
            if row.id not in self._rows:
                envelope = decode_envelope(row.body)
                self._rows.add(row.id)
                self._add(Delivery(envelope, next(self._tokens), row.id, row.body))
        return ()

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        while not self._waiting:
            if self._closed:
                return ()
            self._some.clear()
            self._asking.set()
            await self._some.wait()
        self._asking.clear()
        return [self._waiting.popleft() for _ in range(min(batch_max, len(self._waiting)))]

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        self._rows.difference_update(delivery.outbox_id for delivery in done if delivery.outbox_id is not None)
        self._waiting.extendleft(reversed(back))
        if back:
            self._some.set()

    async def drained(self) -> None:
        """Wait until nothing waits and the worker has ended its last turn."""
        while self._waiting or not self._asking.is_set():
            await self._asking.wait()
            await asyncio.sleep(0)  # whoever was woken by the same event goes first

    def close(self) -> None:
        """`take` hands out what is there and then returns nothing."""
        self._closed = True
        self._some.set()

    def _add(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._some.set()


class MemoryDoor:
    """Door and Replies of one process: asks by the queue, answers by futures, hints by events."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._asked: dict[str, list[asyncio.Future[str]]] = {}
        self._watchers: dict[str | None, set[asyncio.Event]] = {}

    async def ask(self, message: Message, *, message_id: str, timeout_ms: int) -> str | None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(message_id, []).append(answer)
        try:
            self._queue.put(Envelope(id=message_id, reply_to=message_id, message=message))  # type: ignore[arg-type]
            return await asyncio.wait_for(answer, timeout_ms / 1_000)
        except TimeoutError:
            return None
        finally:
            waiting = self._asked.get(message_id, [])
            if answer in waiting:
                waiting.remove(answer)
            if not waiting:
                self._asked.pop(message_id, None)

    async def send(self, reply_to: str, text: str) -> None:
        """The first asker under this id that has no answer yet gets it; each asker's message is answered once."""
        for answer in self._asked.get(reply_to, ()):
            if not answer.done():
                answer.set_result(text)
                return

    async def changes(self, run_id: str | None) -> AsyncIterator[None]:
        changed = asyncio.Event()
        self._watchers.setdefault(run_id, set()).add(changed)
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            watchers = self._watchers[run_id]
            watchers.discard(changed)
            if not watchers:
                del self._watchers[run_id]

    def hint(self, changed: Changed) -> None:
        """This was committed."""
        for run_id in (*changed, None):
            for watcher in self._watchers.get(run_id, ()):
                watcher.set()


class MemoryArbiter:
    """A referee within one process, by the protocol of DESIGN §5: tentative claims with a lease, no facts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._claims: dict[str, tuple[str, int]] = {}
        self._past: dict[str, None] = {}
        """Keys past racing, the oldest first."""

    async def claim(self, keys: Sequence[str], nonce: str) -> Sequence[bool]:
        now = self._clock.now_ms()
        granted = []
        for key in keys:
            holder, until = self._claims.get(key, ("", 0))
            mine = holder == nonce or until <= now
            if mine and key not in self._past:
                self._claims[key] = (nonce, now + limits.CLAIM_LEASE_MS)
            granted.append(mine or key in self._past)
        return granted

    async def finish(self, marks: Mapping[str, Mark], nonce: str) -> None:
        for key, mark in marks.items():
            if self._claims.get(key, ("", 0))[0] == nonce:
                del self._claims[key]
            if mark is not Mark.FREE:
                self._past[key] = None
                if len(self._past) > MARKS_MAX:
                    del self._past[next(iter(self._past))]
