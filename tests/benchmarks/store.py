"""Decides how fast a store is: commits a second with many callers at once, and what one load costs.

`python -m tests.benchmarks.store` prints one line a measurement. A unit is a step of a run as the engine writes it: two
states, two journal entries, one audit leaf, one message for later, one consumed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from placet.adapters.clocks import SystemClock
from placet.adapters.memory import MemoryStore
from placet.adapters.sql.sqlite import SqliteStore
from placet.ids import Address
from placet.instants import Instant
from placet.messages import RUN, THREAD
from placet.rows import audit_leaf
from placet.runtime.ports import Fate, JournalEntry, OutboxRow, StateWrite, Store, Unit

CALLERS = 64
STATE = b'{"status":"running","text":"' + b"s" * 1_500 + b'"}'
MESSAGE = b'{"v":1,"message":{"tenant":"t","type":"turn.taken","text":"' + b"m" * 900 + b'"}}'
FACTS = '{"rows":[],"answers":["' + "f" * 200 + '"],"incarnation":1}'


def step(run_id: str, version: int) -> Unit:
    """The step to `version` of a run and its thread."""
    run, thread = Address(run_id, RUN, ""), Address(run_id, THREAD, "task:one")
    leaf = audit_leaf(
        tenant="t",
        run_id=run_id,
        seq=version,
        kind="turn.taken",
        subject="task:one",
        detail={"note": "d" * 120},
        at_ms=1,
        previous="0" * 64,
    )
    return Unit(
        states=[StateWrite(at, "t", version - 1, version, "running", STATE) for at in (run, thread)],
        journal=[JournalEntry(at, version, f"msg_{version}", MESSAGE, FACTS, Instant(1)) for at in (run, thread)],
        rows=[leaf],
        outbox=[OutboxRow(f"msg_{run_id}_{version}", "planner", run_id, "turn.lease_ended", 2**50, MESSAGE)],
        consumed=[f"msg_{run_id}_{version - 1}"],
    )


async def commits(store: Store, prefix: str, *, batch: int, seconds_s: float) -> tuple[int, float, float]:
    """Units committed by `CALLERS` callers, each with `batch` units a call; the seconds it took, and of CPU."""
    until = time.perf_counter() + seconds_s
    done = 0

    async def caller(number: int) -> None:
        nonlocal done
        version = 0
        runs = [f"{prefix}-{number:02}-{at:02}" for at in range(batch)]
        while time.perf_counter() < until:
            version += 1
            results = await store.commit([step(run_id, version) for run_id in runs])
            assert all(result.fate is Fate.COMMITTED for result in results)
            done += batch
            if version == 20:  # go on to other runs: a run has tens of steps, not thousands
                version, runs = 0, [f"{run_id}+" for run_id in runs]

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(number) for number in range(CALLERS if batch == 1 else 1)))
    return done, time.perf_counter() - began, time.process_time() - cpu


async def burn(stop: asyncio.Event, turn_s: float) -> None:
    """Keep the loop busy in turns of `turn_s`, as model calls, HTTP and tools do under load."""
    while not stop.is_set():
        until = time.perf_counter() + turn_s
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


@asynccontextmanager
async def busy(turn_ms: float) -> AsyncIterator[None]:
    """A loop that has other things to do, or none (0)."""
    stop = asyncio.Event()
    task = asyncio.create_task(burn(stop, turn_ms / 1_000)) if turn_ms else None
    try:
        yield
    finally:
        stop.set()
        if task is not None:
            await task


async def measure(name: str, store: Store, seconds_s: float, busy_turns_ms: Sequence[float]) -> None:
    """Print the rates of one store."""
    for turn_ms in busy_turns_ms:
        for batch in (1, 64):
            async with busy(turn_ms):
                done, took_s, cpu_s = await commits(store, f"{name}-{batch}-{turn_ms}", batch=batch, seconds_s=seconds_s)
            callers = f"{CALLERS} callers of 1" if batch == 1 else f"1 caller of {batch}"
            loop = f", loop busy in turns of {turn_ms} ms" if turn_ms else ""
            print(f"{name:8} {callers:15} {done / took_s:8,.0f} units/s  {cpu_s / done * 1e6:6.1f} µs CPU a unit{loop}")
    await loads(name, store)


async def loads(name: str, store: Store) -> None:
    """Print what it costs to load 64 pairs of states."""
    addresses = [
        Address(f"{name}-64-0-00-{at:02}", machine, key)
        for at in range(64)
        for machine, key in ((RUN, ""), (THREAD, "task:one"))
    ]
    rounds, began = 100, time.perf_counter()
    for _ in range(rounds):
        await store.load(addresses, [])
    print(f"{name:8} load of {len(addresses)} states: {(time.perf_counter() - began) / rounds * 1e3:.2f} ms")


async def opening(path: Path) -> None:
    """Print how long it takes to open a database that is there."""
    for _ in range(3):
        began = time.perf_counter()
        store = await SqliteStore.open(path, clock=SystemClock())
        took_s = time.perf_counter() - began
        await store.close()
        size = path.stat().st_size / 1e6  # noqa: ASYNC240  a benchmark
        print(f"sqlite   open of a database of {size:,.0f} MB: {took_s * 1e3:.1f} ms")


async def main(directory: Path, seconds_s: float, busy_turns_ms: Sequence[float]) -> None:
    """Print everything."""
    await measure("memory", MemoryStore(SystemClock()), seconds_s, busy_turns_ms[:1])
    path = directory / "bench.db"
    store = await SqliteStore.open(path, clock=SystemClock())
    print(f"sqlite   {store.describe()['locking_reason']}")
    try:
        await measure("sqlite", store, seconds_s, busy_turns_ms)
    finally:
        await store.close()
    await opening(path)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Measure the stores.")
    arguments.add_argument("--seconds", type=float, default=2.0)
    arguments.add_argument("--busy", type=float, nargs="*", default=[0, 0.3], help="turns of other work, in ms")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(Path(made), chosen.seconds, chosen.busy))
