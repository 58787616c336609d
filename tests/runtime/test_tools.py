"""One attempt of a tool: called once, in time, and what became of its effect is said as a type."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from placet import App, Executed, Failed, NotExecuted, ToolContext, Unsure, calls
from placet.activities import ProbeTool, RunTool
from placet.calls import EffectClass, ToolOutcome
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.instants import Instant
from placet.limits import RESULT_BYTES_MAX
from placet.runtime.tools import ToolRunner

NOW = Instant(1_785_000_000_000)
EFFECTS = [effect.value for effect in EffectClass]


def runner_of(function: Callable[..., Any], effect: str = "idempotent", **terms: Any) -> ToolRunner:
    """A runner of one tool, `act`."""
    app = App("desk", version="1")
    tool = app.tool("act", effect=effect, **terms)(function)  # type: ignore[arg-type]
    if effect == "reconcilable":
        tool.reconcile(lambda ctx: Unsure())
    return ToolRunner(app, now_ms=lambda: NOW, grace_ms=200)


def an_attempt(text: str = "{}", *, timeout_ms: int = 5_000, tool: str = "act") -> RunTool:
    return RunTool(
        tenant="t",
        run_id="r",
        operation_id="op_1",
        attempt=2,
        tool=tool,
        agent="worker",
        input_text=text,
        idempotency_key="op_1",
        timeout_ms=timeout_ms,
    )


def in_time() -> float:
    return 5_000.0


async def ran(function: Callable[..., Any], effect: str = "idempotent", **activity: Any) -> ToolOutcome:
    return await runner_of(function, effect).run(an_attempt(**activity), in_time)


def failure_in(outcome: ToolOutcome) -> Failure:
    assert outcome.failure is not None
    assert outcome.failure.certainty.value == outcome.certainty or isinstance(outcome, calls.Executed)
    return outcome.failure


# ── what it is given and gives ─────────────────────────────────────────────────────────


async def test_a_tool_gets_typed_arguments_and_its_context() -> None:
    seen: list[Any] = []

    async def act(ctx: ToolContext, when: Certainty, times: int = 1) -> dict[str, Any]:
        seen.append((when, times))
        assert 1.9 < ctx.left_s() <= 2.0
        return {
            "id": ctx.operation_id,
            "key": ctx.idempotency_key,
            "n": ctx.attempt,
            "by": ctx.deadline,
            "who": ctx.agent,
        }

    outcome = await ran(act, text='{"times":3,"when":"executed"}', timeout_ms=2_000)
    assert isinstance(outcome, calls.Executed)
    assert seen == [(Certainty.EXECUTED, 3)]
    assert outcome.result_text == (f'{{"by":{NOW + 2_000},"id":"op_1","key":"op_1","n":2,"who":"worker"}}')


async def test_a_plain_function_runs_in_a_thread_and_holds_up_nobody() -> None:
    go_on = threading.Event()

    def act(ctx: ToolContext) -> str:
        assert go_on.wait(5)
        return threading.current_thread().name

    running = asyncio.ensure_future(ran(act))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(go_on.set)  # only a loop that is free gets to this
    outcome = await running
    assert isinstance(outcome, calls.Executed)
    assert outcome.result_text == '"placet-tool"'


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "null"),
        ("é", '"é"'),
        (1.0, "1"),
        ((1, {"b": 1, "a": 2}), '[1,{"a":2,"b":1}]'),
        (Certainty.UNKNOWN, '"unknown"'),
    ],
)
async def test_a_result_is_kept_as_canonical_json(result: object, text: str) -> None:
    for answer in (result, Executed(result)):
        outcome = await ran(lambda_of(answer))
        assert outcome == calls.Executed(result_text=text)


@pytest.mark.parametrize(
    "result",
    [object(), float("nan"), 2**60, "\ud800", {"a": threading.Lock()}, "x" * RESULT_BYTES_MAX],
    ids=["object", "nan", "big integer", "surrogate", "lock", "too large"],
)
async def test_a_result_that_cannot_be_kept_does_not_undo_the_effect(result: object) -> None:
    outcome = await ran(lambda_of(result))
    assert isinstance(outcome, calls.Executed)
    assert failure_in(outcome).code is Code.TOOL_RESULT_INVALID
    assert failure_in(outcome).certainty is Certainty.EXECUTED


# ── certainty ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("raised", [True, False])
async def test_what_the_tool_says_counts_whether_raised_or_returned(effect: str, raised: bool) -> None:
    said = NotExecuted("the branch is protected", transient=True, retry_after_s=1.5)
    outcome = await ran(raiser_of(said) if raised else lambda_of(said), effect)
    assert isinstance(outcome, calls.NotExecuted)
    failure = failure_in(outcome)
    assert (failure.message, failure.error_class, failure.retry_after_ms) == (
        "the branch is protected",
        ErrorClass.TRANSIENT,
        1_500,
    )
    said_unsure = Unsure("no receipt")
    outcome = await ran(raiser_of(said_unsure) if raised else lambda_of(said_unsure), effect)
    assert isinstance(outcome, calls.Unsure)
    assert (failure_in(outcome).message, failure_in(outcome).error_class) == ("no receipt", ErrorClass.TRANSIENT)


async def test_a_refusal_is_final_unless_the_tool_says_otherwise() -> None:
    assert failure_in(await ran(raiser_of(NotExecuted("protected")))).error_class is ErrorClass.PERMANENT


async def test_a_tool_that_did_its_work_and_failed_has_executed() -> None:
    outcome = await ran(raiser_of(Failed("3 tests are red", result={"red": 3})))
    assert isinstance(outcome, calls.Executed)
    assert outcome.result_text == '{"red":3}'
    assert (failure_in(outcome).code, failure_in(outcome).message) == (Code.TOOL_FAILED, '3 tests are red: {"red":3}')
    assert failure_in(await ran(raiser_of(Failed("red")))).message == "red"


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), StopIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_any_other_exception_leaves_it_unknown_unless_the_tool_only_reads(
    effect: str, error: BaseException, kind: str
) -> None:
    function = raiser_of(error) if kind == "thread" else async_raiser_of(error)
    outcome = await ran(function, effect)
    assert isinstance(outcome, calls.NotExecuted if effect == "read_only" else calls.Unsure)
    assert failure_in(outcome).code is Code.TOOL_FAILED


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (TimeoutError("slow"), ErrorClass.TIMEOUT),
        (ConnectionResetError("gone"), ErrorClass.TRANSIENT),
        (PermissionError("no"), ErrorClass.DENIED),
        (ValueError("timeout 429 connection"), ErrorClass.PERMANENT),
    ],
)
async def test_the_class_of_an_error_comes_from_its_type_and_never_from_its_text(
    error: Exception, error_class: ErrorClass
) -> None:
    assert failure_in(await ran(raiser_of(error))).error_class is error_class

    def act(ctx: ToolContext) -> None:
        raise RuntimeError("the client's own error") from error

    assert failure_in(await ran(act)).error_class is error_class


async def test_an_error_tells_operators_where_it_was_raised() -> None:
    failure = failure_in(await ran(raiser_of(KeyError("half \ud800"))))
    assert failure.details["exception"] == "builtins.KeyError"
    assert failure.details["at"].startswith("test_tools.py:")
    failure.model_dump_json()


async def test_the_wire_s_own_values_are_understood_too() -> None:
    said = calls.NotExecuted(failure=Failure(code=Code.TOOL_FAILED, message="no"))
    assert await ran(lambda_of(said)) == said
    assert await ran(lambda_of(calls.Executed(result_text='{"b":1, "a":2}'))) == calls.Executed(
        result_text='{"a":2,"b":1}'
    )


# ── nothing is started that must not be ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("activity", "code"),
    [
        ({"tool": "nothing"}, Code.TOOL_UNKNOWN),
        ({"text": '{"n":1}'}, Code.TOOL_INPUT_INVALID),
        ({"text": "{"}, Code.TOOL_INPUT_INVALID),
    ],
)
async def test_what_cannot_be_called_has_not_been_executed(activity: dict[str, Any], code: Code) -> None:
    started: list[int] = []

    def act(ctx: ToolContext) -> None:
        started.append(1)

    outcome = await ran(act, **activity)
    assert isinstance(outcome, calls.NotExecuted)
    assert failure_in(outcome).code is code
    assert started == []


# ── time and signals ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_coroutine_past_its_time_is_interrupted_and_unknown(effect: str) -> None:
    ends: list[bool] = []

    async def act(ctx: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(ctx.cancelled)

    outcome = await ran(act, effect, timeout_ms=30)
    assert isinstance(outcome, calls.NotExecuted if effect == "read_only" else calls.Unsure)
    assert (failure_in(outcome).code, failure_in(outcome).error_class) == (Code.TOOL_TIMEOUT, ErrorClass.TIMEOUT)
    assert ends == [True]


async def test_a_thread_past_its_time_is_signalled_and_then_left_alone() -> None:
    end = threading.Event()
    ended = threading.Event()

    def act(ctx: ToolContext) -> None:
        end.wait(10)
        ended.set()

    outcome = await ran(act, timeout_ms=30)
    assert isinstance(outcome, calls.Unsure)
    assert failure_in(outcome).code is Code.TOOL_TIMEOUT
    assert not ended.is_set()
    end.set()
    assert await asyncio.to_thread(ended.wait, 5)


async def test_a_tool_that_looks_at_the_signal_can_still_say_what_became_of_it() -> None:
    def act(ctx: ToolContext) -> NotExecuted:
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        return NotExecuted("stopped in time")

    outcome = await ran(act, timeout_ms=30)
    assert isinstance(outcome, calls.NotExecuted)
    assert failure_in(outcome).message == "stopped in time"


async def test_a_cancelled_tool_without_an_answer_gives_no_result() -> None:
    started = asyncio.Event()

    async def act(ctx: ToolContext) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    running = asyncio.ensure_future(ran(act))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancelled_tool_that_answers_within_the_grace_is_believed() -> None:
    started = asyncio.Event()

    async def act(ctx: ToolContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done just before"
        return "never"

    running = asyncio.ensure_future(ran(act))
    await started.wait()
    running.cancel()
    assert await running == calls.Executed(result_text='"done just before"')
    assert running.cancelling() == 0


# ── probes ─────────────────────────────────────────────────────────────────────────────


async def probed(
    answer: object,
    *,
    seal: bool = False,
    text: str = '{"name":"v1"}',
    handler: Any = None,
    begin_left_ms: Callable[[], float] = in_time,
) -> ToolOutcome:
    app = App("desk", version="1")

    @app.tool(effect="reconcilable")
    def act(ctx: ToolContext, name: str, commit: str = "c") -> None: ...

    def default(ctx: ToolContext, name: str) -> object:
        assert name == "v1"
        if isinstance(answer, BaseException) and not isinstance(answer, NotExecuted | Unsure):
            raise answer
        return answer

    (act.seal if seal else act.reconcile)(handler or default)
    activity = ProbeTool(
        tenant="t",
        run_id="r",
        operation_id="op_1",
        attempt=1,
        probe=1,
        tool="act",
        agent="worker",
        input_text=text,
        idempotency_key="op_1:1",
        seal=seal,
        timeout_ms=50,
    )
    return await ToolRunner(app, now_ms=lambda: NOW, grace_ms=50).probe(activity, begin_left_ms)


@pytest.mark.parametrize("seal", [False, True])
async def test_a_probe_s_answer_is_passed_on(seal: bool) -> None:
    assert await probed(Executed("v1"), seal=seal) == calls.Executed(result_text='"v1"')
    assert isinstance(await probed(Unsure("ask again"), seal=seal), calls.Unsure)


async def test_an_attempt_that_a_probe_did_not_find_may_be_made_again() -> None:
    outcome = await probed(NotExecuted("no such tag"))
    assert isinstance(outcome, calls.NotExecuted)
    assert failure_in(outcome).error_class is ErrorClass.TRANSIENT
    outcome = await probed(NotExecuted("the name is taken by another", transient=False))
    assert failure_in(outcome).error_class is ErrorClass.PERMANENT


async def test_not_executed_raised_within_a_probe_is_no_answer() -> None:
    def handler(ctx: ToolContext) -> object:
        raise NotExecuted("the probe's own request was refused")

    assert isinstance(await probed(None, handler=handler), calls.Unsure)


@pytest.mark.parametrize("answer", [True, False, None, "executed", {}, RuntimeError("no network"), TimeoutError()])
async def test_a_probe_that_says_nothing_clear_leaves_it_unknown(answer: object) -> None:
    outcome = await probed(answer)
    assert isinstance(outcome, calls.Unsure)
    assert failure_in(outcome).certainty is Certainty.UNKNOWN


async def test_a_probe_has_a_time_limit_as_well() -> None:
    async def handler(ctx: ToolContext) -> None:
        await asyncio.Event().wait()

    outcome = await probed(None, handler=handler)
    assert isinstance(outcome, calls.Unsure)
    assert failure_in(outcome).error_class is ErrorClass.TIMEOUT


async def test_a_tool_without_that_probe_stays_unknown() -> None:
    runner = runner_of(lambda_of(1), "non_retriable")
    activity = ProbeTool(
        tenant="t",
        run_id="r",
        operation_id="op_1",
        attempt=1,
        probe=1,
        tool="act",
        agent="",
        input_text="{}",
        idempotency_key="op_1",
        seal=False,
        timeout_ms=50,
    )
    outcome = await runner.probe(activity, in_time)
    assert isinstance(outcome, calls.Unsure)
    assert "has no reconcile" in failure_in(outcome).message


# ── helpers ────────────────────────────────────────────────────────────────────────────


def lambda_of(answer: object) -> Callable[[ToolContext], Any]:
    def act(ctx: ToolContext) -> Any:
        return answer

    return act


def raiser_of(error: BaseException) -> Callable[[ToolContext], Any]:
    def act(ctx: ToolContext) -> Any:
        raise error

    return act


def async_raiser_of(error: BaseException) -> Callable[[ToolContext], Any]:
    async def act(ctx: ToolContext) -> Any:
        raise error

    return act
