"""Decides whether an attempt may start: everything of DESIGN §6, read from rows in the transaction that starts it.

Asked anew at the first start, at every retry and after every probe, for the world may have changed in between. What
the guard has read is guarded at commit by the versions of its owners, and the deadlines by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from placet import strict_json
from placet.calls import ToolSpec
from placet.canonical import canonical_text
from placet.errors import Code, ContractError, ErrorClass, Failure, TerminalError
from placet.facts import Facts
from placet.hash_scope import reads_as_reviewed
from placet.instants import Instant
from placet.messages import RUN, ExecuteOperation, RetryOperation
from placet.requests import ApprovalRequest, ToolCallContent, follows, verified_content
from placet.rows import OperationRow
from placet.statuses import RUN_TERMINAL
from placet_tool_executor.binding import changed_since
from placet_tool_executor.freezes import held_by


@dataclass(frozen=True, slots=True)
class Permit:
    """It may start, before this instant."""

    row: OperationRow
    """The proposal, with the input that was approved."""
    spec: ToolSpec
    before_ms: Instant | None
    edited: bool = False
    """Whether a person has edited the input since it was proposed."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The message says nothing that the rows say: not yet decided, or forged. Nothing changes."""

    reason: str
    for_now: bool = False
    """The run waits for people: what was begun before may go on once it has released something."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """It may start, and does not now: there is a freeze to be lifted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """It must not start, now or later."""

    failure: Failure
    run_ended: bool = False
    lapsed: bool = False
    """The approval was not used in time: with another one it may start."""


def judge_start(
    message: ExecuteOperation | RetryOperation, facts: Facts, now_ms: Instant
) -> Permit | Hold | Freeze | Refusal:
    """The first rule that speaks against a start, or the permit."""
    row = proposed = facts.operation(message.run_id, message.operation_id)
    if row is None or proposed is None or row.tenant != message.tenant:
        return Hold(f"there is no operation {message.operation_id} in run {message.run_id}")
    if row.request_id != message.request_id:
        asked = _asked_now(row, message, facts)
        if isinstance(asked, Hold | Refusal):
            return asked
        row = asked
    status = facts.status(row.run_id, RUN, "")
    if status is None:
        return Hold(f"there is no run {row.run_id}")
    if status in RUN_TERMINAL:
        return Refusal(_failure(Code.RUN_TERMINAL, f"the run is {status}", ErrorClass.CANCELLED), run_ended=True)
    if status == "suspended":  # what it has released is under way, and then it is not suspended
        return Hold("the run waits for people and has released nothing", for_now=True)
    approval = _approval(row, facts, now_ms)
    if isinstance(approval, Hold | Refusal):
        return approval
    spec = _tool(row, facts)
    if isinstance(spec, Refusal):
        return spec
    limits_ms = [at for at in (approval, row.deadline_ms) if at is not None]
    if row.deadline_ms is not None and now_ms >= row.deadline_ms:
        return Refusal(_failure(Code.DEADLINE, "the operation's deadline has passed", ErrorClass.TIMEOUT))
    if (frozen := held_by(row.tenant, row.tool, facts)) is not None:
        return Freeze(frozen)
    edited = row.input_text != proposed.input_text
    return Permit(row, spec, Instant(min(limits_ms)) if limits_ms else None, edited)


def _asked_now(
    row: OperationRow, message: ExecuteOperation | RetryOperation, facts: Facts
) -> OperationRow | Hold | Refusal:
    """The proposal as it is asked about now: a request has come to the place of its own, perhaps with another input.

    That the input is what a person has edited it to, approval has seen to when it took the request in.
    """
    request = facts.request(message.run_id, message.request_id) if message.request_id is not None else None
    if request is None or row.request_id is None or request.tenant != row.tenant:
        return Hold(f"operation {row.operation_id} waits for request {row.request_id}, not for {message.request_id}")
    if request.operation_id != row.operation_id or not follows(request, row.request_id):
        return Hold(f"request {request.request_id} does not follow {row.request_id}, which the operation waits for")
    try:
        content = verified_content(request)
    except TerminalError as error:
        return _refuse(Code.APPROVAL_INTEGRITY_ERROR, error.message)
    if not isinstance(content, ToolCallContent):
        return _refuse(Code.APPROVAL_STALE_DECISION, "what was approved is no call")
    return row.model_copy(
        update={
            "raw_input_text": canonical_text(content.raw_input),
            "input_text": canonical_text(content.input),
            "request_id": request.request_id,
            "request_hash": request.request_hash,
        }
    )


def _approval(row: OperationRow, facts: Facts, now_ms: Instant) -> Instant | Hold | Refusal | None:
    """Until when the authority to start lasts; None where it has no end."""
    if row.authority == "policy" and row.request_id is None:
        return None
    if row.authority != "approval" or row.request_id is None:
        return _refuse(Code.OPERATION_NOT_APPROVED, f"nobody has authority {row.authority!r} to start it")
    outcome = facts.outcome(row.run_id, row.request_id)
    if outcome is None:
        return Hold(f"request {row.request_id} is not decided yet")
    request = facts.request(row.run_id, row.request_id)
    if request is None or request.tenant != row.tenant or outcome.tenant != row.tenant:
        return _refuse(Code.APPROVAL_INTEGRITY_ERROR, f"request {row.request_id} has an outcome and no row")
    try:
        content = verified_content(request)
    except TerminalError as error:
        return _refuse(Code.APPROVAL_INTEGRITY_ERROR, error.message)
    if outcome.is_edit:
        return Hold(f"another request has taken the place of {row.request_id}")
    if outcome.outcome == "expired":
        return _refuse(Code.APPROVAL_EXPIRED, "the request expired before anybody decided")
    if outcome.outcome != "approved":
        return _refuse(Code.OPERATION_NOT_APPROVED, f"the request was {outcome.outcome}, not approved")
    if facts.revocation(row.run_id, row.request_id) is not None:
        return _refuse(Code.APPROVAL_REVOKED, "the approval was taken back")
    if not row.request_hash == request.request_hash == outcome.request_hash:
        return _refuse(Code.APPROVAL_STALE_DECISION, "what was approved has another hash than the operation")
    if not isinstance(content, ToolCallContent) or not _reviewed(content, row):
        return _refuse(Code.APPROVAL_STALE_DECISION, "what was approved is not what the operation would do")
    return _use_by(request, outcome.use_by_ms, now_ms)


def _use_by(request: ApprovalRequest, decided_use_by_ms: int | None, now_ms: Instant) -> Instant | Refusal | None:
    ends_ms = [at for at in (request.use_by_ms, decided_use_by_ms) if at is not None]
    if not ends_ms:
        return None
    if now_ms >= min(ends_ms):
        return Refusal(_expired("the approval was not used in time: a new one is needed"), lapsed=True)
    return Instant(min(ends_ms))


def _reviewed(content: ToolCallContent, row: OperationRow) -> bool:
    """Whether the call that people looked at is this operation's, value by value."""
    return (
        content.tool_name == row.tool
        and canonical_text(content.input) == row.input_text
        and content.agent_name == row.agent_name
        and content.task_id == row.task_id
        and content.tool_call_id == row.call_id
        and content.consequential == row.consequential
    )


def _tool(row: OperationRow, facts: Facts) -> ToolSpec | Refusal:
    """Today's tool, if it still is the one that was reviewed and still reads the input as it did."""
    spec = facts.tool(row.tool)
    if spec is None:
        return _refuse(Code.TOOL_UNKNOWN, f"there is no tool {row.tool} any more")
    request = None if row.request_id is None else facts.request(row.run_id, row.request_id)
    if (changed := changed_since(row, request, spec, facts)) is not None:
        return _refuse(Code.APPROVAL_STALE_DECISION, f"{changed}: propose the call again")
    try:
        raw = strict_json.parse(row.raw_input_text or "{}", long_integers_are_doubles=True)
        read = facts.validate_input(row.tool, raw) if isinstance(raw, dict) else None
        if isinstance(read, Failure):
            return Refusal(read)
        if read is not None and reads_as_reviewed(spec, read, row.input_text):
            return spec
    except ContractError as error:
        return _refuse(Code.TOOL_INPUT_INVALID, f"the input cannot be read any more: {error.message}")
    return _refuse(Code.APPROVAL_STALE_DECISION, f"the tool {row.tool} reads the input differently now")


def _expired(message: str) -> Failure:
    return _failure(Code.APPROVAL_EXPIRED, message, ErrorClass.APPROVAL)


def _refuse(code: Code, message: str) -> Refusal:
    return Refusal(_failure(code, message, ErrorClass.APPROVAL))


def _failure(code: Code, message: str, error_class: ErrorClass) -> Failure:
    return Failure(code=code, message=message, error_class=error_class)
