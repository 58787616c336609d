"""Decides what can be asked of one side effect over HTTP: everything that is known of it, from its id alone (F15)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from placet.errors import Code, ContractError
from placet.messages import OPERATION, RUN
from placet.operation_views import (
    CheckpointView,
    HashView,
    OperationRecord,
    OutcomeOfOperation,
    ProposalView,
    RetryView,
)
from placet.requests import hash_of_text
from placet.runtime.reading import Reader
from placet.statuses import OPERATION_TERMINAL
from placet.views import OperationView
from placet_gateway import reading
from placet_gateway.context import Here, Reading

router = APIRouter(prefix="/v1/operations", tags=["operations"])

Columns = Mapping[str, Any]


@router.get("/{operation_id}", operation_id="getOperation")
async def show(operation_id: str, here: Here, caller: Reading) -> OperationRecord:
    """One side effect: proposal, hashes, decisions, attempts, retry decisions, checkpoints and outcome."""
    run_id = await here.reader.run_of_operation(caller.tenant, operation_id)
    if run_id is None:
        raise ContractError(Code.NOT_FOUND, "there is no operation of that id")
    return await record_of(here.reader, caller.tenant, run_id, operation_id, here.now_ms())


async def record_of(reader: Reader, tenant: str, run_id: str, operation_id: str, now_ms: int) -> OperationRecord:
    """Everything that is known of an operation that exists."""
    [row] = [r for r in await reader.rows(tenant, "operation", run_id) if r["operation_id"] == operation_id]
    [view] = await reading.operations_of(reader, tenant, run_id, operation_id)
    asked = [r for r in await reading.requests_of(reader, tenant, run_id) if r["operation_id"] == operation_id]
    known = {request["request_id"] for request in asked}
    votes = [r for r in await reader.rows(tenant, "approval_vote", run_id) if r["request_id"] in known]
    outcomes = [r for r in await reader.rows(tenant, "approval_outcome", run_id) if r["request_id"] in known]
    hashes = [*_hashes(row, asked, votes, outcomes)]
    of_request: dict[str, set[str]] = {}
    for found in hashes:
        of_request.setdefault(found.request_id, set()).add(found.request_hash)
    return OperationRecord(
        operation_id=operation_id,
        run_id=run_id,
        operation=view,
        proposal=ProposalView.model_validate(dict(row)),
        requests=[await reading.request_view(reader, tenant, request, now_ms) for request in asked],
        retries=[_retry(r) for r in await reader.rows(tenant, "retry_decision", run_id) if r["key"] == operation_id],
        checkpoints=[
            _checkpoint(entry)
            for entry in await reader.journal(tenant, run_id)
            if _is_about(entry, row, operation_id, known)
        ],
        outcome=_outcome(view),
        hashes=hashes,
        hashes_agree=all(len(different) == 1 for different in of_request.values()),
        as_of_ms=now_ms,
    )


def _hashes(
    row: Columns, asked: Sequence[Columns], votes: Sequence[Columns], outcomes: Sequence[Columns]
) -> Iterator[HashView]:
    if row["request_id"] is not None:
        yield HashView(where="proposal", request_id=row["request_id"], request_hash=row["request_hash"])
    for request in asked:
        request_id = request["request_id"]
        yield HashView(where="request", request_id=request_id, request_hash=request["request_hash"])
        anew = hash_of_text(request["scope"], request["boundary"], request["content_text"])
        yield HashView(where="content, computed anew", request_id=request_id, request_hash=anew)
    for vote in votes:
        where = f"vote of {vote['person_id']}"
        yield HashView(where=where, request_id=vote["request_id"], request_hash=vote["request_hash"])
    for outcome in outcomes:
        yield HashView(where="outcome", request_id=outcome["request_id"], request_hash=outcome["request_hash"])


def _retry(row: Columns) -> RetryView:
    return RetryView(
        subject=row["subject"],
        attempt=row["attempt"],
        inputs=json.loads(row["inputs_text"]),
        decision=json.loads(row["decision_text"]),
        decided_at_ms=row["decided_at_ms"],
    )


def _is_about(entry: Columns, row: Columns, operation_id: str, requests: set[str]) -> bool:
    """Whether a journal entry is of the operation, of a question about it, or the run's that proposed or heard it."""
    if entry["machine"] == OPERATION:
        return bool(entry["key"] == operation_id)
    message = entry["message"].get("message") or {}
    if message.get("operation_id") == operation_id or message.get("request_id") in requests:
        return True
    return bool(entry["machine"] == RUN and entry["at_ms"] == row["proposed_at_ms"])


def _checkpoint(entry: Columns) -> CheckpointView:
    return CheckpointView(
        machine=entry["machine"],
        key=entry["key"],
        version=entry["version"],
        message=entry["type"],
        message_id=entry["message_id"],
        at_ms=entry["at_ms"],
    )


def _outcome(view: OperationView) -> OutcomeOfOperation | None:
    """The end, with what its last attempt brought; None while it goes on."""
    if view.status not in OPERATION_TERMINAL:
        return None
    last = view.attempts[-1] if view.attempts else None
    try:
        told = json.loads(last.evidence or "null") if last is not None else None
    except ValueError:  # words of a person
        told = None
    told = told if isinstance(told, dict) else {}
    return OutcomeOfOperation(
        status=view.status,
        certainty=told.get("certainty"),
        result_text=told.get("result_text"),
        failure=told.get("failure"),
    )
