"""Decides what every message has: a tenant, a run, and the state it is for."""

from __future__ import annotations

from placet.ids import Address
from placet.values import Name, PoolName, RunId, Value

RUN, THREAD, OPERATION, APPROVAL = "run", "thread", "operation", "approval"
PLAN_THREAD, ANSWER_THREAD = "plan", "answer"


def task_thread(task_id: str) -> str:
    """The thread of a task's agent: one conversation per task."""
    return f"task:{task_id}"


def turn_name(thread_id: str, turn: int) -> str:
    """How a turn is told from all others of its run."""
    return f"{thread_id}/{turn}"


class Message(Value):
    """Base: every message belongs to a tenant and a run."""

    tenant: Name
    run_id: RunId

    def to(self) -> Address:
        """The state this message is for."""
        raise NotImplementedError(type(self).__name__)


class RunMessage(Message):
    """For a run: dispatcher and resume consumer."""

    def to(self) -> Address:
        return Address(self.run_id, RUN, "")


class ThreadMessageBase(Message):
    """For a conversation: planner."""

    thread_id: str

    def to(self) -> Address:
        return Address(self.run_id, THREAD, self.thread_id)


class OperationMessage(Message):
    """For a side effect: tool-executor. `pool` says which; a hint: where a call begins is read from its tool."""

    operation_id: str
    pool: PoolName = ""

    def to(self) -> Address:
        return Address(self.run_id, OPERATION, self.operation_id)


class ApprovalMessage(Message):
    """For a question to people: approval."""

    request_id: str

    def to(self) -> Address:
        return Address(self.run_id, APPROVAL, self.request_id)
