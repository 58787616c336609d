"""Decides how a message becomes a row: one that sends it, or one that parks it."""

from __future__ import annotations

from placet.errors import Code
from placet.ids import derived_id
from placet.instants import Instant
from placet.messages import Envelope, Message, enveloped, row_id
from placet.runtime.ports import DeadLetter, OutboxRow
from placet.topology import QUEUES, queue_of


def outbox_row(envelope: Envelope, not_before: Instant | None = None, *, claim_ms: int = 0) -> OutboxRow:
    """The row that sends an envelope."""
    message, body = envelope.message, envelope.encode()
    return OutboxRow(
        id=row_id(envelope.id, body),
        destination=queue_of(message),
        run_id=message.run_id,
        type=message.type,
        not_before_ms=not_before or 0,
        body=body,
        claim_ms=claim_ms,
    )


def outbox_id(envelope: Envelope) -> str:
    """The id of the row that sends an envelope."""
    return row_id(envelope.id, envelope.encode())


def named_envelope(message: Message) -> Envelope:
    """The envelope of a message that may be withdrawn: whoever knows the message can tell the row that sends it."""
    name = derived_id("named", message.model_dump_json())
    return enveloped(name, message)


def dead_letter(envelope: Envelope, code: Code, reason: str, now: Instant) -> DeadLetter:
    """The row that parks a message with its reason. Parking it twice is one row.

    Its destination is empty where the message names a machine that no queue serves: that is only said, never known.
    """
    body = envelope.encode()
    is_served = envelope.message.to().machine in QUEUES.values()
    return DeadLetter(
        # Whatever id an outsider has chosen, its letter takes no other's place.
        id=derived_id("dead", row_id(envelope.id, body)),
        run_id=envelope.message.run_id,
        destination=queue_of(envelope.message) if is_served else "",
        code=code,
        reason=reason,
        body=body,
        at_ms=now,
    )
