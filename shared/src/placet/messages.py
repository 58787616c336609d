"""Decides every word spoken between the machines: commands (imperative) and events (past participle).

One tagged union of frozen models, told apart by `type`. A message names the state it is for; it carries ids and
hints, and receivers re-read facts before they believe anything that matters (DESIGN §7).
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from placet import strict_json
from placet.addressees import ANSWER_THREAD as ANSWER_THREAD
from placet.addressees import APPROVAL as APPROVAL
from placet.addressees import OPERATION as OPERATION
from placet.addressees import PLAN_THREAD as PLAN_THREAD
from placet.addressees import RUN as RUN
from placet.addressees import THREAD as THREAD
from placet.addressees import ApprovalMessage as ApprovalMessage
from placet.addressees import Message as Message
from placet.addressees import OperationMessage as OperationMessage
from placet.addressees import RunMessage as RunMessage
from placet.addressees import ThreadMessageBase as ThreadMessageBase
from placet.addressees import task_thread as task_thread
from placet.addressees import turn_name as turn_name
from placet.approval_messages import ApprovalDecided as ApprovalDecided
from placet.approval_messages import ApprovalExpiring as ApprovalExpiring
from placet.approval_messages import CloseApproval as CloseApproval
from placet.approval_messages import DecideApproval as DecideApproval
from placet.approval_messages import DecisionWord as DecisionWord
from placet.approval_messages import ExpireApproval as ExpireApproval
from placet.approval_messages import OutcomeWord as OutcomeWord
from placet.approval_messages import RemindApproval as RemindApproval
from placet.approval_messages import RequestApproval as RequestApproval
from placet.approval_messages import RevokeApproval as RevokeApproval
from placet.calls import ChatMessage, ModelReply, ToolCall, ToolOutcome
from placet.errors import Code, ContractError, Failure
from placet.freezing import FreezeOperations as FreezeOperations
from placet.gates import OutsideAnswer
from placet.plans import PlannedTask, Release
from placet.values import Name, Principal, RunId, Text, Usage, Value

# ── run ────────────────────────────────────────────────────────────────────────────────

Mode = Literal["goal", "tasks", "frozen_plan", "plan_only"]


class SubmitRun(RunMessage):
    """Start a run: `goal` is planned, `tasks` run as given, `frozen_plan` exactly, `plan_only` stops at the plan."""

    type: Literal["run.submit"] = "run.submit"
    team: Name
    mode: Mode = "goal"
    goal: Text = ""
    tasks: tuple[PlannedTask, ...] = ()
    initiator: Principal
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    release: Release | None = None
    """When an approved call is made; None: as the team says."""


class ForkRun(RunMessage):
    """Start a run from what another one was at a version. Its gates are asked anew: no decision of the other counts."""

    type: Literal["run.fork"] = "run.fork"
    forked_from: RunId
    at: Annotated[int, Field(gt=0)]
    initiator: Principal
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """None: as long as the other run was given."""


class PlanProposed(RunMessage):
    """The planner's model proposed a plan, already checked as a graph."""

    type: Literal["plan.proposed"] = "plan.proposed"
    thread_id: str
    turn: int
    tasks: tuple[PlannedTask, ...]
    usage: Usage = Usage()


class TurnTaken(RunMessage):
    """A model turn is done: words, or calls to make."""

    type: Literal["turn.taken"] = "turn.taken"
    thread_id: str
    turn: int
    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()


class TurnFailed(RunMessage):
    """A model turn failed for good."""

    type: Literal["turn.failed"] = "turn.failed"
    thread_id: str
    turn: int
    failure: Failure
    usage: Usage = Usage()


class OperationDone(RunMessage):
    """The execution record of an operation reached its end."""

    type: Literal["operation.done"] = "operation.done"
    operation_id: str
    status: Literal["succeeded", "failed", "refused", "cancelled", "lapsed"]
    """`lapsed`: not started, since its approval was not used in time; it may be approved again."""
    request_id: str | None = None
    """Of `lapsed`: the approval that was not used."""
    result_text: str | None = None
    failure: Failure | None = None


class OperationDoubtful(RunMessage):
    """The outcome of an operation is unknown; a person has been asked `request_id`."""

    type: Literal["operation.doubtful"] = "operation.doubtful"
    operation_id: str
    request_id: str


class CancelRun(RunMessage):
    """A user ends the run for good. Not a shutdown, not a lost connection."""

    type: Literal["run.cancel"] = "run.cancel"
    by: Principal
    reason: Text = ""


class ContinueRun(RunMessage):
    """Go on in one of the run's conversations, with a further instruction. Never the first task again."""

    type: Literal["run.continue"] = "run.continue"
    instruction_id: Name
    """Minted by the client: the same again is the same instruction."""
    text: Text
    by: Principal
    task: str = ""
    """In which task's conversation; empty: where the run's answer came from, or where it failed."""
    after: str = ""
    """The last turn of that conversation, as the caller has seen it; empty: whichever it is."""
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """None: as long as the run was given before."""


class InterruptRun(RunMessage):
    """A user stops the turn in work. The run goes on with the next instruction."""

    type: Literal["run.interrupt"] = "run.interrupt"
    interrupt_id: Name
    """Minted by the client: the same again, however late it comes, stops no other turn."""
    by: Principal
    turn: str = ""
    """As `turn_name` gives it; empty: every turn in work."""
    reason: Text = ""


class PatchPlan(RunMessage):
    """Propose a change of the plan under way. Gates, and perhaps a person, are asked before it takes effect."""

    type: Literal["run.patch"] = "run.patch"
    patch_id: Name
    """Minted by the client: the same again is the same patch."""
    by: Principal
    base: str = ""
    """The digest of the plan that it changes (`plans.plan_digest`); empty: whatever the plan is."""
    add: tuple[PlannedTask, ...] = ()
    change: tuple[PlannedTask, ...] = ()
    """Tasks that have not begun, as they shall be, in whole."""
    remove: tuple[Name, ...] = ()
    """Ids of tasks that have not begun."""
    reason: Text = ""


class GateAnswered(RunMessage):
    """Activity result: what an outside gate said about a call, or that it could not be asked."""

    type: Literal["gate.answered"] = "gate.answered"
    operation_id: str
    gate: Name
    answer: OutsideAnswer


class GateLeaseEnded(RunMessage):
    """Timer: whoever asks the outside gates about a call should have reported by now."""

    type: Literal["gate.lease_ended"] = "gate.lease_ended"
    operation_id: str


class RunTimedOut(RunMessage):
    """Timer: the run's wall deadline."""

    type: Literal["run.timed_out"] = "run.timed_out"


# ── thread ─────────────────────────────────────────────────────────────────────────────

Purpose = Literal["plan", "work", "answer"]


class TakeTurn(ThreadMessageBase):
    """Append to the conversation and ask the agent's model for turn number `turn` (from 1)."""

    type: Literal["turn.take"] = "turn.take"
    turn: int
    purpose: Purpose
    team: Name
    agent: Name
    append: tuple[ChatMessage, ...]
    forked_from: RunId | None = None
    """The run whose conversation of this name, up to the turn before, is how this one begins."""


class ModelAnswered(ThreadMessageBase):
    """Activity result: the model's reply to one attempt of one turn."""

    type: Literal["model.answered"] = "model.answered"
    turn: int
    attempt: int
    reply: ModelReply


class ModelFailed(ThreadMessageBase):
    """Activity result: the model call failed."""

    type: Literal["model.failed"] = "model.failed"
    turn: int
    attempt: int
    failure: Failure
    usage: Usage = Usage()
    """What the failed attempt cost, where the provider says so."""
    partial_text: str = ""
    """What of the reply had come by then, where it came word by word."""


class RetryTurn(ThreadMessageBase):
    """Timer: the back-off is over."""

    type: Literal["turn.retry"] = "turn.retry"
    turn: int
    attempt: int


class TurnLeaseEnded(ThreadMessageBase):
    """Timer: whoever called the model should have reported by now."""

    type: Literal["turn.lease_ended"] = "turn.lease_ended"
    turn: int
    attempt: int


class StopTurn(ThreadMessageBase):
    """A user has interrupted this turn: stop the model call. Further turns may follow."""

    type: Literal["turn.stop"] = "turn.stop"
    turn: int
    reason: str


class CloseThread(ThreadMessageBase):
    """The run ended; stop the model call, take no more turns."""

    type: Literal["thread.close"] = "thread.close"
    reason: str


# ── operation ──────────────────────────────────────────────────────────────────────────


class ExecuteOperation(OperationMessage):
    """Run the proposed operation now. A hint: every guard is read from rows."""

    type: Literal["operation.execute"] = "operation.execute"
    request_id: str | None = None


class ToolReturned(OperationMessage):
    """Activity result: what one attempt came to."""

    type: Literal["tool.returned"] = "tool.returned"
    attempt: int
    outcome: ToolOutcome


class ToolProbed(OperationMessage):
    """Activity result: what the tool's `reconcile` (or `seal`) said about one attempt."""

    type: Literal["tool.probed"] = "tool.probed"
    attempt: int
    probe: int
    outcome: ToolOutcome


class RetryOperation(OperationMessage):
    """Timer: the back-off is over. `request_id` lets the guards be read again."""

    type: Literal["operation.retry"] = "operation.retry"
    attempt: int
    request_id: str | None = None


class OperationLeaseEnded(OperationMessage):
    """Timer: whoever runs the attempt (or the probe) should have reported by now."""

    type: Literal["operation.lease_ended"] = "operation.lease_ended"
    attempt: int
    probe: int = 0
    request_id: str | None = None


class ProbeOperation(OperationMessage):
    """Timer: the tool's world is quiescent, ask it."""

    type: Literal["operation.probe"] = "operation.probe"
    attempt: int
    probe: int


class CancelOperation(OperationMessage):
    """The run ended: do not start; signal what runs."""

    type: Literal["operation.cancel"] = "operation.cancel"
    reason: str


AnyMessage = Annotated[
    SubmitRun
    | ForkRun
    | PlanProposed
    | TurnTaken
    | TurnFailed
    | OperationDone
    | OperationDoubtful
    | CancelRun
    | ContinueRun
    | PatchPlan
    | GateAnswered
    | GateLeaseEnded
    | InterruptRun
    | RunTimedOut
    | ApprovalDecided
    | ApprovalExpiring
    | TakeTurn
    | ModelAnswered
    | ModelFailed
    | RetryTurn
    | TurnLeaseEnded
    | StopTurn
    | CloseThread
    | ExecuteOperation
    | ToolReturned
    | ToolProbed
    | RetryOperation
    | OperationLeaseEnded
    | ProbeOperation
    | CancelOperation
    | FreezeOperations
    | RequestApproval
    | DecideApproval
    | RevokeApproval
    | ExpireApproval
    | RemindApproval
    | CloseApproval,
    Field(discriminator="type"),
]

LEASE_TYPES = frozenset({"turn.lease_ended", "operation.lease_ended", "gate.lease_ended"})
"""Timers of work in hand: due at once when its worker is known to be dead."""


# ── the envelope ───────────────────────────────────────────────────────────────────────

WIRE_VERSION = 1


class Envelope(Value):
    """What travels: a message, its own id, and the id of the message that caused it."""

    v: Literal[1] = 1
    id: Name
    cause: str | None = None
    reply_to: str | None = None
    again: str | None = None
    """Tells copies apart that wait for one state which cannot be read: each is a row of its own."""
    message: AnyMessage

    def encode(self) -> bytes:
        """One line of JSON; the same bytes go on the wire, into outbox and journal."""
        return self.json_bytes()


def enveloped(
    id: str,  # noqa: A002  as the field
    message: Message,
    *,
    cause: str | None = None,
    reply_to: str | None = None,
    again: str | None = None,
) -> Envelope:
    """A message on its way. It is valid already, and whoever reads it from the wire checks it again."""
    return Envelope.trusted(v=1, id=id, cause=cause, reply_to=reply_to, again=again, message=message)


_ENVELOPE = TypeAdapter(Envelope)


def row_id(envelope_id: str, body: bytes) -> str:
    """The id of the outbox row that sends exactly these bytes.

    Its receiver deletes it: another message under a known id, forged on the broker, deletes nothing.
    """
    return f"{envelope_id}.{hashlib.sha256(body).hexdigest()[:16]}"


def decode_envelope(data: bytes) -> Envelope:
    """The envelope in `data`, strictly read.

    Raises ContractError: JSON_* and TOO_* of the strict reader, VERSION_UNSUPPORTED for a newer wire version,
    MESSAGE_INVALID with a pointer for everything else.
    """
    value = strict_json.parse(data)
    if isinstance(value, dict) and value.get("v") != WIRE_VERSION and type(value.get("v")) is int:
        raise ContractError(
            Code.VERSION_UNSUPPORTED, f"wire version {value['v']} is not understood, only {WIRE_VERSION}", pointer="/v"
        )
    try:
        return _ENVELOPE.validate_json(data)
    except ValidationError as error:
        raise invalid(error, Code.MESSAGE_INVALID) from error


def invalid(error: ValidationError, code: Code) -> ContractError:
    """A pydantic error as ours: the first finding, with a pointer to it."""
    first: dict[str, Any] = dict(error.errors(include_url=False, include_input=False)[0])
    pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in first["loc"])
    return ContractError(code, f"{pointer or '/'}: {first['msg']}", pointer=pointer, findings=error.error_count())
