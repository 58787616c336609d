"""Decides how the gateway reaches the machines over the broker: by the services' own queues, like anybody else.

Questions of one moment for one service travel in one AMQP message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from placet.adapters.rabbitmq.asking import Asker
from placet.adapters.rabbitmq.resending import send_as_it_came
from placet.adapters.rabbitmq.watching import Watch
from placet.adapters.rabbitmq.wire import DIRECT_REPLY_TO, body_of, packs, properties, require_size
from placet.errors import RetryableError
from placet.messages import Envelope, Message
from placet.topology import Route, Topology, queue_of


class RabbitDoor:
    """Door of a process. `changes` opens its connection for hints when somebody first asks for them; such a process
    needs the right to configure, write and read `placet.watch.*` and to read the events exchange."""

    def __init__(self, url: str, topology: Topology, name: str) -> None:
        self._url = url
        self._topology = topology
        self._asker = Asker(url, f"{name} door")
        self._watch = Watch(url, f"{name} watch")
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
        if self._publishing:
            await asyncio.wait(self._publishing)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be asked, or no hint can come; None when all is well."""
        return self._asker.trouble or (self._watch.trouble if self._watching else None)

    async def ask(self, message: Message, *, message_id: str, timeout_ms: int) -> str | None:
        """As ports.Door. Raises ContractError(TOO_LARGE) for what the broker would refuse."""
        token, answer = self._asker.expect()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._asker.wait_until_up(timeout_ms)
                envelope = Envelope(id=message_id, reply_to=token, message=message)  # type: ignore[arg-type]
                route = self._topology.route(queue_of(message), envelope.message.type)
                body = envelope.encode()
                require_size(len(body), envelope.message.type)
                self._waiting.setdefault(route, []).append((token, body))
                if self._flushing is None or self._flushing.done():
                    self._flushing = asyncio.get_running_loop().create_task(self._flush())
                return await answer
        except (TimeoutError, RetryableError):
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
