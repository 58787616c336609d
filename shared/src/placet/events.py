"""Decides what the outside is told of a run: which rows are events, as CloudEvents 1.0.2 in structured JSON.

An event is made from a row that is committed with it, so it happens exactly once and never without the fact. It names
ids, never content: whoever listens may know that something was decided, not what a tool was called with. An event is
news, not a right to act: receivers that act on one ask for the facts first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from placet.ids import derived_id
from placet.instants import Instant, rfc3339
from placet.rows import AuditLeafRow, OutcomeRow, RequestRow, RevocationRow, Row

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/cloudevents+json"
VERSION = 1
"""Of every event's data: a change that is not an addition makes another type."""


class EventData(BaseModel):
    """Base of what an event says. `name` is its routing key; the CloudEvents type is `placet.<name>.v1`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]
    run_id: str


class RunSubmitted(EventData):
    """A run was accepted."""

    name: ClassVar[str] = "run.submitted"
    team: str
    mode: str
    initiator: str
    forked_from: str | None = None
    """The run that this one is a fork of."""


class RunEnded(EventData):
    """A run reached its end. Out of `succeeded` and `failed` a further instruction may lead; then it ends once more."""

    name: ClassVar[str] = "run.ended"
    status: str
    """succeeded, failed, rejected, expired, cancelled, timed_out, budget_exhausted"""
    code: str | None = None


class ApprovalRequested(EventData):
    """People are asked."""

    name: ClassVar[str] = "approval.requested"
    request_id: str
    request_hash: str
    scope: str
    operation_id: str | None = None
    quorum: int
    expires_at: str | None = None


class ApprovalDecided(EventData):
    """A question has its one outcome."""

    name: ClassVar[str] = "approval.decided"
    request_id: str
    request_hash: str
    outcome: str
    """approved, rejected, answered, expired, cancelled, superseded, executed, not_executed"""
    decided_by: list[str]
    decision_id: str | None = None
    successor: str | None = None
    """The request that takes its place, where a person has edited what was asked."""


class ApprovalExpiring(EventData):
    """A question will expire soon, and nobody has decided it. Told once."""

    name: ClassVar[str] = "approval.expiring"
    request_id: str
    expires_at: str


class ApprovalRevoked(EventData):
    """An approval was taken back."""

    name: ClassVar[str] = "approval.revoked"
    request_id: str
    revoked_by: str


EVENTS: tuple[type[EventData], ...] = (
    RunSubmitted, RunEnded, ApprovalRequested, ApprovalExpiring, ApprovalDecided, ApprovalRevoked,
)  # fmt: skip


class CloudEvent(BaseModel):
    """The frame of every event. `source` and `id` together name it: whoever gets it twice sees that by them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    specversion: Literal["1.0"] = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: Literal["application/json"] = "application/json"
    dataschema: str
    tenant: str
    """An extension attribute."""
    data: dict[str, Any]


class Event(NamedTuple):
    """An event on its way."""

    id: str
    name: str
    run_id: str
    body: bytes


def type_of(data: type[EventData]) -> str:
    """The CloudEvents type: `placet.run.ended.v1`."""
    return f"placet.{data.name}.v{VERSION}"


def schema_of(data: type[EventData]) -> str:
    """The CloudEvents dataschema: a name, which the AsyncAPI document resolves."""
    return f"urn:placet:schema:{data.name}:{VERSION}"


def source_of(environment: str) -> str:
    """The CloudEvents source of one installation."""
    return f"urn:placet:{quote(environment, safe='')}"


def events_of(rows: Iterable[Row], source: str) -> Iterator[Event]:
    """The events that these rows are, in their order."""
    for row in rows:
        told = _told(row)
        if told is not None:
            data, subject, at_ms = told
            yield _event(row, data, subject, at_ms, source)


def _told(row: Row) -> tuple[EventData, str, int] | None:
    if isinstance(row, AuditLeafRow):
        data = _of_run(row)
        subject = row.subject if isinstance(data, ApprovalExpiring) else row.run_id
        return None if data is None else (data, subject, row.at_ms)
    if isinstance(row, RequestRow):
        request = row.request
        expires = request.expires_at_ms
        asked = ApprovalRequested(
            run_id=row.run_id,
            request_id=request.request_id,
            request_hash=request.request_hash,
            scope=request.scope,
            operation_id=request.operation_id or None,
            quorum=request.quorum,
            expires_at=None if expires is None else rfc3339(Instant(expires)),
        )
        return asked, request.request_id, request.requested_at_ms
    if isinstance(row, OutcomeRow):
        decided = ApprovalDecided(
            run_id=row.run_id,
            request_id=row.request_id,
            request_hash=row.request_hash,
            outcome=row.outcome,
            decided_by=[] if not row.decided_by else row.decided_by.split(","),
            decision_id=row.decision_id,
            successor=row.successor,
        )
        return decided, row.request_id, row.decided_at_ms
    if isinstance(row, RevocationRow):
        revoked = ApprovalRevoked(run_id=row.run_id, request_id=row.request_id, revoked_by=row.revoked_by)
        return revoked, row.request_id, row.revoked_at_ms
    return None


def _of_run(leaf: AuditLeafRow) -> EventData | None:
    detail: dict[str, Any] = json.loads(leaf.detail_text)
    if leaf.kind in (RunSubmitted.name, "run.forked"):
        told: dict[str, Any] = {name: detail.get(name) for name in ("team", "mode", "initiator", "forked_from")}
        return RunSubmitted(run_id=leaf.run_id, **told)
    if leaf.kind == RunEnded.name:
        return RunEnded(run_id=leaf.run_id, status=leaf.subject, code=detail.get("code"))
    if leaf.kind == ApprovalExpiring.name:
        expires_at = rfc3339(Instant(detail["expires_at_ms"]))
        return ApprovalExpiring(run_id=leaf.run_id, request_id=leaf.subject, expires_at=expires_at)
    return None


def _event(row: Row, data: EventData, subject: str, at_ms: int, source: str) -> Event:
    event_id = derived_id("evt", *row.fact_key())
    framed = CloudEvent(
        id=event_id,
        source=source,
        type=type_of(type(data)),
        subject=subject,
        time=rfc3339(Instant(at_ms)),
        dataschema=schema_of(type(data)),
        tenant=row.tenant,
        data=data.model_dump(mode="json", exclude_none=True),
    )
    return Event(event_id, data.name, row.run_id, framed.model_dump_json().encode())
