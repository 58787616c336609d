"""Decides how the whole system is put on any store, with its HTTP door, so that a case is proved on each of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from placet import App
from placet.adapters.memory_queue import MemoryDoor, MemoryQueue
from placet.ids import Address
from placet.machine import Machine
from placet.messages import OPERATION, RUN, DecideApproval, SubmitRun
from placet.plans import DirectCall, PlannedTask
from placet.runtime.engine import Engine, Settlement
from placet.runtime.files import ToolFiles
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import Models
from placet.runtime.process import Loops
from placet.runtime.relay import CLAIM_MS, Relay
from placet.runtime.scripts import ScriptedModels
from placet.runtime.tools import ToolRunner
from placet.runtime.worker import Worker
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import Embedded
from placet_embedded.system import machines
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity

TENANT = "default"
TOKEN = "t" * 43
DEVELOPER = Principal(kind=PrincipalKind.HUMAN, id="developer")
ALICE = Principal(kind=PrincipalKind.HUMAN, id="alice")
PATIENCE_S = 30


class Whole:
    """The running system on a store."""

    def __init__(self, embedded: Embedded) -> None:
        self.embedded = embedded
        self.store: Any = embedded.store
        http = gateway(embedded.door, embedded.store, DevelopmentIdentity(TOKEN), tenant=TENANT)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=http),
            base_url="http://127.0.0.1",
            headers={"authorization": f"Bearer {TOKEN}"},
        )

    async def submit(self, *tasks: PlannedTask, run_id: str = "run-1", **message: Any) -> None:
        """Start a run of these tasks, or of a goal."""
        fields: dict[str, Any] = {"mode": "tasks", "tasks": tasks} if tasks else {"goal": "pay"}
        submitted = SubmitRun(tenant=TENANT, run_id=run_id, team="desk", initiator=DEVELOPER, **{**fields, **message})
        await self.embedded.door.ask(submitted, message_id=f"submit-{run_id}", timeout_ms=PATIENCE_S * 1_000)

    async def pay(self, run_id: str = "run-1", tool: str = "pay", **given: Any) -> None:
        """Start a run that is one call."""
        await self.submit(PlannedTask(id="pay", title="Pay", call=DirectCall(tool=tool, input=given)), run_id=run_id)

    async def until(self, done: Callable[[], Any], run_id: str = "run-1") -> Any:
        """Wait for what `done` finds."""
        changes = self.embedded.door.changes(run_id)
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await done()):
                await anext(changes)
            return found

    async def eventually(self, done: Callable[[], Any]) -> Any:
        """The same for what changes no run, so that nobody tells."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await done()):  # noqa: ASYNC110 — nobody tells
                await asyncio.sleep(0.02)
            return found

    async def status(self, *statuses: str, run_id: str = "run-1") -> dict[str, Any]:
        """Wait until the run has one of these; its state."""

        async def done() -> dict[str, Any] | None:
            state = await self.store.state(TENANT, Address(run_id, RUN, ""))
            return state if state is not None and state["status"] in statuses else None

        return dict(await self.until(done, run_id))

    async def asked(self, run_id: str = "run-1") -> dict[str, Any]:
        """Wait for the one question of the run that is open."""

        async def done() -> dict[str, Any] | None:
            rows = await self.store.requests(TENANT, open_only=True, limit=100, after=None)
            return next((row for row in rows if row["run_id"] == run_id), None)

        return dict(await self.until(done, run_id))

    async def decide(
        self, request: dict[str, Any], word: str = "approve", decision_id: str = "d-1", by: Principal = ALICE
    ) -> dict[str, Any]:
        """Say a word; the receipt."""
        decision = DecideApproval(
            tenant=TENANT,
            run_id=request["run_id"],
            request_id=request["request_id"],
            decision_id=decision_id,
            request_hash=request["request_hash"],
            decision=word,
            reviewer=by,
        )
        said = await self.embedded.door.ask(decision, message_id=decision_id, timeout_ms=PATIENCE_S * 1_000)
        assert said is not None
        return dict(json.loads(said))

    async def rows(self, table: str, run_id: str = "run-1") -> list[dict[str, Any]]:
        """All rows of a table."""
        return list(await self.store.rows(TENANT, table, run_id))

    async def operation(self, run_id: str = "run-1") -> dict[str, Any]:
        """The state of the run's one operation."""
        [row] = await self.rows("operation", run_id)
        return dict(await self.store.state(TENANT, Address(run_id, OPERATION, row["operation_id"])))

    async def get(self, path: str) -> Any:
        """What the door says."""
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def a_team(app: App, *tools: Any) -> App:
    """The team `desk`, whose agent has these tools."""
    from placet import scripted

    clerk = app.agent("clerk", model=scripted("Done."), tools=list(tools))
    app.team("desk", agents=[clerk])
    return app


@asynccontextmanager
async def whole(
    app: App,
    store: Any,
    *,
    models: Models | None = None,
    files: ToolFiles | None = None,
    rules: Mapping[str, Machine[Any]] | None = None,
) -> AsyncIterator[Whole]:
    """The whole system on a store; in the end both are closed. `rules`: in place of those of these machines."""
    queue = MemoryQueue()
    door = MemoryDoor(queue)
    models = models or ScriptedModels(app)
    invoker = TaskInvoker(models, ToolRunner(app, files=files), store, queue.put)

    def settled(settlement: Settlement) -> None:
        loops.settled(settlement)
        door.hint(settlement.changed)

    engine = Engine({**machines(), **(rules or {})}, app, store, claim_ms=CLAIM_MS)
    loops = Loops(Worker(engine, queue, invoker, door, outlet=queue, on_settled=settled), Relay(store, queue))
    loops.start()
    system = Whole(Embedded(app, store, queue, door, models, invoker, loops))
    try:
        yield system
    finally:
        await system.http.aclose()
        await system.embedded.stop(grace_ms=1_000)
