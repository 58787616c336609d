"""Decides what a person can do with the dead letters that a broker keeps: look at them, send them again, drop them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, DeliveryError, PublishError

from placet.adapters.rabbitmq.letters import GIVEN_UP, dead_letter_key
from placet.adapters.rabbitmq.link import Lane, abandon, connect, open_lane, reason_of
from placet.adapters.rabbitmq.wire import CODE_HEADER, REASON_HEADER, properties
from placet.errors import Code, RetryableError
from placet.topology import DEAD_QUEUE, Topology


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A parked AMQP message. `key` names it by where it was and what it says."""

    key: str
    queue: str
    code: str
    reason: str
    body: bytes


async def look(url: str, *, limit: int = 100) -> list[DeadLetter]:
    """Up to so many dead letters, oldest first. They stay. Raises RetryableError(BROKER_UNAVAILABLE)."""
    return [letter for letter, _ in await _each(url, limit, lambda letter: None)]


async def send_again(url: str, topology: Topology, keys: Collection[str], *, limit: int = 10_000) -> list[str]:
    """Publish those to where they came from, and drop them once the broker has confirmed; the keys of which it did.

    What an outsider published stays: only its publisher can say it again in its own name. Raises
    RetryableError(BROKER_UNAVAILABLE).
    """
    public = {source.queue for sources in topology.sources.values() for source in sources if source.public}
    ways = {bound.queue: (bound.exchange, bound.key) for bound in topology.bindings if bound.queue not in public}

    def way(letter: DeadLetter) -> tuple[str, str] | None:
        return ways.get(letter.queue) if letter.key in keys else None

    return [letter.key for letter, gone in await _each(url, limit, way) if gone]


async def drop(url: str, keys: Collection[str], *, limit: int = 10_000) -> list[str]:
    """Forget those for good; the keys of which that was done. Raises RetryableError(BROKER_UNAVAILABLE)."""
    found = await _each(url, limit, lambda letter: ("", "") if letter.key in keys else None)
    return [letter.key for letter, gone in found if gone]


Way = Callable[[DeadLetter], tuple[str, str] | None]
"""Where a letter goes: exchange and key; two empty texts: nowhere, it is dropped; None: it stays."""


async def _each(url: str, limit: int, way: Way) -> list[tuple[DeadLetter, bool]]:
    """Go through the letters; whether each is gone. Those that stay are back with the end of the channel."""
    try:
        connection = await connect(url, "placet dead letters")
    except (AMQPError, OSError, TimeoutError) as error:
        raise _unavailable(error) from error
    try:
        channel, _ = await open_lane(connection, confirms=False)
        publishing, lane = await open_lane(connection, confirms=True)
        queue = await channel.get_queue(DEAD_QUEUE, ensure=False)
        found: list[tuple[DeadLetter, bool]] = []
        while len(found) < limit and (message := await queue.get(fail=False)) is not None:
            letter = _letter(message)
            to = way(letter)
            gone = to is not None and await _sent(lane, *to, message)
            if gone:
                await message.ack()
            found.append((letter, gone))
        await publishing.close()
        return found
    except (AMQPError, OSError, TimeoutError) as error:
        raise _unavailable(error) from error
    finally:
        await abandon(connection)


async def _sent(lane: Lane, exchange: str, key: str, message: AbstractIncomingMessage) -> bool:
    if not exchange:
        return True
    about = properties(
        message.content_type or "",
        message_id=message.message_id,
        kind=message.type,
        reply_to=message.reply_to,
        correlation_id=message.correlation_id,
    )
    try:
        await lane.basic_publish(
            message.body, exchange=exchange, routing_key=key, properties=about, mandatory=True, timeout=10
        )
    except (PublishError, DeliveryError):
        return False
    return True


def _letter(message: AbstractIncomingMessage) -> DeadLetter:
    queue, body = message.routing_key or "", message.body
    code = str(message.headers.get(CODE_HEADER) or GIVEN_UP)
    reason = str(message.headers.get(REASON_HEADER) or "it was delivered too often without being settled")
    return DeadLetter(dead_letter_key(queue, body), queue, code, reason, body)


def _unavailable(error: BaseException) -> RetryableError:
    return RetryableError(Code.BROKER_UNAVAILABLE, f"the broker cannot be reached: {reason_of(error)}")
