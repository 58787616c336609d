"""Decides what becomes of a tool call that was asked for: refused, put to a person, or made at once.

The order is fixed: read the input strictly, ask whether the agent may use the tool, ask whether the tool exists,
validate the input, and only then ask the gates (E20, E21). Whatever goes wrong before or in a gate gives the model an
error result; nothing runs that nobody allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from placet import ids, limits
from placet.calls import ToolCall, ToolSpec
from placet.canonical import canonical_text, digest_of_text
from placet.errors import Code, ContractError, ErrorClass, Failure
from placet.gates import Boundary, CallSubject, Judgement, stricter
from placet.hash_scope import is_declared, load_bearing_text
from placet.messages import ExecuteOperation, task_thread
from placet.plans import ASK_HUMAN, DirectCall
from placet.requests import ApprovalRequest
from placet.rows import OperationRow
from placet.strict_json import parse
from placet_dispatcher.asking import ask, call_content, read_object
from placet_dispatcher.consulting import answers_of, consult
from placet_dispatcher.draft import WITHHELD, Draft, gate_failure
from placet_dispatcher.forking import answered_before, tightened
from placet_dispatcher.questions import put_question
from placet_dispatcher.states import Call
from placet_dispatcher.words import cut, share, told

REFUSAL_CHARS_MAX = 300
"""So much of why a call was refused is told in the run's events; the model is told all of it."""
DIRECT_CALL_ID = "direct"
"""The model call id of a task that is one given call."""


AGENT_RULE = "agent"
"""The rule that an agent's own declaration is: its calls of this tool wait for a person."""
FINDING_RULE = "safety_finding"
"""The rule that a finding about a call is (E38)."""

_NOTHING_ASKED: dict[str, Any] = {
    "raw_input_text": "", "input_text": "", "same_as": "", "agent": "", "findings": (), "consulted": (),
}  # fmt: skip
"""What a call no longer needs once nobody is asked about it."""


class _Proposal(NamedTuple):
    """A call that passed every check before the gates."""

    draft: Draft
    position: int
    call: Call
    tool: ToolSpec


def propose(
    draft: Draft, position: int, calls: Sequence[ToolCall], read: Callable[[str], dict[str, Any]] | None = None
) -> None:
    """Take in the calls of one turn. A call id that stands twice is one call with one answer (E34).

    In a fork, what was answered before it keeps that answer.
    """
    turn, answered = draft.tasks[position].turn, answered_before(draft.tasks[position])
    made: list[Call] = []
    seen: set[str] = set()
    for at, asked in enumerate(calls):
        call = Call(
            call_id=asked.call_id,
            tool_call_id=ids.tool_call_id(turn, at, asked.call_id),
            tool=asked.tool,
            findings=asked.findings,
            status="done",
        )
        names = {call.tool_call_id, f"model:{asked.call_id}"} if asked.call_id else {call.tool_call_id}
        if seen & names:
            continue
        seen |= names
        if call.tool_call_id in answered:
            made.append(answered[call.tool_call_id])
        elif len(made) >= limits.CALLS_PER_TURN_MAX:
            message = f"not made: more than {limits.CALLS_PER_TURN_MAX} calls in one turn"
            made.append(_refused(draft, call, Code.TOOL_INPUT_INVALID, message))
        else:
            made.append(_decided(draft, position, call, asked.input_text, read or read_input))
    bytes_max = share(len(made))
    draft.change_task(position, calls=tuple(_bounded(call, bytes_max) for call in made))


def _bounded(call: Call, bytes_max: int) -> Call:
    text = cut(call.text, bytes_max)
    return call if text == call.text else call.model_copy(update={"text": text})


def propose_direct(draft: Draft, position: int, given: DirectCall) -> None:
    """Take in the one call that a task consists of."""
    propose(
        draft,
        position,
        [ToolCall(call_id=DIRECT_CALL_ID, tool=given.tool, input_text=canonical_text(given.input))],
        read_object,
    )


def _decided(draft: Draft, position: int, call: Call, input_text: str, read: Callable[[str], dict[str, Any]]) -> Call:
    task = draft.tasks[position]
    try:
        raw_input = read(input_text)
    except ContractError as error:
        message = f"the input is cut or unreadable, the call was not made: {error.message}"
        return _refused(draft, call, Code.TOOL_INPUT_INVALID, message)
    team = draft.team()
    agent = team.agent_with(call.tool, task.assignee) if team else None
    if agent is None:
        whose = f"the agent {task.assignee!r}" if task.assignee else f"any agent of {draft.state.team!r}"
        return _refused(draft, call, Code.TOOL_NOT_GRANTED, f"the tool {call.tool!r} is not granted to {whose}")
    tool = draft.tool(call.tool)
    if tool is None:
        return _refused(draft, call, Code.TOOL_UNKNOWN, f"there is no tool {call.tool!r}")
    validated = draft.facts.validate_input(tool.name, raw_input)
    if isinstance(validated, Failure):
        return _answered(draft, call, validated)
    try:
        texts = {"raw_input_text": canonical_text(raw_input), "input_text": canonical_text(validated)}
        if is_declared(tool):
            texts["same_as"] = load_bearing_text(tool, validated)
    except ContractError as error:
        return _refused(draft, call, Code.TOOL_INPUT_INVALID, f"the validated input is not JSON: {error.message}")
    operation_id = ids.operation_id(draft.state.run_id, task_thread(task.id), task.turn, call.tool_call_id)
    known = {"agent": agent.name, "consequential": tool.consequential, "operation_id": operation_id, "pool": tool.pool}
    call = call.model_copy(update={**texts, **known})
    if digest_of_call(task.id, call) in draft.state.refused_calls:
        message = "a reviewer refused exactly this call before; it was not made and is not asked again"
        return _refused(draft, call, Code.APPROVAL_REJECTED, message)
    return _judged(_Proposal(draft, position, call, tool), raw_input, validated)


def read_input(input_text: str) -> dict[str, Any]:
    """The input that a model wrote, strictly read. No text at all stands for no arguments.

    Raises ContractError of the strict reader, or JSON_TYPE where the text is not an object.
    """
    if input_text == "":
        return {}
    value = parse(input_text)
    if not isinstance(value, dict):
        raise ContractError(Code.JSON_TYPE, "an object is needed")
    return value


def digest_of_call(task_id: str, call: Call) -> str:
    """What makes two calls of a task the same call: the tool and what is load-bearing of the validated input."""
    return digest_of_text(f"{task_id}\n{call.tool}\n{call.same_as or call.input_text}")


def judge_call(
    draft: Draft, position: int, call: Call, tool: ToolSpec, raw_input: dict[str, Any], validated: dict[str, Any]
) -> Judgement:
    """What the gates say to a call, or what holds where none applies; stricter where its agent or the call wants it.

    With `outside` it is no judgement yet: those gates are to be asked about this very input first.
    """
    subject = _subject(draft, position, call, tool, raw_input, validated)
    judgement = draft.facts.judge(Boundary.TOOL_CALL, subject) or _unjudged(draft, tool)
    judgement = _asked_for(draft, call, tool, judgement)
    return tightened(draft.state, draft.tasks[position], call, tool, judgement)


def judge_again(draft: Draft, position: int, at: int) -> None:
    """All outside gates have answered: what becomes of the call is known now."""
    call = draft.tasks[position].calls[at].model_copy(update={"status": "done"})  # unless it comes to something
    tool = draft.tool(call.tool)
    if tool is None:
        judged = _refused(draft, call, Code.TOOL_UNKNOWN, f"there is no tool {call.tool!r}")
    else:
        raw_input, validated = read_object(call.raw_input_text), read_object(call.input_text)
        judged = _judged(_Proposal(draft, position, call, tool), raw_input, validated)
    if judged.status == "done":
        judged = _bounded(judged, share(len(draft.tasks[position].calls)))
    draft.change_call(position, at, **dict(judged))


def _subject(
    draft: Draft, position: int, call: Call, tool: ToolSpec, raw_input: dict[str, Any], validated: dict[str, Any]
) -> CallSubject:
    state = draft.state
    # What was said about other input says nothing about this one.
    is_same = bool(call.consulted) and canonical_text(validated) == call.input_text
    return CallSubject(
        run_id=state.run_id,
        team=state.team,
        agent=call.agent,
        task_id=draft.tasks[position].id,
        tool=tool.name,
        input=validated,
        raw_input=raw_input,
        consequential=tool.consequential,
        effect=tool.effect.value,
        initiator=state.initiator.id,
        findings=call.findings,
        outside=answers_of(call) if is_same else {},
    )


def _judged(proposal: _Proposal, raw_input: dict[str, Any], validated: dict[str, Any]) -> Call:
    draft, position, call, tool = proposal
    judgement = judge_call(draft, position, call, tool, raw_input, validated)
    if judgement.outside:
        return consult(draft, call, _subject(draft, position, call, tool, raw_input, validated), judgement)
    if tool.name == ASK_HUMAN and judgement.verdict in ("allow", "suspend"):
        return _questioned(proposal, judgement)
    if judgement.verdict == "allow":
        return _made(proposal, judgement)
    if judgement.verdict == "suspend":
        return _asked(proposal, judgement, raw_input, validated)
    code = Code.GATE_DENIED if judgement.verdict == "deny" else Code.GATE_FAILED
    return _answered(draft, call, gate_failure(judgement, code, "this call"))


def _asked_for(draft: Draft, call: Call, tool: ToolSpec, judgement: Judgement) -> Judgement:
    """The judgement, stricter where the agent's declaration or a finding about the call asks for a person."""
    team = draft.team()
    agent = team.agent(call.agent) if team else None
    if agent is not None and tool.name in agent.require_approval:
        why = f"Every call of {tool.name} by {agent.name} waits for a person."
        judgement = stricter(judgement, AGENT_RULE, why)
    if call.findings:
        judgement = stricter(judgement, FINDING_RULE, f"A safety finding: {'; '.join(call.findings)}")
    return judgement


def _unjudged(draft: Draft, tool: ToolSpec) -> Judgement:
    """No gate applies: what is consequential waits for a person all the same."""
    return Judgement(
        verdict="suspend" if tool.consequential else "allow",
        rule="consequential" if tool.consequential else "default",
        policy_version=draft.facts.policy_version,
    )


def _made(proposal: _Proposal, judgement: Judgement) -> Call:
    draft, call = proposal.draft, proposal.call
    _record(proposal, judgement, None)
    state = draft.state
    draft.send(
        ExecuteOperation(tenant=state.tenant, run_id=state.run_id, operation_id=call.operation_id, pool=call.pool)
    )
    return call.model_copy(update={"status": "running", **_NOTHING_ASKED})


def _asked(proposal: _Proposal, judgement: Judgement, raw_input: dict[str, Any], validated: dict[str, Any]) -> Call:
    draft, position, call, tool = proposal
    if draft.state.ending is not None:
        draft.change_task(position, halted=True)
        return _answered(draft, call, WITHHELD)
    task_id = draft.tasks[position].id
    try:
        content = call_content(task_id, call, raw_input, validated, consequential=tool.consequential)
        what = f"{call.agent} calls {call.tool} for task {task_id}"
        request = ask(draft, content, judgement, what, position=position, operation_id=call.operation_id, tool=tool)
    except ContractError as error:
        return _refused(draft, call, error.code, f"not made, since no person can be asked about it: {error.message}")
    _record(proposal, judgement, request)
    return call.model_copy(update={"status": "asking", "request_id": request.request_id})


def _questioned(proposal: _Proposal, judgement: Judgement) -> Call:
    draft, position, call, _ = proposal
    if draft.state.ending is not None:
        draft.change_task(position, halted=True)
        return _answered(draft, call, WITHHELD)
    try:
        return put_question(draft, position, call, judgement)
    except ContractError as error:
        return _answered(draft, call, error.failure().model_copy(update={"error_class": ErrorClass.INVALID}))


def _record(proposal: _Proposal, judgement: Judgement, request: ApprovalRequest | None) -> None:
    """Write the sealed proposal: what an executor will find, whatever a message tells it."""
    draft, position, call, tool = proposal
    state, task = draft.state, draft.tasks[position]
    row = OperationRow(
        tenant=state.tenant,
        run_id=state.run_id,
        operation_id=call.operation_id,
        task_id=task.id,
        thread_id=task_thread(task.id),
        turn=task.turn,
        call_id=call.tool_call_id,
        tool=tool.name,
        tool_version=tool.version,
        tool_schema_digest=tool.schema_digest,
        app_version=draft.facts.app_version,
        effect=tool.effect.value,
        consequential=tool.consequential,
        agent_name=call.agent,
        initiator=state.initiating_person,
        raw_input_text=call.raw_input_text,
        input_text=call.input_text,
        request_id=request.request_id if request else None,
        request_hash=request.request_hash if request else None,
        authority="approval" if request else "policy",
        rule=judgement.rule,
        policy_version=judgement.policy_version,
        proposed_at_ms=draft.now_ms,
        deadline_ms=state.deadline_ms,
        policy_digest=judgement.policy_digest,
    )
    draft.record(row)
    draft.audit(
        "operation.proposed",
        call.operation_id,
        task=task.id,
        call=call.tool_call_id,
        tool=tool.name,
        input=digest_of_text(call.input_text),
        authority=row.authority,
        rule=judgement.rule,
        policy=judgement.policy_digest or None,
        request_id=row.request_id,
        request_hash=row.request_hash,
    )


def _refused(draft: Draft, call: Call, code: Code, message: str) -> Call:
    return _answered(draft, call, Failure(code=code, message=message, error_class=ErrorClass.INVALID))


def _answered(draft: Draft, call: Call, failure: Failure) -> Call:
    """The call got its answer without becoming an operation."""
    # An author's exception may hold anything; what is not text must not cost the run its event.
    why = failure.message[:REFUSAL_CHARS_MAX].encode(errors="replace").decode()
    draft.audit("call.refused", call.tool_call_id, tool=call.tool, code=failure.code.value, why=why)
    return call.model_copy(update={"text": told(failure), "failure": failure, "operation_id": "", **_NOTHING_ASKED})
