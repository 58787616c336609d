"""Decides what is proved, on every store, of runs that go on: resumed, continued, interrupted, woken, and ended."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from placet import App, Suspend, ToolContext, scripted
from placet.activities import CallModel
from placet.calls import ModelReply, ToolCall, UserText
from placet.errors import Code, ErrorClass, Failure
from placet.ids import Address
from placet.messages import (
    THREAD,
    CancelRun,
    ContinueRun,
    Envelope,
    InterruptRun,
    Message,
    ModelAnswered,
    SubmitRun,
    TurnFailed,
    decode_envelope,
)
from placet.plans import PlannedTask
from placet.runtime.engine import Engine
from placet.runtime.ports import Delivery
from placet.script import call, fail
from placet.values import Principal, PrincipalKind
from placet_dispatcher.words import CONTINUATION
from placet_embedded.system import machines
from tests.cases import case
from tests.contracts.desks import decided
from tests.contracts.on_store import OnStore
from tests.rebuilding import ALICE, BOB, CLAIM_MS, TENANT, Office

TASK = PlannedTask(id="one", title="Pay the invoice of c-1", assignee="clerk")
PAID: Counter[str] = Counter()


def obeys(conversation: Any) -> Any:
    """A model that begins the task again whenever it is told to, but not when it is told that finished work stays."""
    last = next(said for said in reversed(conversation) if isinstance(said, UserText))
    return "It is paid; nothing was left to do." if CONTINUATION in last.text else call("pay", to="c-1")


def an_office(*steps: Any, asks: bool = False) -> App:
    """One clerk with one tool; `asks`: whose every call waits for a person."""
    app = App("desk", version="1")

    @app.tool(effect="idempotent", consequential=asks)
    async def pay(ctx: ToolContext, to: str) -> str:
        """Pay."""
        PAID[ctx.idempotency_key] += 1
        return f"paid {to}"

    if asks:

        @app.gate("tool_call", tools=[pay])
        def a_person_reads_it(subject: Any) -> Suspend:
            return Suspend("every payment is read")

    app.team("desk", agents=[app.agent("clerk", model=scripted(*steps), tools=[pay])])
    return app


def an_instruction(text: str = "And tell them.", name: str = "i-1", **more: Any) -> ContinueRun:
    return ContinueRun(**{"tenant": TENANT, "run_id": "r1", "instruction_id": name, "text": text, "by": ALICE, **more})


class ContinuingContract(OnStore):
    """Runs that go on."""

    @pytest.fixture(autouse=True)
    def no_payment_yet(self) -> None:
        PAID.clear()

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
        await office.say(self.interruption(""), "again")
        assert json.loads(office.answers[-1])["answer"] == "nothing_interrupted"
        assert len(await store.journal(TENANT, "r1")) == journal, "nothing is written"
        office.hold = False
        await office.say(an_instruction("The other way."), "continue-1")
        state = await office.to_the_end()
        assert state["status"] == "succeeded"
        assert [said["role"] for said in await self.said(office)] == ["user", "user", "assistant"]

    # ── starts and wakes ───────────────────────────────────────────────────────────────

    @case("I01")
    async def test_two_starts_of_one_run_at_once_are_one_run_and_both_are_answered(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done."))
        submission = SubmitRun(tenant=TENANT, run_id="r1", team="desk", mode="tasks", tasks=(TASK,), initiator=ALICE)
        engines = [Engine(machines(), office.app, store, hand_over=False) for _ in range(2)]
        settled = await asyncio.gather(
            *(engine.process([self.delivery(submission, at)]) for at, engine in enumerate(engines))
        )
        answers = sorted(json.loads(settlement.replies[0][1])["answer"] for settlement in settled)
        assert answers == ["accepted", "duplicate"]
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(office.asked.values()) == [1]

    @case("I02", "I03")
    async def test_a_hundred_wakes_are_one_pass_and_only_the_first_does_anything(self, store, clock):
        office = Office(store, clock, lambda: an_office(call("pay", to="c-1"), "Paid.", asks=True))
        await office.submit(tasks=(TASK,))
        await office.work()
        [request] = await office.open_requests()
        await office.decide(request)
        counting = Counting(store)
        engine = Engine(machines(), office.app, counting, hand_over=False)
        wakes = [self.delivery(decided(request["request_id"]), at) for at in range(100)]
        version = (await office.state())["version"]
        await engine.process(wakes[:1])
        assert (counting.loads, counting.commits) == (1, 1), "idle: one wake, one pass"
        assert (await office.state())["version"] == version + 1
        await engine.process(wakes[1:])
        assert (counting.loads, counting.commits) == (2, 1), "all others together: one more pass, which finds nothing"
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(PAID.values()) == [1]

    @case("I05", "I04")
    async def test_two_consumers_of_one_event_release_one_call(self, store, clock):
        office = Office(store, clock, lambda: an_office(call("pay", to="c-1"), "Paid.", asks=True))
        for run_id in ("r1", "r2"):
            await office.submit(tasks=(TASK,), run_id=run_id)
        await office.work()
        for run_id in ("r1", "r2"):
            [request] = await office.open_requests(run_id)
            await office.decide(request)
        [wake] = [row for row in await self.due(office) if row.run_id == "r1" and b"approval.decided" in row.body]
        engines = [Engine(machines(), office.app, store, hand_over=False) for _ in range(2)]
        deliveries = [Delivery(decode_envelope(wake.body), at, wake.id, wake.body) for at in range(2)]
        settled = await asyncio.gather(
            *(engine.process([delivery]) for engine, delivery in zip(engines, deliveries, strict=True))
        )
        assert all(settlement.done and not settlement.back for settlement in settled), "both acknowledge"
        clock.at_ms += CLAIM_MS
        assert (await office.to_the_end())["status"] == "succeeded"
        assert (await office.to_the_end("r2"))["status"] == "succeeded"
        assert sorted(PAID.values()) == [1, 1]
        attempts = await store.rows(TENANT, "operation_attempt", "r1")
        assert len(attempts) == 1

    @case("I26")
    async def test_a_turn_is_claimed_before_its_model_is_asked_in_the_commit_that_begins_it(self, store, clock):
        office = Office(store, clock, lambda: an_office("Done."))
        await office.submit(tasks=(TASK,))
        [row] = [row for row in await self.due(office) if b"turn.take" in row.body]
        settlement = await office.engine.process([Delivery(decode_envelope(row.body), 1, row.id, row.body)])
        [activity] = settlement.activities
        assert isinstance(activity, CallModel)
        assert office.asked == {}, "the model is not asked before the commit"
        thread = await store.state(TENANT, Address("r1", THREAD, "task:one"))
        assert (thread["status"], thread["version"], thread["body"]["attempt"]) == ("calling", 1, 1)
        assert [row["n"] for row in await store.rows(TENANT, "thread_message", "r1")] == [1]
        again = await office.engine.process([Delivery(decode_envelope(row.body), 2, row.id, row.body)])
        assert again.activities == [], "whoever comes second gets no call"

    @case("I13")
    @pytest.mark.parametrize("failure_first", [True, False])
    async def test_a_wake_that_races_a_failure_loses_neither(self, store, clock, failure_first):
        """Both come in one moment: the failure is delivered, and the other task goes on exactly once."""
        office = Office(store, clock, lambda: an_office(self.two_ways, "Paid.", asks=True))
        await office.submit(tasks=(TASK, PlannedTask(id="two", title="fail", assignee="clerk")))
        office.hold = True
        await office.work(until=lambda: self.calls(office))
        about: dict[str, Any] = {"tenant": TENANT, "run_id": "r1", "turn": 1}
        asked = ModelReply(calls=(ToolCall(call_id="c1", tool="pay", input_text='{"to":"c-1"}'),))
        await office.say(ModelAnswered(**about, thread_id="task:one", attempt=1, reply=asked), "answer")
        await office.work(until=lambda: self.has_open(office))
        [request] = await office.open_requests()
        await office.decide(request)
        failed = TurnFailed(**about, thread_id="task:two", failure=Failure(code=Code.MODEL_FAILED, message="no"))
        both = [self.delivery(failed, 1), self.delivery(decided(request["request_id"]), 2)]
        settlement = await office.engine.process(both if failure_first else both[::-1])
        assert len(settlement.done) == 2
        office.hold = False
        state = await office.to_the_end()
        assert state["status"] == "failed"
        assert {task["id"]: task["status"] for task in state["tasks"]} == {"one": "succeeded", "two": "failed"}
        assert list(PAID.values()) == [1]
        released = [e for e in await store.journal(TENANT, "r1") if e["type"] == "operation.execute"]
        assert len(released) == 1

    @staticmethod
    def two_ways(conversation: Any) -> Any:
        first = conversation[0].text
        return fail("no", error_class=ErrorClass.DENIED) if first.startswith("fail") else call("pay", to="c-1")

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

    # ── helpers ────────────────────────────────────────────────────────────────────────

    @staticmethod
    def delivery(message: Message, at: int) -> Delivery:
        envelope = Envelope(id=f"m-{at}", reply_to=f"r-{at}", message=message)  # type: ignore[arg-type]
        return Delivery(envelope, at)

    @staticmethod
    def interruption(turn: str) -> InterruptRun:
        return InterruptRun(tenant=TENANT, run_id="r1", by=ALICE, turn=turn)

    @staticmethod
    async def said(office: Office) -> list[dict[str, Any]]:
        rows = await office.store.rows(TENANT, "thread_message", "r1")
        return [json.loads(row["body_text"]) for row in sorted(rows, key=lambda row: row["n"])]

    @staticmethod
    async def calls(office: Office) -> bool:
        thread = await office.store.state(TENANT, Address("r1", THREAD, "task:one"))
        return thread is not None and thread["status"] == "calling"

    @staticmethod
    async def has_open(office: Office) -> bool:
        return bool(await office.open_requests())

    @staticmethod
    async def due(office: Office) -> list[Any]:
        return list(await office.store.claim_due(100, CLAIM_MS))


class Counting:
    """A store that counts passes."""

    compares_and_sets = True
    is_verbatim = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.loads = self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load(self, *asked: Any) -> Any:
        self.loads += 1
        return await self._inner.load(*asked)

    async def commit(self, units: Any) -> Any:
        self.commits += 1
        return await self._inner.commit(units)
