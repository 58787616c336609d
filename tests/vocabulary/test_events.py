"""Proves which rows are told to the outside, that the AsyncAPI document describes them, and that no content is told."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from placet.asyncapi import asyncapi_document, asyncapi_text
from placet.events import EVENTS, CloudEvent, events_of, schema_of, source_of, type_of
from placet.rows import OutcomeRow, RequestRow, RevocationRow, Row, VoteRow, audit_leaf
from placet.signatures import PAYLOAD_TYPE, DecisionStatement, SignedEnvelope
from tests.builders import RUN_ID, T0, TENANT
from tests.vocabulary.reviewed import create, tool_call

SOURCE = source_of("production west")
DOCUMENT = Path(__file__).resolve().parents[2] / "deploy" / "asyncapi.json"
VERSION = importlib.metadata.version("placet")


def a_leaf(kind: str, subject: str, seq: int = 1, **detail: Any) -> Row:
    return audit_leaf(
        tenant=TENANT, run_id=RUN_ID, seq=seq, kind=kind, subject=subject, detail=detail, at_ms=T0, previous="0" * 64
    )


def a_request() -> RequestRow:
    asked = create(
        tool_call({"card": "4111-secret"}), run_id=RUN_ID, reason="because of secret", expires_at_ms=T0 + 60_000
    )
    return RequestRow(tenant=TENANT, run_id=RUN_ID, request=asked)


def an_outcome(**changes: Any) -> OutcomeRow:
    fields: dict[str, Any] = {
        "tenant": TENANT,
        "run_id": RUN_ID,
        "request_id": "apr_1",
        "outcome": "approved",
        "request_hash": "a" * 64,
        "decided_by": "alice,bob",
        "decision_id": "d-1",
        "reason": "a secret reason",
        "decided_at_ms": T0,
        "use_by_ms": None,
    }
    return OutcomeRow(**{**fields, **changes})


REVOCATION = RevocationRow(
    tenant=TENANT, run_id=RUN_ID, request_id="apr_1", revoked_by="bob", reason="a secret reason", revoked_at_ms=T0
)
SUBMITTED = a_leaf("run.submitted", RUN_ID, team="team", mode="goal", initiator="alice", app_version="1")
ENDED = a_leaf("run.ended", "failed", 2, code="TASK_FAILED")
EXPIRING = a_leaf("approval.expiring", "apr_1", 3, expires_at_ms=1_786_147_200_000)
TOLD = [SUBMITTED, ENDED, a_request(), EXPIRING, an_outcome(), REVOCATION]


def told(row: Row) -> CloudEvent:
    (event,) = events_of([row], SOURCE)
    return CloudEvent.model_validate_json(event.body)


def test_every_kind_of_event_is_told_by_a_row_and_is_what_its_schema_says() -> None:
    found = [told(row) for row in TOLD]
    assert [event.type for event in found] == [type_of(data) for data in EVENTS]
    for event, data in zip(found, EVENTS, strict=True):
        data.model_validate(event.data)
        assert event.dataschema == schema_of(data)
        assert (event.source, event.tenant) == ("urn:placet:production%20west", TENANT)
        assert event.time == "2026-08-08T00:00:00.000Z"


def test_a_fork_is_told_as_a_run_that_says_where_it_comes_from() -> None:
    row = a_leaf("run.forked", RUN_ID, team="team", mode="goal", initiator="bob", forked_from="r0", version=3)
    assert told(row).type == told(SUBMITTED).type
    assert told(row).data["forked_from"] == "r0"
    assert "forked_from" not in told(SUBMITTED).data


def test_what_an_event_says_is_what_the_row_says() -> None:
    assert told(ENDED).data == {"run_id": RUN_ID, "status": "failed", "code": "TASK_FAILED"}
    assert told(ENDED).subject == RUN_ID
    decided = told(an_outcome())
    assert decided.data["decided_by"] == ["alice", "bob"]
    assert decided.subject == "apr_1"
    assert told(an_outcome(decided_by=None, decision_id=None, outcome="expired")).data["decided_by"] == []
    assert told(a_request()).data["expires_at"] == "2026-08-08T00:01:00.000Z"


def test_the_same_row_is_the_same_event_and_another_row_another() -> None:
    once, again = ([event.id for event in events_of(TOLD, SOURCE)] for _ in range(2))
    assert once == again
    assert len(set(once)) == len(TOLD)


@pytest.mark.parametrize("row", TOLD, ids=lambda row: row.table)
def test_no_event_carries_content_or_anybody_s_reasons(row: Row) -> None:
    (event,) = events_of([row], SOURCE)
    assert b"secret" not in event.body


def test_other_rows_are_nobody_else_s_business() -> None:
    vote = VoteRow(
        tenant=TENANT,
        run_id=RUN_ID,
        request_id="apr_1",
        person_id="alice",
        decision_id="d",
        decision="approve",
        request_hash="a" * 64,
        reason=None,
        shown_digest=None,
        evidence_text=None,
        voted_at_ms=T0,
    )
    assert list(events_of([vote, a_leaf("task.started", "t")], SOURCE)) == []


# ── the document ───────────────────────────────────────────────────────────────────────


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for item in value.values() for found in references(item)]
    return [found for item in value for found in references(item)] if isinstance(value, list) else []


def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = asyncapi_document(VERSION)
    for reference in references(document):
        at: Any = document
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
        assert at


def test_the_document_has_a_channel_and_an_operation_for_every_event() -> None:
    document = asyncapi_document(VERSION)
    sent = [operation for operation in document["operations"].values() if operation["action"] == "send"]
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert len(sent) == len(EVENTS)
    assert {data.name for data in EVENTS} <= addresses


def test_the_document_describes_a_signed_decision_as_it_is_read() -> None:
    schemas = asyncapi_document(VERSION)["components"]["schemas"]
    envelope = schemas["SignedDecision"]
    assert set(envelope["required"]) == set(envelope["properties"]) == set(SignedEnvelope.model_fields)
    assert envelope["additionalProperties"] is False
    assert envelope["properties"]["payloadType"]["const"] == PAYLOAD_TYPE
    assert envelope["properties"]["payload"]["contentSchema"] == {"$ref": "#/components/schemas/DecisionStatement"}
    assert set(schemas["DecisionStatement"]["properties"]) == set(DecisionStatement.model_fields)


def test_the_document_in_the_repository_is_the_one_of_this_version() -> None:
    how = (
        'write it anew: python -c "from importlib.metadata import version as v; from placet.asyncapi import '
        "asyncapi_text; print(asyncapi_text(v('placet')), end='')\" > deploy/asyncapi.json"
    )
    assert DOCUMENT.read_text(encoding="utf-8") == asyncapi_text(VERSION), how
    json.loads(DOCUMENT.read_text(encoding="utf-8"))
