"""Decides what one attempt of a tool came to: it is called with typed arguments, a time limit and a signal, once.

Nothing is tried again here. Before it, in the same attempt and within the same time, its files are copied and what must
still hold is asked (`files`, `checks`); what it returns or raises becomes an outcome (`outcomes`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from math import ceil
from typing import Any

from placet import calls, tooling
from placet.activities import ProbeTool, RunTool
from placet.application import App
from placet.calls import ToolOutcome
from placet.declarations import AnyTool, is_coroutine
from placet.errors import Certainty, Code, ErrorClass, TerminalError
from placet.filerefs import FileRef
from placet.instants import Instant
from placet.runtime.checks import objection, taken_by
from placet.runtime.files import Copies, ToolFiles, refs_in
from placet.runtime.outcomes import (
    NotBegunError,
    NoTimeError,
    TimeOverError,
    class_of,
    details,
    failure_of,
    not_executed,
    of_raised,
    of_returned,
    said,
    unsure,
)
from placet.runtime.ports import BeginLeft
from placet.tooling import ToolContext

log = logging.getLogger("placet.tools")

GRACE_MS = 2_000
"""How long a tool that was signalled may still answer: a late truth is better than none. Below the lease's margin."""
THREADS_MAX = 64
"""Plain functions at a time, unless the process says otherwise."""
_ANSWERS = (tooling.Executed, tooling.Unsure, tooling.Failed, calls.Executed, calls.NotExecuted, calls.Unsure)
"""What a probe may return, beside NotExecuted."""


def _wall_clock_ms() -> Instant:
    return Instant(time.time_ns() // 1_000_000)


class ToolRunner:
    """Runs attempts and probes of one application's tools. Never raises but CancelledError, and never repeats.

    Cancelling the task that awaits `run` is the signal: the tool sees `ctx.cancelled`, an `async` one is interrupted
    where it awaits, and for `grace_ms` its answer still counts. `now_ms` only tells the tool its deadline: nothing is
    decided by the clock of this machine. `threads_max`: plain functions at a time; others wait while they may begin.
    `files`: the folder whose files tools may be given; without it there are none.
    """

    def __init__(
        self,
        app: App,
        *,
        now_ms: Callable[[], Instant] = _wall_clock_ms,
        grace_ms: int = GRACE_MS,
        threads_max: int = THREADS_MAX,
        files: ToolFiles | None = None,
    ) -> None:
        self._app = app
        self._files = files or ToolFiles(None)
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._threads = asyncio.Semaphore(threads_max)

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """One attempt. The input is the reviewed text, byte for byte."""
        tool = self._app.tools.get(activity.tool)
        if tool is None:
            return not_executed(Code.TOOL_UNKNOWN, f"there is no tool {activity.tool!r}", ErrorClass.INVALID)
        try:
            arguments = tool.input.arguments(activity.input_text)
        except Exception as error:  # noqa: BLE001 — validators are the author's code; nothing has been called yet
            what = f"the input no longer fits the tool {tool.name!r}: {said(error)}"
            return not_executed(Code.TOOL_INPUT_INVALID, what, ErrorClass.INVALID)
        try:
            answer = await self._attempt(tool, activity, arguments, begin_left_ms)
        except NotBegunError:
            return calls.not_begun(tool.name)
        except Exception as error:  # noqa: BLE001 — whatever a tool raises becomes an outcome
            return of_raised(tool, error)
        return of_returned(answer)

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """Ask the tool's `reconcile` (or `seal`) about one attempt. Only what it *returns* counts as an answer."""
        tool = self._app.tools.get(activity.tool)
        function = None if tool is None else tool.sealer if activity.seal else tool.reconciler
        if tool is None or function is None:
            what = f"the tool {activity.tool!r} has no {'seal' if activity.seal else 'reconcile'}"
            return unsure(Code.TOOL_UNKNOWN, what, ErrorClass.INVALID)
        try:
            arguments = taken_by(function, tool.input.arguments(activity.input_text))
            answer = await self._called(function, activity, arguments, begin_left_ms)
        except NotBegunError:
            return calls.probe_not_begun(tool.name)
        except Exception as error:  # noqa: BLE001 — as above
            return unsure(Code.TOOL_FAILED, said(error), class_of(error), **details(error))
        if isinstance(answer, tooling.NotExecuted):
            # The attempt was lost, not refused: unless the probe says otherwise, another one may succeed.
            return calls.NotExecuted(failure=failure_of(answer, Certainty.NOT_EXECUTED, transient=True))
        if isinstance(answer, _ANSWERS):
            return of_returned(answer)
        what = f"the probe of {tool.name!r} answered {type(answer).__name__}, not Executed, NotExecuted or Unsure"
        return unsure(Code.TOOL_RESULT_INVALID, what, ErrorClass.PERMANENT)

    async def _attempt(
        self, tool: AnyTool, activity: RunTool, arguments: dict[str, Any], begin_left_ms: BeginLeft
    ) -> object:
        """The tool's answer, or what speaks against calling it. All of it takes no longer than the tool may."""
        refs = list(refs_in(arguments))
        if not (refs or tool.resolvers or tool.preconditions):
            return await self._called(tool.function, activity, arguments, begin_left_ms)
        spent = _Spent(begin_left_ms)

        async def ask(function: Callable[..., Any], taken: dict[str, Any], copies: Copies) -> object:
            return await self._called(function, spent.rest_of(activity), taken, spent.begin_left_ms(), copies)

        with ExitStack() as stack:
            try:
                copies = await self._copied(stack, refs)
            except TerminalError as error:
                return not_executed(error.code, error.message, ErrorClass.APPROVAL)
            except OSError as error:
                what = f"{tool.name} was not called: a file cannot be copied: {said(error)}"
                return not_executed(Code.TOOL_FAILED, what, ErrorClass.TRANSIENT)
            try:
                against = await objection(
                    tool, arguments, activity.input_text, lambda hook, taken: ask(hook, taken, copies)
                )
                return against or await ask(tool.function, arguments, copies)
            except NoTimeError:
                what = f"{tool.name} was not called: what was to be checked before it took all its time"
                return not_executed(Code.TOOL_TIMEOUT, what, ErrorClass.TIMEOUT)

    async def _copied(self, stack: ExitStack, refs: list[FileRef]) -> Copies:
        """The copies, which go with the stack; also where whoever waits is interrupted."""
        if not refs:
            return Copies({})
        work = asyncio.ensure_future(asyncio.to_thread(stack.enter_context, self._files.copies(refs)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            raise

    async def _called(
        self,
        function: Callable[..., Any],
        activity: RunTool | ProbeTool,
        arguments: dict[str, Any],
        begin_left_ms: BeginLeft,
        copies: Copies | None = None,
    ) -> object:
        async with self._thread_for(function, begin_left_ms):
            call = _Call(function, self._now_ms, activity.timeout_ms, self._grace_ms, begin_left_ms)
            ctx = call.context(activity, self._files, copies or Copies({}))
            return await call.answer(ctx, arguments)

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
            raise NotBegunError from None
        try:
            yield
        finally:
            self._threads.release()


class _Spent:
    """What an attempt has used up of its time before its tool is called: so much less has the tool, and so much later
    may it begin. By the clock that says how much is left for beginning, which goes on while the process is frozen.
    """

    def __init__(self, begin_left_ms: BeginLeft) -> None:
        self._began_at_ms = begin_left_ms()
        self._begin_left_ms = begin_left_ms

    def _ms(self) -> float:
        return max(0.0, self._began_at_ms - self._begin_left_ms())

    def rest_of(self, activity: RunTool) -> RunTool:
        """The activity with the time that is left. Raises NoTimeError."""
        left_ms = activity.timeout_ms - ceil(self._ms())
        if left_ms <= 0:
            raise NoTimeError
        return activity.model_copy(update={"timeout_ms": left_ms})

    def begin_left_ms(self) -> BeginLeft:
        """How much is left for beginning what ends so much the earlier."""
        spent_ms = self._ms()
        return lambda: self._begin_left_ms() + spent_ms


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

    def context(self, activity: RunTool | ProbeTool, files: ToolFiles, copies: Copies) -> ToolContext:
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
            refer_to=files.refer,
            copy_of=copies.path_of,
            open_copy=copies.open,
        )

    async def answer(self, ctx: ToolContext, arguments: dict[str, Any]) -> object:
        """What the function returns or raises; NotBegunError; TimeOverError; CancelledError when signalled and
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
            raise TimeOverError(f"no answer within {self._limit_ms} ms")
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
            raise NotBegunError
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
