"""Decides whether a stored run can be one that these rules have left: what is in flight belongs to a task at work.

Looked at when a state is read. One that contradicts itself was damaged or made up, and nothing is done on its word:
its messages wait until it is repaired, as for any state that cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placet_dispatcher.states import RunState, Task

_OPEN = frozenset({"judging", "asking", "running", "doubtful"})


def contradiction(state: RunState) -> str | None:
    """What in the state cannot be; None where nothing is wrong."""
    tasks, active = state.tasks, set(state.active)
    placed = (*state.active, *state.ready, *state.cleared)
    if len(set(placed)) < len(placed):
        return "a task stands in two places"
    if any(not 0 <= at < len(tasks) for at in placed):
        return "a place in the plan is none"
    for at, task in enumerate(tasks):
        if (task.status == "running") != (at in active):
            return f"the task {task.id!r} is {task.status} and {'' if at in active else 'not '}at work"
        told = _in_flight(task, at in active)
        if told is not None:
            return told
    for request in state.requests:
        if request.position is not None and not 0 <= request.position < len(tasks):
            return f"the question {request.request_id} is about no task"
    return None


def _in_flight(task: Task, at_work: bool) -> str | None:
    if not at_work and (task.thinking or any(call.status in _OPEN for call in task.calls)):
        return f"the task {task.id!r} has something in flight and is {task.status}"
    for call in task.calls:
        if task.assignee and call.agent and call.agent != task.assignee:
            return (
                f"the call {call.tool_call_id} of the task {task.id!r} is of {call.agent!r}, not of {task.assignee!r}"
            )
    return None
