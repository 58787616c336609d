"""Decides what of an application is shown to people: teams, agents, tools; no instructions, no models, no code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from placet.calls import ToolSpec
from placet.plans import TeamSpec
from placet.views import AgentView, AppView, TeamView, ToolView


class HasSpec(Protocol):
    """A tool of an application."""

    @property
    def spec(self) -> ToolSpec:
        """What the rules know of it."""


class HasTools(Protocol):
    """An agent of an application."""

    @property
    def tools(self) -> Sequence[str]:
        """Names of the tools it is granted."""


class Described(Protocol):
    """An application as far as it is shown: `placet.application.App` is one."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def policy_version(self) -> str: ...

    @property
    def tools(self) -> Mapping[str, HasSpec]: ...

    @property
    def agents(self) -> Mapping[str, HasTools]: ...

    @property
    def teams(self) -> Mapping[str, TeamSpec]: ...


def described(app: Described) -> AppView:
    """An application as it is shown."""
    specs = [tool.spec for tool in app.tools.values()]
    return AppView(
        name=app.name,
        version=app.version,
        policy_version=app.policy_version,
        teams=[
            TeamView(name=team.name, agents=[agent.name for agent in team.agents], planner=team.planner)
            for team in app.teams.values()
        ],
        agents=[AgentView(name=name, tools=list(agent.tools)) for name, agent in app.agents.items()],
        tools=[
            ToolView(
                name=spec.name,
                version=spec.version,
                effect=spec.effect.value,
                consequential=spec.consequential,
                schema_digest=spec.schema_digest,
                binding=spec.binding,
                advisory=list(spec.advisory),
                volatile=list(spec.volatile),
            )
            for spec in specs
        ],
    )
