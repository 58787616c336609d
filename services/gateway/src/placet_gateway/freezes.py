"""Decides what can be asked of the emergency stop over HTTP: what is frozen, freeze, thaw.

The machines take it in as any other message; whoever may start runs may stop them.
"""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from placet.errors import Code
from placet.freezing import ALL, FREEZE, FreezeOperations, freeze_run
from placet.ids import Address
from placet.machine import Receipt
from placet.messages import OPERATION
from placet.operation_views import FreezeView, FrozenView
from placet.runtime.reading import Reader
from placet.values import Name, Text
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Here, Reading, Submitting, answer

router = APIRouter(prefix="/v1/freeze", tags=["operations"])


class FreezeOrder(BaseModel):
    """What to freeze, and why. Who wants it comes from the token, never from here."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tool: Name | None = None
    """Only this tool; left out: all of them."""
    reason: Text


@router.get("", operation_id="getFreeze")
async def show(here: Here, caller: Reading) -> FreezeView:
    """Which operations are not started now, by whom it is, why and since when."""
    return FreezeView(items=await frozen_of(here.reader, caller.tenant), as_of_ms=here.now_ms())


async def frozen_of(reader: Reader, tenant: str) -> list[FrozenView]:
    """What is frozen of a tenant's."""
    stored = await reader.state(tenant, Address(freeze_run(tenant), OPERATION, FREEZE))
    switches = (stored["body"].get("frozen") or ()) if stored is not None else ()
    return [
        FrozenView(
            tool=None if switch["tool"] == ALL else switch["tool"],
            by=switch["by"],
            reason=switch["reason"],
            since_ms=switch["since_ms"],
        )
        for switch in switches
    ]


@router.post("", operation_id="freeze", response_model=Receipt, openapi_extra=takes(FreezeOrder))
async def freeze(request: Request, here: Here, caller: Submitting) -> Response:
    """Start nothing more, of all tools or of one. What has started goes on; what is approved stays so, untried."""
    body = await body_of(request, FreezeOrder, Code.SUBMISSION_INVALID)
    message = FreezeOperations(
        tenant=caller.tenant,
        run_id=freeze_run(caller.tenant),
        word="freeze",
        tool=body.tool,
        by=caller.principal,
        reason=body.reason,
        order_id=f"ord_{secrets.token_hex(8)}",
    )
    return await answer(here, message, "the same request; freezing twice is harmless")


@router.delete("", operation_id="thaw", response_model=Receipt)
async def thaw(here: Here, caller: Submitting, tool: Annotated[Name | None, Query()] = None) -> Response:
    """Lift the freeze of all tools, or the one of this tool. What was held back starts, each once."""
    message = FreezeOperations(
        tenant=caller.tenant,
        run_id=freeze_run(caller.tenant),
        word="thaw",
        tool=tool,
        by=caller.principal,
        order_id=f"ord_{secrets.token_hex(8)}",
    )
    return await answer(here, message, "the same request; thawing twice is harmless")
