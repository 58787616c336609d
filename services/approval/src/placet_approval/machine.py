"""Decides who may decide and what was decided: the rules of one question to people.

Status: open → approved | rejected | settled (a person said whether it happened) | expired | cancelled | superseded;
approved → revoked, until the approval is consumed. The first outcome wins and is never changed.

A question and its outcome are rows. What a message says about them is a hint: it is read from the rows, from the state
of the run and from that of the operation, all guarded at commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placet.errors import Code, TerminalError
from placet.facts import Facts
from placet.instants import Instant
from placet.machine import Record, Send, Transition, Withdraw, absorb, move, not_yet, refuse, timer
from placet.messages import (
    APPROVAL,
    OPERATION,
    RUN,
    ApprovalExpiring,
    CloseApproval,
    DecideApproval,
    ExpireApproval,
    Message,
    OutcomeWord,
    RemindApproval,
    RequestApproval,
    RevokeApproval,
)
from placet.requests import ApprovalRequest, same_request, verify_request
from placet.rows import STATE, FactKey, RequestRow, RevocationRow
from placet.values import PrincipalKind
from placet.voices import NoVoices, Voices
from placet_approval.answers import answered, asked_to_revoke, refused, unanswered, unknown
from placet_approval.decisions import decide
from placet_approval.state import ApprovalState, settled
from placet_approval.succession import fault_of_succession

NOT_CONSUMED = (None, "waiting")
"""States of an operation in which taking its approval back still stops something: never started, or between two
attempts of which the earlier surely had no effect or may be repeated."""


class ApprovalMachine:
    """The approval service's rules."""

    name = APPROVAL
    state_type = ApprovalState
    messages: frozenset[type[Message]] = frozenset(
        {RequestApproval, DecideApproval, RevokeApproval, ExpireApproval, RemindApproval, CloseApproval}
    )

    def __init__(self, voices: Voices | None = None) -> None:
        """`voices`: tells whose word a decision is. Without it nobody is believed, and nothing is ever decided."""
        self._voices: Voices = voices or NoVoices()

    def reads(self, message: Message) -> Sequence[FactKey]:
        """The question's row, the first answer under a decision id, and how run and operation stand."""
        match message:
            case RequestApproval():
                own = (FactKey("approval_request", message.run_id, message.request_id),)
                return own if message.request.generation == 1 else own + _before(message)
            case DecideApproval():
                return (
                    FactKey("approval_request", message.run_id, message.request_id),
                    FactKey("decision_attempt", message.run_id, message.request_id, message.decision_id),
                    FactKey(STATE, message.run_id, RUN, ""),
                )
            case RevokeApproval() if message.operation_id:
                return (FactKey(STATE, message.run_id, OPERATION, message.operation_id),)
            case _:
                return ()

    def transition(
        self, state: ApprovalState | None, message: Message, facts: Facts, now_ms: Instant
    ) -> Transition[ApprovalState]:
        """What the message does. Another tenant's request looks like none, and so does one not asked yet."""
        known = state if state is not None and state.tenant == message.tenant else None
        asked = known if known is not None and known.is_asked else None
        then = self._said(state, known, asked, message, facts, now_ms)
        return then if asked is None else _answered(asked, then)

    def _said(
        self,
        state: ApprovalState | None,
        known: ApprovalState | None,
        asked: ApprovalState | None,
        message: Message,
        facts: Facts,
        now_ms: Instant,
    ) -> Transition[ApprovalState]:
        match message:
            case RequestApproval():
                return _request(state, known, message, facts, now_ms)
            case DecideApproval():
                return decide(asked, message, facts, now_ms, self._voices)
            case RevokeApproval():
                return _revoke(asked, message, facts, now_ms)
            case ExpireApproval():
                return _expire(asked, message, now_ms)
            case RemindApproval():
                return _remind(asked, message, now_ms)
            case CloseApproval():
                return _close(state, known, message, now_ms)
            case _:
                told = f"an approval has no rule for {type(message).__name__}"
                return refuse(Code.MESSAGE_UNEXPECTED, told, run_id=message.run_id)


def _answered(asked: ApprovalState, then: Transition[ApprovalState]) -> Transition[ApprovalState]:
    """Where the question has just got its outcome, its timers wait for nothing any more."""
    if asked.outcome is not None or then.kind != "moved" or then.state is None or then.state.outcome is None:
        return then
    pointless = [Withdraw(wait.message) for wait in _timers(asked)]
    return replace(then, effects=(*then.effects, *pointless)) if pointless else then


def _timers(state: ApprovalState) -> list[Send]:
    """What a question waits for besides people: its reminder, and its end."""
    if state.expires_at_ms is None:
        return []
    about = {"tenant": state.tenant, "run_id": state.run_id, "request_id": state.request_id}
    timers = [timer(ExpireApproval.model_validate(about), state.expires_at_ms)]
    if state.remind_at_ms is not None:
        timers.append(timer(RemindApproval.model_validate(about), state.remind_at_ms))
    return timers


# ── opening ────────────────────────────────────────────────────────────────────────────


def _request(
    state: ApprovalState | None,
    known: ApprovalState | None,
    message: RequestApproval,
    facts: Facts,
    now_ms: Instant,
) -> Transition[ApprovalState]:
    if state is not None and known is None:
        return _no_request(message)
    if known is not None and known.is_asked:
        return _asked_again(known, message, facts)
    return _open(known, message, facts, now_ms)


def _before(message: RequestApproval) -> tuple[FactKey, ...]:
    """What it takes the place of."""
    supersedes = message.request.supersedes
    return (
        FactKey("approval_request", message.run_id, supersedes),
        FactKey("approval_outcome", message.run_id, supersedes),
    )


def _open(
    withdrawn: ApprovalState | None, message: RequestApproval, facts: Facts, now_ms: Instant
) -> Transition[ApprovalState]:
    """Write the question down. One that was closed before it came is answered with that at once."""
    request = message.request
    fault = _fault_of(message, request) or fault_of_succession(request, facts)
    if fault:
        return refuse(Code.APPROVAL_INTEGRITY_ERROR, fault, run_id=message.run_id)
    state = ApprovalState(
        tenant=request.tenant,
        run_id=request.run_id,
        request_id=request.request_id,
        request_hash=request.request_hash,
        scope=request.scope,
        operation_id=request.operation_id,
        asker_machine=request.asker_machine,
        asker_key=request.asker_key,
        asker_pool=message.asker_pool,
        expires_at_ms=None if request.expires_at_ms is None else Instant(request.expires_at_ms),
        remind_at_ms=None if request.remind_at_ms is None else Instant(request.remind_at_ms),
        generation=request.generation,
    )
    row = Record(RequestRow(tenant=request.tenant, run_id=request.run_id, request=request))
    if withdrawn is not None:
        word: OutcomeWord = "superseded" if withdrawn.status == "superseded" else "cancelled"
        closed, outcome, told = settled(state, word, now_ms, reason="closed before it was opened")
        return move(closed, row, outcome, told)
    return move(state, row, *_timers(state))


def _fault_of(message: RequestApproval, request: ApprovalRequest) -> str:
    """Why the question cannot be put; empty where it can."""
    if (request.tenant, request.run_id, request.request_id) != (message.tenant, message.run_id, message.request_id):
        return f"request {request.request_id} is not the one that {message.request_id} of {message.run_id} announces"
    if request.asker_machine not in (RUN, OPERATION):
        return f"nobody would be told the outcome: {request.asker_machine!r} asks no questions"
    try:
        verify_request(request)
    except TerminalError as error:
        return error.message
    return ""


def _asked_again(state: ApprovalState, message: RequestApproval, facts: Facts) -> Transition[ApprovalState]:
    """The same question again changes nothing; if it is decided, whoever asks again is told again."""
    stored = facts.request(message.run_id, message.request_id)
    try:
        if stored is None:
            raise TerminalError(Code.APPROVAL_INTEGRITY_ERROR, f"the row of request {state.request_id} is missing")
        verify_request(stored)
    except TerminalError as error:
        return refuse(error.code, error.message, run_id=message.run_id)
    if not same_request(stored, message.request):
        words = f"request {state.request_id} exists with other content: it is never overwritten"
        return refuse(Code.APPROVAL_CONFLICT, words, run_id=message.run_id)
    if state.outcome is None:
        return absorb("the request is open already")
    return move(state, state.told())


def _no_request(message: RequestApproval | CloseApproval) -> Transition[ApprovalState]:
    words = f"there is no request {message.request_id} in run {message.run_id}"
    return refuse(Code.APPROVAL_NOT_FOUND, words, run_id=message.run_id)


# ── endings nobody votes for ───────────────────────────────────────────────────────────


def _expire(state: ApprovalState | None, message: ExpireApproval, now_ms: Instant) -> Transition[ApprovalState]:
    """The deadline, by the store's clock and the request's own instant; the message says nothing of either."""
    if state is None:
        return unknown(message)
    if state.outcome is not None:
        return absorb(f"the request is {state.status}")
    if state.expires_at_ms is None:
        return absorb("the request has no deadline")
    if not state.is_expired(now_ms):
        return not_yet(state, message, state.expires_at_ms)
    after, row, told = settled(state, "expired", now_ms)
    return move(after, row, told)


def _remind(state: ApprovalState | None, message: RemindApproval, now_ms: Instant) -> Transition[ApprovalState]:
    """Once, and only what can still be decided; the instant is the request's own (M05)."""
    if state is None:
        return unknown(message)
    if state.outcome is not None or state.remind_at_ms is None or state.expires_at_ms is None:
        return absorb(f"nobody is to be reminded: the request is {state.status}")
    if now_ms < state.remind_at_ms:
        return not_yet(state, message, state.remind_at_ms)
    after = state.model_copy(update={"remind_at_ms": None})
    if state.is_expired(now_ms) or state.asker_machine != RUN:
        return move(after)
    word = ApprovalExpiring(
        tenant=state.tenant, run_id=state.run_id, request_id=state.request_id, expires_at_ms=state.expires_at_ms
    )
    return move(after, Send(word))


def _close(
    state: ApprovalState | None, known: ApprovalState | None, message: CloseApproval, now_ms: Instant
) -> Transition[ApprovalState]:
    """The asker wants no answer any more. Believed as it comes: closing a question can let nothing happen."""
    if known is None:
        if state is not None:
            return _no_request(message)
        # It has overtaken its question, which must not stay open in people's inboxes when it comes.
        return move(
            ApprovalState(
                tenant=message.tenant, run_id=message.run_id, request_id=message.request_id, status=message.outcome
            )
        )
    if known.outcome is not None or not known.is_asked:
        return absorb(f"the request is {known.status}")
    after, row, told = settled(known, message.outcome, now_ms, reason=message.reason)
    return move(after, row, told)


# ── taking back ────────────────────────────────────────────────────────────────────────


def _revoke(
    state: ApprovalState | None, message: RevokeApproval, facts: Facts, now_ms: Instant
) -> Transition[ApprovalState]:
    """Take an approval back, until it is consumed: the operation's start and this step exclude each other at commit."""
    if not message.by.id.strip():
        return unanswered(message, "invalid", Code.APPROVAL_VALIDATION_ERROR, "whoever revokes has no id")
    if state is None:
        return unknown(message)
    asked = asked_to_revoke(message, state)
    if message.by.kind is PrincipalKind.AGENT:
        told = "an agent cannot take an approval back"
        return refused(state, asked, "not_allowed", now_ms, Code.APPROVER_NOT_ALLOWED, told)
    if state.status == "revoked":
        return answered(state, asked, "duplicate", now_ms)
    if state.outcome is None:
        told = "the request is undecided: reject it instead"
        return refused(state, asked, "refused", now_ms, Code.OPERATION_NOT_APPROVED, told)
    if state.status != "approved":
        told = f"the request is {state.status}: there is no approval to take back"
        return refused(state, asked, "closed", now_ms, Code.APPROVAL_CLOSED, told)
    if state.scope != "tool_call":
        told = "the run acts on such an approval at once: cancel the run instead"
        return refused(state, asked, "refused", now_ms, Code.OPERATION_CONSUMED, told)
    if message.operation_id != state.operation_id:
        told = "name the operation that the request names"
        return unanswered(message, "invalid", Code.APPROVAL_VALIDATION_ERROR, told)
    status = facts.status(state.run_id, OPERATION, state.operation_id) if state.operation_id else None
    if status not in NOT_CONSUMED:
        told = f"already consumed: the operation is {status}, which taking the approval back does not undo"
        return refused(state, asked, "refused", now_ms, Code.OPERATION_CONSUMED, told)
    row = RevocationRow(
        tenant=state.tenant,
        run_id=state.run_id,
        request_id=state.request_id,
        revoked_by=asked.person_id,
        reason=message.reason,
        revoked_at_ms=now_ms,
    )
    return answered(state.model_copy(update={"status": "revoked"}), asked, "accepted", now_ms, Record(row))
