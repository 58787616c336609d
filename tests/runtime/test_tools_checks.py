"""Right before a tool is called: its targets are looked up anew, its preconditions asked, its files copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from placet import App, ContractError, Executed, NotExecuted, ToolContext, Unsure, calls
from placet.calls import EffectClass
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.runtime.tools import ToolRunner
from tests.runtime.test_tools import NOW, an_attempt, failure_in, in_time

EFFECTS = [effect.value for effect in EffectClass]


class Desk:
    """A tool that pays from an account and looks at what it is told, its hooks, and what happened."""

    def __init__(self, effect: str = "idempotent") -> None:
        self.balance: Any = 900
        self.happened: list[str] = []
        self.app = App("desk", version="1")

        @self.app.tool("act", effect=effect, retry=3)  # type: ignore[arg-type]
        async def act(ctx: ToolContext, account: str = "a", host_id: int = 7) -> str:
            """Pay."""
            self.happened.append("act")
            return "paid"

        if effect == "reconcilable":
            act.reconcile(lambda ctx: Unsure())
        self.tool = act

    async def ran(self, text: str = '{"account":"a","host_id":7}', **activity: Any) -> Any:
        begin_left_ms = activity.pop("begin_left_ms", in_time)
        runner = ToolRunner(self.app, now_ms=lambda: NOW, grace_ms=50)
        return await runner.run(an_attempt(text, **activity), begin_left_ms)


def refused(desk: Desk, outcome: Any, code: Code, error_class: ErrorClass) -> Failure:
    """It surely did not happen, for that reason."""
    assert isinstance(outcome, calls.NotExecuted)
    assert "act" not in desk.happened
    failure = failure_in(outcome)
    assert (failure.code, failure.error_class, failure.certainty) == (code, error_class, Certainty.NOT_EXECUTED)
    return failure


# ── preconditions ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("effect", EFFECTS)
async def test_what_holds_lets_the_tool_be_called_right_after(effect: str) -> None:
    desk = Desk(effect)

    @desk.tool.precondition
    def still_900(ctx: ToolContext, account: str) -> bool:
        desk.happened.append(f"{account}:{ctx.operation_id}:{ctx.attempt}")
        return bool(desk.balance == 900)

    @desk.tool.precondition
    async def and_open(ctx: ToolContext) -> bool:
        desk.happened.append("open")
        return True

    assert await desk.ran() == calls.Executed(result_text='"paid"')
    assert desk.happened == ["a:op_1:2", "open", "act"]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(("answer", "told"), [(False, "called"), ("it is 700", "called: it is 700"), ("", "called")])
async def test_what_does_not_hold_any_more_is_final_and_told(effect: str, answer: Any, told: str) -> None:
    desk = Desk(effect)
    desk.tool.precondition(lambda ctx: True)
    desk.tool.precondition(lambda ctx: answer)
    failure = refused(desk, await desk.ran(), Code.PRECONDITION_FAILED, ErrorClass.APPROVAL)
    assert failure.message.endswith(f"act was not {told}")


@pytest.mark.parametrize("answer", [None, 1, 0, [], Executed(), object()])
async def test_an_answer_that_is_none_lets_nothing_pass(answer: Any) -> None:
    desk = Desk()
    desk.tool.precondition(lambda ctx: answer)
    refused(desk, await desk.ran(), Code.TOOL_RESULT_INVALID, ErrorClass.PERMANENT)


def _raises(error: BaseException) -> Callable[..., Any]:
    def asked(ctx: ToolContext) -> bool:
        raise error

    return asked


@pytest.mark.parametrize(
    ("error", "code", "error_class"),
    [
        (ConnectionError("away"), Code.TOOL_FAILED, ErrorClass.TRANSIENT),
        (TimeoutError(), Code.TOOL_FAILED, ErrorClass.TIMEOUT),
        (ValueError("defect"), Code.TOOL_FAILED, ErrorClass.PERMANENT),
        (SystemExit(3), Code.TOOL_FAILED, ErrorClass.PERMANENT),
        (NotExecuted("it is 700"), Code.PRECONDITION_FAILED, ErrorClass.APPROVAL),
        (NotExecuted("busy", transient=True), Code.TOOL_FAILED, ErrorClass.TRANSIENT),
        (Unsure("no answer"), Code.TOOL_FAILED, ErrorClass.TRANSIENT),
    ],
)
async def test_what_cannot_be_asked_is_not_executed_and_retried_only_if_it_may_pass(
    error: BaseException, code: Code, error_class: ErrorClass
) -> None:
    desk = Desk("non_retriable")
    desk.tool.precondition(_raises(error))
    refused(desk, await desk.ran(), code, error_class)


async def test_a_precondition_that_does_not_answer_uses_up_the_attempts_time() -> None:
    desk = Desk("non_retriable")

    @desk.tool.precondition
    async def slow(ctx: ToolContext) -> bool:
        await asyncio.Event().wait()
        return True

    refused(desk, await desk.ran(timeout_ms=30), Code.TOOL_TIMEOUT, ErrorClass.TIMEOUT)


async def test_tool_and_checks_together_take_no_longer_than_the_tool_may() -> None:
    desk = Desk()
    clock = [5_000.0]
    left_s: list[float] = []

    @desk.tool.precondition
    async def takes_three_seconds(ctx: ToolContext) -> bool:
        left_s.append(ctx.left_s())
        clock[0] -= 3_000
        return True

    @desk.tool.precondition
    async def is_told(ctx: ToolContext) -> bool:
        left_s.append(ctx.left_s())
        return True

    outcome = await desk.ran(timeout_ms=10_000, begin_left_ms=lambda: clock[0])
    assert isinstance(outcome, calls.Executed)
    assert [round(left) for left in left_s] == [10, 7]
    # Three seconds later than it might have begun, with three seconds less: its lease holds all the same.
    desk.happened.clear()
    clock[0] = 1_000.0
    assert isinstance(await desk.ran(timeout_ms=10_000, begin_left_ms=lambda: clock[0]), calls.Executed)
    desk.happened.clear()
    clock[0] = 5_000.0
    refused(
        desk,
        await desk.ran(timeout_ms=3_000, begin_left_ms=lambda: clock[0]),
        Code.TOOL_TIMEOUT,
        ErrorClass.TIMEOUT,
    )


async def test_a_process_that_stood_still_before_the_check_asks_and_calls_nothing() -> None:
    desk = Desk()

    @desk.tool.precondition
    def never_asked(ctx: ToolContext) -> bool:
        desk.happened.append("asked")
        return True

    outcome = await desk.ran(begin_left_ms=lambda: -1.0)
    assert outcome == calls.not_begun("act")
    assert desk.happened == []


async def test_a_signal_while_it_is_asked_calls_nothing() -> None:
    desk = Desk()
    asked = asyncio.Event()

    @desk.tool.precondition
    async def slow(ctx: ToolContext) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    work = asyncio.ensure_future(desk.ran())
    await asked.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert desk.happened == []


# ── targets ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_target_that_still_is_the_reviewed_one_is_acted_on(effect: str) -> None:
    desk = Desk(effect)

    @desk.tool.resolve("host_id")
    async def host(ctx: ToolContext, account: str) -> int:
        desk.happened.append(f"resolve {account}")
        return 7

    assert isinstance(await desk.ran(), calls.Executed)
    assert desk.happened == ["resolve a", "act"]


@pytest.mark.parametrize("now", [8, "7", None, 7.5, True, object()])
async def test_a_name_that_points_elsewhere_by_now_is_stale(now: Any) -> None:
    desk = Desk()
    desk.tool.resolve("host_id")(lambda ctx: now)
    failure = refused(desk, await desk.ran(), Code.APPROVAL_STALE_DECISION, ErrorClass.APPROVAL)
    assert failure.message.startswith("host_id was reviewed as 7 and is ")


async def test_a_target_that_cannot_be_looked_up_is_not_acted_on() -> None:
    desk = Desk()
    desk.tool.resolve("host_id")(_raises(ConnectionError("away")))
    refused(desk, await desk.ran(), Code.TOOL_FAILED, ErrorClass.TRANSIENT)


def _late(desk: Desk) -> None:
    desk.app.check()
    desk.tool.precondition(lambda ctx: True)


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda desk: desk.tool.precondition(lambda ctx, nobody: True), "'nobody', which is no parameter"),
        (lambda desk: desk.tool.precondition(lambda: True), "must take `ctx: ToolContext` first"),
        (lambda desk: desk.tool.resolve("nobody"), "has no parameter 'nobody'"),
        (lambda desk: [desk.tool.resolve("host_id")(lambda ctx: 7) for _ in "ab"], "is there already"),
        (_late, "comes too late"),
    ],
)
def test_a_hook_that_cannot_be_asked_is_refused_when_it_is_declared(declare: Callable[[Desk], Any], told: str) -> None:
    with pytest.raises(ContractError, match=told):
        declare(Desk())
