"""Decides what a run may rely on, on every store: torn down at any moment, it goes on where it was (F, H and D)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from placet import Deny
from placet.believing import ReplayedVoices
from placet.errors import Code, RetryableError
from placet.ids import Address, trace_id
from placet.messages import OPERATION, RUN, ForkRun
from placet.plans import PlannedTask
from placet.runtime.ports import StateWrite, Unit
from placet.runtime.replay import replay
from placet_embedded.system import machines
from placet_gateway.reading import run_view
from tests.cases import case
from tests.contracts.desks import DONE, a_desk, an_app, call_task, decided, more_tasks
from tests.contracts.on_store import OnStore
from tests.rebuilding import ALICE, TENANT, Office


class RestoringContract(OnStore):
    """Whole runs."""

    archive: Callable[[Any], Any]
    """What the owner of a store may do."""

    @pytest.fixture(autouse=True)
    def nothing_done(self) -> None:
        DONE.clear()

    @case("F21", "H22")
    async def test_everything_may_be_rebuilt_after_every_single_applied_step(self, store, clock):
        """Plan, suspend, approve, tool, answer: as often torn down as there are steps, and nothing is different."""
        calm = Office(store, clock, an_app)
        await calm.submit("note it", run_id="calm")
        undisturbed = await calm.to_the_end("calm")
        done = Counter(name.split(" ")[1] for name in DONE)
        assert undisturbed["status"] == "succeeded"
        DONE.clear()
        office = Office(store, clock, an_app, reopen=self.reopen)
        await office.submit("note it", run_id="torn")
        state = await office.to_the_end("torn")
        assert (state["status"], state["answer"]) == (undisturbed["status"], undisturbed["answer"])
        assert [task["output"] for task in state["tasks"]] == [task["output"] for task in undisturbed["tasks"]]
        assert Counter(name.split(" ")[1] for name in DONE) == done
        assert set(DONE.values()) == {1}
        asked = {name.replace("torn/", "calm/"): times for name, times in office.asked.items()}
        assert asked == calm.asked
        assert set(asked.values()) == {1}
        assert office.rebuilt > 40
        assert len(office.lost) == len(office.asked) + len(DONE)
        assert await office.kinds("torn") == await office.kinds("calm")
        await office.store.close()

    # ── the crash windows, told apart from the record alone ────────────────────────────

    @case("F02", "F20", "H22")
    async def test_approved_and_not_started_is_started_once(self, store, clock):
        office = await self.asked(store, clock)
        (request,) = await office.open_requests()
        await office.decide(request)
        assert await self.operations(office) == {}
        await office.rebuild()
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(DONE.values()) == [1]
        await office.store.close()

    @case("F03", "F20", "H22")
    @pytest.mark.parametrize("effect", ["idempotent", "non_retriable"])
    async def test_started_and_not_reported_is_done_again_or_asked_about(self, store, clock, effect):
        office = await self.asked(store, clock, effect)
        (request,) = await office.open_requests()
        await office.decide(request)
        office.hold = True
        await office.work(until=lambda: self.has_attempts(office, 1))
        (operation,) = await self.operations(office)
        await office.rebuild()
        office.hold = False
        await office.work()
        if effect == "idempotent":
            assert dict(DONE) == {f"{operation} a": 1}
            assert (await office.state())["status"] == "succeeded"
        else:
            assert not DONE
            (question,) = await office.open_requests()
            assert (question["scope"], question["operation_id"]) == ("operation_outcome", operation)
            assert "OPERATION_OUTCOME_UNKNOWN" in json.dumps(await self.operation(office, operation))
            await office.decide(question, "not_executed")
            await office.work()
            assert not DONE
        await office.store.close()

    @case("F04", "H22")
    async def test_done_and_not_committed_is_called_again_under_the_same_key(self, store, clock):
        """The world has seen the key before: it is one effect."""
        office = await self.asked(store, clock)
        (request,) = await office.open_requests()
        await office.decide(request)
        await office.work(until=lambda: self.has_result(office))
        assert list(DONE.values()) == [1]
        await office.rebuild()
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(DONE.values()) == [2]  # calls, of one key
        assert len(DONE) == 1
        await office.store.close()

    @case("F06", "H22")
    @pytest.mark.parametrize("text", ["a", "fail"])
    async def test_a_committed_result_is_told_to_the_model_and_the_tool_is_not_called(self, store, clock, text):
        office = await self.asked(store, clock, text=text)
        (request,) = await office.open_requests()
        await office.decide(request)
        await office.work(until=lambda: self.is_settled(office))
        done = dict(DONE)
        await office.rebuild()
        state = await office.to_the_end()
        assert dict(DONE) == done
        assert state["status"] == ("succeeded" if text == "a" else "failed")
        await office.store.close()

    # ── restore ────────────────────────────────────────────────────────────────────────

    @case("D01")
    async def test_a_wake_of_a_run_that_there_never_was_starts_nothing(self, store, clock):
        office = Office(store, clock, an_app, reopen=self.reopen)
        await office.say(decided("apr_1"), "wake")
        assert json.loads(office.answers[0])["answer"] == "not_found"
        assert await office.store.states_of(TENANT, "r1") == []
        await office.submit(tasks=(PlannedTask(id="x", title="x"),))
        assert [state["machine"] for state in await office.store.states_of(TENANT, "r1")] == [RUN]
        await office.store.close()

    @case("D03", "I18", "I19")
    async def test_a_wake_while_something_is_undecided_changes_nothing(self, store, clock):
        office = await self.asked(store, clock)
        before, requests = await office.state(), await office.open_requests()
        asked = dict(office.asked)
        await office.rebuild()
        await office.say(decided(requests[0]["request_id"]), "wake")
        await office.work()
        assert await office.state() == before
        assert await office.open_requests() == requests
        assert (dict(office.asked), dict(DONE)) == (asked, {})
        await office.store.close()

    @case("D05")
    async def test_a_question_that_was_saved_and_not_yet_asked_is_asked_once_under_its_id(self, store, clock):
        office = Office(store, clock, an_app, reopen=self.reopen)
        await office.submit(tasks=(call_task(),))
        (pending,) = (await office.state())["requests"]
        assert await office.open_requests() == []
        await office.rebuild()
        await office.work()
        (request,) = await office.open_requests()
        assert request["request_id"] == pending["request_id"]
        assert (await office.to_the_end())["status"] == "succeeded"
        assert len(await office.store.rows(TENANT, "approval_request", "r1")) == 2
        assert list(DONE.values()) == [1]
        await office.store.close()

    @case("D18")
    @pytest.mark.parametrize(
        "damage",
        [
            lambda run: run.update(active=[]),
            lambda run: run["tasks"][0].update(status="pending"),
            lambda run: run["tasks"][0].update(status="succeeded"),
            lambda run: run["tasks"][0].update(assignee="somebody else"),
            lambda run: run.update(active=[0, 0]),
            lambda run: run.update(active=[7]),
            lambda run: run.update(active=[-1]),
            lambda run: run.update(ready=[7]),
        ],
    )
    async def test_a_run_that_contradicts_itself_is_not_gone_on_with(self, store, clock, damage):
        office = await self.asked(store, clock, agent="clerk")
        (request,) = await office.open_requests()
        sound = await self.rewrite(office, damage)
        await office.rebuild()
        await office.decide(request)
        await office.work(until=lambda: self.is_held(office))
        assert not DONE
        assert await self.operations(office) == {}
        (read,) = (await office.store.load([Address("r1", RUN, "")], [])).states.values()
        assert read.version == sound["version"] + 1
        await self.rewrite(office, lambda run: (run.clear(), run.update(sound["body"])))
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(DONE.values()) == [1]
        await office.store.close()

    @case("D20")
    async def test_a_question_of_another_run_frees_nothing_here(self, store, clock):
        office = await self.asked(store, clock)
        await office.submit(tasks=(call_task(),), run_id="r2")
        await office.work()
        for plan_of_it in await office.open_requests("r2"):
            await office.decide(plan_of_it)
        await office.work()
        (theirs,), (ours,) = await office.open_requests("r2"), (await office.state())["requests"]
        moved = {**ours, "request_id": theirs["request_id"], "request_hash": theirs["request_hash"]}
        await self.rewrite(office, lambda run: run.update(requests=[moved]))
        await office.decide(theirs)
        await office.say(decided(theirs["request_id"]), "wake")
        await office.work()
        assert [name for name in DONE if "a" in name] == [f"{theirs['operation_id']} a"]
        assert (await office.state())["status"] == "suspended"
        await office.store.close()

    @case("D21")
    async def test_a_finished_run_that_is_woken_stays_as_it_is(self, store, clock):
        office = await self.asked(store, clock)
        ended = await office.to_the_end()
        before = (dict(office.asked), dict(DONE), await office.store.rows(TENANT, "audit_leaf", "r1"))
        for request in await office.store.rows(TENANT, "approval_request", "r1"):
            await office.rebuild()
            await office.say(decided(request["request_id"]), f"wake {request['request_id']}")
            await office.work()
        assert await office.state() == ended
        after = (dict(office.asked), dict(DONE), await office.store.rows(TENANT, "audit_leaf", "r1"))
        assert after == before
        await office.store.close()

    @case("D22")
    async def test_a_continuation_is_the_next_attempt_of_the_same_run(self, store, clock):
        office = await self.asked(store, clock)
        seen = [await self.view(office)]
        (request,) = await office.open_requests()
        await office.rebuild()
        await office.decide(request)
        await office.work()
        seen.append(await self.view(office))
        assert [view.attempt for view in seen] == [2, 3]  # the plan was decided before
        assert seen[1].run_id == seen[0].run_id
        assert seen[1].trace_id != seen[0].trace_id
        assert seen[1].resumed_from == seen[0].trace_id == trace_id("r1", 2)
        assert len(seen[1].trace_id) == 32
        await office.store.close()

    @case("D26")
    async def test_a_gate_that_has_changed_its_mind_is_asked_about_what_comes_next_only(self, store, clock):
        """Approved is approved; the call after it meets today's gate."""
        judged: list[str] = []

        def says_no(call: Any) -> Deny:
            judged.append(call.input["text"])
            return Deny("no more")

        office = await self.asked(store, clock, more="b")
        (request,) = await office.open_requests()
        office.app_of = lambda: a_desk(gate=says_no, more="b")
        await office.rebuild()
        await office.decide(request)
        state = await office.to_the_end()
        assert judged == ["b"]
        assert list(DONE) == [f"{request['operation_id']} a"]
        assert state["status"] != "suspended"
        await office.store.close()

    @case("D27")
    async def test_an_approval_is_acted_on_once_however_often_it_is_restored(self, store, clock):
        office = await self.asked(store, clock)
        (request,) = await office.open_requests()
        await office.decide(request)
        for number in range(3):
            await office.say(decided(request["request_id"]), f"wake {number}")
            await office.rebuild()
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(DONE.values()) == [1]
        assert len(await office.store.rows(TENANT, "operation_attempt", "r1")) == 1
        await office.store.close()

    @case("E03", "D21")
    async def test_what_was_rejected_stays_rejected(self, store, clock):
        office = Office(store, clock, an_app, reopen=self.reopen)
        await office.submit(tasks=(call_task(),))
        await office.work()
        (request,) = await office.open_requests()
        await office.decide(request, "reject")
        await office.work()
        ended = await office.state()
        assert (ended["status"], [task["status"] for task in ended["tasks"]]) == ("rejected", ["skipped"])
        for number in range(2):
            await office.rebuild()
            await office.say(decided(request["request_id"]), f"wake {number}")
            await office.work()
            assert await office.state() == ended
        assert not DONE
        await office.store.close()

    @case("E04")
    async def test_a_plan_only_run_gives_out_its_plan_once(self, store, clock):
        office = Office(store, clock, an_app, reopen=self.reopen)
        await office.submit("note it", mode="plan_only")
        ended = await office.to_the_end()
        assert ended["status"] == "succeeded"
        assert [task["status"] for task in ended["tasks"]] == ["pending", "pending"]
        for request in await office.store.rows(TENANT, "approval_request", "r1"):
            await office.say(decided(request["request_id"]), "wake")
        assert await office.state() == ended
        assert not DONE
        await office.store.close()

    # ── time travel ────────────────────────────────────────────────────────────────────

    async def test_a_fork_torn_down_after_every_step_comes_to_the_end_and_needs_nothing_of_its_origin(
        self, store, clock
    ):
        calm = Office(store, clock, an_app)
        await calm.submit("note it")
        ended = await calm.to_the_end()
        done = dict(DONE)
        office = Office(store, clock, an_app, reopen=self.reopen)
        asking = ForkRun(tenant=TENANT, run_id="f1", forked_from="r1", at=ended["version"] // 2, initiator=ALICE)
        await office.say(asking, "fork")
        assert json.loads(office.answers[-1])["answer"] == "accepted"
        state = await office.to_the_end("f1")
        await self.archive(office.store).forget("r1")
        assert (state["status"], state["answer"]) == ("succeeded", ended["answer"])
        assert all(DONE[key] == times for key, times in done.items())
        for found in await office.store.states_of(TENANT, "f1"):
            at = Address("f1", found["machine"], found["key"])
            replayed = replay(machines(ReplayedVoices())[at.machine], await office.store.read_journal(at))
            assert replayed is not None
            assert replayed.json_bytes() == found["body"]
        await office.store.close()

    # ── saving ─────────────────────────────────────────────────────────────────────────

    @case("H23")
    async def test_a_save_that_fails_undoes_nothing_and_the_next_one_repairs_it(self, store, clock):
        """Every save is strict: without it nobody is asked, told or called, and the message comes again."""
        office = Office(store, clock, an_app)
        calm = store.commit
        failing = {"times": 3}

        async def failing_commit(units):
            if failing["times"] > 0 and any(unit.states for unit in units):
                failing["times"] -= 1
                raise RetryableError(Code.STORE_UNAVAILABLE, "the disk is full")
            return await calm(units)

        office.engine._store = Failing(store, failing_commit)
        for _ in range(3):
            with pytest.raises(RetryableError):
                await office.submit(tasks=(call_task(),))
            assert await store.states_of(TENANT, "r1") == []
            assert await store.outbox(TENANT, "r1") == []
        await office.submit(tasks=(call_task(),))
        assert (await office.to_the_end())["status"] == "succeeded"
        assert list(DONE.values()) == [1]

    # ── parts ──────────────────────────────────────────────────────────────────────────

    async def asked(self, store: Any, clock: Any, effect: str = "idempotent", text: str = "a", **desk: Any) -> Office:
        """An office whose run waits for one call to be approved, its plan having been approved already."""
        office = Office(store, clock, lambda: a_desk(effect, **desk), reopen=self.reopen, lose=False)
        await office.submit(tasks=(call_task(text, desk.get("agent")), *more_tasks(desk.get("more"))))
        await office.work()
        (request,) = await office.open_requests()
        await office.decide(request)
        await office.work()
        assert not DONE
        return office

    async def view(self, office: Office) -> Any:
        stored = await office.store.state(TENANT, Address("r1", RUN, ""))
        return run_view("r1", stored, [], 0)

    async def operations(self, office: Office) -> dict[str, str]:
        found = await office.store.states_of(TENANT, "r1")
        return {state["key"]: state["status"] for state in found if state["machine"] == OPERATION}

    async def operation(self, office: Office, operation_id: str) -> Any:
        return await office.store.state(TENANT, Address("r1", OPERATION, operation_id))

    async def has_attempts(self, office: Office, number: int) -> bool:
        return len(await office.store.rows(TENANT, "operation_attempt", "r1")) == number

    async def has_result(self, office: Office) -> bool:
        return bool(office.results)

    async def is_settled(self, office: Office) -> bool:
        return any(status in ("succeeded", "failed") for status in (await self.operations(office)).values())

    async def is_held(self, office: Office) -> bool:
        return any(row["not_before_ms"] > 0 for row in await office.store.outbox(TENANT, "r1"))

    async def rewrite(self, office: Office, damage: Callable[[Any], Any]) -> Any:
        """Somebody changes the stored run; what it was, with its version."""
        at = Address("r1", RUN, "")
        (stored,) = (await office.store.load([at], [])).states.values()
        body = json.loads(stored.body)
        sound = {"body": json.loads(stored.body), "version": stored.version}
        damage(body)
        write = StateWrite(at, TENANT, stored.version, stored.version + 1, body["status"], json.dumps(body).encode())
        await office.store.commit([Unit(states=[write])])
        return sound


class Failing:
    """A store whose commits fail for a while."""

    def __init__(self, store: Any, commit: Any) -> None:
        self._store = store
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
