"""Decides how answers and hints leave a service: best effort, several at once, and never in anybody's way."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from aio_pika.abc import AbstractConnection

from placet.adapters.rabbitmq.link import Lane, Link, open_lane, raise_if_cancelled, reason_of
from placet.adapters.rabbitmq.overhearing import joined
from placet.adapters.rabbitmq.wire import (
    ANSWERS,
    JSON,
    LINES,
    TEXT,
    ReturnAddress,
    answers_body,
    packs,
    properties,
    read_return_address,
)
from placet.partials import Partial
from placet.runtime.ports import Changed
from placet.topology import EVENTS_EXCHANGE, HINTS_KEY, PARTIALS_EXCHANGE, PARTIALS_KEY

log = logging.getLogger("placet.rabbitmq")

HINT_PERIOD_MS = 25
"""Hints are for people's eyes: what happens within this time is one message."""
HINTS_MAX = 1_000
"""Runs in one hint. Past it, the hint says "something"."""
PIECES_MAX = 4_096
"""Pieces of replies that may wait. The oldest go first: whole replies are facts."""
WAITING_MAX = 10_000
"""Answers that may wait for the broker. The oldest go first: their askers have given up by then."""


class RabbitReplies:
    """Replies: to a door's pseudo queue, or to that of whoever published a message. Also hints for open windows,
    and what models are saying, which only processes that call models need the right to say."""

    def __init__(self, url: str, name: str) -> None:
        self._link = Link(url, f"{name} replies", self._opened, self._lost)
        self._lane: Lane | None = None
        self.dropped = 0
        """Answers and hints that could not be sent, since the start."""
        self._waiting: list[tuple[ReturnAddress, str]] = []
        self._changed: dict[str, set[str]] = {}
        self._pieces: deque[Partial] = deque(maxlen=PIECES_MAX)
        self._speaking: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._hinting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._link.start()

    async def close(self) -> None:
        """Send what waits, then end the connection. Closing twice is harmless."""
        for task in (self._flushing, self._hinting, self._speaking):
            if task is not None:
                await asyncio.wait([task])
        await self._link.close()

    @property
    def trouble(self) -> str | None:
        """Why no answer can be sent now; None when all is well."""
        return self._link.trouble

    async def send(self, reply_to: str, text: str) -> None:
        """Hand an answer over and return: those of one turn travel together. One that cannot be sent is dropped: the
        asker repeats its question and is answered from what was committed."""
        address = read_return_address(reply_to)
        if address is None:
            log.debug("reply.no_address", extra={"reply_to": reply_to})
            return
        self._waiting.append((address, text))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    def hint(self, changed: Changed) -> None:
        """This was committed. Returns at once."""
        for run_id, words in changed.items():
            self._changed.setdefault(run_id, set()).update(words)
        if self._changed and (self._hinting is None or self._hinting.done()):
            self._hinting = asyncio.get_running_loop().create_task(self._hint())

    def listens(self, run_id: str) -> bool:
        """As ports.Partials: who watches is not known here."""
        return True

    def tell(self, partial: Partial) -> None:
        """As ports.Partials: what comes within a moment travels together."""
        self._pieces.append(partial)
        if self._speaking is None or self._speaking.done():
            self._speaking = asyncio.get_running_loop().create_task(self._speak())

    async def _speak(self) -> None:
        while self._pieces:
            await asyncio.sleep(HINT_PERIOD_MS / 1_000)
            pieces = list(self._pieces)
            self._pieces.clear()
            said = [piece.json_bytes() for piece in joined(pieces)]
            for pack in packs(said, len, len(said)):
                await self._send(PARTIALS_EXCHANGE, PARTIALS_KEY, b"\n".join(pack), LINES)

    async def _flush(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # whatever this turn of the loop still answers comes along
            self.dropped += max(0, len(self._waiting) - WAITING_MAX)
            waiting, self._waiting = self._waiting[-WAITING_MAX:], []
            doors: dict[str, list[tuple[str, str]]] = {}
            for address, text in waiting:
                if address.packed:
                    doors.setdefault(address.address, []).append((address.token, text))
                else:
                    await self._send("", address.address, text.encode(), JSON, address.token)
            for door, answers in doors.items():
                await self._send("", door, answers_body(answers), ANSWERS)

    async def _hint(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, {}
            lines = (f"{','.join(sorted(words))}\t{run_id}" for run_id, words in changed.items())
            told = "\n".join(lines) if len(changed) <= HINTS_MAX else ""
            await self._send(EVENTS_EXCHANGE, HINTS_KEY, told.encode(), TEXT)
            await asyncio.sleep(HINT_PERIOD_MS / 1_000)

    async def _send(
        self, exchange: str, key: str, body: bytes, content_type: str, correlation_id: str | None = None
    ) -> None:
        lane = self._lane
        if lane is None:
            self.dropped += 1
            log.debug("reply.dropped", extra={"reason": self._link.trouble})
            return
        about = properties(content_type, durable=False, correlation_id=correlation_id)
        try:
            await self._link.wait_until_unblocked(0)  # what is written to a blocked connection only fills memory
            await lane.basic_publish(body, exchange=exchange, routing_key=key, properties=about, wait=False)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  best effort
            raise_if_cancelled(error)
            self.dropped += 1
            log.debug("reply.dropped", extra={"reason": reason_of(error)})

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._channel, self._lane = await open_lane(connection, confirms=False)
        return [self._lane]

    def _lost(self) -> None:
        self._lane = None
