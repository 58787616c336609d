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

STAGES = ("called", "returned")
"""Before the effect, and after it."""


async def is_idle(executor: Running) -> None:
    """Until it answers again and has no call in hand: whatever it had to say has been said."""
    while True:
        status, body = await asyncio.to_thread(executor.probe)
        if status == 200 and body["running"] == 0:
            return
        await asyncio.sleep(LOOK_S)


async def freeze(crowd: Crowd, tool: str, stage: str) -> int:
    """A run that ends although an executor is frozen in its call of the tool; the frozen process."""
    run_id = f"{tool}-{stage}"
    crowd.system.kills.plan(run_id, "tool-executor", f"call {tool} 1 {stage}", signal.SIGSTOP)
    await crowd.submit(run_id)
    await crowd.ended([run_id])
    frozen = crowd.system.kills.happened(run_id)
    assert frozen, f"no executor came to {run_id}"
    await crowd.assert_happened_once(run_id)
    return frozen


async def test_an_executor_that_was_frozen_past_its_lease_and_is_thawed_does_nothing_twice(
    tmp_path: Path, amqp_url: str, postgres_url: str, redis_url: str, redis_prefix: str
) -> None:
    servers = Servers(amqp_url, postgres_url, redis_url)
    async with whole_system(tmp_path, servers, environment=redis_prefix, watched=True) as system:
        # With one call in hand it is frozen in that call. Of a second one, begun and not yet done, a person would say
        # truthfully that it has not happened, and after the thaw it would.
        system.own["tool-executor"] |= {"TOOLS_MAX": "1", "PREFETCH": "1"}
        await asyncio.to_thread(system.start)
        await asyncio.to_thread(system.start, *["tool-executor"] * len(STAGES))  # one more than are ever frozen
        async with Crowd(system) as crowd:
            for tool in ONCE:
                frozen = await asyncio.gather(*(freeze(crowd, tool, stage) for stage in STAGES))
                assert len(set(frozen)) == len(STAGES), "each in a call of its own"
                for pid in frozen:
                    os.kill(pid, signal.SIGCONT)
                async with asyncio.timeout(crowd.patience_s):
                    await asyncio.gather(*(is_idle(executor) for executor in system.of("tool-executor")))
                for stage in STAGES:
                    await crowd.assert_happened_once(f"{tool}-{stage}")
            await crowd.assert_nothing_parked()
            await crowd.assert_answers_hold()
