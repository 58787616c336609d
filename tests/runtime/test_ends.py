"""What an end owes to others: who waits, who comes meanwhile, who comes afterwards, and whoever hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from placet import limits
from placet.adapters.memory import MemoryStore
from placet.adapters.memory_queue import MemoryQueue
from placet.errors import Code, RetryableError
from placet.messages import OPERATION, RUN, THREAD, Envelope, ExecuteOperation
from placet.runtime import service as services
from placet.runtime.engine import Engine
from placet.runtime.ports import CommitResult, Unit
from placet.runtime.worker import Worker
from tests.cases import case
from tests.runtime.test_engine import SetClock
from tests.runtime.test_service import World, started, until
from tests.runtime.test_worker import Record, RecordingPorts, RecordingStore
from tests.runtime.toy import TOYS, NoApplication, submit


@case("L05")
async def test_everybody_is_told_that_a_batch_is_settled_before_any_waiter_gets_its_answer() -> None:
    record = Record()
    ports = RecordingPorts(record, submit("one"), submit("two"))
    engine = Engine({RUN: TOYS[RUN], THREAD: TOYS[THREAD]}, NoApplication(), RecordingStore(record))
    worker = Worker(engine, ports, ports, ports, on_settled=lambda settlement: record.events.append("settled"))
    assert await worker.turn()
    assert record.events == [
        "commit", "settle 2 done 0 back", "settled", "reply r-one", "reply r-two", "start 2",
    ]  # fmt: skip


# ── who comes while a process ends ─────────────────────────────────────────────────────


@case("I12", "I15", "J02")
async def test_what_comes_while_a_process_ends_is_done_by_its_successor_and_after_its_end() -> None:
    world = World()
    dying = world.service()
    await started(world, dying)
    stopping = asyncio.create_task(dying.stop(5_000))
    await until(lambda: not world.queue.takes_in)
    world.execute(2)  # neither lost nor joined to what is dying
    assert [envelope.id for envelope in world.queue.outside] == ["m-2"]
    assert await world.status(2) is None
    world.go.set()
    assert await stopping
    assert world.events[-1] == "close store"
    world.store.restart()
    kept, world.queue = world.queue.outside, type(world.queue)()
    world.entered.clear()
    fresh = world.service()
    fresh.start()
    for envelope in kept:
        world.queue.arrive(envelope)
    await asyncio.wait_for(world.entered.wait(), 5)
    await until(lambda: world.events.count("tool ended") == 2)
    assert await fresh.stop(5_000)
    assert await world.status(2) == "done"


class Troubled(MemoryStore):
    """A store of which the next commit fails, or is cut off."""

    def __init__(self) -> None:
        super().__init__(SetClock())
        self.next: BaseException | None = None

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        trouble, self.next = self.next, None
        if trouble is not None:
            raise trouble
        return await super().commit(units)


@case("I17")
@pytest.mark.parametrize("how", ["success", "refusal", "defect", "failure", "cancel"])
async def test_however_a_step_ends_its_key_is_free_and_the_next_one_is_taken(how: str) -> None:
    """Nothing is held from step to step but what was committed: no lock outlives whoever had it."""
    store, queue = Troubled(), MemoryQueue()
    ports = RecordingPorts(Record())
    engine = Engine({RUN: TOYS[RUN], THREAD: TOYS[THREAD]}, NoApplication(), store)
    worker = Worker(engine, queue, ports, ports)
    queue.put(submit({"refusal": "refuse", "defect": "bug"}.get(how, "one")))
    if how == "failure":
        store.next = RetryableError(Code.STORE_UNAVAILABLE, "away")
        with pytest.raises(RetryableError):
            await worker.turn()
    elif how == "cancel":
        store.next = asyncio.CancelledError()
        with pytest.raises(asyncio.CancelledError):
            await worker.turn()
    else:
        await worker.turn()
    queue.put(submit("two"))
    await worker.turn()
    stored = (await store.load([submit("two").message.to()], [])).states[submit("two").message.to()]
    assert stored is not None
    assert b'"two"' in stored.body
    assert (b'"one"' in stored.body) is (how in ("success", "failure", "cancel")), "what failed came again by itself"


@case("I02", "I01")
async def test_what_comes_while_a_batch_is_committed_is_one_batch_more() -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
            entered.set()
            await gate.wait()
            return await super().commit(units)

    queue, record = MemoryQueue(), Record()
    ports = RecordingPorts(record)
    engine = Engine({RUN: TOYS[RUN], THREAD: TOYS[THREAD]}, NoApplication(), Slow(SetClock()))
    worker = Worker(engine, queue, ports, ports)

    async def work() -> None:
        while await worker.turn():
            pass

    working = asyncio.create_task(work())
    queue.put(submit("first"))
    await asyncio.wait_for(entered.wait(), 5)
    for _ in range(limits.BATCH_MAX):
        queue.put(submit("again"))
    gate.set()
    await asyncio.wait_for(queue.drained(), 5)
    assert [reply for reply, _ in ports.told] == ["r-first", *["r-again"] * limits.BATCH_MAX], "each is answered"
    queue.close()
    await working
    assert [event for event in record.events if event.startswith("start")] == ["start 1", "start 1"], "one pass more"


# ── whoever hangs ──────────────────────────────────────────────────────────────────────


@case("L11")
@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_a_part_that_hangs_or_fails_at_the_end_changes_nothing_and_is_waited_for_only_so_long(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "CLOSE_MS", 20)
    world = World()

    async def flush() -> None:
        if how == "fails":
            raise OSError("the collector is away")
        await asyncio.Event().wait()

    service = world.service(closing=[("telemetry", flush), ("broker", world.closes("broker"))])
    await started(world, service)
    world.go.set()
    async with asyncio.timeout(5):
        assert not await service.stop(5_000), "it says that not all could be closed"
    assert world.events[-2:] == ["close broker", "close store"]
    assert await world.status() == "done"


@case("J04", "L02")
async def test_a_tool_that_is_signalled_is_signalled_once_and_ends() -> None:
    world = World()
    service = world.service()
    await started(world, service)
    world.queue.put(Envelope(id="again", message=ExecuteOperation(tenant="acme", run_id="run-1", operation_id="op_1")))
    assert await service.stop(20)
    assert world.events.count("signal") == 1
    assert service.running_of(OPERATION) == 0
