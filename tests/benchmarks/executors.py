"""Measures whether more tool executors do more: calls a second of a tool that waits 200 ms, as processes are doubled.

The services run as processes on private servers with fsync on. Each call is a run of its own; all are submitted at
once, so that the executors and nothing else are what it waits for. What is measured lies between the instants at which
the last process had begun and the first one had nothing left to do, as the tool itself has seen them.

python -m tests.benchmarks --only executors
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from placet.client import AsyncPlacetClient
from tests.benchmarks.pausing import CALLS, PAUSE_S, calls
from tests.live.postgres_server import PrivatePostgres
from tests.live.rabbitmq_server import PrivateRabbitMQ
from tests.live.redis_server import PrivateRedis
from tests.live.servers import Home
from tests.live.system import System, deploy, wait_until

PLACES = (1, 4)
"""Tools at a time in one process."""
PROCESSES = (1, 2)
ROUNDS_OF_CALLS = 15
"""So many calls for each place: an ideal system needs this times 200 ms, however many there are."""
PATIENCE_S = 120
OTHERS = ("dispatcher", "resume", "planner", "gateway")


def measure(rounds_of_calls: int = ROUNDS_OF_CALLS) -> dict[str, Any]:
    """Calls a second for each number of places and processes, and what doubling the processes brings.

    Raises MissingServerError where a server is not installed.
    """
    with Home() as home, tempfile.TemporaryDirectory(prefix="placet-bench-") as name:
        servers = (
            PrivatePostgres(home.place("postgres"), fsync=True),
            PrivateRabbitMQ(home.place("rabbitmq")),
            PrivateRedis(home.place("redis")),
        )
        try:
            for server in servers:
                server.start()
            postgres, rabbitmq, redis = servers
            settings = {
                "DATABASE_URL": postgres.url,
                "AMQP_URL": rabbitmq.url,
                "REDIS_URL": redis.url,
                "ENVIRONMENT": "bench",
                "LOG_LEVEL": "warning",
            }
            deploy(settings, Path(name), forked=False)
            return _measured(Path(name), settings, rounds_of_calls)
        finally:
            for server in servers:
                server.close()


def _measured(folder: Path, settings: dict[str, str], rounds_of_calls: int) -> dict[str, Any]:
    trace = folder / "calls"
    system = System(folder, settings, {}, {CALLS: str(trace)}, app="tests.benchmarks.pausing:app")
    try:
        system.start(*OTHERS)
        found = [
            _stretch(system, trace, places, processes, rounds_of_calls) for places in PLACES for processes in PROCESSES
        ]
    finally:
        system.close()
    ratios = {
        str(places): round(_rate(found, places, PROCESSES[-1]) / _rate(found, places, PROCESSES[0]), 2)
        for places in PLACES
    }
    everything = [name for name, *_ in calls(trace)]
    return {
        "pause_ms": round(PAUSE_S * 1_000),
        "stretches": found,
        "doubling_brings": ratios,
        "doubling_brings_median": statistics.median(ratios.values()),
        "calls": len(everything),
        "doubled_calls": sum(times > 1 for times in Counter(everything).values()),
    }


def _rate(found: list[dict[str, Any]], places: int, processes: int) -> float:
    [rate] = [each["calls_per_s"] for each in found if (each["places"], each["processes"]) == (places, processes)]
    return float(rate)


def _stretch(system: System, trace: Path, places: int, processes: int, rounds_of_calls: int) -> dict[str, Any]:
    """So many processes with so many places: what they do of as many calls as keep them busy for the same time."""
    executors = system.start(*["tool-executor"] * processes, TOOLS_MAX=str(places))
    before, count = len(calls(trace)), places * processes * rounds_of_calls
    asyncio.run(_submit(system, f"p{places}x{processes}", count))
    wait_until(lambda: len(calls(trace)) >= before + count, PATIENCE_S, lambda: f"{len(calls(trace)) - before} calls")
    for executor in executors:
        executor.end()
    mine = calls(trace)[before:]
    rate = _steady_rate(mine)
    return {
        "places": places,
        "processes": processes,
        "calls": len(mine),
        "calls_per_s": round(rate, 1),
        "of_the_ideal": round(rate / (places * processes / PAUSE_S), 3),
        "calls_by_process": sorted(Counter(pid for *_, pid in mine).values()),
    }


def _steady_rate(mine: list[tuple[str, int, int, int]]) -> float:
    """Calls a second while all processes were at work."""
    pids = {pid for *_, pid in mine}
    from_ns = max(min(began for _, began, _, pid in mine if pid == each) for each in pids)
    until_ns = min(max(ended for _, _, ended, pid in mine if pid == each) for each in pids)
    return sum(from_ns < ended <= until_ns for _, _, ended, _ in mine) / (until_ns - from_ns) * 1e9


async def _submit(system: System, prefix: str, count: int) -> None:
    task = {"id": "only", "title": "Wait", "call": {"tool": "pause", "input": {}}}
    async with AsyncPlacetClient(system.connection(None)) as client:
        await asyncio.gather(
            *(
                client.submit_run("waiters", run_id=f"{prefix}-{number}", mode="tasks", tasks=[task])
                for number in range(count)
            )
        )


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Lines of the table for people: figure, value, of what."""
    told = []
    for places, ratio in figures["doubling_brings"].items():
        one, two = (each["calls_per_s"] for each in figures["stretches"] if each["places"] == int(places))
        what = f"× calls/s of a tool that waits {figures['pause_ms']} ms, {places} at a time a process: {one} → {two}"
        told.append(("2 tool executors for 1", f"{ratio}", what))
    told.append(("calls that ran twice", f"{figures['doubled_calls']}", f"{figures['calls']} calls"))
    return told
