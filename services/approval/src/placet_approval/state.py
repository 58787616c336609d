"""Decides what is kept of a question: who voted what, and how it ended. The question itself is a row, not state."""

from __future__ import annotations

from typing import Literal

from placet.instants import Instant
from placet.machine import Record, Send, State
from placet.messages import ApprovalDecided, OutcomeWord
from placet.requests import Scope
from placet.rows import OutcomeRow
from placet.values import PoolName, Value

Status = Literal["open", "approved", "rejected", "answered", "expired", "cancelled", "superseded", "revoked", "settled"]
_STATUS: dict[OutcomeWord, Status] = {
    "approved": "approved",
    "rejected": "rejected",
    "answered": "answered",
    "expired": "expired",
    "cancelled": "cancelled",
    "superseded": "superseded",
    "executed": "settled",
    "not_executed": "settled",
}


class Vote(Value):
    """One person's voice."""

    person_id: str
    decision: str


class ApprovalState(State):
    """One question to people, from its opening to its one outcome."""

    status: Status = "open"
    request_id: str
    request_hash: str = ""
    """Empty while all that is known of the question is that it is no longer wanted."""
    scope: Scope | None = None
    operation_id: str = ""
    """The operation an approval lets start; empty where there is none."""
    asker_machine: str = ""
    asker_key: str = ""
    asker_pool: PoolName = ""
    expires_at_ms: Instant | None = None
    remind_at_ms: Instant | None = None
    """When people are to be reminded; None once they were, or where they are not."""
    generation: int = 1
    votes: tuple[Vote, ...] = ()
    answers: int = 0
    """Final answers given, refusals included: the number of the last `decision_attempt`."""
    outcome: OutcomeWord | None = None
    decided_by: str | None = None
    decided_at_ms: Instant | None = None
    successor: str | None = None
    """The request that has taken its place."""

    @property
    def is_asked(self) -> bool:
        """Whether the question itself has arrived; its closing may overtake it."""
        return self.request_hash != ""

    def is_expired(self, now_ms: Instant) -> bool:
        """Whether the question's time is over."""
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms

    def told(self) -> Send:
        """The outcome for whoever asked: a hint, the row is what is believed."""
        if self.outcome is None:
            raise ValueError("an open question has no outcome to tell")
        return Send(
            ApprovalDecided(
                tenant=self.tenant,
                run_id=self.run_id,
                request_id=self.request_id,
                outcome=self.outcome,
                asker_machine=self.asker_machine,
                asker_key=self.asker_key,
                asker_pool=self.asker_pool,
            )
        )


def settled(
    state: ApprovalState,
    outcome: OutcomeWord,
    now_ms: Instant,
    *,
    persons: tuple[str, ...] = (),
    decision_id: str | None = None,
    reason: str | None = None,
    use_by_ms: int | None = None,
    value_text: str | None = None,
    successor: str | None = None,
) -> tuple[ApprovalState, Record, Send]:
    """The state after its one outcome, the outcome's row, and the word to whoever asked."""
    decided_by = ",".join(persons) or None
    after = state.model_copy(
        update={
            "status": _STATUS[outcome],
            "outcome": outcome,
            "decided_by": decided_by,
            "decided_at_ms": now_ms,
            "successor": successor,
        }
    )
    row = OutcomeRow(
        tenant=state.tenant,
        run_id=state.run_id,
        request_id=state.request_id,
        outcome=outcome,
        request_hash=state.request_hash,
        decided_by=decided_by,
        decision_id=decision_id,
        reason=reason,
        decided_at_ms=now_ms,
        use_by_ms=use_by_ms,
        value_text=value_text,
        successor=successor,
    )
    return after, Record(row), after.told()
