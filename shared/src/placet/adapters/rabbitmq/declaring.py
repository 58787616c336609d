"""Decides how a broker gets its topology, and how a service that may declare nothing finds out that it is there.

`declare` is the deploy step: it needs the right to configure. `verify` is what every service does at its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import AMQPChannelError, AMQPError

from placet.adapters.rabbitmq.link import abandon, connect, reason_of
from placet.errors import Code, PlacetError, RetryableError, TerminalError
from placet.topology import Binding, Exchange, Queue, Topology

TRY_AGAIN_S = 0.5
STEP_TIMEOUT_S = 20.0

Step = Callable[[AbstractChannel], Awaitable[object]]


async def declare(url: str, topology: Topology, *, wait_ms: int = 0) -> None:
    """Make everything of the topology that is not there. Doing it again, also at once, is harmless.

    Raises TerminalError(BROKER_MISMATCH) naming each queue or exchange that is there with other arguments, and which;
    RetryableError(BROKER_UNAVAILABLE) when the broker cannot be reached within `wait_ms`.
    """
    connection = await _reach(url, "placet deploy step", wait_ms)
    try:
        exchanges = (partial(_declare_exchange, exchange) for exchange in topology.exchanges)
        queues = (partial(_declare_queue, queue) for queue in topology.queues)
        differences = await _faults(connection, [*exchanges, *queues])
        if not differences:  # a binding needs both of its ends
            differences = await _faults(connection, (partial(_bind, binding) for binding in topology.bindings))
        if differences:
            raise _mismatch(
                "the broker holds something else than this version needs",
                differences,
                "Arguments cannot be changed: empty and delete what differs, then declare again",
            )
        if unmarked := await _faults(connection, [partial(_mark, topology.marker())]):
            raise _mismatch("the topology could not be marked as declared", unmarked, "Is there a right to configure?")
    finally:
        await abandon(connection)


async def verify(url: str, topology: Topology, *, wait_ms: int = 0) -> None:
    """Check that at least this topology has been declared and is there. Needs no right to configure.

    What other versions, or other pools of tool executors, had declared beside it stays, and so do their marks: nobody
    is cut off who still runs. That is safe, since rows travel by what the broker holds, not by what a process knows.

    Raises TerminalError(BROKER_MISMATCH) naming what is missing; RetryableError(BROKER_UNAVAILABLE) when the broker
    cannot be reached within `wait_ms`.
    """
    connection = await _reach(url, "placet start check", wait_ms)
    try:
        exchanges = (partial(_ask_for_exchange, exchange.name) for exchange in topology.exchanges)
        queues = (partial(_ask_for_queue, queue.name) for queue in topology.queues)
        missing = await _faults(connection, [*exchanges, *queues])
        if missing:
            raise _mismatch("the broker lacks what this version needs", missing, "Run the deploy step")
        marker = topology.marker()
        if unmarked := await _faults(connection, [partial(_ask_for_exchange, marker)]):
            raise _mismatch(
                "the broker's topology was declared by another version, or for other tool pools",
                unmarked,
                "Run the deploy step of this version",
            )
    finally:
        await abandon(connection)


async def _declare_exchange(exchange: Exchange, channel: AbstractChannel) -> None:
    await channel.declare_exchange(exchange.name, ExchangeType(exchange.kind.value), durable=True)


async def _declare_queue(queue: Queue, channel: AbstractChannel) -> None:
    await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments()))


async def _bind(binding: Binding, channel: AbstractChannel) -> None:
    queue = await channel.get_queue(binding.queue, ensure=False)
    await queue.bind(binding.exchange, binding.key)


async def _mark(marker: str, channel: AbstractChannel) -> None:
    await channel.declare_exchange(marker, ExchangeType.FANOUT, durable=True)


async def _ask_for_exchange(name: str, channel: AbstractChannel) -> None:
    await channel.declare_exchange(name, passive=True)


async def _ask_for_queue(name: str, channel: AbstractChannel) -> None:
    await channel.declare_queue(name, passive=True)


async def _faults(connection: AbstractConnection, steps: Iterable[Step]) -> list[str]:
    """What the broker has against each step, in its own words. Each has a channel: a refusal closes it."""
    return [text for step in steps if (text := await _fault(connection, step))]


async def _fault(connection: AbstractConnection, step: Step) -> str:
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            channel = await connection.channel()
            await step(channel)
            await channel.close()
    except AMQPChannelError as error:
        return " ".join(str(error).split())
    except (AMQPError, OSError, TimeoutError) as error:
        raise RetryableError(Code.BROKER_UNAVAILABLE, f"the broker went away: {reason_of(error)}") from error
    return ""


def _mismatch(what: str, details: list[str], advice: str) -> PlacetError:
    return TerminalError(Code.BROKER_MISMATCH, f"{what}: {'; '.join(details)}. {advice}", details=details)


async def _reach(url: str, name: str, wait_ms: int) -> AbstractConnection:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1_000
    while True:
        try:
            return await connect(url, name)
        except (AMQPError, OSError, TimeoutError) as error:
            if loop.time() + TRY_AGAIN_S > until_s:
                raise RetryableError(
                    Code.BROKER_UNAVAILABLE, f"the broker cannot be reached: {reason_of(error)}"
                ) from error
            await asyncio.sleep(TRY_AGAIN_S)
