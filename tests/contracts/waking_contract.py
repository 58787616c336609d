"""Decides what is proved, on every store, of starts and wakes: together they are one pass, and none is lost (I)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from placet.activities import CallModel
from placet.calls import ModelReply, ToolCall
from placet.errors import Code, ErrorClass, Failure
from placet.ids import Address
from placet.messages import (
    THREAD,
    ModelAnswered,
    SubmitRun,
    TurnFailed,
    decode_envelope,
)
from placet.plans import PlannedTask
from placet.runtime.engine import Engine
from placet.runtime.ports import Delivery
from placet.script import call, fail
from placet_embedded.system import machines
from tests.cases import case
from tests.contracts.desks import decided
from tests.contracts.going import PAID, TASK, Counting, Going, an_office
from tests.rebuilding import ALICE, CLAIM_MS, TENANT, Office


class WakingContract(Going):
    """Starts, wakes, and who has the work."""

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
