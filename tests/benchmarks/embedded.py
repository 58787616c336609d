"""Measures the embedded system on the job the field is compared by, and on decisions alone.

The job: a run with a scripted model proposes one consequential tool call, suspends durably, an approval arrives, the
tool runs once, the run completes durably; 64 in flight; fsync on.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from placet import App, ToolContext, scripted
from placet.ids import Address
from placet.messages import RUN, DecideApproval, SubmitRun
from placet.plans import PlannedTask
from placet.runtime.scripts import ScriptedModels
from placet.script import call
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import Embedded

IN_FLIGHT = 64
TENANT = "bench"
AUTHOR = Principal(kind=PrincipalKind.HUMAN, id="author")
REVIEWER = Principal(kind=PrincipalKind.HUMAN, id="reviewer")

EFFECTS: Counter[str] = Counter()
STARTED_NS: dict[str, int] = {}

app = App("bench", version="1")


@app.tool(effect="idempotent", consequential=True)
async def refund(ctx: ToolContext, customer: str, amount: int) -> str:
    """Pay back."""
    STARTED_NS[ctx.run_id] = time.monotonic_ns()
    EFFECTS[ctx.run_id] += 1
    return "paid"


clerk = app.agent(
    "clerk",
    model=scripted(call("refund", customer="c-1", amount=40_000), "It is done."),
    instructions="Pay.",
    tools=[refund],
)
app.team("desk", agents=[clerk])


class Client:
    """The world outside: starts runs, decides, and waits for what it has asked for."""

    def __init__(self, embedded: Embedded) -> None:
        self._embedded = embedded
        self.decided_ns: dict[str, int] = {}

    async def start(self, run_id: str) -> str:
        """Start a run and return the request it is suspended on."""
        task = PlannedTask(id="pay", title="Pay the customer back", assignee="clerk")
        message = SubmitRun(tenant=TENANT, run_id=run_id, team="desk", mode="tasks", tasks=(task,), initiator=AUTHOR)
        suspended = asyncio.ensure_future(self._status(run_id, "suspended"))
        answer = await self._embedded.door.ask(message, message_id=f"submit-{run_id}", timeout_ms=60_000)
        if answer is None or json.loads(answer)["answer"] != "accepted":
            raise RuntimeError(f"{run_id} was not accepted: {answer}")
        await suspended
        rows = await self._embedded.store.rows(TENANT, "approval_request", run_id)
        return str(rows[0]["request_id"])

    async def approve(self, run_id: str, request_id: str, request_hash: str) -> None:
        """Approve and return when the decision is durable."""
        message = DecideApproval(
            tenant=TENANT,
            run_id=run_id,
            request_id=request_id,
            decision_id=f"d-{run_id}",
            request_hash=request_hash,
            decision="approve",
            reviewer=REVIEWER,
        )
        self.decided_ns[run_id] = time.monotonic_ns()
        answer = await self._embedded.door.ask(message, message_id=f"decide-{run_id}", timeout_ms=60_000)
        if answer is None or json.loads(answer)["answer"] != "accepted":
            raise RuntimeError(f"the approval of {run_id} was not accepted: {answer}")

    async def whole(self, run_id: str) -> None:
        """The whole job."""
        request_id = await self.start(run_id)
        rows = await self._embedded.store.rows(TENANT, "approval_request", run_id)
        done = asyncio.ensure_future(self._status(run_id, "succeeded"))
        await self.approve(run_id, request_id, rows[0]["request_hash"])
        await done

    async def _status(self, run_id: str, status: str) -> None:
        changes = self._embedded.door.changes(run_id)
        try:
            async for _ in changes:
                state = await self._embedded.store.state(TENANT, Address(run_id, RUN, ""))
                if state is not None and state["status"] == status:
                    return
        finally:
            await changes.aclose()  # type: ignore[attr-defined]


async def lanes(count: int, names: list[str], one: Any) -> float:
    """Run `one` for every name, `count` at a time; seconds it took."""
    waiting = iter(names)

    async def lane() -> None:
        for name in waiting:
            await one(name)

    began = time.monotonic()
    await asyncio.gather(*(lane() for _ in range(count)))
    return time.monotonic() - began


async def measure(runs: int, rounds: int) -> dict[str, Any]:
    """Rates and latencies of the embedded system."""
    with tempfile.TemporaryDirectory() as folder:
        embedded = await Embedded.start(app, Path(folder), models=ScriptedModels(app))
        try:
            client = Client(embedded)
            await lanes(IN_FLIGHT, [f"warm-{n}" for n in range(IN_FLIGHT)], client.whole)
            rates, cpus = [], []
            for number in range(rounds):
                cpu = time.process_time()
                took = await lanes(IN_FLIGHT, [f"run-{number}-{n}" for n in range(runs)], client.whole)
                rates.append(runs / took)
                cpus.append((time.process_time() - cpu) / runs * 1_000)
            decisions = await _decisions(embedded, client, runs)
            alone = [f"alone-{n}" for n in range(100)]
            await lanes(1, alone, client.whole)
            latencies = sorted((STARTED_NS[name] - client.decided_ns[name]) / 1e6 for name in alone)
        finally:
            await embedded.stop()
    return {
        "in_flight": IN_FLIGHT,
        "runs": runs * rounds,
        "runs_per_s": round(statistics.median(rates)),
        "runs_per_s_min_max": [round(min(rates)), round(max(rates))],
        "cpu_ms_per_run": round(statistics.median(cpus), 2),
        "decisions_per_s": round(decisions),
        "approve_to_start_ms_p50": round(latencies[50], 1),
        "approve_to_start_ms_p99": round(latencies[98], 1),
        "doubled_effects": sum(1 for count in EFFECTS.values() if count != 1),
    }


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Lines of the table for people: figure, value, of what."""
    low, high = figures["runs_per_s_min_max"]
    latency = f"{figures['approve_to_start_ms_p50']} / {figures['approve_to_start_ms_p99']}"
    return [
        ("runs/s", f"{figures['runs_per_s']}", f"median of the rounds, {low}–{high}"),
        ("CPU ms/run", f"{figures['cpu_ms_per_run']}", "the whole process, with the client in it"),
        ("decisions/s", f"{figures['decisions_per_s']}", "until the receipt is there"),
        ("approve → tool started, ms", latency, "p50 / p99, one run in flight"),
        ("doubled or missing effects", f"{figures['doubled_effects']}", f"{figures['runs']} runs and more"),
    ]


async def _decisions(embedded: Embedded, client: Client, count: int) -> float:
    """Decisions alone: all runs suspended first, then all approved, until each receipt is there."""
    waiting: dict[str, tuple[str, str]] = {}

    async def suspend(run_id: str) -> None:
        request_id = await client.start(run_id)
        rows = await embedded.store.rows(TENANT, "approval_request", run_id)
        waiting[run_id] = (request_id, rows[0]["request_hash"])

    names = [f"decide-{n}" for n in range(count)]
    await lanes(IN_FLIGHT, names, suspend)
    return count / await lanes(IN_FLIGHT, names, lambda run_id: client.approve(run_id, *waiting[run_id]))
