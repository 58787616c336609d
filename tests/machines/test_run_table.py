"""The transition table of a run: every message in every situation moves, is absorbed or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from placet.errors import Code, Failure
from placet.gates import Asked, Boundary, OutsideAnswer
from placet.instants import Instant
from placet.messages import (
    OPERATION,
    RUN,
    ApprovalDecided,
    ApprovalExpiring,
    CancelRun,
    ContinueRun,
    ForkRun,
    GateAnswered,
    GateLeaseEnded,
    InterruptRun,
    Message,
    OperationDone,
    OperationDoubtful,
    PatchPlan,
    PlanProposed,
    RunTimedOut,
    SubmitRun,
    TakeTurn,
    TurnFailed,
    TurnTaken,
)
from placet.rows import RequestRow
from placet.statuses import RUN_ACTIVE, RUN_STATUSES, RUN_TERMINAL
from placet_dispatcher.machine import RunMachine
from tests.builders import (
    ALICE,
    T0,
    FakeApplication,
    a_call,
    a_state_row,
    a_submission,
    a_task,
    a_team,
    broken,
    deny,
    suspend,
)
from tests.machines.run_play import HERE, Play, an_outcome, usage

PRODUCTION = '{"env":"production"}'
BROKE = Failure(code=Code.MODEL_FAILED, message="gone")
TASKS = (a_task("a"), a_task("b", "a"))
SUBMISSION = a_submission(*TASKS, timeout_ms=1_000)


def an_app(**team: Any) -> FakeApplication:
    app = FakeApplication(teams={"team": a_team(**team)})
    app.gates[Boundary.TOOL_CALL] = lambda call: suspend() if call.input["env"] == "production" else None
    return app


def working(**team: Any) -> Play:
    play = Play(an_app(**team))
    play.tell(SUBMISSION)
    return play


def planning() -> Play:
    return Play(an_app()).submit(timeout_ms=1_000)


def deciding() -> Play:
    play = planning()
    play.app.gates[Boundary.PLAN] = lambda plan: suspend()
    return play.plan(*TASKS)


def in_a_tool() -> Play:
    return working().call("a", a_call())


def before_a_gate_outside() -> Play:
    play = working()
    gate = Asked(name="fraud", timeout_ms=500)
    play.app.gates[Boundary.TOOL_CALL] = lambda call: None if call.outside else suspend(outside=(gate,))
    return play.call("a", a_call())


def before_a_person() -> Play:
    return working().call("a", a_call(input_text=PRODUCTION))


def in_doubt() -> Play:
    play = in_a_tool()
    return play.doubt(play.executed()[0].operation_id)


def draining() -> Play:
    play = Play(an_app())
    play.app.gates[Boundary.DISPATCH] = lambda subject: deny() if subject.task.id == "x" else None
    return play.submit(*TASKS, a_task("x", priority=-1), timeout_ms=1_000)


def answering() -> Play:
    return planning().plan(*TASKS).say("a").say("b")


def cancelled() -> Play:
    play = working()
    play.cancel()
    return play


def timed_out() -> Play:
    play = working()
    play.now_ms = Instant(T0 + 1_000)
    play.tell(RunTimedOut(**HERE))
    return play


def not_approved(outcome: str) -> Callable[[], Play]:
    def made() -> Play:
        play = deciding()
        return play.decide(play.pending()[0], outcome)

    return made


def failed() -> Play:
    play = planning()
    play.app.gates[Boundary.PLAN] = lambda plan: broken()
    return play.plan(*TASKS)


def interrupted() -> Play:
    play = working()
    play.tell(InterruptRun(**HERE, interrupt_id="int-1", by=ALICE))
    return play.fail("a", Failure(code=Code.TURN_INTERRUPTED, message="interrupted"))


SITUATIONS: dict[str, tuple[str, Callable[[], Play]]] = {
    "planning": ("planning", planning),
    "deciding": ("suspended", deciding),
    "working": ("running", working),
    "in a tool": ("running", in_a_tool),
    "before a gate outside": ("running", before_a_gate_outside),
    "before a person": ("suspended", before_a_person),
    "in doubt": ("suspended", in_doubt),
    "draining": ("running", draining),
    "answering": ("running", answering),
    "interrupted": ("suspended", interrupted),
}
ENDS: dict[str, Callable[[], Play]] = {
    "succeeded": lambda: working().say("a").say("b"),
    "failed": failed,
    "rejected": not_approved("rejected"),
    "cancelled": cancelled,
    "expired": not_approved("expired"),
    "timed_out": timed_out,
    "budget_exhausted": lambda: working(tokens_max=10).say("a", usage=usage(11)),
}

MOVES: dict[str, set[str]] = {
    "planning": {"PlanProposed", "TurnFailed plan", "CancelRun", "InterruptRun", "RunTimedOut"},
    "deciding": {"ApprovalDecided", "ApprovalExpiring", "CancelRun", "InterruptRun", "RunTimedOut"},
    "working": {
        "TurnTaken",
        "TurnTaken with calls",
        "TurnFailed",
        "PatchPlan",
        "CancelRun",
        "InterruptRun",
        "RunTimedOut",
    },
    "in a tool": {"OperationDone", "OperationDoubtful", "PatchPlan", "CancelRun", "InterruptRun", "RunTimedOut"},
    "before a gate outside": {
        "GateAnswered",
        "GateLeaseEnded",
        "PatchPlan",
        "CancelRun",
        "InterruptRun",
        "RunTimedOut",
    },
    "before a person": {
        "ApprovalDecided",
        "ApprovalExpiring",
        "OperationDone",
        "PatchPlan",
        "CancelRun",
        "InterruptRun",
        "RunTimedOut",
    },
    "in doubt": {"OperationDone", "PatchPlan", "CancelRun", "InterruptRun", "RunTimedOut"},
    "draining": {"TurnTaken", "TurnTaken with calls", "TurnFailed", "CancelRun", "InterruptRun", "RunTimedOut"},
    "answering": {"TurnTaken answer", "CancelRun", "InterruptRun", "RunTimedOut"},
    "interrupted": {"ContinueRun", "PatchPlan", "CancelRun", "InterruptRun", "RunTimedOut"},
}
"""What moves a run, in each situation. A further instruction is refused aloud while a turn is in work, a change of
the plan where none is under way. Everything else
that a run takes is absorbed, and another's message refused."""


def messages_for(play: Play) -> dict[str, Message]:
    """One message of every kind, aimed as well as it can be at what the run waits for; and the rows to go with it."""
    operations = [call.operation_id for task in play.run.tasks for call in task.calls if call.operation_id]
    operation_id = operations[0] if operations else "op_unknown"
    request_id = play.requests()[0].request_id if play.requests() else "apr_unknown"
    for asked in play.requests():
        for row in (RequestRow(**HERE, request=asked.request), an_outcome(asked.request)):
            play.rows.setdefault(row.fact_key(), row)
    told: dict[str, Any] = {"asker_machine": RUN, "asker_key": "", "outcome": "approved"}
    return {
        "PlanProposed": PlanProposed(**HERE, thread_id="plan", turn=1, tasks=TASKS),
        "TurnTaken": TurnTaken(**HERE, thread_id="task:a", turn=1, text="done"),
        "TurnTaken with calls": TurnTaken(**HERE, thread_id="task:a", turn=1, calls=(a_call(),)),
        "TurnTaken answer": TurnTaken(**HERE, thread_id="answer", turn=1, text="done"),
        "TurnFailed": TurnFailed(**HERE, thread_id="task:a", turn=1, failure=BROKE),
        "TurnFailed plan": TurnFailed(**HERE, thread_id="plan", turn=1, failure=BROKE),
        "OperationDone": OperationDone(**HERE, operation_id=operation_id, status="succeeded"),
        "OperationDoubtful": OperationDoubtful(**HERE, operation_id=operation_id, request_id="apr_doubt"),
        "ApprovalDecided": ApprovalDecided(**HERE, request_id=request_id, **told),
        "ApprovalExpiring": ApprovalExpiring(**HERE, request_id=request_id, expires_at_ms=T0 + 9_000),
        "CancelRun": CancelRun(**HERE, by=ALICE),
        "ContinueRun": ContinueRun(**HERE, instruction_id="i-1", text="go on", by=ALICE),
        "InterruptRun": InterruptRun(**HERE, interrupt_id="int-2", by=ALICE),
        "PatchPlan": PatchPlan(**HERE, patch_id="p-1", by=ALICE, add=(a_task("z"),)),
        "GateAnswered": GateAnswered(
            **HERE, operation_id=operation_id, gate="fraud", answer=OutsideAnswer(verdict="allow")
        ),
        "GateLeaseEnded": GateLeaseEnded(**HERE, operation_id=operation_id),
        "RunTimedOut": RunTimedOut(**HERE),
    }


def tell_each(make: Callable[[], Play]) -> dict[str, str]:
    """What each kind of message does, each told to a fresh run."""
    kinds: dict[str, str] = {}
    for name in messages_for(make()):
        play = make()
        message = messages_for(play)[name]
        if isinstance(message, OperationDone | OperationDoubtful):
            status = "succeeded" if isinstance(message, OperationDone) else "needs_operator"
            row = a_state_row(OPERATION, message.operation_id, status)
            play.rows[row.fact_key()] = row
        play.now_ms = Instant(T0 + 2_000)
        kinds[name] = play.tell(message).kind
        if play.last is not None and play.last.state is not None:
            assert play.last.state.status in RUN_STATUSES
    return kinds


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_message_in_every_situation_has_its_answer(situation: str) -> None:
    status, make = SITUATIONS[situation]
    assert make().status == status
    kinds = tell_each(make)
    assert {name for name, kind in kinds.items() if kind == "moved"} == MOVES[situation]
    assert {name for name, kind in kinds.items() if kind == "refused"} <= {"ContinueRun", "PatchPlan"}


@pytest.mark.parametrize("status", ENDS)
def test_nothing_leads_out_of_an_end_but_an_instruction_out_of_some(status: str) -> None:
    play = ENDS[status]()
    assert play.status == status
    kinds = tell_each(ENDS[status])
    assert kinds.pop("InterruptRun") == "moved", "its id is kept"
    assert kinds.pop("ContinueRun") == ("moved" if status in ("succeeded", "failed") else "refused")
    assert kinds.pop("PatchPlan") == "refused"
    assert set(kinds.values()) == {"absorbed"}


def test_the_table_knows_every_status_and_every_message() -> None:
    assert {status for status, _ in SITUATIONS.values()} == RUN_ACTIVE
    assert set(ENDS) == RUN_TERMINAL
    told = {type(message) for message in messages_for(working()).values()}
    assert told | {SubmitRun, ForkRun} == RunMachine.messages


@pytest.mark.parametrize("make", [make for _, make in SITUATIONS.values()] + list(ENDS.values()))
def test_the_same_submission_is_absorbed_another_is_refused_and_a_foreign_message_too(
    make: Callable[[], Play],
) -> None:
    play = make()
    assert play.tell(a_submission(a_task("other"))).kind == "refused"
    fork = play.tell(ForkRun(**HERE, forked_from="another", at=1, initiator=ALICE))
    assert fork.failure is not None
    assert (fork.kind, fork.failure.code) == ("refused", Code.RUN_EXISTS)
    turn = TakeTurn(**HERE, thread_id="plan", turn=1, purpose="plan", team="team", agent="worker", append=())
    refused = play.tell(turn)
    assert refused.failure is not None
    assert (refused.kind, refused.failure.code) == ("refused", Code.MESSAGE_UNEXPECTED)


def test_a_run_that_does_not_exist_takes_a_submission_and_nothing_else() -> None:
    for message in messages_for(working()).values():
        transition = Play().tell(message)
        assert transition.failure is not None
        assert (transition.kind, transition.failure.code) == ("refused", Code.RUN_NOT_FOUND)
    assert Play().tell(SUBMISSION).kind == "moved"
