"""Decides what a person can do with messages that no rule accepted: look at them, and send them again.

A dead letter stays as it is: the gateway writes nothing, and what was parked with which reason is history. Whether its
message has been applied since, the run's journal says by the message's id.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from placet.errors import Code, ContractError
from placet.machine import Receipt
from placet.messages import (
    CancelRun,
    DecideApproval,
    Envelope,
    Message,
    RevokeApproval,
    SubmitRun,
    decode_envelope,
)
from placet.topology import QUEUES
from placet.views import DeadLetter, DeadLetterPage, DeadLetterView, Redriven
from placet_gateway import problems
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Gateway, Here, Reading, Submitting, not_found

router = APIRouter(prefix="/v1/dead-letters", tags=["system"])

PERSONAL: tuple[type[Message], ...] = (SubmitRun, CancelRun, DecideApproval, RevokeApproval)
"""Said in a person's own name: nobody sends it again for them."""
WAIT_MS = 2_000
"""How long a refusal is waited for. Most messages between machines are not answered where they are applied."""


class Redrive(BaseModel):
    """Nothing needs to be said with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@router.get("", operation_id="listDeadLetters")
async def dead_letters(
    here: Here, caller: Reading, run_id: str | None = None, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> DeadLetterPage:
    """Messages that no rule accepted, newest first, each with the reason."""
    found = await here.reader.dead_letters(caller.tenant, run_id=run_id, limit=limit)
    return DeadLetterPage(items=[DeadLetterView.model_validate(letter) for letter in found], as_of_ms=here.now_ms())


@router.get("/{letter_id}", operation_id="getDeadLetter", response_model=DeadLetter)
async def dead_letter(letter_id: str, here: Here, caller: Reading) -> Any:
    """One of them, and whether its message has been applied since."""
    found = await here.reader.dead_letter(caller.tenant, letter_id)
    if found is None:
        return not_found(Code.NOT_FOUND, "dead letter")
    try:
        applied = await _is_applied(here, caller.tenant, decode_envelope(found["body"].encode()))
    except ContractError:
        applied = False  # what this version cannot read it has not applied
    return DeadLetter.model_validate({**found, "applied": applied})


@router.post(
    "/{letter_id}/redrive",
    operation_id="redriveDeadLetter",
    response_model=Redriven,
    openapi_extra=takes(Redrive, required=False),
)
async def redrive(letter_id: str, request: Request, here: Here, caller: Submitting) -> Response:
    """Send its message again, as the same message: once what was in its way is repaired. Repeating it is harmless."""
    await body_of(request, Redrive, Code.MESSAGE_INVALID, may_be_absent=True)
    found = await here.reader.dead_letter(caller.tenant, letter_id)
    if found is None:
        return not_found(Code.NOT_FOUND, "dead letter")
    envelope = decode_envelope(found["body"].encode())
    _require_sendable(envelope.message, caller.tenant)
    if not await _is_applied(here, caller.tenant, envelope):
        said = await _sent(here, envelope)
        if said is not None and said.answer not in ("accepted", "duplicate"):
            return problems.problem_of_receipt(said)
    applied = await _is_applied(here, caller.tenant, envelope)
    told = Redriven(id=letter_id, message_id=envelope.id, answer="applied" if applied else "sent")
    return JSONResponse(told.model_dump(mode="json"))


def _require_sendable(message: Message, tenant: str) -> None:
    """Raises ContractError for what nobody takes, and for what only the person who said it may say again."""
    if message.tenant != tenant or message.to().machine not in QUEUES.values():
        raise ContractError(Code.MESSAGE_UNEXPECTED, "no machine takes this message: nothing was sent")
    if isinstance(message, PERSONAL):
        told = "this was said in a person's own name: only that person can say it again; nothing was sent"
        raise ContractError(Code.MESSAGE_UNEXPECTED, told)


async def _is_applied(here: Gateway, tenant: str, envelope: Envelope) -> bool:
    entries = await here.reader.journal(tenant, envelope.message.run_id)
    return any(entry["message_id"] == envelope.id for entry in entries)


async def _sent(here: Gateway, envelope: Envelope) -> Receipt | None:
    """What was answered, if anything. Raises RetryableError where the machines cannot be reached."""
    text = await here.door.ask(envelope.message, message_id=envelope.id, timeout_ms=WAIT_MS)
    return None if text is None else Receipt.model_validate_json(text)
