"""Decides which question takes the place of one that cannot let anything happen any more, and what it is about.

Three reasons: a person has edited what was asked, an approval was not used in time, nobody decided in time and the gate
wants people to be asked once more. The call stays the same operation; the question is a new one, with an id and (where
anything differs) a hash of its own, and whoever has edited it counts as asking.

An edit is held against today's schema and gates like any proposal. One that does not pass is refused and the question
as it was is asked again, so that a slip loses nothing; what was edited is never run without a second look at it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from placet import limits
from placet.calls import UserText
from placet.canonical import canonical_text
from placet.contents import Content
from placet.decision_words import tasks_of
from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.gates import Boundary, Judgement, common_reviewers
from placet.messages import PLAN_THREAD
from placet.requests import ApprovalRequest
from placet.rows import OutcomeRow
from placet_dispatcher.asking import (
    Place,
    ask,
    call_content,
    content_now,
    named,
    plan_content,
    plan_subject,
    read_object,
)
from placet_dispatcher.draft import Draft, gate_failure
from placet_dispatcher.graph import planted
from placet_dispatcher.planning import checked
from placet_dispatcher.proposals import judge_call
from placet_dispatcher.questions import question_content
from placet_dispatcher.states import Call, PendingRequest, Task
from placet_dispatcher.words import changes_wanted, told

_ASKABLE = ("allow", "suspend")
"""Verdicts that leave it to a person; an edit is looked at by one even where its gates would let it pass."""


class _Edited(NamedTuple):
    """An edited input that passed: as given, as the tool reads it, and what the gates say to it."""

    raw: dict[str, Any]
    validated: dict[str, Any]
    judgement: Judgement


# ── a person has edited it ─────────────────────────────────────────────────────────────


def ask_edited(draft: Draft, at: int, outcome: OutcomeRow, before: ApprovalRequest) -> None:
    """Ask about what the person at `requests[at]` has made of the question; about the old, where that cannot be."""
    pending, editor = draft.requests.pop(at), outcome.decided_by or ""
    if pending.scope == "plan":
        _ask_edited_plan(draft, pending, outcome, before)
        return
    found = draft.call_of(pending.operation_id or "")
    if found is None:
        draft.end_at_once("failed", _gone(pending), request_id=pending.request_id)
        return
    position, call_at = found
    call = draft.tasks[position].calls[call_at]
    edited = _edited(draft, position, call, outcome)
    if isinstance(edited, Failure):
        terms = _terms(before, None, _refused_because(editor, edited))
        _ask_call(draft, found, pending, terms, before.requesters)
        return
    texts = {"raw_input_text": canonical_text(edited.raw), "input_text": canonical_text(edited.validated)}
    draft.change_call(position, call_at, **texts, edited_text=texts["input_text"])
    terms = _terms(before, edited.judgement, f"{editor} edited the input.")
    asking = before.requesting | (set() if edited.judgement.editor_may_approve else {editor})
    try:
        _put_call(draft, found, pending, terms, _lines(asking))
    except ContractError as error:  # such as: only the editor could have approved it
        kept = {"raw_input_text": call.raw_input_text, "input_text": call.input_text, "edited_text": call.edited_text}
        draft.change_call(position, call_at, **kept)
        terms = _terms(before, None, _refused_because(editor, error.failure()))
        _ask_call(draft, found, pending, terms, before.requesters)


def _edited(draft: Draft, position: int, call: Call, outcome: OutcomeRow) -> _Edited | Failure:
    """The edited input, if the call could be made with it: by today's tool, its schema and the gates."""
    tool, team = draft.tool(call.tool), draft.team()
    if tool is None or team is None or team.agent_with(call.tool, call.agent) is None:
        return Failure(code=Code.TOOL_NOT_GRANTED, message=f"the tool {call.tool!r} is not there any more")
    try:
        raw = read_object(outcome.value_text or "")
        validated = draft.facts.validate_input(tool.name, raw)
        if isinstance(validated, Failure):
            return validated
    except ContractError as error:
        return error.failure()
    judgement = judge_call(draft, position, call, tool, raw, validated)
    if judgement.verdict not in _ASKABLE:
        return _denied(judgement, "the edited call")
    if judgement.outside:
        return _unjudged(judgement)
    return _Edited(raw, validated, judgement)


def _unjudged(judgement: Judgement) -> Failure:
    """A gate outside has not spoken about this input, and is asked only about what agents propose."""
    told_ = f"{judgement.rule} would have to judge it anew, which is asked about calls as agents propose them only"
    return Failure(code=Code.GATE_FAILED, message=told_)


def _ask_edited_plan(draft: Draft, pending: PendingRequest, outcome: OutcomeRow, before: ApprovalRequest) -> None:
    editor = outcome.decided_by or ""
    old = draft.tasks
    judgement = _adopt_edited(draft, outcome)
    if isinstance(judgement, Judgement):
        asking = before.requesting | (set() if judgement.editor_may_approve else {editor})
        try:
            _put_content(draft, pending, _terms(before, judgement, f"{editor} edited the plan."), _lines(asking))
        except ContractError as error:
            judgement = error.failure()
        else:
            return
    draft.tasks = old
    _ask_content(draft, pending, _terms(before, None, _refused_because(editor, judgement)), before.requesters)


def _adopt_edited(draft: Draft, outcome: OutcomeRow) -> Judgement | Failure:
    """Make the edited tasks those of the draft, if they are a plan and no gate denies it."""
    team = draft.team()
    if team is None:
        return Failure(code=Code.PLAN_INVALID, message=f"the team {draft.state.team!r} is gone")
    try:
        given = read_object(outcome.value_text or "")
        draft.tasks = list(planted(checked(tasks_of(given), team, draft.tool)))
        plan_content(draft.state, draft.tasks)
    except ContractError as error:
        return error.failure()
    judgement = draft.facts.judge(Boundary.PLAN, plan_subject(draft))
    if judgement is None:
        return Judgement(verdict="suspend", rule="edited", policy_version=draft.facts.policy_version)
    return judgement if judgement.verdict in _ASKABLE else _denied(judgement, "the edited plan")


def replan(draft: Draft, at: int, reason: str | None) -> None:
    """Give the reviewer's words to the planner, as data; the plan that it makes of them is another question."""
    pending = draft.requests.pop(at)
    turn = draft.state.plan_turn + 1
    draft.tasks = []
    draft.change(
        phase="planning",
        planned_at_ms=None,
        plan_turn=turn,
        plan_asked=pending.request_id,
        plan_generation=pending.generation,
    )
    draft.take_turn(PLAN_THREAD, turn, "plan", draft.state.planner, UserText(text=changes_wanted(reason)))


# ── nobody decided in time, or used it in time ─────────────────────────────────────────


def ask_once_more(draft: Draft, at: int, before: ApprovalRequest) -> None:
    """The same again, since nobody has decided in time; not a third time (M01)."""
    pending = draft.requests.pop(at)
    terms = _terms(before, None, "Nobody decided in time: this is asked once more.")
    again = terms.model_copy(update={"on_expiry": "tell"})
    found = draft.call_of(pending.operation_id or "") if pending.operation_id else None
    if found is not None:
        _ask_call(draft, found, pending, again, before.requesters)
    else:
        _ask_content(draft, pending, again, before.requesters)


def renew(draft: Draft, found: tuple[int, int], request: PendingRequest | None) -> None:
    """The approval of a call was not used in time: its gates are asked anew, and then people (M07)."""
    position, call_at = found
    call = draft.tasks[position].calls[call_at]
    tool = draft.tool(call.tool)
    if tool is None:
        text = f"the tool {call.tool!r} is not there any more"
        _not_made(draft, found, Failure(code=Code.TOOL_UNKNOWN, message=text))
        return
    raw, validated = read_object(call.raw_input_text), read_object(call.input_text)
    judgement = judge_call(draft, position, call, tool, raw, validated)
    if judgement.verdict not in _ASKABLE:
        _not_made(draft, found, _denied(judgement, "this call"))
        return
    if judgement.outside:
        _not_made(draft, found, _unjudged(judgement))
        return
    why = "An earlier approval was not used in time."
    terms = judgement.model_copy(update={"verdict": "suspend", "reason": _joined(why, judgement.reason)})
    pending = request or PendingRequest(
        scope="tool_call",
        boundary="",
        request_id=call.request_id or "",
        request_hash="",
        what=f"{call.agent} calls {call.tool} for task {draft.tasks[position].id}",
        operation_id=call.operation_id,
        asked_at_ms=draft.now_ms,
        generation=call.generation,
    )
    _ask_call(draft, found, pending, terms, call.requesters)


# ── asking ─────────────────────────────────────────────────────────────────────────────


def _ask_call(draft: Draft, found: tuple[int, int], pending: PendingRequest, terms: Judgement, requesters: str) -> None:
    """Ask again about a call; where that cannot be, its agent is told."""
    try:
        _put_call(draft, found, pending, terms, requesters)
    except ContractError as error:
        text = f"not made, since no person can be asked about it again: {error.message}"
        _not_made(draft, found, Failure(code=error.code, message=text, error_class=ErrorClass.INVALID))


def _put_call(draft: Draft, found: tuple[int, int], pending: PendingRequest, terms: Judgement, requesters: str) -> None:
    position, call_at = found
    task: Task = draft.tasks[position]
    call = task.calls[call_at]
    if pending.scope == "question":
        content = question_content(task.id, call)
    else:
        raw, validated = read_object(call.raw_input_text), read_object(call.input_text)
        content = call_content(task.id, call, raw, validated, consequential=call.consequential)
    request = _ask(draft, pending, content, terms, requesters, position=position)
    draft.change_call(
        position,
        call_at,
        status="asking",
        request_id=request.request_id,
        generation=request.generation,
        requesters=requesters,
    )


def _ask_content(draft: Draft, pending: PendingRequest, terms: Judgement, requesters: str) -> None:
    """Ask again about a plan, a round or a task, as it is now; where that cannot be, the run ends."""
    try:
        _put_content(draft, pending, terms, requesters)
    except ContractError as error:
        draft.end_at_once("failed", error.failure())


def _put_content(draft: Draft, pending: PendingRequest, terms: Judgement, requesters: str) -> None:
    content = content_now(draft, pending)
    if content is None:
        raise ContractError(Code.APPROVAL_STALE_DECISION, f"nothing is there to ask {pending.request_id} about")
    what = f"{pending.what.partition(':')[0]}: {named(draft.tasks)}" if pending.scope == "plan" else pending.what
    _ask(draft, pending.model_copy(update={"what": what}), content, terms, requesters, position=pending.position)


def _ask(
    draft: Draft,
    pending: PendingRequest,
    content: Content,
    terms: Judgement,
    requesters: str,
    *,
    position: int | None,
) -> ApprovalRequest:
    if pending.generation >= limits.GENERATIONS_MAX:
        told_ = f"this was asked {pending.generation} times, which is the most"
        raise ContractError(Code.APPROVAL_VALIDATION_ERROR, told_)
    is_call = pending.scope == "tool_call"
    request = ask(
        draft,
        content,
        terms,
        pending.what,
        position=position,
        operation_id=(pending.operation_id or "") if is_call else "",
        tool=draft.tool(_tool_of(draft, pending)) if is_call else None,
        place=Place(pending.request_id, pending.generation + 1, requesters),
    )
    draft.requests[-1] = draft.requests[-1].model_copy(update={"operation_id": pending.operation_id})
    return request


def _tool_of(draft: Draft, pending: PendingRequest) -> str:
    found = draft.call_of(pending.operation_id or "")
    return draft.tasks[found[0]].calls[found[1]].tool if found is not None else ""


def _denied(judgement: Judgement, what: str) -> Failure:
    return gate_failure(judgement, Code.GATE_DENIED if judgement.verdict == "deny" else Code.GATE_FAILED, what)


def _not_made(draft: Draft, found: tuple[int, int], failure: Failure) -> None:
    draft.answer_call(*found, ok=False, text=told(failure), failure=failure)


def _gone(pending: PendingRequest) -> Failure:
    told_ = f"what {pending.request_id} asked is not what the run would do now"
    return Failure(code=Code.APPROVAL_STALE_DECISION, message=told_, error_class=ErrorClass.APPROVAL)


def _refused_because(editor: str, failure: Failure) -> str:
    return f"An edit by {editor} was refused, so this is what was asked before it: {told(failure)}"


def _terms(before: ApprovalRequest, judgement: Judgement | None, why: str) -> Judgement:
    """The terms of the next question: those of the one before, and of the gates where they are stricter."""
    asked_ms, ends_ms = before.requested_at_ms, before.expires_at_ms
    open_ms = None if ends_ms is None else ends_ms - asked_ms
    use_ms = None if before.use_by_ms is None else before.use_by_ms - (ends_ms or asked_ms)
    remind_ms = None if before.remind_at_ms is None or ends_ms is None else ends_ms - before.remind_at_ms
    if judgement is None:
        reason = _joined(why, before.reason)
        return Judgement(
            verdict="suspend",
            reason=reason,
            rule=before.rule or "asked again",
            policy_version=before.policy_version,
            policy_digest=before.policy_digest,
            reviewers=before.roster,
            quorum=before.quorum,
            expires_after_ms=open_ms,
            use_within_ms=use_ms,
            remind_before_ms=remind_ms,
        )
    return judgement.model_copy(
        update={
            "verdict": "suspend",
            "reason": _joined(why, judgement.reason),
            "quorum": max(before.quorum, judgement.quorum),
            "reviewers": common_reviewers(before.roster, judgement.reviewers),
            "expires_after_ms": _least(open_ms, judgement.expires_after_ms),
            "use_within_ms": _least(use_ms, judgement.use_within_ms),
            "remind_before_ms": judgement.remind_before_ms or remind_ms,
        }
    )


def _joined(why: str, reason: str | None) -> str:
    return (f"{why} {reason}" if reason else why)[: limits.TEXT_CHARS_MAX]


def _least(first: int | None, second: int | None) -> int | None:
    return min((each for each in (first, second) if each is not None), default=None)


def _lines(persons: Iterable[str]) -> str:
    return "\n".join(sorted({person for person in persons if person}))
