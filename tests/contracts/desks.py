"""Decides which applications whole runs are tried with, and what their tools write down."""

from __future__ import annotations

from collections import Counter
from typing import Any

from placet import App, NotExecuted, Suspend, ToolContext, scripted
from placet.messages import RUN, ApprovalDecided
from placet.plans import DirectCall, PlannedTask
from placet.script import call, plan
from tests.rebuilding import TENANT

DONE: Counter[str] = Counter()
"""What the tools did, by operation and text: a key that the world has seen before does nothing."""


def an_app() -> App:
    """A desk that plans, and whose every note waits for a person, as its plan does."""
    app = App("desk", version="1")

    @app.tool(effect="idempotent", consequential=True)
    async def note(ctx: ToolContext, text: str) -> str:
        """Write a note."""
        DONE[f"{ctx.idempotency_key} {text}"] += 1
        return f"noted {text}"

    @app.gate("plan")
    def a_person_reads_the_plan(subject: Any) -> Suspend:
        return Suspend("every plan is read")

    model = scripted(
        plan([{"id": "one", "title": "first"}, {"id": "two", "title": "second", "depends_on": ["one"]}]),
        [call("note", text="a"), call("note", text="b")],
        "noted both",
        answering=["all is noted"],
    )
    app.team("desk", agents=[app.agent("clerk", model=model, tools=[note])])
    return app


def decided(request_id: str) -> ApprovalDecided:
    """A wake: a hint that something was decided, true or not."""
    return ApprovalDecided(
        tenant=TENANT, run_id="r1", request_id=request_id, outcome="approved", asker_machine=RUN, asker_key=""
    )


def call_task(text: str = "a", agent: str | None = None) -> PlannedTask:
    """A task that is one call."""
    return PlannedTask(id="one", title="note", assignee=agent, call=DirectCall(tool="note", input={"text": text}))


def more_tasks(text: str | None) -> tuple[PlannedTask, ...]:
    """A task after that one."""
    if text is None:
        return ()
    given = DirectCall(tool="note", input={"text": text})
    return (PlannedTask(id="two", title="more", depends_on=("one",), call=given),)


def a_desk(effect: Any = "idempotent", gate: Any = None, agent: str | None = None, more: str | None = None) -> App:
    """A desk that is given calls."""
    del agent, more
    app = App("desk", version="1")

    @app.tool(effect=effect, consequential=True)
    async def note(ctx: ToolContext, text: str) -> str:
        """Write a note."""
        DONE[f"{ctx.idempotency_key} {text}"] += 1
        if text == "fail":
            raise NotExecuted("there is no paper")
        return f"noted {text}"

    @app.gate("plan")
    def a_person_reads_the_plan(subject: Any) -> Suspend:
        return Suspend("every plan is read")

    @app.gate("tool_call", tools=[note])
    def a_person_reads_the_call(subject: Any) -> Any:
        return gate(subject) if gate is not None else Suspend("every call is read")

    app.team("desk", agents=[app.agent("clerk", model=scripted("done"), tools=[note])])
    return app
