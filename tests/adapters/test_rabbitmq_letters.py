"""Proves whose a dead letter is, and that with what a service sent its outbox row goes as well."""

from __future__ import annotations

from typing import Any

import pytest

from placet.adapters.rabbitmq.letters import GIVEN_UP, again, parked
from placet.adapters.rabbitmq.wire import Incoming
from placet.instants import Instant
from placet.runtime.parcels import outbox_row
from placet.topology import DEAD_EXCHANGE, DEAD_QUEUE, PREFIX, make_topology
from tests.contracts.queue_contract import an_envelope

TOPOLOGY = make_topology()
INGRESS = f"{PREFIX}ingress.decisions"
OURS = {
    "x-placet-queue": f"{PREFIX}tool-executor",
    "x-placet-code": "MESSAGE_INVALID",
    "x-placet-reason": "made up",
    "x-placet-about": '{"user_id":"somebody-else","message_id":"m"}',
}
BY_THE_BROKER: dict[str, Any] = {
    "x-death": [
        {"queue": INGRESS, "reason": "expired", "exchange": "placet.decisions", "routing-keys": ["approval.decide"]}
    ],
    "x-first-death-queue": INGRESS,
    "x-first-death-reason": "expired",
}


def dead(body: bytes, queue: str, headers: dict[str, Any], **changes: Any) -> Incoming:
    fields: dict[str, Any] = {
        "body": body,
        "queue": DEAD_QUEUE,
        "exchange": DEAD_EXCHANGE,
        "routing_key": queue,
        "content_type": "application/json",
        "headers": headers,
        "message_id": None,
        "correlation_id": None,
        "reply_to": None,
        "user_id": "reviewer",
        "deliveries": 0,
    }
    return Incoming(**{**fields, **changes})


def test_an_outsider_s_dead_letter_is_an_outsider_s_whatever_its_headers_say() -> None:
    """The publisher may let a message expire: what the broker parks has the publisher's headers."""
    body = an_envelope(1).encode()
    found = parked(dead(body, INGRESS, OURS | BY_THE_BROKER), TOPOLOGY)
    assert (found.queue, found.public, found.code) == (INGRESS, True, "EXPIRED")
    assert found.about["user_id"] == "reviewer"
    [letter] = found.letters(Instant(1))
    assert (letter.tenant, letter.run_id) == ("", "")
    assert found.rows == []


def test_what_we_have_parked_says_why_in_our_words() -> None:
    found = parked(dead(b"{", INGRESS, OURS | {"x-placet-queue": INGRESS}), TOPOLOGY)
    assert (found.queue, found.code, found.reason) == (INGRESS, "MESSAGE_INVALID", "made up")
    assert found.about["user_id"] == "somebody-else"


def test_a_queue_that_nobody_knows_is_nobody_s() -> None:
    found = parked(dead(b"{}", "placet.nowhere", OURS), TOPOLOGY)
    assert (found.queue, found.public) == (DEAD_QUEUE, True)


@pytest.mark.parametrize("packed", [False, True])
def test_what_the_broker_has_given_up_takes_its_rows_with_it(packed: bool) -> None:
    """A row that stayed would be published again, and would kill its next twenty consumers."""
    envelopes = [an_envelope(n) for n in ((1, 2) if packed else (1,))]
    body = b"\n".join(envelope.encode() for envelope in envelopes)
    headers: dict[str, Any] = {"x-death": [{}], "x-first-death-reason": "delivery_limit"}
    kind = "application/x-ndjson" if packed else "application/json"
    found = parked(dead(body, f"{PREFIX}dispatcher", headers, content_type=kind), TOPOLOGY)
    assert found.code == GIVEN_UP
    assert found.rows == [outbox_row(envelope).id for envelope in envelopes]


def test_what_was_tried_again_after_a_rest_still_takes_its_row_with_it() -> None:
    """Then it lies there with our headers, which say what the broker had said."""
    body, queue = an_envelope(1).encode(), f"{PREFIX}dispatcher"
    first = dead(body, queue, {"x-death": [{}], "x-first-death-reason": "delivery_limit"})
    moved = again(first, parked(first, TOPOLOGY), tried_ms=1)
    found = parked(dead(body, queue, dict(moved.headers), content_type=moved.content_type), TOPOLOGY)
    assert (found.code, found.rows) == (GIVEN_UP, [outbox_row(an_envelope(1)).id])


@pytest.mark.parametrize("queue", [INGRESS, "placet.nowhere"])
def test_an_outsider_whose_message_is_given_up_takes_no_row_with_it_although_it_knows_its_bytes(queue: str) -> None:
    headers: dict[str, Any] = {"x-death": [{}], "x-first-death-reason": "delivery_limit"}
    found = parked(dead(an_envelope(1).encode(), queue, headers), TOPOLOGY)
    assert (found.code, found.rows) == (GIVEN_UP, [])


def test_what_was_parked_for_another_reason_keeps_its_row() -> None:
    assert parked(dead(an_envelope(1).encode(), f"{PREFIX}dispatcher", OURS), TOPOLOGY).rows == []
