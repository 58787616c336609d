"""A run on a table: told messages one by one, with the rows that the other machines would have written."""

from __future__ import annotations

from typing import Any

from placet.calls import ToolCall
from placet.errors import Failure
from placet.instants import Instant
from placet.machine import Transition
from placet.messages import (
    OPERATION,
    PLAN_THREAD,
    RUN,
    ApprovalDecided,
    CancelRun,
    ExecuteOperation,
    Message,
    OperationDone,
    OperationDoubtful,
    PlanProposed,
    RequestApproval,
    TakeTurn,
    TurnFailed,
    TurnTaken,
    task_thread,
)
from placet.plans import PlannedTask
from placet.requests import ApprovalRequest
from placet.rows import FactKey, OutcomeRow, RequestRow, RevocationRow, Row
from placet.values import Usage
from placet_dispatcher.machine import RunMachine, RunState
from placet_dispatcher.states import Task
from tests.builders import ALICE, RUN_ID, T0, TENANT, FakeApplication, a_state_row, a_submission, drive, recorded, sent

HERE: dict[str, Any] = {"tenant": TENANT, "run_id": RUN_ID}
MACHINE = RunMachine()


def an_outcome(request: ApprovalRequest, outcome: str = "approved", **changes: Any) -> OutcomeRow:
    """The row that the approval machine writes."""
    fields: dict[str, Any] = {
        **HERE,
        "request_id": request.request_id,
        "outcome": outcome,
        "request_hash": request.request_hash,
        "decided_by": "bob" if outcome in ("approved", "rejected") else None,
        "decision_id": "dec-1",
        "reason": None,
        "decided_at_ms": T0 + 1,
        "use_by_ms": None,
    }
    return OutcomeRow(**{**fields, **changes})


class Play:
    """One run under test. `last` is the last transition; `sent` and `rows` are all there were."""

    def __init__(self, app: FakeApplication | None = None) -> None:
        self.app = app or FakeApplication()
        self.state: RunState | None = None
        self.now_ms = T0
        self.rows: dict[FactKey, Row] = {}
        self.sent: list[Message] = []
        self.last: Transition[RunState] | None = None

    def tell(self, message: Message, **changes: Any) -> Transition[RunState]:
        """Fold one message in; `changes` replace fields of it."""
        message = message.model_copy(update=changes)
        self.last = drive(MACHINE, self.state, message, rows=self.rows, app=self.app, now_ms=self.now_ms)
        if self.last.kind == "moved":
            self.state = self.last.state
        self.sent += sent(self.last)
        for row in recorded(self.last):
            assert row.fact_key() not in self.rows, "a fact is written once"
            self.rows[row.fact_key()] = row
        self.now_ms = Instant(self.now_ms + 1)
        return self.last

    # ── what is told ───────────────────────────────────────────────────────────────────

    def submit(self, *tasks: PlannedTask, **changes: Any) -> Play:
        self.tell(a_submission(*tasks, **changes))
        return self

    def plan(self, *tasks: PlannedTask, **changes: Any) -> Play:
        self.tell(PlanProposed(**HERE, thread_id=PLAN_THREAD, turn=1, tasks=tasks), **changes)
        return self

    def say(self, task_id: str, text: str = "done", **changes: Any) -> Play:
        """The agent of a task ends its work with words."""
        thread_id = task_thread(task_id)
        self.tell(TurnTaken(**HERE, thread_id=thread_id, turn=self.task(task_id).turn, text=text), **changes)
        return self

    def call(self, task_id: str, *calls: ToolCall, **changes: Any) -> Play:
        """The agent of a task asks for calls."""
        thread_id = task_thread(task_id)
        self.tell(TurnTaken(**HERE, thread_id=thread_id, turn=self.task(task_id).turn, calls=calls), **changes)
        return self

    def fail(self, task_id: str, failure: Failure, **changes: Any) -> Play:
        thread_id = task_thread(task_id)
        self.tell(TurnFailed(**HERE, thread_id=thread_id, turn=self.task(task_id).turn, failure=failure), **changes)
        return self

    def done(self, operation_id: str, status: str = "succeeded", result: str | None = '"ok"', **changes: Any) -> Play:
        """The operation's record reaches its end, and says so."""
        self._record(operation_id, changes.pop("recorded", status))
        told: dict[str, Any] = {"operation_id": operation_id, "status": status, "result_text": result}
        self.tell(OperationDone(**HERE, **told), **changes)
        return self

    def doubt(self, operation_id: str, status: str = "needs_operator") -> Play:
        self._record(operation_id, status)
        self.tell(OperationDoubtful(**HERE, operation_id=operation_id, request_id="apr_did_it_happen"))
        return self

    def _record(self, operation_id: str, status: str) -> None:
        row = a_state_row(OPERATION, operation_id, status)
        self.rows[row.fact_key()] = row

    def decide(self, request_id: str, outcome: str = "approved", **changes: Any) -> Play:
        """The approval machine writes its rows and tells the run."""
        request = self.request(request_id)
        for row in (RequestRow(**HERE, request=request), an_outcome(request, outcome, **changes)):
            self.rows.setdefault(row.fact_key(), row)
        return self.wake(request_id, outcome)

    def revoke(self, request_id: str) -> Play:
        row = RevocationRow(**HERE, request_id=request_id, revoked_by="bob", reason="wrong one", revoked_at_ms=T0)
        self.rows[row.fact_key()] = row
        return self

    def wake(self, request_id: str, outcome: str = "approved") -> Play:
        """Only the message; whatever rows there are."""
        told: dict[str, Any] = {"request_id": request_id, "outcome": outcome, "asker_machine": RUN, "asker_key": ""}
        self.tell(ApprovalDecided(**HERE, **told))
        return self

    def cancel(self, **changes: Any) -> Transition[RunState]:
        return self.tell(CancelRun(**HERE, by=ALICE), **changes)

    # ── what is seen ───────────────────────────────────────────────────────────────────

    @property
    def run(self) -> RunState:
        assert self.state is not None, "the run was refused"
        return self.state

    @property
    def status(self) -> str:
        return self.run.status

    def task(self, task_id: str) -> Task:
        return next(task for task in self.run.tasks if task.id == task_id)

    def statuses(self) -> dict[str, str]:
        return {task.id: task.status for task in self.run.tasks}

    def pending(self) -> list[str]:
        """Ids of the undecided requests."""
        return [request.request_id for request in self.run.requests if request.decision is None]

    def request(self, request_id: str) -> ApprovalRequest:
        return next(m.request for m in self.requests() if m.request_id == request_id)

    def requests(self) -> list[RequestApproval]:
        return [message for message in self.sent if isinstance(message, RequestApproval)]

    def turns(self) -> list[TakeTurn]:
        return [message for message in self.sent if isinstance(message, TakeTurn)]

    def executed(self) -> list[ExecuteOperation]:
        return [message for message in self.sent if isinstance(message, ExecuteOperation)]

    def results(self) -> list[Any]:
        """The tool results that the last turn was given."""
        [appended] = self.turns()[-1].append
        return list(appended.results)  # type: ignore[union-attr]


def usage(tokens: int) -> Usage:
    """Tokens, in and out."""
    return Usage(input_tokens=tokens - tokens // 2, output_tokens=tokens // 2)
