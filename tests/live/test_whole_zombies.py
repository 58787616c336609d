"""Proves that an executor that stands still past its lease, and goes on later, changes nothing that others did since.

It is frozen before its tool is called, or after the effect and before anybody was told; another one takes over by the
effect class. Then it is thawed: what it still has in hand must neither happen nor count any more.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.live.crowd import LOOK_S, Crowd
from tests.live.recorded import ONCE
from tests.live.system import Running
from tests.live.whole import Servers, whole_system


async def is_idle(executor: Running) -> None:
    """Until it answers again and has no call in hand: whatever it had to say has been said."""
    while True:
        status, body = await asyncio.to_thread(executor.probe)
        if status == 200 and body["running"] == 0:
            return
        await asyncio.sleep(LOOK_S)


async def test_an_executor_that_was_frozen_past_its_lease_and_is_thawed_does_nothing_twice(
    tmp_path: Path, amqp_url: str, postgres_url: str, redis_url: str, redis_prefix: str
) -> None:
    servers = Servers(amqp_url, postgres_url, redis_url)
    async with whole_system(tmp_path, servers, environment=redis_prefix, watched=True) as system:
        await asyncio.to_thread(system.start)
        await asyncio.to_thread(system.start, "tool-executor")
        async with Crowd(system) as crowd:
            for tool in ONCE:
                for stage in ("called", "returned"):
                    run_id = f"{tool}-{stage}"
                    system.kills.plan(run_id, "tool-executor", f"call {tool} 1 {stage}", signal.SIGSTOP)
                    await crowd.submit(run_id)
                    await crowd.ended([run_id])
                    frozen = system.kills.happened(run_id)
                    assert frozen, f"no executor came to {run_id}"
                    await crowd.assert_happened_once(run_id)
                    os.kill(frozen, signal.SIGCONT)
                    async with asyncio.timeout(crowd.patience_s):
                        await asyncio.gather(*(is_idle(executor) for executor in system.of("tool-executor")))
                    await crowd.assert_happened_once(run_id)
            await crowd.assert_nothing_parked()
            await crowd.assert_answers_hold()
