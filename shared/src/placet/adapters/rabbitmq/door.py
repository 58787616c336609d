"""Decides how the gateway reaches the machines over the broker: by the services' own queues, like anybody else.

Questions of one moment for one service travel in one AMQP message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from placet.adapters.rabbitmq.asking import Asker
from placet.adapters.rabbitmq.overhearing import RabbitOverheard
from placet.adapters.rabbitmq.resending import send_as_it_came
from placet.adapters.rabbitmq.watching import Watch
from placet.adapters.rabbitmq.wire import DIRECT_REPLY_TO, body_of, packs, properties, require_size
from placet.messages import APPROVAL, RUN, Envelope, Message
from placet.partials import Partial
from placet.topology import Route, Topology, queue_of

ANSWERING = frozenset({RUN, APPROVAL})
"""Machines whose services have the right to answer. Planners and tool executors have no right to the default exchange:
a question would end their channel for answers. They are only told, which is when somebody redrives a dead letter."""


class RabbitDoor:
    """Door of a process. `changes` and `overhear` open a connection for hints, and one for pieces of replies, when
    somebody first asks for them; such a process needs the right to configure, write and read `placet.watch.*` and to
    read the exchanges of events and of partials."""

    def __init__(self, url: str, topology: Topology, name: str) -> None:
        self._url = url
        self._topology = topology
        self._asker = Asker(url, f"{name} door")
        self._watch = Watch(url, f"{name} watch")
        self._overheard = RabbitOverheard(url, f"{name} overhears")
        self._watching = False
        self._waiting: dict[Route, list[tuple[str, bytes]]] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._publishing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to connect."""
        self._asker.start()

    async def close(self) -> None:
        """End the connections; whoever waits is told None. Twice is harmless."""
        await self._asker.close()
        await self._watch.close()
        await self._overheard.close()
        if self._publishing:
            await asyncio.wait(self._publishing)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be asked, or no hint can come; None when all is well."""
        return self._asker.trouble or (self._watch.trouble if self._watching else None)

    async def ask(self, message: Message, *, message_id: str, timeout_ms: int) -> str | None:
        """As ports.Door. Raises ContractError(TOO_LARGE) for what the broker would refuse, and
        RetryableError(BROKER_UNAVAILABLE) where surely nothing was published: the broker is away, or took nothing in.

        What is for a machine that may not answer is not asked but told: None when the broker has confirmed it.
        """
        began_s = asyncio.get_running_loop().time()
        await self._asker.wait_until_ready(timeout_ms)  # before that nothing is published: not unknown, but not sent
        token, answer = self._asker.expect()
        try:
            async with asyncio.timeout_at(began_s + timeout_ms / 1_000):
                answers = message.to().machine in ANSWERING
                envelope = Envelope(id=message_id, reply_to=token if answers else None, message=message)  # type: ignore[arg-type]
                route = self._topology.route(queue_of(message), envelope.message.type)
                body = envelope.encode()
                require_size(len(body), envelope.message.type)
                if not answers:
                    told, content_type = body_of([body])
                    await self._asker.publish(route.exchange, route.key, told, properties(content_type), [token])
                    return await answer if answer.done() else None
                self._waiting.setdefault(route, []).append((token, body))
                if self._flushing is None or self._flushing.done():
                    self._flushing = asyncio.get_running_loop().create_task(self._flush())
                return await answer
        except TimeoutError:
            return None
        finally:
            self._asker.forget(token)

    async def send_as_it_came(self, queue: str, body: bytes, about: Mapping[str, Any]) -> None:
        """Publish again what an outsider once published to a queue; raises as `resending.send_as_it_came`."""
        await send_as_it_came(self._url, self._topology, queue, body, about)

    def changes(self, run_id: str | None) -> AsyncIterator[None]:
        """As ports.Door."""
        if not self._watching:
            self._watching = True
            self._watch.start()
        return self._watch.changes(run_id)

    def overhear(self, run_id: str, heard: Callable[[Partial], None]) -> Callable[[], None]:
        """As ports.Overheard."""
        return self._overheard.overhear(run_id, heard)

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # whoever asks in this turn of the loop comes along
        waiting, self._waiting = self._waiting, {}
        for route, questions in waiting.items():
            for pack in packs(questions, lambda question: len(question[1]), route.pack_max):
                task = asyncio.get_running_loop().create_task(self._publish(route, pack))
                self._publishing.add(task)
                task.add_done_callback(self._publishing.discard)

    async def _publish(self, route: Route, pack: list[tuple[str, bytes]]) -> None:
        body, content_type = body_of([question for _, question in pack])
        about = properties(content_type, reply_to=DIRECT_REPLY_TO)
        await self._asker.publish(route.exchange, route.key, body, about, [token for token, _ in pack])
