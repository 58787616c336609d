"""Decides which tasks are ready: dependencies are counted down, so that a whole plan costs its tasks and edges once."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from placet.errors import Code, Failure
from placet.plans import PlannedTask
from placet_dispatcher.draft import Draft
from placet_dispatcher.states import Task

_ENDED = {"failed": "failed", "skipped": "was skipped"}


def planted(planned: Sequence[PlannedTask]) -> tuple[Task, ...]:
    """The tasks of a checked plan, each with its dependents and the number of dependencies it waits for."""
    index = {task.id: position for position, task in enumerate(planned)}
    dependents: list[list[int]] = [[] for _ in planned]
    for position, task in enumerate(planned):
        for dependency in task.depends_on:
            dependents[index[dependency]].append(position)
    return tuple(
        Task(
            id=task.id,
            title=task.title,
            description=task.description,
            assignee=task.assignee,
            depends_on=task.depends_on,
            priority=task.priority,
            call=task.call,
            waiting=len(task.depends_on),
            dependents=tuple(dependents[position]),
        )
        for position, task in enumerate(planned)
    )


def first_ready(tasks: Sequence[Task]) -> list[int]:
    """Positions of the tasks that wait for nothing, in the order of admission; in a fork some have ended already."""
    waiting_for_nothing = (at for at, task in enumerate(tasks) if task.waiting == 0 and task.status == "pending")
    return in_order(tasks, waiting_for_nothing)


def in_order(tasks: Sequence[Task], positions: Iterable[int]) -> list[int]:
    """Higher priority first, then as planned."""
    return sorted(positions, key=lambda position: (-tasks[position].priority, position))


def succeed(draft: Draft, position: int, output: str) -> None:
    """A task succeeded: whoever waited for it alone is ready now."""
    draft.end_task(position, "succeeded", output=output)
    if draft.state.round_gate:
        draft.change(round_done=(*draft.state.round_done, position))
    for dependent in draft.tasks[position].dependents:
        waiting = draft.tasks[dependent].waiting - 1
        task = draft.change_task(dependent, waiting=waiting)
        if waiting == 0 and task.status == "pending":
            insort(draft.ready, dependent, key=lambda at: (-draft.tasks[at].priority, at))


def fail(draft: Draft, position: int, failure: Failure) -> None:
    """A task failed: whatever depends on it, near or far, is skipped; the rest goes on."""
    draft.end_task(position, "failed", failure=failure)
    skip_dependents(draft, position)


def revive_dependents(draft: Draft, position: int) -> None:
    """A task that has ended is at work again: what was skipped because it had failed may yet become ready.

    What has been done on the strength of its first result stays done.
    """
    if draft.tasks[position].status == "succeeded":
        for dependent in draft.tasks[position].dependents:  # `succeed` counts it down once more
            draft.change_task(dependent, waiting=draft.tasks[dependent].waiting + 1)
        return
    revived: set[int] = set()
    behind = list(draft.tasks[position].dependents)
    while behind:
        at = behind.pop()
        task = draft.tasks[at]
        if at not in revived and task.status == "skipped" and task.started_at_ms is None:
            revived.add(at)
            behind += task.dependents
    while lost := {at for at in revived if _is_cut_off(draft, at, {position, *revived})}:
        revived -= lost
    for at in revived:
        draft.change_task(at, status="pending", failure=None, ended_at_ms=None)


def _is_cut_off(draft: Draft, position: int, hopeful: set[int]) -> bool:
    """Whether something that it depends on will never succeed."""
    needed = draft.positions_of(draft.tasks[position].depends_on)
    return any(at not in hopeful and draft.tasks[at].status in _ENDED for at in needed)


def skip_dependents(draft: Draft, position: int) -> None:
    """Skip every task that can no longer become ready. Each is visited once in a run's life."""
    unreachable = [(position, dependent) for dependent in draft.tasks[position].dependents]
    while unreachable:
        cause, dependent = unreachable.pop()
        task = draft.tasks[dependent]
        if task.status != "pending":
            continue
        reason = Failure(
            code=Code.TASK_FAILED,
            message=f"depends on {draft.tasks[cause].id!r}, which {_ENDED[draft.tasks[cause].status]}",
        )
        draft.end_task(dependent, "skipped", failure=reason)
        unreachable += [(dependent, further) for further in task.dependents]
