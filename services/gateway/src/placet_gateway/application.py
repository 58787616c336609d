"""Decides what else the door shows: the application, and whether the process lives and can serve."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from placet.errors import Code, ContractError, RetryableError
from placet.views import AgentView, AppView, TeamView, ToolView
from placet_gateway.context import Described, Here, Reading

router = APIRouter(tags=["system"])


@router.get("/v1/app", operation_id="getApp")
async def show(here: Here, caller: Reading) -> AppView:
    """Teams, agents and tools: what can be submitted here."""
    del caller  # Whoever may read may know what can be submitted.
    if here.application is None:
        raise ContractError(Code.NOT_FOUND, "this gateway does not know the application")
    return described(here.application)


def described(app: Described) -> AppView:
    """An application as it is shown; no instructions, no models, no code."""
    specs = [tool.spec for tool in app.tools.values()]
    return AppView(
        name=app.name,
        version=app.version,
        policy_version=app.policy_version,
        teams=[
            TeamView(name=team.name, agents=[agent.name for agent in team.agents], planner=team.planner)
            for team in app.teams.values()
        ],
        agents=[AgentView(name=name, tools=list(agent.tools)) for name, agent in app.agents.items()],
        tools=[
            ToolView(name=spec.name, version=spec.version, effect=spec.effect.value, consequential=spec.consequential)
            for spec in specs
        ],
    )


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
    except RetryableError as error:
        failing["store"] = error.message
    unreadable = 0 if here.health is None else len(here.health.unreadable)
    return _told(not failing and (here.health is None or here.health.ready), failing, unreadable)


def _told(well: bool, failing: dict[str, str], unreadable: int = 0) -> JSONResponse:
    """`unreadable`: how many states of runs cannot be read; which, the log says, for anybody may ask this."""
    body: dict[str, Any] = {"status": "ok" if well else "failing"}
    body |= {"failing": failing} if failing else {}
    body |= {"unreadable": unreadable} if unreadable else {}
    return JSONResponse(body, 200 if well else 503)
