"""Decides what people may say to a run besides yes, on every store: edit, answer, send back."""

from __future__ import annotations

import json
from collections import Counter

from placet import ask_human
from placet.errors import Code
from placet.plans import PlannedTask
from placet.script import call
from tests.cases import case
from tests.contracts.paying_desk import PAID, AtDesk, Desk, a_desk, a_planning_desk
from tests.rebuilding import TENANT


class DecidingContract(AtDesk):
    """Whole runs, and what people say to them."""

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
