"""Decides what the world behind the tools does: effects are counted, requests may be lost, late, or never answered.

Nothing here dies with a process: what was sent arrives, whoever sent it. Each effect class keeps exactly the promise
that the class makes, and no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placet.activities import ProbeTool, RunTool
from placet.calls import EffectClass, Executed, NotExecuted, ToolOutcome, Unsure, not_begun, probe_not_begun
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.runtime.ports import BeginLeft
from tests.simulation.application import EFFECTS, LEDGER, LOOK, MAIL, QUIESCENCE_MS, TAG, UPSERT
from tests.simulation.canaries import TOOL_TOKEN
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.scheduler import Scheduler, Signal

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Effect:
    """Something happened out there."""

    operation_id: str
    tool: str
    key: str
    input_text: str
    at_ms: int


class Request:
    """A tool's request on its way, and the answer to it."""

    __slots__ = ("activity", "answer", "answered", "token")

    def __init__(self, activity: RunTool, token: str) -> None:
        self.activity = activity
        self.token = token
        """What the tool signs in with."""
        self.answer: ToolOutcome | None = None
        self.answered = Signal()


def _failure(message: str, error_class: ErrorClass, certainty: Certainty) -> Failure:
    return Failure(code=Code.TOOL_FAILED, message=message, error_class=error_class, certainty=certainty)


UNSURE = Unsure(failure=_failure("no answer", ErrorClass.TIMEOUT, Certainty.UNKNOWN))


class Outside:
    """The tools' worlds."""

    def __init__(
        self, scheduler: Scheduler, faults: Faults, history: History, ledger: Ledger, store_now_ms: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._faults = faults
        self._history = history
        self._ledger = ledger
        self._store_now_ms = store_now_ms
        self.effects: dict[str, list[Effect]] = defaultdict(list)
        self.sealed: set[str] = set()
        self.on_the_way: dict[str, int] = defaultdict(int)
        """Requests by operation that may still arrive."""
        self._seen: dict[str, ToolOutcome] = {}
        self.settled: set[str] = set()
        """Operations of which a person has said what happened: nothing of them can arrive any more."""
        self.owners_ended_ms: list[int] = []
        """When each exclusive owner of the store, by its incarnation from 1, was known to be dead."""

    # ── a tool's run, as its code does it ──────────────────────────────────────────────

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """One attempt, in the process that runs it, which may die at every await."""
        await self._scheduler.pause()
        if begin_left_ms() < 0:
            self._history.sometimes["a call came too late to begin"] += 1
            return not_begun(activity.tool)
        if activity.tool != LOOK:
            if self._faults.hits("tool_refuses"):
                return NotExecuted(failure=_failure("try again", ErrorClass.TRANSIENT, Certainty.NOT_EXECUTED))
            if self._faults.hits("tool_denies"):
                return NotExecuted(failure=_failure("denied", ErrorClass.DENIED, Certainty.NOT_EXECUTED))
            if self._faults.hits("tool_objects"):  # as runtime.checks has it of what does not hold any more
                broken = Failure(
                    code=Code.PRECONDITION_FAILED,
                    message="the balance is not what it was",
                    error_class=ErrorClass.APPROVAL,
                    certainty=Certainty.NOT_EXECUTED,
                )
                return NotExecuted(failure=broken)
        if self._faults.hits("tool_never_sent"):
            await self._scheduler.sleep(activity.timeout_ms)
            return UNSURE
        request = self._send(activity)
        if self._faults.hits("tool_answer_lost"):
            await self._scheduler.sleep(activity.timeout_ms)
            return UNSURE
        patience_ms = activity.timeout_ms
        if self._faults.hits("tool_hangs"):
            patience_ms += self._faults.between("tool_hangs", 4_000, 40_000)
            await self._scheduler.sleep(patience_ms)
        if not await self._scheduler.wait(request.answered, patience_ms):
            return UNSURE
        assert request.answer is not None
        return request.answer

    def _send(self, activity: RunTool) -> Request:
        self._check_sent_in_time(activity)
        request = Request(activity, TOOL_TOKEN)
        delay_ms = 1
        if self._faults.hits("tool_arrives_late"):
            delay_ms = self._faults.between("tool_arrives_late", activity.timeout_ms, 30_000)
        self.on_the_way[activity.operation_id] += 1
        self._scheduler.at(self._scheduler.now_ms + delay_ms, lambda: self._arrive(request))
        return request

    def _check_sent_in_time(self, activity: RunTool) -> None:
        """Whoever sends when the lease is over breaks the promise that all others rely on when they act on its end."""
        attempts = self._ledger.attempts.get(activity.operation_id, [])
        row = next((a for a in attempts if a.n == activity.attempt), None)
        if row is None:
            return  # said when it arrives
        since_ms = self._ledger.attempt_since_ms[activity.operation_id, activity.attempt]
        late_ms = self._scheduler.now_ms - since_ms - (row.lease_until_ms - row.started_at_ms)
        name = f"{activity.tool} {activity.operation_id} attempt {activity.attempt}"
        self._history.check(late_ms <= 0, "I12", f"{name} was sent {late_ms} ms after its lease")

    def _arrive(self, request: Request) -> None:
        activity = request.activity
        self.on_the_way[activity.operation_id] -= 1
        request.answer = self._take(activity)
        self._scheduler.set(request.answered)

    def _take(self, activity: RunTool) -> ToolOutcome:
        """The effect, as the class of the tool promises it."""
        key = activity.idempotency_key
        operation = self._ledger.operations.get(activity.operation_id)
        if operation is not None and operation.effect == EffectClass.IDEMPOTENT and key in self._seen:
            self._history.sometimes["an idempotent tool saw its key again"] += 1
            return self._seen[key]
        if activity.tool == LEDGER and key in self.sealed:
            self._history.sometimes["a seal refused a late request"] += 1
            return NotExecuted(failure=_failure("sealed", ErrorClass.CANCELLED, Certainty.NOT_EXECUTED))
        if activity.tool in (TAG, MAIL) and self._is_too_late(activity):
            self._history.sometimes["a request came too late to arrive"] += 1
            return UNSURE
        self.effects[activity.operation_id].append(
            Effect(activity.operation_id, activity.tool, key, activity.input_text, self._scheduler.now_ms)
        )
        self._history.note("effect", f"{activity.tool} {activity.operation_id} attempt {activity.attempt}")
        self._check(activity)
        outcome = Executed(result_text=activity.input_text)
        if self._faults.hits("tool_reports_error"):
            outcome = Executed(failure=_failure("it says no", ErrorClass.PERMANENT, Certainty.EXECUTED))
        self._seen[key] = outcome
        return outcome

    def _is_too_late(self, activity: RunTool) -> bool:
        """What these classes are promised: nothing arrives later than their quiescence after the sender is gone, that
        is, known to be dead or past its lease; nor after a person has said.
        """
        if activity.operation_id in self.settled:
            return True
        attempts = self._ledger.attempts.get(activity.operation_id, [])
        row = next((a for a in attempts if a.n == activity.attempt), None)
        if row is None:
            return False
        gone_ms = min([row.lease_until_ms, *self.owners_ended_ms[row.incarnation - 1 : row.incarnation]])
        return self._store_now_ms() >= gone_ms + QUIESCENCE_MS

    def _check(self, activity: RunTool) -> None:
        history, operation = self._history, self._ledger.operations.get(activity.operation_id)
        name = f"{activity.tool} {activity.operation_id}"
        if operation is None:
            history.violate("I7", f"{name} had an effect that nobody proposed")
            return
        approved = self._ledger.approved_input(operation)
        history.check(activity.input_text == approved, "I8", f"{name} ran with another input")
        history.check(activity.tool == operation.tool, "I8", f"{name} was proposed as {operation.tool}")
        started = any(attempt.n == activity.attempt for attempt in self._ledger.attempts[activity.operation_id])
        history.check(started, "I7", f"{name} had an effect in attempt {activity.attempt}, which was not started")
        times = len(self.effects[activity.operation_id])
        history.check(times == 1 or activity.tool == LOOK, "I12", f"{name} has had its effect {times} times")

    # ── asking about an attempt ────────────────────────────────────────────────────────

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """What the tool's world says about one attempt."""
        await self._scheduler.pause()
        if begin_left_ms() < 0:
            return probe_not_begun(activity.tool)
        if self._faults.hits("probe_unsure"):
            await self._scheduler.sleep(activity.timeout_ms // 2)
            return Unsure(failure=_failure("cannot say", ErrorClass.TRANSIENT, Certainty.UNKNOWN))
        found = [e for e in self.effects[activity.operation_id] if e.key == activity.idempotency_key]
        if activity.seal and not found:
            self.sealed.add(activity.idempotency_key)
            self._history.note("sealed", activity.idempotency_key)
        await self._scheduler.pause()
        if found:
            self._history.sometimes["a probe found the effect"] += 1
            return self._seen[activity.idempotency_key]
        self._history.sometimes["a probe found nothing"] += 1
        return NotExecuted(failure=_failure("it did not happen", ErrorClass.TRANSIENT, Certainty.NOT_EXECUTED))

    # ── what a person can see ──────────────────────────────────────────────────────────

    def has_settled(self, operation_id: str) -> bool:
        """Whether nothing of the operation can arrive any more: when a person may say what happened."""
        attempts = self._ledger.attempts[operation_id]
        quiet_ms = attempts[-1].lease_until_ms + QUIESCENCE_MS if attempts else 0
        return not self.on_the_way[operation_id] and self._store_now_ms() >= quiet_ms

    def truth(self, operation_id: str) -> str:
        """The word of a person who looked: `executed` or `not_executed`. From now on nothing else can happen."""
        self.settled.add(operation_id)
        return "executed" if self.effects[operation_id] else "not_executed"


assert set(EFFECTS) == {LOOK, UPSERT, LEDGER, TAG, MAIL}
