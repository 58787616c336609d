"""Measures the distributed system on the job the field is compared by: services, servers and the world all apart.

The job: a run with a scripted model proposes one consequential tool call, suspends durably, an approval arrives over
the broker, the tool runs once, the run completes durably; 64 in flight; fsync on everywhere. Then one run in flight,
for the latency; then arrivals that come by themselves, at a part of the rate that was reached.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks import counting
from tests.benchmarks.application import started
from tests.benchmarks.driver import Driver
from tests.benchmarks.plant import Plant, Taken, counters, names

IN_FLIGHT = 64
REST_S = 0.02
"""Between suspension and approval of a run alone: everybody is asleep when the approval comes."""
SHARES = (0.25, 0.5, 0.75)
SEED = 7
RUNS_MIN = 128
STATISTICS_S = 5.0
"""How often the broker counts."""


@dataclass
class Amount:
    """How much is measured."""

    runs: int | None = None
    """In each round; None: as many as fit into `round_s`."""
    rounds: int = 3
    round_s: float = 3
    alone: int = 50
    warm: int = 256
    open_s: float = 2
    """How long arrivals come, at each share of the peak; 0: none do."""
    backlog: int = 0


async def lanes(count: int, run_ids: Sequence[str], one: Callable[[str], Awaitable[object]]) -> float:
    """Do `one` for every run, `count` at a time; seconds it took."""
    waiting = iter(run_ids)

    async def lane() -> None:
        for run_id in waiting:
            await one(run_id)

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(count, len(run_ids))):
            group.create_task(lane())
    return time.monotonic() - began_s


def percentile(samples: Sequence[float], share: float) -> float:
    """A sample's percentile, to a tenth."""
    ordered = sorted(samples)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


@dataclass
class Cost:
    """What a stretch of work costs: CPU by process, and how full batches are."""

    plant: Plant
    _cpu_s: dict[str, float] = field(default_factory=dict)
    _busy_s: float = 0
    _at_s: float = 0
    _taken: dict[str, Taken] = field(default_factory=dict)

    def begin(self) -> None:
        """From now on."""
        self._taken = self.plant.taken()
        self._cpu_s, self._busy_s, self._at_s = self.plant.cpu_s(), counting.busy_s(), time.monotonic()

    def per_run_ms(self, runs: int) -> dict[str, float]:
        """CPU milliseconds a run since then."""
        now_s = self.plant.cpu_s()
        return {name: (now_s[name] - self._cpu_s[name]) * 1_000 / runs for name in now_s}

    def batches(self, runs: int) -> dict[str, Any]:
        """Messages a turn of each process since then, and turns of all a run."""
        now, before = self.plant.taken(), self._taken
        turns = {name: now[name].turns - before[name].turns for name in now}
        return {
            "messages_per_batch": {
                name: round((now[name].messages - before[name].messages) / max(1, turns[name]), 1) for name in now
            },
            "batches_per_run": round(sum(turns.values()) / runs, 2),
        }

    def others_cores(self) -> float:
        """Cores that everybody else kept busy since then: the noise."""
        now_s = self.plant.cpu_s()
        ours_s = sum(now_s[name] - self._cpu_s[name] for name in now_s)
        return round(max(0.0, (counting.busy_s() - self._busy_s - ours_s) / (time.monotonic() - self._at_s)), 2)


class Measuring:
    """One mode on one plant whose services run."""

    def __init__(self, plant: Plant, driver: Driver, amount: Amount) -> None:
        self._plant = plant
        self._driver = driver
        self._amount = amount
        self._runs = amount.runs or RUNS_MIN
        self.found: dict[str, Any] = {"in_flight": IN_FLIGHT}

    async def all(self) -> dict[str, Any]:
        """Every figure."""
        amount = self._amount
        took_s = await lanes(IN_FLIGHT, names("warm", amount.warm), self._driver.whole)
        if amount.runs is None:
            self._runs = max(RUNS_MIN, round(amount.warm / took_s * amount.round_s))
        self.found["rss_mb"] = self._plant.rss_mb()
        await self.closed()
        await self.phases()
        await lanes(1, names("alone", amount.alone), lambda run_id: self._driver.whole(run_id, REST_S))
        self.found |= self._latencies(names("alone", amount.alone))
        if amount.open_s:
            peak = self.found["runs_per_s"]
            self.found["open"] = [await self.open(share, peak * share) for share in SHARES]
        if amount.backlog:
            await self.backlog()
        ran = started(self._plant.effects)
        self.found["effects"] = {"runs": len(ran), "doubled": sum(len(times) > 1 for times in ran.values())}
        return self.found

    async def closed(self) -> None:
        """64 lanes, each a whole job after the other."""
        runs = self._runs
        rates, costs, noise = [], [], []
        batches: dict[str, Any] = {}
        before = await counters(self._plant)
        for number in range(self._amount.rounds):
            cost = Cost(self._plant)
            cost.begin()
            rates.append(runs / await lanes(IN_FLIGHT, names(f"closed{number}", runs), self._driver.whole))
            costs.append(cost.per_run_ms(runs))
            noise.append(cost.others_cores())
            batches = cost.batches(runs)
        after = await counters(self._plant)
        total = runs * self._amount.rounds
        self.found |= {
            "runs": total,
            "runs_per_s": round(statistics.median(rates), 1),
            "runs_per_s_all": [round(rate, 1) for rate in rates],
            "others_cores": noise,
            "cpu_ms_per_run": round(statistics.median(sum(cost.values()) for cost in costs), 2),
            "cpu_ms_by": {name: round(statistics.median(cost[name] for cost in costs), 3) for name in costs[0]},
            **batches,
            "postgres_per_run": {name: round((after[name] - before[name]) / total, 1) for name in after},
        }

    async def phases(self) -> None:
        """Suspend all, then approve all."""
        run_ids = names("phase", self._runs)
        asked = {}

        async def suspend(run_id: str) -> None:
            asked[run_id] = await self._driver.start(run_id)

        async def resume(run_id: str) -> None:
            await self._driver.approve(run_id, asked[run_id])
            await self._driver.done(run_id)

        self.found["suspends_per_s"] = round(len(run_ids) / await lanes(IN_FLIGHT, run_ids, suspend), 1)
        self.found["resumes_per_s"] = round(len(run_ids) / await lanes(IN_FLIGHT, run_ids, resume), 1)

    async def open(self, share: float, rate: float) -> dict[str, Any]:
        """Arrivals of a Poisson process; each is approved as soon as it is suspended."""
        chance = random.Random(SEED)
        run_ids = names(f"open{share}", max(20, round(rate * self._amount.open_s)))
        cost = Cost(self._plant)
        cost.begin()
        began_s = due_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for run_id in run_ids:
                due_s += chance.expovariate(rate)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                group.create_task(self._driver.whole(run_id))
        took_s = time.monotonic() - began_s
        by = cost.per_run_ms(len(run_ids))
        return {
            "share": share,
            "asked_per_s": round(rate, 1),
            "runs_per_s": round(len(run_ids) / took_s, 1),
            "cpu_ms_per_run": round(sum(by.values()), 2),
            "cpu_ms_by": {name: round(ms, 3) for name, ms in by.items()},
            **cost.batches(len(run_ids)),
            **self._latencies(run_ids),
        }

    async def backlog(self) -> None:
        """Many suspended runs, and what they do to memory and to a decision."""
        run_ids = names("backlog", self._amount.backlog)
        self.found["backlog_suspends_per_s"] = round(
            len(run_ids) / await lanes(IN_FLIGHT, run_ids, self._driver.start), 1
        )
        self.found["rss_mb_backlog"] = self._plant.rss_mb()
        later = names("later", self._amount.alone)
        await lanes(1, later, lambda run_id: self._driver.whole(run_id, REST_S))
        self.found |= {f"{name}_backlog": value for name, value in self._latencies(later).items()}

    def _latencies(self, run_ids: Sequence[str]) -> dict[str, float]:
        ran, driver = started(self._plant.effects), self._driver
        starts = [(ran[run_id][0] - driver.decided_ns[run_id]) / 1e6 for run_id in run_ids]
        suspends = [(driver.suspended_ns[run_id] - driver.submitted_ns[run_id]) / 1e6 for run_id in run_ids]
        return {
            "approve_to_start_ms_p50": percentile(starts, 0.5),
            "approve_to_start_ms_p99": percentile(starts, 0.99),
            "submit_to_suspended_ms_p50": percentile(suspends, 0.5),
        }


async def measure(plant: Plant, mode: str, amount: Amount) -> dict[str, Any]:
    """The figures of one mode, whose services are started before and drained after.

    `messages_per_batch` is of the last round; `messages_per_amqp_message` of everything that was done.
    """
    await asyncio.to_thread(plant.start, mode)
    driver = await Driver.open(
        plant.rabbitmq.url, plant.postgres.url, plant.key, events=plant.events, public=plant.public
    )
    try:
        found = await Measuring(plant, driver, amount).all()
    finally:
        await driver.close()
    await asyncio.sleep(STATISTICS_S)
    messages = sum(each.messages for each in plant.taken().values())
    packed = round(messages / max(1, plant.amqp_messages()), 1)
    await asyncio.to_thread(plant.stop)
    return {"mode": mode, **found, "messages_per_amqp_message": packed}


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Lines of the table for people: figure, value, of what."""
    low, high = min(figures["runs_per_s_all"]), max(figures["runs_per_s_all"])
    by = ", ".join(f"{name} {ms:.2f}" for name, ms in figures["cpu_ms_by"].items())
    full = ", ".join(f"{name} {count}" for name, count in figures["messages_per_batch"].items())
    packed = f"{figures['batches_per_run']} batches a run; {figures['messages_per_amqp_message']} in an AMQP message"
    latency = f"{figures['approve_to_start_ms_p50']} / {figures['approve_to_start_ms_p99']}"
    postgres = figures["postgres_per_run"]
    told = [
        ("runs/s", f"{figures['runs_per_s']}", f"median of {len(figures['runs_per_s_all'])} rounds, {low}–{high}"),
        ("suspends/s, resumes/s", f"{figures['suspends_per_s']}, {figures['resumes_per_s']}", "each alone"),
        ("CPU ms/run", f"{figures['cpu_ms_per_run']}", by),
        ("messages a batch", full, packed),
        ("approve → tool started, ms", latency, "p50 / p99, one run in flight"),
        ("submit → suspended, ms", f"{figures['submit_to_suspended_ms_p50']}", "p50, one run in flight"),
        (
            "commits, WAL syncs, WAL KB a run",
            f"{postgres['commits']}, {postgres['wal_syncs']}, {postgres['wal_bytes'] / 1_000:.0f}",
            "PostgreSQL",
        ),
        ("memory, MB", f"{sum(figures['rss_mb'].values()):.0f}", "all services"),
        ("doubled effects", f"{figures['effects']['doubled']}", f"{figures['effects']['runs']} runs"),
    ]
    for each in figures.get("open", ()):
        late = f"{each['approve_to_start_ms_p50']} / {each['approve_to_start_ms_p99']}"
        what = f"runs/s, CPU ms/run; {each['batches_per_run']} batches a run; approve → tool started {late} ms"
        told.append((f"arrivals at {each['share']:.0%}", f"{each['runs_per_s']}, {each['cpu_ms_per_run']}", what))
    if "rss_mb_backlog" in figures:
        what = f"all services, with it; approve → tool started {figures['approve_to_start_ms_p50_backlog']} ms"
        told.append(("memory with a backlog, MB", f"{sum(figures['rss_mb_backlog'].values()):.0f}", what))
    return told
