"""Decides which queue a message goes to: one per service, and one of their own for what wakes a waiting run."""

from __future__ import annotations

from placet.messages import APPROVAL, OPERATION, RUN, THREAD, ApprovalDecided, Message

DISPATCHER = "dispatcher"
RESUME = "resume"
PLANNER = "planner"
TOOL_EXECUTOR = "tool-executor"
APPROVALS = "approval"

QUEUES: dict[str, str] = {
    DISPATCHER: RUN,
    RESUME: RUN,
    PLANNER: THREAD,
    TOOL_EXECUTOR: OPERATION,
    APPROVALS: APPROVAL,
}
"""Each queue and the machine that serves it."""

_QUEUE_OF = {RUN: DISPATCHER, THREAD: PLANNER, OPERATION: TOOL_EXECUTOR, APPROVAL: APPROVALS}


def queue_of(message: Message) -> str:
    """The queue a message is published to.

    An approval that wakes a run has a queue of its own, so that a flood of submissions never delays it.
    """
    machine = message.to().machine
    if machine == RUN and isinstance(message, ApprovalDecided):
        return RESUME
    return _QUEUE_OF[machine]
