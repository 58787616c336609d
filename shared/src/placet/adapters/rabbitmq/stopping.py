"""Decides how the stop of a call travels to whichever process makes it: said to all that make such calls, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from pydantic import ValidationError

from placet.activities import Stop
from placet.adapters.rabbitmq.hearing import Channel, Hearing
from placet.adapters.rabbitmq.link import raise_if_cancelled, reason_of
from placet.adapters.rabbitmq.wire import LINES
from placet.topology import STOPS_EXCHANGE

log = logging.getLogger("placet.rabbitmq")

WAITING_MAX = 10_000
"""Stops that may wait for the broker. The oldest go first."""
SAY_TIMEOUT_MS = 5_000
"""How long a stop waits for the connection before that is logged; it goes on waiting."""
AGAIN_S = 0.1
CLOSE_S = 1.0
"""How long the last stops may take to leave."""


class RabbitStops:
    """ports.Stops, for the machines that a process hosts."""

    def __init__(self, url: str, name: str, machines: Collection[str]) -> None:
        channel = Channel(STOPS_EXCHANGE, tuple(machines), f"{STOPS_EXCHANGE}.")
        self._hearing = Hearing(url, f"{name} stops", channel, self._received, lambda: self._missed())
        self._heard: Callable[[Stop], None] = lambda stop: None
        self._missed: Callable[[], None] = lambda: None
        self._waiting: list[Stop] = []
        self._saying: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._hearing.start()

    async def close(self) -> None:
        """Say what waits, if that is possible at once, and end the connection. Twice is harmless."""
        if self._saying is not None and not self._saying.done():
            await asyncio.wait([self._saying], timeout=CLOSE_S)
            self._saying.cancel()
        await self._hearing.close()

    @property
    def trouble(self) -> str | None:
        """Why no stop can be heard or said now; None when all is well."""
        return self._hearing.trouble

    def listen(self, heard: Callable[[Stop], None], missed: Callable[[], None]) -> None:
        """As ports.Stops."""
        self._heard, self._missed = heard, missed

    def announce(self, stop: Stop) -> None:
        """As ports.Stops. Those of one turn travel together; while the broker is away, they wait here."""
        self._waiting.append(stop)
        if self._saying is None or self._saying.done():
            self._saying = asyncio.get_running_loop().create_task(self._say())

    async def _say(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting[-WAITING_MAX:], []
            while waiting:
                machine = waiting[0].machine
                together = [stop for stop in waiting if stop.machine == machine]
                body = b"\n".join(stop.model_dump_json().encode() for stop in together)
                if await self._said(machine, body):
                    waiting = [stop for stop in waiting if stop.machine != machine]

    async def _said(self, machine: str, body: bytes) -> bool:
        try:
            await self._hearing.say(machine, body, LINES, SAY_TIMEOUT_MS)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told, and tried again
            raise_if_cancelled(error)
            log.warning("stops.not_said", extra={"reason": reason_of(error)})
            await asyncio.sleep(AGAIN_S)
            return False
        return True

    def _received(self, body: bytes) -> None:
        for line in body.split(b"\n"):
            try:
                stop = Stop.model_validate_json(line)
            except ValidationError as error:
                log.warning("stops.unreadable", extra={"reason": reason_of(error)})
            else:
                self._heard(stop)
