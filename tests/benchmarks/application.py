"""Decides what the job's application is: a scripted agent that proposes one consequential call of one tool.

The tool appends a line to the file that BENCH_EFFECTS names: a few microseconds, the same for every system that is
measured by this job, and an exact count of how often it ran. Its time is CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from placet import App, ToolContext, scripted
from placet.script import call

EFFECTS = "BENCH_EFFECTS"

app = App("bench", version="1")


@cache
def _effects() -> int:
    return os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


@app.tool(effect="idempotent", consequential=True)
async def refund(ctx: ToolContext, customer: str, amount: int) -> str:
    """Pay back."""
    started_ns = time.monotonic_ns()
    os.write(_effects(), f"{ctx.run_id} {started_ns}\n".encode())  # one short appended write is whole or not there
    return "paid"


clerk = app.agent(
    "clerk",
    model=scripted(call("refund", customer="c-1", amount=40_000), "It is done."),
    instructions="Pay.",
    tools=[refund],
)
app.team("desk", agents=[clerk])


def started(path: Path) -> dict[str, list[int]]:
    """When the tool began, in nanoseconds, each time it ran, by run."""
    found: dict[str, list[int]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            run_id, at_ns = line.split()
            found.setdefault(run_id, []).append(int(at_ns))
    return found
