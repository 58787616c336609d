"""Plans: acyclic, with ids that can be shown and tasks that somebody can do; all else is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet import limits
from placet.errors import Code, ContractError
from placet.plans import AgentSpec, PlannedTask, TeamSpec, check_plan
from tests.cases import case

TEAM = TeamSpec(name="team", agents=(AgentSpec(name="worker", tools=("record",)),))
PAIR = TeamSpec(name="pair", agents=(AgentSpec(name="ann", tools=("a",)), AgentSpec(name="ben", tools=("b",))))


def record(task_id: str, *depends_on: str, **changes: Any) -> PlannedTask:
    """A task that is one harmless call, as the published failures have them."""
    fields: dict[str, Any] = {
        "id": task_id,
        "title": task_id,
        "depends_on": depends_on,
        "call": {"tool": "record", "input": {"n": task_id}},
    }
    return PlannedTask.model_validate({**fields, **changes})


def agents_task(task_id: str, *depends_on: str, assignee: str | None = None) -> PlannedTask:
    return PlannedTask(id=task_id, title=task_id, depends_on=depends_on, assignee=assignee)


def refusal(*tasks: PlannedTask, team: TeamSpec = TEAM) -> ContractError:
    with pytest.raises(ContractError) as raised:
        check_plan(tasks, team)
    return raised.value


# ── plans that others have seen go wrong ───────────────────────────────────────────────


def test_two_tasks_with_one_id_are_refused() -> None:
    error = refusal(record("a"), record("a"), record("b", "a"))
    assert (error.code, error.pointer) == (Code.PLAN_INVALID, "/tasks/1/id")
    assert error.message == "tasks 0 and 1 have the same id 'a'"


def test_a_cycle_behind_a_valid_start_is_refused_and_named() -> None:
    error = refusal(record("s"), record("a", "s", "c"), record("b", "a"), record("c", "b"))
    assert (error.code, error.pointer) == (Code.PLAN_INVALID, "/tasks/1/depends_on")
    assert error.message == "the plan has a cycle: a → c → b → a"


def test_a_task_that_depends_on_itself_is_refused() -> None:
    error = refusal(record("a", "a"))
    assert (error.code, error.pointer) == (Code.PLAN_INVALID, "/tasks/0/depends_on/0")


def test_a_task_downstream_of_a_cycle_does_not_hide_it() -> None:
    error = refusal(record("z", "b"), record("b", "c"), record("c", "b"))
    assert error.message == "the plan has a cycle: b → c → b"
    assert error.pointer == "/tasks/1/depends_on"


def test_a_long_cycle_is_named_in_part() -> None:
    count = 500
    error = refusal(*(record(f"t{n}", f"t{(n + 1) % count}") for n in range(count)))
    assert error.message.startswith("the plan has a cycle: t0 → t1 → ")
    assert error.message.endswith(" → t0")
    assert "(490 more)" in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize(
    "plan",
    [
        [record("p1"), record("p2"), record("child", "p1", "p2")],
        [record("free"), record("gated"), record("after_both", "free", "gated")],
        [record("child", "p"), record("p")],
        [record("q1"), record("q2"), record("q3")],
    ],
)
def test_a_valid_plan_is_taken_as_it_is(plan: list[PlannedTask]) -> None:
    assert check_plan(plan, TEAM) == tuple(plan)


# ── what a plan is ─────────────────────────────────────────────────────────────────────


def test_a_plan_has_at_least_one_task_and_not_too_many() -> None:
    assert refusal().pointer == "/tasks"
    many = [record(f"t{n}") for n in range(limits.TASKS_MAX + 1)]
    assert refusal(*many).message == f"a plan has at most {limits.TASKS_MAX} tasks, this one {limits.TASKS_MAX + 1}"
    assert len(check_plan(many[:-1], TEAM)) == limits.TASKS_MAX


def test_an_unknown_and_a_doubled_dependency_are_refused_by_name() -> None:
    unknown = refusal(record("a"), record("b", "a", "nobody"))
    assert (unknown.pointer, "'nobody'" in unknown.message) == ("/tasks/1/depends_on/1", True)
    doubled = refusal(record("a"), record("b", "a", "a"))
    assert (doubled.pointer, "twice" in doubled.message) == ("/tasks/1/depends_on/1", True)


@pytest.mark.parametrize("task_id", [" a", "a ", "a\u200b", "a\u202eb", "a\u00a0b", "\ufeffa"])
def test_an_id_in_which_something_could_hide_is_refused(task_id: str) -> None:
    error = refusal(record("ok"), record(task_id))
    assert (error.code, error.pointer) == (Code.PLAN_INVALID, "/tasks/1/id")


def test_a_task_without_an_assignee_goes_to_the_only_agent_there_is() -> None:
    assert check_plan([agents_task("a")], TEAM)[0].assignee == "worker"


@case("E19")
@pytest.mark.parametrize(
    ("assignee", "words"), [(None, "has no assignee"), ("carl", "who is not in team"), ("Ann", "who is not in team")]
)
def test_a_task_nobody_can_be_given_is_refused_and_the_choice_is_shown(assignee: str | None, words: str) -> None:
    error = refusal(agents_task("x", assignee="ann"), agents_task("y", assignee=assignee), team=PAIR)
    assert (error.code, error.pointer) == (Code.INVALID_TASK_REQUIREMENTS, "/tasks/1/assignee")
    assert words in error.message
    assert "ann, ben" in error.message


def test_a_direct_call_needs_no_assignee() -> None:
    assert check_plan([record("a")], PAIR)[0].assignee is None


def test_a_tool_is_called_on_the_authority_of_whoever_may() -> None:
    assert PAIR.agent_with("b", None) == PAIR.agents[1]
    assert PAIR.agent_with("b", "ben") == PAIR.agents[1]
    assert PAIR.agent_with("b", "ann") is None
    assert PAIR.agent_with("c", None) is None
    assert PAIR.agent("ann") == PAIR.agents[0]
    assert PAIR.agent(None) is None


# ── any graph ──────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_a_graph_is_refused_exactly_when_it_has_a_cycle(edges: list[tuple[int, int]]) -> None:
    dependencies: dict[int, set[int]] = {n: set() for n in range(10)}
    for task, dependency in edges:
        dependencies[task].add(dependency)
    tasks = [record(f"t{n}", *(f"t{m}" for m in sorted(of))) for n, of in dependencies.items()]
    done: set[int] = set()
    while ready := {n for n, of in dependencies.items() if of <= done} - done:
        done |= ready
    if len(done) == 10:
        assert check_plan(tasks, TEAM) == tuple(tasks)
    else:
        error = refusal(*tasks)
        assert error.code is Code.PLAN_INVALID
        assert "cycle" in error.message or "itself" in error.message


def test_a_plan_with_hundreds_of_thousands_of_edges_is_taken() -> None:
    count = 700
    tasks = [record(f"t{n}", *(f"t{m}" for m in range(n))) for n in range(count)]
    assert len(check_plan(tasks, TEAM)) == count
