"""Questions, voices and readable defaults for the tests of the approval machine."""

from __future__ import annotations

from typing import Any

from placet.contents import Content, OperationOutcomeContent, ToolCallContent, boundary_of
from placet.messages import (
    OPERATION,
    RUN,
    CloseApproval,
    DecideApproval,
    ExpireApproval,
    Message,
    RemindApproval,
    RequestApproval,
    RevokeApproval,
)
from placet.requests import ApprovalRequest, create_request
from placet.values import Principal, PrincipalKind
from placet.voices import OwnDoor, Voices
from placet_approval.machine import ApprovalMachine
from tests.machines.bench import RUN_ID, T0, TENANT, Bench

OPERATION_ID = "op_1"
WRONG_HASH = "0" * 64
REMIND_AT_MS = T0 + 45_000
EXPIRES_AT_MS = T0 + 60_000
USE_BY_MS = T0 + 600_000
CALL = ToolCallContent(
    tool_name="deploy",
    raw_input={"env": "staging"},
    input={"env": "staging"},
    agent_name="operator",
    task_id="task-1",
    tool_call_id="call-1",
    consequential=True,
)
DOUBT = OperationOutcomeContent(
    operation_id=OPERATION_ID,
    tool_name="deploy",
    input={"env": "staging"},
    agent_name="operator",
    task_id="task-1",
    tool_call_id="call-1",
    started_at="2026-08-08T00:00:00.000Z",
    reason="whoever ran attempt 1 did not report back",
)


def a_request(content: Content = CALL, **changes: Any) -> ApprovalRequest:
    """May `deploy` be called? Started by carol, open for a minute."""
    asks_operation = isinstance(content, OperationOutcomeContent)
    fields: dict[str, Any] = {
        "tenant": TENANT,
        "run_id": RUN_ID,
        "scope": content.kind,
        "boundary": boundary_of(content),
        "content": content,
        "requested_at_ms": T0,
        "initiator": "carol",
        "operation_id": OPERATION_ID,
        "expires_at_ms": EXPIRES_AT_MS,
        "use_by_ms": USE_BY_MS,
        "remind_at_ms": REMIND_AT_MS,
        "asker_machine": OPERATION if asks_operation else RUN,
        "asker_key": OPERATION_ID if asks_operation else "",
    }
    return create_request(**{**fields, **changes})


def a_person(person_id: str, kind: PrincipalKind = PrincipalKind.HUMAN) -> Principal:
    """Somebody."""
    return Principal(kind=kind, id=person_id)


class ApprovalBench(Bench):
    """One question. It is open unless `opened` says otherwise."""

    def __init__(
        self, request: ApprovalRequest | None = None, *, opened: bool = True, voices: Voices | None = None
    ) -> None:
        super().__init__(ApprovalMachine(voices or OwnDoor()))
        self.request = request or a_request()
        self.run_is("suspended")
        self.decisions = 0
        if opened:
            self.give(self.ask())

    def ask(self, request: ApprovalRequest | None = None) -> RequestApproval:
        """Put the question."""
        asked = request or self.request
        return RequestApproval(tenant=TENANT, run_id=RUN_ID, request_id=self.request.request_id, request=asked)

    def decision(self, word: str = "approve", by: str = "alice", **changes: Any) -> DecideApproval:
        """One voice, under a decision id of its own."""
        self.decisions += 1
        fields: dict[str, Any] = {
            "tenant": TENANT,
            "run_id": RUN_ID,
            "request_id": self.request.request_id,
            "decision_id": f"d-{self.decisions}",
            "request_hash": self.request.request_hash,
            "decision": word,
            "reviewer": a_person(by),
        }
        return DecideApproval(**{**fields, **changes})

    def revocation(self, by: str = "bob", **changes: Any) -> RevokeApproval:
        """Take the approval back."""
        fields: dict[str, Any] = {
            "tenant": TENANT,
            "run_id": RUN_ID,
            "request_id": self.request.request_id,
            "by": a_person(by),
            "operation_id": self.request.operation_id,
        }
        return RevokeApproval(**{**fields, **changes})

    def expiry(self) -> ExpireApproval:
        """The deadline's timer."""
        return ExpireApproval(tenant=TENANT, run_id=RUN_ID, request_id=self.request.request_id)

    def reminder(self) -> RemindApproval:
        """The timer of the reminder."""
        return RemindApproval(tenant=TENANT, run_id=RUN_ID, request_id=self.request.request_id)

    def closing(self, outcome: str = "cancelled") -> CloseApproval:
        """The asker wants no answer any more."""
        return CloseApproval.model_validate(
            {
                "tenant": TENANT,
                "run_id": RUN_ID,
                "request_id": self.request.request_id,
                "outcome": outcome,
                "reason": "the run is cancelled",
            }
        )

    def every_message(self) -> dict[str, Message]:
        """One message of each kind, as it would come rightly."""
        outcome = self.request.scope == "operation_outcome"
        return {
            "request": self.ask(),
            "decide": self.decision("executed" if outcome else "approve"),
            "revoke": self.revocation(),
            "expire": self.expiry(),
            "remind": self.reminder(),
            "close": self.closing(),
        }


def decided(bench: ApprovalBench, word: str = "approve", by: str = "alice", **changes: Any) -> Any:
    """Give one decision."""
    return bench.give(bench.decision(word, by, **changes))


def tampered(request: ApprovalRequest, **changes: Any) -> ApprovalRequest:
    """The row as somebody with write access would leave it."""
    edited = {"content_text": request.content_text.replace("staging", "production")}
    return request.model_copy(update=changes or edited)
