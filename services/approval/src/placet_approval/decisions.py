"""Decides what one person's voice comes to: the order of checks, the one vote a person has, the first outcome.

Order (DESIGN §5.5, conformance C15), first match answers:
the voice is believed (signature, key, environment, every field as it was signed) → reviewer and word → the request
exists → its row verifies → the same decision again → the signature is in its time → the quoted hash is the request's
(else stale) → the decision's id is new → this person may decide → not decided yet (else conflict, closed or expired)
→ the run still wants it → in time → this person has not voted → the value answers the question. Stale comes before
conflict: whoever looked at other bytes learns that first. The time of a signature comes after the repeat: whoever asks
late for the receipt of what was recorded in time gets it.

Of a voice that is not believed nothing is written, not even an answer: its decision id is still its owner's.
"""

from __future__ import annotations

from placet import limits
from placet.decision_words import check_said, check_value, words_for
from placet.errors import Code, ContractError, Failure, TerminalError
from placet.facts import Facts
from placet.instants import Instant
from placet.machine import Effect, Record, Transition, refuse
from placet.messages import RUN, DecideApproval, OutcomeWord
from placet.requests import ApprovalRequest, successor_id, verified_content, verify_request
from placet.rows import VoteRow
from placet.statuses import RUN_TERMINAL
from placet.values import PrincipalKind
from placet.voices import Heard, Voices
from placet_approval.answers import Asked, answered, asked_to_decide, refused, unanswered, unknown
from placet_approval.state import ApprovalState, Vote, settled


def decide(
    state: ApprovalState | None, message: DecideApproval, facts: Facts, now_ms: Instant, voices: Voices
) -> Transition[ApprovalState]:
    """Answer one decision; the state is None for an unknown request and for another tenant's."""
    heard = voices.hear(message, facts, now_ms)
    if isinstance(heard, Failure):
        return refuse(heard.code, heard.message, run_id=message.run_id, pointer=heard.pointer, keep=True)
    words = words_for(state.scope if state is not None else None)
    if not message.reviewer.id.strip():
        return unanswered(message, "invalid", Code.APPROVAL_VALIDATION_ERROR, "the reviewer has no id")
    if message.decision not in words:
        told = f"{message.decision!r} is no decision here: say {' or '.join(words)}"
        return unanswered(message, "invalid", Code.APPROVAL_VALIDATION_ERROR, told, "/decision")
    try:
        check_said(message.decision, message.value_text, message.reason)
    except ContractError as error:
        return unanswered(message, "invalid", error.code, error.message, error.pointer)
    if state is None:
        return unknown(message)
    asked = asked_to_decide(message)
    request = facts.request(state.run_id, state.request_id)
    fault = _fault_of_row(state, request)
    if request is None or fault:
        return refused(state, asked, "refused", now_ms, Code.APPROVAL_INTEGRITY_ERROR, fault)
    first = facts.decision_attempt(state.run_id, state.request_id, asked.decision_id)
    if first is not None and first.content_digest == asked.content_digest:
        return answered(state, asked, "duplicate", now_ms, stored_text=first.receipt_text)
    out_of_time = _out_of_time(heard, now_ms)
    if out_of_time:
        return refuse(Code.SIGNATURE_EXPIRED, out_of_time, run_id=message.run_id, keep=True)
    if message.request_hash != request.request_hash:
        told = "the hash is not that of the request: look at it again and decide on what it says"
        return refused(state, asked, "stale", now_ms, Code.APPROVAL_STALE_DECISION, told)
    if first is not None:
        told = "this decision id was used for another decision: a new decision needs a new id"
        return refused(state, asked, "conflict", now_ms, Code.APPROVAL_CONFLICT, told)
    return (
        _allowed(state, message, asked, request, now_ms)
        or _too_late(state, asked, facts, now_ms)
        or _unfit(state, message, asked, request, now_ms)
        or _vote(state, message, asked, request, now_ms, heard)
    )


def _out_of_time(heard: Heard, now_ms: Instant) -> str:
    """Why the store's clock speaks against the signature; empty where it does not."""
    if heard.not_before_ms is not None and now_ms < heard.not_before_ms:
        return "the decision was signed in the future: the signer's clock is wrong"
    if heard.until_ms is not None and now_ms >= heard.until_ms:
        return "the signature is too old: decide again, under the same decision id"
    return ""


def _fault_of_row(state: ApprovalState, request: ApprovalRequest | None) -> str:
    """Why the stored question is not to be believed; empty where it is."""
    if request is None:
        return f"the row of request {state.request_id} is missing or cannot be read"
    if (request.tenant, request.run_id, request.request_id) != (state.tenant, state.run_id, state.request_id):
        return f"the row stored under {state.request_id} is of another request"
    try:
        verify_request(request)
    except TerminalError as error:
        return error.message
    return "" if request.request_hash == state.request_hash else "the row's hash is not the one that was opened"


def _allowed(
    state: ApprovalState, message: DecideApproval, asked: Asked, request: ApprovalRequest, now_ms: Instant
) -> Transition[ApprovalState] | None:
    """The refusal of somebody who may not decide this: by person, over who set it going; never a machine.

    Whoever started a run may answer its questions: an answer lets nothing happen.
    """
    if message.reviewer.kind is not PrincipalKind.HUMAN:
        told = f"a {message.reviewer.kind.value} cannot decide, only a person can"
    elif request.initiator and asked.person_id == request.initiator.strip() and request.scope != "question":
        told = "whoever started the run cannot decide its requests: ask somebody else"
    elif request.roster is not None and asked.person_id not in request.roster:
        told = "this is for others to decide: ask one of the request's reviewers"
    elif message.decision == "approve" and asked.person_id in request.requesting:
        told = "whoever has edited what is asked cannot approve it: ask somebody else to look at it"
    else:
        return None
    return refused(state, asked, "not_allowed", now_ms, Code.APPROVER_NOT_ALLOWED, told)


def _too_late(state: ApprovalState, asked: Asked, facts: Facts, now_ms: Instant) -> Transition[ApprovalState] | None:
    """The refusal where the question has ended, or ends now because nobody has noticed yet that its time is over."""
    if state.status == "revoked":
        told = "the approval was taken back: a new request is needed"
        return refused(state, asked, "closed", now_ms, Code.APPROVAL_REVOKED, told)
    if state.outcome in ("cancelled", "superseded"):
        return refused(state, asked, "closed", now_ms, Code.APPROVAL_CLOSED, _closed(state))
    if state.outcome == "expired":
        return refused(state, asked, "expired", now_ms, Code.APPROVAL_EXPIRED, "the request's time is over")
    if state.outcome is not None:
        told = f"already {state.outcome} by {state.decided_by}"
        return refused(state, asked, "conflict", now_ms, Code.APPROVAL_CONFLICT, told)
    status = facts.status(state.run_id, RUN, "")
    if status in RUN_TERMINAL:
        after, row, told_asker = settled(state, "cancelled", now_ms, reason=f"the run is {status}")
        told = f"the run is {status}: nothing waits for this decision"
        return refused(after, asked, "closed", now_ms, Code.APPROVAL_CLOSED, told, row, told_asker)
    if state.is_expired(now_ms):
        after, row, told_asker = settled(state, "expired", now_ms)
        told = "the request's time is over"
        return refused(after, asked, "expired", now_ms, Code.APPROVAL_EXPIRED, told, row, told_asker)
    mine = next((vote for vote in state.votes if vote.person_id == asked.person_id), None)
    if mine is not None:
        told = f"{asked.person_id} has already voted: {mine.decision}"
        return refused(state, asked, "conflict", now_ms, Code.APPROVAL_CONFLICT, told)
    return None


def _closed(state: ApprovalState) -> str:
    if state.successor is not None:
        return f"the request was edited by {state.decided_by}: {state.successor} has taken its place, look at that one"
    if state.outcome == "superseded" and state.decided_by is not None:
        return f"{state.decided_by} has asked for changes: what is proposed then is another request"
    return f"the request was {state.outcome}"


def _unfit(
    state: ApprovalState, message: DecideApproval, asked: Asked, request: ApprovalRequest, now_ms: Instant
) -> Transition[ApprovalState] | None:
    """The refusal of a value that does not answer this question, which stays open."""
    if message.decision not in ("edit", "respond"):
        return None
    try:
        value = check_said(message.decision, message.value_text, message.reason)
        check_value(verified_content(request), message.decision, value)
    except ContractError as error:
        told, pointer = error.message, error.pointer
    else:
        if message.decision != "edit" or request.generation < limits.GENERATIONS_MAX:
            return None
        told, pointer = f"it was edited {request.generation - 1} times, which is the most: reject it instead", None
    return refused(state, asked, "invalid", now_ms, Code.APPROVAL_VALIDATION_ERROR, told, pointer=pointer)


def _vote(
    state: ApprovalState,
    message: DecideApproval,
    asked: Asked,
    request: ApprovalRequest,
    now_ms: Instant,
    heard: Heard,
) -> Transition[ApprovalState]:
    """The vote, and the outcome where it is the deciding one."""
    vote = VoteRow(
        tenant=state.tenant,
        run_id=state.run_id,
        request_id=state.request_id,
        person_id=asked.person_id,
        decision_id=asked.decision_id,
        decision=message.decision,
        request_hash=asked.request_hash,
        reason=message.reason,
        shown_digest=message.shown_digest,
        evidence_text=message.signed,
        voted_at_ms=now_ms,
    )
    votes = (*state.votes, Vote(person_id=asked.person_id, decision=message.decision))
    after = state.model_copy(update={"votes": votes})
    effects: list[Effect] = [Record(vote)]
    decided = _decided(votes, request.quorum)
    if decided is not None:
        outcome, persons = decided
        after, row, told = settled(
            after,
            outcome,
            now_ms,
            persons=persons,
            decision_id=asked.decision_id,
            reason=message.reason,
            use_by_ms=request.use_by_ms if outcome == "approved" else None,
            value_text=message.value_text,
            successor=_successor(request) if message.decision == "edit" else None,
        )
        effects += [row, told]
    ends = [at for at in (state.expires_at_ms, heard.until_ms) if at is not None]
    return answered(after, asked, "accepted", now_ms, *effects, before_ms=min(ends, default=None))


def _successor(request: ApprovalRequest) -> str:
    return successor_id(request.run_id, request.request_id, request.generation + 1)


_AT_ONCE: dict[str, OutcomeWord] = {
    "reject": "rejected",
    "respond": "answered",
    "edit": "superseded",
    "request_changes": "superseded",
}
"""One person's word is enough for what lets nothing happen."""


def _decided(votes: tuple[Vote, ...], quorum: int) -> tuple[OutcomeWord, tuple[str, ...]] | None:
    """The outcome of the votes and whose votes made it: only what lets something happen needs the quorum."""
    word = votes[-1].decision
    if word in _AT_ONCE:
        return _AT_ONCE[word], (votes[-1].person_id,)
    persons = tuple(vote.person_id for vote in votes if vote.decision == word)
    if len(persons) < quorum:
        return None
    outcome: dict[str, OutcomeWord] = {
        "approve": "approved",
        "executed": "executed",
        "not_executed": "not_executed",
    }
    return outcome[word], persons
