"""Decides what is kept of an operation: which attempt it is at, whose it is, and what is not known about it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from placet.calls import EffectClass, ToolSpec
from placet.errors import Failure
from placet.freezing import STATUS_PATTERN, Frozen
from placet.instants import Instant
from placet.machine import State
from placet.values import PoolName

Status = Literal[
    "lapsed", "started", "waiting", "reconciling", "needs_operator", "succeeded", "failed", "refused", "cancelled"
]
FreezeStatus = Annotated[str, StringConstraints(pattern=STATUS_PATTERN)]
"""Of the one state that says what is frozen (freezes)."""
REPEATABLE = frozenset({EffectClass.READ_ONLY, EffectClass.IDEMPOTENT})
"""Effect classes of which an attempt with an unknown outcome may simply be repeated."""


def _is_none(value: object) -> bool:
    return value is None


class OperationState(State):
    """The execution record of one side effect. Input and approval are rows, not state."""

    status: Status | FreezeStatus
    operation_id: str
    request_id: str | None = None
    """The approval that every start is guarded by; None where a policy allowed it."""
    edited_text: str = ""
    """Canonical JSON of the input where a person has edited it; empty where it is the proposal's."""
    tool: str = ""
    pool: PoolName = ""
    """Where the last attempt was started: what is for the operation goes there."""
    effect: EffectClass = EffectClass.NON_RETRIABLE
    consequential: bool = True
    n: int = 0
    """The attempt: its number is its fence. Attempts are dense; the next one is n + 1."""
    key: str = ""
    """The idempotency key of attempt n."""
    started_at_ms: Instant = Instant(0)
    lease_until_ms: Instant = Instant(0)
    """When whoever runs the attempt, or the probe, should have reported."""
    incarnation: int = 0
    before_ms: Instant | None = None
    """From this instant on nothing is started: the earliest of use-by and deadline."""
    due_ms: Instant = Instant(0)
    """Before this instant no next attempt and no probe begins."""
    failures: int = 0
    """Attempts that the tool itself failed. Those whose worker was lost are not among them."""
    doubt: Failure | None = None
    """Why nobody knows the outcome of attempt n; None while it runs, and once it is known."""
    earlier: Failure | None = None
    """Why nobody knows the outcome of an attempt before n: that n did nothing says nothing of that one."""
    contradicted: str | None = None
    """What an attempt before n, whose effect surely had not happened, has said since: that it did. Until a person
    has seen this, nothing is started again, and nobody is told that nothing happened."""
    lost: bool = False
    """Whether the doubt is that the worker was lost."""
    probe: int = 0
    """The number of the probe of attempt n, from 1."""
    probing: bool = False
    cancelling: bool = False
    """The run has ended while the attempt ran: its result is evidence only."""
    question_id: str | None = None
    """What a person was asked about attempt n."""
    question_hash: str | None = None
    frozen: tuple[Frozen, ...] | None = Field(default=None, exclude_if=_is_none)
    """Of the state that says what is frozen: the switches that are on."""
    heard: tuple[str, ...] | None = Field(default=None, exclude_if=_is_none)
    """Of that state: the last orders, whose repeats change nothing."""

    @property
    def surely_not(self) -> bool:
        """Whether nothing speaks for an effect, now that no attempt runs."""
        return self.doubt is None and self.contradicted is None

    def believed_lost(self, now_ms: Instant, incarnation: int) -> bool:
        """Whether whoever had the lease is gone: it has ended, or the store has had another exclusive owner since."""
        return now_ms >= self.lease_until_ms or incarnation > self.incarnation

    def seals(self, spec: ToolSpec) -> bool:
        """Whether the attempt can be sealed: its key is its own, so that sealing it forbids no other attempt."""
        return spec.can_seal and self.key == attempt_key(self.operation_id, self.n)


def attempt_key(operation_id: str, n: int) -> str:
    """The key of one attempt alone."""
    return f"{operation_id}:{n}"


def key_for(operation_id: str, n: int, spec: ToolSpec) -> str:
    """The idempotency key of attempt n (reliability b15).

    Tools that dedupe need one key for all attempts. A tool that can seal an attempt needs a key for each.
    """
    sealing = spec.effect is EffectClass.RECONCILABLE and spec.can_seal
    return attempt_key(operation_id, n) if sealing else operation_id
