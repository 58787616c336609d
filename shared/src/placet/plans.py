"""Decides what a valid plan is: tasks as an acyclic graph, each with a capable assignee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from placet import limits
from placet.canonical import canonical_text, digest_of_text
from placet.contents import fault_of_name
from placet.errors import Code, ContractError
from placet.values import Name, Text, Value

PLAN_TOOL = "submit_plan"
"""The function tool by which a planning model answers, with `{"tasks": [PlannedTask, …]}`."""

ASK_HUMAN = "ask_human"
"""The built-in tool by which an agent asks a person, where it is granted."""

CYCLE_SHOWN_MAX = 12
"""Tasks of a cycle that the error names."""


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


def _is_empty(value: object) -> bool:
    return not value


def plan_text(tasks: Iterable[PlannedTask]) -> str:
    """A plan as canonical JSON: what `plan_only` answers with, and what `frozen_plan` takes back unchanged."""
    fields = set(PlannedTask.model_fields)
    plain = [task.model_dump(mode="json", include=fields) for task in tasks]
    return canonical_text({"version": Plan.model_fields["version"].default, "tasks": plain})


def plan_digest(tasks: Iterable[PlannedTask]) -> str:
    """SHA-256 of `plan_text`: what tells one plan from another, whatever its tasks have come to."""
    return digest_of_text(plan_text(tasks))


class AgentSpec(Value):
    """What the rules need to know of an agent."""

    name: Name
    tools: tuple[Name, ...] = ()
    require_approval: Annotated[tuple[Name, ...], Field(exclude_if=_is_empty)] = ()
    """Tools whose calls by this agent wait for a person, whatever gates allow."""


Release = Literal["all", "each"]
"""When an approved call is made: when nothing of the run waits for a decision any more, or at once."""


class TeamSpec(Value):
    """Who may be given work, and how long and how much it may take."""

    name: Name
    agents: tuple[AgentSpec, ...]
    planner: Name | None = None
    """The agent whose model plans and sums up; by default the first."""
    round_gate: bool = False
    tokens_max: int | None = None
    release: Release = "all"

    def agent(self, name: str | None) -> AgentSpec | None:
        """The agent of that name, if it belongs to the team."""
        return next((agent for agent in self.agents if agent.name == name), None)

    def agent_with(self, tool: str, name: str | None) -> AgentSpec | None:
        """The agent on whose authority a tool is called: the named one, or without a name the first that may.

        None when the tool is not granted, which nothing can make up for (E20).
        """
        return next((agent for agent in self.agents if tool in agent.tools and name in (None, agent.name)), None)


def check_plan(tasks: Sequence[PlannedTask], team: TeamSpec) -> tuple[PlannedTask, ...]:
    """The tasks with assignees filled in where only one is possible; linear in tasks and edges.

    Raises ContractError: PLAN_INVALID (no tasks, too many, an id that cannot be shown or stands twice, a dependency
    that is unknown, doubled or the task itself, a cycle, which is named), INVALID_TASK_REQUIREMENTS (unknown or
    missing assignee). `pointer` names the place.
    """
    if not tasks:
        raise _invalid("a plan needs at least one task", "/tasks")
    if len(tasks) > limits.TASKS_MAX:
        raise _invalid(f"a plan has at most {limits.TASKS_MAX} tasks, this one {len(tasks)}", "/tasks")
    index: dict[str, int] = {}
    for at, task in enumerate(tasks):
        # An id becomes part of what is hashed and shown, where nothing may be hidden in it.
        if fault := fault_of_name(task.id):
            raise _invalid(f"the id of task {at} {fault}", f"/tasks/{at}/id")
        if task.id in index:
            raise _invalid(f"tasks {index[task.id]} and {at} have the same id {task.id!r}", f"/tasks/{at}/id")
        index[task.id] = at
    for at, task in enumerate(tasks):
        _refuse_edges(at, task, index)
    _refuse_cycles(tasks, index)
    return tuple(_with_assignee(at, task, team) for at, task in enumerate(tasks))


def _invalid(message: str, pointer: str) -> ContractError:
    return ContractError(Code.PLAN_INVALID, message, pointer=pointer)


def _refuse_edges(at: int, task: PlannedTask, index: Mapping[str, int]) -> None:
    seen: set[str] = set()
    for to, dependency in enumerate(task.depends_on):
        pointer = f"/tasks/{at}/depends_on/{to}"
        if dependency == task.id:
            raise _invalid(f"task {task.id!r} depends on itself", pointer)
        if dependency not in index:
            raise _invalid(f"task {task.id!r} depends on {dependency!r}, which is not in the plan", pointer)
        if dependency in seen:
            raise _invalid(f"task {task.id!r} names the dependency {dependency!r} twice", pointer)
        seen.add(dependency)


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
    # Whoever is stuck waits for somebody who is stuck: following that leads into a cycle.
    stuck = {task_id for task_id, count in waiting.items() if count > 0}
    at = next(task.id for task in tasks if task.id in stuck)
    path: dict[str, None] = {}
    while at not in path:
        path[at] = None
        at = next(dependency for dependency in tasks[index[at]].depends_on if dependency in stuck)
    steps = list(path)
    cycle = [*steps[steps.index(at) :], at]
    raise _invalid(f"the plan has a cycle: {_shown(cycle)}", f"/tasks/{index[cycle[0]]}/depends_on")


def _shown(cycle: Sequence[str]) -> str:
    """The cycle in words; the middle of a long one is left out."""
    if len(cycle) > CYCLE_SHOWN_MAX:
        cut = len(cycle) - CYCLE_SHOWN_MAX + 1
        cycle = [*cycle[: CYCLE_SHOWN_MAX - 2], f"({cut} more)", cycle[-1]]
    return " → ".join(cycle)


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
