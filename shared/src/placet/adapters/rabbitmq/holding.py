"""Decides when an AMQP message is acknowledged: when all in it is done; cumulatively where that is possible."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from placet.adapters.rabbitmq.link import Lane, reason_of
from placet.adapters.rabbitmq.wire import Incoming

log = logging.getLogger("placet.rabbitmq")


@dataclass(slots=True, eq=False)
class Held:
    """An AMQP message that is not acknowledged yet."""

    tag: int
    hold: Hold
    message: Incoming
    since_s: float = 0.0
    """When it came, by the loop's clock."""
    open: int = 0
    """How many of its envelopes are not done."""


class Hold:
    """What one channel has handed us. Tags are good on this channel only: with it, all of it is void.

    Acknowledgements leave one after the other: a later, higher one that overtakes an earlier one would name a tag that
    the broker no longer knows, and the broker closes the channel for that.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._order: deque[int] = deque()
        self._finished: set[int] = set()
        self._gone: set[int] = set()
        self._sending = asyncio.Lock()
        self.void = False
        """The channel has ended: the broker hands everything out again."""

    def __len__(self) -> int:
        return len(self._order) - len(self._gone) - len(self._finished)

    def add(self, tag: int) -> None:
        """Handed out by the broker."""
        self._order.append(tag)

    def finish(self, held: Held) -> None:
        """One envelope is done; the last one makes the message ready to be acknowledged."""
        held.open -= 1
        if held.open == 0:
            self._finished.add(held.tag)

    async def acknowledge(self) -> None:
        """Acknowledge whatever is finished. Never raises: on a channel that is gone nothing is owed."""
        async with self._sending:
            while self._finished and not self.void:
                upto = self._prefix()
                if upto is not None:
                    await self._send(upto, multiple=True)
                alone, self._finished = sorted(self._finished), set()
                self._gone.update(alone)
                for tag in alone:
                    await self._send(tag, multiple=False)

    async def give_back(self, helds: list[Held]) -> None:
        """Let somebody else have these. It counts as a delivery, so only when this process ends."""
        async with self._sending:
            for held in helds:
                self._gone.add(held.tag)
                try:
                    await self._lane.basic_nack(held.tag, requeue=True, wait=False)
                except Exception as error:  # noqa: BLE001  with the channel gone it is given back already
                    log.debug("inbox.stale", extra={"tag": held.tag, "reason": reason_of(error)})

    def _prefix(self) -> int | None:
        """The highest tag up to which everything is finished."""
        upto = None
        while self._order and (self._order[0] in self._finished or self._order[0] in self._gone):
            tag = self._order.popleft()
            if tag in self._finished:
                self._finished.discard(tag)
                upto = tag
            self._gone.discard(tag)
        return upto

    async def _send(self, tag: int, *, multiple: bool) -> None:
        try:
            await self._lane.basic_ack(tag, multiple=multiple, wait=False)
        except Exception as error:  # noqa: BLE001  the redelivery will come, and find it done
            log.debug("inbox.stale", extra={"tag": tag, "reason": reason_of(error)})
