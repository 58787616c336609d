"""Proves that the whole system does the same with Redis flushed all the time, frozen, or away for the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio

from tests.live.crowd import Crowd
from tests.live.servers import OwnServer
from tests.live.whole import Servers, whole_system

RUNS = 30
REVIEWERS = ("alice", "bob", "carol")
FLUSH_S = 1.0


@asynccontextmanager
async def faulty(server: OwnServer, fault: str) -> AsyncIterator[None]:
    """Redis has that fault for as long as the context lasts."""
    if fault == "flushed every second":
        flushing = asyncio.create_task(flush(server.url))
        yield
        assert not flushing.done(), "it was flushed to the end"
        flushing.cancel()
        await asyncio.wait([flushing])
        return
    if fault == "frozen":
        await asyncio.to_thread(server.freeze)
    elif fault == "stopped":
        await asyncio.to_thread(server.kill)
    yield


async def flush(url: str) -> None:
    """Everything forgotten, again and again."""
    async with redis.asyncio.Redis.from_url(url) as direct:
        while True:
            await direct.flushall()
            await asyncio.sleep(FLUSH_S)  # the rate is the fault


@pytest.mark.parametrize("fault", ["flushed every second", "frozen", "stopped"])
async def test_thirty_runs_that_three_reviewers_race_for_have_one_outcome_each_with_redis(
    fault: str, tmp_path: Path, amqp_url: str, postgres_url: str, own_redis: OwnServer
) -> None:
    run_ids = [f"r{number}" for number in range(RUNS)]
    servers = Servers(amqp_url, postgres_url, own_redis.url)
    async with whole_system(tmp_path, servers) as system:
        if fault == "stopped":
            await asyncio.to_thread(own_redis.kill)  # before anything starts: nobody needs it for that
        await asyncio.to_thread(system.start)
        async with Crowd(system, REVIEWERS) as crowd:
            async with faulty(own_redis, fault):
                await asyncio.gather(*(crowd.submit(run_id) for run_id in run_ids))
                ends = await crowd.ended(run_ids)
                await crowd.all_answered()
            assert set(ends.values()) == {"succeeded"}
            for run_id in run_ids:
                await crowd.assert_happened_once(run_id)
            await crowd.assert_nothing_parked()
            await crowd.assert_answers_hold()
            accepted = [receipt for receipt in crowd.receipts.values() if receipt.decision_id is not None]
            assert len(accepted) == RUNS, "one voice a request"
            assert len(crowd.refusals) == RUNS * (len(REVIEWERS) - 1), "everybody was answered"
            print(f"Redis {fault}: {crowd.unknown} questions had to be repeated")
