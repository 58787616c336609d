"""Decides what people may say to a run besides yes, on every store: edit, answer, send back; and what time does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from placet import Allow, App, Deny, Suspend, ToolContext, ask_human, scripted
from placet.canonical import canonical_text
from placet.errors import Code
from placet.messages import DecideApproval, RevokeApproval
from placet.plans import DirectCall, PlannedTask
from placet.script import call, plan
from placet.values import Principal, PrincipalKind
from tests.cases import case
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


class DecidingContract(OnStore):
    """Whole runs, and what people say to them."""

    @pytest.fixture(autouse=True)
    def nothing_paid(self) -> None:
        PAID.clear()

    async def paying(self, store: Any, clock: Any, *steps: Any, **desk: Any) -> tuple[Desk, dict[str, Any]]:
        """A desk before its first question."""
        office = Desk(store, clock, a_desk(*steps, **desk))
        await office.submit(tasks=(PlannedTask(id="t", title="Pay c-1"),))
        await office.work()
        return office, await office.one()

    # ── edit ───────────────────────────────────────────────────────────────────────────

    @case("E39", "F01")
    async def test_an_edited_call_is_another_question_for_another_person_and_the_same_operation(self, store, clock):
        office, first = await self.paying(store, clock)
        receipt = await office.say_of(first, "edit", value={"customer": "c-1", "cents": 50})
        assert (receipt["answer"], receipt["outcome"], receipt["decided_by"]) == ("accepted", "superseded", "bob")
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert (second["request_id"], second["supersedes"]) == (receipt["successor"], first["request_id"])
        assert (second["operation_id"], second["boundary"]) == (first["operation_id"], first["boundary"])
        assert second["request_hash"] != first["request_hash"]
        assert (second["generation"], second["requesters"]) == (2, "bob")
        assert json.loads(second["content_text"])["input"] == {"customer": "c-1", "cents": 50}

        closed = await office.say_of(first, "approve", by="carol")
        assert (closed["answer"], closed["failure"]["code"]) == ("closed", Code.APPROVAL_CLOSED)
        assert closed["successor"] == second["request_id"]
        assert second["request_id"] in closed["failure"]["message"]
        own = await office.say_of(second, "approve", by="bob")
        assert (own["answer"], own["failure"]["code"]) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
        assert await office.to_rest() == "suspended"
        assert not PAID

        assert (await office.say_of(second, "approve", by="carol"))["answer"] == "accepted"
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 50": 1}
        (result,) = await office.told()
        assert 'made with {"cents":50,"customer":"c-1"}' in result
        assert result.endswith('"paid c-1 50"')

    @case("E39")
    async def test_an_edit_that_a_gate_denies_is_refused_and_the_call_as_it_was_is_asked_again(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "edit", value={"customer": "c-1", "cents": 5_000})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert second["content_text"] == first["content_text"]
        assert second["request_id"] != first["request_id"]
        assert "An edit by bob was refused" in second["reason"]
        assert "too much" in second["reason"]
        assert second["requesters"] == "", "what is asked is nobody's edit"
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 100": 1}

    @case("E39")
    async def test_an_edit_that_the_tool_cannot_read_loses_nothing(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "edit", value={"customer": "c-1", "cents": "many"})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert second["content_text"] == first["content_text"]
        assert "/cents" in second["reason"]
        assert not PAID

    async def test_where_the_gate_says_so_the_editor_may_approve_what_has_to_be_approved_all_the_same(
        self, store, clock
    ):
        office, first = await self.paying(store, clock, editor_may_approve=True)
        await office.say_of(first, "edit", value={"customer": "c-2"})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert (second["requesters"], PAID) == ("", Counter())
        assert (await office.say_of(second, "approve", by="bob"))["answer"] == "accepted"
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-2 100": 1}

    async def test_whoever_has_edited_it_before_stays_one_who_asks(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "edit", value={"customer": "c-2"})
        await office.work()
        await office.say_of(await office.one(), "edit", by="carol", value={"customer": "c-3"})
        await office.work()
        third = await office.one()
        assert (third["generation"], third["requesters"]) == (3, "bob\ncarol")
        for editor in ("bob", "carol"):
            assert (await office.say_of(third, "approve", by=editor))["answer"] == "not_allowed"
        await office.say_of(third, "approve", by="dora")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-3 100": 1}

    async def test_an_edited_call_that_is_rejected_is_not_made_in_any_form(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "edit", value={"customer": "c-2"})
        await office.work()
        await office.say_of(await office.one(), "reject", by="bob", reason="a slip")
        assert await office.to_rest() == "succeeded"
        assert not PAID
        assert await office.told() == ["A reviewer refused this call: a slip"]

    @case("F21", "E39")
    async def test_an_edited_run_may_be_rebuilt_after_every_single_applied_step(self, store, clock):
        office = Desk(store, clock, a_desk(), reopen=self.reopen)
        await office.submit(tasks=(PlannedTask(id="t", title="Pay c-1"),))
        await office.work()
        first = await office.one()
        await office.say_of(first, "edit", value={"customer": "c-1", "cents": 50})
        await office.work()
        await office.say_of(await office.one(), "approve", by="carol")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 50": 1}
        await office.store.close()

    async def test_a_plan_is_edited_as_a_whole_and_somebody_else_approves_it(self, store, clock):
        office = Desk(store, clock, a_planning_desk)
        await office.submit("pay them")
        await office.work()
        first = await office.one()
        tasks = [{"id": "only", "title": "Say it", "assignee": "clerk"}]
        receipt = await office.say_of(first, "edit", value={"tasks": tasks})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert second["request_id"] == receipt["successor"]
        assert [task["id"] for task in json.loads(second["content_text"])["tasks"]] == ["only"]
        assert (await office.say_of(second, "approve", by="bob"))["answer"] == "not_allowed"
        await office.say_of(second, "approve", by="carol")
        assert await office.to_rest() == "succeeded"
        assert [task["id"] for task in (await office.state())["tasks"]] == ["only"]

    async def test_an_edited_plan_that_is_none_is_refused_and_asked_as_it_was(self, store, clock):
        office = Desk(store, clock, a_planning_desk)
        await office.submit("pay them")
        await office.work()
        first = await office.one()
        tasks = [{"id": "a", "title": "A", "depends_on": ["b"]}, {"id": "b", "title": "B", "depends_on": ["a"]}]
        await office.say_of(first, "edit", value={"tasks": tasks})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert "cycle" in second["reason"]
        assert second["content_text"] == first["content_text"]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"

    # ── answers, refusals, changes ─────────────────────────────────────────────────────

    async def test_a_reviewer_answers_instead_of_the_tool_and_the_model_is_told_whose_words_they_are(
        self, store, clock
    ):
        office, first = await self.paying(store, clock)
        receipt = await office.say_of(first, "respond", value="c-1 has been paid by hand")
        assert (receipt["answer"], receipt["outcome"]) == ("accepted", "answered")
        assert await office.to_rest() == "succeeded"
        assert not PAID
        assert await office.told() == [
            "This call was not made: a reviewer answered instead of the tool. The answer: c-1 has been paid by hand"
        ]
        late = await office.say_of(first, "approve", by="carol")
        assert late["failure"]["code"] == Code.APPROVAL_CONFLICT

    @case("E36", "K11")
    async def test_a_denial_with_its_reason_is_the_result_of_that_call_and_no_word_of_a_user(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "reject", reason="ask the customer first")
        assert await office.to_rest() == "succeeded"
        assert await office.told() == ["A reviewer refused this call: ask the customer first"]
        rows = await office.store.rows(TENANT, "thread_message", "r1")
        assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
        assert not PAID

    @case("M30", "M31", "M32")
    async def test_what_is_sent_back_is_closed_and_the_next_proposal_is_another_question(self, store, clock):
        steps = (call("pay", customer="c-1"), call("pay", customer="c-1"), "Done.")
        office, first = await self.paying(store, clock, *steps)
        receipt = await office.say_of(first, "request_changes", reason="name the invoice")
        assert (receipt["answer"], receipt["outcome"]) == ("accepted", "superseded")
        assert "successor" not in receipt
        assert await office.to_rest() == "suspended"
        assert await office.told() == [
            "This call was not made. A reviewer asks for changes before this is approved: name the invoice"
        ]
        second = await office.one()
        assert second["request_id"] != first["request_id"]
        assert second["operation_id"] != first["operation_id"], "another proposal is another side effect"
        closed = await office.say_of(first, "approve", by="carol")
        assert (closed["answer"], closed["failure"]["code"]) == ("closed", Code.APPROVAL_CLOSED)
        assert not PAID
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{second['operation_id']} c-1 100": 1}

    @case("M30")
    async def test_a_plan_that_is_sent_back_is_planned_anew_and_its_first_question_is_closed(self, store, clock):
        office = Desk(store, clock, a_planning_desk)
        await office.submit("pay them")
        await office.work()
        first = await office.one()
        await office.say_of(first, "request_changes", reason="only one task")
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert (second["generation"], second["supersedes"]) == (2, first["request_id"])
        assert [task["id"] for task in json.loads(second["content_text"])["tasks"]] == ["one"]
        rows = [json.loads(r["body_text"]) for r in await office.store.rows(TENANT, "thread_message", "r1")]
        assert rows[-3]["text"] == "A reviewer asks for changes before this is approved: only one task"
        assert (await office.say_of(first, "approve"))["failure"]["code"] == Code.APPROVAL_CLOSED
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"

    async def test_a_given_plan_that_is_sent_back_ends_the_run_since_nobody_can_change_it(self, store, clock):
        office = Desk(store, clock, a_planning_desk)
        await office.submit(tasks=(PlannedTask(id="t", title="Pay"),))
        await office.work()
        await office.say_of(await office.one(), "request_changes", reason="no")
        assert await office.to_rest() == "rejected"

    # ── questions of agents ────────────────────────────────────────────────────────────

    async def test_an_agent_asks_a_person_who_answers_in_the_form_it_gave(self, store, clock):
        form = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
        asking = call(ask_human, question="How many?", answer_schema=form)
        office, first = await self.paying(store, clock, asking, "Done.")
        assert (first["scope"], first["operation_id"]) == ("question", "")
        assert await office.store.rows(TENANT, "operation", "r1") == []
        wrong = await office.say_of(first, "respond", value={"n": 0})
        assert (wrong["answer"], wrong["failure"]["code"]) == ("invalid", Code.APPROVAL_VALIDATION_ERROR)
        assert wrong["failure"]["pointer"] == "/value/n"
        no_word = await office.say_of(first, "approve")
        assert (no_word["answer"], no_word["failure"]["pointer"]) == ("invalid", "/decision")
        assert await office.to_rest() == "suspended"
        answered = await office.say_of(first, "respond", by="alice", value={"n": 3})
        assert answered["answer"] == "accepted", "whoever started the run may answer: nothing is approved by it"
        assert await office.to_rest() == "succeeded"
        assert await office.told() == ['A person answered: {"n":3}']

    async def test_an_answer_to_a_question_approves_no_call_of_the_same_turn(self, store, clock):
        steps = ([call(ask_human, question="May I pay?", options=["yes", "no"]), call("pay", customer="c-1")], "Done.")
        office = Desk(store, clock, a_desk(*steps))
        await office.submit(tasks=(PlannedTask(id="t", title="Pay c-1"),))
        await office.work()
        by_scope = {request["scope"]: request for request in await office.open_requests()}
        assert (await office.say_of(by_scope["question"], "respond", value="maybe"))["answer"] == "invalid"
        await office.say_of(by_scope["question"], "respond", value="yes")
        assert await office.to_rest() == "suspended"
        assert not PAID
        await office.say_of(by_scope["tool_call"], "reject")
        assert await office.to_rest() == "succeeded"
        assert not PAID
        assert await office.told() == ["A person answered: yes", "A reviewer refused this call."]

    async def test_a_person_may_decline_to_answer_and_a_form_that_is_none_is_told_to_the_model(self, store, clock):
        steps = (
            call(ask_human, question="Which?", answer_schema={"type": "string", "pattern": "(a+)+"}),
            call(ask_human, question="Which?"),
            "Done.",
        )
        office, first = await self.paying(store, clock, *steps)
        await office.say_of(first, "reject", reason="not mine to say")
        assert await office.to_rest() == "succeeded"
        refused, declined = await office.told()
        assert refused.startswith("TOOL_INPUT_INVALID: /answer_schema/pattern")
        assert declined == "The person declined to answer: not mine to say"

    # ── time ───────────────────────────────────────────────────────────────────────────

    async def run_out(self, office: Desk, clock: Any) -> str:
        """Nobody decides."""
        clock.at_ms += OPEN_S * 1_000
        return await office.to_rest()

    @case("M01")
    @pytest.mark.parametrize(("path", "ends"), [("tell", "succeeded"), ("fail", "expired")])
    async def test_what_nobody_decided_in_time_is_not_made_and_the_run_takes_its_path(self, store, clock, path, ends):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S, on_expiry=path)
        assert await self.run_out(office, clock) == ends
        assert not PAID
        (outcome,) = await office.store.rows(TENANT, "approval_outcome", "r1")
        assert (outcome["outcome"], outcome["decided_by"]) == ("expired", None)
        late = await office.say_of(first, "reject")
        assert late["failure"]["code"] == Code.APPROVAL_EXPIRED
        if path == "tell":
            assert await office.told() == ["Nobody decided on this call in time. It was not made."]

    @case("M01", "M23")
    async def test_asked_once_more_and_then_no_further(self, store, clock):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S, on_expiry="ask_again")
        assert await self.run_out(office, clock) == "suspended"
        second = await office.one()
        assert second["request_id"] != first["request_id"]
        assert second["content_text"] == first["content_text"]
        assert "asked once more" in second["reason"]
        assert (await office.say_of(first, "approve"))["failure"]["code"] == Code.APPROVAL_EXPIRED
        assert await self.run_out(office, clock) == "succeeded"
        assert not PAID

    @case("M01")
    async def test_who_decides_the_second_time_decides(self, store, clock):
        office, _ = await self.paying(store, clock, expires_after_s=OPEN_S, on_expiry="ask_again")
        await self.run_out(office, clock)
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "succeeded"
        assert list(PAID.values()) == [1]

    @case("M02")
    async def test_a_yes_after_the_deadline_and_before_the_timer_is_too_late(self, store, clock):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S)
        clock.at_ms += OPEN_S * 1_000
        late = await office.say_of(first, "approve")
        assert late["failure"]["code"] == Code.APPROVAL_EXPIRED
        assert await office.to_rest() == "succeeded"
        assert not PAID
        (outcome,) = await office.store.rows(TENANT, "approval_outcome", "r1")
        assert outcome["outcome"] == "expired"

    @case("M05")
    async def test_people_are_reminded_once_whatever_is_restarted(self, store, clock):
        office = Desk(store, clock, a_desk(expires_after_s=OPEN_S, remind_before_s=1_200), reopen=self.reopen)
        await office.submit(tasks=(PlannedTask(id="t", title="Pay c-1"),))
        await office.work(until=lambda: is_asked(office))
        clock.at_ms += 5_990_000
        assert "approval.expiring" not in await office.kinds()
        clock.at_ms += 11_000
        for _ in range(3):
            await office.work(until=lambda: told_of_the_end(office))
            await office.rebuild()
        assert (await office.kinds()).count("approval.expiring") == 1
        assert await office.to_rest() == "succeeded", "and it expires all the same"
        assert (await office.kinds()).count("approval.expiring") == 1
        await office.store.close()

    @case("M05")
    async def test_what_was_decided_is_not_reminded_of(self, store, clock):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S, remind_before_s=1_200)
        await office.say_of(first, "approve")
        await self.run_out(office, clock)
        assert "approval.expiring" not in await office.kinds()

    @case("M07", "M08")
    async def test_an_approval_that_was_not_used_in_time_is_asked_for_anew(self, store, clock):
        office, first = await self.paying(store, clock, use_within_s=60)
        await office.say_of(first, "approve")
        clock.at_ms += 61_000  # nobody was at work
        assert await office.to_rest() == "suspended"
        assert not PAID
        second = await office.one()
        assert (second["generation"], second["operation_id"]) == (2, first["operation_id"])
        assert "was not used in time" in second["reason"]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 100": 1}

    @case("M07")
    async def test_only_the_executor_was_late(self, store, clock):
        office, first = await self.paying(store, clock, use_within_s=60)
        await office.say_of(first, "approve")
        await office.work(until=lambda: is_released(office))
        clock.at_ms += 61_000
        assert await office.to_rest() == "suspended"
        assert not PAID
        second = await office.one()
        assert second["supersedes"] == first["request_id"]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 100": 1}

    # ── taking back ────────────────────────────────────────────────────────────────────

    async def revoke(self, office: Desk, request: dict[str, Any]) -> dict[str, Any]:
        message = RevokeApproval(
            tenant=TENANT,
            run_id="r1",
            request_id=request["request_id"],
            operation_id=request["operation_id"],
            by=Principal(kind=PrincipalKind.HUMAN, id="bob"),
            reason="wrong one",
        )
        Desk.said += 1
        await office.say(message, f"revoke-{Desk.said}")
        return dict(json.loads(office.answers[-1]))

    @case("M25", "M26", "M28", "M29")
    async def test_an_approval_that_is_taken_back_in_time_lets_nothing_happen_ever(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "approve")
        await office.work(until=lambda: is_released(office))
        assert (await self.revoke(office, first))["answer"] == "accepted"
        assert (await self.revoke(office, first))["answer"] == "duplicate"
        again = await office.say_of(first, "approve", by="carol")
        assert again["failure"]["code"] == Code.APPROVAL_REVOKED
        assert await office.to_rest() == "succeeded"
        assert not PAID
        (result,) = await office.told()
        assert result.startswith("APPROVAL_REVOKED")

    @case("M27")
    async def test_what_has_happened_is_not_undone_by_taking_back_and_that_is_said(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "approve")
        await office.to_rest()
        refused = await self.revoke(office, first)
        assert refused["failure"]["code"] == Code.OPERATION_CONSUMED
        assert "already consumed" in refused["failure"]["message"]
        answers = [row["answer"] for row in await office.store.rows(TENANT, "decision_attempt", "r1")]
        assert answers == ["accepted", "refused"]
        assert list(PAID.values()) == [1]

    # ── partial release ────────────────────────────────────────────────────────────────

    def two(self, run_id: str = "r1") -> tuple[PlannedTask, ...]:
        """Two calls that depend on nothing."""
        return tuple(
            PlannedTask(id=name, title="Pay", call=DirectCall(tool="pay", input={"customer": name}))
            for name in ("a", "b")
        )

    @case("M56")
    @pytest.mark.parametrize("by", ["team", "run"])
    async def test_with_each_an_approved_call_is_made_while_the_other_waits(self, store, clock, by):
        office = Desk(store, clock, a_desk(release="each" if by == "team" else "all"))
        await office.submit(tasks=self.two(), **({"release": "each"} if by == "run" else {}))
        await office.work()
        first, second = await office.open_requests()
        await office.say_of(first, "approve")
        assert await office.to_rest() == "suspended"
        assert list(PAID) == [f"{first['operation_id']} a 100"]
        assert [task["status"] for task in (await office.state())["tasks"]] == ["succeeded", "running"]
        assert [request["request_id"] for request in await office.open_requests()] == [second["request_id"]]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert sorted(PAID.values()) == [1, 1]

    @case("M56")
    async def test_with_each_the_model_still_waits_for_every_result_of_its_turn(self, store, clock):
        steps = ([call("pay", customer="a"), call("pay", customer="b")], "Done.")
        office = Desk(store, clock, a_desk(*steps, release="each"))
        await office.submit(tasks=(PlannedTask(id="t", title="Pay both"),))
        await office.work()
        first, second = await office.open_requests()
        await office.say_of(first, "approve")
        assert await office.to_rest() == "suspended"
        assert len(PAID) == 1
        assert await office.told() == []
        await office.say_of(second, "reject")
        assert await office.to_rest() == "succeeded"
        assert await office.told() == ['"paid a 100"', "A reviewer refused this call."]
        assert len(PAID) == 1

    @case("D04", "M56")
    async def test_without_it_nothing_is_made_while_anything_is_undecided(self, store, clock):
        office = Desk(store, clock, a_desk())
        await office.submit(tasks=self.two())
        await office.work()
        first, _ = await office.open_requests()
        await office.say_of(first, "approve")
        assert await office.to_rest() == "suspended"
        assert not PAID

    # ── ends ───────────────────────────────────────────────────────────────────────────

    @case("M50")
    async def test_cancelling_the_run_closes_what_was_edited_and_asked_as_well(self, store, clock):
        from placet.messages import CancelRun

        office, first = await self.paying(store, clock)
        await office.say_of(first, "edit", value={"customer": "c-2"})
        await office.work()
        second = await office.one()
        by = Principal(kind=PrincipalKind.HUMAN, id="alice")
        await office.say(CancelRun(tenant=TENANT, run_id="r1", by=by), "cancel")
        assert await office.to_rest() == "cancelled"
        assert await office.open_requests() == []
        late = await office.say_of(second, "approve", by="carol")
        assert late["failure"]["code"] == Code.APPROVAL_CLOSED
        assert not PAID


async def is_asked(office: Office) -> bool:
    return bool(await office.open_requests())


async def is_released(office: Office) -> bool:
    """Whether the order to start is on its way, and no further."""
    state = await office.state()
    return any(call["status"] == "running" for task in state["tasks"] for call in task["calls"])


async def told_of_the_end(office: Office) -> bool:
    return "approval.expiring" in await office.kinds()


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
