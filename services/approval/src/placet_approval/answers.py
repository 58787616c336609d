"""Decides the form of an answer to a person: a receipt, written down with the step that it rests on.

No final answer leaves without a commit that wrote something (DESIGN §5.4): each one is a `decision_attempt` row, which
is the audit trail as well. The receipt's text is stored, so that a repeat of the same decision gets the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from placet.errors import Code, ErrorClass, Failure
from placet.ids import derived_id, digest_hex
from placet.instants import Instant
from placet.machine import Effect, Receipt, Record, Reply, Transition, absorb, move
from placet.messages import ApprovalMessage, DecideApproval, RevokeApproval
from placet.rows import DecisionAttemptRow
from placet_approval.state import ApprovalState


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer answers: who wants what, under which id."""

    decision_id: str
    person_id: str
    request_hash: str
    """As quoted by the person. A receipt never tells the right one to somebody who quoted another."""
    content_digest: str
    """The same id with another digest is another decision."""


def asked_to_decide(message: DecideApproval) -> Asked:
    """The decision, without what only the wire knows."""
    person_id = message.reviewer.id.strip()
    said = () if message.value_text is None else (message.value_text,)
    content = digest_hex(message.decision, message.request_hash, person_id, message.reason or "", *said)
    return Asked(message.decision_id, person_id, message.request_hash, content)


def asked_to_revoke(message: RevokeApproval, state: ApprovalState) -> Asked:
    """The revocation. It has no id of its own: repeating it is harmless and is answered anew."""
    person_id = message.by.id.strip()
    content = digest_hex("revoke", state.request_hash, person_id, message.reason)
    return Asked(
        derived_id("rev", state.request_id, person_id, str(state.answers)), person_id, state.request_hash, content
    )


def receipt(state: ApprovalState, asked: Asked, answer: str, now_ms: Instant, failure: Failure | None) -> Receipt:
    """The answer, with the winner's name where there is a winner."""
    return Receipt(
        answer=answer,
        run_id=state.run_id,
        status=state.status,
        request_id=state.request_id,
        request_hash=asked.request_hash,
        decision_id=asked.decision_id,
        outcome=state.outcome,
        decided_by=state.decided_by,
        decided_at_ms=state.decided_at_ms,
        successor=state.successor,
        recorded_at_ms=now_ms,
        failure=failure,
    )


def answered(
    state: ApprovalState,
    asked: Asked,
    answer: str,
    now_ms: Instant,
    *effects: Effect,
    failure: Failure | None = None,
    stored_text: str | None = None,
    before_ms: Instant | None = None,
) -> Transition[ApprovalState]:
    """The step that writes the answer down and gives it. `stored_text`: the receipt of an earlier, equal decision."""
    after = state.model_copy(update={"answers": state.answers + 1})
    given = receipt(after, asked, answer, now_ms, failure)
    text = stored_text or given.model_dump_json(exclude_none=True)
    row = DecisionAttemptRow(
        tenant=state.tenant,
        run_id=state.run_id,
        request_id=state.request_id,
        n=after.answers,
        decision_id=asked.decision_id,
        content_digest=asked.content_digest,
        person_id=asked.person_id,
        answer=answer,
        receipt_text=text,
        answered_at_ms=now_ms,
    )
    return move(after, *effects, Record(row), Reply(given, text), before_ms=before_ms)


def refused(
    state: ApprovalState,
    asked: Asked,
    answer: str,
    now_ms: Instant,
    code: Code,
    message: str,
    *effects: Effect,
    pointer: str | None = None,
) -> Transition[ApprovalState]:
    """A refusal, written down like every final answer about an existing request."""
    failure = Failure(code=code, message=message, error_class=ErrorClass.APPROVAL, pointer=pointer)
    return answered(state, asked, answer, now_ms, *effects, failure=failure)


def unanswered(
    message: ApprovalMessage, answer: str, code: Code, words: str, pointer: str | None = None
) -> Transition[ApprovalState]:
    """An answer about nothing that is stored: it changes nothing and writes nothing."""
    failure = Failure(code=code, message=words, error_class=ErrorClass.INVALID, pointer=pointer)
    told = Receipt(answer=answer, run_id=message.run_id, request_id=message.request_id, failure=failure)
    return absorb(words, Reply(told))


def unknown(message: ApprovalMessage) -> Transition[ApprovalState]:
    """No such request. Another tenant's is answered in the same words."""
    words = f"there is no request {message.request_id} in run {message.run_id}"
    return unanswered(message, "not_found", Code.APPROVAL_NOT_FOUND, words)
