"""Decides what is proved of the end of whole runs on every store: who is signalled, what is kept, who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from placet import App, ToolContext, scripted
from placet.activities import CallModel
from placet.calls import ChatMessage, ModelReply
from placet.ids import Address
from placet.messages import THREAD, CancelRun, ContinueRun, Envelope, InterruptRun, SubmitRun
from placet.plans import DirectCall, PlannedTask
from placet.runtime.scripts import ScriptedModels
from tests.cases import case
from tests.embedded.on_store import DEVELOPER, PATIENCE_S, TENANT, Whole, whole

SPEAKS = PlannedTask(id="speaks", title="Speak", assignee="clerk")
ACTS = PlannedTask(id="acts", title="Act", call=DirectCall(tool="wait", input={}))


class Speaking:
    """Models of which each says two words and then waits to be let go on."""

    def __init__(self) -> None:
        self.calls = 0
        self.cleanups: list[str] = []
        self.spoken = asyncio.Event()
        self.go = asyncio.Event()

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        raise AssertionError("it can stream")

    async def stream(
        self, activity: CallModel, conversation: Sequence[ChatMessage], said: Callable[[str], None]
    ) -> ModelReply:
        self.calls += 1
        try:
            said("I have ")
            self.spoken.set()
            await self.go.wait()
            return ModelReply(text="I have done it.")
        finally:
            self.cleanups.append(activity.thread_id)

    async def close(self) -> None: ...


class Desk:
    """A clerk who speaks, and a tool that waits; what reached either."""

    def __init__(self) -> None:
        self.models = Speaking()
        self.acting = asyncio.Event()
        self.signals: list[str] = []
        self.app = App("desk", version="1")

        @self.app.tool(effect="idempotent")
        async def wait(ctx: ToolContext) -> str:
            """Wait."""
            self.acting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.signals.append(ctx.operation_id)
                raise
            return ""

        clerk = self.app.agent("clerk", model=scripted("unused"), tools=[wait])
        self.app.team("desk", agents=[clerk])

    async def busy(self, system: Whole) -> None:
        await system.submit(SPEAKS, ACTS)
        async with asyncio.timeout(PATIENCE_S):
            await self.models.spoken.wait()
            await self.acting.wait()


async def cancel(system: Whole, name: str = "cancel") -> str | None:
    message = CancelRun(tenant=TENANT, run_id="run-1", by=DEVELOPER)
    return await system.embedded.door.ask(message, message_id=name, timeout_ms=PATIENCE_S * 1_000)


async def thread(system: Whole, key: str = "task:speaks") -> dict[str, Any]:
    state = await system.store.state(TENANT, Address("run-1", THREAD, key))
    return dict(state) if state is not None else {"status": None, "body": {}}


class EndingContract:
    """A test class says `adapter` and `make`."""

    adapter: str

    async def make(self) -> Any:
        """An empty store with the time of a real clock."""
        raise NotImplementedError

    @case("J04", "J08", "J17", "J18", "L02")
    async def test_a_cancel_reaches_model_and_tool_once_each_and_what_was_said_is_kept(self) -> None:
        desk = Desk()
        async with whole(desk.app, await self.make(), models=desk.models) as system:
            await desk.busy(system)
            await cancel(system)
            assert "duplicate" in str(await cancel(system, "again"))
            run = await system.status("cancelled")
            await system.embedded.invoker.settled()
            await system.embedded.queue.drained()
            assert (desk.models.cleanups, len(desk.signals)) == (["task:speaks"], 1)
            kept = await thread(system)
            assert (kept["status"], kept["body"]["partial_text"]) == ("closed", "I have ")
            assert {task["status"] for task in run["body"]["tasks"]} == {"skipped"}
            answers = [call for task in run["body"]["tasks"] for call in task["calls"]]
            assert [(call["status"], call["failure"]["code"]) for call in answers] == [("done", "CANCELLED")]
            assert [row["role"] for row in await system.rows("thread_message")] == ["user"]
            journal = await system.store.journal(TENANT, "run-1")
            desk.models.go.set()
            await system.embedded.queue.drained()
            assert await system.store.journal(TENANT, "run-1") == journal, "no write afterwards"

    @case("J07")
    async def test_a_cancel_that_comes_with_the_start_lets_nothing_begin(self) -> None:
        desk = Desk()
        async with whole(desk.app, await self.make(), models=desk.models) as system:
            start = SubmitRun(
                tenant=TENANT, run_id="run-1", team="desk", mode="tasks", tasks=(SPEAKS, ACTS), initiator=DEVELOPER
            )
            stop = CancelRun(tenant=TENANT, run_id="run-1", by=DEVELOPER)
            for name, message in (("start", start), ("stop", stop)):
                system.embedded.queue.put(Envelope(id=name, message=message))  # both in one batch
            await system.status("cancelled")
            await system.embedded.invoker.settled()
            await system.embedded.queue.drained()
            assert (desk.models.calls, desk.acting.is_set()) == (0, False)
            assert (await thread(system))["status"] == "closed"

    @case("J12", "I21")
    async def test_an_interrupted_model_is_stopped_and_the_run_goes_on_with_the_next_instruction(self) -> None:
        desk = Desk()
        async with whole(desk.app, await self.make(), models=desk.models) as system:
            await system.submit(SPEAKS)
            await asyncio.wait_for(desk.models.spoken.wait(), PATIENCE_S)
            wrong = await self.interrupt(system, "task:speaks/2")
            assert "TURN_MISMATCH" in wrong
            assert desk.models.cleanups == [], "the current turn is untouched"
            assert "accepted" in await self.interrupt(system, "task:speaks/1")
            await system.status("suspended")
            await system.embedded.invoker.settled()
            await system.embedded.queue.drained()
            assert (await thread(system))["body"]["partial_text"] == "I have "
            view = await system.get("/v1/runs/run-1")
            assert [(turn["turn"], turn["status"]) for turn in view["turns"]] == [("task:speaks/1", "interrupted")]
            assert "nothing_interrupted" in await self.interrupt(system, "")
            desk.models.go.set()
            further = ContinueRun(tenant=TENANT, run_id="run-1", instruction_id="i-1", text="Go on.", by=DEVELOPER)
            await system.embedded.door.ask(further, message_id="further", timeout_ms=PATIENCE_S * 1_000)
            run = await system.status("succeeded")
            assert (run["body"]["answer"], desk.models.calls) == ("I have done it.", 2)

    async def interrupt(self, system: Whole, turn: str) -> str:
        message = InterruptRun(tenant=TENANT, run_id="run-1", interrupt_id=f"i {turn}", by=DEVELOPER, turn=turn)
        said = await system.embedded.door.ask(message, message_id=f"stop {turn}", timeout_ms=PATIENCE_S * 1_000)
        return str(said)

    @case("J02", "J15", "J21")
    async def test_a_shutdown_gives_back_what_is_at_work_and_the_next_process_finishes_the_same_run(self) -> None:
        desk = Desk()
        store = await self.make()
        async with whole(desk.app, store, models=desk.models) as system:
            await system.submit(SPEAKS)
            await asyncio.wait_for(desk.models.spoken.wait(), PATIENCE_S)
            asker = asyncio.create_task(system.status("succeeded"))
            await asyncio.sleep(0)
            asker.cancel()  # whoever watched has gone, which ends nothing
            await system.embedded.invoker.stop()
            assert desk.models.cleanups == ["task:speaks"]
            kept = await thread(system)
            assert (kept["status"], kept["body"]["partial_text"]) == ("calling", "")
        again = await self.again(store)
        async with whole(desk.app, again, models=ScriptedModels(self.finishing())) as system:
            await system.store.recall(0)
            run = await system.store.state(TENANT, Address("run-1", "run", ""))
            assert run is not None
            assert run["status"] == "running", "neither cancelled nor failed"

    @staticmethod
    def finishing() -> App:
        app = App("desk", version="1")
        app.team("desk", agents=[app.agent("clerk", model=scripted("Done."))])
        return app

    async def again(self, store: Any) -> Any:
        """The same facts in another process."""
        raise NotImplementedError

    @case("J19", "J23")
    async def test_a_run_whose_time_is_over_is_timed_out_and_its_tool_had_no_more_time_than_it(self) -> None:
        desk = Desk()
        async with whole(desk.app, await self.make(), models=desk.models) as system:
            await system.submit(SPEAKS, ACTS, timeout_ms=400)
            async with asyncio.timeout(PATIENCE_S):
                await desk.acting.wait()
            run = await system.status("timed_out", "cancelled", "failed")
            assert (run["status"], run["body"]["failure"]["code"]) == ("timed_out", "DEADLINE")
            await system.embedded.invoker.settled()
            assert desk.models.cleanups == ["task:speaks"]
            assert len(desk.signals) == 1
