"""Decides how a process hears what is only said once: on a queue that lives and dies with its connection.

Nothing of it is a fact: what is said while the connection is down is not heard, and whoever listens is told of the gap.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aio_pika.abc import AbstractConnection
from aiormq.abc import DeliveredMessage

from placet.adapters.rabbitmq.link import Lane, Link, open_lane
from placet.adapters.rabbitmq.wire import properties
from placet.errors import Code, RetryableError

LENGTH_MAX = 1_000
"""AMQP messages that may wait for us. The oldest go: whoever listens looks for itself after all."""


@dataclass(frozen=True, slots=True)
class Channel:
    """What is heard: an exchange, the keys of interest, and what the names of the listeners' queues begin with.

    `queue_prefix` is all that a process which hears must be allowed to configure.
    """

    exchange: str
    keys: tuple[str, ...]
    queue_prefix: str


class Hearing:
    """One listener. `heard` gets each body, `gap` is called whenever something may have been missed, also at first."""

    def __init__(
        self, url: str, name: str, channel: Channel, heard: Callable[[bytes], None], gap: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._heard = heard
        self._gap = gap
        self._lane: Lane | None = None
        self._link = Link(url, name, self._opened, self._lost)

    def start(self) -> None:
        """Begin to connect."""
        self._link.start()

    async def close(self) -> None:
        """End the connection. Twice is harmless."""
        await self._link.close()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be heard now; None when all is well."""
        return self._link.trouble

    async def say(self, key: str, body: bytes, content_type: str, timeout_ms: float) -> None:
        """Say something to all who hear. Whether anybody does is not known.

        Raises RetryableError(BROKER_UNAVAILABLE) where it could not even be sent within that time.
        """
        await self._link.wait_until_up(timeout_ms)
        await self._link.wait_until_unblocked(timeout_ms)
        lane = self._lane
        if lane is None:
            raise RetryableError(Code.BROKER_UNAVAILABLE, f"the broker went away: {self._link.trouble}")
        about = properties(content_type, durable=False)
        await lane.basic_publish(body, exchange=self._channel.exchange, routing_key=key, properties=about, wait=False)

    async def _received(self, message: DeliveredMessage) -> None:
        self._heard(message.body)

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._kept, lane = await open_lane(connection, confirms=False)
        # A name of this connection: until a broker misses the heartbeats of one that was cut, its queue is locked.
        name = self._channel.queue_prefix + secrets.token_hex(8)
        queue = await self._kept.declare_queue(
            name,
            exclusive=True,
            auto_delete=True,
            arguments={"x-queue-type": "classic", "x-max-length": LENGTH_MAX, "x-overflow": "drop-head"},
        )
        for key in self._channel.keys:
            await queue.bind(self._channel.exchange, key)
        await lane.basic_consume(name, self._received, no_ack=True)
        lane.on_consumer_cancel_callbacks.add(self._cancelled_by_broker)
        self._lane = lane
        self._gap()
        return [lane]

    def _lost(self) -> None:
        self._lane = None

    async def _cancelled_by_broker(self, frame: object) -> None:
        self._link.give_up("the broker ended the consumer of what is only said once")
