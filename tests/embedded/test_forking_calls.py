"""Proves that a fork repeats nothing unasked that was under way, or was done since, in the run it comes from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from placet import Allow, App, NotExecuted, Suspend, ToolContext, scripted
from placet.messages import TakeTurn
from placet.plans import DirectCall, PlannedTask
from placet.script import call
from tests.embedded.forks import fork, is_true, office, requests_of, version_where
from tests.rebuilding import TENANT

LOG: Counter[str] = Counter()
"""What the tools did, by text."""


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    LOG.clear()


def a_desk(effect: Any, *, gate: Any = None, fails: bool = False) -> Callable[[], App]:
    """A desk whose plan needs nobody; its tool may be called as the gate says."""

    def made() -> App:
        app = App("desk", version="1")

        @app.tool(effect=effect, consequential=effect != "read_only")
        async def note(ctx: ToolContext, text: str) -> str:
            """Write a note."""
            LOG[text] += 1
            if fails:
                raise NotExecuted("no paper")
            return f"noted {text}"

        @app.gate("tool_call", tools=[note])
        def as_told(subject: Any) -> Any:
            return Allow() if gate is None else gate(subject)

        model = scripted([call("note", text="a"), call("note", text="b")], "noted")
        app.team("desk", agents=[app.agent("clerk", model=model, tools=[note])])
        return app

    return made


ONE = (PlannedTask(id="one", title="note it"),)
DIRECT = (PlannedTask(id="one", title="note it", call=DirectCall(tool="note", input={"text": "a"})),)


@pytest.mark.parametrize("tasks", [ONE, DIRECT], ids=["by a model", "as given"])
@pytest.mark.parametrize("effect", ["idempotent", "non_retriable"])
async def test_a_call_that_was_ordered_and_not_heard_of_is_put_to_a_person(effect: str, tasks: Any) -> None:
    """Although the gate allows it, and although the original has made it since."""
    at = office(a_desk(effect))
    await at.submit(tasks=tasks)
    await at.to_the_end()
    done = dict(LOG)
    running = await version_where(at, lambda run: [c for c in run["tasks"][0]["calls"] if c["status"] == "running"])
    await fork(at, running)
    await at.work()
    asked = await at.open_requests("f1")
    assert len(asked) == len(done)
    assert all("has ordered this call: it may have happened there" in row["reason"] for row in asked)
    assert dict(LOG) == done
    for row in asked:
        assert row["operation_id"] not in {op["operation_id"] for op in await at.store.rows(TENANT, "operation", "r1")}
        await at.decide(row, "reject")
    await at.work()
    assert dict(LOG) == done
    await is_true(at, "f1")


async def test_a_read_that_was_under_way_is_made_again_unasked() -> None:
    at = office(a_desk("read_only"))
    await at.submit(tasks=ONE)
    await at.to_the_end()
    running = await version_where(at, lambda run: [c for c in run["tasks"][0]["calls"] if c["status"] == "running"])
    await fork(at, running)
    assert (await at.to_the_end("f1"))["status"] == "succeeded"
    assert await requests_of(at, "f1") == []
    assert dict(LOG) == {"a": 2, "b": 2}


async def test_a_result_that_had_come_in_stands_beside_a_call_that_is_asked_about() -> None:
    at = office(a_desk("idempotent"))
    await at.submit(tasks=ONE)
    await at.to_the_end()

    def half(run: dict[str, Any]) -> bool:
        return sorted(each["status"] for each in run["tasks"][0]["calls"]) == ["done", "running"]

    await fork(at, await version_where(at, half))
    await at.work()
    (asked,) = await at.open_requests("f1")
    await at.decide(asked)
    state = await at.to_the_end("f1")
    assert state["status"] == "succeeded"
    assert sorted(LOG.values()) == [1, 2]
    assert [json.loads(body)["role"] for body in await at.store.read_thread("f1", "task:one", 9)] == [
        json.loads(body)["role"] for body in await at.store.read_thread("r1", "task:one", 9)
    ]
    assert len(await at.store.rows(TENANT, "operation", "f1")) == 1


async def test_a_call_that_waited_for_a_person_and_was_made_since_is_asked_about_whatever_the_gate_says_now() -> None:
    strict = True

    def gate(subject: Any) -> Any:
        return Suspend("look") if strict else Allow()

    at = office(a_desk("idempotent", gate=gate))
    await at.submit(tasks=DIRECT)
    await at.work()
    waiting = (await at.state())["version"]
    await fork(at, waiting, "early")  # before it was made
    await at.to_the_end()
    assert dict(LOG) == {"a": 1}
    strict = False
    await fork(at, waiting, "late")
    await at.work()
    (asked,) = await at.open_requests("late")
    assert "it may have happened there" in asked["reason"]
    assert dict(LOG) == {"a": 1}
    # Where nobody had ordered it, the gate alone is asked.
    (asked,) = await at.open_requests("early")
    assert asked["reason"] == "look"


async def test_a_call_that_a_person_rejected_is_asked_about_again_when_the_fork_proposes_it() -> None:
    at = office(a_desk("idempotent", gate=lambda subject: Suspend("look")))
    await at.submit(tasks=ONE)
    await at.work()
    waiting = (await at.state())["version"]
    for row in await at.open_requests():
        await at.decide(row, "reject")
    await at.work()
    assert not LOG
    await fork(at, waiting)
    assert (await at.to_the_end("f1"))["status"] == "succeeded"
    assert dict(LOG) == {"a": 1, "b": 1}


async def test_a_call_in_doubt_is_asked_about() -> None:
    at = office(a_desk("non_retriable"))
    await at.submit(tasks=DIRECT)
    at.hold = True
    for _ in range(2):
        await at.work()
    at.hold = False
    (doubt,) = await at.open_requests()
    assert doubt["scope"] == "operation_outcome"
    await fork(at, (await at.state())["version"])
    await at.work()
    (asked,) = await at.open_requests("f1")
    assert asked["scope"] == "tool_call"
    assert "it may have happened there" in asked["reason"]
    assert not LOG


@pytest.mark.parametrize("tasks", [ONE, DIRECT], ids=["by a model", "as given"])
async def test_what_the_other_run_did_after_the_version_is_not_done_a_second_time_unasked(tasks: Any) -> None:
    """The gate allows everything; at the version nothing had been proposed yet."""
    judged = True

    def gate(subject: Any) -> Any:
        return Allow() if judged else Suspend("look")

    made = a_desk("idempotent", gate=gate)

    def with_plan_gate() -> App:
        app = made()

        @app.gate("plan")
        def plans(subject: Any) -> Any:
            return Suspend("every plan")

        return app

    at = office(with_plan_gate)
    await at.submit(tasks=tasks)
    await at.to_the_end()
    done = dict(LOG)
    assert set(done.values()) == {1}
    await fork(at, 1)
    await at.work()
    (plan_of_it,) = await at.open_requests("f1")
    await at.decide(plan_of_it)
    await at.work()
    asked = await at.open_requests("f1")
    assert len(asked) == len(done)
    assert all("may have happened there" in row["reason"] for row in asked)
    assert dict(LOG) == done
    await fork(at, 1, "f2", "f1")
    await at.work()
    (plan_of_it,) = await at.open_requests("f2")
    await at.decide(plan_of_it)
    await at.work()
    assert len(await at.open_requests("f2")) == len(done)
    assert dict(LOG) == done


async def test_a_call_that_was_ordered_and_has_not_begun_yet_is_asked_about_as_well() -> None:
    """The order is still on its way: nobody can say that it will not be carried out."""
    at = office(a_desk("idempotent"))
    await at.submit(tasks=DIRECT)
    running = (await at.state())["version"]
    assert await at.store.rows(TENANT, "operation_attempt", "r1") == []
    await fork(at, running)
    await at.work()
    (asked,) = await at.open_requests("f1")
    assert "it may have happened there" in asked["reason"]
    assert dict(LOG) == {"a": 1}  # the first run's


@pytest.mark.parametrize("tasks", [ONE, DIRECT], ids=["by a model", "as given"])
async def test_what_is_not_known_of_the_first_run_is_not_known_in_a_fork_of_its_fork(tasks: Any) -> None:
    at = office(a_desk("idempotent"))
    await at.submit(tasks=tasks)
    await at.to_the_end()
    running = await version_where(at, lambda run: [c for c in run["tasks"][0]["calls"] if c["status"] == "running"])
    await fork(at, running)
    await at.work()
    waiting = (await at.state("f1"))["version"]
    done = dict(LOG)
    await fork(at, waiting, "f2", "f1")
    await at.work()
    asked = await at.open_requests("f2")
    assert len(asked) == len(done)
    assert all(row["reason"].startswith("the run r1, of which this one is a fork") for row in asked)
    assert dict(LOG) == done


async def test_a_fork_that_has_taken_turns_of_its_own_is_forked_with_those() -> None:
    def made() -> App:
        app = App("desk", version="1")

        @app.tool(effect="idempotent", consequential=True)
        async def note(ctx: ToolContext, text: str) -> str:
            """Write a note."""
            LOG[text] += 1
            return f"noted {text}"

        model = scripted(call("note", text="a"), call("note", text="b"), "noted both")
        app.team("desk", agents=[app.agent("clerk", model=model, tools=[note])])
        return app

    at = office(made)
    await at.submit(tasks=ONE)
    await at.work()
    await fork(at, (await at.state())["version"])
    await at.work()
    (first,) = await at.open_requests("f1")
    await at.decide(first)
    await at.work()
    assert dict(LOG) == {"a": 1}
    await fork(at, (await at.state("f1"))["version"], "f2", "f1")
    await at.work()
    (asked,) = await at.open_requests("f2")
    assert '"text":"b"' in asked["content_text"]
    assert (await at.to_the_end("f2"))["tasks"][0]["output"] == "noted both"
    assert dict(LOG) == {"a": 1, "b": 1}
    said = await at.store.read_thread("f2", "task:one", 99)
    assert said[:4] == (await at.store.read_thread("f1", "task:one", 99))[:4]
    assert len(said) == 6
    await is_true(at, "f2")


@pytest.mark.parametrize(("tenant", "source", "turn"), [("other", "r1", 2), (TENANT, "r1", 9), (TENANT, "nobody", 2)])
async def test_a_conversation_that_is_anothers_or_was_never_held_is_gone_on_with_by_nobody(
    tenant: str, source: str, turn: int
) -> None:
    """Whatever a message says: it may be forged."""
    at = office(a_desk("read_only"))
    await at.submit(tasks=ONE)
    await at.to_the_end()
    asked = at.asked.copy()
    about: dict[str, Any] = {"tenant": tenant, "run_id": "x", "thread_id": "task:one", "team": "desk", "agent": "clerk"}
    await at.say(TakeTurn(**about, turn=turn, purpose="work", append=(), forked_from=source), "forged")
    assert await at.store.rows(tenant, "thread_message", "x") == []
    assert at.asked == asked
    (state,) = await at.store.states_of(tenant, "x")
    assert state["status"] == "failed"


async def test_a_round_is_opened_by_its_gate_again() -> None:
    asked: list[tuple[str, ...]] = []

    def made() -> App:
        app = App("desk", version="1")

        @app.gate("round")
        def rounds(subject: Any) -> Any:
            asked.append((subject.run_id, *(task.id for task in subject.next)))
            return Suspend("every round")

        app.team("desk", agents=[app.agent("clerk", model=scripted("done"), tools=[])])
        return app

    at = office(made)
    tasks = (PlannedTask(id="a", title="a"), PlannedTask(id="b", title="b", depends_on=("a",)))
    await at.submit(tasks=tasks)
    await at.to_the_end()
    assert asked == [("r1", "b")]
    thinking = await version_where(at, lambda run: run["tasks"][1]["thinking"])
    await fork(at, thinking)
    await at.work()
    assert asked == [("r1", "b"), ("f1", "b")]
    assert [row["scope"] for row in await at.open_requests("f1")] == ["task_round"]
    assert (await at.to_the_end("f1"))["status"] == "succeeded"


async def test_a_task_is_dispatched_by_its_gate_again() -> None:
    asked: list[str] = []

    def made() -> App:
        app = App("desk", version="1")

        @app.gate("dispatch")
        def dispatch(subject: Any) -> Any:
            asked.append(f"{subject.run_id} {subject.task.id}")
            return Allow()

        app.team("desk", agents=[app.agent("clerk", model=scripted("done"), tools=[])])
        return app

    at = office(made)
    await at.submit(tasks=ONE)
    await at.to_the_end()
    await fork(at, 1)
    assert (await at.to_the_end("f1"))["status"] == "succeeded"
    assert asked == ["r1 one", "f1 one"]
