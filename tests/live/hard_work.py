"""Decides what the application of the tests of others' failures does: tools that stand still, and tools that kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from placet import App, Suspend, ToolContext, scripted
from placet.gates import CallSubject
from placet.script import call, plan

FOLDER = "HARD_WORK_FOLDER"
"""Names the folder in which each call leaves a line, before it does anything."""
BLOCK_S = 4.5
"""Longer than a broker of these tests waits for a heartbeat or for an acknowledgement."""

app = App("hard-work", version="1")


def calls(folder: Path, run_id: str) -> list[str]:
    """The tools that were called for a run, in order, one line each."""
    path = folder / run_id
    return path.read_text().splitlines() if path.exists() else []


def _note(ctx: ToolContext, tool: str) -> None:
    with (Path(os.environ[FOLDER]) / ctx.run_id).open("a", encoding="utf-8") as file:
        file.write(f"{tool}\n")
        file.flush()
        os.fsync(file.fileno())


@app.tool(effect="non_retriable", consequential=True, timeout_s=4 * BLOCK_S)
def block_a_thread(ctx: ToolContext) -> str:
    """Stand still in a thread of its own."""
    _note(ctx, "block_a_thread")
    time.sleep(BLOCK_S)
    return "done"


@app.tool(effect="non_retriable", consequential=True, timeout_s=4 * BLOCK_S)
async def block_the_loop(ctx: ToolContext) -> str:
    """Stand still where everything else of the process runs: what an author must not do, and does."""
    _note(ctx, "block_the_loop")
    time.sleep(BLOCK_S)  # noqa: ASYNC251  the mistake that the test is about
    return "done"


@app.tool(effect="non_retriable", retry=3, timeout_s=1)
def kill(ctx: ToolContext) -> str:
    """End the process that runs it, each time, as running out of memory does."""
    _note(ctx, "kill")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


@app.tool(effect="idempotent", retry=3, timeout_s=1)
def help_out(ctx: ToolContext) -> str:
    """Do something quick and harmless."""
    _note(ctx, "help_out")
    return "done"


@app.gate("tool_call", tools=[block_a_thread, block_the_loop])
def a_person_is_asked(subject: CallSubject) -> Suspend:
    """So that there is a wait before the work."""
    return Suspend(f"{subject.tool} would stand still")


for tool in (block_a_thread, block_the_loop, kill, help_out):
    _name = tool.spec.name
    _agent = f"{_name}-agent"
    _planned = plan([{"id": "work", "title": "Work hard", "assignee": _agent}])
    _model = scripted(_planned, call(_name), "Done.", answering=["Done."])
    app.team(_name, agents=[app.agent(_agent, model=_model, instructions="Do it.", tools=[tool])])
