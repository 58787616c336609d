"""Operations, approvals and readable defaults for the tests of the operation machine."""

from __future__ import annotations

from typing import Any, Self, get_args

from placet import limits
from placet.calls import EffectClass, Executed, NotExecuted, ToolOutcome, ToolSpec, Unsure
from placet.canonical import canonical_text
from placet.contents import ToolCallContent, boundary_of
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.freezing import FREEZE, FreezeOperations, freeze_run
from placet.messages import (
    OPERATION,
    ApprovalDecided,
    CancelOperation,
    ExecuteOperation,
    Message,
    OperationDone,
    OperationLeaseEnded,
    OutcomeWord,
    ProbeOperation,
    RequestApproval,
    RetryOperation,
    ToolProbed,
    ToolReturned,
)
from placet.requests import ApprovalRequest, create_request
from placet.retries import RetryPolicy
from placet.rows import STATE, AttemptEndRow, FactKey, OperationRow, OutcomeRow, RequestRow, RevocationRow, StateRow
from placet_tool_executor.machine import OperationMachine
from tests.builders import ALICE, FakeApplication, a_tool
from tests.machines.bench import RUN_ID, T0, TENANT, Bench, recorded, sent

OPERATION_ID = "op_1"
TIMEOUT_MS = 1_000
LEASE_MS = TIMEOUT_MS + limits.LEASE_MARGIN_MS
QUIESCENCE_MS = 3_000
USE_BY_MS = T0 + 600_000
INPUT = {"env": "staging"}
TRANSIENT = Failure(code=Code.TOOL_FAILED, message="busy", error_class=ErrorClass.TRANSIENT)
DENIED = Failure(code=Code.TOOL_FAILED, message="denied", error_class=ErrorClass.DENIED)
TIMED_OUT = Failure(
    code=Code.TOOL_TIMEOUT, message="no answer", error_class=ErrorClass.TIMEOUT, certainty=Certainty.UNKNOWN
)
DONE = Executed(result_text='{"tag":"v1"}')
NOT_DONE = NotExecuted(failure=TRANSIENT)
UNSURE = Unsure(failure=TIMED_OUT)


def a_spec(effect: str = "idempotent", **changes: Any) -> ToolSpec:
    """A consequential tool of three attempts. `sealing` and `peeking` are the two kinds of reconcilable ones."""
    kinds = {
        "sealing": {"effect": EffectClass.RECONCILABLE, "can_seal": True, "can_reconcile": True},
        "peeking": {"effect": EffectClass.RECONCILABLE, "can_reconcile": True, "quiescence_ms": QUIESCENCE_MS},
    }
    given = kinds[effect] if effect in kinds else {"effect": EffectClass(effect)}
    fields = {"consequential": True, "timeout_ms": TIMEOUT_MS, "retry": RetryPolicy(attempts_max=3)}
    return a_tool(**{**fields, **given, **changes})


def a_content(**changes: Any) -> ToolCallContent:
    """What people looked at."""
    fields: dict[str, Any] = {
        "tool_name": "deploy",
        "raw_input": INPUT,
        "input": INPUT,
        "agent_name": "operator",
        "task_id": "task-1",
        "tool_call_id": "call-1",
        "consequential": True,
    }
    return ToolCallContent(**{**fields, **changes})


def a_call_request(content: ToolCallContent | None = None, **changes: Any) -> ApprovalRequest:
    """The question that the operation's approval answers."""
    asked = content or a_content()
    fields: dict[str, Any] = {
        "tenant": TENANT,
        "run_id": RUN_ID,
        "scope": asked.kind,
        "boundary": boundary_of(asked),
        "content": asked,
        "requested_at_ms": T0 - 60_000,
        "initiator": "carol",
        "operation_id": OPERATION_ID,
        "use_by_ms": USE_BY_MS,
        "asker_machine": "run",
    }
    return create_request(**{**fields, **changes})


class OperationBench(Bench):
    """One operation that a person has approved, of a tool of the given effect. It is not started yet.

    `authority="policy"`: a gate allowed it instead. `outcome`: what the person said; None: nothing yet.
    """

    def __init__(
        self,
        effect: str = "idempotent",
        *,
        authority: str = "approval",
        outcome: str | None = "approved",
        row: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        self.spec = a_spec(effect, **spec)
        super().__init__(OperationMachine(), app=FakeApplication(tools={"deploy": self.spec}))
        self.request = a_call_request(a_content(consequential=self.spec.consequential))
        asked = authority == "approval"
        fields: dict[str, Any] = {
            "tenant": TENANT,
            "run_id": RUN_ID,
            "operation_id": OPERATION_ID,
            "task_id": "task-1",
            "thread_id": "task:task-1",
            "turn": 1,
            "call_id": "call-1",
            "tool": "deploy",
            "tool_version": self.spec.version,
            "tool_schema_digest": self.spec.schema_digest,
            "app_version": "app-1",
            "effect": self.spec.effect.value,
            "consequential": self.spec.consequential,
            "agent_name": "operator",
            "initiator": "carol",
            "raw_input_text": canonical_text(INPUT),
            "input_text": canonical_text(INPUT),
            "request_id": self.request.request_id if asked else None,
            "request_hash": self.request.request_hash if asked else None,
            "authority": authority,
            "rule": "rule",
            "policy_version": "p1",
            "proposed_at_ms": T0 - 60_000,
            "deadline_ms": None,
        }
        self.row = OperationRow(**{**fields, **(row or {})})
        self.put(self.row)
        self.run_is("running")
        self.freeze_is("thawed")
        if asked:
            self.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=self.request))
            if outcome is not None:
                self.decide(outcome)

    def freeze_is(self, status: str | None) -> None:
        """What is frozen; None: there is no state that says so."""
        key = FactKey(STATE, freeze_run(TENANT), OPERATION, FREEZE)
        self.rows.pop(key, None)
        if status is not None:
            self.rows[key] = StateRow(
                tenant=TENANT, run_id=key.run_id, machine=OPERATION, key=FREEZE, version=1, status=status
            )

    # ── facts of others ────────────────────────────────────────────────────────────────

    def decide(self, outcome: str, request: ApprovalRequest | None = None, **changes: Any) -> None:
        """A person said so, about the approval or another question."""
        asked = request or self.request
        fields: dict[str, Any] = {
            "tenant": TENANT,
            "run_id": RUN_ID,
            "request_id": asked.request_id,
            "outcome": outcome,
            "request_hash": asked.request_hash,
            "decided_by": "alice",
            "decision_id": "d-1",
            "reason": None,
            "decided_at_ms": self.now_ms,
            "use_by_ms": asked.use_by_ms,
        }
        self.put(OutcomeRow(**{**fields, **changes}))

    def revoke(self) -> None:
        """Somebody took the approval back."""
        self.put(
            RevocationRow(
                tenant=TENANT,
                run_id=RUN_ID,
                request_id=self.request.request_id,
                revoked_by="bob",
                reason="",
                revoked_at_ms=self.now_ms,
            )
        )

    # ── messages ───────────────────────────────────────────────────────────────────────

    def execute(self, **changes: Any) -> ExecuteOperation:
        """Run it now."""
        fields = {"tenant": TENANT, "run_id": RUN_ID, "operation_id": OPERATION_ID, "request_id": self.row.request_id}
        return ExecuteOperation(**{**fields, **changes})

    def returned(self, outcome: ToolOutcome = DONE, attempt: int | None = None) -> ToolReturned:
        """What an attempt came to; by default the last one."""
        return ToolReturned(
            tenant=TENANT, run_id=RUN_ID, operation_id=OPERATION_ID, attempt=attempt or self.n, outcome=outcome
        )

    def probed(self, outcome: ToolOutcome = DONE, probe: int | None = None, attempt: int | None = None) -> ToolProbed:
        """What a probe came to; by default the last one."""
        return ToolProbed(
            tenant=TENANT,
            run_id=RUN_ID,
            operation_id=OPERATION_ID,
            attempt=attempt or self.n,
            probe=probe or self.probe,
            outcome=outcome,
        )

    def retry(self, attempt: int | None = None, **changes: Any) -> RetryOperation:
        """The back-off is over."""
        fields = {"tenant": TENANT, "run_id": RUN_ID, "operation_id": OPERATION_ID, "request_id": self.row.request_id}
        return RetryOperation(**{**fields, "attempt": attempt or self.n + 1, **changes})

    def lease_end(self, attempt: int | None = None, probe: int = 0) -> OperationLeaseEnded:
        """Nobody reported."""
        return OperationLeaseEnded(
            tenant=TENANT,
            run_id=RUN_ID,
            operation_id=OPERATION_ID,
            attempt=attempt or self.n,
            probe=probe,
            request_id=self.row.request_id,
        )

    def probe_due(self, probe: int | None = None, attempt: int | None = None) -> ProbeOperation:
        """The tool's world is quiet."""
        return ProbeOperation(
            tenant=TENANT,
            run_id=RUN_ID,
            operation_id=OPERATION_ID,
            attempt=attempt or self.n,
            probe=probe or self.probe,
        )

    def cancel(self) -> CancelOperation:
        """The run has ended."""
        return CancelOperation(tenant=TENANT, run_id=RUN_ID, operation_id=OPERATION_ID, reason="the run is cancelled")

    def told(self, outcome: str = "executed", request_id: str | None = None) -> ApprovalDecided:
        """A question was answered, says somebody."""
        assert outcome in get_args(OutcomeWord)
        return ApprovalDecided.model_validate(
            {
                "tenant": TENANT,
                "run_id": RUN_ID,
                "request_id": request_id or (self.state and self.state.question_id) or "apr_none",
                "outcome": outcome,
                "asker_machine": "operation",
                "asker_key": OPERATION_ID,
            }
        )

    def every_message(self) -> dict[str, Message]:
        """One message of each kind, as it would come rightly about the current attempt."""
        return {
            "execute": self.execute(),
            "retry": self.retry(),
            "returned": self.returned(),
            "probed": self.probed(),
            "lease": self.lease_end(),
            "probe": self.probe_due(),
            "cancel": self.cancel(),
            "decided": self.told(),
            "freeze": FreezeOperations(tenant=TENANT, run_id=RUN_ID, word="thaw", by=ALICE),
        }

    @property
    def n(self) -> int:
        """The number of the last attempt, at least 1."""
        return self.state.n if self.state is not None and self.state.n else 1

    @property
    def probe(self) -> int:
        """The number of the last probe, at least 1."""
        return self.state.probe if self.state is not None and self.state.probe else 1

    # ── longer ways ────────────────────────────────────────────────────────────────────

    def started(self) -> Self:
        """Attempt 1 runs."""
        assert self.give(self.execute()).kind == "moved"
        return self

    def lose_worker(self) -> Any:
        """The lease ends without a word."""
        self.later(LEASE_MS)
        return self.give(self.lease_end())

    def asked_person(self) -> Self:
        """A person is asked whether attempt 1 happened."""
        self.started()
        self.question: ApprovalRequest = sent(self.lose_worker(), RequestApproval)[0].request
        self.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=self.question))
        return self

    def reconciling(self) -> Self:
        """The tool's world is about to be asked about attempt 1."""
        self.started().lose_worker()
        return self

    def probing(self) -> Self:
        """The tool's world is being asked about attempt 1."""
        self.reconciling()
        self.later(QUIESCENCE_MS)
        assert self.give(self.probe_due()).kind == "moved"
        return self


def done(transition: Any) -> OperationDone:
    """The one word to the run that the operation has ended."""
    [message] = sent(transition, OperationDone)
    assert isinstance(message, OperationDone)
    return message


def ended(transition: Any) -> list[tuple[int, str]]:
    """The attempts that a transition closes, and how."""
    return [(row.n, row.ended) for row in recorded(transition, AttemptEndRow)]
