"""Decides what the desk is at which people are asked about payments, and how they answer there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from placet import Allow, App, Deny, Suspend, ToolContext, ask_human, scripted
from placet.canonical import canonical_text
from placet.messages import DecideApproval
from placet.plans import PlannedTask
from placet.script import call, plan
from placet.values import Principal, PrincipalKind
from tests.contracts.on_store import OnStore
from tests.rebuilding import TENANT, Office

PAID: Counter[str] = Counter()
"""What was paid, by operation, customer and cents."""
OPEN_S = 7_200
"""How long a question stays open: longer than an office waits for timers."""


def a_desk(*steps: Any, effect: Any = "idempotent", release: Any = "all", **terms: Any) -> Callable[[], App]:
    """A desk whose clerk pays: a person is asked, except about more than 1000 cents, which nobody may."""

    def made() -> App:
        app = App("desk", version="1")

        @app.tool(effect=effect, consequential=True)
        async def pay(ctx: ToolContext, customer: str, cents: int = 100) -> str:
            """Pay a customer."""
            PAID[f"{ctx.operation_id} {customer} {cents}"] += 1
            return f"paid {customer} {cents}"

        @app.gate("tool_call", tools=[pay], **terms)
        def payments_wait(asked: Any) -> Suspend | Deny:
            return Deny("too much") if asked.input["cents"] > 1_000 else Suspend("money")

        model = scripted(*(steps or (call("pay", customer="c-1"), "Done.")))
        app.team("desk", agents=[app.agent("clerk", model=model, tools=[pay, ask_human])], release=release)
        return app

    return made


def a_planning_desk() -> App:
    """A desk that plans two tasks, or one when it is told to, and whose plans are read."""
    app = App("desk", version="1")

    @app.gate("plan")
    def a_person_reads_the_plan(subject: Any) -> Suspend | Allow:
        return Suspend("every plan is read")

    both = plan([{"id": "one", "title": "first"}, {"id": "two", "title": "second", "depends_on": ["one"]}])
    model = scripted(both, plan([{"id": "one", "title": "first"}]), "Done.", answering=["all is done"])
    app.team("desk", agents=[app.agent("clerk", model=model)])
    return app


class Desk(Office):
    """An office with people in it."""

    said = 0

    async def say_of(self, request: dict[str, Any], word: str, by: str = "bob", **more: Any) -> dict[str, Any]:
        """One person's word; the receipt."""
        Desk.said += 1
        fields: dict[str, Any] = {"decision_id": f"d-{Desk.said}", "request_hash": request["request_hash"]}
        if "value" in more:
            more["value_text"] = canonical_text(more.pop("value"))
        message = DecideApproval(
            tenant=TENANT,
            run_id=request["run_id"],
            request_id=request["request_id"],
            decision=word,
            reviewer=Principal(kind=PrincipalKind.HUMAN, id=by),
            **{**fields, **more},
        )
        await self.say(message, f"say-{Desk.said}")
        return dict(json.loads(self.answers[-1]))

    async def one(self) -> dict[str, Any]:
        """The one open request."""
        (request,) = await self.open_requests()
        return request

    async def told(self, run_id: str = "r1") -> list[str]:
        """Every tool result that a model was given, in order."""
        rows = await self.store.rows(TENANT, "thread_message", run_id)
        said = [json.loads(row["body_text"]) for row in rows if row["role"] == "tool"]
        return [result["text"] for message in said for result in message["results"]]

    async def to_rest(self) -> str:
        """Until only people are waited for; the run's status."""
        await self.work()
        return str((await self.state())["status"])


class AtDesk(OnStore):
    """A store with a desk on it, at which nothing has been paid yet."""

    @pytest.fixture(autouse=True)
    def nothing_paid(self) -> None:
        PAID.clear()

    async def paying(self, store: Any, clock: Any, *steps: Any, **desk: Any) -> tuple[Desk, dict[str, Any]]:
        """A desk before its first question."""
        office = Desk(store, clock, a_desk(*steps, **desk))
        await office.submit(tasks=(PlannedTask(id="t", title="Pay c-1"),))
        await office.work()
        return office, await office.one()
