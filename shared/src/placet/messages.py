"""Decides every word spoken between the machines: commands (imperative) and events (past participle).

One tagged union of frozen models, told apart by `type`. A message names the state it is for; it carries ids and
hints, and receivers re-read facts before they believe anything that matters (DESIGN §7).
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from placet import limits, strict_json
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
from placet.calls import ChatMessage, ModelReply, ToolCall, ToolOutcome
from placet.errors import Code, ContractError, Failure
from placet.ids import Address
from placet.plans import PlannedTask, Release
from placet.requests import ApprovalRequest
from placet.values import Name, PoolName, Principal, Text, Usage, Value

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


class RunTimedOut(RunMessage):
    """Timer: the run's wall deadline."""

    type: Literal["run.timed_out"] = "run.timed_out"


# ── approval's answer, to whoever asked: a run, or an operation in doubt ───────────────

OutcomeWord = Literal[
    "approved", "rejected", "answered", "expired", "cancelled", "superseded", "executed", "not_executed"
]
"""`answered`: a person has answered instead of letting the call be made, or has answered a question."""


class ApprovalDecided(Message):
    """A request reached its one outcome. A hint: the receiver reads the outcome row."""

    type: Literal["approval.decided"] = "approval.decided"
    request_id: str
    outcome: OutcomeWord
    asker_machine: str
    asker_key: str
    asker_pool: PoolName = ""
    """Where an operation in doubt is looked after."""

    def to(self) -> Address:
        return Address(self.run_id, self.asker_machine, self.asker_key)


class ApprovalExpiring(RunMessage):
    """A question of the run will expire soon, and nobody has decided it."""

    type: Literal["approval.expiring"] = "approval.expiring"
    request_id: str
    expires_at_ms: int


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


# ── approval ───────────────────────────────────────────────────────────────────────────

DecisionWord = Literal["approve", "reject", "edit", "respond", "request_changes", "executed", "not_executed"]
"""`edit`: ask again, about the input in the value; `respond`: the value is the answer; `request_changes`: the reason
goes back to the agent. Which of them fits a question is for the rules to say."""


class RequestApproval(ApprovalMessage):
    """Open the frozen question."""

    type: Literal["approval.request"] = "approval.request"
    request: ApprovalRequest
    asker_pool: PoolName = ""
    """Whom the answer is for among tool executors."""


class DecideApproval(ApprovalMessage):
    """One person's voice. `decision_id` is minted by the client and kept until it has a receipt.

    Word and reviewer are checked by the machine, in the order of DESIGN §5, hence their loose types here.
    """

    type: Literal["approval.decide"] = "approval.decide"
    decision_id: Name
    request_hash: str
    decision: str
    reviewer: Principal
    reason: Text | None = None
    shown_digest: str | None = None
    """Digest of what the renderer put on the reviewer's screen."""
    value_text: Annotated[str, Field(max_length=limits.VALUE_BYTES_MAX)] | None = None
    """Canonical JSON of what is said besides the word: the edited input, the answer. Signed by its digest."""
    signed: Annotated[str, Field(max_length=limits.SIGNED_BYTES_MAX)] | None = None
    """The signed envelope, verbatim: every field above counts only as far as it says the same."""


class RevokeApproval(ApprovalMessage):
    """Take an approval back before it is consumed."""

    type: Literal["approval.revoke"] = "approval.revoke"
    operation_id: str = ""
    """What the approval is for, as the request says: whether it was consumed is read from that operation's state."""
    by: Principal
    reason: Text = ""


class ExpireApproval(ApprovalMessage):
    """Timer: the question's deadline."""

    type: Literal["approval.expire"] = "approval.expire"


class RemindApproval(ApprovalMessage):
    """Timer: the question will expire soon."""

    type: Literal["approval.remind"] = "approval.remind"


class CloseApproval(ApprovalMessage):
    """The asker no longer wants an answer."""

    type: Literal["approval.close"] = "approval.close"
    outcome: Literal["cancelled", "superseded"]
    reason: str


AnyMessage = Annotated[
    SubmitRun
    | PlanProposed
    | TurnTaken
    | TurnFailed
    | OperationDone
    | OperationDoubtful
    | CancelRun
    | RunTimedOut
    | ApprovalDecided
    | ApprovalExpiring
    | TakeTurn
    | ModelAnswered
    | ModelFailed
    | RetryTurn
    | TurnLeaseEnded
    | CloseThread
    | ExecuteOperation
    | ToolReturned
    | ToolProbed
    | RetryOperation
    | OperationLeaseEnded
    | ProbeOperation
    | CancelOperation
    | RequestApproval
    | DecideApproval
    | RevokeApproval
    | ExpireApproval
    | RemindApproval
    | CloseApproval,
    Field(discriminator="type"),
]

LEASE_TYPES = frozenset({"turn.lease_ended", "operation.lease_ended"})
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
