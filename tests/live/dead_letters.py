"""Decides how a test makes dead letters on a real broker, and how it waits for what becomes of them."""

from __future__ import annotations

from typing import Any

import aio_pika

from placet import limits
from placet.adapters.rabbitmq import Collector
from placet.topology import DEAD_QUEUE, PREFIX
from tests.builders import TENANT
from tests.live.broker_ends import BrokerEnds, eventually


def collector(ends: BrokerEnds, store: Any, rows_max: int = 1_000) -> Collector:
    """A running one, which ends with the test."""
    one = Collector(ends.url, "test", store, ends.topology, rows_max=rows_max)
    one.start()
    ends._closers.append(one.close)
    return one


async def letters_of(store: Any, number: int, tenant: str = TENANT) -> list[dict[str, Any]]:
    """All of a tenant's, once there are so many and the queue for them is empty."""

    async def there() -> bool:
        return len(await store.dead_letters(tenant, run_id=None, limit=1_000)) >= number

    await eventually(there)
    found: list[dict[str, Any]] = await store.dead_letters(tenant, run_id=None, limit=1_000)
    assert len(found) == number
    return found


async def is_drained(ends: BrokerEnds, *collectors: Collector) -> None:
    """Nothing is in the queue for dead letters, and no collector has anything of it in hand."""

    async def empty() -> bool:
        in_hand = any(one._waiting or one._held for one in collectors)
        return not in_hand and await ends.count(DEAD_QUEUE) == 0

    await eventually(empty)


async def give_up(ends: BrokerEnds, service: str) -> None:
    """Deliver what is in a queue so often that the broker gives it up."""
    connection = await ends.connection()
    channel = await connection.channel()
    queue = await channel.get_queue(PREFIX + service)
    for _ in range(limits.DELIVERIES_MAX + 1):
        message = await queue.get(fail=False, timeout=5)
        if message is not None:
            await message.nack(requeue=True)


async def park(ends: BrokerEnds, queue: str, *bodies: bytes, **properties: Any) -> None:
    """As a service parks what it cannot read."""
    channel = await (await ends.connection()).channel()
    dead = await channel.get_exchange("placet.dead")
    for body in bodies:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **properties)
        await dead.publish(message, queue)


async def publish(ends: BrokerEnds, body: bytes, **properties: Any) -> None:
    """As an outsider publishes a submission."""
    channel = await (await ends.connection()).channel()
    exchange = await channel.get_exchange("placet.submissions")
    await exchange.publish(aio_pika.Message(body, user_id="guest", **properties), "run.submit")
