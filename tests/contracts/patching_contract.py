"""Decides what a change of a plan under way promises on every store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from placet import App, Deny, Suspend, ToolContext, scripted
from placet.errors import Code
from placet.messages import PatchPlan
from placet.plans import DirectCall, PlannedTask
from placet.values import Principal, PrincipalKind
from tests.cases import case
from tests.contracts.gating_contract import assert_replays
from tests.contracts.on_store import OnStore
from tests.contracts.paying_desk import Desk
from tests.rebuilding import ALICE, BOB, TENANT

NOTED: Counter[str] = Counter()
"""What was noted."""


def a_task(name: str, *depends_on: str, text: str | None = None) -> PlannedTask:
    """A task that notes its own name, or another text."""
    given = DirectCall(tool="note", input={"text": text or name})
    return PlannedTask(id=name, title=f"Note {name}", depends_on=depends_on, call=given)


def a_desk(**gates: Any) -> Callable[[], App]:
    """A desk that notes. The first note, `hold`, waits for a person, so that the plan is under way until then."""

    def made() -> App:
        app = App("desk", version="1")

        @app.tool(effect="idempotent")
        async def note(ctx: ToolContext, text: str) -> str:
            """Note something."""
            NOTED[text] += 1
            return f"noted {text}"

        @app.gate("tool_call", tools=[note])
        def the_first_waits(subject: Any) -> Any:
            return Suspend("wait") if subject.input["text"] == "hold" else True

        for at, gate in gates.items():
            named = lambda subject, gate=gate: gate(subject)  # noqa: E731
            named.__name__ = f"{at}_gate"
            app.gate(at)(named)  # type: ignore[arg-type]
        app.team("desk", agents=[app.agent("clerk", model=scripted("done"), tools=[note])])
        return app

    return made


class PatchingContract(OnStore):
    """Whole runs whose plan is changed under way."""

    @pytest.fixture(autouse=True)
    def nothing_noted(self) -> None:
        NOTED.clear()

    async def test_a_patch_that_nobody_minds_adds_changes_and_takes_out(self, store, clock):
        office = await under_way(store, clock, a_desk())
        receipt = await propose(
            office,
            add=(a_task("new", "b"),),
            change=(a_task("b", "hold", text="changed"),),
            remove=("c",),
        )
        assert (receipt["answer"], receipt["outcome"], receipt["status"]) == ("accepted", "applied", "suspended")
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(NOTED) == {"hold": 1, "changed": 1, "new": 1}
        assert await statuses(office) == {"hold": "succeeded", "b": "succeeded", "c": "skipped", "new": "succeeded"}
        assert (await office.state())["answer"] == '"noted new"'

    async def test_the_same_patch_again_is_the_same_and_another_under_its_id_is_refused(self, store, clock):
        office = await under_way(store, clock, a_desk())
        for answer in ("accepted", "duplicate", "duplicate"):
            receipt = await propose(office, add=(a_task("new"),))
            assert (receipt["answer"], receipt["outcome"]) == (answer, "applied")
        other = await propose(office, add=(a_task("other"),))
        assert (other["answer"], other["failure"]["code"]) == ("conflict", Code.PATCH_EXISTS)
        assert list(await statuses(office)) == ["hold", "b", "c", "new"]

    async def test_a_suspended_patch_is_a_question_of_its_own_and_nothing_begins_until_it_is_decided(
        self, store, clock
    ):
        office = await under_way(store, clock, a_desk(plan_patch=lambda patch: Suspend(f"+{len(patch.added)}")))
        held = await office.one()
        patch: dict[str, Any] = {"add": (a_task("new"),), "remove": ("c",), "reason": "c is of no use"}
        receipt = await propose(office, **patch)
        assert (receipt["answer"], receipt.get("outcome")) == ("accepted", None)
        await office.say_of(held, "approve")
        assert await office.to_rest() == "suspended"
        assert not NOTED, "while the patch is undecided nothing is released (D04)"
        request = await office.one()
        assert (request["request_id"], request["scope"]) == (receipt["request_id"], "plan_patch")
        assert (request["boundary"], request["rule"], request["reason"]) == ("plan-patch:p-1", "plan_patch_gate", "+1")
        content = json.loads(request["content_text"])
        assert [task["id"] for task in content["added"]] == ["new"]
        assert content["added"][0]["call"] == {"toolName": "note", "input": {"text": "new"}}
        assert [task["id"] for task in content["removed"]] == ["c"]
        assert (content["reason"], content["proposedBy"]) == ("c is of no use", "alice")
        assert request["requesters"] == "alice"
        own = await office.say_of(request, "approve", by="alice")
        assert (own["answer"], own["failure"]["code"]) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
        await office.say_of(request, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(NOTED) == {"hold": 1, "b": 1, "new": 1}
        assert (await propose(office, add=(a_task("new"),), remove=("c",), reason="c is of no use"))[
            "outcome"
        ] == "applied"

    async def test_a_patch_that_is_rejected_changes_nothing_and_the_run_goes_on(self, store, clock):
        office = await under_way(store, clock, a_desk(plan_patch=lambda patch: Suspend()))
        held = await office.one()
        await propose(office, add=(a_task("new"),), remove=("c",))
        request = next(each for each in await office.open_requests() if each["scope"] == "plan_patch")
        await office.say_of(request, "reject", reason="no")
        await office.say_of(held, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(NOTED) == {"hold": 1, "b": 1, "c": 1}
        assert (await propose(office, add=(a_task("new"),), remove=("c",)))["outcome"] == "rejected"

    @case("E35")
    @pytest.mark.parametrize(("answer", "code"), [(Deny("frozen"), Code.GATE_DENIED), ("nonsense", Code.GATE_FAILED)])
    async def test_a_patch_that_a_gate_denies_or_cannot_judge_is_refused_and_asks_nobody(
        self, store, clock, answer, code
    ):
        office = await under_way(store, clock, a_desk(plan_patch=lambda patch: answer))
        receipt = await propose(office, add=(a_task("new"),))
        assert (receipt["answer"], receipt["failure"]["code"]) == ("refused", code)
        assert len(await office.open_requests()) == 1
        assert "new" not in await statuses(office)

    async def test_an_approved_plan_is_not_changed_behind_the_reviewers_back(self, store, clock):
        """No gate for patches: then the plan gate is asked about the plan as it would become."""
        seen: list[list[str]] = []

        def plans(subject: Any) -> Suspend:
            seen.append([task.id for task in subject.tasks])
            return Suspend("every plan is read")

        office = Desk(store, clock, a_desk(plan=plans))
        await office.submit(tasks=TASKS)
        await office.to_rest()
        await office.say_of(await office.one(), "approve")
        await office.to_rest()
        receipt = await propose(office, add=(a_task("new"),), remove=("c",))
        assert receipt["request_id"]
        assert seen == [["hold", "b", "c"], ["hold", "b", "new"]]
        assert "new" not in await statuses(office)

    @pytest.mark.parametrize(
        ("patch", "code", "pointer"),
        [
            ({}, Code.PLAN_INVALID, ""),
            ({"add": (a_task("b"),)}, Code.PLAN_INVALID, "/add/0/id"),
            ({"add": (a_task("n", "ghost"),)}, Code.PLAN_INVALID, "/add/0/depends_on/0"),
            ({"add": (a_task("n", "m"), a_task("m", "n"))}, Code.PLAN_INVALID, "/add/0/depends_on"),
            ({"change": (a_task("b", "c"), a_task("c", "b"))}, Code.PLAN_INVALID, "/change/0/depends_on"),
            ({"change": (a_task("ghost"),)}, Code.PLAN_INVALID, "/change/0/id"),
            ({"change": (a_task("hold", text="x"),)}, Code.PLAN_INVALID, "/change/0/id"),
            ({"remove": ("hold",)}, Code.PLAN_INVALID, "/remove/0"),
            ({"remove": ("b",)}, Code.PLAN_INVALID, "/remove"),
            ({"remove": ("c", "c")}, Code.PLAN_INVALID, "/remove/1"),
            ({"change": (a_task("c"),), "remove": ("c",)}, Code.PLAN_INVALID, "/remove/0"),
            (
                {"add": (PlannedTask(id="n", title="N", assignee="ghost"),)},
                Code.INVALID_TASK_REQUIREMENTS,
                "/add/0/assignee",
            ),
            (
                {"add": (PlannedTask(id="n", title="N", call=DirectCall(tool="rm")),)},
                Code.TOOL_UNKNOWN,
                "/add/0/call/tool",
            ),
            ({"add": (a_task("n"),), "base": "0" * 64}, Code.PLAN_CHANGED, "/base"),
        ],
    )
    async def test_a_patch_that_makes_no_plan_is_refused_with_its_place(self, store, clock, patch, code, pointer):
        office = await under_way(store, clock, a_desk())
        before = await office.state()
        receipt = await propose(office, **patch)
        assert (receipt["answer"], receipt["failure"]["code"]) == ("refused", code)
        assert receipt["failure"].get("pointer", "") == pointer
        assert await office.state() == before

    async def test_a_patch_of_somebody_elses_run_is_told_that_there_is_none(self, store, clock):
        office = await under_way(store, clock, a_desk())
        receipt = await propose(office, by=BOB, add=(a_task("new"),))
        assert (receipt["answer"], receipt["failure"]["code"]) == ("not_found", Code.RUN_NOT_FOUND)
        service = Principal(kind=PrincipalKind.SERVICE, id="alice")
        assert (await propose(office, by=service, add=(a_task("new"),)))["answer"] == "not_found"

    async def test_one_change_is_decided_before_the_next_is_proposed(self, store, clock):
        office = await under_way(store, clock, a_desk(plan_patch=lambda patch: Suspend()))
        await propose(office, add=(a_task("new"),))
        second = await propose(office, "p-2", add=(a_task("more"),))
        assert (second["answer"], second["failure"]["code"]) == ("refused", Code.PLAN_BUSY)

    @pytest.mark.parametrize(("mode", "code"), [("frozen_plan", Code.SUBMISSION_INVALID)])
    async def test_a_frozen_plan_is_carried_out_as_it_is(self, store, clock, mode, code):
        office = Desk(store, clock, a_desk())
        await office.submit(tasks=TASKS, mode=mode)
        await office.to_rest()
        assert (await propose(office, add=(a_task("new"),)))["failure"]["code"] == code

    async def test_the_plan_of_a_run_that_is_over_is_not_changed(self, store, clock):
        office = await under_way(store, clock, a_desk())
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "succeeded"
        receipt = await propose(office, add=(a_task("new"),))
        assert (receipt["answer"], receipt["failure"]["code"]) == ("closed", Code.RUN_TERMINAL)

    async def test_a_patch_survives_that_everything_is_torn_down(self, store, clock):
        office = await under_way(store, clock, a_desk(plan_patch=lambda patch: Suspend()))
        await propose(office, add=(a_task("new", "b"),))
        await office.rebuild()
        for request in await office.open_requests():
            await office.say_of(request, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(NOTED) == {"hold": 1, "b": 1, "c": 1, "new": 1}
        leaves = [row["kind"] for row in await office.store.rows(TENANT, "audit_leaf", "r1")]
        assert leaves.count("plan.patched") == 1
        await assert_replays(office)


TASKS = (a_task("hold"), a_task("b", "hold"), a_task("c", "b"))


async def under_way(store: Any, clock: Any, made: Callable[[], App], tasks: Any = TASKS) -> Desk:
    """A run whose first task waits for a person, and whose other tasks have not begun."""
    office = Desk(store, clock, made)
    await office.submit(tasks=tasks)
    assert await office.to_rest() == "suspended"
    return office


async def propose(office: Desk, name: str = "p-1", by: Principal = ALICE, **patch: Any) -> dict[str, Any]:
    """The receipt of a patch."""
    Desk.said += 1
    await office.say(PatchPlan(tenant=TENANT, run_id="r1", patch_id=name, by=by, **patch), f"patch-{Desk.said}")
    receipt = dict(json.loads(office.answers[-1]))
    await office.to_rest()
    return receipt


async def statuses(office: Desk) -> dict[str, str]:
    """How far each task is."""
    return {task["id"]: task["status"] for task in (await office.state())["tasks"]}
