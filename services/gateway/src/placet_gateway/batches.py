"""Decides what deciding several requests at once means: exactly those named, each with its hash, and first all checked.

One that does not fit keeps all of them undecided, and each is told what speaks against it. What has been checked is
then decided one by one: each decision is its own transaction with its own receipt, and a repeat of the whole is safe.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from placet.decision_words import words_for
from placet.errors import Code, ContractError
from placet.machine import Receipt
from placet.messages import DecideApproval
from placet.values import Name, Text
from placet_gateway import problems
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Gateway, Here, Reviewing
from placet_gateway.identity import Caller

router = APIRouter(prefix="/v1/decisions", tags=["requests"])

BATCH_DECISIONS_MAX = 100
"""More than a person can have looked at in one go."""


class BatchItem(BaseModel):
    """One request of the batch, by id and by what was shown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: Name
    request_hash: Name
    decision_id: Name


class Batch(BaseModel):
    """The same word for each of these requests; never "all"."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    decision: Literal["approve", "reject"]
    reason: Text | None = None
    items: Annotated[tuple[BatchItem, ...], Field(min_length=1, max_length=BATCH_DECISIONS_MAX)]


@router.post("", operation_id="decideRequests", openapi_extra=takes(Batch))
async def decide_batch(request: Request, here: Here, caller: Reviewing) -> Response:
    """Decide several requests, or none where one of them does not fit."""
    batch = await body_of(request, Batch, Code.APPROVAL_VALIDATION_ERROR)
    _require_distinct(batch)
    found = [await here.reader.request(caller.tenant, item.request_id) for item in batch.items]
    faults = [_fault(item, row) for item, row in zip(batch.items, found, strict=True)]
    if any(faults):
        return _nothing_decided(batch, faults)
    results = [await _decided(here, caller, batch, item, row) for item, row in zip(batch.items, found, strict=True)]
    return _told(results)


def _require_distinct(batch: Batch) -> None:
    for name in ("request_id", "decision_id"):
        seen: set[str] = set()
        for at, item in enumerate(batch.items):
            value = getattr(item, name)
            if value in seen:
                told = f"{name} {value} stands twice"
                raise ContractError(Code.APPROVAL_VALIDATION_ERROR, told, pointer=f"/items/{at}/{name}")
            seen.add(value)


def _fault(item: BatchItem, row: dict[str, Any] | None) -> tuple[Code, str] | None:
    """What speaks against deciding this one; a repeat under the same `decision_id` is none."""
    if row is None:
        return Code.APPROVAL_NOT_FOUND, "there is no request of that id"
    if "approve" not in words_for(row["scope"]):
        return Code.APPROVAL_VALIDATION_ERROR, f"a request of scope {row['scope']} is answered by itself"
    if row["request_hash"] != item.request_hash:
        return Code.APPROVAL_STALE_DECISION, "the hash is not the one of what is asked"
    if row["status"] != "open" and row["decision_id"] != item.decision_id:
        return Code.APPROVAL_CONFLICT, f"the request is {row['status']} already"
    return None


def _nothing_decided(batch: Batch, faults: list[tuple[Code, str] | None]) -> Response:
    first = next(fault for fault in faults if fault is not None)
    results = [
        {"request_id": item.request_id, "answer": "not_decided"}
        if fault is None
        else {"request_id": item.request_id, "answer": "refused", "code": fault[0].value, "detail": fault[1]}
        for item, fault in zip(batch.items, faults, strict=True)
    ]
    wrong = sum(fault is not None for fault in faults)
    return problems.problem(
        first[0], f"nothing was decided: {wrong} of {len(faults)} requests do not fit: {first[1]}", results=results
    )


async def _decided(
    here: Gateway, caller: Caller, batch: Batch, item: BatchItem, row: dict[str, Any] | None
) -> dict[str, Any]:
    run_id = row["run_id"] if row is not None else ""
    said = await here.ask(
        DecideApproval(
            tenant=caller.tenant,
            run_id=run_id,
            request_id=item.request_id,
            decision_id=item.decision_id,
            request_hash=item.request_hash,
            decision=batch.decision,
            reviewer=caller.principal,
            reason=batch.reason,
        )
    )
    if said is None:
        return {"request_id": item.request_id, "answer": "unknown"}
    if isinstance(said, Receipt):
        refused = problems.problem_of_receipt(said)
        return {"request_id": item.request_id, "answer": said.answer, "problem": json.loads(bytes(refused.body))}
    receipt = json.loads(said)
    return {"request_id": item.request_id, "answer": receipt["answer"], "receipt": receipt}


def _told(results: list[dict[str, Any]]) -> Response:
    if any(result["answer"] == "unknown" for result in results):
        told = "of some decisions no answer came in time: repeat the same batch"
        return problems.problem(Code.OUTCOME_UNKNOWN, told, results=results)
    lost = [result for result in results if "problem" in result]
    if lost:
        code = Code(lost[0]["problem"]["code"])
        decided = len(results) - len(lost)
        told = f"{decided} of {len(results)} were decided, the others not: {lost[0]['problem']['detail']}"
        # One that was only busy may yet be decided: repeating the batch is then worth while.
        is_final = all(result["problem"]["final"] for result in lost)
        return problems.problem(code, told, final=is_final, results=results)
    return JSONResponse({"results": results})
