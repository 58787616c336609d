"""Proves that a call which another process makes is stopped once the facts say so, and by nobody's word alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from placet.activities import Stop
from placet.adapters.memory import MemoryStore
from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.messages import OPERATION, RUN, THREAD, ToolReturned
from placet.rows import FactKey
from placet.runtime import process
from placet.runtime.ports import Loaded, StateWrite, Unit
from placet.runtime.stopping import EARLY_MAX, Stopping
from tests.cases import case
from tests.runtime.test_engine import SetClock
from tests.runtime.test_invoker import Invoked, a_model_call, a_stop, a_tool_run


class Air:
    """What is said reaches all who listen, whoever says it."""

    def __init__(self) -> None:
        self.said: list[Stop] = []
        self._listeners: list[tuple[Callable[[Stop], None], Callable[[], None]]] = []

    def announce(self, stop: Stop) -> None:
        self.said.append(stop)
        for heard, _ in self._listeners:
            heard(stop)

    def listen(self, heard: Callable[[Stop], None], missed: Callable[[], None]) -> None:
        self._listeners.append((heard, missed))

    def gap(self) -> None:
        for _, missed in self._listeners:
            missed()


class Facts(MemoryStore):
    """The states of runs and calls. `away`: how many loads fail."""

    def __init__(self) -> None:
        super().__init__(SetClock())
        self.away = 0
        self.loads = 0

    async def load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        self.loads += 1
        if self.away:
            self.away -= 1
            raise RetryableError(Code.STORE_UNAVAILABLE, "the store is away")
        return await super().load(addresses, keys)

    async def has(self, status: str, machine: str = RUN, key: str = "", run_id: str = "run-1") -> None:
        write = StateWrite(Address(run_id, machine, key), "acme", 0, 1, status, b"{}")
        await self.commit([Unit(states=[write])])


class Process:
    """One process that makes calls."""

    def __init__(self, air: Air, facts: Facts) -> None:
        self.invoked = Invoked()
        self.stopping = Stopping(self.invoked.invoker, facts, air)

    def start(self, *activities: Any) -> None:
        self.stopping.start(activities, self.stopping.monotonic_ms())

    async def started(self, *activities: Any) -> Process:
        self.start(*activities)
        await self.invoked.world.entered.wait()
        return self


@pytest.fixture
def air() -> Air:
    return Air()


@pytest.fixture
def facts() -> Facts:
    return Facts()


async def idle() -> None:
    """Whatever can go on has gone on."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_tool_that_runs_elsewhere_gets_the_signal_once(air: Air, facts: Facts) -> None:
    here, there = Process(air, facts), await Process(air, facts).started(a_tool_run(1))
    await facts.has("cancelled")
    here.start(a_stop(1))
    here.start(a_stop(1))
    message = await there.invoked.result()
    assert isinstance(message, ToolReturned)
    assert message.outcome.certainty == "unknown"
    assert there.invoked.world.cancelled == ["op_1"]


async def test_a_model_call_that_is_made_elsewhere_gets_it_as_well(air: Air, facts: Facts) -> None:
    here, there = Process(air, facts), await Process(air, facts).started(a_model_call())
    await facts.has("closed", THREAD, "plan")
    here.start(Stop(tenant="acme", run_id="run-1", machine=THREAD, key="plan", reason="the run has ended"))
    await there.invoked.invoker.settled()
    assert there.invoked.world.cancelled == ["plan"]


@case("J12")
@pytest.mark.parametrize(("status", "stopped"), [("failed", ["plan"]), ("waiting", ["plan"]), ("calling", [])])
async def test_a_model_call_whose_turn_was_interrupted_is_stopped_elsewhere_and_one_that_is_wanted_is_not(
    status: str, stopped: list[str], air: Air, facts: Facts
) -> None:
    here, there = Process(air, facts), await Process(air, facts).started(a_model_call())
    await facts.has("running")
    await facts.has(status, THREAD, "plan")
    here.start(Stop(tenant="acme", run_id="run-1", machine=THREAD, key="plan", reason="interrupted by alice"))
    await idle()
    assert there.invoked.world.cancelled == stopped


async def test_what_runs_here_is_signalled_at_once_and_told_to_the_others_all_the_same(air: Air, facts: Facts) -> None:
    here = await Process(air, facts).started(a_tool_run(1))
    here.start(a_stop(1))  # it is this process's own commit that says so: it asks nobody
    await here.invoked.result()
    await idle()
    assert (here.invoked.world.cancelled, len(air.said), facts.loads) == (["op_1"], 1, 0)


@pytest.mark.parametrize("status", ["running", "suspended", None])
async def test_a_stop_that_the_facts_do_not_bear_out_stops_nothing(status: str | None, air: Air, facts: Facts) -> None:
    there = await Process(air, facts).started(a_tool_run(1))
    if status is not None:
        await facts.has(status)
        await facts.has("started", OPERATION, "op_1")
    air.announce(a_stop(1))
    await idle()
    assert (facts.loads, there.invoked.world.cancelled) == (1, [])


async def test_an_attempt_whose_operation_has_its_result_from_another_one_is_stopped(air: Air, facts: Facts) -> None:
    there = await Process(air, facts).started(a_tool_run(1))
    await facts.has("running")
    await facts.has("succeeded", OPERATION, "op_1")
    air.announce(a_stop(1))
    await there.invoked.result()
    assert there.invoked.world.cancelled == ["op_1"]


async def test_a_stop_that_has_overtaken_its_call_finds_it_when_it_begins(air: Air, facts: Facts) -> None:
    there = Process(air, facts)
    await facts.has("cancelled")
    air.announce(a_stop(1))
    there.start(a_tool_run(1))
    assert (await there.invoked.result()).operation_id == "op_1"


async def test_stops_for_others_are_not_kept_for_ever_and_ask_nobody(air: Air, facts: Facts) -> None:
    there = Process(air, facts)
    for number in range(EARLY_MAX + 1):
        air.announce(a_stop(number))
    assert len(there.stopping._early) == EARLY_MAX
    assert facts.loads == 0


async def test_after_a_gap_everything_that_runs_is_looked_at_in_one_load(air: Air, facts: Facts) -> None:
    there = await Process(air, facts).started(a_tool_run(1), a_tool_run(2).model_copy(update={"run_id": "run-2"}))
    await facts.has("cancelled")
    await facts.has("running", run_id="run-2")
    air.gap()
    assert (await there.invoked.result()).run_id == "run-1"
    assert (facts.loads, there.invoked.world.cancelled) == (1, ["op_1"])
    await there.stopping.close()


async def test_a_store_that_is_away_is_asked_again(air: Air, facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BACKOFF_MS", 1)
    there = await Process(air, facts).started(a_tool_run(1))
    await facts.has("cancelled")
    facts.away = 3
    air.announce(a_stop(1))
    await there.invoked.result()
    assert facts.loads == 4


async def test_a_process_that_ends_looks_no_more(air: Air, facts: Facts) -> None:
    there = await Process(air, facts).started(a_tool_run(1))
    facts.away = 1_000
    air.announce(a_stop(1))
    await idle()
    await there.stopping.close()
    await there.stopping.close()
    assert there.invoked.world.cancelled == []
