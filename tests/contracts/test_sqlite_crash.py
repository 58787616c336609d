"""A process that is killed in the middle of its commits leaves whole units, and every one that it was told of."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

from placet.adapters.clocks import SystemClock
from placet.adapters.sql.sqlite import SqliteStore
from placet.ids import Address
from placet.runtime.ports import Fate, Unit
from tests.builders import TENANT
from tests.cases import case
from tests.contracts.units import entry, leaf, run_at, said, sent, write

KILLS = 12
CALLERS = 8
LIFE_MS_MAX = 60


def whole(run_id: str, version: int) -> Unit:
    """A unit of which every part tells the version of all others."""
    thread = Address(run_id, "thread", "task:one")
    return Unit(
        states=[write(run_at(run_id), version - 1), write(thread, version - 1)],
        rows=[leaf(version, run_id), said(version, run_id=run_id)],
        journal=[entry(run_at(run_id), version), entry(thread, version)],
        outbox=[sent(f"{run_id}-{version}", 2**50, run_id=run_id)],
        consumed=[f"{run_id}-{version - 1}"],
    )


async def commit_for_ever(path, told: int) -> None:
    """Commit with many callers at once; each commit that was confirmed is told through the pipe."""
    store = await SqliteStore.open(path, clock=SystemClock())
    os.write(told, b"ready\n")

    async def caller(run_id: str) -> None:
        version = (await store.load([run_at(run_id)], [])).versions[run_at(run_id)]
        while True:
            version += 1
            results = await store.commit([whole(run_id, version)])
            assert results[0].fate is Fate.COMMITTED
            os.write(told, f"{run_id} {version}\n".encode())

    await asyncio.gather(*(caller(f"run-{number}") for number in range(CALLERS)))


def run_and_kill(path, life_ms: float) -> dict[str, int]:
    """Fork a process that commits, kill it after a while; the last version of each run that it was told of."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            asyncio.run(commit_for_ever(path, writer))
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert lines.readline() == "ready\n"
        time.sleep(life_ms / 1_000)  # the instant of death is what is varied here
        os.kill(child, signal.SIGKILL)
        confirmed = {run_id: int(version) for run_id, _, version in (line.strip().partition(" ") for line in lines)}
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    return confirmed


async def check(path, confirmed: dict[str, int]) -> int:
    """Every run is whole and no confirmed step is missing. How many steps there are."""
    store = await SqliteStore.open(path, clock=SystemClock())
    steps = 0
    for number in range(CALLERS):
        run_id = f"run-{number}"
        run, thread = run_at(run_id), Address(run_id, "thread", "task:one")
        versions = (await store.load([run, thread], [])).versions
        version = versions[run]
        assert versions[thread] == version >= confirmed.get(run_id, 0)
        for address in (run, thread):
            assert [e.version for e in await store.read_journal(address)] == list(range(1, version + 1))
        assert [row["seq"] for row in await store.rows(TENANT, "audit_leaf", run_id)] == list(range(1, version + 1))
        assert len(await store.read_thread(run_id, "task:one", version)) == version
        on_its_way = [row["id"] for row in await store.outbox(TENANT, run_id)]
        assert on_its_way == ([f"{run_id}-{version}"] if version else [])
        steps += version
    await store.close()
    return steps


@case("H16")
def test_kill_9_in_the_middle_of_commits_leaves_whole_units_and_every_confirmed_one(tmp_path):
    path = tmp_path / "placet.db"
    instants = random.Random(20_260_808)
    confirmed: dict[str, int] = {}
    steps = 0
    for _ in range(KILLS):
        confirmed |= run_and_kill(path, instants.uniform(0, LIFE_MS_MAX))
        steps = asyncio.run(check(path, confirmed))
    assert steps >= KILLS, "hardly anything was committed: the test proves nothing"
