"""Proves that a call begins only in the pool that its tool names, whatever a message says about it."""

from __future__ import annotations

from typing import Any

import pytest

from placet.activities import ProbeTool, RunTool
from placet.calls import EffectClass
from placet.instants import later
from placet.machine import Send
from placet.messages import (
    ApprovalDecided,
    ExecuteOperation,
    Message,
    OperationMessage,
    ProbeOperation,
    RequestApproval,
    RetryOperation,
)
from placet.topology import queue_of
from placet_tool_executor.machine import OperationMachine
from placet_tool_executor.pools import CORRECTED_MS
from placet_tool_executor.state import OperationState
from tests.machines.bench import invoked, sent, timers
from tests.machines.builders_approval import ApprovalBench
from tests.machines.builders_operation import NOT_DONE, QUIESCENCE_MS, UNSURE, OperationBench


class Pooled(OperationBench):
    """An operation of a tool in the pool `home`, as an executor of the pool `served` has it."""

    def __init__(
        self, effect: str = "idempotent", *, home: str = "gpu", served: str | None = "gpu", **terms: Any
    ) -> None:
        super().__init__(effect, pool=home, **terms)
        self.serve(served)

    def serve(self, pool: str | None) -> None:
        self.machine = OperationMachine(pool)


def at(bench: Pooled, message: Message, pool: str | None) -> Any:
    """What an executor of that pool does with it; nothing is applied."""
    bench.serve(pool)
    return bench.look(message)


def ready_to_begin(kind: str) -> tuple[Pooled, OperationMessage]:
    """An operation that is about to start a call, and the message that does it, rightly addressed."""
    bench = Pooled("peeking")
    if kind == "execute":
        return bench, bench.execute(pool="gpu")
    bench.started()
    if kind == "retry":
        bench.give(bench.returned(NOT_DONE))
        bench.later(1_000)
        return bench, bench.retry(pool="gpu")
    bench.lose_worker()
    bench.later(QUIESCENCE_MS)
    return bench, bench.probe_due().model_copy(update={"pool": "gpu"})


@pytest.mark.parametrize("served", ["", "cpu"])
@pytest.mark.parametrize("kind", ["execute", "retry", "probe"])
def test_what_would_begin_a_call_in_another_pool_is_passed_on_and_nothing_begins(kind: str, served: str) -> None:
    bench, message = ready_to_begin(kind)
    passed = at(bench, message, served)
    assert passed.kind == "passed"
    assert passed.effects == (Send(message),), "at once, since it says itself where it belongs"
    assert invoked(at(bench, message, "gpu"), ProbeTool if kind == "probe" else RunTool)


@pytest.mark.parametrize("claimed", ["", "cpu"])
@pytest.mark.parametrize("kind", ["execute", "retry", "probe"])
def test_a_message_that_names_another_pool_is_believed_nowhere_and_corrected(kind: str, claimed: str) -> None:
    bench, message = ready_to_begin(kind)
    forged = message.model_copy(update={"pool": claimed})
    passed = at(bench, forged, claimed)
    assert passed.kind == "passed"
    assert passed.effects == (Send(message, later(bench.now_ms, CORRECTED_MS)),), (
        "two versions must not play ball with it"
    )
    assert invoked(at(bench, forged, "gpu")), "it is the tool that says where it runs"


@pytest.mark.parametrize("kind", ["execute", "retry", "probe"])
def test_one_process_for_everything_serves_all_pools(kind: str) -> None:
    bench, message = ready_to_begin(kind)
    assert invoked(at(bench, message, None))


def test_a_tool_that_names_no_pool_runs_in_the_common_one_only() -> None:
    bench = Pooled(home="", served="")
    assert at(bench, bench.execute(), "gpu").kind == "passed"
    assert invoked(at(bench, bench.execute(), ""), RunTool)


def test_what_must_not_start_is_said_by_whoever_gets_it() -> None:
    bench = Pooled(outcome="rejected", served="")
    refused = bench.give(bench.execute())
    assert refused.kind == "moved"
    assert bench.state.status == "refused"


def test_everything_that_an_operation_sends_itself_and_asks_comes_back_to_its_pool() -> None:
    seen: list[Message] = []
    for effect in ("idempotent", "sealing", "peeking", "non_retriable"):
        bench = Pooled(effect)
        seen += sent(bench.give(bench.execute(pool="gpu")))
        seen += sent(bench.give(bench.returned(UNSURE)))
        bench.later(QUIESCENCE_MS * 10)
        if bench.state.status == "reconciling":
            seen += sent(bench.give(bench.probe_due()))
            seen += sent(bench.give(bench.probed(UNSURE)))
    own = [message for message in seen if isinstance(message, OperationMessage)]
    assert {type(message) for message in own} >= {RetryOperation, ProbeOperation}
    assert {queue_of(message) for message in own} == {"tool-executor.gpu"}
    questions = [message for message in seen if isinstance(message, RequestApproval)]
    assert [question.asker_pool for question in questions] == ["gpu"]


def test_the_answer_of_a_person_goes_to_the_pool_that_asked() -> None:
    bench = Pooled("non_retriable").asked_person()
    [question] = [sent.message for sent in bench.sent if isinstance(sent.message, RequestApproval)]
    approval = ApprovalBench(bench.question, opened=False)
    approval.give(question)
    answer = approval.give(approval.decision("executed"))
    assert [queue_of(told) for told in sent(answer, ApprovalDecided)] == ["tool-executor.gpu"]


def test_a_call_says_where_its_result_is_for() -> None:
    bench = Pooled("peeking")
    [run] = invoked(bench.give(bench.execute()), RunTool)
    bench.lose_worker()
    bench.later(QUIESCENCE_MS)
    [probe] = invoked(bench.give(bench.probe_due()), ProbeTool)
    assert (run.pool, probe.pool) == ("gpu", "gpu")


def test_a_timer_that_came_too_early_is_sent_again_to_where_the_operation_is() -> None:
    bench = Pooled().started()
    early = bench.lease_end().model_copy(update={"pool": "nowhere"})
    [(again, _)] = timers(bench.give(early))
    assert again.pool == "gpu"
    bench.give(bench.returned(NOT_DONE))
    [(again, _)] = timers(bench.give(bench.retry(pool="nowhere")))
    assert again.pool == "gpu"


def test_a_lease_and_a_cancel_are_settled_by_whoever_gets_them() -> None:
    bench = Pooled("non_retriable").started()
    bench.serve("")
    bench.lose_worker()
    assert bench.state.status == "needs_operator"
    bench = Pooled().started()
    bench.serve("")
    bench.run_is("cancelled")
    assert bench.give(bench.cancel()).kind == "moved"


def test_a_tool_that_has_moved_is_started_again_where_it_is_now() -> None:
    bench = Pooled(home="gpu").started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    bench.app.tools["deploy"] = bench.spec.model_copy(update={"pool": "cpu"})
    assert at(bench, bench.retry(pool="gpu"), "gpu").kind == "passed"
    bench.serve("cpu")
    bench.give(bench.retry(pool="cpu"))
    assert (bench.state.n, bench.state.pool) == (2, "cpu")


def test_what_was_written_before_there_were_pools_is_of_the_common_one() -> None:
    old_state = {"tenant": "acme", "run_id": "run-1", "status": "waiting", "operation_id": "op_1"}
    assert OperationState.model_validate({**old_state, "effect": EffectClass.READ_ONLY}).pool == ""
    old_message = {"type": "operation.execute", "tenant": "acme", "run_id": "run-1", "operation_id": "op_1"}
    assert queue_of(ExecuteOperation.model_validate(old_message)) == "tool-executor"
