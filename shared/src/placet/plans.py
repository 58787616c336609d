"""Decides what a valid plan is: tasks as an acyclic graph, each with a capable assignee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placet import limits
from placet.errors import Code, ContractError
from placet.values import Name, Text, Value


class DirectCall(Value):
    """A task that is one given tool call, without an agent in between."""

    tool: Name
    input: dict[str, Any] = {}


class PlannedTask(Value):
    """A node of the task graph, as planned. Higher priority starts first."""

    id: Name
    title: Name
    description: Text = ""
    assignee: Name | None = None
    depends_on: tuple[Name, ...] = ()
    priority: int = 0
    call: DirectCall | None = None


class Plan(Value):
    """An ordered set of tasks: what a planner proposes, what `plan_only` returns, what a frozen plan runs."""

    version: int = 1
    tasks: tuple[PlannedTask, ...]


class AgentSpec(Value):
    """What the rules need to know of an agent."""

    name: Name
    tools: tuple[Name, ...] = ()


class TeamSpec(Value):
    """Who may be given work, and how long and how much it may take."""

    name: Name
    agents: tuple[AgentSpec, ...]
    planner: Name | None = None
    """The agent whose model plans and sums up; by default the first."""
    round_gate: bool = False
    tokens_max: int | None = None

    def agent(self, name: str | None) -> AgentSpec | None:
        """The agent of that name, if it belongs to the team."""
        return next((agent for agent in self.agents if agent.name == name), None)


def check_plan(tasks: Sequence[PlannedTask], team: TeamSpec) -> tuple[PlannedTask, ...]:
    """The tasks with assignees filled in where only one is possible; linear in tasks and edges.

    Raises ContractError: PLAN_INVALID (no tasks, too many, duplicate id, unknown dependency, self edge, cycle — the
    cycle is named), INVALID_TASK_REQUIREMENTS (unknown or missing assignee). `pointer` names the task.
    """
    if not tasks:
        raise ContractError(Code.PLAN_INVALID, "a plan needs at least one task", pointer="/tasks")
    if len(tasks) > limits.TASKS_MAX:
        raise ContractError(Code.PLAN_INVALID, f"a plan has at most {limits.TASKS_MAX} tasks, this one {len(tasks)}", pointer="/tasks")
    index: dict[str, int] = {}
    for at, task in enumerate(tasks):
        if task.id in index:
            raise ContractError(
                Code.PLAN_INVALID, f"tasks {index[task.id]} and {at} have the same id {task.id!r}", pointer=f"/tasks/{at}/id"
            )
        index[task.id] = at
    for at, task in enumerate(tasks):
        for to, dependency in enumerate(task.depends_on):
            if dependency == task.id:
                raise ContractError(
                    Code.PLAN_INVALID, f"task {task.id!r} depends on itself", pointer=f"/tasks/{at}/depends_on/{to}"
                )
            if dependency not in index:
                raise ContractError(
                    Code.PLAN_INVALID,
                    f"task {task.id!r} depends on {dependency!r}, which is not in the plan",
                    pointer=f"/tasks/{at}/depends_on/{to}",
                )
            if dependency in task.depends_on[:to]:
                raise ContractError(
                    Code.PLAN_INVALID,
                    f"task {task.id!r} names the dependency {dependency!r} twice",
                    pointer=f"/tasks/{at}/depends_on/{to}",
                )
    _refuse_cycles(tasks, index)
    return tuple(_with_assignee(at, task, team) for at, task in enumerate(tasks))


def _refuse_cycles(tasks: Sequence[PlannedTask], index: Mapping[str, int]) -> None:
    waiting = {task.id: len(task.depends_on) for task in tasks}
    dependents: dict[str, list[str]] = {task.id: [] for task in tasks}
    for task in tasks:
        for dependency in task.depends_on:
            dependents[dependency].append(task.id)
    free = [task_id for task_id, count in waiting.items() if count == 0]
    for task_id in free:  # grows while it is walked: a queue
        for dependent in dependents[task_id]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                free.append(dependent)
    if len(free) == len(tasks):
        return
    stuck = {task_id for task_id, count in waiting.items() if count > 0}
    at = next(task.id for task in tasks if task.id in stuck)
    path: list[str] = []
    while at not in path:
        path.append(at)
        at = next(dependency for dependency in tasks[index[at]].depends_on if dependency in stuck)
    cycle = [*path[path.index(at) :], at]
    raise ContractError(
        Code.PLAN_INVALID, f"the plan has a cycle: {' → '.join(cycle)}", pointer=f"/tasks/{index[cycle[0]]}/depends_on"
    )


def _with_assignee(at: int, task: PlannedTask, team: TeamSpec) -> PlannedTask:
    if task.call is not None and task.assignee is None:
        return task
    if task.assignee is None:
        if len(team.agents) == 1:
            return task.model_copy(update={"assignee": team.agents[0].name})
        raise ContractError(
            Code.INVALID_TASK_REQUIREMENTS,
            f"task {task.id!r} has no assignee and team {team.name!r} has several agents: name one of "
            + ", ".join(agent.name for agent in team.agents),
            pointer=f"/tasks/{at}/assignee",
        )
    if team.agent(task.assignee) is None:
        raise ContractError(
            Code.INVALID_TASK_REQUIREMENTS,
            f"task {task.id!r} is assigned to {task.assignee!r}, who is not in team {team.name!r}: name one of "
            + ", ".join(agent.name for agent in team.agents),
            pointer=f"/tasks/{at}/assignee",
        )
    return task
