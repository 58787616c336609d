"""Decides how one connection to the broker is kept: made again whenever it breaks, never two at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.channel import Channel as Lane  # beneath aio-pika's: it acknowledges and publishes without waiting

from placet.errors import Code, InvariantError, RetryableError

__all__ = ["Lane", "Link", "abandon", "connect", "open_lane", "raise_if_cancelled", "reason_of"]

log = logging.getLogger("placet.rabbitmq")

CONNECT_TIMEOUT_S = 10.0
NODE_TIMEOUT_S = 3.0
"""Where there are other nodes to ask."""
CLOSE_TIMEOUT_S = 5.0
HEARTBEAT_S = 10
"""A peer that is silent for about three of these is gone."""
BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0
STEADY_S = 10.0
"""A connection that lived this long was a good one: the next failure counts as the first."""

BLOCKED = "the broker takes no messages in: memory or disk is short"

Opened = Callable[[AbstractConnection], Awaitable[Sequence[Lane]]]


def reason_of(error: BaseException) -> str:
    """One line for people. Never holds a password: the library's errors carry none."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def connect(urls: str, name: str) -> AbstractConnection:
    """A connection to one of the nodes of a broker, whichever answers. Raises whatever the library does for the last.

    `urls`: one address, or several with blanks between them. They are tried in any order, so that services spread over
    the nodes and none waits for one that is dead.
    """
    nodes = urls.split()
    random.shuffle(nodes)
    for url in nodes[:-1]:
        try:
            return await _connect(url, name, NODE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  the next node may answer
            log.info("broker.node_away", extra={"link": name, "reason": reason_of(error)})
    return await _connect(nodes[-1], name, CONNECT_TIMEOUT_S)


async def _connect(url: str, name: str, timeout_s: float) -> AbstractConnection:
    """With our heartbeat, unless the URL names one."""
    extra: dict[str, Any] = {} if "heartbeat" in parse_qs(urlsplit(url).query) else {"heartbeat": HEARTBEAT_S}
    properties: dict[str, Any] = {"connection_name": name}
    connection: AbstractConnection = await aio_pika.connect(
        url, timeout=timeout_s, client_properties=properties, **extra
    )
    return connection


async def open_lane(connection: AbstractConnection, *, confirms: bool) -> tuple[AbstractChannel, Lane]:
    """A channel, with publisher confirms and returned messages as errors or without; and what is beneath it."""
    channel = await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
    lane = await channel.get_underlay_channel()
    if not isinstance(lane, Lane):
        raise InvariantError(f"an unknown kind of channel: {type(lane).__name__}")
    return channel, lane


def raise_if_cancelled(error: BaseException) -> None:
    """The library cancels what waits on a channel that it closes; raise only what was meant for this task."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


async def abandon(connection: AbstractConnection) -> None:
    """Close it if it can be closed in time; else the broker finds out by the heartbeat."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close()
    except Exception as error:  # noqa: BLE001  it is given up in any case
        log.debug("broker.close_failed", extra={"reason": reason_of(error)})


def _is_waiting(connection: AbstractConnection) -> bool:
    """Whether `ready` would wait: asked by taking its first step, since the library tells it in no other way."""
    if connection.transport is None:
        return False
    ready = connection.transport.ready().__await__()
    try:
        next(ready)
    except StopIteration:
        return False
    ready.close()
    return True


class Link:
    """One connection. `opened` sets up what lives on it and returns its channels; when one of them ends, all ends.

    `closed` is called, at once and synchronously, before anything is made again.
    """

    def __init__(self, url: str, name: str, opened: Opened, closed: Callable[[], None] = lambda: None) -> None:
        self._url = url
        self._name = name
        self._opened = opened
        self._closed = closed
        self._up = asyncio.Event()
        self._broken: asyncio.Future[str] | None = None
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = "not connected yet"
        """Why there is no connection now; None while there is one."""
        self.connections = 0
        """How many have been made."""

    def start(self) -> None:
        """Begin to connect, and go on for ever. Starting twice is harmless."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name=self._name)

    async def wait_until_up(self, timeout_ms: float) -> None:
        """Raises RetryableError(BROKER_UNAVAILABLE), saying why, when there is no connection within that time."""
        if self._up.is_set():
            return
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._up.wait()
        except TimeoutError:
            raise RetryableError(Code.BROKER_UNAVAILABLE, f"the broker cannot be reached: {self.trouble}") from None

    async def wait_until_unblocked(self, timeout_ms: float) -> None:
        """Raises RetryableError(BROKER_UNAVAILABLE) when the broker takes nothing in for that time (memory, disk)."""
        connection = self._connection
        if connection is None or connection.transport is None:
            raise RetryableError(Code.BROKER_UNAVAILABLE, f"the broker cannot be reached: {self.trouble}")
        try:
            async with asyncio.timeout(max(0.0, timeout_ms / 1_000)):
                await connection.transport.ready()
        except TimeoutError:
            raise RetryableError(Code.BROKER_UNAVAILABLE, BLOCKED) from None

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing in now (memory, disk). Never without a connection."""
        return self._connection is not None and _is_waiting(self._connection)

    def give_up(self, reason: str) -> None:
        """This connection is of no use any more: make another."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(reason)

    async def close(self) -> None:
        """End it. Closing twice is harmless."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        try:
            while True:
                since = loop.time()
                reason = await self._once()
                failures = 1 if loop.time() - since > STEADY_S else failures + 1
                longest_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures, 10))
                delay_s = random.uniform(longest_s / 2, longest_s)  # so that not all come back in step
                log.warning(
                    "broker.link_down",
                    extra={"link": self._name, "reason": reason, "delay_ms": round(delay_s * 1_000)},
                )
                await asyncio.sleep(delay_s)
        finally:
            self.trouble = "closed"

    async def _once(self) -> str:
        """Connect, and stay connected; why it ended."""
        self._broken = asyncio.get_running_loop().create_future()
        reason = "closed"
        try:
            async with asyncio.timeout(2 * CONNECT_TIMEOUT_S):
                self._connection = await connect(self._url, self._name)
                lanes = await self._opened(self._connection)
            self.trouble = None
            self.connections += 1
            self._up.set()
            log.info("broker.link_up", extra={"link": self._name, "connections": self.connections})
            reason = await self._until_broken(self._connection, lanes)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told, and tried again
            raise_if_cancelled(error)
            reason = reason_of(error)
        finally:
            self._up.clear()
            self.trouble = reason
            self._closed()
            connection, self._connection = self._connection, None
            if connection is not None:
                await abandon(connection)
        return reason

    async def _until_broken(self, connection: AbstractConnection, lanes: Sequence[Lane]) -> str:
        broken = self._broken
        if broken is None or connection.transport is None:
            return "closed"
        ends: list[asyncio.Future[Any]] = [connection.transport.connection.closing, *(lane.closing for lane in lanes)]
        try:
            await asyncio.wait([broken, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            told = [end for end in ends if end.done()]
            for end in ends:
                if not end.done():
                    end.cancel()
        if broken.done():
            return broken.result()
        # A channel that the broker closes knows why; the connection's own end says less.
        reasons = [error for end in reversed(told) if not end.cancelled() and (error := end.exception()) is not None]
        return reason_of(reasons[0]) if reasons else "the connection ended"
