"""The retry rule as tables: delays, which failures are tried again, what stops a retry."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from placet import limits
from placet.errors import Certainty, ErrorClass
from placet.ids import fraction_of
from placet.retries import (
    RETRIED,
    RetryDecision,
    RetryInputs,
    RetryPolicy,
    classify_status,
    decide,
    delay_ms,
    nominal_delay_ms,
)
from tests.cases import case

THREE = RetryPolicy(attempts_max=3)


def inputs(**changes: object) -> RetryInputs:
    """A transient failure of attempt 1 of 3, which surely had no effect, without a deadline."""
    usual = {
        "subject": "op_1",
        "error_class": ErrorClass.TRANSIENT,
        "certainty": Certainty.NOT_EXECUTED,
        "repeatable": False,
        "attempt": 1,
        "policy": THREE,
    }
    return RetryInputs(**{**usual, **changes})  # type: ignore[arg-type]


# ── delays ─────────────────────────────────────────────────────────────────────────────


@case("G01")
@pytest.mark.parametrize(
    ("attempt", "nominal_ms"), list(enumerate([1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000], start=1))
)
def test_the_nominal_delay_doubles_up_to_its_bound(attempt: int, nominal_ms: int) -> None:
    policy = RetryPolicy(attempts_max=8)
    assert nominal_delay_ms(policy, attempt) == nominal_ms
    assert delay_ms(policy, attempt, 0.0) == nominal_ms // 2
    assert delay_ms(policy, attempt, 1.0) == nominal_ms


def test_a_factor_beyond_all_measure_ends_at_the_bound() -> None:
    assert nominal_delay_ms(RetryPolicy(factor=1e308), 20) == 30_000


@given(
    policy=st.builds(
        RetryPolicy,
        attempts_max=st.integers(1, limits.ATTEMPTS_MAX),
        base_ms=st.integers(0, 100_000),
        factor=st.floats(1, 100),
        delay_ms_max=st.integers(0, 100_000),
    ),
    attempt=st.integers(1, limits.ATTEMPTS_MAX),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_lies_between_half_of_the_nominal_one_and_the_whole(
    policy: RetryPolicy, attempt: int, fraction: float
) -> None:
    nominal = nominal_delay_ms(policy, attempt)
    assert nominal / 2 <= delay_ms(policy, attempt, fraction) <= nominal
    assert nominal <= nominal_delay_ms(policy, attempt + 1) <= policy.delay_ms_max


@case("G17")
def test_jitter_comes_from_subject_and_attempt_alone() -> None:
    delays = {}
    for subject in ("op_1", "op_2"):
        for attempt in (1, 2):
            decision = decide(inputs(subject=subject, attempt=attempt))
            expected = delay_ms(THREE, attempt, fraction_of(subject, str(attempt)))
            assert decision == RetryDecision(action="retry", delay_ms=expected, reason="transient")
            delays[subject, attempt] = decision.delay_ms
    assert delays["op_1", 1] != delays["op_2", 1]


@case("G17")
@given(
    stored=st.builds(
        RetryInputs,
        subject=st.text(max_size=20),
        error_class=st.sampled_from(ErrorClass),
        certainty=st.sampled_from(Certainty),
        repeatable=st.booleans(),
        attempt=st.integers(1, limits.ATTEMPTS_MAX),
        deadline_left_ms=st.none() | st.integers(-10, 100_000),
        retry_after_ms=st.none() | st.integers(-10, 10**10),
        policy=st.builds(RetryPolicy, attempts_max=st.integers(1, limits.ATTEMPTS_MAX)),
    )
)
def test_stored_inputs_give_the_same_decision_again(stored: RetryInputs) -> None:
    again = RetryInputs.model_validate_json(stored.model_dump_json())
    assert decide(again) == decide(stored)


# ── policies ───────────────────────────────────────────────────────────────────────────


@case("G02")
def test_the_default_is_one_attempt() -> None:
    assert RetryPolicy().attempts_max == 1
    assert RetryPolicy.of() == RetryPolicy()
    assert decide(inputs(policy=RetryPolicy())) == RetryDecision(action="give_up", reason="attempts")


@case("G02")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"attempts_max": -5 + 1}, {"attempts_max": 1}),
        ({"attempts_max": 0}, {"attempts_max": 1}),
        ({"attempts_max": 10**400}, {"attempts_max": limits.ATTEMPTS_MAX}),
        ({"attempts_max": 2.9}, {"attempts_max": 2}),
        ({"factor": 0.5}, {"factor": 1.0}),
        ({"factor": -1}, {"factor": 1.0}),
        ({"factor": math.nan}, {"factor": 2.0}),
        ({"factor": math.inf}, {"factor": 2.0}),
        ({"factor": 10**400}, {"factor": float(limits.INTEGER_MAX)}),
        ({"factor": "3"}, {"factor": 2.0}),
        ({"attempts_max": math.nan}, {"attempts_max": 1}),
        ({"attempts_max": None}, {"attempts_max": 1}),
        ({"attempts_max": True}, {"attempts_max": 1}),
        ({"base_ms": "soon"}, {"base_ms": 1_000}),
        ({"base_ms": -1}, {"base_ms": 0}),
        ({"base_ms": 250.9}, {"base_ms": 250}),
        ({"delay_ms_max": -math.inf}, {"delay_ms_max": 30_000}),
        ({"delay_ms_max": -1}, {"delay_ms_max": 0}),
    ],
)
def test_numbers_that_make_no_policy_become_the_nearest_that_do(
    written: dict[str, object], meant: dict[str, object]
) -> None:
    assert RetryPolicy.of(**written) == RetryPolicy(**meant)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts_max": 0},
        {"attempts_max": limits.ATTEMPTS_MAX + 1},
        {"base_ms": -1},
        {"factor": 0.5},
        {"factor": math.nan},
        {"factor": math.inf},
        {"delay_ms_max": -1},
    ],
)
def test_a_policy_made_in_code_is_refused_when_it_makes_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


# ── which failures ─────────────────────────────────────────────────────────────────────


@case("G03")
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 501, 502, 503, 504, 529, 599])
def test_these_statuses_are_tried_again(status: int) -> None:
    assert decide(inputs(error_class=classify_status(status))).action == "retry"


@case("G03")
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 413, 422, 451, 301, 200, 0, 600])
def test_these_statuses_are_not(status: int) -> None:
    assert decide(inputs(error_class=classify_status(status))).action == "give_up"


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (408, ErrorClass.TIMEOUT),
        (504, ErrorClass.TIMEOUT),
        (429, ErrorClass.TRANSIENT),
        (401, ErrorClass.DENIED),
        (403, ErrorClass.DENIED),
        (400, ErrorClass.INVALID),
        (422, ErrorClass.INVALID),
        (304, ErrorClass.PERMANENT),
    ],
)
def test_a_status_says_what_kind_of_failure_it_was(status: int, error_class: ErrorClass) -> None:
    assert classify_status(status) is error_class


@case("G03")
@pytest.mark.parametrize("error_class", ErrorClass)
def test_only_what_may_pass_by_itself_is_tried_again(error_class: ErrorClass) -> None:
    decision = decide(inputs(error_class=error_class))
    if error_class in (ErrorClass.TRANSIENT, ErrorClass.TIMEOUT):
        assert error_class in RETRIED
        assert decision.action == "retry"
    else:
        assert (decision.action, decision.reason) == ("give_up", error_class.value)


@case("G06")
@pytest.mark.parametrize("certainty", [Certainty.NOT_EXECUTED, Certainty.UNKNOWN])
def test_no_policy_retries_an_approval_error(certainty: Certainty) -> None:
    generous = RetryPolicy(attempts_max=limits.ATTEMPTS_MAX)
    failed = inputs(error_class=ErrorClass.APPROVAL, certainty=certainty, repeatable=True, policy=generous)
    assert decide(failed) == RetryDecision(action="give_up", reason="approval")


# ── what the decision rests on ─────────────────────────────────────────────────────────


@case("G04")
def test_a_transient_failure_with_time_left_is_tried_again_after_a_delay() -> None:
    decision = decide(inputs(deadline_left_ms=60_000))
    assert decision.action == "retry"
    assert 500 <= decision.delay_ms <= 1_000


@case("G04")
def test_a_denied_permission_fails() -> None:
    assert decide(inputs(error_class=ErrorClass.DENIED, deadline_left_ms=60_000)) == RetryDecision(
        action="give_up", reason="denied"
    )


@case("G04")
@pytest.mark.parametrize("spare_ms", [-10_000, -1, 0, 1])
def test_a_retry_that_would_start_at_the_deadline_or_later_is_given_up(spare_ms: int) -> None:
    needed_ms = decide(inputs()).delay_ms
    decision = decide(inputs(deadline_left_ms=needed_ms + spare_ms))
    if spare_ms > 0:
        assert decision == RetryDecision(action="retry", delay_ms=needed_ms, reason="transient")
    else:
        assert decision == RetryDecision(action="give_up", reason="deadline")


@pytest.mark.parametrize(("attempt", "action"), [(1, "retry"), (2, "retry"), (3, "give_up"), (4, "give_up")])
def test_three_attempts_are_three_and_not_four(attempt: int, action: str) -> None:
    assert decide(inputs(attempt=attempt)).action == action


@pytest.mark.parametrize(
    ("certainty", "repeatable", "expected"),
    [
        (Certainty.NOT_EXECUTED, False, ("retry", "transient")),
        (Certainty.NOT_EXECUTED, True, ("retry", "transient")),
        (Certainty.UNKNOWN, True, ("retry", "transient")),
        (Certainty.UNKNOWN, False, ("ask", "outcome_unknown")),
        (Certainty.EXECUTED, False, ("give_up", "executed")),
        (Certainty.EXECUTED, True, ("give_up", "executed")),
    ],
)
def test_what_surely_happened_is_not_repeated_and_what_perhaps_happened_only_where_harmless(
    certainty: Certainty, repeatable: bool, expected: tuple[str, str]
) -> None:
    decision = decide(inputs(certainty=certainty, repeatable=repeatable))
    assert (decision.action, decision.reason) == expected


@pytest.mark.parametrize("error_class", ErrorClass)
@pytest.mark.parametrize("attempt", [1, 3, 20])
def test_an_unknown_outcome_that_cannot_be_repeated_is_always_asked_about(
    error_class: ErrorClass, attempt: int
) -> None:
    doubtful = inputs(error_class=error_class, certainty=Certainty.UNKNOWN, attempt=attempt, deadline_left_ms=0)
    assert decide(doubtful) == RetryDecision(action="ask", reason="outcome_unknown")


@pytest.mark.parametrize(
    ("wished_ms", "expected_ms"), [(None, None), (0, None), (-5, None), (100, None), (7_000, 7_000)]
)
def test_the_other_sides_wish_lengthens_a_delay_and_never_shortens_it(
    wished_ms: int | None, expected_ms: int | None
) -> None:
    own_ms = decide(inputs()).delay_ms
    assert decide(inputs(retry_after_ms=wished_ms)).delay_ms == (expected_ms or own_ms)


def test_a_wish_past_the_deadline_or_past_all_patience_is_given_up() -> None:
    assert decide(inputs(retry_after_ms=7_000, deadline_left_ms=5_000)).reason == "deadline"
    assert decide(inputs(retry_after_ms=limits.RETRY_AFTER_MS_MAX)).delay_ms == limits.RETRY_AFTER_MS_MAX
    assert decide(inputs(retry_after_ms=limits.RETRY_AFTER_MS_MAX + 1)) == RetryDecision(
        action="give_up", reason="retry_after"
    )
