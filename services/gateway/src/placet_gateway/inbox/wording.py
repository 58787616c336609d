"""Decides how times, sizes, effects and words are told to people in the inbox."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))

EFFECTS: Mapping[str, str] = {
    "read_only": "reads only",
    "idempotent": "safe to repeat",
    "reconcilable": "can be checked",
    "non_retriable": "cannot be checked or repeated",
}
"""A tool's effect class in words."""
EFFECTS_AT_LENGTH: Mapping[str, str] = {
    "read_only": "It only reads: nothing changes outside.",
    "idempotent": "If an attempt is interrupted it is repeated with the same key, which the other side does once.",
    "reconcilable": "If an attempt is interrupted the outside system is asked whether it happened, before anything is "
    "repeated.",
    "non_retriable": "If an attempt is interrupted nobody can know whether it happened: a person is asked, and it is "
    "never repeated by itself.",
}
SCOPES: Mapping[str, str] = {
    "tool_call": "tool call",
    "plan": "plan",
    "plan_patch": "change of the plan",
    "task_round": "next round",
    "task_dispatch": "task",
    "operation_outcome": "did it happen?",
    "question": "question",
}
"""What kind of question it is."""
STATUSES: Mapping[str, str] = {
    "open": "open",
    "approved": "approved",
    "rejected": "rejected",
    "answered": "answered",
    "expired": "expired",
    "cancelled": "cancelled",
    "superseded": "superseded",
    "revoked": "taken back",
    "settled": "settled",
}
"""How a request stands."""
TONES: Mapping[str, str] = {
    "approved": "good", "succeeded": "good", "executed": "good", "done": "good", "completed": "good",
    "rejected": "bad", "failed": "bad", "refused": "bad", "not_executed": "bad", "revoked": "bad",
    "open": "wait", "suspended": "wait", "waiting": "wait", "needs_operator": "wait", "awaiting_approval": "wait",
    "running": "busy", "planning": "busy", "started": "busy", "reconciling": "busy",
}  # fmt: skip
"""How a status is coloured; it is always told in words too."""


def span(ms: int) -> str:
    """A length of time in its largest unit: `3 d`, `2 h`, `41 min`, `12 s`."""
    seconds = max(0, ms) // 1_000
    for size, unit in _STEPS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def left(ms: int) -> str:
    """What is left, in its two largest units: `3 d 4 h`, `1 h 59 min`, `41 min`, `12 s`."""
    seconds = max(0, ms) // 1_000
    for (size, unit), (next_size, next_unit) in pairwise(_STEPS):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // next_size} {next_unit}"
    return span(ms)


def ago(then_ms: int, now_ms: int) -> str:
    """How long ago."""
    return "just now" if now_ms - then_ms < 5_000 else f"{span(now_ms - then_ms)} ago"


def instant(at_ms: int | None) -> str:
    """An instant with its zone, to the second."""
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_instant(at_ms: int) -> str:
    """The same for the attribute `datetime`."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ordinal(n: int) -> str:
    """`1st`, `2nd`, `11th`."""
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{suffix}"


def count(n: int, one: str, many: str = "") -> str:
    """`1 line`, `2 lines`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
