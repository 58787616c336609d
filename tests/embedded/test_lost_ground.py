"""Proves what the whole system does when it has lost ground: too late to begin a call, or its store past mending."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from placet import App, ToolContext, scripted
from placet.adapters.memory import MemoryStore
from placet.adapters.memory_queue import MemoryDoor, MemoryQueue
from placet.cli.exits import code_of
from placet.errors import Code, TerminalError
from placet.messages import SubmitRun
from placet.plans import PlannedTask
from placet.runtime.engine import Engine
from placet.runtime.invoker import TaskInvoker
from placet.runtime.relay import Relay
from placet.runtime.scripts import ScriptedModels
from placet.runtime.tools import ToolRunner
from placet.runtime.worker import Worker
from placet.script import call
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import Embedded
from placet_embedded.system import machines
from tests.contracts.faulty import break_commit, fail_with
from tests.runtime.test_engine import SetClock


def a_run() -> SubmitRun:
    return SubmitRun(
        tenant="default",
        run_id="r1",
        team="desk",
        mode="tasks",
        tasks=(PlannedTask(id="x", title="x"),),
        initiator=Principal(kind=PrincipalKind.HUMAN, id="developer"),
    )


class Desk:
    """The whole system in memory, with one place for tools and one clock for store and process."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.paid: list[str] = []
        self.clock = SetClock()
        app = self.app()
        self.store, queue = MemoryStore(self.clock), MemoryQueue()
        self.door, self.queue = MemoryDoor(queue), queue
        self.invoker = TaskInvoker(
            ScriptedModels(app),
            ToolRunner(app),
            self.store,
            queue.put,
            tools_max=1,
            monotonic_ms=lambda: float(self.clock.at_ms),
        )
        self.worker = Worker(Engine(machines(), app, self.store), queue, self.invoker, self.door)
        self.relay = Relay(self.store, queue)

    def app(self) -> App:
        app = App("desk", version="1")

        @app.tool(effect="non_retriable")
        async def pay(ctx: ToolContext, to: str) -> str:
            """Pay."""
            self.paid.append(to)
            self.entered.set()
            await self.go.wait()
            return to

        calls = [call("pay", to="first"), call("pay", to="second")]
        app.team("desk", agents=[app.agent("clerk", model=scripted(calls, "done"), tools=[pay])])
        return app

    async def work(self) -> None:
        while await self.worker.turn():
            pass

    def statuses(self) -> list[str]:
        states = [state for state in self.store.snapshot()["state"] if state["machine"] == "operation"]
        return sorted(state["status"] for state in states if state["run_id"] == "r1")


async def test_a_call_that_waited_for_a_place_beyond_its_lease_does_not_happen_after_all() -> None:
    desk = Desk()
    working = asyncio.create_task(desk.work())
    await desk.door.ask(a_run(), message_id="m1", timeout_ms=5_000)
    await desk.entered.wait()
    await desk.queue.drained()
    assert (desk.statuses(), desk.paid) == (["started", "started"], ["first"])
    desk.clock.at_ms += 36_000  # their leases have ended: from now on others may act on that
    await desk.relay.turn()
    await desk.queue.drained()
    assert desk.statuses() == ["needs_operator", "needs_operator"]
    desk.go.set()
    await desk.invoker.settled()
    await desk.queue.drained()
    assert (desk.statuses(), desk.paid) == (["failed", "succeeded"], ["first"])
    desk.queue.close()
    await working


async def test_a_store_that_must_be_opened_afresh_ends_the_process_and_says_so(tmp_path: Path) -> None:
    app = Desk().app()
    embedded = await Embedded.start(app, tmp_path, models=ScriptedModels(app))
    mend = break_commit(embedded.store, fail_with(sqlite3.SQLITE_IOERR))
    for_ever: asyncio.Task[Any] = asyncio.create_task(asyncio.Event().wait())
    asking = asyncio.create_task(embedded.door.ask(a_run(), message_id="m1", timeout_ms=60_000))
    with pytest.raises(TerminalError) as raised:
        async with asyncio.timeout(10):
            await embedded.loops.ended_or(for_ever)
    assert raised.value.code is Code.OUTCOME_UNKNOWN
    assert code_of(raised.value) != 0
    assert not embedded.loops.health.live
    mend()
    await embedded.stop()
    for task in (for_ever, asking):
        task.cancel()
