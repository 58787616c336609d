"""Decides what is kept of an AMQP message that nobody could handle: whence, why, how it came, and whose it is.

What services write between themselves is believed to be whose it says; what outsiders publish is nobody's. A body of
several messages becomes a dead letter for each, a body that is too large is cut, and the row says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placet import limits
from placet.adapters.rabbitmq.submitting import ADDED_BY_BROKER
from placet.adapters.rabbitmq.wire import (
    ABOUT_HEADER,
    CODE_HEADER,
    LINES,
    QUEUE_HEADER,
    REASON_HEADER,
    Incoming,
    properties,
)
from placet.columns import unstorable
from placet.errors import ContractError
from placet.ids import derived_id
from placet.instants import Instant
from placet.messages import decode_envelope, row_id
from placet.runtime.ports import DeadLetter
from placet.topology import DEAD_QUEUE, PACK_MAX, PREFIX, Topology

GIVEN_UP = "DELIVERY_LIMIT"
"""The code of what was delivered too often without being settled: the broker parks it, and knows no more than that."""
OF_THE_BROKER: Mapping[str, tuple[str, str]] = {
    "delivery_limit": (GIVEN_UP, "it was delivered too often without being settled"),
    "rejected": ("REJECTED", "a consumer refused it without saying why"),
    "expired": ("EXPIRED", "it waited longer in its queue than it may"),
    "maxlen": ("QUEUE_FULL", "its queue was full"),
}
"""What the broker says of its own dead letters, as code and reason."""
UNEXPLAINED = ("UNEXPLAINED", "it was parked without a reason")
ABOUT_BYTES_MAX = 16 * limits.KIB
REASON_CHARS_MAX = 500
TRIED_HEADER = "x-placet-tried-ms"
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_PROPERTIES = ("content_type", "message_id", "correlation_id", "reply_to", "user_id")


def dead_letter_key(queue: str, body: bytes) -> str:
    """The same for the same body from the same queue: parked twice, it is one."""
    return derived_id("dead", queue, hashlib.sha256(body).hexdigest())


# ── how it came ────────────────────────────────────────────────────────────────────────


def about_of(message: Incoming) -> str:
    """How a message came to its queue, as JSON: exchange, routing_key, content_type, message_id, correlation_id,
    reply_to, user_id, type, headers; what there was not is not named. `left_out` names headers that JSON cannot say.
    """
    headers = {
        name: value for name, value in message.headers.items() if not name.startswith((*ADDED_BY_BROKER, "x-placet-"))
    }
    known = {name: value for name, value in headers.items() if _is_plain(value)}
    said: dict[str, Any] = {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        **{name: getattr(message, name) for name in _PROPERTIES},
        "type": message.kind,
        "headers": known,
        "left_out": sorted(set(headers) - set(known)),
    }
    text = _json(said)
    return text if len(text) <= ABOUT_BYTES_MAX else _json({**said, "headers": {}, "left_out": ["headers"]})


def _json(said: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in said.items() if value not in (None, "", {}, [])})


def _is_plain(value: object, depth: int = 8) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(isinstance(key, str) and _is_plain(each, depth - 1) for key, each in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


# ── what is kept ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Parked:
    """An AMQP message of the queue for dead letters, understood as far as it can be."""

    queue: str
    """Where it was before; DEAD_QUEUE where that is no queue of ours."""
    code: str
    reason: str
    about: Mapping[str, Any]
    body: bytes
    public: bool
    """Whether outsiders write to that queue, or nobody knows who: nothing that it says of itself is believed."""

    def letters(self, now_ms: Instant) -> list[DeadLetter]:
        """The rows that it becomes: as many as it has messages. Its outside travels with each."""
        return [self._letter(body, now_ms) for body in self._bodies()]

    @property
    def rows(self) -> list[str]:
        """Outbox rows that would send it again: of what a service sent, and the broker gave up."""
        if self.public or self.code != GIVEN_UP:
            return []
        found: list[str] = []
        for body in self._bodies():
            try:
                envelope = decode_envelope(body)
            except ContractError:
                continue  # whoever claims its row parks it
            found.append(row_id(envelope.id, body))
        return found

    def _bodies(self) -> list[bytes]:
        lines = [line for line in self.body.split(b"\n") if line]
        packed = self.about.get("content_type") == LINES and not self.public
        return lines if packed and 0 < len(lines) <= PACK_MAX else [self.body]

    def _letter(self, body: bytes, now_ms: Instant) -> DeadLetter:
        tenant, run_id = ("", "") if self.public else _claimed(body)
        about = dict(self.about)
        if len(body) > limits.LETTER_BYTES_MAX:
            about |= {"cut": True, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        return DeadLetter(
            id=dead_letter_key(self.queue, body),
            run_id=run_id,
            destination=self.queue.removeprefix(PREFIX),
            code=self.code,
            reason=self.reason,
            body=body[: limits.LETTER_BYTES_MAX],
            at_ms=now_ms,
            tenant=tenant,
            queue=self.queue,
            about_text=_json(about),
        )


def parked(message: Incoming, topology: Topology) -> Parked:
    """What a message of DEAD_QUEUE says, whoever put it there: nothing of it is taken for granted.

    Its queue is its routing key: that is ours, or the broker's by the queue's arguments. Headers are ours only where
    we parked it; what the broker parked has the headers of whoever published it, whatever they are called.
    """
    headers = message.headers
    known = {queue.name for queue in topology.queues}
    queue = message.routing_key if message.routing_key in known else DEAD_QUEUE
    by_broker = "x-death" in headers
    code, reason = OF_THE_BROKER.get(str(headers.get("x-first-death-reason")), UNEXPLAINED)
    told, why = (None, None) if by_broker else (headers.get(CODE_HEADER), headers.get(REASON_HEADER))
    if isinstance(told, str) and _CODE.fullmatch(told):
        code = told
    if isinstance(why, str) and why.strip():
        reason = " ".join(why.replace("\x00", "\N{REPLACEMENT CHARACTER}").split())[:REASON_CHARS_MAX]
    public = queue in topology.public_queues or queue == DEAD_QUEUE
    return Parked(queue, code, reason, _about(message, by_broker), message.body, public=public)


def _about(message: Incoming, by_broker: bool) -> dict[str, Any]:
    """How it came to its first queue: what we noted when we parked it, or what the broker noted when it did."""
    noted = None if by_broker else message.headers.get(ABOUT_HEADER)
    if isinstance(noted, str) and len(noted) <= ABOUT_BYTES_MAX:
        try:
            about = json.loads(noted)
            json.dumps(about, ensure_ascii=False).encode()  # half a surrogate pair is no text that could be shown
        except (ValueError, RecursionError):
            about = None
        if isinstance(about, dict) and _is_plain(about):
            return about
    about = json.loads(about_of(message))
    deaths = message.headers.get("x-death")
    first = deaths[-1] if isinstance(deaths, list) and deaths and isinstance(deaths[-1], dict) else {}
    keys = first.get("routing-keys")
    about["exchange"] = first.get("exchange", "")
    about["routing_key"] = keys[0] if isinstance(keys, list) and keys else ""
    return {name: value for name, value in about.items() if isinstance(value, str | dict | list) and value}


def _claimed(body: bytes) -> tuple[str, str]:
    """Tenant and run that a message between services names; empty where it names none that could be."""
    try:
        message = json.loads(body)["message"]
        tenant, run_id = message.get("tenant"), message.get("run_id")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", ""
    if not (isinstance(tenant, str) and len(tenant) <= limits.NAME_CHARS_MAX and unstorable([tenant]) is None):
        return "", ""
    could_be = isinstance(run_id, str) and len(run_id) <= limits.RUN_ID_CHARS_MAX and unstorable([run_id]) is None
    return tenant, run_id if could_be else ""


def again(message: Incoming, found: Parked, tried_ms: int) -> Any:
    """The properties with which a message goes to the end of DEAD_QUEUE: what is known of it, and when it was tried."""
    headers = {
        CODE_HEADER: found.code,
        REASON_HEADER: found.reason,
        QUEUE_HEADER: found.queue,
        ABOUT_HEADER: _json(found.about),
        TRIED_HEADER: tried_ms,
    }
    content_type = message.content_type or "application/octet-stream"
    return properties(content_type, message_id=dead_letter_key(found.queue, found.body), headers=headers)
