"""Decides how calls to the world run: as tasks with a deadline and a signal; each result comes back as a message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import TypeAdapter

from placet import limits
from placet.activities import Activity, AskGate, CallModel, ProbeTool, RunTool, Stop
from placet.calls import ChatMessage, NotExecuted, ToolOutcome, Unsure, not_begun, probe_not_begun
from placet.errors import Certainty, Code, ErrorClass, Failure, RetryableError
from placet.gates import OutsideAnswer
from placet.ids import Address
from placet.messages import AnyMessage, Envelope, GateAnswered, ToolProbed, ToolReturned
from placet.runtime.conversing import failure_of_model, model_answered, model_failed, result_envelope
from placet.runtime.listening import Listener, asked
from placet.runtime.ports import BeginLeft, Gates, Models, Partials, Store, Tools
from placet.runtime.process import backoff_ms

log = logging.getLogger("placet.invoker")
GATE_SLACK_S = 1.0
"""How much later than its own time an outside gate is given up."""
_CHAT: TypeAdapter[ChatMessage] = TypeAdapter(ChatMessage)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
"""Goes on while the machine sleeps, as other machines' clocks do. Where there is none, the monotonic clock must do."""


def monotonic_ms() -> float:
    """The time of this machine's life."""
    return (time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)) * 1_000


@dataclass(eq=False, slots=True)
class _Call:
    """One call to the world."""

    task: asyncio.Task[None] | None = None
    begun: bool = False
    """Whether its task has had its first step: what is cancelled before it says nothing."""
    placed: bool = False
    """Whether it has had a place, so that its tool may have been called."""
    stopped: str | None = None
    """Why it was signalled."""


class TaskInvoker:
    """Runs activities as asyncio tasks, at most so many model calls and tool runs at a time.

    What waits for a place holds nothing but its own few hundred bytes. An activity that this process loses is found
    again by the lease that was committed with it. A tool that has waited so long that its lease might end before its
    own time is not called at all.
    """

    def __init__(
        self,
        models: Models,
        tools: Tools,
        store: Store,
        put: Callable[[Envelope], None],
        *,
        models_max: int = 64,
        tools_max: int = 64,
        monotonic_ms: Callable[[], float] = monotonic_ms,
        partials: Partials | None = None,
        gates: Gates | None = None,
        gates_max: int = 64,
    ) -> None:
        """`partials`: who is told of replies while they come. `gates`: who asks outside gates; without it they fail."""
        self._gates = gates
        self._gate_places = asyncio.Semaphore(gates_max)
        self._partials = partials
        self._models = models
        self._tools = tools
        self._store = store
        self._put = put
        self._monotonic_ms = monotonic_ms
        self._model_places = asyncio.Semaphore(models_max)
        self._tool_places = asyncio.Semaphore(tools_max)
        self._calls: dict[Address, set[_Call]] = {}
        self._draining = False
        self._stopping = False

    def monotonic_ms(self) -> float:
        """As ports.Invoker."""
        return self._monotonic_ms()

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        """Returns at once; results enter by `put`."""
        for activity in activities:
            if isinstance(activity, Stop):
                self.stop_calls(activity.owner(), activity.reason)
            elif not self._stopping and not (self._draining and isinstance(activity, CallModel)):
                self._begin(activity, since_ms)

    def drain(self) -> None:
        """Call no model any more: a model call is a read, its lease brings it back elsewhere.

        Tools still start: an attempt that is committed as started and then is not would be in doubt for nothing.
        """
        self._draining = True

    async def settled(self) -> None:
        """Wait until nothing runs."""
        while tasks := self._running():
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """Signal whatever still runs and wait for its end. Unfinished work is found again by its lease."""
        self._stopping = True
        tasks = self._running()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def running(self) -> int:
        """Activities in work or waiting for a place."""
        return len(self._running())

    def running_of(self, machine: str) -> int:
        """Those of one machine's states: model calls, or calls of tools."""
        return sum(len(group) for owner, group in self._calls.items() if owner.machine == machine)

    def owners(self) -> list[Address]:
        """The states for which something is in work here, or waits for a place."""
        return list(self._calls)

    def could_stop(self, owner: Address) -> bool:
        """Whether anything is in work for that state, or waits for a place, which has had no signal."""
        return any(call.stopped is None for call in self._calls.get(owner, ()))

    def stop_calls(self, owner: Address, reason: str) -> int:
        """Signal, once each, whatever runs for that state; how many calls have had no signal before.

        One that has not begun does not begin.
        """
        told = [call for call in self._calls.get(owner, ()) if call.stopped is None]
        for call in told:
            call.stopped = reason
            if call.begun and call.task is not None:
                call.task.cancel(reason)
        return len(told)

    def _running(self) -> list[asyncio.Task[None]]:
        return [call.task for group in self._calls.values() for call in group if call.task is not None]

    # ── one activity ───────────────────────────────────────────────────────────────────

    def _begin(self, activity: CallModel | RunTool | ProbeTool | AskGate, since_ms: float) -> None:
        owner, call = activity.owner(), _Call()
        self._calls.setdefault(owner, set()).add(call)
        call.task = asyncio.get_running_loop().create_task(self._run(call, activity, since_ms), name=owner.text())
        call.task.add_done_callback(lambda done: self._ended(owner, call, done))

    async def _run(self, call: _Call, activity: CallModel | RunTool | ProbeTool | AskGate, since_ms: float) -> None:
        call.begun = True
        if isinstance(activity, AskGate):
            await self._ask_gate(activity)
        elif not isinstance(activity, CallModel):
            self._tool_ended(activity, await self._call_tool(call, activity, since_ms))
        elif call.stopped is None:
            await self._call_model(call, activity)

    def _ended(self, owner: Address, call: _Call, task: asyncio.Task[None]) -> None:
        group = self._calls[owner]
        group.discard(call)
        if not group:
            del self._calls[owner]
        if not task.cancelled() and task.exception() is not None:
            # Nothing was reported: the lease will find it. The store being away is the usual cause.
            log.error("activity.lost", extra={"owner": owner.text()}, exc_info=task.exception())

    async def _call_model(self, call: _Call, activity: CallModel) -> None:
        listener = Listener(activity, self._partials)
        async with self._model_places:
            conversation = await self._conversation(activity)
            try:
                async with asyncio.timeout(activity.timeout_ms / 1_000):
                    reply = await asked(self._models, activity, conversation, listener)
            except asyncio.CancelledError:
                # A shutdown is no cancel: its call comes back by its lease. Of one that is not wanted any more, what it
                # had said is reported, once, as evidence.
                if self._stopping or call.stopped is None or not listener.text:
                    raise
                failure = Failure(code=Code.CANCELLED, message=call.stopped, error_class=ErrorClass.CANCELLED)
                self._report(activity, model_failed(activity, failure, listener.text))
            except TimeoutError:
                message = f"the model of {activity.agent} did not answer within {activity.timeout_ms} ms"
                failure = Failure(code=Code.MODEL_FAILED, message=message, error_class=ErrorClass.TIMEOUT)
                self._report(activity, model_failed(activity, failure))
            except Exception as error:  # noqa: BLE001  whatever it is, it is told as the call's failure
                self._report(activity, model_failed(activity, failure_of_model(activity, error)))
            else:
                self._report(activity, model_answered(activity, reply))

    async def _ask_gate(self, activity: AskGate) -> None:
        """Whatever goes wrong is told as the gate's failure, which lets nothing pass."""
        if self._gates is None:
            answer = OutsideAnswer(verdict="failed", reason="this process asks no gates outside")
        else:
            try:
                async with self._gate_places, asyncio.timeout(activity.timeout_ms / 1_000 + GATE_SLACK_S):
                    answer = await self._gates.ask(activity)
            except Exception as error:  # noqa: BLE001  as above
                answer = OutsideAnswer(verdict="failed", reason=f"{type(error).__name__} while it was asked")
        self._report(
            activity,
            GateAnswered(
                tenant=activity.tenant,
                run_id=activity.run_id,
                operation_id=activity.operation_id,
                gate=activity.gate,
                answer=answer,
            ),
        )

    async def _conversation(self, activity: CallModel) -> list[ChatMessage]:
        """As it was committed. While the store is away it is asked for again, as long as the call itself may take: a
        call that is given up comes back only when its lease ends. Raises the last RetryableError."""
        until_ms = self._monotonic_ms() + activity.timeout_ms
        failures = 0
        while True:
            try:
                bodies = await self._store.read_thread(activity.run_id, activity.thread_id, activity.messages)
            except RetryableError:
                failures += 1
                delay_ms = backoff_ms(activity.owner().text(), failures)
                if self._monotonic_ms() + delay_ms > until_ms:
                    raise
                await asyncio.sleep(delay_ms / 1_000)
            else:
                return [_CHAT.validate_json(body) for body in bodies]

    async def _call_tool(self, call: _Call, activity: RunTool | ProbeTool, since_ms: float) -> ToolOutcome:
        if call.stopped is not None:
            return _cancelled(activity, called=False)
        try:
            left_ms = partial(self._left_ms, since_ms)
            return await self._placed(call, activity, left_ms)
        except asyncio.CancelledError:
            if self._stopping:
                raise  # a shutdown is no cancel: the attempt stays open and is settled by its effect class
            return _cancelled(activity, called=call.placed)

    def _left_ms(self, since_ms: float) -> float:
        return since_ms + limits.LEASE_MARGIN_MS - self._monotonic_ms()

    def _tool_ended(self, activity: RunTool | ProbeTool, outcome: ToolOutcome) -> None:
        if isinstance(activity, RunTool):
            self._report(
                activity,
                ToolReturned(
                    tenant=activity.tenant,
                    run_id=activity.run_id,
                    operation_id=activity.operation_id,
                    pool=activity.pool,
                    attempt=activity.attempt,
                    outcome=outcome,
                ),
            )
        else:
            self._report(
                activity,
                ToolProbed(
                    tenant=activity.tenant,
                    run_id=activity.run_id,
                    operation_id=activity.operation_id,
                    pool=activity.pool,
                    attempt=activity.attempt,
                    probe=activity.probe,
                    outcome=outcome,
                ),
            )

    async def _placed(self, call: _Call, activity: RunTool | ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """Wait for a place, as long as there is any use in it."""
        try:
            async with asyncio.timeout(begin_left_ms() / 1_000):
                await self._tool_places.acquire()
        except TimeoutError:
            log.warning("tool.no_place", extra={"tool": activity.tool, "running": self.running})
            return not_begun(activity.tool) if isinstance(activity, RunTool) else probe_not_begun(activity.tool)
        call.placed = True
        try:
            return await self._outcome(activity, begin_left_ms)
        finally:
            self._tool_places.release()

    async def _outcome(self, activity: RunTool | ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        try:
            if isinstance(activity, RunTool):
                return await self._tools.run(activity, begin_left_ms)
            return await self._tools.probe(activity, begin_left_ms)
        except Exception as error:  # the runner promises not to raise; if it does, nobody knows what happened
            log.exception("tool.runner_raised", extra={"owner": activity.owner().text()})
            message = f"{type(error).__name__}: {error}"
            return Unsure(failure=Failure(code=Code.TOOL_FAILED, message=message, certainty=Certainty.UNKNOWN))

    def _report(self, activity: Activity, message: AnyMessage) -> None:
        self._put(result_envelope(activity, message))


def _cancelled(activity: RunTool | ProbeTool, *, called: bool) -> ToolOutcome:
    """What is known of a call that was signalled: where its tool was not even called, that nothing happened."""
    surely_not = isinstance(activity, RunTool) and not called
    failure = Failure(
        code=Code.CANCELLED,
        message="cancelled while it ran" if called else "cancelled before it began",
        error_class=ErrorClass.CANCELLED,
        certainty=Certainty.NOT_EXECUTED if surely_not else Certainty.UNKNOWN,
    )
    return NotExecuted(failure=failure) if surely_not else Unsure(failure=failure)
