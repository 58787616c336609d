"""Decides what store tests write: readable units, and a fact of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from placet.ids import Address
from placet.instants import Instant
from placet.messages import APPROVAL, OPERATION, RUN, THREAD, CancelRun, Envelope
from placet.requests import create_request
from placet.rows import (
    AttemptEndRow,
    AttemptRow,
    AuditLeafRow,
    DecisionAttemptRow,
    OperationRow,
    OutcomeRow,
    RequestRow,
    RetryRow,
    RevocationRow,
    Row,
    ThreadMessageRow,
    VoteRow,
    audit_leaf,
)
from placet.runtime.ports import DeadLetter, JournalEntry, OutboxRow, StateWrite, Unit
from tests.builders import ALICE, RUN_ID, T0, TENANT

R = TypeVar("R", bound=Row)

HASH = "5" * 64
REQUEST, OPERATION_ID, THREAD_ID = "apr_1", "op_1", "task:one"


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self, now_ms: int = T0) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> Instant:
        """As ports.Clock."""
        return Instant(self.at_ms)


def run_at(run_id: str = RUN_ID) -> Address:
    """The run's own state."""
    return Address(run_id, RUN, "")


def approval_at(request_id: str = REQUEST, run_id: str = RUN_ID) -> Address:
    """An approval's state."""
    return Address(run_id, APPROVAL, request_id)


def envelope(run_id: str = RUN_ID, tenant: str = TENANT, name: str = "msg_1") -> bytes:
    """A message as it travels."""
    return Envelope(id=name, message=CancelRun(tenant=tenant, run_id=run_id, by=ALICE)).encode()


def write(address: Address | None = None, expected: int = 0, **changes: Any) -> StateWrite:
    """The next step of a state."""
    fields: dict[str, Any] = {
        "address": address or run_at(),
        "tenant": TENANT,
        "expected": expected,
        "version": expected + 1,
        "status": "running",
        "body": b'{"status":"running"}',
    }
    return StateWrite(**{**fields, **changes})


def step(address: Address | None = None, expected: int = 0, *rows: Row, **changes: Any) -> Unit:
    """A unit that steps one state and records `rows` with it. `changes` are fields of the write, or of the unit."""
    parts = {name: changes.pop(name) for name in list(changes) if name in Unit.__slots__}
    return Unit(states=[write(address, expected, **changes)], rows=list(rows), **parts)


def steps_of(*rows: Row) -> Unit:
    """A unit that records rows of several owners, each with its first step."""
    owners = dict.fromkeys(row.owner() for row in rows)
    return Unit(states=[write(owner) for owner in owners], rows=list(rows))


def entry(address: Address | None = None, version: int = 1, **changes: Any) -> JournalEntry:
    """An applied message."""
    at = address or run_at()
    fields: dict[str, Any] = {
        "address": at,
        "version": version,
        "message_id": f"msg_{version}",
        "message": envelope(at.run_id),
        "facts": '{"rows":[],"answers":[],"incarnation":1}',
        "at_ms": T0,
    }
    return JournalEntry(**{**fields, **changes})


def sent(name: str = "msg_1", not_before_ms: int = 0, **changes: Any) -> OutboxRow:
    """A message on its way."""
    run_id = changes.get("run_id", RUN_ID)
    fields: dict[str, Any] = {
        "id": name,
        "destination": "dispatcher",
        "run_id": run_id,
        "type": "run.cancel",
        "not_before_ms": not_before_ms,
        "body": envelope(run_id, name=name),
    }
    return OutboxRow(**{**fields, **changes})


def letter(name: str = "dead_1", **changes: Any) -> DeadLetter:
    """A parked message."""
    run_id = changes.get("run_id", RUN_ID)
    fields: dict[str, Any] = {
        "id": name,
        "run_id": run_id,
        "destination": "dispatcher",
        "code": "MESSAGE_UNEXPECTED",
        "reason": "no such run",
        "body": envelope(run_id),
        "at_ms": T0,
    }
    return DeadLetter(**{**fields, **changes})


# ── a fact of every kind ───────────────────────────────────────────────────────────────


def request(run_id: str = RUN_ID, call_id: str = "call_1.1", tenant: str = TENANT, **changes: Any) -> RequestRow:
    """A frozen question about a tool call."""
    content = {
        "kind": "tool_call",
        "toolName": "deploy",
        "rawInput": {"env": "production", "note": "æøå 日本 🦉"},
        "input": {"env": "production", "note": "æøå 日本 🦉"},
        "agentName": "worker",
        "taskId": "one",
        "toolCallId": call_id,
        "consequential": True,
    }
    made = create_request(
        tenant=tenant,
        run_id=run_id,
        scope="tool_call",
        boundary=f"one:{call_id}",
        content=content,
        requested_at_ms=T0,
        **{"asker_machine": RUN, **changes},
    )
    return RequestRow(tenant=tenant, run_id=run_id, request=made)


def _fact(kind: type[R], defaults: dict[str, Any], changes: dict[str, Any]) -> R:
    return kind(**{"tenant": TENANT, "run_id": RUN_ID, **defaults, **changes})


def vote(person_id: str = "alice", decision_id: str = "dec_1", **changes: Any) -> VoteRow:
    """One person's voice."""
    defaults = {
        "request_id": REQUEST,
        "person_id": person_id,
        "decision_id": decision_id,
        "decision": "approve",
        "request_hash": HASH,
        "reason": None,
        "shown_digest": None,
        "evidence_text": None,
        "voted_at_ms": T0,
    }
    return _fact(VoteRow, defaults, changes)


def outcome(word: str = "approved", **changes: Any) -> OutcomeRow:
    """The one answer."""
    defaults = {
        "request_id": REQUEST,
        "outcome": word,
        "request_hash": HASH,
        "decided_by": "alice",
        "decision_id": "dec_1",
        "reason": "looks right",
        "decided_at_ms": T0,
        "use_by_ms": None,
    }
    return _fact(OutcomeRow, defaults, changes)


def revocation(**changes: Any) -> RevocationRow:
    """An approval taken back."""
    defaults = {"request_id": REQUEST, "revoked_by": "bob", "reason": "wrong one", "revoked_at_ms": T0}
    return _fact(RevocationRow, defaults, changes)


def decision_attempt(n: int = 1, decision_id: str = "dec_1", **changes: Any) -> DecisionAttemptRow:
    """An answer given."""
    defaults = {
        "request_id": REQUEST,
        "n": n,
        "decision_id": decision_id,
        "content_digest": HASH,
        "person_id": "alice",
        "answer": "accepted",
        "receipt_text": f'{{"answer":"accepted","n":{n}}}',
        "answered_at_ms": T0,
    }
    return _fact(DecisionAttemptRow, defaults, changes)


def operation(operation_id: str = OPERATION_ID, **changes: Any) -> OperationRow:
    """A sealed proposal."""
    defaults = {
        "operation_id": operation_id,
        "task_id": "one",
        "thread_id": THREAD_ID,
        "turn": 1,
        "call_id": "call_1.1",
        "tool": "deploy",
        "tool_version": "1",
        "tool_schema_digest": HASH,
        "app_version": "1",
        "effect": "idempotent",
        "consequential": True,
        "agent_name": "worker",
        "initiator": "carol",
        "raw_input_text": '{"n": 1.0}',
        "input_text": '{"n":1}',
        "request_id": REQUEST,
        "request_hash": HASH,
        "authority": "approval",
        "rule": "consequential",
        "policy_version": "p1",
        "proposed_at_ms": T0,
        "deadline_ms": None,
    }
    return _fact(OperationRow, defaults, changes)


def attempt(n: int = 1, **changes: Any) -> AttemptRow:
    """A try that is open."""
    defaults = {
        "operation_id": OPERATION_ID,
        "n": n,
        "fence": n,
        "idempotency_key": OPERATION_ID,
        "incarnation": 1,
        "started_at_ms": T0,
        "lease_until_ms": T0 + 30_000,
    }
    return _fact(AttemptRow, defaults, changes)


def attempt_end(n: int = 1, ended: str = "succeeded", **changes: Any) -> AttemptEndRow:
    """The end of a try."""
    defaults = {
        "operation_id": OPERATION_ID,
        "n": n,
        "ended": ended,
        "ended_at_ms": T0 + 5,
        "evidence_text": '{"certainty":"executed"}',
    }
    return _fact(AttemptEndRow, defaults, changes)


def retry(attempt_n: int = 1, **changes: Any) -> RetryRow:
    """A retry decision."""
    defaults = {
        "machine": OPERATION,
        "key": OPERATION_ID,
        "subject": OPERATION_ID,
        "attempt": attempt_n,
        "inputs_text": "{}",
        "decision_text": "{}",
        "decided_at_ms": T0,
    }
    return _fact(RetryRow, defaults, changes)


def said(n: int = 1, **changes: Any) -> ThreadMessageRow:
    """A line of a conversation."""
    defaults = {
        "thread_id": THREAD_ID,
        "n": n,
        "role": "user",
        "body_text": f'{{"role":"user","text":"line {n}"}}',
        "said_at_ms": T0,
    }
    return _fact(ThreadMessageRow, defaults, changes)


def leaf(seq: int = 1, run_id: str = RUN_ID, tenant: str = TENANT) -> AuditLeafRow:
    """A link of the audit chain."""
    return audit_leaf(
        tenant=tenant,
        run_id=run_id,
        seq=seq,
        kind="run.submitted",
        subject="",
        detail={"n": seq},
        at_ms=T0,
        previous="0" * 64,
    )


ONE_OF_EACH: Sequence[Row] = (
    request(),
    vote(),
    outcome(),
    revocation(),
    decision_attempt(),
    operation(),
    attempt(),
    retry(),
    said(),
    leaf(),
)
"""A row of every table of facts."""
THREAD_AT = Address(RUN_ID, THREAD, THREAD_ID)
OPERATION_AT = Address(RUN_ID, OPERATION, OPERATION_ID)
