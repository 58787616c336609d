"""An attempt that came too late to begin: it did nothing, and that is the worker's failure, not the tool's."""

from __future__ import annotations

import pytest

from placet import limits
from placet.calls import not_begun
from placet.messages import RetryOperation
from placet.retries import RetryPolicy
from placet_tool_executor.state import OperationState
from tests.machines.bench import timers
from tests.machines.builders_operation import NOT_DONE, OperationBench, done, ended


def state_after(bench: OperationBench) -> OperationState:
    """The operation, once it is told that the attempt came too late."""
    state = bench.give(bench.returned(not_begun("deploy"))).state
    assert isinstance(state, OperationState)
    return state


@pytest.mark.parametrize("effect", ["read_only", "idempotent", "sealing", "peeking", "non_retriable"])
def test_an_attempt_that_came_too_late_to_begin_is_the_workers_failure_and_tried_again_in_a_while(effect: str) -> None:
    bench = OperationBench(effect, retry=RetryPolicy(attempts_max=1)).started()
    late = bench.give(bench.returned(not_begun("deploy")))
    assert ended(late) == [(1, "failed")]
    [(retry, due_ms)] = timers(late)
    assert isinstance(retry, RetryOperation)
    assert 0 < due_ms - bench.now_ms <= 1_000
    bench.later(1_000)
    bench.give(bench.retry())
    failed = bench.give(bench.returned(NOT_DONE))
    assert done(failed).status == "failed"  # the tool has had its one attempt now


def test_attempts_that_come_too_late_to_begin_are_bounded_all_the_same() -> None:
    bench = OperationBench("non_retriable").started()
    for _ in range(limits.ATTEMPTS_MAX - 1):
        assert state_after(bench).status == "waiting"
        bench.later(30_000)
        assert bench.give(bench.retry()).kind == "moved"
    message = done(bench.give(bench.returned(not_begun("deploy"))))
    assert message.failure is not None
    assert (message.status, message.failure.certainty) == ("failed", "not_executed")
    assert message.failure.details["gave_up"] == "attempts"


def test_that_a_repetition_came_too_late_says_nothing_about_the_attempt_before_it() -> None:
    bench = OperationBench("idempotent").started()
    bench.lose_worker()
    bench.give(bench.retry())
    state = state_after(bench)
    assert (state.status, state.failures) == ("waiting", 0)
    assert state.doubt is not None


def test_an_attempt_that_says_after_its_lease_that_it_never_began_is_not_the_tools_failure() -> None:
    bench = OperationBench("peeking").reconciling()
    state = state_after(bench)
    assert (state.status, state.failures, state.doubt) == ("waiting", 0, None)
