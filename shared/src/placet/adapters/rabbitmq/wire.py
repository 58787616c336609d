"""Decides what an AMQP message of ours looks like: bodies, content types, where an answer goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import aio_pika
from aio_pika import DeliveryMode
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from placet import limits
from placet.errors import Code, ContractError

T = TypeVar("T")

JSON = "application/json"
"""One envelope."""
LINES = "application/x-ndjson"
"""Several envelopes, one a line."""
CLOUD_EVENT = "application/cloudevents+json"
ANSWERS = "application/vnd.placet.answers+x-ndjson"
"""Several answers to one asker: each line is a JSON array of its token and the text."""
TEXT = "text/plain"

PACK_BYTES_MAX = 256 * 1024
"""A body of several envelopes; a single larger one travels alone."""
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
"""RabbitMQ's pseudo queue: an asker needs no right to declare or read, and no answer can be aimed at a queue."""
APP_ID = "placet"

CODE_HEADER = "x-placet-code"
REASON_HEADER = "x-placet-reason"
QUEUE_HEADER = "x-placet-queue"
ABOUT_HEADER = "x-placet-about"
"""How a parked message came to its queue: see letters.about_of."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An AMQP message as it came, for whoever has to open it."""

    body: bytes
    queue: str
    exchange: str
    routing_key: str
    content_type: str
    headers: Mapping[str, Any]
    message_id: str | None
    correlation_id: str | None
    reply_to: str | None
    user_id: str | None
    """Checked by the broker where it is present: the user of the connection that published it."""
    deliveries: int
    """How often it was handed out before without being acknowledged."""
    kind: str | None = None
    """The AMQP property `type`."""


def incoming(message: DeliveredMessage, queue: str) -> Incoming:
    """What the library received, as ours."""
    properties = message.header.properties
    headers = dict(properties.headers or {})
    count = headers.get("x-delivery-count", 0)
    return Incoming(
        body=message.body,
        queue=queue,
        exchange=message.exchange or "",
        routing_key=message.routing_key or "",
        content_type=properties.content_type or "",
        headers=headers,
        message_id=properties.message_id,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        user_id=properties.user_id,
        deliveries=count if isinstance(count, int) else 0,
        kind=properties.message_type,
    )


def lines_of(message: Incoming) -> list[bytes]:
    """The envelopes in a body: one, or one a line."""
    if message.content_type != LINES:
        return [message.body]
    return [line for line in message.body.split(b"\n") if line] or [message.body]


def require_size(size: int, what: str) -> None:
    """Raises ContractError(TOO_LARGE) for a message that the broker would refuse, and close the channel for."""
    if size > limits.JSON_BYTES_MAX:
        raise ContractError(
            Code.TOO_LARGE, f"{what} has {size} bytes, more than the {limits.JSON_BYTES_MAX} of a message"
        )


def packs(items: Iterable[T], size_of: Callable[[T], int], pack_max: int) -> Iterator[list[T]]:
    """The items in order, in portions of so many and of PACK_BYTES_MAX; one that is larger is a portion alone."""
    pack: list[T] = []
    size = 0
    for item in items:
        if pack and (len(pack) == pack_max or size + size_of(item) > PACK_BYTES_MAX):
            yield pack
            pack, size = [], 0
        pack.append(item)
        size += size_of(item) + 1
    if pack:
        yield pack


def body_of(bodies: Sequence[bytes]) -> tuple[bytes, str]:
    """One body and its content type."""
    return (bodies[0], JSON) if len(bodies) == 1 else (b"\n".join(bodies), LINES)


def properties(
    content_type: str,
    *,
    durable: bool = True,
    message_id: str | None = None,
    kind: str | None = None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Basic.Properties:
    """The properties of a message of ours."""
    return aio_pika.Message(
        b"",
        content_type=content_type,
        delivery_mode=DeliveryMode.PERSISTENT if durable else DeliveryMode.NOT_PERSISTENT,
        message_id=message_id,
        type=kind,
        reply_to=reply_to,
        correlation_id=correlation_id,
        headers=dict(headers or {}),
        app_id=APP_ID,
    ).properties


# ── answers ────────────────────────────────────────────────────────────────────────────


class ReturnAddress(NamedTuple):
    """Where an answer goes. `packed`: the asker is one of our doors, which takes several answers at once."""

    packed: bool
    address: str
    token: str

    def text(self) -> str:
        """As it stands in `Envelope.reply_to`."""
        return f"{'door' if self.packed else 'plain'} {self.address} {self.token}"


def read_return_address(text: str) -> ReturnAddress | None:
    """What `ReturnAddress.text` wrote; None for anything else."""
    kind, _, rest = text.partition(" ")
    address, _, token = rest.partition(" ")
    if kind not in ("door", "plain") or not is_answerable(address):
        return None
    return ReturnAddress(kind == "door", address, token)


def is_answerable(address: str | None) -> bool:
    """Only the broker's own pseudo queues: an answer must never land in a queue of somebody's choice."""
    return address is not None and address.startswith(DIRECT_REPLY_TO + ".") and " " not in address


def answers_body(answers: Iterable[tuple[str, str]]) -> bytes:
    """Tokens and texts for one door."""
    return "\n".join(json.dumps(answer) for answer in answers).encode()


def read_answers(body: bytes) -> list[tuple[str, str]]:
    """What `answers_body` wrote. Raises ContractError(MESSAGE_INVALID)."""
    try:
        found = [json.loads(line) for line in body.split(b"\n")]
        return [(str(token), str(text)) for token, text in found]
    except (ValueError, TypeError) as error:
        raise ContractError(Code.MESSAGE_INVALID, f"these are no answers: {error}") from error
