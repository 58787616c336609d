"""Decides the small applications that several tests of the vocabulary share."""

from __future__ import annotations

from typing import Any

import pytest

from placet import App, ContractError, ToolContext
from placet.errors import Code
from placet.gates import CallSubject, PlanSubject


def an_app() -> App:
    return App("desk", version="1")


def a_call(tool: str = "deploy", *, consequential: bool = False, **tool_input: Any) -> CallSubject:
    return CallSubject(
        run_id="run-1",
        team="ops",
        agent="operator",
        task_id="task-1",
        tool=tool,
        input=tool_input,
        raw_input=tool_input,
        consequential=consequential,
        effect="idempotent",
        initiator="alice",
    )


def with_deploy(consequential: bool = False) -> App:
    app = an_app()

    @app.tool(effect="idempotent", consequential=consequential)
    def deploy(ctx: ToolContext, env: str = "staging") -> str:
        """Bring it out."""
        return env

    return app


def line_of(refused: pytest.ExceptionInfo[ContractError]) -> str:
    assert refused.value.code is Code.APP_INVALID
    assert "\n" not in refused.value.message
    return refused.value.message


def named(name: str, function: Any) -> Any:
    """The same function under a name of its own."""
    if not isinstance(function, type):
        function.__name__ = name
    return function


def a_plan() -> PlanSubject:
    return PlanSubject(run_id="run-1", team="ops", goal="g", tasks=(), continuation="execute", initiator="alice")
