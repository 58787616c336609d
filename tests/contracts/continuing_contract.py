"""Decides what is proved, on every store, of runs that go on: resumed, continued, interrupted, woken, and ended."""

from __future__ import annotations

import json
from typing import Any

from placet.errors import ErrorClass
from placet.ids import Address
from placet.messages import (
    THREAD,
    CancelRun,
    ModelAnswered,
    decode_envelope,
)
from placet.runtime.ports import Delivery
from placet.script import call, fail
from placet.values import Principal, PrincipalKind
from placet_dispatcher.words import CONTINUATION
from tests.cases import case
from tests.contracts.desks import decided
from tests.contracts.going import PAID, TASK, Going, an_instruction, an_office, obeys
from tests.rebuilding import ALICE, BOB, TENANT, Office


class ContinuingContract(Going):
    """Runs that go on."""

    # ── a further instruction ──────────────────────────────────────────────────────────

    @case("K01", "K07")
    async def test_a_continued_conversation_holds_the_task_once_and_repeats_no_finished_call(self, store, clock):
        office = Office(store, clock, lambda: an_office(call("pay", to="c-1"), "Paid.", obeys))
        await office.submit(tasks=(TASK,))
        assert (await office.to_the_end())["status"] == "succeeded"
        await office.say(an_instruction(), "continue-1")
        state = await office.to_the_end()
        assert (state["status"], state["answer"]) == ("succeeded", "It is paid; nothing was left to do.")
        assert list(PAID.values()) == [1]
        said = await self.said(office)
        assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        texts = [message["text"] for message in said if message["role"] == "user"]
        assert sum("Pay the invoice of c-1" in text for text in texts) == 1
        assert texts[1:] == [f"{CONTINUATION}\n\nAnd tell them."]
        threads = {row["thread_id"] for row in await store.rows(TENANT, "thread_message", "r1")}
        assert threads == {"task:one"}

    @case("J03")
    async def test_a_turn_that_failed_can_be_followed_by_another_in_the_same_run(self, store, clock):
        failing = fail("no such model", error_class=ErrorClass.DENIED)
        steps: list[Any] = [failing]
        office = Office(store, clock, lambda: an_office(lambda conversation: steps[-1]))
        await office.submit(tasks=(TASK,))
        state = await office.to_the_end()
        assert (state["status"], state["failure"]["code"]) == ("failed", "TASK_FAILED")
        thread = await store.state(TENANT, Address("r1", THREAD, "task:one"))
        assert thread["status"] == "failed"
        steps.append("It works.")
        await office.say(an_instruction("Try again."), "continue-1")
        state = await office.to_the_end()
        assert (state["status"], state["answer"], state["run_id"]) == ("succeeded", "It works.", "r1")
        assert [message["role"] for message in await self.said(office)] == ["user", "user", "assistant"]

    @case("K02", "I07", "K08")
    async def test_a_crash_between_the_note_and_the_model_call_leaves_one_note(self, store, clock):
        """Whoever made the call is gone: when its lease ends another one makes it, as the next attempt."""
        office = Office(store, clock, lambda: an_office("Done.", "Told."), reopen=self.reopen, lose=False)
        await office.submit(tasks=(TASK,))
        await office.to_the_end()
        office.hold = True
        await office.say(an_instruction(), "continue-1")
        await office.work(until=lambda: self.calls(office))
        for _ in range(2):
            await office.rebuild()
            await office.say(an_instruction(), "continue-1 again")
        assert json.loads(office.answers[-1])["answer"] == "duplicate"
        office.hold = False
        state = await office.to_the_end()
        assert (state["status"], state["answer"]) == ("succeeded", "Told.")
        notes = [said for said in await self.said(office) if CONTINUATION in said.get("text", "")]
        assert len(notes) == 1
        thread = await office.store.state(TENANT, Address("r1", THREAD, "task:one"))
        assert (thread["body"]["attempt"], thread["body"]["lost"]) == (2, 1)
        await office.store.close()

    @case("K03", "I18", "I19")
    async def test_a_run_that_waits_for_approval_gets_no_note_and_asks_no_model(self, store, clock):
        office = Office(store, clock, lambda: an_office(call("pay", to="c-1"), "Paid.", asks=True))
        await office.submit(tasks=(TASK,))
        await office.work()
        before, asked = await self.said(office), dict(office.asked)
        [request] = await office.open_requests()
        for turn in range(3):
            await office.say(an_instruction(name=f"i-{turn}"), f"continue-{turn}")
            refused = json.loads(office.answers[-1])
            assert refused["failure"]["code"] == "TURN_BUSY"
            assert refused["failure"]["details"]["waiting_for"] == [request["request_id"]]
            await office.say(decided(request["request_id"]), f"wake-{turn}")
            await office.work()
        assert (await office.state())["status"] == "suspended"
        assert (await self.said(office), office.asked) == (before, asked)
        assert [row["request_id"] for row in await office.open_requests()] == [request["request_id"]]
        await office.decide(request)
        assert (await office.to_the_end())["status"] == "succeeded"

    @case("I10", "I01", "I22")
    async def test_the_same_instruction_from_two_at_once_is_one_turn(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done.", "Told.", "Told again."))
        await office.submit(tasks=(TASK,))
        await office.to_the_end()
        both = [an_instruction(), an_instruction(name="i-2"), an_instruction(name="i-1")]
        settlement = await office.engine.process([self.delivery(each, at) for at, each in enumerate(both)])
        answers = [json.loads(text) for _, text in settlement.replies]
        assert [answer["answer"] for answer in answers] == ["accepted", "joined", "duplicate"]
        assert {answer["turn"] for answer in answers} == {"task:one/2"}
        other = await office.engine.process([self.delivery(an_instruction("Something else.", "i-3"), 9)])
        busy = json.loads(other.replies[0][1])["failure"]
        assert (busy["code"], busy["details"]["turn"]) == ("TURN_BUSY", "task:one/2")
        await office.to_the_end()
        assert [name for name in office.asked if name.endswith("/2")] == ["r1/task:one/2"]
        assert office.asked["r1/task:one/2"] == 1
        await office.say(an_instruction("Something else.", "i-3"), "continue-3")
        assert (await office.to_the_end())["answer"] == "Told again.", "what was refused aloud can be said later"

    @case("I09")
    async def test_strangers_are_told_of_a_run_what_they_are_told_of_none(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done.", "Told."))
        await office.submit(tasks=(TASK,))
        service = Principal(kind=PrincipalKind.SERVICE, id=ALICE.id)
        for person in (BOB, service):
            for run_id in ("r1", "none"):
                await office.say(an_instruction(by=person, run_id=run_id), f"{person.kind}-{run_id}")
        await office.say(an_instruction(tenant="globex"), "foreign")
        told = [json.loads(answer) for answer in office.answers[1:]]
        plain = {json.dumps(answer).replace("none", "r1") for answer in told}
        assert len(told) == 5
        assert len(plain) == 1, "not one word of difference"
        assert "RUN_NOT_FOUND" in plain.pop()

    # ── interrupted ────────────────────────────────────────────────────────────────────

    @case("J12", "I21", "I17")
    async def test_an_interrupted_turn_is_followed_by_another_and_its_late_reply_is_dropped(self, store, clock):
        office = Office(store, clock, lambda: an_office("too late", "This way."))
        await office.submit(tasks=(TASK,))
        office.hold = True
        await office.work(until=lambda: self.calls(office))
        for turn, code in (("task:one/7", "TURN_MISMATCH"), ("plan/1", "TURN_MISMATCH")):
            await office.say(self.interruption(turn), f"stop-{turn}")
            assert json.loads(office.answers[-1])["failure"]["code"] == code
        assert await self.calls(office), "the current turn is untouched"
        await office.say(self.interruption("task:one/1"), "stop")
        await office.work()
        assert (await office.state())["status"] == "suspended"
        journal = len(await store.journal(TENANT, "r1"))
        late = ModelAnswered.model_validate(
            {"tenant": TENANT, "run_id": "r1", "thread_id": "task:one", "turn": 1, "attempt": 1, "reply": {"text": "x"}}
        )
        await office.say(late, "late")
        assert len(await store.journal(TENANT, "r1")) == journal, "nothing is written"
        await office.say(self.interruption(""), "again")
        assert json.loads(office.answers[-1])["answer"] == "nothing_interrupted"
        office.hold = False
        await office.say(an_instruction("The other way."), "continue-1")
        state = await office.to_the_end()
        assert state["status"] == "succeeded"
        assert [said["role"] for said in await self.said(office)] == ["user", "user", "assistant"]

    # ── ends ───────────────────────────────────────────────────────────────────────────

    @case("J01", "J15", "J09")
    async def test_a_cancelled_run_is_cancelled_for_ever_and_no_boot_revives_it(self, store, clock):
        office = Office(
            store, clock, lambda: an_office(call("pay", to="c-1"), "Paid.", asks=True), reopen=self.reopen, lose=False
        )
        await office.submit(tasks=(TASK,))
        await office.work()
        [request] = await office.open_requests()
        await office.say(CancelRun(tenant=TENANT, run_id="r1", by=ALICE), "cancel")
        await office.work()
        assert (await office.state())["status"] == "cancelled"
        await office.rebuild()
        await office.decide(request)
        closed = json.loads(office.answers[-1])
        assert closed["failure"]["code"] == "APPROVAL_CLOSED"
        await office.say(an_instruction(), "continue")
        assert json.loads(office.answers[-1])["failure"]["code"] == "RUN_TERMINAL"
        await office.say(decided(request["request_id"]), "wake")
        await office.work()
        assert (await office.state())["status"] == "cancelled"
        assert not PAID
        [outcome] = await office.store.rows(TENANT, "approval_outcome", "r1")
        assert outcome["outcome"] == "cancelled"
        await office.store.close()

    @case("J07", "L02")
    async def test_a_cancel_before_the_turn_starts_asks_no_model(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done."))
        await office.submit(tasks=(TASK,))
        await office.say(CancelRun(tenant=TENANT, run_id="r1", by=ALICE), "cancel")
        late_first = sorted(await self.due(office), key=lambda row: b"turn.take" in row.body)
        for at, row in enumerate(late_first):
            await office.engine.process([Delivery(decode_envelope(row.body), at, row.id, row.body)])
        await office.work()
        assert office.asked == {}
        assert (await office.state())["status"] == "cancelled"
        journal = await store.journal(TENANT, "r1")
        assert sum(entry["type"] == "thread.close" for entry in journal) == 1, "one cleanup"

    @case("J02", "J15")
    async def test_a_process_that_was_shut_down_goes_on_with_the_same_run(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done."), reopen=self.reopen, lose=False)
        await office.submit(tasks=(TASK,))
        office.hold = True
        await office.work(until=lambda: self.calls(office))
        await office.rebuild()
        office.hold = False
        state = await office.to_the_end()
        assert (state["status"], state["run_id"], state["answer"]) == ("succeeded", "r1", "Done.")
        await office.store.close()

    @case("J08", "L02")
    async def test_what_had_been_said_before_a_cancel_is_kept_and_nothing_is_written_afterwards(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done."))
        await office.submit(tasks=(TASK,))
        office.hold = True
        await office.work(until=lambda: self.calls(office))
        await office.say(CancelRun(tenant=TENANT, run_id="r1", by=ALICE), "cancel")
        await office.work()
        message: dict[str, Any] = {"type": "model.failed", "tenant": TENANT, "run_id": "r1", "thread_id": "task:one"}
        message |= {"turn": 1, "attempt": 1, "failure": {"code": "CANCELLED", "message": "stopped"}}
        for at, text in enumerate(("I have pa", "I have paid", "")):
            body = {"v": 1, "id": f"m{at}", "message": {**message, "partial_text": text}}
            delivery = Delivery(decode_envelope(json.dumps(body).encode()), at)
            await office.engine.process([delivery])
            await office.work()
            thread = await store.state(TENANT, Address("r1", THREAD, "task:one"))
            assert (thread["status"], thread["body"]["partial_text"]) == ("closed", "I have pa")
        journal = await store.journal(TENANT, "r1")
        assert sum(entry["type"] == "model.failed" for entry in journal) == 1
        assert [said["role"] for said in await self.said(office)] == ["user"]

    @case("K11")
    async def test_a_refusal_comes_as_the_result_of_its_call_and_never_as_words_of_a_user(self, store, clock):
        office = Office(store, clock, lambda: an_office(call("pay", to="c-1"), "Not paid.", asks=True))
        await office.submit(tasks=(TASK,))
        await office.work()
        [request] = await office.open_requests()
        await office.decide(request, "reject", reason="not this one")
        await office.to_the_end()
        said = await self.said(office)
        assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant"]
        [result] = said[2]["results"]
        asked = said[1]["reply"]["calls"][0]["call_id"]
        assert (result["call_id"], result["ok"], "not this one" in result["text"]) == (asked, False, True)
        assert not PAID
