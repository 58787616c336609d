"""Decides what an outsider may submit on the queue: exactly `run.submit`, in its own name, and nothing by the way."""

from __future__ import annotations

from placet import limits
from placet.adapters.rabbitmq.wire import JSON, Incoming, ReturnAddress, is_answerable
from placet.errors import Code, ContractError
from placet.messages import Envelope, SubmitRun, decode_envelope
from placet.topology import SUBMISSIONS_EXCHANGE, SUBMIT_KEY

ADDED_BY_BROKER = ("x-delivery-count", "x-death", "x-first-death-", "x-last-death-", "x-acquired-count")
TRACING = ("traceparent", "tracestate")


async def open_submission(message: Incoming) -> Envelope:
    """The envelope of a submission. The publisher is whoever the broker says it is, and submits as a person or service
    of that name.

    Raises ContractError: TOO_LARGE, MESSAGE_INVALID, MESSAGE_UNEXPECTED, UNAUTHENTICATED, JSON_*, VERSION_UNSUPPORTED.
    """
    check_properties(message, SUBMISSIONS_EXCHANGE, SUBMIT_KEY)
    if message.user_id is None:
        raise ContractError(Code.UNAUTHENTICATED, "the AMQP property user_id says who publishes; it is missing")
    if message.content_type not in ("", JSON):
        raise ContractError(Code.MESSAGE_INVALID, f"one envelope as {JSON} is taken here, not {message.content_type}")
    envelope = decode_envelope(message.body)
    if not isinstance(envelope.message, SubmitRun):
        raise ContractError(
            Code.MESSAGE_UNEXPECTED, f"only {SUBMIT_KEY} is taken here, not {envelope.message.type}", pointer="/message"
        )
    if envelope.message.initiator.id != message.user_id:
        raise ContractError(
            Code.UNAUTHENTICATED,
            f"{message.user_id} cannot submit in the name of {envelope.message.initiator.id}",
            pointer="/message/initiator/id",
        )
    return envelope.model_copy(update={"reply_to": return_address(message, envelope)})


def check_properties(message: Incoming, exchange: str, key: str) -> None:
    """What every message of an outsider has to be: small, published to this exchange with this key, without riders.

    A CC header would carry a copy past the permissions of some brokers. Raises ContractError(TOO_LARGE,
    MESSAGE_INVALID).
    """
    if len(message.body) > limits.JSON_BYTES_MAX:
        raise ContractError(Code.TOO_LARGE, f"{len(message.body)} bytes, more than {limits.JSON_BYTES_MAX}")
    if (message.exchange, message.routing_key) != (exchange, key):
        came = f"{message.exchange or 'the default exchange'} with key {message.routing_key!r}"
        raise ContractError(Code.MESSAGE_INVALID, f"it came by {came}, not by {exchange} with key {key!r}")
    riders = [name for name in message.headers if name not in TRACING and not name.startswith(ADDED_BY_BROKER)]
    if riders:
        raise ContractError(Code.MESSAGE_INVALID, f"headers are not taken here: {', '.join(sorted(riders))}")
    if message.reply_to is not None and not is_answerable(message.reply_to):
        raise ContractError(
            Code.MESSAGE_INVALID, "reply_to may only be amq.rabbitmq.reply-to, on the channel that publishes"
        )


def return_address(message: Incoming, envelope: Envelope | None = None) -> str | None:
    """Where the answer goes: an AMQP property, never part of the body. Raises ContractError(MESSAGE_INVALID)."""
    if envelope is not None and envelope.reply_to is not None:
        raise ContractError(
            Code.MESSAGE_INVALID, "where the answer goes is a property of the AMQP message", pointer="/reply_to"
        )
    if message.reply_to is None:
        return None
    return ReturnAddress(False, message.reply_to, message.correlation_id or "").text()
