"""Decides the keys and signed words of tests: always the same ones, made from names."""

from __future__ import annotations

import hashlib
from typing import Any

from placet.canonical import digest_of_text
from placet.keys import KeyRegistry, KnownKeys, RegisteredKey
from placet.messages import DecideApproval
from placet.signatures import DecisionStatement, Evidence, SigningKey, message_of

ENVIRONMENT = "tests"
EVIDENCE = Evidence(method="token")
VALID_MS = 60_000


def a_key(person: str | None) -> SigningKey:
    """The key of a person, or of the gateway."""
    return SigningKey(hashlib.sha256(f"key of {person}".encode()).digest(), person)


GATEWAY = a_key(None)


def registered(*keys: SigningKey, tenants: tuple[str, ...], **changes: Any) -> KnownKeys:
    """A registry with these keys."""
    return KnownKeys(KeyRegistry(version=1, keys=tuple(an_entry(key, tenants=tenants, **changes) for key in keys)))


def an_entry(key: SigningKey, *, tenants: tuple[str, ...], **changes: Any) -> RegisteredKey:
    """A key's entry."""
    return key.entry(tenants=tenants).model_copy(update=changes)


def a_statement(message: DecideApproval, now_ms: int, **changes: Any) -> DecisionStatement:
    """What says the same as a message, for a minute, in its person's own name."""
    fields: dict[str, Any] = {
        "environment": ENVIRONMENT,
        "tenant": message.tenant,
        "run_id": message.run_id,
        "request_id": message.request_id,
        "request_hash": message.request_hash,
        "decision": message.decision,
        "decision_id": message.decision_id,
        "person": message.reviewer.id,
        "reason": message.reason,
        "shown_digest": message.shown_digest,
        "value_digest": None if message.value_text is None else digest_of_text(message.value_text),
        "issued_at_ms": now_ms,
        "not_after_ms": now_ms + VALID_MS,
    }
    return DecisionStatement(**{**fields, **changes})


def signed(message: DecideApproval, now_ms: int, key: SigningKey | None = None, **changes: Any) -> DecideApproval:
    """The message as `key` (by default its person's) has signed it; `changes` are of the statement."""
    key = key or a_key(message.reviewer.id)
    changes = ({"evidence": EVIDENCE} if key.person is None else {}) | changes
    statement = a_statement(message, now_ms, **changes)
    return message_of(statement, key.sign(statement), message.value_text)
