"""Proves that no answer is given that a killed PostgreSQL does not hold afterwards, and that all go on within seconds.

The server dies by SIGKILL under load, twice. Everything that any client was told is kept, and compared with the facts.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.live import spaces
from tests.live.crowd import Crowd
from tests.live.servers import OwnServer
from tests.live.whole import Servers, whole_system

RECONNECT_S = 10.0
"""From the server's readiness to the next decision that is committed (issue: Done when)."""
KILLS = 2
DOWN_S = 2.0
AT_ONCE = 12
DECIDED_BETWEEN = 8
"""Decisions that are accepted before each death, and after the last."""


class Load:
    """Runs, one after the other and AT_ONCE at a time, until it is told to end."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.run_ids: list[str] = []
        self._ending = False

    async def run(self) -> None:
        """Every run that was begun has ended."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(AT_ONCE):
                lanes.create_task(self._lane())

    def end(self) -> None:
        """Begin no more."""
        self._ending = True

    async def _lane(self) -> None:
        while not self._ending:
            run_id = f"r{len(self.run_ids)}"
            self.run_ids.append(run_id)
            await self._crowd.submit(run_id)
            await self._crowd.ended([run_id])


async def decisions(crowd: Crowd, more: int) -> None:
    """Until so many more decisions are accepted."""
    wanted = len(crowd.accepted_s) + more
    async with asyncio.timeout(crowd.patience_s):
        while len(crowd.accepted_s) < wanted:
            await crowd.another_accepted()


async def test_what_anybody_was_told_is_in_the_database_after_it_was_killed_under_load(
    tmp_path: Path, amqp_url: str, own_postgres: OwnServer, redis_url: str, redis_prefix: str
) -> None:
    async with spaces.database(own_postgres.url) as postgres_url:
        servers = Servers(amqp_url, postgres_url, redis_url)
        async with whole_system(tmp_path, servers, environment=redis_prefix, watched=True) as system:
            await asyncio.to_thread(system.start)
            async with Crowd(system) as crowd:
                load = Load(crowd)
                loading = asyncio.create_task(load.run())
                reconnects_s = []
                for _ in range(KILLS):
                    await decisions(crowd, DECIDED_BETWEEN)
                    await asyncio.to_thread(own_postgres.kill)
                    await asyncio.sleep(DOWN_S)  # how long it is away is the fault
                    await asyncio.to_thread(own_postgres.start)
                    ready_s = time.monotonic()
                    await decisions(crowd, 1)
                    reconnects_s.append(min(at for at in crowd.accepted_s.values() if at > ready_s) - ready_s)
                await decisions(crowd, DECIDED_BETWEEN)
                load.end()
                await loading
                await crowd.all_answered()
                await crowd.assert_answers_hold()
                for run_id in load.run_ids:
                    await crowd.assert_happened_once(run_id)
                await crowd.assert_nothing_parked()
                print(
                    f"{len(load.run_ids)} runs, {len(crowd.receipts)} answers, {crowd.unknown} unknown; "
                    f"the next decision after {', '.join(f'{took_s:.1f} s' for took_s in reconnects_s)}"
                )
                assert max(reconnects_s) < RECONNECT_S
