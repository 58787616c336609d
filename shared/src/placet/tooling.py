"""Decides what a tool is told, and how it says what became of its effect: it happened, it did not, or nobody knows.

These are the words of tool authors. What crosses wires are the values of the same names in `placet.calls`; the runner
translates (`placet.runtime.tools`). Certainty is a type, never guessed from the text of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from placet.filerefs import FileRef
from placet.instants import Instant


def _no_refer(path: str) -> FileRef:
    raise NotExecuted(f"{path!r} cannot be referred to: nothing runs this tool that has files")


def _no_copy(file: FileRef) -> NoReturn:
    raise NotExecuted(f"{file.path!r} has not been copied: nothing runs this tool that has files")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool knows of the attempt it runs for: its first parameter."""

    operation_id: str
    """The identity of the side effect: the same in request, approval, every attempt, result and audit."""
    idempotency_key: str
    """What to give to the outside system, so that it does a repeated effect once."""
    attempt: int
    """From 1."""
    deadline: Instant
    """When the attempt is given up, in milliseconds since 1970, UTC."""
    run_id: str
    tenant: str
    agent: str
    """The agent that asked; empty for a call that the plan itself makes."""
    is_cancelled: Callable[[], bool] = lambda: False
    seconds_left: Callable[[], float] = lambda: float("inf")
    refer_to: Callable[[str], FileRef] = _no_refer
    copy_of: Callable[[FileRef], str] = _no_copy
    open_copy: Callable[[FileRef], BinaryIO] = _no_copy

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the run was cancelled, or the time is over. An `async` tool is also interrupted where it
        awaits; a plain function runs in a thread, where nothing interrupts it, so a long one must look here."""
        return self.is_cancelled()

    def left_s(self) -> float:
        """Seconds until the deadline, never negative: what to give to a client or a subprocess as its timeout."""
        return max(0.0, self.seconds_left())

    def refer(self, path: str) -> FileRef:
        """A file of the executor as it is now, for an agent to name in a later call. Raises NotExecuted."""
        return self.refer_to(path)

    def path_of(self, file: FileRef) -> str:
        """Where the verified copy of a file of the input is, until the attempt ends; for its owner to read only."""
        return self.copy_of(file)

    def open(self, file: FileRef) -> BinaryIO:
        """The verified copy of a file of the input, open for reading."""
        return self.open_copy(file)


@dataclass(frozen=True, slots=True)
class Executed:
    """It happened. From a tool the same as returning `result`; from a probe what the lost attempt was to return."""

    result: Any = None


class ToolError(Exception):
    """Base of what a tool may raise on purpose. Any other exception: nobody knows, unless the tool only reads.

    `transient`: another try may succeed; whether there is one is for the tool's retry policy to say. Where it is not
    said, a tool's NotExecuted is final (it was refused), a probe's is not (it was lost), and Unsure never is.
    """

    def __init__(self, reason: str = "", *, transient: bool | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient
        self.retry_after_s = retry_after_s


class NotExecuted(ToolError):  # noqa: N818 — a word of DESIGN §9; most often it is returned
    """The effect did not happen and will not. Raised or returned by a tool, returned by a probe.

    A probe must *return* it: one that is raised within a probe may speak of the probe's own request.
    """


class Unsure(ToolError):  # noqa: N818 — as above
    """Nobody knows whether the effect happened. Raised or returned by a tool, returned by a probe."""


class Failed(ToolError):  # noqa: N818 — as above
    """The tool did what it was asked, and that failed: a build that is red. What it did stands; it is not repeated.

    `result` goes to the model beside the reason.
    """

    def __init__(self, reason: str, *, result: Any = None) -> None:
        super().__init__(reason, transient=False)
        self.result = result
