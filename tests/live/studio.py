"""Decides what an application does whose tools leave a trace: in which process each was called, and what it was told.

STUDIO names the folder of the traces. Each tool leaves `<name>.started`, with the id of its process and the pool that
this serves, and `<name>.told`, with the instant at which it was told to stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from placet import App, ToolContext, scripted

STUDIO = "PLACET_TEST_STUDIO"

app = App("studio", version="1")


def leave(name: str, what: str, **more: object) -> None:
    """A trace, whole or not at all, and never a second one of the same kind."""
    path = Path(os.environ[STUDIO]) / f"{name}.{what}"
    draft = path.with_suffix(f".{os.getpid()}.new")
    known = {"pid": os.getpid(), "pool": os.environ.get("PLACET_TOOL_POOL", ""), "at_s": time.time(), **more}
    draft.write_text(json.dumps(known))
    os.link(draft, path)
    draft.unlink()


@app.tool(effect="idempotent", pool="gpu")
async def render(ctx: ToolContext, name: str) -> str:
    """Render, in a pool of its own."""
    leave(name, "started")
    return name


@app.tool(effect="non_retriable", consequential=True, pool="gpu")
async def publish(ctx: ToolContext, name: str) -> str:
    """Publish what was rendered, once a person agrees."""
    leave(name, "started")
    return name


@app.tool(effect="idempotent")
async def mix(ctx: ToolContext, name: str) -> str:
    """Mix, anywhere in the common pool."""
    leave(name, "started")
    return name


@app.tool(effect="idempotent", timeout_s=120)
async def wait(ctx: ToolContext, name: str) -> str:
    """Wait, as an asynchronous tool does."""
    leave(name, "started")
    try:
        await asyncio.Event().wait()
    finally:
        leave(name, "told", cancelled=ctx.cancelled)
    return name


@app.tool(effect="idempotent", timeout_s=120)
def watch(ctx: ToolContext, name: str) -> str:
    """Wait, as a plain function does: it looks whether it is to stop."""
    leave(name, "started")
    while not ctx.cancelled:
        time.sleep(0.01)
    leave(name, "told", cancelled=ctx.cancelled)
    return name


@app.tool(effect="idempotent", timeout_s=120)
async def spawn(ctx: ToolContext, name: str) -> str:
    """Let another program do it, and end that program when it is not wanted any more."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
    leave(name, "started", child=child.pid)
    try:
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        leave(name, "told", cancelled=ctx.cancelled)
    return name


crew = app.agent("crew", model=scripted("Done."), tools=[render, publish, mix, wait, watch, spawn])
thinker = app.agent("thinker", model="openai-chat:slow-1", tools=[mix])
app.team("studio", agents=[crew])
app.team("office", agents=[thinker])
