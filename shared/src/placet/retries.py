"""Decides whether a failed step is tried again, and when. The only retry rule in the system.

Whoever failed reports two independent things: what kind of failure it was, and whether the side effect happened.
From these, the attempt's number, the time left and the policy comes one decision, which is stored with its inputs.
Nobody below this rule repeats anything by itself: adapters turn their libraries' own retries off.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Literal

from pydantic import Field

from placet import limits
from placet.errors import Certainty, ErrorClass
from placet.ids import fraction_of
from placet.values import Value

RETRIED = frozenset({ErrorClass.TRANSIENT, ErrorClass.TIMEOUT})
"""The kinds of failure that may pass by themselves. All others fail the same way again, or must not be forced."""

_TRANSIENT_STATUSES = frozenset({409, 425, 429})
_DENIED_STATUSES = frozenset({401, 403, 407, 451})
_TIMEOUT_STATUSES = frozenset({408, 504})


class RetryPolicy(Value):
    """How often and how patiently. The default is one attempt (conformance G02)."""

    attempts_max: Annotated[int, Field(ge=1, le=limits.ATTEMPTS_MAX)] = 1
    """Attempts in all, the first included."""
    base_ms: Annotated[int, Field(ge=0)] = 1_000
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    delay_ms_max: Annotated[int, Field(ge=0)] = 30_000

    @classmethod
    def of(
        cls,
        *,
        attempts_max: object = None,
        base_ms: object = None,
        factor: object = None,
        delay_ms_max: object = None,
    ) -> RetryPolicy:
        """The nearest valid policy, for numbers that a person wrote into a configuration (G02).

        Too small becomes the smallest, too many attempts the most; what is no finite number becomes the default.
        """
        default = cls()
        attempts = _number(attempts_max, default.attempts_max)
        return cls(
            attempts_max=int(min(max(attempts, 1), limits.ATTEMPTS_MAX)),
            base_ms=int(max(_number(base_ms, default.base_ms), 0)),
            factor=float(max(_number(factor, default.factor), 1)),
            delay_ms_max=int(max(_number(delay_ms_max, default.delay_ms_max), 0)),
        )


LOST_WORKER = RetryPolicy(attempts_max=limits.ATTEMPTS_MAX, base_ms=0)
"""For an attempt whose worker was lost: that says nothing about what was tried, so it is tried again at once."""
BUSY_WORKER = RetryPolicy(attempts_max=limits.ATTEMPTS_MAX)
"""For an attempt that its worker could not begin in time: as little is said, but whoever is busy is given time."""


class RetryInputs(Value):
    """Everything the decision depends on; stored with it (G17), so that it can be checked afterwards."""

    subject: str
    """`operation_id`, or thread and turn of a model call."""
    error_class: ErrorClass
    certainty: Certainty
    repeatable: bool
    """Whether repeating is harmless when the outcome is unknown: reads, and tools that dedupe on our key."""
    attempt: Annotated[int, Field(ge=1)]
    """The attempt that failed, from 1."""
    deadline_left_ms: int | None = None
    """Until the step may no longer be begun; None: no such instant."""
    retry_after_ms: int | None = None
    """What the other side asked for. The delay is never shorter."""
    policy: RetryPolicy
    """The budget: attempts left are `attempts_max - attempt`."""


Reason = Literal[
    "transient",
    "timeout",
    "executed",
    "outcome_unknown",
    "permanent",
    "invalid",
    "denied",
    "cancelled",
    "budget",
    "approval",
    "attempts",
    "retry_after",
    "deadline",
]


class RetryDecision(Value):
    """`retry` after `delay_ms`; or `give_up`, or `ask` a person what happened. `reason` says why."""

    action: Literal["retry", "give_up", "ask"]
    delay_ms: int = 0
    reason: Reason


def decide(inputs: RetryInputs) -> RetryDecision:
    """The decision; the same inputs give the same one, for the jitter is derived from subject and attempt.

    Order of the rules, first match:
    - the effect happened: nothing is left to repeat;
    - nobody knows and repeating could do harm: a person is asked, whatever the policy says;
    - a kind of failure that is not retried, the attempts, the wish of the other side, the deadline: given up;
    - otherwise: again.
    """
    if inputs.certainty is Certainty.EXECUTED:
        return RetryDecision(action="give_up", reason="executed")
    if inputs.certainty is Certainty.UNKNOWN and not inputs.repeatable:
        return RetryDecision(action="ask", reason="outcome_unknown")
    if inputs.error_class not in RETRIED:
        return RetryDecision(action="give_up", reason=inputs.error_class.value)
    if inputs.attempt >= inputs.policy.attempts_max:
        return RetryDecision(action="give_up", reason="attempts")
    wished_ms = max(inputs.retry_after_ms or 0, 0)
    if wished_ms > limits.RETRY_AFTER_MS_MAX:
        return RetryDecision(action="give_up", reason="retry_after")
    fraction = fraction_of(inputs.subject, str(inputs.attempt))
    wait_ms = max(delay_ms(inputs.policy, inputs.attempt, fraction), wished_ms)
    if inputs.deadline_left_ms is not None and inputs.deadline_left_ms <= wait_ms:
        return RetryDecision(action="give_up", reason="deadline")
    return RetryDecision(action="retry", delay_ms=wait_ms, reason=inputs.error_class.value)


def nominal_delay_ms(policy: RetryPolicy, attempt: int) -> int:
    """The delay after failed attempt number `attempt` before jitter: base × factor^(attempt - 1), at most the bound."""
    nominal_ms: float = policy.base_ms
    for _ in range(attempt - 1):
        if nominal_ms >= policy.delay_ms_max:
            break
        nominal_ms *= policy.factor
    return int(min(nominal_ms, policy.delay_ms_max))


def delay_ms(policy: RetryPolicy, attempt: int, fraction: float) -> int:
    """The delay with equal jitter: half of the nominal one at `fraction` 0, the whole at 1 (G01)."""
    nominal_ms = nominal_delay_ms(policy, attempt)
    return nominal_ms - int(nominal_ms / 2 * (1 - fraction))


def classify_status(http_status: int) -> ErrorClass:
    """What kind of failure an HTTP status stands for (G03).

    A redirect that nobody followed, and any status that is no failure, is `permanent`: repeating it changes nothing.
    """
    if http_status in _TIMEOUT_STATUSES:
        return ErrorClass.TIMEOUT
    if http_status in _TRANSIENT_STATUSES or 500 <= http_status <= 599:
        return ErrorClass.TRANSIENT
    if http_status in _DENIED_STATUSES:
        return ErrorClass.DENIED
    if 400 <= http_status <= 499:
        return ErrorClass.INVALID
    return ErrorClass.PERMANENT


def _number(value: object, default: float) -> float:
    """The value where it is a finite number, within what JSON can carry; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    if isinstance(value, float) and not isfinite(value):
        return default
    return max(min(value, limits.INTEGER_MAX), -limits.INTEGER_MAX)
