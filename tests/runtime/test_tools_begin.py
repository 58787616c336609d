"""A tool's code is called in time or not at all, and by no clock that somebody else might disagree with."""

from __future__ import annotations

import asyncio
import threading

import pytest

from placet import App, ToolContext, calls
from placet.errors import ErrorClass
from placet.instants import Instant
from placet.runtime.tools import ToolRunner
from tests.runtime.test_tools import EFFECTS, NOW, an_attempt, failure_in, in_time, probed, runner_of


@pytest.mark.parametrize("skew_ms", [3_600_000, -3_600_000])
async def test_the_clock_of_the_machine_decides_nothing(skew_ms: int) -> None:
    clock_ms = NOW
    app = App("desk", version="1")

    @app.tool(effect="idempotent")
    async def act(ctx: ToolContext) -> float:
        nonlocal clock_ms
        clock_ms = Instant(NOW + skew_ms)
        return ctx.left_s()

    outcome = await ToolRunner(app, now_ms=lambda: clock_ms).run(an_attempt(timeout_ms=30_000), in_time)
    assert isinstance(outcome, calls.Executed)
    assert 20 < float(outcome.result_text) <= 30


class Patience:
    """How much time is left to begin, as a test says it: so many answers are 1 ms, all others that it is over."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def __call__(self) -> float:
        self.left -= 1
        return 1.0 if self.left >= 0 else -1.0


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("plain", [True, False])
async def test_what_could_not_begin_in_time_is_not_called(effect: str, plain: bool) -> None:
    called: list[int] = []

    def in_a_thread(ctx: ToolContext) -> None:
        called.append(1)

    async def in_the_loop(ctx: ToolContext) -> None:
        called.append(1)

    runner = runner_of(in_a_thread if plain else in_the_loop, effect)
    # Plain functions are asked once more, before they wait for a thread: in the thread itself it is too late.
    outcome = await runner.run(an_attempt(), Patience(1 if plain else 0))
    assert outcome == calls.not_begun("act")
    assert failure_in(outcome).error_class is ErrorClass.TRANSIENT
    assert called == []


async def test_a_plain_function_waits_for_a_thread_only_while_it_may_begin() -> None:
    entered, go_on = threading.Event(), threading.Event()
    called: list[str] = []
    app = App("desk", version="1")

    @app.tool(effect="idempotent")
    def act(ctx: ToolContext, name: str) -> None:
        called.append(name)
        entered.set()
        assert go_on.wait(5)

    @app.tool(effect="idempotent")
    async def other(ctx: ToolContext) -> None:
        called.append("other")

    runner = ToolRunner(app, now_ms=lambda: NOW, threads_max=1)
    first = asyncio.ensure_future(runner.run(an_attempt('{"name":"first"}'), in_time))
    await asyncio.to_thread(entered.wait, 5)
    assert await runner.run(an_attempt('{"name":"second"}'), lambda: 20.0) == calls.not_begun("act")
    assert isinstance(await runner.run(an_attempt(tool="other"), in_time), calls.Executed)
    third = asyncio.ensure_future(runner.run(an_attempt('{"name":"third"}'), in_time))
    go_on.set()
    assert [type(outcome) for outcome in await asyncio.gather(first, third)] == [calls.Executed] * 2
    assert called == ["first", "other", "third"]


async def test_a_probe_that_could_not_begin_in_time_knows_nothing_and_seals_nothing() -> None:
    def handler(ctx: ToolContext) -> object:
        raise AssertionError("called too late")

    outcome = await probed(None, handler=handler, seal=True, begin_left_ms=lambda: -1.0)
    assert outcome == calls.probe_not_begun("act")
    assert isinstance(outcome, calls.Unsure)
