"""Decides when a message counts as published: when the broker has confirmed it and it reached a queue; never before.

Whatever is not confirmed is unknown, and stays an outbox row. Publishing has a connection of its own, because a broker
that is short of memory stops reading from those who publish, acknowledgements included.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import DeliveryError, PublishError

from placet.adapters.rabbitmq.letters import about_of, dead_letter_key
from placet.adapters.rabbitmq.link import Lane, Link, open_lane, raise_if_cancelled, reason_of
from placet.adapters.rabbitmq.wire import (
    ABOUT_HEADER,
    CLOUD_EVENT,
    CODE_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    Incoming,
    body_of,
    packs,
    properties,
    require_size,
)
from placet.errors import Code, InvariantError, PlacetError, RetryableError
from placet.runtime.ports import OutboxRow
from placet.topology import DEAD_EXCHANGE, EVENTS, Route, Topology

log = logging.getLogger("placet.rabbitmq")

CONFIRM_TIMEOUT_MS = 8_000
"""How long a confirm may take: a healthy quorum queue needs a few milliseconds."""
PATIENCE_MS = 10_000
"""How long a publication waits for the broker to be there, and to take messages in. With the confirm, less than a
relay's claim lasts: what waited here goes out first when the broker is back."""
REASON_CHARS_MAX = 500
ALARM_S = 45.0
"""An alarm that is not repeated for two claims of a relay is over."""


class RabbitOutlet:
    """Outlet: rows of the outbox to their queues, several in one AMQP message. Also parks what nobody could read."""

    def __init__(
        self,
        url: str,
        topology: Topology,
        name: str,
        *,
        confirm_timeout_ms: int = CONFIRM_TIMEOUT_MS,
        patience_ms: int = PATIENCE_MS,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._topology = topology
        self._confirm_timeout_s = confirm_timeout_ms / 1_000
        self._patience_ms = patience_ms
        self._link = Link(url, f"{name} outlet", self._opened, self._lost)
        self._lane: Lane | None = None
        self._alarms: dict[str, tuple[float, str]] = {}
        """Destinations that refuse messages: when they did last, and why. Gone with the next success."""
        self._unrouted: dict[str, tuple[float, str]] = {}
        """Destinations that this process does not know: likewise."""

    def start(self) -> None:
        """Begin to connect. Publishing waits for it."""
        self._link.start()

    async def close(self) -> None:
        """End the connection. Closing twice is harmless."""
        await self._link.close()

    @property
    def connections(self) -> int:
        """As ports.Outlet."""
        return self._link.connections

    @property
    def trouble(self) -> str | None:
        """Why nothing, or not everything, can be published now; None when all is well."""
        if self._link.trouble is not None:
            return self._link.trouble
        return "; ".join(f"{destination}: {reason}" for destination, reason in self.alarms.items()) or None

    @property
    def alarms(self) -> dict[str, str]:
        """Destinations that have lately refused messages, and why: no queue is bound, or it is full.

        Another process may have published there since: one that says nothing more is over after two claims.
        """
        return _lately(self._alarms, self._monotonic_s())

    @property
    def unrouted(self) -> dict[str, str]:
        """Destinations of rows that this process has lately found and knows no way to, and why. They are another
        version's, or of a pool that is not set up here, and whoever knows the way publishes them: nobody is unready.
        """
        return _lately(self._unrouted, self._monotonic_s())

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """The ids of the rows that the broker has confirmed; all others stay rows and are published again later.

        A message that reaches no queue, or that a full queue refuses, is logged and is in `alarms`. Raises
        ContractError(TOO_LARGE) for a row that no broker of ours takes, before anything is published;
        RetryableError(BROKER_UNAVAILABLE) when nothing was confirmed because the broker is away, blocked or silent:
        whether it has the messages is unknown then.
        """
        if not rows:
            return []
        for row in rows:
            require_size(len(row.body), row.id)
        lane = await self._ready()
        portions = [
            (destination, pack, route)
            for (destination, route), together in self._by_route(rows).items()
            for pack in packs(together, lambda row: len(row.body), route.pack_max)
        ]
        results = await asyncio.gather(
            *(self._publish_pack(lane, pack, route) for _, pack, route in portions), return_exceptions=True
        )
        confirmed: list[str] = []
        unknown: BaseException | None = None
        for (destination, pack, _), result in zip(portions, results, strict=True):
            if result is None:
                self._alarms.pop(destination, None)
                self._unrouted.pop(destination, None)
                confirmed += [row.id for row in pack]
            elif isinstance(result, PublishError | DeliveryError):
                self._refused(destination, pack, result)
            elif isinstance(result, Exception | asyncio.CancelledError):
                unknown = result
            else:
                raise result
        if unknown is not None:
            log.warning("outlet.unconfirmed", extra={"rows": len(rows) - len(confirmed), "reason": reason_of(unknown)})
            if not confirmed:
                raise _silent(unknown) from unknown
        return confirmed

    async def park(self, message: Incoming, body: bytes, error: PlacetError) -> bool:
        """Put a body that no rule accepts, with the reason, where a person finds it. False: unknown, try again.

        Parked twice, it has one message id.
        """
        reason = error.message[:REASON_CHARS_MAX]
        headers = {
            CODE_HEADER: error.code.value,
            REASON_HEADER: reason,
            QUEUE_HEADER: message.queue,
            ABOUT_HEADER: about_of(message),
        }
        about = properties(
            message.content_type or "application/octet-stream",
            message_id=dead_letter_key(message.queue, body),
            headers=headers,
        )
        try:
            lane = await self._ready()
            await lane.basic_publish(
                body,
                exchange=DEAD_EXCHANGE,
                routing_key=message.queue,
                properties=about,
                mandatory=True,
                timeout=self._confirm_timeout_s,
                wait=False,
            )
        except (Exception, asyncio.CancelledError) as failed:  # noqa: BLE001  told, and tried again
            raise_if_cancelled(failed)
            log.error("outlet.not_parked", extra={"queue": message.queue, "reason": reason_of(failed)})
            return False
        log.warning("message.parked", extra={"queue": message.queue, "code": error.code.value, "reason": reason})
        return True

    # ── one AMQP message ───────────────────────────────────────────────────────────────

    async def _publish_pack(self, lane: Lane, pack: Sequence[OutboxRow], route: Route) -> None:
        body, content_type = body_of([row.body for row in pack])
        if pack[0].destination == EVENTS:
            content_type = CLOUD_EVENT
        about = properties(content_type, message_id=pack[0].id, kind=pack[0].type if len(pack) == 1 else None)
        await lane.basic_publish(
            body,
            exchange=route.exchange,
            routing_key=route.key,
            properties=about,
            mandatory=route.mandatory,
            timeout=self._confirm_timeout_s,
            wait=False,
        )

    def _by_route(self, rows: Iterable[OutboxRow]) -> dict[tuple[str, Route], list[OutboxRow]]:
        """Rows that may share an AMQP message, in order. A row that comes twice is published once."""
        grouped: dict[tuple[str, Route], dict[str, OutboxRow]] = {}
        for row in rows:
            try:
                route = self._topology.route(row.destination, row.type)
            except InvariantError as error:  # a row of another version, or for a pool that is not set up here
                self._unrouted[row.destination] = (self._monotonic_s(), error.message)
                log.error("outlet.no_route", extra={"destination": row.destination, "row": row.id})
                continue
            grouped.setdefault((row.destination, route), {})[row.id] = row
        return {key: list(group.values()) for key, group in grouped.items()}

    def _refused(self, destination: str, pack: Sequence[OutboxRow], error: PublishError | DeliveryError) -> None:
        if isinstance(error, PublishError):
            reason = "no queue is bound for it"
        else:
            reason = "its queue refuses it: full, or without a majority of its nodes"
        known = destination == EVENTS or destination in self._topology.routes
        (self._alarms if known else self._unrouted)[destination] = (self._monotonic_s(), reason)
        log.error(
            "outlet.refused",
            extra={"destination": destination, "rows": len(pack), "first": pack[0].id, "reason": reason},
        )

    # ── the connection ─────────────────────────────────────────────────────────────────

    async def _ready(self) -> Lane:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience_ms / 1_000
        await self._link.wait_until_up(self._patience_ms)
        await self._link.wait_until_unblocked(1_000 * (until_s - loop.time()))
        lane = self._lane
        if lane is None:
            raise RetryableError(Code.BROKER_UNAVAILABLE, f"the broker went away: {self._link.trouble}")
        return lane

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._channel, self._lane = await open_lane(connection, confirms=True)
        return [self._lane]

    def _lost(self) -> None:
        self._lane = None


def _lately(found: dict[str, tuple[float, str]], now_s: float) -> dict[str, str]:
    """What is not over yet; the rest is dropped."""
    long_ago_s = now_s - ALARM_S
    for name in [name for name, (at_s, _) in found.items() if at_s <= long_ago_s]:
        del found[name]
    return {name: reason for name, (_, reason) in found.items()}


def _silent(error: BaseException) -> RetryableError:
    what = "did not confirm in time" if isinstance(error, TimeoutError) else reason_of(error)
    return RetryableError(
        Code.BROKER_UNAVAILABLE, f"whether the broker has the messages is unknown, they are sent again: {what}"
    )
