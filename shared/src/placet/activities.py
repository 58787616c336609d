"""Decides what a machine may ask of the world, and how long it may take. Results come back as messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from placet.ids import Address
from placet.messages import OPERATION, RUN, THREAD, Purpose
from placet.values import Name, PoolName, RunId, Value


class ActivityBase(Value):
    """Base: whose work it is."""

    tenant: Name
    run_id: RunId

    def owner(self) -> Address:
        """The state that started it and gets its result."""
        raise NotImplementedError(type(self).__name__)


class CallModel(ActivityBase):
    """Ask the agent's model for a turn. Result: ModelAnswered or ModelFailed with the same turn and attempt.

    The conversation is `thread_message` rows 1..`messages` of the thread; they are not carried along, so that a long
    conversation costs no more in state or queue than a short one.
    """

    activity: Literal["model.call"] = "model.call"
    thread_id: str
    turn: int
    attempt: int
    purpose: Purpose
    team: Name
    agent: Name
    messages: int
    timeout_ms: int
    handle: str = ""
    """The live session that the conversation hangs on (calls.ModelReply); where it is gone, the call fails so."""

    def owner(self) -> Address:
        return Address(self.run_id, THREAD, self.thread_id)


class RunTool(ActivityBase):
    """Run one attempt of an operation. Result: ToolReturned."""

    activity: Literal["tool.run"] = "tool.run"
    operation_id: str
    attempt: int
    tool: Name
    agent: str
    input_text: str
    """Canonical JSON, exactly the reviewed bytes."""
    idempotency_key: str
    """`operation_id` for tools that dedupe; `operation_id:n` for tools that can seal an attempt."""
    timeout_ms: int
    """Counted from the call. Whatever deadline there is, is in it: it was computed by the store's clock."""
    pool: PoolName = ""
    """Where it runs, and where its result is for."""

    def owner(self) -> Address:
        return Address(self.run_id, OPERATION, self.operation_id)


class ProbeTool(ActivityBase):
    """Ask the tool's world whether attempt `attempt` happened; `seal`: and make it never happen if it did not.

    Result: ToolProbed.
    """

    activity: Literal["tool.probe"] = "tool.probe"
    operation_id: str
    attempt: int
    probe: int
    tool: Name
    agent: str
    input_text: str
    idempotency_key: str
    seal: bool
    timeout_ms: int
    pool: PoolName = ""

    def owner(self) -> Address:
        return Address(self.run_id, OPERATION, self.operation_id)


class AskGate(ActivityBase):
    """Ask an outside gate about a tool call. Result: GateAnswered, also where it could not be asked."""

    activity: Literal["gate.ask"] = "gate.ask"
    operation_id: str
    gate: Name
    subject_text: str
    """The CallSubject as JSON."""
    timeout_ms: int

    def owner(self) -> Address:
        return Address(self.run_id, RUN, "")


class Stop(ActivityBase):
    """Signal cancellation to whatever runs for `machine` and `key` in this process; no result."""

    activity: Literal["stop"] = "stop"
    machine: str
    key: str
    reason: str

    def owner(self) -> Address:
        return Address(self.run_id, self.machine, self.key)


Activity = Annotated[CallModel | RunTool | ProbeTool | AskGate | Stop, Field(discriminator="activity")]
