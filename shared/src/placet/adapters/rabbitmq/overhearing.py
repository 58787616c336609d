"""Decides how pieces of replies reach a process whose people watch: said once, to all, and forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from pydantic import ValidationError

from placet.adapters.rabbitmq.hearing import Channel, Hearing
from placet.adapters.rabbitmq.link import reason_of
from placet.partials import Overhearing, Partial
from placet.topology import PARTIALS_EXCHANGE, PARTIALS_KEY, PREFIX

log = logging.getLogger("placet.rabbitmq")

PARTIALS = Channel(PARTIALS_EXCHANGE, (PARTIALS_KEY,), f"{PREFIX}watch.")


class RabbitOverheard:
    """ports.Overheard. It connects when somebody first watches."""

    def __init__(self, url: str, name: str) -> None:
        self._hearing = Hearing(url, name, PARTIALS, self._received, lambda: None)
        self._inner = Overhearing()
        self._started = False

    def overhear(self, run_id: str, heard: Callable[[Partial], None]) -> Callable[[], None]:
        """As ports.Overheard."""
        if not self._started:
            self._started = True
            self._hearing.start()
        return self._inner.overhear(run_id, heard)

    async def close(self) -> None:
        """End the connection. Twice is harmless."""
        await self._hearing.close()

    def _received(self, body: bytes) -> None:
        for line in body.split(b"\n"):
            try:
                self._inner.tell(Partial.model_validate_json(line))
            except ValidationError as error:
                log.debug("partial.unreadable", extra={"reason": reason_of(error)})


def joined(pieces: Iterable[Partial]) -> Iterator[Partial]:
    """The same text in fewer pieces: what follows upon another piece of the same reply is one with it."""
    last: dict[tuple[str, str, int], Partial] = {}
    for piece in pieces:
        name = (piece.run_id, piece.turn, piece.attempt)
        before = last.get(name)
        if before is not None and before.at + len(before.text) == piece.at:
            last[name] = before.model_copy(update={"text": before.text + piece.text})
            continue
        if before is not None:
            yield before
        last[name] = piece
    yield from last.values()
