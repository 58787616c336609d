"""Decides whether a failed step is tried again, and when. The only retry rule in the system."""

from __future__ import annotations

from typing import Literal

from placet.errors import Certainty, ErrorClass
from placet.values import Value


class RetryPolicy(Value):
    """How often and how patiently. The default is one attempt (conformance G02)."""

    attempts_max: int = 1
    base_ms: int = 1_000
    factor: float = 2.0
    delay_ms_max: int = 30_000


class RetryInputs(Value):
    """Everything the decision depends on; stored with it (G17), so that it can be checked afterwards."""

    subject: str
    """`operation_id`, or thread and turn of a model call."""
    error_class: ErrorClass
    certainty: Certainty
    repeatable: bool
    """Whether repeating is harmless when the outcome is unknown: reads, and tools that dedupe on our key."""
    attempt: int
    """The attempt that failed, from 1."""
    deadline_left_ms: int | None = None
    retry_after_ms: int | None = None
    policy: RetryPolicy


class RetryDecision(Value):
    """`retry` after `delay_ms`, or give up and why."""

    action: Literal["retry", "give_up", "ask"]
    delay_ms: int = 0
    reason: str
