"""Proves that each activity comes back as one message, that signals reach it, and that a shutdown is no cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from placet import limits
from placet.activities import Activity, CallModel, ProbeTool, RunTool, Stop
from placet.adapters.memory import MemoryStore
from placet.calls import ChatMessage, Executed, ModelReply, ToolOutcome, UserText
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.messages import OPERATION, Envelope, ModelAnswered, ModelFailed, ToolProbed, ToolReturned
from placet.rows import ThreadMessageRow
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import ActivityError, BeginLeft, StateWrite, Unit
from tests.runtime.test_engine import SetClock


class World:
    """Models and tools of one test: each call waits until the test lets it go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.conversations: list[Sequence[ChatMessage]] = []
        self.error: Exception | None = None
        self.cancelled: list[str] = []
        self.begin_left: list[BeginLeft] = []
        self.at_once = self.most_at_once = 0

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        self.conversations.append(conversation)
        await self._work(activity.thread_id)
        return ModelReply(text="done")

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        self.begin_left.append(begin_left_ms)
        await self._work(activity.operation_id)
        return Executed(result_text='"done"')

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        self.begin_left.append(begin_left_ms)
        await self._work(activity.operation_id)
        return Executed(result_text='"found"')

    async def close(self) -> None: ...

    async def _work(self, name: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error


class Invoked:
    """An invoker in its world."""

    def __init__(self, **terms: Any) -> None:
        self.world = World()
        self.store = MemoryStore(SetClock())
        self.results: asyncio.Queue[Envelope] = asyncio.Queue()
        self.invoker = TaskInvoker(self.world, self.world, self.store, self.results.put_nowait, **terms)

    def start(self, activities: Sequence[Activity]) -> None:
        self.invoker.start(activities, self.invoker.monotonic_ms())

    async def result(self) -> Any:
        async with asyncio.timeout(5):
            return (await self.results.get()).message


def a_tool_run(number: int = 1) -> RunTool:
    return RunTool(
        tenant="acme",
        run_id="run-1",
        operation_id=f"op_{number}",
        attempt=1,
        tool="refund",
        agent="clerk",
        input_text="{}",
        idempotency_key=f"op_{number}",
        timeout_ms=1_000,
    )


def a_probe() -> ProbeTool:
    return ProbeTool(
        tenant="acme",
        run_id="run-1",
        operation_id="op_1",
        attempt=1,
        probe=3,
        tool="refund",
        agent="clerk",
        input_text="{}",
        idempotency_key="op_1",
        seal=False,
        timeout_ms=1_000,
    )


def a_model_call(messages: int = 0, timeout_ms: int = 60_000) -> CallModel:
    return CallModel(
        tenant="acme",
        run_id="run-1",
        thread_id="plan",
        turn=1,
        attempt=2,
        purpose="plan",
        team="desk",
        agent="clerk",
        messages=messages,
        timeout_ms=timeout_ms,
    )


def a_stop(number: int = 1) -> Stop:
    return Stop(tenant="acme", run_id="run-1", machine=OPERATION, key=f"op_{number}", reason="the run was cancelled")


async def test_a_tool_run_comes_back_as_one_message() -> None:
    invoked = Invoked()
    invoked.world.go.set()
    invoked.start([a_tool_run()])
    message = await invoked.result()
    assert isinstance(message, ToolReturned)
    assert (message.operation_id, message.attempt, message.outcome.certainty) == ("op_1", 1, "executed")
    await invoked.invoker.settled()
    assert invoked.results.empty()


async def test_a_probe_comes_back_as_what_it_found() -> None:
    invoked = Invoked()
    invoked.world.go.set()
    invoked.start([a_probe()])
    message = await invoked.result()
    assert isinstance(message, ToolProbed)
    assert message.probe == 3


async def test_a_model_is_given_the_conversation_as_far_as_it_was_committed() -> None:
    invoked = Invoked()
    rows = [
        ThreadMessageRow(
            tenant="acme",
            run_id="run-1",
            thread_id="plan",
            n=n,
            role="user",
            body_text=UserText(text=f"message {n}").model_dump_json(),
            said_at_ms=1,
        )
        for n in (1, 2, 3)
    ]
    write = StateWrite(rows[0].owner(), "acme", 0, 1, "calling", b"{}")
    await invoked.store.commit([Unit(states=[write], rows=list(rows))])
    invoked.world.go.set()
    invoked.start([a_model_call(messages=2)])
    message = await invoked.result()
    assert isinstance(message, ModelAnswered)
    assert (message.turn, message.attempt, message.reply.text) == (1, 2, "done")
    assert invoked.world.conversations == [[UserText(text="message 1"), UserText(text="message 2")]]


@pytest.mark.parametrize(
    ("error", "code", "error_class"),
    [
        (
            ActivityError(Failure(code=Code.MODEL_FAILED, message="503", error_class=ErrorClass.TRANSIENT)),
            Code.MODEL_FAILED,
            ErrorClass.TRANSIENT,
        ),
        (ValueError("a bug"), Code.MODEL_FAILED, ErrorClass.PERMANENT),
    ],
)
async def test_a_model_that_fails_comes_back_as_a_failure(
    error: Exception, code: Code, error_class: ErrorClass
) -> None:
    invoked = Invoked()
    invoked.world.error = error
    invoked.world.go.set()
    invoked.start([a_model_call()])
    message = await invoked.result()
    assert isinstance(message, ModelFailed)
    assert (message.failure.code, message.failure.error_class) == (code, error_class)


async def test_a_model_that_does_not_answer_in_time_is_a_time_out() -> None:
    invoked = Invoked()
    invoked.start([a_model_call(timeout_ms=20)])
    message = await invoked.result()
    assert isinstance(message, ModelFailed)
    assert message.failure.error_class is ErrorClass.TIMEOUT


async def test_a_tool_runner_that_raises_leaves_the_outcome_unknown() -> None:
    invoked = Invoked()
    invoked.world.error = ValueError("a bug")
    invoked.world.go.set()
    invoked.start([a_tool_run()])
    message = await invoked.result()
    assert message.outcome.certainty == "unknown"
    assert message.outcome.failure.certainty is Certainty.UNKNOWN


async def test_a_cancelled_tool_gets_the_signal_and_its_outcome_is_unknown() -> None:
    invoked = Invoked()
    invoked.start([a_tool_run(1), a_tool_run(2)])
    await invoked.world.entered.wait()
    invoked.start([a_stop(1)])
    message = await invoked.result()
    assert (message.operation_id, message.outcome.certainty) == ("op_1", "unknown")
    assert message.outcome.failure.code is Code.CANCELLED
    assert invoked.world.cancelled == ["op_1"]
    invoked.world.go.set()
    assert (await invoked.result()).operation_id == "op_2"


async def test_a_cancel_reaches_a_tool_that_still_waits_for_a_place_and_surely_did_nothing() -> None:
    invoked = Invoked(tools_max=1)
    invoked.start([a_tool_run(1), a_tool_run(2)])
    await invoked.world.entered.wait()
    invoked.start([a_stop(2)])
    message = await invoked.result()
    assert (message.operation_id, message.outcome.certainty) == ("op_2", "not_executed")
    invoked.world.go.set()
    await invoked.invoker.settled()


async def test_what_is_cancelled_in_the_turn_that_starts_it_does_not_begin_and_says_so() -> None:
    invoked = Invoked()
    invoked.start([a_tool_run(1), a_stop(1)])
    message = await invoked.result()
    assert (message.outcome.certainty, message.outcome.failure.code) == ("not_executed", Code.CANCELLED)
    invoked.start([a_probe(), a_stop(1)])
    message = await invoked.result()
    assert message.outcome.certainty == "unknown", "of a probe that does not begin, nothing is learned"
    call = a_model_call()
    invoked.start([call])
    assert invoked.invoker.stop_calls(call.owner(), "closed") == 1
    await invoked.invoker.settled()
    assert invoked.world.conversations == []
    assert not invoked.world.entered.is_set()


async def test_a_call_is_signalled_once_however_often_it_is_stopped() -> None:
    invoked = Invoked()
    invoked.start([a_tool_run(1)])
    await invoked.world.entered.wait()
    owner = a_tool_run(1).owner()
    assert invoked.invoker.owners() == [owner]
    assert [invoked.invoker.stop_calls(owner, "cancelled") for _ in range(3)] == [1, 0, 0]
    await invoked.result()
    assert invoked.world.cancelled == ["op_1"]


async def test_no_more_tools_run_at_a_time_than_there_are_places() -> None:
    invoked = Invoked(tools_max=3)
    invoked.start([a_tool_run(number) for number in range(20)])
    for _ in range(100):
        await asyncio.sleep(0)
    assert invoked.world.at_once == 3
    invoked.world.go.set()
    for _ in range(20):
        await invoked.result()
    assert invoked.world.most_at_once == 3


class Elapsing:
    """This process's time, as a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


async def test_a_tool_is_told_how_long_it_may_still_begin() -> None:
    time = Elapsing()
    invoked = Invoked(monotonic_ms=time)
    invoked.world.go.set()
    time.now_ms = limits.LEASE_MARGIN_MS - 1.0
    invoked.invoker.start([a_tool_run()], 0.0)
    await invoked.result()
    time.now_ms = limits.LEASE_MARGIN_MS + 1.0
    assert [left() for left in invoked.world.begin_left] == [-1.0]


async def test_what_waits_for_a_place_until_it_is_too_late_is_not_called_and_says_so() -> None:
    time = Elapsing()
    invoked = Invoked(tools_max=1, monotonic_ms=time)
    invoked.start([a_tool_run(1)])
    await invoked.world.entered.wait()
    time.now_ms = limits.LEASE_MARGIN_MS - 10.0
    invoked.invoker.start([a_tool_run(2), a_probe()], 0.0)
    told = [await invoked.result(), await invoked.result()]
    assert [type(message) for message in told] == [ToolReturned, ToolProbed]
    assert [message.outcome.certainty for message in told] == ["not_executed", "unknown"]
    assert {message.outcome.failure.code for message in told} == {Code.TOOL_NOT_BEGUN}
    invoked.world.go.set()
    assert (await invoked.result()).operation_id == "op_1"
    invoked.start([a_tool_run(3)])  # whoever gave up waiting has taken no place with it
    assert (await invoked.result()).outcome.certainty == "executed"
    assert len(invoked.world.begin_left) == 2


async def test_a_draining_invoker_calls_no_model_and_still_starts_what_is_committed_as_started() -> None:
    invoked = Invoked()
    invoked.world.go.set()
    invoked.invoker.drain()
    invoked.start([a_model_call(), a_tool_run()])
    assert isinstance(await invoked.result(), ToolReturned)
    await invoked.invoker.settled()
    assert invoked.world.conversations == []


async def test_a_shutdown_is_no_cancel_and_reports_nothing() -> None:
    invoked = Invoked()
    invoked.start([a_tool_run()])
    await invoked.world.entered.wait()
    await invoked.invoker.stop()
    assert invoked.world.cancelled == ["op_1"]
    assert invoked.results.empty()
    assert invoked.invoker.running == 0
    invoked.start([a_tool_run(2)])
    assert invoked.invoker.running == 0


async def test_the_same_result_has_the_same_message_id() -> None:
    ids = set()
    for _ in range(2):
        invoked = Invoked()
        invoked.world.go.set()
        invoked.start([a_tool_run()])
        async with asyncio.timeout(5):
            ids.add((await invoked.results.get()).id)
    assert len(ids) == 1
