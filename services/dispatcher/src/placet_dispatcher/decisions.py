"""Decides what a person's decision sets free: believed only from rows, acted upon only when nothing is undecided.

A message says that something was decided. What was decided, and about what, is read: the outcome, the frozen request,
a revocation. The request must verify, and it must be what the run would ask today (DESIGN §8).
"""

from __future__ import annotations

from placet.canonical import digest_of_text
from placet.errors import Code, ContractError, ErrorClass, Failure, PlacetError
from placet.hash_scope import reads_as_reviewed
from placet.messages import ApprovalDecided, ExecuteOperation
from placet.requests import ApprovalRequest, verify_request
from placet.rows import OutcomeRow
from placet_dispatcher.asking import asks_call, is_still_asked, read_object
from placet_dispatcher.draft import Draft
from placet_dispatcher.edits import ask_edited, ask_once_more, renew, replan
from placet_dispatcher.graph import in_order
from placet_dispatcher.patching import settle
from placet_dispatcher.planning import begin
from placet_dispatcher.proposals import digest_of_call
from placet_dispatcher.questions import answer_of, asks_question
from placet_dispatcher.states import PER_CALL, Call, Ending, PendingRequest
from placet_dispatcher.words import answered, refusal, unanswered

_OUTCOMES = frozenset({"approved", "rejected", "answered", "expired", "cancelled", "superseded"})
_UNFIT = {"tool_call": None, "question": "approved"}
"""An outcome that a question of the scope cannot have: an answer approves nothing. Elsewhere nobody answers."""
_ENDINGS = {
    "rejected": ("rejected", Code.APPROVAL_REJECTED, "was rejected"),
    "expired": ("expired", Code.APPROVAL_EXPIRED, "was not decided in time"),
    "revoked": ("rejected", Code.APPROVAL_REVOKED, "was approved, and the approval taken back"),
    "cancelled": ("cancelled", Code.APPROVAL_CLOSED, "was closed"),
    "superseded": ("cancelled", Code.APPROVAL_CLOSED, "was superseded"),
    "changes": ("rejected", Code.APPROVAL_REJECTED, "should be changed, which nobody can do here"),
}
_CALL_CODES = {word: code for word, (_, code, _) in _ENDINGS.items()}
_SCOPES = {
    "plan": "the plan",
    "task_round": "the next round",
    "task_dispatch": "the task",
    "tool_call": "a call",
    "question": "a question",
    "plan_patch": "the change of the plan",
}


# ── believing ──────────────────────────────────────────────────────────────────────────


def decide(draft: Draft, message: ApprovalDecided) -> str | None:
    """Take in the outcome of a question; the reason to absorb the message, where nothing follows from it."""
    run_id = draft.state.run_id
    at = next((i for i, own in enumerate(draft.requests) if own.is_own and own.request_id == message.request_id), None)
    if at is None:
        return "not a question of this run, or acted upon already"
    pending = draft.requests[at]
    outcome = draft.facts.outcome(run_id, pending.request_id)
    if outcome is None or outcome.tenant != draft.state.tenant:
        return "no such outcome"
    revocation = draft.facts.revocation(run_id, pending.request_id)
    decision = "revoked" if revocation is not None and outcome.outcome == "approved" else outcome.outcome
    decision = "changes" if outcome.asks_for_changes else decision
    if pending.decision == decision:
        return "decided already"
    request = draft.facts.request(run_id, pending.request_id)
    fault = _fault(draft, pending, outcome, request)
    if fault is not None or request is None:
        draft.end_at_once("failed", fault or _stale(""), request_id=pending.request_id)
        return None
    draft.audit(
        "approval.decided",
        pending.request_id,
        outcome=outcome.outcome if revocation is None else decision,
        request_hash=pending.request_hash,
        decided_by=outcome.decided_by,
        decision_id=outcome.decision_id,
        value=None if outcome.value_text is None else digest_of_text(outcome.value_text),
        successor=outcome.successor,
    )
    if outcome.is_edit:
        ask_edited(draft, at, outcome, request)
        return None
    if decision == "expired" and pending.on_expiry == "ask_again":
        ask_once_more(draft, at, request)
        return None
    reason = revocation.reason if revocation is not None else outcome.reason
    draft.requests[at] = pending.model_copy(
        update={
            "decision": decision,
            "reason": reason,
            "decided_by": outcome.decided_by,
            "value_text": outcome.value_text,
            "use_by_ms": outcome.use_by_ms,
        }
    )
    _follow(draft, at)
    return None


def _follow(draft: Draft, at: int) -> None:
    """What follows from a decision before the others are in: an end of the run, or another plan."""
    decided = draft.requests[at]
    decision = decided.decision or ""
    if decided.scope in (*PER_CALL, "plan_patch"):
        if decision == "expired" and decided.on_expiry == "fail":
            draft.end_soon(_ending(decided, decision))
    elif decision == "changes" and draft.state.mode in ("goal", "plan_only"):
        replan(draft, at, decided.reason)
    elif decision != "approved":
        draft.end_soon(_ending(decided, decision))


def _fault(
    draft: Draft, pending: PendingRequest, outcome: OutcomeRow, request: ApprovalRequest | None
) -> Failure | None:
    """Why the decision is not to be acted upon: rows that contradict, or a run that is no longer what was shown."""
    if request is None:
        return _integrity(f"{pending.request_id} has an outcome and no request")
    try:
        verify_request(request)
    except PlacetError as error:
        return _integrity(error.message)
    if (request.tenant, request.run_id) != (draft.state.tenant, draft.state.run_id):
        return _integrity(f"the request stored as {pending.request_id} belongs to another run")
    fits = outcome.outcome in _OUTCOMES and outcome.outcome != _UNFIT.get(pending.scope, "answered")
    if not fits or outcome.request_hash != request.request_hash:
        return _integrity(f"the outcome of {pending.request_id} does not belong to its request")
    # A call is compared when it is released, with the tools and schemas of that instant.
    # So is a change of the plan: where the plan has moved on, the change is dropped, and the run goes on.
    is_moot = pending.scope not in (*PER_CALL, "plan_patch") and not is_still_asked(draft, pending)
    asked_by = (request.request_hash, request.requesters)
    if asked_by != (pending.request_hash, pending.requesters) or is_moot:
        return _stale(f"what {pending.request_id} asked is not what the run would do now")
    return None


def _integrity(message: str) -> Failure:
    return Failure(code=Code.APPROVAL_INTEGRITY_ERROR, message=message, error_class=ErrorClass.APPROVAL)


def _stale(message: str) -> Failure:
    return Failure(code=Code.APPROVAL_STALE_DECISION, message=message, error_class=ErrorClass.APPROVAL)


def _ending(request: PendingRequest, decision: str) -> Ending:
    status, code, told = _ENDINGS[decision]
    message = f"{_SCOPES[request.scope]} {told}"
    if request.decided_by and decision == "rejected":
        message += f" by {request.decided_by}"
    if request.reason:
        message += f": {request.reason}"
    error_class = ErrorClass.DENIED if status == "rejected" else ErrorClass.APPROVAL
    details = {"request_id": request.request_id, "boundary": request.boundary}
    return Ending(status=status, failure=Failure(code=code, message=message, error_class=error_class, details=details))


# ── acting ─────────────────────────────────────────────────────────────────────────────


def release(draft: Draft) -> None:
    """Act upon every decision at once, as soon as none is missing (D04); where the run says so, upon each (M56)."""
    held: list[PendingRequest] = []
    if draft.is_undecided and draft.state.release == "each":
        # Calls of tasks at work depend on nothing that is still asked about; everything else waits.
        held = [request for request in draft.requests if request.decision is None or request.scope not in PER_CALL]
    elif draft.is_undecided:
        return
    if len(held) == len(draft.requests):
        return
    stale = next((request for request in draft.requests if request not in held and not _is_safe(draft, request)), None)
    if stale is not None:  # before any of them acts: nothing runs
        failure = _stale(f"what {stale.request_id} approved is not what would run today")
        draft.end_now("failed", failure, request_id=stale.request_id)
        return
    if _renewed(draft) and draft.state.release == "all":
        return
    decided = [request for request in draft.requests if request.decision is not None and request not in held]
    if not decided:
        return
    draft.requests = [request for request in draft.requests if request not in decided]
    draft.change(attempt=draft.state.attempt + 1)
    for request in decided:
        if request.scope == "plan":
            begin(draft)
        elif request.scope == "task_round":
            draft.cleared += in_order(draft.tasks, draft.ready)
            draft.ready.clear()
            draft.change(round_done=())
        elif request.scope == "plan_patch":
            settle(draft, request)
        elif request.scope == "task_dispatch" and request.position is not None:
            draft.ready.remove(request.position)
            draft.cleared.append(request.position)
        else:
            _release_call(draft, request)


def _renewed(draft: Draft) -> bool:
    """Ask anew about calls whose approval has meanwhile run out: what waited for other decisions waits for these."""
    late = [r for r in draft.requests if _has_lapsed(r, draft.now_ms)]
    for request in late:
        found = draft.call_of(request.operation_id or "")
        draft.requests.remove(request)
        if found is not None:
            renew(draft, found, request)
    return bool(late) and draft.is_undecided


def _has_lapsed(request: PendingRequest, now_ms: int) -> bool:
    in_time = request.use_by_ms is None or now_ms < request.use_by_ms
    return request.scope == "tool_call" and request.decision == "approved" and not in_time


def _is_safe(draft: Draft, request: PendingRequest) -> bool:
    """Whether an approved call is still what was shown, by today's grants, tools and schemas (D08, D13-D15)."""
    if (request.scope, request.decision) not in (("tool_call", "approved"), ("question", "answered")):
        return True
    found = draft.call_of(request.operation_id or "")
    if found is None:
        return False
    task = draft.tasks[found[0]]
    call = task.calls[found[1]]
    if request.scope == "question":
        return asks_question(request, task.id, call)
    team, tool = draft.team(), draft.tool(call.tool)
    if tool is None or team is None or team.agent_with(call.tool, call.agent) is None:
        return False
    try:
        validated = draft.facts.validate_input(call.tool, read_object(call.raw_input_text))
        if isinstance(validated, Failure):
            return False
        if not reads_as_reviewed(tool, validated, call.input_text):
            return False
        return asks_call(request, task.id, call, consequential=tool.consequential)
    except ContractError:
        return False


def _release_call(draft: Draft, request: PendingRequest) -> None:
    found = draft.call_of(request.operation_id or "")
    if found is None:
        return
    position, at = found
    call: Call = draft.tasks[position].calls[at]
    if request.decision == "approved":
        draft.send(
            ExecuteOperation(
                tenant=draft.state.tenant,
                run_id=draft.state.run_id,
                operation_id=call.operation_id,
                pool=call.pool,
                request_id=request.request_id,
            )
        )
        # With a use-by it may have to be asked about again, and then it is needed still.
        kept = {} if request.use_by_ms is not None else {"raw_input_text": "", "input_text": "", "agent": ""}
        draft.change_call(position, at, status="running", **kept)
        return
    decision = request.decision or ""
    if decision == "answered":
        answer = answer_of(request.value_text)
        is_question = request.scope == "question"
        text = answer if draft.tasks[position].call is not None else answered(answer, is_question=is_question)
        draft.answer_call(position, at, ok=True, text=text)
        return
    if decision == "rejected":
        draft.change(refused_calls=(*draft.state.refused_calls, digest_of_call(draft.tasks[position].id, call)))
    text = (unanswered if request.scope == "question" else refusal)(decision, request.reason)
    failure = Failure(code=_CALL_CODES[decision], message=text, error_class=ErrorClass.APPROVAL)
    draft.answer_call(position, at, ok=False, text=text, failure=failure)
