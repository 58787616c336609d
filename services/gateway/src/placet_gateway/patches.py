"""Decides how a change of a plan under way is proposed over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placet import limits
from placet.errors import Code
from placet.machine import Receipt
from placet.messages import PatchPlan, invalid
from placet.plans import PlannedTask
from placet.values import Name, Text
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Here, Submitting, answer, invalid_id, not_found

router = APIRouter(prefix="/v1/runs", tags=["runs"])

Tasks = Annotated[tuple[PlannedTask, ...], Field(max_length=limits.TASKS_MAX)]


class PlanPatch(BaseModel):
    """A change of the plan. Who proposes it comes from the token: only who started the run may."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    patch_id: Name
    """Minted by the client: the same again is the same patch."""
    base: Annotated[str, Field(max_length=64)] = ""
    """`plan_digest` of the run as the caller has seen it; another plan is refused. Empty: whatever the plan is."""
    add: Tasks = ()
    change: Tasks = ()
    """Tasks that have not begun, as they shall be, in whole."""
    remove: Annotated[tuple[Name, ...], Field(max_length=limits.TASKS_MAX)] = ()
    """Ids of tasks that have not begun."""
    reason: Text = ""


@router.post("/{run_id}/plan", operation_id="patchPlan", response_model=Receipt, openapi_extra=takes(PlanPatch))
async def patch(run_id: str, request: Request, here: Here, caller: Submitting) -> Response:
    """Propose a change of the plan under way: tasks to add, and tasks that have not begun to change or to remove.

    It is judged by the gates first. `outcome` is `applied`; or `request_id` names the question that is put to people.
    """
    body = await body_of(request, PlanPatch, Code.PLAN_INVALID)
    try:
        message = PatchPlan(
            tenant=caller.tenant,
            run_id=run_id,
            patch_id=body.patch_id,
            by=caller.principal,
            base=body.base,
            add=body.add,
            change=body.change,
            remove=body.remove,
            reason=body.reason,
        )
    except ValidationError as error:
        if invalid_id(error):
            return not_found(Code.RUN_NOT_FOUND, "run")
        raise invalid(error, Code.PLAN_INVALID) from error
    return await answer(here, message, f"the same patch_id, {body.patch_id}")
