"""Proves that when everything dies at one instant, servers and services, every answer holds and every run goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.live import spaces
from tests.live.crowd import Crowd
from tests.live.rabbitmq_server import PrivateRabbitMQ
from tests.live.servers import OwnServer
from tests.live.whole import Servers, whole_system

RUNS = 16
DECIDED = 5
"""Decisions that are accepted before the outage."""
PACE_S = 0.1


async def test_after_a_power_cut_of_everything_each_run_ends_with_each_effect_once(
    tmp_path: Path, own_rabbitmq: PrivateRabbitMQ, own_postgres: OwnServer, own_redis: OwnServer
) -> None:
    run_ids = [f"r{number}" for number in range(RUNS)]
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as amqp_url:
        async with spaces.database(own_postgres.url) as postgres_url:
            servers = Servers(amqp_url, postgres_url, own_redis.url)
            async with whole_system(tmp_path, servers, watched=True) as system:
                await asyncio.to_thread(system.start)
                async with Crowd(system, pace_s=PACE_S) as crowd:
                    await asyncio.gather(*(crowd.submit(run_id) for run_id in run_ids))
                    while len(crowd.accepted_s) < DECIDED:
                        await crowd.another_accepted()
                    for service in system.running:
                        service.process.kill()
                    own_postgres.kill()
                    own_redis.kill()
                    own_rabbitmq.kill(at_once=True)
                    before = set(crowd.accepted_s)

                    await asyncio.to_thread(own_rabbitmq.start)
                    own_postgres.start()
                    own_redis.start()
                    began_s = time.monotonic()
                    await asyncio.to_thread(system.start)
                    assert set((await crowd.ended(run_ids)).values()) == {"succeeded"}
                    await crowd.all_answered()
                    for run_id in run_ids:
                        await crowd.assert_happened_once(run_id)
                    await crowd.assert_answers_hold()
                    await crowd.assert_nothing_parked()
                    after_s = min(at for asked, at in crowd.accepted_s.items() if asked not in before) - began_s
                    print(
                        f"{len(before)} decisions before the outage; the next {after_s:.1f} s after the services began"
                    )
