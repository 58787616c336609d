"""Decides what stands where a process must not have something: an application, a model, a tool. It refuses aloud.

The approval service runs no code of an application, only planners call models, only tool executors run tools (DESIGN
§7). That none is asked for is the machines' matter; that asking would be an error and not an answer is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from placet.activities import Activity, CallModel, ProbeTool, RunTool
from placet.calls import ChatMessage, ModelReply, ToolOutcome, ToolSpec
from placet.errors import Failure, InvariantError
from placet.gates import Boundary, Judgement, Subject
from placet.plans import TeamSpec
from placet.runtime.ports import BeginLeft, Invoker


def _refuse(what: str) -> NoReturn:
    raise InvariantError(f"this process {what}: it hosts no machine that may ask for it")


class NoApplication:
    """facts.Application of a process that has none. Every question is a defect of the rules."""

    @property
    def version(self) -> str:
        _refuse("knows no application's version")

    @property
    def policy_version(self) -> str:
        _refuse("knows no policy")

    def team_spec(self, name: str) -> TeamSpec | None:
        _refuse(f"knows no team {name!r}")

    def tool_spec(self, name: str) -> ToolSpec | None:
        _refuse(f"knows no tool {name!r}")

    def model_timeout_ms(self, agent: str) -> int:
        _refuse(f"knows no agent {agent!r}")

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        _refuse(f"validates no input of {tool!r}")

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        _refuse(f"has no gates for {boundary}")


class NoModels:
    """ports.Models of a process that calls none."""

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        _refuse(f"calls no models, not for {activity.owner().text()}")

    async def close(self) -> None:
        """Nothing is open."""


class NoTools:
    """ports.Tools of a process that runs none."""

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        _refuse(f"runs no tools, not {activity.tool}")

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        _refuse(f"asks no tools, not {activity.tool}")


class OnlyInvoker:
    """Lets pass what this process may start, and ends it otherwise: what it is asked is a sign that it is wrong.

    What was committed as started comes back by its lease, to whoever may carry it out.
    """

    def __init__(self, inner: Invoker, *, models: bool, tools: bool) -> None:
        self._inner = inner
        self._models = models
        self._tools = tools

    def monotonic_ms(self) -> float:
        """As ports.Invoker."""
        return self._inner.monotonic_ms()

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        """Raises InvariantError for what is not allowed here; the allowed ones have been started by then."""
        allowed = [activity for activity in activities if self._may(activity)]
        self._inner.start(allowed, since_ms)
        for activity in activities:
            if not self._may(activity):
                _refuse(f"starts no {activity.activity}, not for {activity.owner().text()}")

    def _may(self, activity: Activity) -> bool:
        if isinstance(activity, CallModel):
            return self._models
        if isinstance(activity, RunTool | ProbeTool):
            return self._tools
        return True
