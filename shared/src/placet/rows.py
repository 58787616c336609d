"""Decides what the insert-only rows are, what names each, and whose they are.

Every row is flat: its fields are its columns. A row is written only together with a version step of its owner's
state, so that whoever has read the owner's version may also rely on the row's absence (DESIGN §2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from placet.calls import ChatMessage, ToolCall
from placet.canonical import canonical_string, canonical_text, digest_of_text
from placet.errors import Failure, InvariantError
from placet.ids import Address
from placet.messages import APPROVAL, OPERATION, RUN, THREAD
from placet.requests import ApprovalRequest
from placet.values import Value


class FactKey(NamedTuple):
    """Names one row: its table and its primary key after `run_id`."""

    table: str
    run_id: str
    key: str
    sub: str = ""


STATE = "state"
"""Pseudo table: version and status of another machine's state. `key` is the machine, `sub` its key."""


class Row(Value):
    """Base of insert-only rows."""

    table: ClassVar[str]
    tenant: str
    run_id: str

    def fact_key(self) -> FactKey:
        """What names this row."""
        raise NotImplementedError

    def owner(self) -> Address:
        """The state whose version step writes it."""
        raise NotImplementedError


class RequestRow(Row):
    """`approval_request`: the frozen question. PK (run_id, request_id)."""

    table: ClassVar[str] = "approval_request"
    request: ApprovalRequest

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.request.request_id)

    def owner(self) -> Address:
        return Address(self.run_id, APPROVAL, self.request.request_id)


class VoteRow(Row):
    """`approval_vote`: PK (run_id, request_id, person_id); unique (run_id, request_id, decision_id)."""

    table: ClassVar[str] = "approval_vote"
    request_id: str
    person_id: str
    decision_id: str
    decision: str
    request_hash: str
    reason: str | None
    shown_digest: str | None
    evidence_text: str | None
    """The signed envelope the vote rests on, where there is one."""
    voted_at_ms: int

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.request_id, self.person_id)

    def owner(self) -> Address:
        return Address(self.run_id, APPROVAL, self.request_id)


class OutcomeRow(Row):
    """`approval_outcome`: PK (run_id, request_id). First decision wins, for ever."""

    table: ClassVar[str] = "approval_outcome"
    request_id: str
    outcome: str
    request_hash: str
    decided_by: str | None
    """Person ids of the deciding votes, comma separated; none for expired, cancelled, superseded."""
    decision_id: str | None
    reason: str | None
    decided_at_ms: int
    use_by_ms: int | None
    value_text: str | None = None
    """Canonical JSON of what was said besides the word: an edited input, an answer."""
    successor: str | None = None
    """The request that takes its place, where one surely does."""

    @property
    def is_edit(self) -> bool:
        """Whether a person has changed what was asked."""
        return self.outcome == "superseded" and self.value_text is not None

    @property
    def asks_for_changes(self) -> bool:
        """Whether a person wants another proposal."""
        return self.outcome == "superseded" and self.value_text is None and self.decided_by is not None

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.request_id)

    def owner(self) -> Address:
        return Address(self.run_id, APPROVAL, self.request_id)


class RevocationRow(Row):
    """`approval_revocation`: PK (run_id, request_id)."""

    table: ClassVar[str] = "approval_revocation"
    request_id: str
    revoked_by: str
    reason: str
    revoked_at_ms: int

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.request_id)

    def owner(self) -> Address:
        return Address(self.run_id, APPROVAL, self.request_id)


class DecisionAttemptRow(Row):
    """`decision_attempt`: every final answer given. PK (run_id, request_id, n).

    Read by `decision_id`: the first row with it, whose receipt a repeat gets again, byte for byte.
    """

    table: ClassVar[str] = "decision_attempt"
    request_id: str
    n: int
    decision_id: str
    content_digest: str
    """Digest of what was asked (word, hash, person): the same id with other content is a refusal."""
    person_id: str
    answer: str
    receipt_text: str
    answered_at_ms: int

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.request_id, self.decision_id)

    def owner(self) -> Address:
        return Address(self.run_id, APPROVAL, self.request_id)


class OperationRow(Row):
    """`operation`: the sealed proposal of one side effect. PK (run_id, operation_id). Written by the run."""

    table: ClassVar[str] = "operation"
    operation_id: str
    task_id: str
    thread_id: str
    turn: int
    call_id: str
    """The tool call id within the task (ids.tool_call_id)."""
    tool: str
    tool_version: str
    tool_schema_digest: str
    app_version: str
    effect: str
    consequential: bool
    agent_name: str
    initiator: str
    """Person id of who started the run; empty where no person did. Whoever it is settles no question about it."""
    raw_input_text: str
    input_text: str
    """Canonical JSON of the validated input: what was shown, what is executed."""
    request_id: str | None
    request_hash: str | None
    authority: str
    """`approval`: an approved outcome with `request_hash` is needed. `policy`: a gate allowed it."""
    rule: str
    policy_version: str
    proposed_at_ms: int
    deadline_ms: int | None
    policy_digest: str = ""

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.operation_id)

    def owner(self) -> Address:
        return Address(self.run_id, RUN, "")


class AttemptRow(Row):
    """`operation_attempt`: PK (run_id, operation_id, n); partial unique index: one open attempt."""

    table: ClassVar[str] = "operation_attempt"
    operation_id: str
    n: int
    fence: int
    idempotency_key: str
    incarnation: int
    started_at_ms: int
    lease_until_ms: int

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.operation_id, str(self.n))

    def owner(self) -> Address:
        return Address(self.run_id, OPERATION, self.operation_id)


class AttemptEndRow(Row):
    """Closes the open attempt: fills the `ended…` columns of `operation_attempt`, once."""

    table: ClassVar[str] = "operation_attempt_end"
    operation_id: str
    n: int
    ended: str
    """succeeded, failed, unknown, executed, not_executed, sealed, cancelled"""
    ended_at_ms: int
    evidence_text: str | None
    """The tool's outcome as JSON, or who settled it."""

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.operation_id, str(self.n))

    def owner(self) -> Address:
        return Address(self.run_id, OPERATION, self.operation_id)


class RetryRow(Row):
    """`retry_decision`: inputs and decision of the one retry rule (G17). PK (run_id, subject, attempt)."""

    table: ClassVar[str] = "retry_decision"
    machine: str
    key: str
    subject: str
    attempt: int
    inputs_text: str
    decision_text: str
    decided_at_ms: int

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.subject, str(self.attempt))

    def owner(self) -> Address:
        return Address(self.run_id, self.machine, self.key)


class ThreadMessageRow(Row):
    """`thread_message`: the conversation, append-only. PK (run_id, thread_id, n), n from 1 without gaps."""

    table: ClassVar[str] = "thread_message"
    thread_id: str
    n: int
    role: str
    body_text: str
    """A calls.ChatMessage as JSON."""
    said_at_ms: int

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, self.thread_id, str(self.n))

    def owner(self) -> Address:
        return Address(self.run_id, THREAD, self.thread_id)


class AuditLeafRow(Row):
    """`audit_leaf`: what happened to the run, chained. PK (run_id, seq), seq from 1 without gaps."""

    table: ClassVar[str] = "audit_leaf"
    seq: int
    kind: str
    subject: str
    detail_text: str
    """Canonical JSON; `leaf` covers it."""
    at_ms: int
    previous: str
    leaf: str
    """SHA-256 over canonical JSON of all other fields."""

    def fact_key(self) -> FactKey:
        return FactKey(self.table, self.run_id, str(self.seq))

    def owner(self) -> Address:
        return Address(self.run_id, RUN, "")


ROWS: dict[str, type[Row]] = {
    row.table: row
    for row in (
        RequestRow,
        VoteRow,
        OutcomeRow,
        RevocationRow,
        DecisionAttemptRow,
        OperationRow,
        AttemptRow,
        AttemptEndRow,
        RetryRow,
        ThreadMessageRow,
        AuditLeafRow,
    )
}

READABLE = ("approval_request", "approval_outcome", "approval_revocation", "decision_attempt", "operation", STATE)
"""The tables that machines read; the others are for people."""


class StateRow(Row):
    """Version and status of another machine's state, read through `STATE`."""

    table: ClassVar[str] = STATE
    machine: str
    key: str
    version: int
    status: str

    def fact_key(self) -> FactKey:
        return FactKey(STATE, self.run_id, self.machine, self.key)

    def owner(self) -> Address:
        return Address(self.run_id, self.machine, self.key)


CHECKPOINT = "checkpoint"
"""Pseudo table: what another run was at a version. `key` is that run, `sub` the version; `run_id` is whose reads it."""
CONVERSATION = "conversation"
"""Pseudo table: a conversation of another run. `key` is the thread, `sub` is `turn@run`; `run_id` is whose reads it."""


class PastTurn(Value):
    """A turn that a run had asked for at a version, and what had come of it."""

    thread_id: str
    turn: int
    append: tuple[ChatMessage, ...]
    forked_from: str | None = None
    """As it was asked for."""
    calls: tuple[ToolCall, ...] | None = None
    """What the model called; None while it was still at work."""


class OrderedCall(Value):
    """A call that a run has ordered to be made."""

    operation_id: str
    tool: str
    input_text: str


class CheckpointRow(Row):
    """What another run was at a version, read through `CHECKPOINT`: it never changes any more."""

    table: ClassVar[str] = CHECKPOINT
    source: str
    """The other run; `run_id` is whose reads it."""
    version: int
    body_text: str
    """The state then."""
    turns: tuple[PastTurn, ...] = ()
    """The last turn of every conversation that had not come to its end."""
    ordered: tuple[OrderedCall, ...] = ()
    """Calls without a result then that the other run has ordered, before or since."""
    failure: Failure | None = None
    """Why it cannot be read."""

    def fact_key(self) -> FactKey:
        return FactKey(CHECKPOINT, self.run_id, self.source, str(self.version))

    def owner(self) -> Address:
        return Address(self.run_id, RUN, "")


class ConversationRow(Row):
    """What was said in a conversation of another run up to the reply of a turn, read through `CONVERSATION`."""

    table: ClassVar[str] = CONVERSATION
    source: str
    thread_id: str
    turn: int
    bodies: tuple[str, ...]
    """Each a calls.ChatMessage as JSON."""

    def fact_key(self) -> FactKey:
        return FactKey(CONVERSATION, self.run_id, self.thread_id, f"{self.turn}@{self.source}")

    def owner(self) -> Address:
        return Address(self.run_id, THREAD, self.thread_id)


PAST: Mapping[str, type[Row]] = {CHECKPOINT: CheckpointRow, CONVERSATION: ConversationRow}
"""Rows of no table: what is read of another run's past, which nothing can change, so that nobody guards it."""


def owner_of(key: FactKey) -> Address:
    """The state that owns the row, present or absent, that `key` names.

    What is read of another run's past is guarded by whoever reads it.
    """
    if key.table == CHECKPOINT:
        return Address(key.run_id, RUN, "")
    if key.table == CONVERSATION:
        return Address(key.run_id, THREAD, key.key)
    if key.table == STATE:
        return Address(key.run_id, key.key, key.sub)
    if key.table == "operation":
        return Address(key.run_id, RUN, "")
    if key.table in ("approval_request", "approval_outcome", "approval_revocation", "decision_attempt"):
        return Address(key.run_id, APPROVAL, key.key)
    raise InvariantError(f"no machine reads the table {key.table}")


def audit_leaf(
    *, tenant: str, run_id: str, seq: int, kind: str, subject: str, detail: Mapping[str, Any], at_ms: int, previous: str
) -> AuditLeafRow:
    """The next leaf of a run's audit chain."""
    detail_text = canonical_text(dict(detail))
    return AuditLeafRow.trusted(
        tenant=tenant,
        run_id=run_id,
        seq=seq,
        kind=kind,
        subject=subject,
        detail_text=detail_text,
        at_ms=at_ms,
        previous=previous,
        leaf=_digest(at_ms, detail_text, kind, previous, run_id, seq, subject, tenant),
    )


def leaf_digest(row: AuditLeafRow) -> str:
    """SHA-256 of the canonical JSON of everything else in a leaf, its keys in canonical order."""
    return _digest(row.at_ms, row.detail_text, row.kind, row.previous, row.run_id, row.seq, row.subject, row.tenant)


def _digest(
    at_ms: int, detail_text: str, kind: str, previous: str, run_id: str, seq: int, subject: str, tenant: str
) -> str:
    q = canonical_string
    return digest_of_text(
        f'{{"at_ms":{at_ms},"detail_text":{q(detail_text)},"kind":{q(kind)},"previous":{q(previous)},'
        f'"run_id":{q(run_id)},"seq":{seq},"subject":{q(subject)},"tenant":{q(tenant)}}}'
    )
