"""Decides which connections a service has to the broker: one to consume, one to publish, one to answer; and one
to hear which calls are no longer wanted, where any are made."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from placet.adapters.rabbitmq import (
    Opener,
    RabbitInbox,
    RabbitOutlet,
    RabbitReplies,
    RabbitStops,
    open_submission,
)
from placet.hosting.deciding import Deciding
from placet.topology import DECISIONS_QUEUE, SUBMISSIONS_QUEUE, Source, Topology


def openers(judged: Deciding | None) -> Mapping[str, Opener]:
    """Who reads what outsiders publish, by queue; decisions only where it is known whom to believe."""
    found: dict[str, Opener] = {SUBMISSIONS_QUEUE: open_submission}
    return found if judged is None else found | {DECISIONS_QUEUE: judged.opener}


class Broker:
    """The connections of one service process."""

    def __init__(
        self,
        name: str,
        url: str,
        topology: Topology,
        sources: Sequence[Source],
        room: Callable[[str], int],
        judged: Deciding | None = None,
        calling: Collection[str] = (),
    ) -> None:
        """`judged`: whom a process believes that takes decisions. Raises InvariantError for such a queue without it.
        `calling`: the machines of this process that make calls to the world, which others may have to stop.
        """
        self._judged = judged
        who = f"placet {name} {socket.gethostname()}:{os.getpid()}"
        self.outlet = RabbitOutlet(url, topology, who)
        self.replies = RabbitReplies(url, who)
        self.stops = RabbitStops(url, who, calling) if calling else None
        self.inbox = RabbitInbox(
            url, sources, who, self.outlet, openers=openers(judged), replies=self.replies, room=room
        )

    def start(self) -> None:
        """Begin to connect, and to consume."""
        if self.stops is not None:
            self.stops.start()
        for part in (self.outlet, self.replies, self.inbox):
            part.start()

    def closing(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What is to be closed, in order: first what others would still send us."""
        return [
            ("inbox", self.inbox.disconnect),
            *([] if self.stops is None else [("stops", self.stops.close)]),
            ("replies", self.replies.close),
            ("outlet", self.outlet.close),
        ]

    def notes(self) -> dict[str, Callable[[], Any]]:
        """What the probes tell besides; it makes nobody unready."""
        return {
            "inbox": self.inbox.report,
            "replies_dropped": lambda: self.replies.dropped,
            "unrouted": lambda: self.outlet.unrouted,
        }

    def troubles(self) -> dict[str, Callable[[], str | None]]:
        """Why each connection cannot be used now."""
        judged, stops = self._judged, self.stops
        keys = {} if judged is None else {"decision_keys": lambda: judged.keys.trouble}
        return {
            "inbox": lambda: self.inbox.trouble,
            "outlet": lambda: self.outlet.trouble,
            "replies": lambda: self.replies.trouble,
            **({} if stops is None else {"stops": lambda: stops.trouble}),
            **keys,
        }
