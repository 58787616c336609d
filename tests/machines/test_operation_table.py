"""One side effect: every message in every status has its answer, and an end is an end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet.calls import Executed, NotExecuted, Unsure
from placet.messages import (
    OperationLeaseEnded,
    TakeTurn,
)
from placet.statuses import OPERATION_STATUSES, OPERATION_TERMINAL
from placet_tool_executor.machine import OperationMachine
from tests.machines.bench import (
    RUN_ID,
    TENANT,
    every,
    timers,
)
from tests.machines.builders_operation import (
    DENIED,
    DONE,
    LEASE_MS,
    NOT_DONE,
    QUIESCENCE_MS,
    TRANSIENT,
    UNSURE,
    OperationBench,
)

# ── the whole table ─────────────────────────────────────────────────────────────────────


def in_status(status: str) -> OperationBench:
    """An operation that has come to `status`; the run goes on."""
    match status:
        case "absent":
            return OperationBench()
        case "started":
            return OperationBench().started()
        case "cancelling":
            bench = OperationBench().started()
            bench.run_is("cancelled")
            bench.give(bench.cancel())
            return bench
        case "waiting" | "failed":
            bench = OperationBench().started()
            bench.give(bench.returned(NOT_DONE if status == "waiting" else NotExecuted(failure=DENIED)))
            bench.later(1_000)
            return bench
        case "waiting in doubt":
            bench = OperationBench().started()
            bench.lose_worker()
            return bench
        case "reconciling":
            bench = OperationBench("peeking").reconciling()
            bench.later(QUIESCENCE_MS)
            return bench
        case "probing":
            return OperationBench("peeking").probing()
        case "needs_operator":
            bench = OperationBench("non_retriable").asked_person()
            bench.decide("executed", bench.question)
            return bench
        case "succeeded":
            bench = OperationBench().started()
            bench.give(bench.returned())
            return bench
        case "lapsed":
            bench = OperationBench()
            bench.later(600_000)
            bench.give(bench.execute())
            return bench
        case "refused":
            bench = OperationBench(outcome="rejected")
            bench.give(bench.execute())
            return bench
        case "cancelled":
            bench = OperationBench()
            bench.run_is("cancelled")
            bench.give(bench.execute())
            return bench
        case _:
            raise AssertionError(status)


KINDS = ["execute", "retry", "returned", "probed", "lease", "probe", "cancel", "decided", "freeze"]
STAYS = every(KINDS, "absorbed") | {"freeze": "refused"}
TABLE: dict[str, dict[str, str]] = {
    "absent": every(KINDS, "refused") | {"execute": "moved", "cancel": "absorbed"},
    "lapsed": STAYS,
    "started": STAYS | {"returned": "moved", "lease": "moved"},
    "cancelling": STAYS | {"returned": "moved", "lease": "moved"},
    "waiting": STAYS | {"retry": "moved"},
    "waiting in doubt": STAYS | {"retry": "moved", "returned": "moved"},
    "reconciling": STAYS | {"probe": "moved", "returned": "moved"},
    "probing": STAYS | {"probed": "moved", "returned": "moved"},
    "needs_operator": STAYS | {"returned": "moved", "decided": "moved"},
    **dict.fromkeys(sorted(OPERATION_TERMINAL), STAYS),
}
"""The lease is not over, so that its timer comes again, and the run goes on, except where they are; in
`needs_operator` the person has answered."""
OF_RUN_ENDED = {
    "lapsed",
    "started",
    "waiting",
    "waiting in doubt",
    "reconciling",
    "probing",
    "needs_operator",
    "absent",
}
"""What a cancel moves once the run has ended."""


def test_the_table_covers_every_status_and_every_message() -> None:
    named = {"absent", "cancelling", "waiting in doubt", "probing"}
    assert set(TABLE) - named == OPERATION_STATUSES
    messages = OperationBench().every_message()
    assert {type(message) for message in messages.values()} == OperationMachine.messages
    assert set(messages) == set(KINDS)


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status in TABLE for kind in KINDS])
def test_every_message_in_every_status_has_its_answer(status: str, kind: str) -> None:
    bench = in_status(status)
    before = bench.state
    assert bench.give(bench.every_message()[kind]).kind == TABLE[status][kind]
    if status in OPERATION_TERMINAL:
        assert bench.state is before, "terminal stays terminal"


@pytest.mark.parametrize("status", sorted(TABLE))
def test_once_the_run_has_ended_a_cancel_ends_what_is_not_ended(status: str) -> None:
    bench = in_status(status)
    bench.run_is("cancelled")
    assert bench.give(bench.cancel()).kind == ("moved" if status in OF_RUN_ENDED else "absorbed")


@pytest.mark.parametrize("status", sorted(TABLE))
@pytest.mark.parametrize("outcome", [DONE, NOT_DONE, UNSURE, Executed(failure=TRANSIENT), NotExecuted(), Unsure()])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_no_result_of_any_attempt_raises_in_any_status(status: str, outcome: Any, shift: int) -> None:
    bench = in_status(status)
    attempt = bench.n + shift or 7
    for message in (
        bench.returned(outcome, attempt=attempt),
        bench.probed(outcome, attempt=attempt),
        bench.probed(outcome, probe=bench.probe + 1),
        bench.lease_end(attempt=attempt),
        bench.lease_end(probe=bench.probe),
        bench.retry(attempt=attempt),
        bench.probe_due(attempt=attempt),
    ):
        bench.look(message)
        bench.later(LEASE_MS)
        bench.look(message)


@pytest.mark.parametrize("status", sorted(TABLE))
def test_a_word_that_is_not_for_an_operation_is_refused(status: str) -> None:
    stray = TakeTurn(
        tenant=TENANT, run_id=RUN_ID, thread_id="plan", turn=1, purpose="plan", team="t", agent="a", append=()
    )
    assert in_status(status).give(stray).kind == "refused"


def test_the_leases_end_is_the_last_word_of_a_start() -> None:
    bench = OperationBench()
    assert isinstance(timers(bench.give(bench.execute()))[0][0], OperationLeaseEnded)
    bench.give(bench.returned())
    bench.later(LEASE_MS)
    assert bench.give(bench.lease_end()).kind == "absorbed"


def test_the_state_of_an_operation_is_small_whatever_its_input() -> None:
    text = json.dumps({"text": "x" * 50_000}, separators=(",", ":"))
    bench = OperationBench(authority="policy", row={"raw_input_text": text, "input_text": text}).started()
    assert len(bench.state.model_dump_json()) < 700
