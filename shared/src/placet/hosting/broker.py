"""Decides which connections a service has to the broker: one to consume, one to publish, one to answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

from placet.adapters.rabbitmq import Incoming, Opener, RabbitInbox, RabbitOutlet, RabbitReplies, open_submission
from placet.errors import Code, ContractError
from placet.messages import Envelope
from placet.topology import PREFIX, Source, Topology


async def refuse_decision(message: Incoming) -> Envelope:
    """Until signed envelopes are understood, no decision that comes by a queue is believed."""
    raise ContractError(
        Code.UNAUTHENTICATED, "decisions are taken by the gateway only: nobody's signature is known here"
    )


OPENERS: Mapping[str, Opener] = {
    f"{PREFIX}ingress.submissions": open_submission,
    f"{PREFIX}ingress.decisions": refuse_decision,
}
"""Who reads what outsiders publish, by queue."""


class Broker:
    """The three connections of one service process."""

    def __init__(
        self, name: str, url: str, topology: Topology, sources: Sequence[Source], room: Callable[[], int]
    ) -> None:
        who = f"placet {name} {socket.gethostname()}:{os.getpid()}"
        self.outlet = RabbitOutlet(url, topology, who)
        self.replies = RabbitReplies(url, who)
        openers = {source.queue: OPENERS[source.queue] for source in sources if source.public}
        self.inbox = RabbitInbox(url, sources, who, self.outlet, openers=openers, replies=self.replies, room=room)

    def start(self) -> None:
        """Begin to connect, and to consume."""
        for part in (self.outlet, self.replies, self.inbox):
            part.start()

    def closing(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What is to be closed, in order: first what others would still send us."""
        return [("inbox", self.inbox.disconnect), ("replies", self.replies.close), ("outlet", self.outlet.close)]

    def troubles(self) -> dict[str, Callable[[], str | None]]:
        """Why each connection cannot be used now."""
        return {
            "inbox": lambda: self.inbox.trouble,
            "outlet": lambda: self.outlet.trouble,
            "replies": lambda: self.replies.trouble,
        }
