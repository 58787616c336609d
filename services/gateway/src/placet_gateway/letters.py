"""Decides what a person can do with messages that nobody accepted: look at them, and send them again.

A dead letter stays as it is: the gateway writes nothing, and what was parked with which reason is history. Whether its
message has been applied since, the run's journal says by the message's id.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from placet.errors import Code, ContractError
from placet.machine import Receipt
from placet.messages import (
    CancelRun,
    ContinueRun,
    DecideApproval,
    Envelope,
    ForkRun,
    InterruptRun,
    Message,
    PatchPlan,
    RevokeApproval,
    SubmitRun,
    decode_envelope,
)
from placet.topology import INGRESS, QUEUES
from placet.views import DeadLetter, DeadLetterPage, DeadLetterView, Parked, Redriven
from placet_gateway import problems
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Gateway, Here, Reading, Submitting, not_found

router = APIRouter(prefix="/v1/dead-letters", tags=["system"])

PERSONAL: tuple[type[Message], ...] = (
    SubmitRun,
    ForkRun,
    ContinueRun,
    InterruptRun,
    PatchPlan,
    CancelRun,
    DecideApproval,
    RevokeApproval,
)
"""Said in a person's own name: nobody sends it again for them."""
PARKED_MAX = 10
"""Of the parked messages that a run is shown with."""
WAIT_MS = 2_000
"""How long a refusal is waited for. Most messages between machines are not answered where they are applied."""


class Redrive(BaseModel):
    """Nothing needs to be said with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@router.get("", operation_id="listDeadLetters")
async def dead_letters(
    here: Here, caller: Reading, run_id: str | None = None, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> DeadLetterPage:
    """Messages that no rule accepted and that no service could handle, newest first, each with the reason.

    Those of no known tenant are shown where the operators of the installation come in.
    """
    found: list[dict[str, Any]] = []
    for tenant in here.tenants(caller.tenant):
        found += await here.reader.dead_letters(tenant, run_id=run_id, limit=limit)
    found.sort(key=lambda letter: (letter["at_ms"], letter["id"]), reverse=True)
    items = [DeadLetterView.model_validate(letter) for letter in found[:limit]]
    return DeadLetterPage(items=items, as_of_ms=here.now_ms())


@router.get("/{letter_id}", operation_id="getDeadLetter", response_model=DeadLetter)
async def dead_letter(letter_id: str, here: Here, caller: Reading) -> Any:
    """One of them, and whether its message has been applied since."""
    found = await _found(here, caller.tenant, letter_id)
    if found is None:
        return not_found(Code.NOT_FOUND, "dead letter")
    try:
        applied = await _is_applied(here, caller.tenant, decode_envelope(_body(found)))
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
    """Send its message again, as the same message: once what was in its way is repaired. Repeating it is harmless.

    What an outsider had published is published as it came, and judged as it was then.
    """
    await body_of(request, Redrive, Code.MESSAGE_INVALID, may_be_absent=True)
    found = await _found(here, caller.tenant, letter_id)
    if found is None:
        return not_found(Code.NOT_FOUND, "dead letter")
    if (found.get("queue") or "").startswith(INGRESS) and here.send_again is not None:
        about: dict[str, Any] = found.get("about") or {}
        await here.send_again(found["queue"], _body(found), about)
        sent = Redriven(id=letter_id, message_id=about.get("message_id") or letter_id, answer="sent")
        return JSONResponse(sent.model_dump(mode="json"))
    envelope = decode_envelope(_body(found))
    _require_sendable(envelope.message, caller.tenant)
    if not await _is_applied(here, caller.tenant, envelope):
        said = await _sent(here, envelope)
        if said is not None and said.answer not in ("accepted", "duplicate"):
            return problems.problem_of_receipt(said)
    applied = await _is_applied(here, caller.tenant, envelope)
    told = Redriven(id=letter_id, message_id=envelope.id, answer="applied" if applied else "sent")
    return JSONResponse(told.model_dump(mode="json"))


async def parked_of(here: Gateway, tenant: str, run_id: str) -> list[Parked]:
    """The latest messages of a run that were parked and have not been applied since."""
    letters = await here.reader.dead_letters(tenant, run_id=run_id, limit=PARKED_MAX)
    applied = {entry["message_id"] for entry in await here.reader.journal(tenant, run_id)} if letters else set()
    return [
        Parked.model_validate(letter) for letter in letters if await _id_of(here, tenant, letter["id"]) not in applied
    ]


async def _id_of(here: Gateway, tenant: str, letter_id: str) -> str | None:
    """The id of the message in a dead letter; None where this version cannot read it."""
    letter = await here.reader.dead_letter(tenant, letter_id)
    try:
        return None if letter is None else decode_envelope(_body(letter)).id
    except ContractError:
        return None


async def _found(here: Gateway, tenant: str, letter_id: str) -> dict[str, Any] | None:
    for each in here.tenants(tenant):
        if (letter := await here.reader.dead_letter(each, letter_id)) is not None:
            return letter
    return None


def _body(letter: Mapping[str, Any]) -> bytes:
    """The bytes that were parked; the text that is shown of them is another when they are none."""
    exact = letter.get("body_base64")
    return str(letter["body"]).encode() if exact is None else base64.b64decode(exact)


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
