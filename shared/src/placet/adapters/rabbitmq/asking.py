"""Decides how a question goes out over the broker and how its answer finds the way back.

Answers come to RabbitMQ's pseudo queue of this very channel: an asker needs neither a queue of its own nor a right to
read or declare anything. With the channel, whoever still waits is told that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import DeliveryError, PublishError
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from placet.adapters.rabbitmq.link import BLOCKED, Lane, Link, open_lane, raise_if_cancelled, reason_of
from placet.adapters.rabbitmq.wire import ANSWERS, DIRECT_REPLY_TO, properties, read_answers
from placet.errors import Code, ContractError, RetryableError

log = logging.getLogger("placet.rabbitmq")

CONFIRM_TIMEOUT_S = 8.0
"""How long a confirm may take. Whoever asks has given up by itself by then, or is told that the outcome is unknown."""

Answer = asyncio.Future[str | None]


class Asker:
    """A channel that publishes questions and hears their answers."""

    def __init__(self, url: str, name: str) -> None:
        self._link = Link(url, name, self._opened, self._lost)
        self._lane: Lane | None = None
        self._asked: dict[str, Answer] = {}
        self._tokens = count(1)

    def start(self) -> None:
        """Begin to connect."""
        self._link.start()

    async def close(self) -> None:
        """End the connection; whoever waits is told None. Twice is harmless."""
        await self._link.close()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be asked now; None when all is well."""
        return self._link.trouble or (BLOCKED if self._link.is_blocked else None)

    async def wait_until_ready(self, timeout_ms: float) -> None:
        """Raises RetryableError(BROKER_UNAVAILABLE), saying why, when within that time there is no connection, or the
        broker takes nothing in."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_ms / 1_000
        await self._link.wait_until_up(timeout_ms)
        await self._link.wait_until_unblocked(1_000 * (until_s - loop.time()))

    async def ask(
        self, exchange: str, key: str, body: bytes, *, content_type: str, timeout_ms: int, message_id: str | None = None
    ) -> str | None:
        """Publish one body as it is, and wait: the answer's text, or None when none came in time.

        For outsiders: it needs the right to write to that exchange and no other.
        """
        token, answer = self.expect()
        about = properties(content_type, message_id=message_id, reply_to=DIRECT_REPLY_TO, correlation_id=token)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self.wait_until_ready(timeout_ms)
                await self.publish(exchange, key, body, about, [token])
                return await answer
        except (TimeoutError, RetryableError):
            return None
        finally:
            self.forget(token)

    def expect(self) -> tuple[str, Answer]:
        """A token for a question, and where its answer will be. To be forgotten in the end."""
        token = str(next(self._tokens))
        self._asked[token] = asyncio.get_running_loop().create_future()
        return token, self._asked[token]

    def forget(self, token: str) -> None:
        """Nobody waits for it any more."""
        self._asked.pop(token, None)

    async def publish(
        self, exchange: str, key: str, body: bytes, about: Basic.Properties, tokens: Sequence[str]
    ) -> None:
        """Publish with confirm. Where that fails, those who wait are told at once: a RetryableError where surely
        nothing was taken in, None where the outcome is unknown."""
        sent = False
        try:
            await self._link.wait_until_unblocked(0)  # what is written to a blocked connection only waits there
            lane = self._lane
            if lane is None:
                raise RetryableError(Code.BROKER_UNAVAILABLE, f"the broker went away: {self._link.trouble}")
            sent = True
            await lane.basic_publish(
                body,
                exchange=exchange,
                routing_key=key,
                properties=about,
                mandatory=True,
                timeout=CONFIRM_TIMEOUT_S,
                wait=False,
            )
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told to whoever waits
            raise_if_cancelled(error)
            log.warning("door.not_published", extra={"exchange": exchange, "key": key, "reason": reason_of(error)})
            refused = not sent or isinstance(error, PublishError | DeliveryError)
            for token in tokens:
                if refused:
                    self._fail(token, f"the broker has not taken it: {reason_of(error)}")
                else:
                    self._tell(token, None)

    def _fail(self, token: str, reason: str) -> None:
        answer = self._asked.get(token)
        if answer is not None and not answer.done():
            answer.set_exception(RetryableError(Code.BROKER_UNAVAILABLE, reason))

    def _tell(self, token: str, text: str | None) -> None:
        answer = self._asked.get(token)
        if answer is not None and not answer.done():
            answer.set_result(text)

    async def _heard(self, message: DeliveredMessage) -> None:
        about = message.header.properties
        if about.content_type != ANSWERS:
            self._tell(about.correlation_id or "", message.body.decode(errors="replace"))
            return
        try:
            for token, text in read_answers(message.body):
                self._tell(token, text)
        except ContractError as error:
            log.warning("door.answer_unreadable", extra={"reason": error.message})

    async def _opened(self, connection: AbstractConnection) -> Sequence[Lane]:
        self._channel, lane = await open_lane(connection, confirms=True)
        await lane.basic_consume(DIRECT_REPLY_TO, self._heard, no_ack=True)
        self._lane = lane
        return [lane]

    def _lost(self) -> None:
        self._lane = None
        for token in list(self._asked):
            self._tell(token, None)
