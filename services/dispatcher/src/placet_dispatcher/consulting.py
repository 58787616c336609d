"""Decides how a call waits for outside gates: each is asked once, and what does not answer in time has failed."""

from __future__ import annotations

from placet import limits
from placet.activities import AskGate
from placet.gates import CallSubject, Judgement, OutsideAnswer
from placet.instants import later
from placet.messages import GateAnswered, GateLeaseEnded
from placet_dispatcher.draft import Draft
from placet_dispatcher.states import Call, Consulted

LATE = OutsideAnswer(verdict="failed", reason="it did not answer in time")


def consult(draft: Draft, call: Call, subject: CallSubject, judgement: Judgement) -> Call:
    """Ask the gates that the judgement waits for. Nothing is held meanwhile; a timer ends the wait."""
    state = draft.state
    for gate in judgement.outside:
        draft.invoke(
            AskGate(
                tenant=state.tenant,
                run_id=state.run_id,
                operation_id=call.operation_id,
                gate=gate.name,
                subject_text=subject.model_dump_json(exclude={"outside"}),
                timeout_ms=gate.timeout_ms,
            )
        )
    due_ms = max(gate.timeout_ms for gate in judgement.outside) + limits.LEASE_MARGIN_MS
    lease = GateLeaseEnded(tenant=state.tenant, run_id=state.run_id, operation_id=call.operation_id)
    draft.send(lease, later(draft.now_ms, due_ms))
    known = {each.gate: each for each in call.consulted}
    waits = {gate.name: Consulted(gate=gate.name) for gate in judgement.outside}
    return call.model_copy(update={"status": "judging", "consulted": tuple((known | waits).values())})


def heard(draft: Draft, message: GateAnswered | GateLeaseEnded) -> tuple[int, int] | str:
    """Enter an answer, or that none came: the call, where it can be judged now; the reason to absorb it, or an empty
    one where others are still waited for."""
    found = draft.call_of(message.operation_id)
    if found is None or draft.tasks[found[0]].calls[found[1]].status != "judging":
        return "no call waits for this gate"
    position, at = found
    before = draft.tasks[position].calls[at].consulted
    answers = {message.gate: message.answer} if isinstance(message, GateAnswered) else None
    after = tuple(
        each
        if each.answer is not None or (answers is not None and each.gate not in answers)
        else each.model_copy(update={"answer": LATE if answers is None else answers[each.gate]})
        for each in before
    )
    if after == before:
        return "answered already, or not asked"
    draft.change_call(position, at, consulted=after)
    call_id = draft.tasks[position].calls[at].operation_id
    for old, new in zip(before, after, strict=True):
        if old.answer is None and new.answer is not None:
            draft.audit(
                "gate.answered",
                call_id,
                gate=new.gate,
                verdict=new.answer.verdict,
                version=new.answer.version or None,
                why=new.answer.reason,
            )
    return found if all(each.answer is not None for each in after) else ""


def answers_of(call: Call) -> dict[str, OutsideAnswer]:
    """What outside gates have said about the call."""
    return {each.gate: each.answer for each in call.consulted if each.answer is not None}
