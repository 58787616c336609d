"""Decides how an open window hears that something was committed: by hints, coalesced, never taken for facts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

from aio_pika.abc import AbstractConnection
from aiormq.abc import DeliveredMessage

from placet.adapters.rabbitmq.link import Lane, Link, open_lane
from placet.topology import EVENTS_EXCHANGE, HINTS_KEY, PREFIX

QUEUE_PREFIX = f"{PREFIX}watch."
"""The only names that a process with open windows must be allowed to configure."""
LENGTH_MAX = 1_000
"""Hints that may wait for us. The oldest go: a newer one says as much."""


class Watch:
    """Hears hints on a queue that lives and dies with its connection. After every gap everybody looks again."""

    def __init__(self, url: str, name: str) -> None:
        self._queue = QUEUE_PREFIX + secrets.token_hex(8)
        self._link = Link(url, name, self._opened)
        self._watchers: dict[str | None, set[asyncio.Event]] = {}

    def start(self) -> None:
        """Begin to connect."""
        self._link.start()

    async def close(self) -> None:
        """End the connection. Twice is harmless."""
        await self._link.close()

    @property
    def trouble(self) -> str | None:
        """Why no hint can come now; None when all is well."""
        return self._link.trouble

    async def changes(self, run_id: str | None) -> AsyncIterator[None]:
        """As ports.Door.changes."""
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

    async def _hinted(self, message: DeliveredMessage) -> None:
        run_ids = message.body.decode(errors="replace").split("\n")
        if run_ids == [""]:
            self._wake_all()  # more than fits into a hint
            return
        for run_id in (*run_ids, None):
            for changed in self._watchers.get(run_id, ()):
                changed.set()

    def _wake_all(self) -> None:
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._channel, lane = await open_lane(connection, confirms=False)
        queue = await self._channel.declare_queue(
            self._queue,
            exclusive=True,
            auto_delete=True,
            arguments={"x-queue-type": "classic", "x-max-length": LENGTH_MAX, "x-overflow": "drop-head"},
        )
        await queue.bind(EVENTS_EXCHANGE, HINTS_KEY)
        await lane.basic_consume(self._queue, self._hinted, no_ack=True)
        lane.on_consumer_cancel_callbacks.add(self._cancelled_by_broker)
        self._wake_all()
        return [lane]

    async def _cancelled_by_broker(self, frame: object) -> None:
        self._link.give_up("the broker ended the consumer of hints")
