"""Proves that nothing is lost for a run whose state cannot be read for a while, nor what was parked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from placet import App, ToolContext, scripted
from placet.adapters.memory import MemoryStore
from placet.adapters.memory_queue import MemoryDoor, MemoryQueue
from placet.errors import Code
from placet.ids import Address
from placet.messages import RUN, CancelRun, SubmitRun, decode_envelope
from placet.plans import PlannedTask
from placet.runtime.engine import Engine
from placet.runtime.fold import HELD_MS
from placet.runtime.invoker import TaskInvoker
from placet.runtime.parcels import dead_letter
from placet.runtime.ports import StateWrite, StoredState, Unit
from placet.runtime.relay import Relay
from placet.runtime.scripts import ScriptedModels
from placet.runtime.tools import ToolRunner
from placet.runtime.worker import Worker
from placet.script import call
from placet.values import Principal, PrincipalKind
from placet_embedded.system import machines
from placet_gateway import gateway, letters
from placet_gateway.identity import DevelopmentIdentity
from tests.gateway.world import TOKEN
from tests.runtime.test_engine import SetClock

ALICE = Principal(kind=PrincipalKind.HUMAN, id="alice")
THE_RUN = Address("r1", RUN, "")


class Desk:
    """The whole system in memory, with a tool that is at work until `go`."""

    def __init__(self) -> None:
        self.go, self.entered = asyncio.Event(), asyncio.Event()
        self.clock = SetClock()
        app = self.app()
        self.store, self.queue = MemoryStore(self.clock), MemoryQueue()
        self.door = MemoryDoor(self.queue)
        self.invoker = TaskInvoker(
            ScriptedModels(app),
            ToolRunner(app),
            self.store,
            self.queue.put,
            monotonic_ms=lambda: float(self.clock.at_ms),
        )
        self.worker = Worker(Engine(machines(), app, self.store), self.queue, self.invoker, self.door)
        self.relay = Relay(self.store, self.queue)

    def app(self) -> App:
        app = App("desk", version="1")

        @app.tool(effect="idempotent")
        async def note(ctx: ToolContext, text: str) -> str:
            """Write a note."""
            self.entered.set()
            await self.go.wait()
            return text

        model = scripted([call("note", text="hello")], "done")
        app.team("desk", agents=[app.agent("clerk", model=model, tools=[note])])
        return app

    async def work(self) -> None:
        while await self.worker.turn():
            pass

    async def settled(self) -> None:
        """What is due is done, and what that starts as well."""
        await self.relay.turn()
        await self.queue.drained()
        await self.invoker.settled()
        await self.queue.drained()

    async def run(self) -> StoredState:
        stored = (await self.store.load([THE_RUN], [])).states[THE_RUN]
        assert stored is not None
        return stored

    async def rewrite(self, body: bytes, status: str) -> None:
        """Somebody else writes the run's state."""
        version = (await self.run()).version
        await self.store.commit([Unit(states=[StateWrite(THE_RUN, "default", version, version + 1, status, body)])])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A run that waits for its tool, and whose state a newer program has written; the tool then ends."""
    desk = Desk()
    working = asyncio.create_task(desk.work())
    tasks = (PlannedTask(id="x", title="x"),)
    submit = SubmitRun(tenant="default", run_id="r1", team="desk", mode="tasks", tasks=tasks, initiator=ALICE)
    await desk.door.ask(submit, message_id="m1", timeout_ms=5_000)
    await desk.entered.wait()
    await desk.queue.drained()
    yield desk
    desk.queue.close()
    await working


async def tool_ends_unheard(desk: Desk) -> StoredState:
    """The run's state as it was before nobody could read it."""
    good = await desk.run()
    assert good.status == "running"
    await desk.rewrite(good.body[:-1] + b',"of_a_newer_version":1}', good.status)
    desk.go.set()
    await desk.settled()
    assert [row["type"] for row in await desk.store.outbox("default", "r1") if row["type"] == "operation.done"]
    return good


async def test_what_a_run_should_hear_waits_until_its_state_can_be_read_again(desk: Desk) -> None:
    good = await tool_ends_unheard(desk)
    for _ in range(3):
        desk.clock.at_ms += HELD_MS
        await desk.settled()
    assert await desk.store.dead_letters("default", run_id=None, limit=9) == []
    text = await desk.door.ask(CancelRun(tenant="default", run_id="r1", by=ALICE), message_id="m2", timeout_ms=5_000)
    assert text is not None
    assert '"final":false' in text
    await desk.rewrite(good.body, good.status)
    desk.clock.at_ms += HELD_MS
    await desk.settled()
    assert (await desk.run()).status == "succeeded"


async def test_what_an_older_version_has_parked_is_redriven_by_a_person(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = await tool_ends_unheard(desk)
    desk.clock.at_ms += HELD_MS
    (row,) = (row for row in await desk.store.claim_due(10, 1_000) if row.type == "operation.done")
    letter = dead_letter(decode_envelope(row.body), Code.MESSAGE_INVALID, "an unknown field", desk.clock.now_ms())
    await desk.store.commit([Unit(dead_letters=[letter], consumed=[row.id])])
    await desk.rewrite(good.body, good.status)
    monkeypatch.setattr(letters, "WAIT_MS", 200)
    application = gateway(desk.door, desk.store, DevelopmentIdentity(TOKEN), tenant="default")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application),
        base_url="http://localhost:7300",
        headers={"Authorization": f"Bearer {TOKEN}"},
    ) as http:
        path = f"/v1/dead-letters/{letter.id}"
        assert (await http.get(path)).json()["applied"] is False
        for _ in range(2):
            assert (await http.post(f"{path}/redrive")).json()["answer"] == "applied"
        assert (await http.get(path)).json()["applied"] is True
    await desk.settled()
    assert (await desk.run()).status == "succeeded"
