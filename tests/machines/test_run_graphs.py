"""Whatever the plan, each task starts once, after all it depends on; and a large plan costs in proportion."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from placet import limits
from placet.calls import EffectClass
from placet.errors import Code, Failure
from placet.facts import Facts
from placet.gates import Boundary, Judgement
from placet.messages import OPERATION, CancelRun, ExecuteOperation, OperationDone, TakeTurn, TurnFailed, TurnTaken
from placet.plans import PlannedTask
from placet.rows import AuditLeafRow, OutcomeRow
from placet.statuses import RUN_TERMINAL
from placet_dispatcher.machine import RunMachine
from tests.builders import (
    ALICE,
    T0,
    FakeApplication,
    a_call,
    a_direct_task,
    a_state_row,
    a_submission,
    a_task,
    a_team,
    a_tool,
    allow,
    deny,
    recorded,
    sent,
    suspend,
)
from tests.machines.run_play import HERE, Play


@st.composite
def plans(draw: st.DrawFn, *, most: int = 12) -> list[PlannedTask]:
    """Tasks in any order, each depending on any of those before it in a hidden order: any acyclic graph."""
    count = draw(st.integers(1, most))
    tasks = []
    for n in range(count):
        depends_on = [f"t{m}" for m in range(n) if draw(st.booleans())]
        make = a_direct_task if draw(st.integers(0, 3)) == 0 else a_task
        tasks.append(make(f"t{n}", *depends_on).model_copy(update={"priority": draw(st.integers(0, 2))}))
    return draw(st.permutations(tasks))


def in_flight(play: Play) -> list[tuple[str, Any]]:
    """What could report next: turns with a model, operations under way, questions before people."""
    threads = [("turn", task.id) for task in play.run.tasks if task.thinking]
    calls = [call for task in play.run.tasks for call in task.calls if call.status == "running"]
    return [
        *threads,
        *(("operation", call.operation_id) for call in calls),
        *(("question", request_id) for request_id in play.pending()),
    ]


def started(play: Play) -> list[str]:
    """Ids of the tasks that began, in order."""
    leaves = sorted((row for row in play.rows.values() if isinstance(row, AuditLeafRow)), key=lambda row: row.seq)
    return [leaf.subject for leaf in leaves if leaf.kind == "task.started"]


@given(plans(), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_every_plan_that_all_gates_allow_succeeds_and_each_task_starts_once_after_its_dependencies(
    tasks: list[PlannedTask], round_gate: bool, random: Random
) -> None:
    app = FakeApplication(
        teams={"team": a_team(round_gate=round_gate)},
        gates={boundary: lambda subject: allow() for boundary in Boundary},
    )
    play = Play(app).submit(*tasks)
    while play.status not in RUN_TERMINAL:
        kind, key = random.choice(in_flight(play))
        before = play.statuses()
        if kind == "turn":
            play.say(key, f"output of {key}")
        else:
            play.done(key)
        for task in play.run.tasks:
            if task.status == "running" and before[task.id] == "pending":
                assert all(play.task(dependency).status == "succeeded" for dependency in task.depends_on)
    assert play.status == "succeeded"
    assert set(play.statuses().values()) == {"succeeded"}
    assert sorted(started(play)) == sorted(task.id for task in tasks)


VERDICTS: list[Judgement | None] = [None, allow(), deny("no"), suspend("ask")]


@given(plans(most=6), st.booleans(), st.data())
@settings(max_examples=200)
def test_whatever_gates_people_and_models_do_a_run_ends_or_waits_for_something_and_keeps_its_books(
    tasks: list[PlannedTask], round_gate: bool, data: st.DataObject
) -> None:
    verdicts = {boundary: data.draw(st.sampled_from(VERDICTS)) for boundary in Boundary}
    app = FakeApplication(
        teams={"team": a_team(round_gate=round_gate)},
        tools={name: a_tool(name, effect=EffectClass.RECONCILABLE) for name in ("deploy", "search")},
        gates={boundary: lambda subject, v=verdict: v for boundary, verdict in verdicts.items()},  # type: ignore[misc]
    )
    play = Play(app).submit(*tasks)
    for _ in range(60):
        if play.status in RUN_TERMINAL:
            break
        waiting = in_flight(play)
        assert waiting, f"a run that is {play.status} waits for nothing"
        assert (play.status == "suspended") == all(kind == "question" for kind, _ in waiting)
        kind, key = data.draw(st.sampled_from(waiting))
        if kind == "turn":
            _let_model_speak(play, key, data)
        elif kind == "operation":
            play.done(key, data.draw(st.sampled_from(["succeeded", "failed", "refused"])))
        else:
            play.decide(key, data.draw(st.sampled_from(["approved", "rejected", "expired"])))
    if play.status not in RUN_TERMINAL:
        play.cancel()
    _check_books(play)


def _let_model_speak(play: Play, task_id: str, data: st.DataObject) -> None:
    what = data.draw(st.sampled_from(["words", "calls", "failure"]))
    if what == "words" or play.task(task_id).turn > 3:
        play.say(task_id)
    elif what == "calls":
        names = data.draw(st.lists(st.sampled_from(["x", "y", "", "x y"]), min_size=1, max_size=4))
        play.call(task_id, *(a_call(name) for name in names))
    else:
        play.fail(task_id, Failure(code=Code.MODEL_FAILED, message="gone"))


def _check_books(play: Play) -> None:
    run = play.run
    assert run.status in RUN_TERMINAL
    assert (run.active, run.ready, run.cleared, run.requests, run.ending) == ((), (), (), (), None)
    assert not {"pending", "running"} & set(play.statuses().values())
    for task in run.tasks:
        if task.status == "succeeded":
            assert all(play.task(dependency).status == "succeeded" for dependency in task.depends_on)
    assert len(set(started(play))) == len(started(play))
    executed = [execute.operation_id for execute in play.executed()]
    assert len(set(executed)) == len(executed)
    outcomes = (row for row in play.rows.values() if isinstance(row, OutcomeRow))
    approved = {row.request_id for row in outcomes if row.outcome == "approved"}
    for execute in play.executed():
        assert execute.request_id is None or execute.request_id in approved
    ended = play.run
    play.cancel()
    assert play.run == ended


# ── cost ───────────────────────────────────────────────────────────────────────────────


def test_a_plan_of_a_thousand_tasks_takes_as_many_steps_as_it_has_tasks() -> None:
    """Counts what a step asks and sends, not seconds: a busy machine must not fail this."""
    count = limits.TASKS_MAX
    app = FakeApplication()
    machine = RunMachine()
    tasks = [a_task(f"t{n}", *([f"t{(n - 1) // 2}"] if n else [])) for n in range(count)]
    transition = machine.transition(None, a_submission(*tasks), Facts({}, app), T0)
    turns, leaves, steps = sent(transition, TakeTurn), len(recorded(transition)), 1
    state = transition.state
    asked = len(app.asked)
    while turns:
        turn = turns.pop(0)
        facts = Facts({}, app)
        said = TurnTaken(**HERE, thread_id=turn.thread_id, turn=1, text="x")
        transition = machine.transition(state, said, facts, T0)
        assert transition.kind == "moved"
        state, steps = transition.state, steps + 1
        assert len(facts.answers) <= 3, "a step asks about what it starts, not about the whole plan"
        turns += sent(transition, TakeTurn)
        leaves += len(recorded(transition))
    assert state is not None
    assert (state.status, steps) == ("succeeded", count + 1)
    assert leaves == 2 * count + 2
    assert len(app.asked) - asked == count - 1


def test_skipping_a_thousand_tasks_is_one_step() -> None:
    tasks = [a_task(f"t{n}", *(f"t{m}" for m in range(max(0, n - 3), n))) for n in range(limits.TASKS_MAX)]
    play = Play().submit(*tasks)
    play.tell(TurnFailed(**HERE, thread_id="task:t0", turn=1, failure=Failure(code=Code.MODEL_FAILED, message="x")))
    assert (play.status, len(play.run.tasks)) == ("failed", limits.TASKS_MAX)
    assert sum(task.status == "skipped" for task in play.run.tasks) == limits.TASKS_MAX - 1


def test_a_broad_plan_of_direct_calls_ends_with_every_call_made_once() -> None:
    machine, app = RunMachine(), FakeApplication()
    tasks = [a_direct_task(f"t{n}", n=n) for n in range(300)]
    transition = machine.transition(None, a_submission(*tasks), Facts({}, app), T0)
    waiting, made = sent(transition, ExecuteOperation), 0
    state = transition.state
    while waiting:
        operation_id = waiting.pop(0).operation_id
        row = a_state_row(OPERATION, operation_id, "succeeded")
        done = OperationDone(**HERE, operation_id=operation_id, status="succeeded", result_text="1")
        transition = machine.transition(state, done, Facts({row.fact_key(): row}, app), T0)
        state, made = transition.state, made + 1
        waiting += sent(transition, ExecuteOperation)
    assert state is not None
    assert (state.status, made) == ("succeeded", 300)
    assert machine.transition(state, CancelRun(**HERE, by=ALICE), Facts({}, app), T0).kind == "absorbed"
