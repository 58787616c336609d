"""Decides what a long simulation must have seen: a branch that nothing reaches is not tested."""

from __future__ import annotations

RARE = (
    "a call came too late to begin",
    "a claim was held by another",
    "a unit lost a race",
    "a probe found the effect",
    "a probe found nothing",
    "a seal refused a late request",
    "a request came too late to arrive",
    "an idempotent tool saw its key again",
    "a run ended as computed",
    "a timer came early, and came again",
    "a forged word moved an operation",
    "a person was asked whether it happened",
    "a late result was taken",
    "a question took another's place",
    "an edited call was asked about",
    "decision: closed",
    "decision: conflict",
    "decision: expired",
    "decision: invalid",
    "decision: not_allowed",
    "decision: stale",
    "revoke: accepted",
    "revoke: refused",
)
"""By every seed."""
RARE_AGAINST = ("the journals are the same with and without a referee",)
"""Where each seed is held against the same without a referee."""
