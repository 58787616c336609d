"""Decides what is proved, on every store, of an approval whose application has changed before it was used."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import Field

from placet import App, Suspend, ToolContext
from tests.cases import case
from tests.embedded.on_store import Whole, a_team, whole

PAID: Counter[str] = Counter()
COUNT = itertools.count()


class Deployed:
    """The application that serves now."""

    def __init__(self, app: App) -> None:
        self.app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)


def production(call: Any) -> Any:
    """A gate."""
    return Suspend("production")


def everything(call: Any) -> Any:
    """Another one."""
    return Suspend("whatever it is")


def desk(
    *,
    app_version: str | None = "1",
    app_binding: Any = None,
    gate: str | None = None,
    shape: str = "plain",
    granted: bool = True,
    present: bool = True,
    **tool: Any,
) -> App:
    """A desk whose one tool pays. `shape`: of its parameters."""
    app = App("desk", version=app_version, binding=app_binding)
    terms: dict[str, Any] = {"effect": "idempotent", "consequential": True, "retry": 4, "version": "1", **tool}

    def paid(ctx: ToolContext, *seen: Any) -> str:
        PAID[ctx.run_id] += 1
        return json.dumps(seen)

    def plain(ctx: ToolContext, customer: str) -> str:
        """Pay."""
        return paid(ctx, customer)

    def defaulted(ctx: ToolContext, customer: str, cents: int = 100) -> str:
        """Pay."""
        return paid(ctx, customer, cents)

    def stamped(
        ctx: ToolContext, customer: str, asked: Annotated[int, Field(default_factory=lambda: next(COUNT))]
    ) -> str:
        """Pay."""
        return paid(ctx, customer, asked)

    def noted(ctx: ToolContext, customer: str, note: str = "thanks") -> str:
        """Pay."""
        return paid(ctx, customer, note)

    def renoted(ctx: ToolContext, customer: str, note: str = "many thanks") -> str:
        """Pay."""
        return paid(ctx, customer, note)

    shapes: dict[str, Callable[..., str]] = {f.__name__: f for f in (plain, defaulted, stamped, noted, renoted)}
    tools = [app.tool("pay", **terms)(shapes[shape])] if present else []

    @app.tool(effect="read_only")
    def look(ctx: ToolContext) -> str:
        """Look."""
        return ""

    if gate is not None:
        app.gate("tool_call")({"a": production, "b": everything}[gate])
    return a_team(app, *(tools if granted else []), look)


class RedeployContract:
    """A test class says `adapter` and `make`."""

    adapter: str

    async def make(self) -> Any:
        """An empty store with the time of a real clock."""
        raise NotImplementedError

    async def redeployed(self, before: App, after: App, **given: Any) -> tuple[Whole, dict[str, Any], dict[str, Any]]:
        """A call is approved, then another application serves, then the approval is used: operation and run."""
        PAID.clear()
        deployed: Any = Deployed(before)
        async with whole(deployed, await self.make()) as system:
            await system.pay(**{"customer": "c-1", **given})
            request = await system.asked()
            await system.status("suspended")
            deployed.app = after
            await system.decide(request)
            run = await system.status("succeeded", "failed", "rejected")
            operation = await system.operation() if await self._has_operation(system) else {}
            return system, operation, run

    async def _has_operation(self, system: Whole) -> bool:
        [row] = await system.rows("operation")
        from placet.ids import Address
        from placet.messages import OPERATION
        from tests.embedded.on_store import TENANT

        return await system.store.state(TENANT, Address("run-1", OPERATION, row["operation_id"])) is not None

    async def assert_stale(self, before: App, after: App) -> None:
        """Nothing was tried, whatever the retry policy, and the call's answer says why."""
        _, operation, run = await self.redeployed(before, after)
        assert PAID == {}
        assert operation.get("status") in (None, "refused")
        assert "APPROVAL_STALE_DECISION" in json.dumps(run["body"]), run["body"]

    async def assert_runs(self, before: App, after: App) -> None:
        _, operation, _ = await self.redeployed(before, after)
        assert (operation["status"], PAID) == ("succeeded", {"run-1": 1})

    @case("D13")
    @pytest.mark.parametrize("binding", ["data", "tool", "policy", "release"])
    async def test_a_new_default_makes_the_approval_stale_and_is_tried_once(self, binding: str) -> None:
        await self.assert_stale(desk(binding=binding), desk(shape="defaulted", binding=binding))

    @case("D14")
    @pytest.mark.parametrize("binding", ["data", "release"])
    async def test_a_flipped_consequence_makes_the_approval_stale(self, binding: str) -> None:
        await self.assert_stale(desk(binding=binding), desk(consequential=False, binding=binding))

    @case("D15")
    async def test_a_tool_that_is_gone_or_not_granted_any_more_is_not_called(self) -> None:
        await self.assert_stale(desk(binding="data"), desk(binding="data", present=False))
        await self.assert_stale(desk(binding="data"), desk(binding="data", granted=False))

    @case("M51")
    async def test_another_version_of_the_tool_is_stale_unless_the_data_is_enough(self) -> None:
        for binding in ("tool", "policy", "release"):
            await self.assert_stale(desk(binding=binding), desk(binding=binding, version="2"))
        await self.assert_runs(desk(binding="data"), desk(binding="data", version="2"))
        await self.assert_runs(desk(app_binding="data"), desk(app_binding="data", version="2"))

    @case("M51")
    async def test_other_gates_are_stale_unless_the_tool_is_enough(self) -> None:
        for binding in ("policy", "release"):
            await self.assert_stale(desk(gate="a", binding=binding), desk(gate="b", binding=binding))
        for binding in ("data", "tool"):
            await self.assert_runs(desk(gate="a", binding=binding), desk(gate="b", binding=binding))

    @case("M51")
    async def test_another_version_of_the_application_is_stale_unless_less_is_enough(self) -> None:
        await self.assert_stale(desk(), desk(app_version="2"))
        for binding in ("data", "tool", "policy"):
            await self.assert_runs(desk(binding=binding), desk(app_version="2", binding=binding))
            await self.assert_runs(desk(app_binding=binding), desk(app_version="2", app_binding=binding))

    async def test_what_is_volatile_may_read_differently_and_the_reviewed_input_runs(self) -> None:
        await self.assert_runs(*(2 * [desk(shape="stamped", volatile=["asked"])]))
        await self.assert_stale(*(2 * [desk(shape="stamped")]))

    @pytest.mark.parametrize("loose", ["advisory", "volatile"])
    async def test_another_default_of_a_field_that_nothing_rests_on_is_no_other_call(self, loose: str) -> None:
        terms: dict[str, Any] = {loose: ["note"]}
        _, operation, _ = await self.redeployed(desk(shape="noted", **terms), desk(shape="renoted", **terms))
        assert (operation["status"], PAID) == ("succeeded", {"run-1": 1})
        await self.assert_stale(desk(shape="noted"), desk(shape="renoted"))
        await self.assert_stale(desk(shape="noted", **terms), desk(shape="renoted"))
