"""Proves that one process for everything serves every pool that its tools name."""

from __future__ import annotations

import asyncio
from pathlib import Path

from placet import App, ToolContext, scripted
from placet.ids import Address
from placet.messages import RUN, SubmitRun
from placet.plans import DirectCall, PlannedTask
from placet.runtime.scripts import ScriptedModels
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import Embedded

PATIENCE_S = 20


async def test_a_tool_of_a_pool_runs_where_there_are_no_pools(tmp_path: Path) -> None:
    app = App("studio", version="1")
    ran: list[str] = []

    @app.tool(effect="idempotent", pool="gpu")
    async def render(ctx: ToolContext, scene: str) -> str:
        """Render."""
        ran.append(scene)
        return scene

    crew = app.agent("crew", model=scripted("Done."), tools=[render])
    app.team("studio", agents=[crew])
    embedded = await Embedded.start(app, tmp_path, models=ScriptedModels(app))
    try:
        task = PlannedTask(id="only", title="Render", call=DirectCall(tool="render", input={"scene": "one"}))
        submission = SubmitRun(
            tenant="default",
            run_id="r1",
            team="studio",
            mode="tasks",
            tasks=(task,),
            initiator=Principal(kind=PrincipalKind.HUMAN, id="alice"),
        )
        changes = embedded.door.changes("r1")
        first = asyncio.ensure_future(anext(changes))  # from now on no hint is missed
        await embedded.door.ask(submission, message_id="m1", timeout_ms=5_000)
        async with asyncio.timeout(PATIENCE_S):
            await first
            while (await embedded.store.state("default", Address("r1", RUN, "")) or {}).get("status") != "succeeded":
                await anext(changes)
    finally:
        await embedded.stop()
    assert ran == ["one"]
