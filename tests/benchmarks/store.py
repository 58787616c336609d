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
from dataclasses import replace
from pathlib import Path

from placet.adapters.clocks import SystemClock
from placet.adapters.memory import MemoryStore
from placet.adapters.sql.postgres import PostgresStore
from placet.adapters.sql.sqlite import SqliteStore
from placet.ids import Address
from placet.instants import Instant
from placet.messages import RUN, THREAD
from placet.rows import audit_leaf
from placet.runtime.ports import Fate, JournalEntry, OutboxRow, StateWrite, Store, Unit
from tests.live.kinds import MissingServerError
from tests.live.postgres_server import PrivatePostgres
from tests.live.postgres_stores import migrated
from tests.live.servers import Home

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


Plan = list[list[list[Unit]]]
"""What each caller commits, call by call."""


def plan(prefix: str, *, callers: int, batch: int, calls: int) -> Plan:
    """Steps of `batch` runs for each caller; a run has 20 steps, then comes another one."""
    made: Plan = []
    for caller in range(callers):
        runs = [[f"{prefix}-{caller:02}-{call // 20:03}-{at:02}" for at in range(batch)] for call in range(calls)]
        made.append([[step(run_id, call % 20 + 1) for run_id in runs[call]] for call in range(calls)])
    return made


async def commits(store: Store, planned: Plan) -> tuple[int, float, float]:
    """Commit everything; how many units that were, the seconds it took, and of CPU."""

    async def caller(calls: list[list[Unit]]) -> None:
        for units in calls:
            results = await store.commit(units)
            assert all(result.fate is Fate.COMMITTED for result in results)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(caller, planned))
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return sum(len(units) for calls in planned for units in calls), took_s, cpu_s


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


async def measure(name: str, store: Store, calls: int, busy_turns_ms: Sequence[float]) -> None:
    """Print the rates of one store."""
    for turn_ms in busy_turns_ms:
        for callers, batch in ((1, 1), (CALLERS, 1), (1, 64)):
            planned = plan(f"{name}-{callers}-{batch}-{turn_ms}", callers=callers, batch=batch, calls=calls)
            async with busy(turn_ms):
                done, took_s, cpu_s = await commits(store, planned)
            who = f"{callers} x {batch}"
            loop = f", loop busy in turns of {turn_ms} ms" if turn_ms else ""
            print(f"{name:8} {who:7} {done / took_s:8,.0f} units/s  {cpu_s / done * 1e6:6.1f} µs CPU a unit{loop}")
    await loads(name, store)


async def loads(name: str, store: Store) -> None:
    """Print what it costs to load 64 pairs of states."""
    addresses = [
        Address(f"{name}-1-64-0-00-000-{at:02}", machine, key)
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


async def relaying(name: str, store: Store) -> None:
    """Print what it costs to claim and discard 512 rows, among as many that wait for a later time."""
    rows = [OutboxRow(f"{name}-{at}", "planner", "r", "turn.taken", at % 2 * 2**50, MESSAGE) for at in range(1_024)]
    rounds, took_s = 20, 0.0
    for round_ in range(rounds):
        await store.commit([Unit(outbox=[replace(row, id=f"{row.id}-{round_}") for row in rows])])
        began = time.perf_counter()
        claimed = await store.claim_due(512, 30_000)
        await store.next_due_ms()
        await store.discard([row.id for row in claimed])
        took_s += time.perf_counter() - began
        assert len(claimed) == 512
    print(f"{name:8} claim and discard of 512 rows: {took_s / rounds * 1e3:.2f} ms")


async def on_postgres(calls: int) -> None:
    """Print the figures of PostgreSQL: a server of its own, every commit on the disk."""
    with Home() as home:
        try:
            server = PrivatePostgres(home.place("postgres"), fsync=True)
        except MissingServerError as error:
            print(f"postgres is not measured: {error}")
            return
        await asyncio.to_thread(server.start)
        try:
            async with migrated(server.url) as url:
                store = await PostgresStore.open(url)
                told = store.describe()
                print(f"postgres {told['server']}, fsync {told['fsync']}, {told['synchronous_commit']}")
                await measure("postgres", store, calls, [0])
                await relaying("postgres", store)
                await store.close()
        finally:
            await asyncio.to_thread(server.close)


async def main(directory: Path, calls: int, busy_turns_ms: Sequence[float]) -> None:
    """Print everything."""
    await measure("memory", MemoryStore(SystemClock()), calls, busy_turns_ms[:1])
    path = directory / "bench.db"
    store = await SqliteStore.open(path, clock=SystemClock())
    print(f"sqlite   {store.describe()['locking_reason']}")
    try:
        await measure("sqlite", store, calls, busy_turns_ms)
    finally:
        await store.close()
    await opening(path)
    await on_postgres(calls)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Measure the stores.")
    arguments.add_argument("--calls", type=int, default=100, help="commits of each caller")
    arguments.add_argument("--busy", type=float, nargs="*", default=[0, 0.3], help="turns of other work, in ms")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(Path(made), chosen.calls, chosen.busy))
