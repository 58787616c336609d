"""Decides how a run is told what to do next over HTTP: a further instruction, or a stop of the turn in work."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placet.errors import Code, ContractError
from placet.ids import derived_id
from placet.machine import Receipt
from placet.messages import ContinueRun, InterruptRun, invalid
from placet.values import Name, Text
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Here, Submitting, answer, invalid_id, not_found

router = APIRouter(prefix="/v1/runs", tags=["runs"])

KEY_CHARS_MAX = 255
TURN_CHARS_MAX = 256


class Instruction(BaseModel):
    """What a run is to do next. Who says so comes from the token: only who started the run may."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    instruction: Text
    instruction_id: Name | None = None
    """Minted by the client: the same again is the same instruction. Derived from the header `Idempotency-Key` where it
    is left out."""
    task: Annotated[str, Field(max_length=TURN_CHARS_MAX)] = ""
    """In whose conversation; by default where the answer came from, or where the run failed."""
    after: Annotated[str, Field(max_length=TURN_CHARS_MAX)] = ""
    """The last turn that the caller has seen there, such as `task:a/3`; another one is refused."""
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """By default as long as the run was given before."""


class Interruption(BaseModel):
    """Which turn is stopped, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    interrupt_id: Name | None = None
    """Minted by the client, so that a repeat stops no later turn. Derived from the header `Idempotency-Key`, or minted
    here, where it is left out."""
    turn: Annotated[str, Field(max_length=TURN_CHARS_MAX)] = ""
    """Such as `task:a/3`; by default every turn in work."""
    reason: Text = ""


IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=KEY_CHARS_MAX)]


@router.post("/{run_id}/continue", operation_id="continueRun", response_model=Receipt, openapi_extra=takes(Instruction))
async def continue_run(
    run_id: str, request: Request, here: Here, caller: Submitting, idempotency_key: IdempotencyKey = None
) -> Response:
    """Give a run that has ended, or was interrupted, a further instruction: one more turn in the same conversation.

    The same instruction while it is in work joins; another one is refused with TURN_BUSY, which names the turn.
    """
    body = await body_of(request, Instruction, Code.SUBMISSION_INVALID)
    name = body.instruction_id or _id_of(idempotency_key, caller.tenant, caller.principal.id, run_id)
    try:
        message = ContinueRun(
            tenant=caller.tenant,
            run_id=run_id,
            instruction_id=name,
            text=body.instruction,
            by=caller.principal,
            task=body.task,
            after=body.after,
            timeout_ms=body.timeout_ms,
        )
    except ValidationError as error:
        if invalid_id(error):
            return not_found(Code.RUN_NOT_FOUND, "run")
        raise invalid(error, Code.SUBMISSION_INVALID) from error
    return await answer(here, message, f"the same instruction_id, {name}")


@router.post(
    "/{run_id}/interrupt",
    operation_id="interruptRun",
    response_model=Receipt,
    openapi_extra=takes(Interruption, required=False),
)
async def interrupt(
    run_id: str, request: Request, here: Here, caller: Submitting, idempotency_key: IdempotencyKey = None
) -> Response:
    """Stop the turn in work. The run does not end: it waits for its next instruction."""
    body = await body_of(request, Interruption, Code.SUBMISSION_INVALID, may_be_absent=True)
    name = body.interrupt_id
    if name is None and idempotency_key is not None:
        name = _id_of(idempotency_key, caller.tenant, caller.principal.id, run_id)
    name = name or f"int-{secrets.token_hex(12)}"
    try:
        message = InterruptRun(
            tenant=caller.tenant,
            run_id=run_id,
            interrupt_id=name,
            by=caller.principal,
            turn=body.turn,
            reason=body.reason,
        )
    except ValidationError as error:
        if invalid_id(error):
            return not_found(Code.RUN_NOT_FOUND, "run")
        raise invalid(error, Code.SUBMISSION_INVALID) from error
    return await answer(here, message, f"the same interrupt_id, {name}")


def _id_of(key: str | None, tenant: str, person: str, run_id: str) -> str:
    if not key or not key.strip('" '):
        raise ContractError(
            Code.SUBMISSION_INVALID,
            "instruction_id is missing: mint one, or send the header Idempotency-Key, so that a repeat is the same",
            pointer="/instruction_id",
        )
    return derived_id("ins", tenant, person, run_id, key.strip('" '))
