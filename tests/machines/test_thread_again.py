"""One conversation: retries, lost workers, the end of its run, and an answer for every message in every status."""

from __future__ import annotations

import json

import pytest

from placet import limits
from placet.activities import CallModel, Stop
from placet.errors import Code, ErrorClass
from placet.instants import Instant
from placet.messages import (
    ExecuteOperation,
    RetryTurn,
    TurnFailed,
    TurnLeaseEnded,
    TurnTaken,
)
from placet.retries import RetryDecision, RetryInputs, decide
from placet.rows import RetryRow
from placet.statuses import RUN_TERMINAL, THREAD_STATUSES, THREAD_TERMINAL
from placet.values import Usage
from placet_planner.machine import CORRECTIONS_MAX, MODEL_RETRIES, ThreadMachine
from tests.builders import a_call
from tests.cases import case
from tests.machines.bench import RUN_ID, T0, TENANT, every, invoked, sent, timers
from tests.machines.builders_thread import (
    BUSY,
    FORBIDDEN,
    LEASE_MS,
    TEN,
    ThreadBench,
    a_reply,
    failure,
    results,
)

# ── retries ─────────────────────────────────────────────────────────────────────────────


def test_a_busy_model_is_asked_again_after_a_delay() -> None:
    bench = ThreadBench().calling()
    failed = bench.give(bench.failed())
    [(retry, due_ms)] = timers(failed)
    assert retry == RetryTurn(tenant=TENANT, run_id=RUN_ID, thread_id="task:a", turn=1, attempt=2)
    assert T0 + 500 <= due_ms <= T0 + 1_000
    assert timers(bench.give(retry)) == [(retry, due_ms)], "not before the back-off is over"
    bench.now_ms = Instant(due_ms)
    again = bench.give(retry)
    [call] = invoked(again, CallModel)
    assert (call.attempt, call.messages) == (2, 1), "nothing was said twice"
    assert bench.give(retry).kind == "absorbed"


def test_the_policy_bounds_the_attempts() -> None:
    bench = ThreadBench().calling()
    for attempt in range(2, MODEL_RETRIES.attempts_max + 1):
        bench.give(bench.failed())
        bench.later(60_000)
        assert [call.attempt for call in invoked(bench.give(bench.retry()), CallModel)] == [attempt]
    last = bench.give(bench.failed())
    assert (failure(last).code, failure(last).details) == (Code.MODEL_FAILED, {"gave_up": "attempts"})


@case("G03")
@pytest.mark.parametrize("error_class", [c for c in ErrorClass if c not in (ErrorClass.TRANSIENT, ErrorClass.TIMEOUT)])
def test_what_cannot_pass_by_itself_fails_the_turn_at_once(error_class: ErrorClass) -> None:
    bench = ThreadBench().calling()
    last = bench.give(bench.failed(FORBIDDEN.model_copy(update={"error_class": error_class})))
    assert failure(last).message == "401"
    assert bench.state.status == "failed"


def test_the_providers_wish_is_respected() -> None:
    bench = ThreadBench().calling()
    [(_, due_ms)] = timers(bench.give(bench.failed(BUSY.model_copy(update={"retry_after_ms": 7_000}))))
    assert due_ms == T0 + 7_000


@case("G10")
def test_the_tokens_of_all_attempts_add_up() -> None:
    bench = ThreadBench().calling()
    for _ in range(2):
        bench.give(bench.failed(usage=TEN))
        bench.later(5_000)
        bench.give(bench.retry())
    [taken] = sent(bench.give(bench.answered()), TurnTaken)
    assert taken.usage.input_tokens + taken.usage.output_tokens == 30
    bench.give(bench.take(2))
    [taken] = sent(bench.give(bench.answered()), TurnTaken)
    assert taken.usage == TEN, "each turn for itself"


@case("G10")
def test_a_failed_turn_tells_what_it_cost() -> None:
    bench = ThreadBench("plan").calling()
    for _ in range(CORRECTIONS_MAX):
        bench.give(bench.answered(a_reply("no plan")))
    [failed] = sent(bench.give(bench.failed(FORBIDDEN, usage=TEN)), TurnFailed)
    assert failed.usage == Usage(input_tokens=21, output_tokens=9)


@case("G14")
def test_the_reply_of_an_attempt_that_was_given_up_is_dropped() -> None:
    bench = ThreadBench().calling()
    bench.later(LEASE_MS)
    bench.give(bench.lease_end())
    before = bench.state
    assert bench.give(bench.answered(attempt=1)).kind == "absorbed"
    assert bench.state is before
    assert sent(bench.give(bench.answered(attempt=2)), TurnTaken)
    waiting = ThreadBench().waiting()
    assert waiting.give(waiting.answered(attempt=1)).kind == "absorbed"


@case("G17")
def test_each_decision_about_a_retry_is_stored_with_its_inputs() -> None:
    bench = ThreadBench().calling()
    bench.later(LEASE_MS)
    bench.give(bench.lease_end())
    for _ in range(MODEL_RETRIES.attempts_max):
        bench.give(bench.failed())
        bench.later(60_000)
        bench.give(bench.retry())
    rows = bench.all_written(RetryRow)
    assert [(row.subject, row.attempt) for row in rows] == [("task:a/1", n) for n in range(1, 6)]
    for row in rows:
        inputs = RetryInputs.model_validate_json(row.inputs_text)
        assert decide(inputs) == RetryDecision.model_validate_json(row.decision_text)
    assert [json.loads(row.decision_text)["action"] for row in rows] == ["retry"] * 4 + ["give_up"]


@case("G19")
def test_a_redelivery_before_the_commit_is_no_attempt() -> None:
    bench = ThreadBench()
    for _ in range(3):
        assert [call.attempt for call in invoked(bench.look(bench.take(1)))] == [1]


# ── lost workers ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wait_ms", [0, LEASE_MS - 1])
def test_a_lease_is_not_over_because_somebody_says_so(wait_ms: int) -> None:
    bench = ThreadBench().calling()
    bench.later(wait_ms)
    assert timers(bench.give(bench.lease_end())) == [(bench.lease_end(), T0 + LEASE_MS)], "it comes again"
    assert bench.state.status == "calling"


def test_a_call_nobody_reports_on_is_made_again_at_once() -> None:
    bench = ThreadBench().calling()
    bench.later(LEASE_MS)
    lost = bench.give(bench.lease_end())
    assert [call.attempt for call in invoked(lost, CallModel)] == [2]
    assert [type(message) for message, _ in timers(lost)] == [TurnLeaseEnded]
    assert bench.give(bench.lease_end(attempt=1)).kind == "absorbed"


def test_a_new_owner_of_the_store_knows_at_once_that_the_old_ones_work_is_lost() -> None:
    bench = ThreadBench()
    bench.incarnation = 1
    bench.calling()
    assert invoked(bench.give(bench.lease_end())) == []
    bench.incarnation = 2
    assert invoked(bench.give(bench.lease_end()), CallModel)
    assert invoked(bench.give(bench.lease_end())) == []


def test_workers_that_are_lost_for_ever_end_in_a_bounded_number_of_calls() -> None:
    bench = ThreadBench().calling()
    for attempt in range(2, limits.ATTEMPTS_MAX + 1):
        bench.later(LEASE_MS)
        assert [call.attempt for call in invoked(bench.give(bench.lease_end()), CallModel)] == [attempt]
    bench.later(LEASE_MS)
    last = bench.give(bench.lease_end())
    assert invoked(last) == []
    assert failure(last).details == {"gave_up": "attempts"}


def test_lost_workers_do_not_count_against_the_policy() -> None:
    bench = ThreadBench().calling()
    for _ in range(MODEL_RETRIES.attempts_max + 1):
        bench.later(LEASE_MS)
        bench.give(bench.lease_end())
    assert sent(bench.give(bench.failed()), RetryTurn)


def test_attempts_of_all_kinds_together_are_bounded() -> None:
    bench = ThreadBench().calling()
    for _ in range(limits.ATTEMPTS_MAX - 1):
        bench.later(LEASE_MS)
        bench.give(bench.lease_end())
    assert bench.state.attempt == limits.ATTEMPTS_MAX
    assert failure(bench.give(bench.failed())).details == {"gave_up": "attempts"}
    plan = ThreadBench("plan").calling()
    for _ in range(limits.ATTEMPTS_MAX - 1):
        plan.later(LEASE_MS)
        plan.give(plan.lease_end())
    assert failure(plan.give(plan.answered(a_reply("no plan")))).code is Code.MODEL_ANSWER_INVALID


# ── the run ends ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", sorted(RUN_TERMINAL))
def test_when_the_run_ends_the_model_call_gets_the_signal_and_its_reply_is_dropped(status: str) -> None:
    bench = ThreadBench().calling()
    bench.run_is(status)
    closed = bench.give(bench.close())
    assert [(stop.machine, stop.key) for stop in invoked(closed, Stop)] == [("thread", "task:a")]
    assert bench.give(bench.answered()).kind == "absorbed"
    assert bench.give(bench.take(2)).kind == "absorbed"
    assert len(bench.conversation()) == 1


@case("G07")
def test_a_cancel_during_the_back_off_makes_no_further_attempt() -> None:
    bench = ThreadBench().waiting()
    bench.run_is("cancelled")
    closed = bench.give(bench.close())
    assert invoked(closed) == []
    bench.later(60_000)
    assert bench.give(bench.retry()).kind == "absorbed"
    assert bench.state.status == "closed"


def test_a_close_that_overtakes_its_turn_keeps_the_turn_from_beginning() -> None:
    bench = ThreadBench()
    bench.run_is("cancelled")
    bench.give(bench.close())
    assert bench.give(bench.take(1)).kind == "absorbed"


@pytest.mark.parametrize("status", ["absent", "idle", "calling", "waiting"])
def test_a_forged_close_of_a_run_that_goes_on_is_harmless(status: str) -> None:
    bench = in_status(status)
    assert bench.give(bench.close()).kind == "absorbed"


# ── the whole table ─────────────────────────────────────────────────────────────────────


def in_status(status: str) -> ThreadBench:
    """A conversation that has come to `status`; the run goes on."""
    bench = ThreadBench()
    match status:
        case "absent":
            return bench
        case "idle":
            return bench.idle()
        case "calling":
            return bench.calling()
        case "waiting":
            bench.waiting().later(60_000)
        case "failed":
            bench.calling()
            bench.give(bench.failed(FORBIDDEN))
        case "closed":
            bench.calling().run_is("cancelled")
            bench.give(bench.close())
        case _:
            raise AssertionError(status)
    return bench


KINDS = ["take", "answered", "failed", "retry", "lease", "stop", "close"]
STAYS = every(KINDS, "absorbed")
TABLE: dict[str, dict[str, str]] = {
    "absent": every(KINDS, "refused") | {"take": "moved", "stop": "moved", "close": "absorbed"},
    "idle": STAYS | {"take": "moved"},
    "calling": STAYS | {"take": "refused", "answered": "moved", "failed": "moved", "lease": "moved", "stop": "moved"},
    "waiting": STAYS | {"take": "refused", "retry": "moved", "stop": "moved"},
    "failed": STAYS | {"take": "moved"},
    "closed": STAYS,
}
"""`take` asks for the next turn; the lease is not over, so that its timer comes again; the run goes on, except in
`closed`."""


def test_the_table_covers_every_status_and_every_message() -> None:
    assert set(TABLE) == THREAD_STATUSES | {"absent"}
    messages = ThreadBench().every_message()
    assert {type(message) for message in messages.values()} == ThreadMachine.messages
    assert set(messages) == set(KINDS)


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status in TABLE for kind in KINDS])
def test_every_message_in_every_status_has_its_answer(status: str, kind: str) -> None:
    bench = in_status(status)
    before = bench.state
    assert bench.give(bench.every_message()[kind]).kind == TABLE[status][kind]
    if status in THREAD_TERMINAL:
        assert bench.state is before, "terminal stays terminal"


@pytest.mark.parametrize("status", sorted(TABLE))
def test_a_word_that_is_not_for_a_thread_is_refused(status: str) -> None:
    refused = in_status(status).give(ExecuteOperation(tenant=TENANT, run_id=RUN_ID, operation_id="op_1"))
    assert refused.failure is not None
    assert refused.failure.code is Code.MESSAGE_UNEXPECTED


def test_the_state_of_a_conversation_does_not_grow_with_it() -> None:
    bench = ThreadBench().calling()
    for turn in range(2, 40):
        bench.give(bench.answered(a_reply("x" * 5_000, a_call(f"c{turn}"))))
        bench.give(bench.take(turn, results(f"c{turn}")))
    assert bench.state.messages == 77
    assert len(bench.state.model_dump_json()) < 500
