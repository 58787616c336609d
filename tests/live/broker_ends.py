"""Decides how a test holds the ends of queues on a real broker: everything it opens is closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from placet.adapters.rabbitmq import RabbitDoor, RabbitInbox, RabbitOutlet, RabbitReplies, declare
from placet.messages import CancelOperation, Envelope, ExecuteOperation
from placet.runtime.ports import OutboxRow
from placet.topology import DEAD_QUEUE, DISPATCHER, TOOL_EXECUTOR, Source, Topology, make_topology
from tests.builders import TENANT
from tests.contracts.queue_contract import PATIENCE_S, ids

POLL_S = 0.02


async def eventually(probe: Callable[[], Awaitable[Any]], timeout_s: float = PATIENCE_S) -> Any:
    """Ask another process until it says yes: the first true answer. Fails after that time."""
    async with asyncio.timeout(timeout_s):
        while not (answer := await probe()):  # noqa: ASYNC110  another process tells no event of ours
            await asyncio.sleep(POLL_S)
    return answer


def a_start(n: int) -> OutboxRow:
    """The n-th call of a tool to be started."""
    message = ExecuteOperation(tenant=TENANT, run_id=f"run-{n}", operation_id=f"op_{n}")
    envelope = Envelope(id=f"msg_{n}", message=message)
    return OutboxRow(envelope.id, TOOL_EXECUTOR, message.run_id, message.type, 0, envelope.encode())


def a_cancel(n: int) -> OutboxRow:
    """The signal for it."""
    message = CancelOperation(tenant=TENANT, run_id=f"run-{n}", operation_id=f"op_{n}", reason="cancelled")
    envelope = Envelope(id=f"cancel_{n}", message=message)
    return OutboxRow(envelope.id, TOOL_EXECUTOR, message.run_id, message.type, 0, envelope.encode())


async def take_all(inbox: RabbitInbox, wanted: set[str], timeout_s: float = PATIENCE_S) -> None:
    """As a worker does, absorbing repeats, until everything has been done."""
    done: set[str] = set()
    async with asyncio.timeout(timeout_s):
        while done < wanted:
            taken = await inbox.take(64)
            await inbox.settle(taken, [])
            done.update(ids(taken))


class BrokerEnds:
    """`async with BrokerEnds(url) as ends`: a declared topology, and inboxes, outlets and doors on it."""

    def __init__(self, url: str, topology: Topology | None = None) -> None:
        self.url = url
        self.topology = topology or make_topology()
        self._closers: list[Callable[[], Awaitable[None]]] = []

    async def __aenter__(self) -> BrokerEnds:
        await declare(self.url, self.topology, wait_ms=10_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        for close in reversed(self._closers):
            await close()

    def outlet(self, url: str | None = None, **how: Any) -> RabbitOutlet:
        """A running outlet; `url` where it goes another way, by a proxy or as another user."""
        outlet = RabbitOutlet(url or self.url, self.topology, "test", **how)
        outlet.start()
        self._closers.append(outlet.close)
        return outlet

    def inbox(
        self, service: str = DISPATCHER, url: str | None = None, sources: tuple[Source, ...] | None = None, **how: Any
    ) -> RabbitInbox:
        """A running inbox of a service's inner queues, or of these sources."""
        chosen = sources or tuple(source for source in self.topology.sources[service] if not source.public)
        outlet = how.pop("outlet", None) or self.outlet()
        inbox = RabbitInbox(url or self.url, chosen, "test", outlet, **how)
        inbox.start()
        self._closers.append(inbox.disconnect)
        return inbox

    def replies(self, url: str | None = None) -> RabbitReplies:
        """Running replies."""
        replies = RabbitReplies(url or self.url, "test")
        replies.start()
        self._closers.append(replies.close)
        return replies

    def door(self, url: str | None = None) -> RabbitDoor:
        """A running door."""
        door = RabbitDoor(url or self.url, self.topology, "test")
        door.start()
        self._closers.append(door.close)
        return door

    async def connection(self, url: str | None = None) -> AbstractConnection:
        """A plain connection, as an outsider or an operator has one."""
        connection = await aio_pika.connect(url or self.url)
        self._closers.append(connection.close)
        return connection

    async def count(self, queue: str) -> int:
        """Messages in a queue that nobody holds."""
        connection = await aio_pika.connect(self.url)
        try:
            declared = await (await connection.channel()).declare_queue(queue, passive=True)
            return declared.declaration_result.message_count or 0
        finally:
            await connection.close()

    async def put_raw(self, service: str, body: bytes, **properties: Any) -> None:
        """Any body onto a service's queue."""
        connection = await aio_pika.connect(self.url)
        try:
            channel = await connection.channel()
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **properties)
            await channel.default_exchange.publish(message, f"placet.{service}")
        finally:
            await connection.close()

    async def parked(self, number: int) -> list[AbstractIncomingMessage]:
        """Take so many dead letters off their queue."""
        connection = await self.connection()
        queue = await (await connection.channel()).get_queue(DEAD_QUEUE)
        found: list[AbstractIncomingMessage] = []

        async def one() -> AbstractIncomingMessage | None:
            return await queue.get(no_ack=True, fail=False)

        while len(found) < number:
            found.append(await eventually(one))
        assert await one() is None, "more is parked than expected"
        return found
