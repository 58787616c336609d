"""Proves that every service may be killed with SIGKILL at every point of a run, and each effect happens once.

A first run says which points there are: before a commit, after it, after the acknowledgement, around each claim and
publication of the outbox, each call of a model or a tool, each question of the gateway. Then each point has a run of
its own in which the service dies exactly there, and comes again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from tests.cases import case
from tests.live.crowd import Crowd
from tests.live.killable import RELAYS
from tests.live.system import SERVICES
from tests.live.whole import Servers, WholeSystem, whole_system

AT_ONCE = 3
"""Runs in flight of one service's points. Each death is every other run's as well."""
ROUNDS = 5
"""A death of another run's making may lead a run around its point; it is then made for it again."""


@pytest.fixture
async def system(
    tmp_path: Path, amqp_url: str, postgres_url: str, redis_url: str, redis_prefix: str
) -> AsyncIterator[WholeSystem]:
    """The system, prepared; nothing runs yet."""
    servers = Servers(amqp_url, postgres_url, redis_url)
    async with whole_system(tmp_path, servers, environment=redis_prefix, watched=True) as system:
        yield system


async def recorded(crowd: Crowd, run_id: str) -> dict[str, list[str]]:
    """The points of one undisturbed run, by service."""
    await crowd.submit(run_id)
    await crowd.ended([run_id])
    await crowd.assert_happened_once(run_id)
    kills = crowd.system.kills
    found = {name: [point for run, point in kills.reached(name) if run == run_id] for name in (*SERVICES, RELAYS)}
    return {name: list(dict.fromkeys(points)) for name, points in found.items()}


async def killed_at(crowd: Crowd, service: str, points: Iterable[str], stem: str) -> list[str]:
    """A run for each point, some at a time; the points that no run has come to."""
    places = asyncio.Semaphore(AT_ONCE)
    missed: list[str] = []

    async def killed(run_id: str, point: str) -> None:
        async with places:
            crowd.system.kills.plan(run_id, service, point)
            await crowd.submit(run_id)
            await crowd.ended([run_id])
            await crowd.assert_happened_once(run_id)
            if not crowd.system.kills.happened(run_id):
                missed.append(point)

    async with asyncio.TaskGroup() as runs:
        for number, point in enumerate(points):
            runs.create_task(killed(f"{stem}-{service}-{number}", point))
    return missed


@case("F01", "F02", "F03", "F04", "F09")
async def test_each_service_may_be_killed_at_each_point_of_a_run_and_each_effect_happens_once(
    system: WholeSystem,
) -> None:
    await asyncio.to_thread(system.start)
    began_s = time.monotonic()
    async with Crowd(system) as crowd:
        left = await recorded(crowd, "undisturbed")
        found = Counter({service: len(points) for service, points in left.items()})
        stages = {point.rsplit(" ", 1)[1] for points in left.values() for point in points}
        assert stages >= {"before", "committed", "settled", "published", "called", "returned", "asked", "answered"}
        assert all(found[name] >= 3 for name in left), found
        for round_ in range(ROUNDS):
            if not any(left.values()):
                break
            missed = await asyncio.gather(
                *(killed_at(crowd, service, points, f"round-{round_}") for service, points in left.items())
            )
            left = dict(zip(left, missed, strict=True))
            print(f"round {round_}: {time.monotonic() - began_s:.0f} s, not reached: {left}")
        assert not any(left.values()), left
        await crowd.all_answered()
        await crowd.assert_answers_hold()
        await crowd.assert_nothing_parked()
    print(f"{found.total()} deaths ({dict(found)}) in {time.monotonic() - began_s:.0f} s")
