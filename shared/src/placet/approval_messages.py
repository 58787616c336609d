"""Decides the words spoken about questions to people: what is asked, what is said to it, what came of it.

A part of `placet.messages`, which is where others take them from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from placet import limits
from placet.addressees import ApprovalMessage, Message, RunMessage
from placet.ids import Address
from placet.requests import ApprovalRequest
from placet.values import Name, PoolName, Principal, Text

# ── the answer, to whoever asked: a run, or an operation in doubt ──────────────────────

OutcomeWord = Literal[
    "approved", "rejected", "answered", "expired", "cancelled", "superseded", "executed", "not_executed"
]
"""`answered`: a person has answered instead of letting the call be made, or has answered a question."""


class ApprovalDecided(Message):
    """A request reached its one outcome. A hint: the receiver reads the outcome row."""

    type: Literal["approval.decided"] = "approval.decided"
    request_id: str
    outcome: OutcomeWord
    asker_machine: str
    asker_key: str
    asker_pool: PoolName = ""
    """Where an operation in doubt is looked after."""

    def to(self) -> Address:
        return Address(self.run_id, self.asker_machine, self.asker_key)


class ApprovalExpiring(RunMessage):
    """A question of the run will expire soon, and nobody has decided it."""

    type: Literal["approval.expiring"] = "approval.expiring"
    request_id: str
    expires_at_ms: int


# ── the question ───────────────────────────────────────────────────────────────────────

DecisionWord = Literal["approve", "reject", "edit", "respond", "request_changes", "executed", "not_executed"]
"""`edit`: ask again, about the input in the value; `respond`: the value is the answer; `request_changes`: the reason
goes back to the agent. Which of them fits a question is for the rules to say."""


class RequestApproval(ApprovalMessage):
    """Open the frozen question."""

    type: Literal["approval.request"] = "approval.request"
    request: ApprovalRequest
    asker_pool: PoolName = ""
    """Whom the answer is for among tool executors."""


class DecideApproval(ApprovalMessage):
    """One person's voice. `decision_id` is minted by the client and kept until it has a receipt.

    Word and reviewer are checked by the machine, in the order of DESIGN §5, hence their loose types here.
    """

    type: Literal["approval.decide"] = "approval.decide"
    decision_id: Name
    request_hash: str
    decision: str
    reviewer: Principal
    reason: Text | None = None
    shown_digest: str | None = None
    """Digest of what the renderer put on the reviewer's screen."""
    value_text: Annotated[str, Field(max_length=limits.VALUE_BYTES_MAX)] | None = None
    """Canonical JSON of what is said besides the word: the edited input, the answer. Signed by its digest."""
    signed: Annotated[str, Field(max_length=limits.SIGNED_BYTES_MAX)] | None = None
    """The signed envelope, verbatim: every field above counts only as far as it says the same."""


class RevokeApproval(ApprovalMessage):
    """Take an approval back before it is consumed."""

    type: Literal["approval.revoke"] = "approval.revoke"
    operation_id: str = ""
    """What the approval is for, as the request says: whether it was consumed is read from that operation's state."""
    by: Principal
    reason: Text = ""


class ExpireApproval(ApprovalMessage):
    """Timer: the question's deadline."""

    type: Literal["approval.expire"] = "approval.expire"


class RemindApproval(ApprovalMessage):
    """Timer: the question will expire soon."""

    type: Literal["approval.remind"] = "approval.remind"


class CloseApproval(ApprovalMessage):
    """The asker no longer wants an answer."""

    type: Literal["approval.close"] = "approval.close"
    outcome: Literal["cancelled", "superseded"]
    reason: str
