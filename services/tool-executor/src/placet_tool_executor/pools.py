"""Decides in which executors a call begins: in those of the pool that its tool names, whatever a message says.

What begins no call (a lease that ended, a cancel, an answer of a person) is settled by whoever gets it.
"""

from __future__ import annotations

from typing import TypeVar

from placet.calls import ToolSpec
from placet.instants import Instant, later
from placet.machine import Transition, pass_on
from placet.messages import ExecuteOperation, OperationMessage, ProbeOperation, RetryOperation
from placet_tool_executor.state import OperationState

CORRECTED_MS = 1_000
"""When a message goes on that was sent to where the tool does not run. Two versions of an application may disagree
about that while a deploy rolls: neither sends the other more than one such message a second."""

M = TypeVar("M", bound=OperationMessage)


def elsewhere(
    message: ExecuteOperation | RetryOperation | ProbeOperation, spec: ToolSpec, now_ms: Instant
) -> Transition[OperationState]:
    """The call begins in another pool: the message goes there. At once where it names that pool itself."""
    reason = f"{spec.name} runs in {'the pool ' + spec.pool if spec.pool else 'the common pool'}"
    if message.pool == spec.pool:
        return pass_on(message, reason)
    return pass_on(message.model_copy(update={"pool": spec.pool}), reason, later(now_ms, CORRECTED_MS))


def at_home(state: OperationState, message: M) -> M:
    """A timer that is sent again goes to where the operation is, not to where somebody says that it is."""
    return message if message.pool == state.pool else message.model_copy(update={"pool": state.pool})
