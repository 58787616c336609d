"""Proves that a call runs in the pool of its tool, and that a stop reaches whichever process makes the call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from placet.messages import Envelope, ExecuteOperation
from placet.runtime.parcels import outbox_row
from placet.topology import make_topology
from tests.adapters.chat_server import Answer, chat_server
from tests.live.broker_ends import BrokerEnds, eventually
from tests.live.studio import STUDIO
from tests.live.system import System, deploy, own_roles, wait_until

TOLD_S = 1.0
"""How soon whoever makes a call is told that its run was cancelled."""


@dataclass
class Studio(System):
    """The distributed system with the application that leaves traces."""

    app: str = "tests.live.studio:app"
    forked: bool = True

    @property
    def traces(self) -> Path:
        return Path(self.environment[STUDIO])

    def trace(self, name: str) -> dict[str, Any]:
        """What a tool has left, once it is there."""
        path = self.traces / name
        wait_until(
            path.exists, 60, lambda: f"no {name}; there is {sorted(each.name for each in self.traces.iterdir())}"
        )
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def call(self, tool: str, name: str) -> None:
        """A run that is one call, under the call's name."""
        task = {"id": "only", "title": tool, "call": {"tool": tool, "input": {"name": name}}}
        with self.client() as client:
            client.submit_run("studio", run_id=name, mode="tasks", tasks=[task])

    def cancel(self, run_id: str) -> float:
        """Cancel it; when that was answered."""
        with self.client() as client:
            client.cancel_run(run_id, "not wanted any more")
        return time.time()

    def pids(self, name: str) -> set[int]:
        return {each.process.pid for each in self.of(name)}

    def heard(self, name: str) -> list[str]:
        """The owners whose calls were stopped on another process's word."""
        lines = (line for each in self.of(name) for line in each.lines())
        return [line["owner"] for line in lines if line["event"] == "stop.heard" and line["stopped"]]


@pytest.fixture
async def studio(tmp_path: Path, amqp_url: str, postgres_url: str) -> AsyncIterator[Studio]:
    settings = {"DATABASE_URL": postgres_url, "AMQP_URL": amqp_url, "TOOL_POOLS": "gpu", "GRACE_MS": "2000"}
    await asyncio.to_thread(deploy, settings, tmp_path)
    (tmp_path / "traces").mkdir()
    studio = Studio(tmp_path, settings, own_roles(postgres_url), {STUDIO: str(tmp_path / "traces")})
    yield studio
    await asyncio.to_thread(studio.close)


def names(prefix: str) -> Iterator[str]:
    yield from (f"{prefix}-{number}" for number in range(40))


# ── pools ──────────────────────────────────────────────────────────────────────────────


async def test_a_call_runs_where_its_tool_says_and_waits_for_an_executor_of_that_pool(studio: Studio) -> None:
    def job() -> None:
        studio.start()
        studio.call("mix", "mixed")
        assert studio.trace("mixed.started")["pool"] == ""
        studio.wait_for("mixed", "succeeded")
        studio.call("render", "rendered")
        studio.call("mix", "after")
        studio.wait_for("after", "succeeded")
        assert not (studio.traces / "rendered.started").exists(), "nobody else may run it"
        studio.start("tool-executor", TOOL_POOL="gpu")
        assert studio.trace("rendered.started")["pool"] == "gpu"
        studio.wait_for("rendered", "succeeded")

    await asyncio.to_thread(job)


async def test_an_approved_call_runs_where_its_tool_says(studio: Studio) -> None:
    def job() -> None:
        studio.start()
        studio.start("tool-executor", TOOL_POOL="gpu")
        studio.call("publish", "published")
        studio.approve("published")
        studio.wait_for("published", "succeeded")
        assert studio.trace("published.started")["pool"] == "gpu"

    await asyncio.to_thread(job)


async def test_an_order_that_comes_to_executors_of_another_pool_is_passed_on_and_runs_once(studio: Studio) -> None:
    def waiting() -> str:
        """A call of the pool for which no executor runs yet; its operation."""
        studio.start()
        studio.call("render", "rendered")
        with studio.client() as client:
            wait_until(lambda: client.run_receipt("rendered").operations, 60)
            [operation] = client.run_receipt("rendered").operations
        return operation.operation_id

    def runs_in_its_pool() -> None:
        executor = studio.of("tool-executor")[0]
        wait_until(lambda: executor.probe()[1]["running"] == 0, 60)
        assert not (studio.traces / "rendered.started").exists()
        studio.start("tool-executor", TOOL_POOL="gpu")
        studio.wait_for("rendered", "succeeded")
        assert studio.trace("rendered.started")["pool"] == "gpu"

    operation_id = await asyncio.to_thread(waiting)
    async with BrokerEnds(studio.settings["AMQP_URL"], make_topology(["gpu"])) as ends:
        for number, claimed in enumerate(("", "gpu")):  # forged, and rightly addressed but in the wrong queue
            message = ExecuteOperation(tenant="default", run_id="rendered", operation_id=operation_id, pool=claimed)
            row = outbox_row(Envelope(id=f"forged_{number}", message=message))
            await ends.put_raw("tool-executor", row.body, content_type="application/json")

        async def taken() -> bool:
            return await ends.count("placet.tool-executor") == 0

        await eventually(taken)
    await asyncio.to_thread(runs_in_its_pool)


async def test_a_tool_of_a_pool_that_nobody_has_set_up_is_named_at_the_start_of_the_dispatcher(studio: Studio) -> None:
    def job() -> None:
        process = studio._start("dispatcher", {"TOOL_POOLS": ""})
        assert process.process.wait(60) == 78
        line = process.lines()[-1]
        assert line["code"] == "SETTING_INVALID"
        assert "PLACET_TOOL_POOLS does not name a pool" in line["what"]
        assert "'render' runs in 'gpu'" in line["what"]

    await asyncio.to_thread(job)


# ── stops ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tool", ["wait", "watch", "spawn"])
async def test_a_cancelled_run_stops_its_tool_within_a_second_whichever_executor_hears_of_it(
    tool: str, studio: Studio
) -> None:
    """The cancel comes to either of two executors; it goes on until it has come to the one that does not run it."""

    def job() -> None:
        studio.start()
        studio.start("tool-executor")
        for name in names(tool):
            # The broker deals starts and cancels out in turn: with one start more, they get out of step.
            studio.call("mix", f"{name}-before")
            studio.trace(f"{name}-before.started")
            studio.call(tool, name)
            started = studio.trace(f"{name}.started")
            assert started["pid"] in studio.pids("tool-executor")
            cancelled_at_s = studio.cancel(name)
            told = studio.trace(f"{name}.told")
            assert told["pid"] == started["pid"]
            assert told["cancelled"]
            assert told["at_s"] - cancelled_at_s < TOLD_S
            if tool == "spawn":
                assert not Path(f"/proc/{started['child']}").exists(), "the other program is gone as well"
            studio.wait_for(name, "cancelled")
            if studio.heard("tool-executor"):
                return
        pytest.fail("40 cancels in a row came to the executor that ran the call")

    await asyncio.to_thread(job)


async def test_a_cancelled_run_stops_its_model_call_within_a_second_whichever_planner_hears_of_it(
    studio: Studio,
) -> None:
    async with chat_server(*(Answer(hang=True) for _ in range(40))) as chat:
        studio.environment |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": chat.base_url}
        await asyncio.to_thread(studio.start)
        await asyncio.to_thread(studio.start, "planner")

        def submit(name: str) -> None:
            with studio.client() as client:
                client.submit_run("office", run_id=name, mode="tasks", tasks=[{"id": "t", "title": "Think"}])

        for asked, name in enumerate(names("think"), start=1):
            chat.hanging.clear()
            await asyncio.to_thread(submit, name)
            async with asyncio.timeout(60):
                await chat.hanging.wait()
            assert len(chat.requests) == asked
            chat.gone.clear()
            await asyncio.to_thread(studio.cancel, name)
            async with asyncio.timeout(TOLD_S):
                await chat.gone.wait()
            if await asyncio.to_thread(studio.heard, "planner"):
                return
        pytest.fail("40 cancels in a row came to the planner that made the call")
