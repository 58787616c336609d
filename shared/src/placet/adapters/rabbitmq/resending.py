"""Decides how what an outsider once published is published again: as it came, to the exchange it came by, once.

On a connection of its own, since a broker that forbids it closes the channel, and a person asks for it rarely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aio_pika
from aio_pika import DeliveryMode
from aio_pika.exceptions import AMQPChannelError, AMQPError, DeliveryError, PublishError

from placet.adapters.rabbitmq.link import abandon, connect, open_lane, reason_of
from placet.errors import Code, ContractError, RetryableError, TerminalError
from placet.topology import Topology

TIMEOUT_S = 10.0
_TEXTS = ("content_type", "message_id", "correlation_id", "reply_to", "type", "user_id")


async def send_as_it_came(url: str, topology: Topology, queue: str, body: bytes, about: Mapping[str, Any]) -> None:
    """Publish a body to where a queue of outsiders gets it from, with the properties that `about` names.

    Returns when the broker has confirmed it. Raises ContractError(MESSAGE_UNEXPECTED) for a queue that is none of
    outsiders', and for a message of which not everything was kept; TerminalError(BROKER_MISMATCH) where this user may
    not publish it; RetryableError(BROKER_UNAVAILABLE) where the broker has not confirmed it.
    """
    exchange, key = _way(topology, queue, about)
    headers = about.get("headers")
    texts: dict[str, Any] = {name: about[name] for name in _TEXTS if isinstance(about.get(name), str)}
    message = aio_pika.Message(
        body, headers=headers if isinstance(headers, dict) else {}, delivery_mode=DeliveryMode.PERSISTENT, **texts
    )
    try:
        connection = await connect(url, "placet redrive")
    except (AMQPError, OSError, TimeoutError) as error:
        raise _away(error) from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            channel, lane = await open_lane(connection, confirms=True)
            await lane.basic_publish(
                body, exchange=exchange, routing_key=key, properties=message.properties, mandatory=True
            )
            await channel.close()
    except (PublishError, DeliveryError) as error:
        raise RetryableError(Code.BROKER_UNAVAILABLE, f"{queue} does not take it now: {reason_of(error)}") from error
    except AMQPChannelError as error:
        what = (
            f"the broker does not let this user publish it again: {reason_of(error)}. It needs the right to write to "
        )
        raise TerminalError(Code.BROKER_MISMATCH, f"{what}{exchange}, and the tag impersonator") from error
    except (AMQPError, OSError, TimeoutError) as error:
        raise _away(error) from error
    finally:
        await abandon(connection)


def _way(topology: Topology, queue: str, about: Mapping[str, Any]) -> tuple[str, str]:
    ways = [(bound.exchange, bound.key) for bound in topology.bindings if bound.queue == queue]
    if not ways or queue not in topology.public_queues:
        raise ContractError(Code.MESSAGE_UNEXPECTED, f"{queue} is no queue that outsiders publish to: nothing was sent")
    if about.get("cut") or about.get("left_out"):
        what = "not everything of this message was kept, so it cannot be sent as it came: nothing was sent"
        raise ContractError(Code.MESSAGE_UNEXPECTED, what)
    return ways[0]


def _away(error: BaseException) -> RetryableError:
    return RetryableError(Code.BROKER_UNAVAILABLE, f"the broker cannot be reached: {reason_of(error)}")
