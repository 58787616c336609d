"""Decides what else the door shows: the application, and whether the process lives and can serve."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from placet.describing import described
from placet.errors import Code, ContractError, PlacetError
from placet.views import AppView
from placet_gateway.context import Here, Reading

router = APIRouter(tags=["system"])

UNKNOWN = (
    "this gateway runs no code of an application, so it cannot say what there is; runs are started and read all "
    "the same. To have it told: write what `placet describe APP` says to a file, and set PLACET_APP_VIEW_FILE to it"
)


@router.get("/v1/app", operation_id="getApp")
async def show(here: Here, caller: Reading) -> AppView:
    """Teams, agents and tools: what can be submitted here."""
    del caller  # Whoever may read may know what can be submitted.
    if here.application is None:
        raise ContractError(Code.APP_UNKNOWN, UNKNOWN)
    return here.application if isinstance(here.application, AppView) else described(here.application)


@router.get("/livez", operation_id="isLive", include_in_schema=False)
async def live(here: Here) -> JSONResponse:
    """503 when the process should be restarted."""
    return _told(here.health is None or here.health.live, {})


@router.get("/readyz", operation_id="isReady", include_in_schema=False)
async def ready(here: Here) -> JSONResponse:
    """503 while the store cannot be read or a loop of the process is failing."""
    failing = {} if here.health is None else dict(here.health.failing)
    try:
        await here.reader.dead_letters(here.tenant, run_id=None, limit=1)
    except PlacetError as error:  # whatever it is: a probe is told so, and never that it hit a defect
        failing["store"] = f"{error.code.value}: {error.message}"
    unreadable = 0 if here.health is None else len(here.health.unreadable)
    return _told(not failing and (here.health is None or here.health.ready), failing, unreadable)


def _told(well: bool, failing: dict[str, str], unreadable: int = 0) -> JSONResponse:
    """`unreadable`: how many states of runs cannot be read; which, the log says, for anybody may ask this."""
    body: dict[str, Any] = {"status": "ok" if well else "failing"}
    body |= {"failing": failing} if failing else {}
    body |= {"unreadable": unreadable} if unreadable else {}
    return JSONResponse(body, 200 if well else 503)
