"""Decides the words that a run says to its agents: what a task is, what its dependencies brought, how a call ended."""

from __future__ import annotations

from collections.abc import Iterable

from placet import limits
from placet.errors import Failure
from placet_dispatcher.states import RunState, Task

APPENDED_BYTES_MAX = limits.CONTENT_BYTES_MAX
"""What one turn may add to a conversation; shared out evenly where it is not enough for all."""

_MARK_BYTES = 64
"""Room for the line that says how much is missing."""


def cut(text: str, bytes_max: int) -> str:
    """The text where it fits, else its beginning with a line that says how much is missing. Never cut in silence."""
    if len(text) * 4 <= bytes_max:
        return text
    data = text.encode()
    if len(data) <= bytes_max:
        return text
    kept = data[: max(bytes_max - _MARK_BYTES, 0)].decode(errors="ignore")
    return f"{kept}\n[cut: the first {len(kept.encode()):,} of {len(data):,} bytes]"


def share(count: int) -> int:
    """How many bytes each of `count` texts may take of one turn."""
    return min(limits.RESULT_BYTES_MAX, APPENDED_BYTES_MAX // max(count, 1))


def task_text(task: Task, dependencies: Iterable[Task]) -> str:
    """What the agent of a task is told."""
    parts = [task.title]
    if task.description:
        parts.append(task.description)
    results = _results(list(dependencies))
    if results:
        parts.append("Results of the tasks that this one depends on:")
        parts += results
    return "\n\n".join(parts)


def answer_text(state: RunState, tasks: Iterable[Task]) -> str:
    """What the planner is told when all tasks are done."""
    return "\n\n".join(
        [
            f"The goal was: {state.goal}",
            "All tasks of the plan are done. Their results:",
            *_results(list(tasks)),
            "Answer the goal with these results.",
        ]
    )


def _results(tasks: list[Task]) -> list[str]:
    bytes_max = share(len(tasks))
    return [f"[{task.id}] {task.title}\n{cut(task.output or '', bytes_max)}" for task in tasks]


def told(failure: Failure) -> str:
    """A failure as the model reads it."""
    return f"{failure.code.value}: {failure.message}"


def refusal(outcome: str, reason: str | None) -> str:
    """What the model is told of a call that people did not let through (E24, E36)."""
    if outcome == "rejected":
        return f"A reviewer refused this call: {reason}" if reason else "A reviewer refused this call."
    if outcome == "expired":
        return "Nobody decided on this call in time. It was not made."
    if outcome == "revoked":
        return "The approval of this call was taken back" + (f": {reason}" if reason else ".")
    return f"The question about this call was closed ({outcome}). It was not made."
