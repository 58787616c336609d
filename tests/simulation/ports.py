"""Decides how a process meets its store, its referee and its calls to the world: each suspends, and each may fail.

A commit may fail, or happen without anybody learning of it. Between a load and the commit that rests on it anybody may
write. A process that dies loses what it had in hand; what it had sent arrives all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter

from placet import limits
from placet.activities import Activity, AskGate, CallModel, ProbeTool, RunTool, Stop
from placet.adapters.memory import MemoryStore
from placet.calls import ChatMessage, Unsure
from placet.errors import Certainty, Code, ErrorClass, Failure, RetryableError
from placet.gates import OutsideAnswer
from placet.ids import Address, derived_id
from placet.instants import Instant
from placet.messages import Envelope, GateAnswered, ModelAnswered, ModelFailed, ToolProbed, ToolReturned
from placet.rows import FactKey
from placet.runtime.ports import (
    ActivityError,
    BeginLeft,
    CommitResult,
    Fate,
    JournalEntry,
    Loaded,
    Mark,
    Models,
    OutboxRow,
    Store,
    Tools,
    Unit,
)
from tests.simulation.application import said_outside
from tests.simulation.broker import Broker
from tests.simulation.canaries import store_away
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.ledger import Ledger
from tests.simulation.scheduler import Group, Scheduler, Task

T = TypeVar("T")
Result = ModelAnswered | ModelFailed | ToolReturned | ToolProbed | GateAnswered
_CHAT: TypeAdapter[ChatMessage] = TypeAdapter(ChatMessage)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the store of the simulation waits for something other than the scheduler")


class SimClock:
    """The store's clock: virtual time, which may have leapt."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.leapt_ms = 0
        self._latest_ms = 0

    def now_ms(self) -> Instant:
        """As ports.Clock."""
        now_ms = self._scheduler.now_ms + self.leapt_ms
        self._latest_ms = max(self._latest_ms, now_ms)
        return Instant(now_ms)

    def latest_ms(self) -> int:
        """The latest instant that it has ever shown: what is promised never to come after an instant, keeps to this."""
        return max(self._latest_ms, self.now_ms())


class SimStore:
    """A process's connection to the store."""

    compares_and_sets = True
    is_verbatim = True

    def __init__(
        self, inner: MemoryStore, clock: SimClock, ledger: Ledger, scheduler: Scheduler, faults: Faults, latency_ms: int
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._ledger = ledger
        self._scheduler = scheduler
        self._faults = faults
        self._latency_ms = latency_ms

    async def _reach(self, fault: str) -> None:
        await self._delay()
        if self._faults.hits("store_slow"):
            await self._scheduler.sleep(self._faults.between("store_slow", 10, 8_000))
        if self._faults.hits(fault):
            raise store_away()

    async def _delay(self) -> None:
        if self._latency_ms:
            await self._scheduler.sleep(self._latency_ms)
        else:
            await self._scheduler.pause()

    async def load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """As ports.Store."""
        await self._reach("load_fails")
        loaded = at_once(self._inner.load(addresses, keys))
        await self._scheduler.pause()
        return loaded

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """As ports.Store."""
        await self._reach("commit_fails")
        if self._faults.hits("commit_lost_unknown"):
            raise RetryableError(Code.OUTCOME_UNKNOWN, "nobody knows whether that was committed")
        results = at_once(self._inner.commit(units))
        for unit, result in zip(units, results, strict=True):
            if result.fate is Fate.COMMITTED:
                self._ledger.committed(unit, self._clock.now_ms())
            else:
                self._ledger.refused(unit, result)
        await self._delay()
        if self._faults.hits("commit_unknown"):
            raise RetryableError(Code.OUTCOME_UNKNOWN, "nobody knows whether that was committed")
        return results

    async def claim_due(self, limit: int, lease_ms: int) -> Sequence[OutboxRow]:
        """As ports.Store."""
        await self._reach("claim_fails")
        rows = at_once(self._inner.claim_due(limit, lease_ms))
        self._ledger.claimed(rows, self._clock.now_ms())
        await self._scheduler.pause()
        if self._faults.hits("claim_fails"):
            raise RetryableError(Code.OUTCOME_UNKNOWN, "the claimed rows did not arrive")
        return rows

    async def next_due_ms(self) -> tuple[Instant, Instant | None]:
        """As ports.Store."""
        return at_once(self._inner.next_due_ms())

    async def defer(self, outbox_ids: Sequence[str], longest_ms: int) -> None:
        """As ports.Store."""
        await self._reach("discard_fails")
        at_once(self._inner.defer(outbox_ids, longest_ms))
        await self._scheduler.pause()

    async def recall(self, within_ms: int) -> None:
        """As ports.Store."""
        await self._reach("discard_fails")
        at_once(self._inner.recall(within_ms))
        await self._scheduler.pause()

    async def discard(self, outbox_ids: Sequence[str]) -> None:
        """As ports.Store."""
        await self._reach("discard_fails")
        at_once(self._inner.discard(outbox_ids))
        self._ledger.discarded(outbox_ids)
        await self._scheduler.pause()

    async def read_journal(self, address: Address) -> Sequence[JournalEntry]:
        """As ports.Store."""
        return at_once(self._inner.read_journal(address))

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> Sequence[str]:
        """As ports.Store."""
        await self._reach("load_fails")
        return at_once(self._inner.read_thread(run_id, thread_id, upto))

    async def close(self) -> None:
        """As ports.Store; the inner store outlives its processes."""


class SimArbiter:
    """A referee that keeps its word most of the time. Nothing may depend on it."""

    def __init__(self, scheduler: Scheduler, faults: Faults, history: History, *, at_once: bool = False) -> None:
        """`at_once`: it takes no time and never lies."""
        self._scheduler = scheduler
        self._faults = faults
        self._history = history
        self._at_once = at_once
        self._claims: dict[str, tuple[str, int]] = {}

    async def claim(self, keys: Sequence[str], nonce: str) -> Sequence[bool]:
        """As ports.Arbiter."""
        if self._at_once:
            return [self._claim(key, nonce) for key in keys]
        await self._scheduler.pause()
        if self._faults.hits("referee_slow"):
            await self._scheduler.sleep(self._faults.between("referee_slow", 10, 2_000))
        if self._faults.hits("referee_forgets"):
            self._claims.clear()
        return [self._claim(key, nonce) for key in keys]

    def _claim(self, key: str, nonce: str) -> bool:
        now_ms = self._scheduler.now_ms
        holder, until_ms = self._claims.get(key, ("", 0))
        if holder != nonce and until_ms > now_ms:
            self._history.sometimes["a claim was held by another"] += 1
            return not self._at_once and self._faults.hits("referee_grants")
        if not self._at_once and self._faults.hits("referee_refuses"):
            return False
        self._claims[key] = (nonce, now_ms + 3_000)
        return True

    async def finish(self, marks: Mapping[str, Mark], nonce: str) -> None:
        """As ports.Arbiter."""
        if not self._at_once:
            await self._scheduler.pause()
        for key in marks:
            if self._claims.get(key, ("", 0))[0] == nonce:
                del self._claims[key]


class SimReplies:
    """Carries answers to whoever asked; some get lost."""

    def __init__(self, deliver: Callable[[str, str], None], scheduler: Scheduler, faults: Faults) -> None:
        self._deliver = deliver
        self._scheduler = scheduler
        self._faults = faults

    async def send(self, reply_to: str, text: str) -> None:
        """As ports.Replies."""
        await self._scheduler.pause()
        if not self._faults.hits("reply_lost"):
            self._deliver(reply_to, text)


class SimInvoker:
    """Runs activities as tasks of its process; each result comes back as a message, unless something dies first."""

    def __init__(
        self,
        models: Models,
        tools: Tools,
        store: Store,
        broker: Broker,
        scheduler: Scheduler,
        faults: Faults,
        group: Group,
    ) -> None:
        self._models = models
        self._tools = tools
        self._store = store
        self._broker = broker
        self._scheduler = scheduler
        self._faults = faults
        self._group = group
        self._running: dict[Address, list[Task]] = {}

    def monotonic_ms(self) -> float:
        """As ports.Invoker: virtual time does not leap."""
        return self._scheduler.now_ms

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        """As ports.Invoker."""
        for activity in activities:
            owner = activity.owner()
            if isinstance(activity, Stop):
                for task in self._running.get(owner, ()):
                    # Not here and now: the task may be the one that runs.
                    self._scheduler.at(self._scheduler.now_ms, partial(self._scheduler.cancel, task, _Stopped()))
                continue
            if isinstance(activity, CallModel):
                run = self._call_model(activity)
            elif isinstance(activity, AskGate):
                run = self._ask_gate(activity)
            else:
                run = self._call_tool(activity, partial(self._begin_left_ms, since_ms))
            self._running.setdefault(owner, []).append(
                self._scheduler.spawn(f"activity {owner.text()}", run, self._group)
            )

    @property
    def running(self) -> int:
        """Activities in work."""
        return sum(not task.done for tasks in self._running.values() for task in tasks)

    async def _call_model(self, activity: CallModel) -> None:
        names: dict[str, Any] = {"tenant": activity.tenant, "run_id": activity.run_id, "thread_id": activity.thread_id}
        try:
            bodies = await self._store.read_thread(activity.run_id, activity.thread_id, activity.messages)
            reply = await self._models.call(activity, [_CHAT.validate_json(body) for body in bodies])
        except RetryableError:
            return  # nothing is reported: the lease will find it
        except _Stopped:
            return
        except ActivityError as error:
            self._report(
                activity, ModelFailed(**names, turn=activity.turn, attempt=activity.attempt, failure=error.failure)
            )
        else:
            self._report(activity, ModelAnswered(**names, turn=activity.turn, attempt=activity.attempt, reply=reply))

    async def _ask_gate(self, activity: AskGate) -> None:
        await self._scheduler.pause()
        if self._faults.hits("gate_hangs"):
            await self._scheduler.sleep(self._faults.between("gate_hangs", 1_000, 60_000))
        answer = said_outside(json.loads(activity.subject_text)["input"])
        if self._faults.hits("gate_fails"):
            answer = OutsideAnswer(verdict="failed", reason="it answered with 500")
        names: dict[str, Any] = {"tenant": activity.tenant, "run_id": activity.run_id}
        answered = GateAnswered(**names, operation_id=activity.operation_id, gate=activity.gate, answer=answer)
        self._report(activity, answered)

    def _begin_left_ms(self, since_ms: float) -> float:
        return since_ms + limits.LEASE_MARGIN_MS - self._scheduler.now_ms

    async def _call_tool(self, activity: RunTool | ProbeTool, begin_left_ms: BeginLeft) -> None:
        names: dict[str, Any] = {
            "tenant": activity.tenant,
            "run_id": activity.run_id,
            "operation_id": activity.operation_id,
        }
        try:
            if isinstance(activity, RunTool):
                outcome = await self._tools.run(activity, begin_left_ms)
            else:
                outcome = await self._tools.probe(activity, begin_left_ms)
        except _Stopped:
            outcome = Unsure(
                failure=Failure(
                    code=Code.CANCELLED,
                    message="stopped",
                    error_class=ErrorClass.CANCELLED,
                    certainty=Certainty.UNKNOWN,
                )
            )
        if isinstance(activity, RunTool):
            self._report(activity, ToolReturned(**names, attempt=activity.attempt, outcome=outcome))
        else:
            self._report(activity, ToolProbed(**names, attempt=activity.attempt, probe=activity.probe, outcome=outcome))

    def _report(
        self, activity: Activity, message: ModelAnswered | ModelFailed | ToolReturned | ToolProbed | GateAnswered
    ) -> None:
        if self._faults.hits("result_lost"):
            return
        owner = activity.owner()
        self._broker.report(
            Envelope(id=derived_id("res", owner.text(), message.model_dump_json()), message=message), self._group.name
        )


class _Stopped(Exception):  # noqa: N818  not an error: a signal
    """The cancellation signal, as a tool or model call feels it."""
