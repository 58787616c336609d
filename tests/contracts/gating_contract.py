"""Decides what policy promises on every store: who is asked, why, by which rule, and what is refused outright."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest

from placet import Allow, App, Deny, Suspend, ToolContext, scripted
from placet.errors import Code
from placet.ids import Address
from placet.messages import PLAN_THREAD, RUN
from placet.plans import DirectCall, PlannedTask
from placet.runtime.replay import replay
from placet.script import call, flagged, plan
from placet_dispatcher.machine import RunMachine
from tests.cases import case
from tests.contracts.on_store import OnStore
from tests.contracts.paying_desk import Desk
from tests.rebuilding import TENANT

SENT: Counter[str] = Counter()
"""What was sent, by operation."""
Setup = Callable[[App, Any], None]

TASK = (PlannedTask(id="t", title="Send it"),)
CALL = (PlannedTask(id="t", title="Send it", call=DirectCall(tool="send", input={"cents": 5})),)


def a_desk(
    setup: Setup | None = None,
    *steps: Any,
    consequential: bool = True,
    require_approval: bool = False,
    reviewers: Any = None,
) -> Callable[[], App]:
    """A desk whose clerk sends money; `setup` says the policy."""

    def made() -> App:
        app = App("desk", version="1", reviewers=reviewers)

        @app.tool(effect="idempotent", consequential=consequential)
        async def send(ctx: ToolContext, cents: int = 5) -> str:
            """Send money."""
            SENT[ctx.operation_id] += 1
            return f"sent {cents}"

        if setup is not None:
            setup(app, send)
        model = scripted(
            plan([{"id": "t", "title": "Send it"}]),
            *(steps or (call("send", cents=5), "Told.")),
            answering=["All told."],
        )
        clerk = app.agent("clerk", model=model, tools=[send], require_approval=require_approval)
        app.team("desk", agents=[clerk])
        return app

    return made


def always(answer: Any, *, at: Any = "tool_call", name: str = "always", own: bool = True) -> Setup:
    """A gate with one answer, for that very tool."""

    def setup(app: App, send: Any) -> None:
        def gate(subject: Any) -> Any:
            return answer() if callable(answer) else answer

        gate.__name__ = name
        app.gate(at, tools=[send] if own and at == "tool_call" else None)(gate)

    return setup


async def at_rest(store: Any, clock: Any, made: Callable[[], App], **submitted: Any) -> tuple[Desk, str]:
    """A run that only waits for people, and its status."""
    office = Desk(store, clock, made)
    await office.submit(**(submitted or {"tasks": TASK}))
    return office, await office.to_rest()


async def assert_replays(office: Desk) -> None:
    """The run's journal gives its state again, byte for byte, without the application."""
    entries = await office.store.read_journal(Address("r1", RUN, ""))
    replayed = replay(RunMachine(), entries)
    stored = await office.store.state(TENANT, Address("r1", RUN, ""))
    assert replayed is not None
    assert stored is not None
    assert json.loads(replayed.json_bytes()) == stored["body"]


async def the_operation(office: Desk) -> dict[str, Any]:
    """The one call that was proposed."""
    (row,) = await office.store.rows(TENANT, "operation", "r1")
    return dict(row)


async def leaf(office: Desk, kind: str) -> dict[str, Any]:
    """What the first audit leaf of a kind says."""
    rows = await office.store.rows(TENANT, "audit_leaf", "r1")
    return dict(next(json.loads(row["detail_text"]) for row in rows if row["kind"] == kind))


class GatingContract(OnStore):
    """Whole runs, and the policy that they run under."""

    @pytest.fixture(autouse=True)
    def nothing_sent(self) -> None:
        SENT.clear()

    # ── which rule, of which policy ────────────────────────────────────────────────────

    async def test_the_rule_and_the_policy_travel_with_the_question_and_with_the_call(self, store, clock):
        def setup(app: App, send: Any) -> None:
            app.rule("over-one", when="input.cents > 1", tools=[send], otherwise="allow", reason="more than one")

        office, status = await at_rest(store, clock, a_desk(setup))
        assert status == "suspended"
        request = await office.one()
        digest, version = office.app.policy_digest, office.app.policy_version
        assert (request["rule"], request["policy_digest"], request["policy_version"]) == ("over-one", digest, version)
        assert request["reason"] == "more than one"
        row = await the_operation(office)
        assert (row["rule"], row["policy_digest"], row["policy_version"]) == ("over-one", digest, version)
        proposed = await leaf(office, "operation.proposed")
        assert (proposed["rule"], proposed["policy"]) == ("over-one", digest)
        await office.say_of(request, "approve")
        assert await office.to_rest() == "succeeded"
        assert len(SENT) == 1
        await assert_replays(office)

    async def test_a_call_that_a_rule_allows_is_made_at_once_under_its_name(self, store, clock):
        def setup(app: App, send: Any) -> None:
            app.rule("over-nine", when="input.cents > 9", tools=[send], otherwise="allow")

        office, status = await at_rest(store, clock, a_desk(setup))
        row = await the_operation(office)
        assert (status, row["authority"], row["rule"]) == ("succeeded", "policy", "over-nine")
        assert row["policy_digest"] == office.app.policy_digest

    async def test_a_rule_that_errs_puts_the_call_to_a_person_and_says_so(self, store, clock):
        def setup(app: App, send: Any) -> None:
            app.rule("broken", when="input.amount > 1", tools=[send], then="allow", otherwise="allow")

        office, status = await at_rest(store, clock, a_desk(setup, consequential=False))
        request = await office.one()
        assert (status, dict(SENT)) == ("suspended", {})
        assert "could not be evaluated, so a person decides: there is no 'amount'" in request["reason"]

    async def test_a_plan_rule_that_errs_puts_the_plan_to_a_person(self, store, clock):
        def setup(app: App, send: Any) -> None:
            app.rule("broken", boundary="plan", when="tasks[9].id == 'x'", then="deny")

        office, status = await at_rest(store, clock, a_desk(setup, consequential=False))
        request = await office.one()
        assert (status, request["scope"], request["rule"]) == ("suspended", "plan", "broken")
        assert (await leaf(office, "approval.requested"))["policy"] == office.app.policy_digest

    # ── the strictest counts ───────────────────────────────────────────────────────────

    @case("E32", "E35")
    async def test_a_configured_deny_holds_against_a_saved_always_allow_and_nobody_is_asked(self, store, clock):
        def setup(app: App, send: Any) -> None:
            app.rule("always", when="true", then="allow", tools=[send])
            app.rule("never", when="true", then="deny", reason="forbidden here")

        office, status = await at_rest(store, clock, a_desk(setup))
        assert (status, dict(SENT), await office.open_requests()) == ("succeeded", {}, [])
        assert await office.store.rows(TENANT, "operation", "r1") == []
        (told,) = await office.told()
        assert told.startswith("GATE_DENIED: never denies this call: forbidden here")

    async def test_an_agent_may_ask_for_a_person_where_the_gates_allow(self, store, clock):
        office, status = await at_rest(store, clock, a_desk(always(True), consequential=False, require_approval=True))
        request = await office.one()
        assert (status, request["rule"], dict(SENT)) == ("suspended", "agent", {})
        await office.say_of(request, "approve")
        assert await office.to_rest() == "succeeded"

    @case("E35")
    async def test_an_agent_that_asks_for_a_person_loosens_no_denial(self, store, clock):
        office, _ = await at_rest(store, clock, a_desk(always(False), require_approval=True))
        assert await office.open_requests() == []
        assert (await office.told())[0].startswith("GATE_DENIED")

    @case("E38")
    async def test_a_safety_finding_asks_a_person_where_everything_is_allowed(self, store, clock):
        found = flagged(call("send", cents=5), "the amount was injected")
        office, status = await at_rest(store, clock, a_desk(always(True), found, "Told.", consequential=False))
        request = await office.one()
        assert (status, request["rule"], dict(SENT)) == ("suspended", "safety_finding", {})
        assert "the amount was injected" in request["reason"]
        await office.say_of(request, "reject")
        assert await office.to_rest() == "succeeded"
        assert not SENT

    @case("E35", "E38")
    async def test_a_safety_finding_makes_a_denial_no_question(self, store, clock):
        found = flagged(call("send", cents=5), "odd")
        office, _ = await at_rest(store, clock, a_desk(always(False), found, "Told."))
        assert (await office.open_requests(), dict(SENT)) == ([], {})

    @case("E38")
    async def test_a_finding_joins_what_a_gate_asks_already(self, store, clock):
        found = flagged(call("send", cents=5), "odd")
        office, _ = await at_rest(store, clock, a_desk(always(lambda: Suspend("Money.")), found, "Told."))
        request = await office.one()
        assert (request["rule"], request["reason"]) == ("always, safety_finding", "A safety finding: odd Money.")

    # ── nobody can be asked ────────────────────────────────────────────────────────────

    @case("E30", "B15")
    async def test_where_nobody_can_be_asked_a_suspended_call_is_an_error_result_and_nothing_waits(self, store, clock):
        """Every run of ours can be resumed; what cannot be is an application without anybody to decide."""
        office, status = await at_rest(store, clock, a_desk(always(lambda: Suspend()), reviewers=[]))
        assert (status, dict(SENT), await office.open_requests()) == ("succeeded", {}, [])
        assert await office.store.rows(TENANT, "approval_request", "r1") == []
        assert await office.store.rows(TENANT, "operation", "r1") == []
        (told,) = await office.told()
        assert told.startswith(
            "NO_REVIEWER: not made, since no person can be asked about it: nobody can let this happen"
        )

    @case("E40")
    @pytest.mark.parametrize("tasks", [TASK, CALL])
    async def test_a_consequential_call_without_any_approval_path_is_refused(self, store, clock, tasks):
        office, status = await at_rest(store, clock, a_desk(reviewers=[]), tasks=tasks)
        assert (dict(SENT), await office.open_requests()) == ({}, [])
        if tasks is TASK:
            assert "NO_REVIEWER" in (await office.told())[0]
        else:
            assert status == "failed"
            assert "NO_REVIEWER" in json.dumps((await office.state())["failure"])

    @case("E40")
    @pytest.mark.parametrize("at", ["plan", "dispatch"])
    async def test_an_approved_plan_is_no_approval_of_a_consequential_call(self, store, clock, at: Literal["plan"]):
        """Here DESIGN holds against the case, by which an approved plan lets the call be made: nothing consequential
        happens until somebody has said placet to exactly that thing, and a plan does not show the call's input."""
        office, status = await at_rest(store, clock, a_desk(always(lambda: Suspend(), at=at)), goal="send it")
        assert status == "suspended"
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "suspended"
        request = await office.one()
        assert (request["scope"], request["rule"], dict(SENT)) == ("tool_call", "consequential", {})
        await office.say_of(request, "approve")
        assert await office.to_rest() == "succeeded"
        assert len(SENT) == 1

    async def test_where_fewer_can_decide_than_must_agree_the_call_is_refused_at_once(self, store, clock):
        """Two reviewers, and one of them has started the run."""

        def setup(app: App, send: Any) -> None:
            app.rule("two", when="true", tools=[send], quorum=2, reviewers=["alice", "bob"])

        office, _ = await at_rest(store, clock, a_desk(setup))
        assert (dict(SENT), await office.open_requests()) == ({}, [])
        assert "2 must agree, and only bob may decide what two asks" in (await office.told())[0]

    @pytest.mark.parametrize("at", ["plan", "dispatch"])
    async def test_a_plan_or_a_task_that_nobody_may_decide_ends_the_run_and_does_not_wait(self, store, clock, at: Any):
        made = a_desk(always(lambda: Suspend(), at=at), consequential=False, reviewers=["alice"])
        office, status = await at_rest(store, clock, made)
        assert (status, dict(SENT)) == ("failed", {})
        assert (await office.state())["failure"]["code"] == Code.NO_REVIEWER

    async def test_an_edit_that_would_leave_nobody_to_approve_it_is_refused_and_the_call_asked_as_it_was(
        self, store, clock
    ):
        office, _ = await at_rest(store, clock, a_desk(reviewers=["bob"]))
        first = await office.one()
        await office.say_of(first, "edit", value={"cents": 1})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert (second["supersedes"], second["request_hash"]) == (first["request_id"], first["request_hash"])
        assert (second["reviewers"], second["policy_digest"]) == ("bob", first["policy_digest"])
        assert "NO_REVIEWER" in second["reason"]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert len(SENT) == 1

    async def test_only_the_reviewers_of_a_question_decide_it(self, store, clock):
        office, _ = await at_rest(store, clock, a_desk(reviewers=["bob", "carol"]))
        request = await office.one()
        assert request["reviewers"] == "bob\ncarol"
        for word in ("approve", "reject"):
            receipt = await office.say_of(request, word, by="mallory")
            assert (receipt["answer"], receipt["failure"]["code"]) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
        assert await office.to_rest() == "suspended"
        await office.say_of(request, "approve", by="carol")
        assert await office.to_rest() == "succeeded"
        assert len(SENT) == 1

    # ── a decision and the gates after it ──────────────────────────────────────────────

    @case("D26")
    async def test_gates_that_now_deny_everything_are_not_asked_about_what_is_approved_but_about_what_is_next(
        self, store, clock
    ):
        asked: list[int] = []
        answers: list[Any] = [Suspend, Deny]

        def setup(app: App, send: Any) -> None:
            @app.gate("tool_call", tools=[send])
            def gate(subject: Any) -> Any:
                asked.append(subject.input["cents"])
                return answers[0]()

        made = a_desk(setup, call("send", cents=1), call("send", cents=2), "Told.")
        office, status = await at_rest(store, clock, made)
        assert (status, asked) == ("suspended", [1])
        answers.pop(0)
        await office.rebuild()
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "succeeded"
        assert (asked, len(SENT)) == ([1, 2], 1)
        assert [text[:11] for text in await office.told()] == ['"sent 1"', "GATE_DENIED"]

    @case("D26", "E14")
    async def test_an_approved_plan_is_not_asked_about_again_and_its_tasks_are(self, store, clock):
        denying = [False]

        def setup(app: App, send: Any) -> None:
            @app.gate("plan")
            def plans(subject: Any) -> Any:
                return Deny() if denying[0] else Suspend()

            @app.gate("dispatch")
            def tasks(subject: Any) -> Any:
                return Deny() if denying[0] else Allow()

        office, _ = await at_rest(store, clock, a_desk(setup), goal="send it")
        denying[0] = True
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "rejected"
        state = await office.state()
        assert state["failure"]["message"].startswith("tasks denies the task 't'")
        assert [name for name in office.asked if PLAN_THREAD in name.split("/")] == ["r1/plan/1"]
        assert not SENT
