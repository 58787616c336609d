"""Decides what an application does whose one tool waits 200 ms for the world, and says so: a line in a file a call."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from placet import App, ToolContext, scripted

CALLS = "BENCH_CALLS"
PAUSE_S = 0.2

app = App("pausing", version="1")


@app.tool(effect="idempotent")
async def pause(ctx: ToolContext) -> str:
    """Wait, as a tool does that asks something over a network."""
    began_ns = time.monotonic_ns()
    await asyncio.sleep(PAUSE_S)
    line = f"{ctx.operation_id} {began_ns} {time.monotonic_ns()} {os.getpid()}\n"
    file = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line.encode())  # one short appended write is whole or not there
    finally:
        os.close(file)
    return "done"


waiter = app.agent("waiter", model=scripted("Done."), tools=[pause])
app.team("waiters", agents=[waiter])


def calls(path: Path) -> list[tuple[str, int, int, int]]:
    """Every call so far: operation, begin and end in nanoseconds of CLOCK_MONOTONIC, process."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(name, int(began), int(ended), int(pid)) for name, began, ended, pid in lines]
