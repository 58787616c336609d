"""Decides what one attempt of a tool came to: it is called with typed arguments, a time limit and a signal, once.

Nothing is tried again here. What the tool says counts (placet.tooling); where it says nothing clear, the effect class
decides (DESIGN §6): a tool that only reads has executed nothing, of any other nobody knows.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from placet import calls, limits, tooling
from placet.activities import ProbeTool, RunTool
from placet.application import App
from placet.calls import EffectClass, ToolOutcome
from placet.canonical import canonical_text
from placet.declarations import AnyTool, is_coroutine
from placet.errors import Certainty, Code, ErrorClass, Failure, PlacetError
from placet.instants import Instant
from placet.runtime.ports import BeginLeft
from placet.strict_json import parse
from placet.tooling import ToolContext

log = logging.getLogger("placet.tools")

GRACE_MS = 2_000
"""How long a tool that was signalled may still answer: a late truth is better than none. Below the lease's margin."""
THREADS_MAX = 64
"""Plain functions at a time, unless the process says otherwise."""
_MESSAGE_CHARS_MAX = 2_000
_ANSWERS = (tooling.Executed, tooling.Unsure, tooling.Failed, calls.Executed, calls.NotExecuted, calls.Unsure)
"""What a probe may return, beside NotExecuted."""


def _wall_clock_ms() -> Instant:
    return Instant(time.time_ns() // 1_000_000)


class ToolRunner:
    """Runs attempts and probes of one application's tools. Never raises but CancelledError, and never repeats.

    Cancelling the task that awaits `run` is the signal: the tool sees `ctx.cancelled`, an `async` one is interrupted
    where it awaits, and for `grace_ms` its answer still counts. `now_ms` only tells the tool its deadline: nothing is
    decided by the clock of this machine. `threads_max`: plain functions at a time; others wait while they may begin.
    """

    def __init__(
        self,
        app: App,
        *,
        now_ms: Callable[[], Instant] = _wall_clock_ms,
        grace_ms: int = GRACE_MS,
        threads_max: int = THREADS_MAX,
    ) -> None:
        self._app = app
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._threads = asyncio.Semaphore(threads_max)

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """One attempt. The input is the reviewed text, byte for byte."""
        tool = self._app.tools.get(activity.tool)
        if tool is None:
            return _not_executed(Code.TOOL_UNKNOWN, f"there is no tool {activity.tool!r}", ErrorClass.INVALID)
        try:
            arguments = tool.input.arguments(activity.input_text)
        except Exception as error:  # noqa: BLE001 — validators are the author's code; nothing has been called yet
            what = f"the input no longer fits the tool {tool.name!r}: {_said(error)}"
            return _not_executed(Code.TOOL_INPUT_INVALID, what, ErrorClass.INVALID)
        try:
            answer = await self._called(tool.function, activity, arguments, begin_left_ms)
        except _NotBegunError:
            return calls.not_begun(tool.name)
        except Exception as error:  # noqa: BLE001 — whatever a tool raises becomes an outcome
            return _of_raised(tool, error)
        return _of_returned(answer)

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """Ask the tool's `reconcile` (or `seal`) about one attempt. Only what it *returns* counts as an answer."""
        tool = self._app.tools.get(activity.tool)
        function = None if tool is None else tool.sealer if activity.seal else tool.reconciler
        if tool is None or function is None:
            what = f"the tool {activity.tool!r} has no {'seal' if activity.seal else 'reconcile'}"
            return _unsure(Code.TOOL_UNKNOWN, what, ErrorClass.INVALID)
        try:
            taken = list(inspect.signature(function).parameters)[1:]
            arguments = {k: v for k, v in tool.input.arguments(activity.input_text).items() if k in taken}
            answer = await self._called(function, activity, arguments, begin_left_ms)
        except _NotBegunError:
            return calls.probe_not_begun(tool.name)
        except Exception as error:  # noqa: BLE001 — as above
            return _unsure(Code.TOOL_FAILED, _said(error), _class_of(error), **_details(error))
        if isinstance(answer, tooling.NotExecuted):
            # The attempt was lost, not refused: unless the probe says otherwise, another one may succeed.
            return calls.NotExecuted(failure=_failure(answer, Certainty.NOT_EXECUTED, transient=True))
        if isinstance(answer, _ANSWERS):
            return _of_returned(answer)
        what = f"the probe of {tool.name!r} answered {type(answer).__name__}, not Executed, NotExecuted or Unsure"
        return _unsure(Code.TOOL_RESULT_INVALID, what, ErrorClass.PERMANENT)

    async def _called(
        self,
        function: Callable[..., Any],
        activity: RunTool | ProbeTool,
        arguments: dict[str, Any],
        begin_left_ms: BeginLeft,
    ) -> object:
        async with self._thread_for(function, begin_left_ms):
            call = _Call(function, self._now_ms, activity.timeout_ms, self._grace_ms, begin_left_ms)
            return await call.answer(call.context(activity), arguments)

    @asynccontextmanager
    async def _thread_for(self, function: Callable[..., Any], begin_left_ms: BeginLeft) -> AsyncIterator[None]:
        """A thread's place for a plain function. One that outlives its time gives its place away all the same."""
        if is_coroutine(function):
            yield
            return
        try:
            async with asyncio.timeout(begin_left_ms() / 1_000):
                await self._threads.acquire()
        except TimeoutError:
            raise _NotBegunError from None
        try:
            yield
        finally:
            self._threads.release()


class _NotBegunError(Exception):
    """It was too late to begin: the function has not been called, and will not be."""


class _TimeOverError(Exception):
    """The time limit passed, and the grace after it."""


class _Call:
    """One call of one function: its context, its limit, its signal."""

    def __init__(
        self,
        function: Callable[..., Any],
        now_ms: Callable[[], Instant],
        limit_ms: int,
        grace_ms: int,
        begin_left_ms: BeginLeft,
    ) -> None:
        self._function = function
        self._limit_ms = limit_ms
        self._grace_ms = grace_ms
        self._begin_left_ms = begin_left_ms
        self._deadline = Instant(now_ms() + limit_ms)
        self._until_s = time.monotonic() + limit_ms / 1_000
        self._signal = threading.Event()

    def context(self, activity: RunTool | ProbeTool) -> ToolContext:
        """What the function is told."""
        return ToolContext(
            operation_id=activity.operation_id,
            idempotency_key=activity.idempotency_key,
            attempt=activity.attempt,
            deadline=self._deadline,
            run_id=activity.run_id,
            tenant=activity.tenant,
            agent=activity.agent,
            is_cancelled=self._signal.is_set,
            seconds_left=lambda: self._until_s - time.monotonic(),
        )

    async def answer(self, ctx: ToolContext, arguments: dict[str, Any]) -> object:
        """What the function returns or raises; _NotBegunError; _TimeOverError; CancelledError when signalled and
        without an answer.
        """
        work = asyncio.ensure_future(self._work(ctx, arguments))
        work.add_done_callback(_retrieved)
        try:
            await asyncio.wait({work}, timeout=self._limit_ms / 1_000)
        except asyncio.CancelledError:
            if not await self._late_answer(work):
                raise
            current = asyncio.current_task()
            if current is not None:
                current.uncancel()  # the answer is what became of the cancellation
            return work.result()
        if not work.done() and not await self._late_answer(work):
            raise _TimeOverError(f"no answer within {self._limit_ms} ms")
        if work.cancelled():
            raise RuntimeError("the tool cancelled itself")
        return work.result()

    async def _late_answer(self, work: asyncio.Future[object]) -> bool:
        """Signal the function, wait for the grace, and say whether it answered."""
        self._signal.set()
        if is_coroutine(self._function):
            work.cancel()
        await asyncio.wait({work}, timeout=self._grace_ms / 1_000)
        if not work.done():
            work.add_done_callback(self._log_late)
        return work.done() and not work.cancelled()

    async def _work(self, ctx: ToolContext, arguments: dict[str, Any]) -> object:
        if is_coroutine(self._function):
            made: Awaitable[object] = self._begun(ctx, arguments)
            return await _guarded(made)
        value = await _in_thread(lambda: self._begun(ctx, arguments))
        return await _guarded(value) if inspect.isawaitable(value) else value

    def _begun(self, ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        """Call the function, here and now or never: in between, the process may have stood still."""
        if self._signal.is_set() or self._begin_left_ms() < 0:
            raise _NotBegunError
        return self._function(ctx, **arguments)

    def _log_late(self, work: asyncio.Future[object]) -> None:
        # Evidence only: the attempt has been reported as unknown. A thread cannot be stopped, it ends when it ends.
        raised = None if work.cancelled() else work.exception()
        name = getattr(self._function, "__name__", "")
        log.warning("tool.answered_late", extra={"tool": name, "raised": raised and type(raised).__name__})


def _retrieved(work: asyncio.Future[object]) -> None:
    """Look at the error of an answer that comes when nobody waits for it any more, or asyncio complains."""
    if not work.cancelled():
        work.exception()


async def _guarded(work: Awaitable[object]) -> object:
    """SystemExit in a task would end the event loop, and with it everybody's work."""
    try:
        return await work
    except SystemExit as error:
        raise _exit(error) from error


def _exit(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"the tool tried to exit the process ({error.code})")


def _in_thread(function: Callable[[], object]) -> asyncio.Future[object]:
    """Run in a daemon thread of its own: one that never ends holds up neither other tools nor the process's end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def work() -> None:
        value: object = None
        raised: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as error:  # a future cannot carry it
            raised = RuntimeError(f"the tool raised StopIteration: {error}")
        except SystemExit as error:
            raised = _exit(error)
        except BaseException as error:  # noqa: BLE001 — carried to the caller
            raised = error
        try:
            loop.call_soon_threadsafe(settle, value, raised)
        except RuntimeError:
            log.warning("tool.outlived_its_loop", extra={"raised": raised and type(raised).__name__})

    threading.Thread(target=work, name="placet-tool", daemon=True).start()
    return future


# ── from words to values ───────────────────────────────────────────────────────────────


def _of_returned(answer: object) -> ToolOutcome:
    if isinstance(answer, tooling.NotExecuted):
        return calls.NotExecuted(failure=_failure(answer, Certainty.NOT_EXECUTED))
    if isinstance(answer, tooling.Unsure):
        return calls.Unsure(failure=_failure(answer, Certainty.UNKNOWN, transient=True))
    if isinstance(answer, calls.NotExecuted | calls.Unsure):
        return answer
    if isinstance(answer, calls.Executed):
        return _executed(lambda: answer.result_text, answer.failure)
    if isinstance(answer, tooling.Failed):
        failed = _executed(lambda: to_json(answer.result), _failure(answer, Certainty.EXECUTED))
        return _with_result_told(failed)
    result = answer.result if isinstance(answer, tooling.Executed) else answer
    return _executed(lambda: to_json(result), None)


def _with_result_told(failed: calls.Executed) -> calls.Executed:
    """What is told of a failed call is its failure: the result goes with it."""
    if failed.failure is None or failed.result_text == "null":
        return failed
    told = _sound(f"{failed.failure.message}: {failed.result_text}")
    return failed.model_copy(update={"failure": failed.failure.model_copy(update={"message": told})})


def _executed(json_of_result: Callable[[], str | bytes], failure: Failure | None) -> calls.Executed:
    try:
        text = canonical_text(parse(json_of_result()))
    except Exception as error:  # noqa: BLE001 — the effect has happened, whatever its result is made of
        what = f"the tool ran, but its result cannot be kept as JSON: {_said(error)}"
        return calls.Executed(failure=failure or _result_invalid(what))
    size = len(text.encode())
    if size > limits.RESULT_BYTES_MAX:
        what = f"the tool ran, but its result has {size} bytes, more than {limits.RESULT_BYTES_MAX}: return less"
        return calls.Executed(failure=failure or _result_invalid(what))
    return calls.Executed(result_text=text, failure=failure)


def _of_raised(tool: AnyTool, error: BaseException) -> ToolOutcome:
    if isinstance(error, tooling.NotExecuted | tooling.Unsure | tooling.Failed):
        return _of_returned(error)
    if isinstance(error, _TimeOverError):
        code, what, error_class = Code.TOOL_TIMEOUT, f"{tool.name}: {error}", ErrorClass.TIMEOUT
    else:
        code, what, error_class = Code.TOOL_FAILED, _said(error), _class_of(error)
    if tool.spec.effect is EffectClass.READ_ONLY:
        return _not_executed(code, what, error_class, **_details(error))
    return _unsure(code, what, error_class, **_details(error))


def _failure(said: tooling.ToolError, certainty: Certainty, *, transient: bool = False) -> Failure:
    again = transient if said.transient is None else said.transient
    return Failure(
        code=Code.TOOL_FAILED,
        message=_sound(said.reason or type(said).__name__),
        error_class=ErrorClass.TRANSIENT if again else ErrorClass.PERMANENT,
        certainty=certainty,
        retry_after_ms=None if said.retry_after_s is None else round(said.retry_after_s * 1_000),
    )


def _result_invalid(what: str) -> Failure:
    return Failure(
        code=Code.TOOL_RESULT_INVALID,
        message=what,
        error_class=ErrorClass.PERMANENT,
        certainty=Certainty.EXECUTED,
    )


def _not_executed(code: Code, what: str, error_class: ErrorClass, **details: Any) -> calls.NotExecuted:
    failure = Failure(
        code=code, message=what, error_class=error_class, certainty=Certainty.NOT_EXECUTED, details=details
    )
    return calls.NotExecuted(failure=failure)


def _unsure(code: Code, what: str, error_class: ErrorClass, **details: Any) -> calls.Unsure:
    failure = Failure(code=code, message=what, error_class=error_class, certainty=Certainty.UNKNOWN, details=details)
    return calls.Unsure(failure=failure)


def _class_of(error: BaseException) -> ErrorClass:
    """By the standard library's own types, also as the cause of a client library's error; never by its text."""
    at: BaseException | None = error
    for _ in range(8):
        if at is None:
            break
        if isinstance(at, TimeoutError | _TimeOverError):
            return ErrorClass.TIMEOUT
        if isinstance(at, ConnectionError):
            return ErrorClass.TRANSIENT
        if isinstance(at, PermissionError):
            return ErrorClass.DENIED
        at = at.__cause__
    return ErrorClass.PERMANENT


def _said(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return _sound(f"{'/'.join(str(part) for part in first['loc'])}: {first['msg']}")
    if isinstance(error, tooling.ToolError | PlacetError | _TimeOverError):
        return _sound(str(error) or type(error).__name__)
    return _sound(f"{type(error).__name__}: {error}".removesuffix(": "))


def _sound(text: str) -> str:
    """Bounded, and without what a message cannot carry."""
    return text[:_MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode().replace("\x00", "�")


def _details(error: BaseException) -> dict[str, Any]:
    """For operators: what was raised, and where in the tool."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return {"exception": f"{type(error).__module__}.{type(error).__qualname__}", "at": at}
