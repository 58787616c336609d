"""Proves how a service process ends: in which order, what it waits for, what it gives back, and that it ends once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from placet.activities import ProbeTool, RunTool
from placet.adapters.memory import MemoryStore
from placet.adapters.memory_queue import MemoryQueue
from placet.calls import Executed, ToolOutcome
from placet.errors import Code, RetryableError
from placet.facts import Facts
from placet.ids import Address
from placet.instants import Instant
from placet.machine import Invoke, Send, State, Transition, absorb, move
from placet.messages import OPERATION, Envelope, ExecuteOperation, Message, OperationDone, ToolReturned
from placet.rows import FactKey
from placet.runtime.ports import BeginLeft, CommitResult, Delivery, OutboxRow, Unit
from placet.runtime.service import Ports, Service
from tests.cases import case
from tests.runtime.test_engine import SetClock
from tests.runtime.toy import TOYS, NoApplication, submit


class Calling(State):
    """What became of the call."""


class CallingMachine:
    """`operation`: runs its tool, and tells the run what came of it."""

    name = OPERATION
    state_type = Calling
    messages: frozenset[type[Message]] = frozenset({ExecuteOperation, ToolReturned})

    def reads(self, message: Message) -> Sequence[FactKey]:
        return ()

    def transition(self, state: Calling | None, message: Message, facts: Facts, now_ms: Instant) -> Transition[Calling]:
        about: dict[str, Any] = {"tenant": message.tenant, "run_id": message.run_id}
        if isinstance(message, ExecuteOperation) and state is None:
            activity = RunTool(
                **about, operation_id=message.operation_id, attempt=1, tool="t", agent="a", input_text="{}",
                idempotency_key="k", timeout_ms=60_000,
            )  # fmt: skip
            return move(Calling(**about, status="started"), Invoke(activity))
        if isinstance(message, ToolReturned):
            done = OperationDone(**about, operation_id=message.operation_id, status="succeeded")
            return move(Calling(**about, status="done"), Send(done))
        return absorb("started already")


class Queue(MemoryQueue):
    """A queue with an outside: what comes from there after the intake has stopped stays there."""

    def __init__(self) -> None:
        super().__init__()
        self.takes_in = True
        self.outside: list[Envelope] = []

    def arrive(self, envelope: Envelope) -> None:
        if self.takes_in:
            self.put(envelope)
        else:
            self.outside.append(envelope)

    async def stop_intake(self) -> None:
        self.takes_in = False


class World:
    """Tool, queue, broker and store of one service, and what happened to them, in order."""

    connections = 1

    def __init__(self) -> None:
        self.events: list[str] = []
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.published: list[OutboxRow] = []
        self.queue = Queue()
        self.store = RecordingStore(self)
        self.stubborn = False

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.events.append("signal")
            if not self.stubborn:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        self.events.append("tool ended")
        return Executed(result_text="1")

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        raise NotImplementedError

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        self.published += rows
        self.events.append("publish")
        return [row.id for row in rows]

    async def send(self, reply_to: str, text: str) -> None:
        self.events.append(f"reply {reply_to}")

    def closes(self, name: str) -> Any:
        async def close() -> None:
            self.events.append(f"close {name}")

        return close

    def service(self, *, machines: Any = None, tools: bool = True, **more: Any) -> Service:
        return Service(
            "toy",
            Ports(
                machines=machines or {OPERATION: CallingMachine()},
                application=NoApplication(),
                store=self.store,
                inbox=self.queue,
                outlet=self,
                replies=self,
                tools=self if tools else None,
                closing=more.pop("closing", [("models", self.closes("models")), ("broker", self.closes("broker"))]),
                **more,
            ),
        )

    def execute(self, number: int = 1) -> None:
        message = ExecuteOperation(tenant="acme", run_id="run-1", operation_id=f"op_{number}")
        self.queue.arrive(Envelope(id=f"m-{number}", message=message))

    async def status(self, number: int = 1) -> str | None:
        address = Address("run-1", OPERATION, f"op_{number}")
        self.store.restart()  # readable again after its end
        stored = (await MemoryStore.load(self.store, [address], [])).states[address]
        return None if stored is None else stored.status


class RecordingStore(MemoryStore):
    def __init__(self, world: World) -> None:
        super().__init__(SetClock())
        self.world = world
        self.away = False

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        if self.away:
            raise RetryableError(Code.STORE_UNAVAILABLE, "away")
        self.world.events.append("commit")
        return await super().commit(units)

    async def close(self) -> None:
        self.world.events.append("close store")
        await super().close()


@pytest.fixture
def world() -> World:
    return World()


async def until(condition: Callable[[], object]) -> None:
    """Until it holds; whatever happens meanwhile happens in this loop."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  no event tells what is asked for here
            await asyncio.sleep(0.001)


async def started(world: World, service: Service) -> None:
    """Until the tool of the first operation runs."""
    service.start()
    world.execute()
    async with asyncio.timeout(5):
        await world.entered.wait()


@case("L01")
async def test_the_end_takes_nothing_more_waits_for_the_tool_publishes_and_closes_in_order(world: World) -> None:
    service = world.service()
    await started(world, service)
    world.events.clear()
    stopping = asyncio.create_task(service.stop(5_000))
    await asyncio.sleep(0.01)
    world.execute(2)  # too late: it stays in its queue
    assert not service.report().ready
    assert service.report().live
    assert service.report().body["draining"] is True
    world.go.set()
    assert await stopping
    assert world.events == ["tool ended", "commit", "publish", "close models", "close broker", "close store"]
    assert [row.type for row in world.published] == ["operation.done"]
    assert await world.status() == "done"
    assert [envelope.id for envelope in world.queue.outside] == ["m-2"]


@case("L01")
async def test_what_outlasts_the_grace_is_signalled_and_what_it_still_says_is_committed(world: World) -> None:
    world.stubborn = True
    service = world.service()
    await started(world, service)
    world.events.clear()
    assert await service.stop(20)
    assert world.events[:4] == ["signal", "tool ended", "commit", "publish"]
    assert await world.status() == "done"


async def test_work_that_gives_up_on_the_signal_stays_open_for_its_lease(world: World) -> None:
    service = world.service()
    await started(world, service)
    assert await service.stop(20)
    assert await world.status() == "started"
    assert world.published == []


@case("L10")
async def test_stopping_twice_also_at_once_is_one_stop(world: World) -> None:
    service = world.service()
    await started(world, service)
    world.go.set()
    assert all(await asyncio.gather(service.stop(5_000), service.stop(5_000)))
    assert await service.stop(0)
    assert world.events.count("close store") == 1


@case("L02")
async def test_a_stop_whose_caller_is_cancelled_still_ends_and_once(world: World) -> None:
    service = world.service()
    await started(world, service)
    caller = asyncio.create_task(service.stop(5_000))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    world.go.set()
    assert await service.stop(0)
    assert world.events.count("close store") == 1


@case("L03")
async def test_what_fails_to_close_is_told_and_the_store_is_closed_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise OSError("the broker is gone")

    service = world.service(closing=[("broker", fail), ("replies", world.closes("replies"))])
    service.start()
    with caplog.at_level(logging.ERROR):
        assert not await service.stop(0)
    assert world.events[-2:] == ["close replies", "close store"]
    assert "service.close_failed" in caplog.text


async def test_a_store_that_is_away_does_not_hold_up_the_end_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placet.runtime.service.SETTLE_MS", 30)
    service = world.service()
    await started(world, service)
    world.store.away = True
    world.go.set()
    async with asyncio.timeout(5):
        await service.stop(30)
    assert world.events[-1] == "close store"


async def test_while_it_ends_nothing_is_handed_over_but_goes_to_whoever_lives(world: World) -> None:
    service = world.service(machines=TOYS)
    service.start()
    world.queue.arrive(submit("one", run_id="a"))
    await until(lambda: "reply r-one" in world.events)
    assert world.published == [], "handed over within the process"
    service._engine.hand_over_no_more()
    world.queue.arrive(submit("two", run_id="b"))
    await until(lambda: world.published)
    assert [(row.run_id, row.type) for row in world.published] == [("b", "thread.close")]
    await service.stop(0)


async def test_what_a_process_must_not_do_ends_it_aloud(world: World, caplog: pytest.LogCaptureFixture) -> None:
    service = world.service(tools=False)
    service.start()
    world.execute()
    async with asyncio.timeout(5):
        await service.ended()
    report = service.report()
    assert not report.live
    assert not report.ready
    assert "starts no tool.run" in report.body["loops"]["worker"]
    assert not world.entered.is_set()
    await service.stop(0)


async def test_a_failing_store_makes_it_unready_but_not_dead(world: World) -> None:
    world.store.away = True
    service = world.service()
    service.start()
    world.execute()
    await until(lambda: not service.report().ready)
    report = service.report()
    assert report.live
    assert report.body["loops"]["worker"] == "away"
    world.store.away = False
    await until(lambda: service.report().ready)
    world.go.set()
    await service.stop(1_000)


async def test_a_broken_connection_makes_it_unready_and_is_named(world: World) -> None:
    trouble: list[str | None] = [None]
    service = world.service(troubles={"outlet": lambda: trouble[0]})
    service.start()
    assert service.report().ready
    trouble[0] = "connection refused"
    assert not service.report().ready
    assert service.report().body["connections"] == {"outlet": "connection refused"}
    assert service.report().live
    await service.stop(0)


async def test_a_batch_that_is_stuck_makes_it_dead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = asyncio.Event()

    async def commit(units: Sequence[Unit]) -> Sequence[CommitResult]:
        await stuck.wait()
        return await MemoryStore.commit(world.store, units)

    monkeypatch.setattr(world.store, "commit", commit)
    monkeypatch.setattr("placet.runtime.service.STALLED_MS", 10)
    monkeypatch.setattr("placet.runtime.service.SETTLE_MS", 10)
    service = world.service()
    service.start()
    world.execute()
    await until(lambda: not service.report().live)
    assert "in hand" in service.report().body["loops"]["worker"]
    stuck.set()
    world.go.set()
    await service.stop(1_000)


async def test_what_changed_is_hinted_after_the_commit(world: World) -> None:
    hinted: list[tuple[Any, bool]] = []
    service = world.service(hint=lambda changed: hinted.append((changed, "commit" in world.events)))
    await started(world, service)
    assert hinted == [({"run-1": {"operation:started"}}, True)]
    world.go.set()
    await service.stop(1_000)


async def test_a_queue_that_closes_itself_ends_the_service(world: World) -> None:
    service = world.service()
    service.start()
    world.queue.close()
    async with asyncio.timeout(5):
        await service.ended()
    await service.stop(0)


async def test_a_delivery_in_hand_at_the_end_is_settled_before_the_broker_is_closed(world: World) -> None:
    settled: list[str] = []
    real = world.queue.settle

    async def settle(done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        settled.extend(delivery.envelope.id for delivery in done)
        assert "close broker" not in world.events
        await real(done, back)

    world.queue.settle = settle  # type: ignore[method-assign]
    service = world.service(machines={**TOYS, OPERATION: CallingMachine()})
    world.queue.arrive(submit("one"))
    service.start()
    await until(lambda: settled)
    await service.stop(1_000)
    assert settled == ["m-run-1-one"]


async def test_what_never_began_is_not_drained_and_closes_in_order(world: World) -> None:
    assert await world.service().stop(0)
    assert world.events == ["close models", "close broker", "close store"]


async def test_the_probes_tell_what_is_held_up_and_calls_are_counted_by_their_kind(world: World) -> None:
    service = world.service(notes={"inbox": lambda: {"held": 3}})
    await started(world, service)
    body = service.report().body
    assert (body["inbox"], body["unpublished"], body["outbox_lag_ms"]) == ({"held": 3}, 0, 0)
    assert (service.running_of(OPERATION), service.running_of("thread"), service.running) == (1, 0, 1)
    world.go.set()
    assert await service.stop(5_000)
