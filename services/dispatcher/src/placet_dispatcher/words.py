"""Decides the words that a run says to its agents: what a task is, what its dependencies brought, how a call ended."""

from __future__ import annotations

from collections.abc import Iterable

from placet import limits
from placet.errors import Failure
from placet_dispatcher.states import RunState, Task

APPENDED_BYTES_MAX = limits.CONTENT_BYTES_MAX
"""What one turn may add to a conversation; shared out evenly where it is not enough for all."""

EDITED_BYTES_MAX = 8 * limits.KIB
"""What is told of an edited input beside its result."""

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


CONTINUATION = "Continuation: go on from here. What is finished stays finished: do not repeat it."
"""The note before every further instruction."""
INTERRUPTED = "cancelled before execution: the turn was interrupted"


def continuation_text(text: str) -> str:
    """A further instruction: the note, and a person's words as they are."""
    return f"{CONTINUATION}\n\n{text}"


def answer_again_text(tasks: Iterable[Task]) -> str:
    """What the planner is told when tasks have gone on after it had answered."""
    news = _results(list(tasks))
    return "\n\n".join(["Work has gone on. These results are new:", *news, "Answer the goal again with all results."])


def _results(tasks: list[Task]) -> list[str]:
    bytes_max = share(len(tasks))
    return [f"[{task.id}] {task.title}\n{cut(task.output or '', bytes_max)}" for task in tasks]


def told(failure: Failure) -> str:
    """A failure as the model reads it."""
    return f"{failure.code.value}: {failure.message}"


def edited(text: str, edited_text: str) -> str:
    """The result of a call that a person has edited: what was really done stands before it."""
    if not edited_text:
        return text
    given = cut(edited_text, EDITED_BYTES_MAX)
    return (
        f"A reviewer changed the input of this call before it was made. It was made with {given}. Its result:\n{text}"
    )


def answered(answer: str, *, is_question: bool) -> str:
    """What a person has said, marked as a person's words."""
    if is_question:
        return f"A person answered: {answer}"
    return f"This call was not made: a reviewer answered instead of the tool. The answer: {answer}"


def changes_wanted(reason: str | None) -> str:
    """A reviewer's words to an agent: what should be different."""
    return f"A reviewer asks for changes before this is approved: {reason or ''}"


def unanswered(outcome: str, reason: str | None) -> str:
    """What the model is told of a question that brought no answer."""
    if outcome == "rejected":
        return f"The person declined to answer: {reason}" if reason else "The person declined to answer."
    if outcome == "expired":
        return "Nobody answered in time."
    return f"The question was closed ({outcome}) without an answer."


def refusal(outcome: str, reason: str | None) -> str:
    """What the model is told of a call that people did not let through (E24, E36)."""
    if outcome == "changes":
        return f"This call was not made. {changes_wanted(reason)}"
    if outcome == "rejected":
        return f"A reviewer refused this call: {reason}" if reason else "A reviewer refused this call."
    if outcome == "expired":
        return "Nobody decided on this call in time. It was not made."
    if outcome == "revoked":
        return "The approval of this call was taken back" + (f": {reason}" if reason else ".")
    return f"The question about this call was closed ({outcome}). It was not made."
