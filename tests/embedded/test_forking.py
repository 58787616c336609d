"""Proves what a fork is: a run that begins where another one was, asks everything anew, and repeats nothing unasked."""

from __future__ import annotations

import json

import pytest

from placet.errors import Code
from placet.ids import Address
from placet.messages import RUN, THREAD
from placet.runtime.checkpoints import StoredCheckpoints
from placet_embedded.system import machines
from tests.contracts.desks import DONE
from tests.embedded.forks import fork, is_true, office, requests_of, version_where
from tests.rebuilding import BOB, TENANT


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


# ── from any version ───────────────────────────────────────────────────────────────────


async def test_a_run_may_be_forked_at_every_version_and_comes_to_the_same_end() -> None:
    at = office()
    await at.submit("note it")
    ended = await at.to_the_end()
    versions = range(1, ended["version"])
    assert len(versions) > 8
    for version in versions:
        name = f"f{version}"
        assert (await fork(at, version, name))["answer"] == "accepted", version
        state = await at.to_the_end(name)
        assert (state["status"], state["answer"]) == ("succeeded", ended["answer"]), version
        assert [task["output"] for task in state["tasks"]] == [task["output"] for task in ended["tasks"]]
        assert state["forked"]["run_id"] == "r1"
        assert state["forked"]["version"] == version
        await at.store.forget("r1" if version == versions[-1] else "nobody")
        await is_true(at, name)


async def test_nothing_that_was_decided_for_the_other_run_counts_in_the_fork() -> None:
    at = office()
    await at.submit("note it")
    ended = await at.to_the_end()
    theirs = {row["request_id"] for row in await requests_of(at, "r1")}
    for version in range(1, ended["version"]):
        name = f"f{version}"
        await fork(at, version, name)
        await at.work()
        done, state = dict(DONE), await at.state(name)
        open_now = await at.open_requests(name)
        unfinished = [task for task in state["tasks"] if task["status"] not in ("succeeded",)]
        if unfinished:
            assert [row["scope"] for row in open_now] == ["plan"]
            assert state["status"] == "suspended"
        await at.to_the_end(name)
        ours = {row["request_id"] for row in await requests_of(at, name)}
        assert not ours & theirs
        outcomes = await at.store.rows(TENANT, "approval_outcome", name)
        assert {row["request_id"] for row in outcomes} == ours
        for operation in await at.store.rows(TENANT, "operation", name):
            assert operation["request_id"] in ours
        assert all(DONE[key] == times for key, times in done.items())
    assert set(DONE.values()) == {1}


async def test_what_was_done_before_stands_and_is_not_done_again() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    done = dict(DONE)
    assert len(done) == 4  # two tasks of two notes
    first_ended = await version_where(at, lambda run: run["tasks"] and run["tasks"][0]["status"] == "succeeded")
    await fork(at, first_ended)
    state = await at.to_the_end("f1")
    assert state["tasks"][0]["status"] == "succeeded"
    again = [row for row in await at.store.rows(TENANT, "operation", "f1") if row["task_id"] == "one"]
    assert again == []
    assert sum(DONE.values()) == 6


async def test_a_conversation_is_copied_up_to_the_version_and_goes_on_from_there() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    asking = await version_where(at, lambda run: run["tasks"] and run["tasks"][0]["calls"])
    asked = at.asked.copy()
    await fork(at, asking)
    await at.to_the_end("f1")
    theirs = await at.store.read_thread("r1", "task:one", 99)
    ours = await at.store.read_thread("f1", "task:one", 99)
    assert ours[:2] == theirs[:2]
    assert [json.loads(body)["role"] for body in ours] == [json.loads(body)["role"] for body in theirs]
    # The model is not asked again for the turn whose calls were on their way.
    assert (at.asked - asked)["f1/task:one/1"] == 0
    assert (at.asked - asked)["f1/task:one/2"] == 1
    await at.store.forget("r1")
    await is_true(at, "f1")


# ── which may be forked ────────────────────────────────────────────────────────────────


async def test_a_version_that_there_is_not_or_that_is_anothers_is_not_found() -> None:
    at = office()
    await at.submit("note it")
    ended = await at.to_the_end()
    for told in (
        await fork(at, ended["version"] + 1, "x1"),
        await fork(at, 1, "x2", source="nobody"),
        await fork(at, 1, "x3", tenant="other"),
    ):
        assert (told["answer"], told["failure"]["code"]) == ("not_found", Code.RUN_NOT_FOUND)
    assert [state for name in ("x1", "x2", "x3") for state in await at.store.states_of(TENANT, name)] == []


async def test_a_run_that_has_ended_is_forked_before_its_end_only() -> None:
    at = office()
    await at.submit("note it")
    ended = await at.to_the_end()
    told = await fork(at, ended["version"])
    assert (told["answer"], told["failure"]["code"]) == ("refused", Code.RUN_TERMINAL)
    assert (await fork(at, ended["version"] - 1))["answer"] == "accepted"


async def test_the_same_fork_is_one_run_and_another_under_its_id_is_refused() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    assert (await fork(at, 2))["answer"] == "accepted"
    assert (await fork(at, 2))["answer"] == "duplicate"
    assert (await fork(at, 3))["failure"]["code"] == Code.RUN_EXISTS
    assert (await fork(at, 2, initiator=BOB))["failure"]["code"] == Code.RUN_EXISTS
    assert (await fork(at, 2, "r1"))["failure"]["code"] == Code.RUN_EXISTS


async def test_what_was_pruned_cannot_be_forked() -> None:
    at = office()
    await at.submit("note it")
    ended = await at.to_the_end()
    kept = StoredCheckpoints(at.store, machines(), at.store)
    await kept.prune(Address("r1", RUN, ""), 5)
    assert (await fork(at, 4, "x"))["failure"]["code"] == Code.RUN_NOT_FOUND
    found = [await fork(at, version, f"f{version}") for version in range(5, ended["version"])]
    assert {told["answer"] for told in found} <= {"accepted", "refused"}
    assert {told["failure"]["code"] for told in found if told["answer"] == "refused"} <= {Code.NOT_FOUND}
    assert found[-1]["answer"] == "accepted"


async def test_a_conversation_that_is_no_longer_known_fails_its_task_aloud() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    asking = await version_where(at, lambda run: run["tasks"] and run["tasks"][0]["calls"])
    await fork(at, asking)
    thread = Address("r1", THREAD, "task:one")
    await StoredCheckpoints(at.store, machines(), at.store).prune(thread, 99)
    state = await at.to_the_end("f1")
    assert state["status"] == "failed"
    assert "is not known" in json.dumps(state["failure"])


async def test_a_journal_that_is_not_whole_is_not_forked() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    del at.store._journal[Address("r1", RUN, "")][2]
    told = await fork(at, 4)
    assert (told["answer"], told["failure"]["code"]) == ("refused", Code.CHECKPOINT_CORRUPT)


async def test_whoever_forks_is_the_initiator_and_may_not_decide_what_the_fork_asks() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    await fork(at, 2, initiator=BOB)
    await at.work()
    (asked,) = await at.open_requests("f1")
    at.answers.clear()
    await at.decide(asked)  # Bob
    assert json.loads(at.answers[0])["answer"] == "not_allowed"


async def test_where_a_fork_comes_from_is_written_into_its_audit() -> None:
    at = office()
    await at.submit("note it")
    await at.to_the_end()
    await fork(at, 3)
    first = (await at.store.rows(TENANT, "audit_leaf", "f1"))[0]
    detail = json.loads(first["detail_text"])
    assert (first["kind"], detail["forked_from"], detail["version"]) == ("run.forked", "r1", 3)
    assert detail["state_digest"] == (await at.state("f1"))["forked"]["state_digest"]
    assert detail["last_leaf"] in {leaf["leaf"] for leaf in await at.store.rows(TENANT, "audit_leaf", "r1")}


async def test_a_fork_can_be_forked_wherever_it_is() -> None:
    at = office()
    await at.submit("note it")
    ended = await at.to_the_end()
    asking = await version_where(at, lambda run: run["tasks"] and run["tasks"][0]["calls"])
    thinking = await version_where(at, lambda run: run["tasks"] and run["tasks"][0]["turn"] == 2)
    for source in (asking, thinking):
        name = f"s{source}"
        await fork(at, source, name)
        last = (await at.to_the_end(name))["version"]
        for version in range(1, last):
            other = f"{name}.{version}"
            assert (await fork(at, version, other, name))["answer"] == "accepted", (source, version)
            state = await at.to_the_end(other)
            assert (state["status"], state["answer"]) == ("succeeded", ended["answer"]), (source, version)
            assert (await at.store.read_thread(other, "task:one", 99) or [])[:2] in (
                (await at.store.read_thread("r1", "task:one", 99))[:2],
                [],
            )
            await is_true(at, other)


async def test_a_run_whose_time_was_limited_gives_its_fork_as_much() -> None:
    at = office()
    await at.submit("note it", timeout_ms=10**9)
    await at.work()
    at.clock.at_ms += 1_000
    await fork(at, 2)
    state = await at.state("f1")
    assert state["deadline_ms"] - state["submitted_at_ms"] == 10**9
    await fork(at, 2, "f2", timeout_ms=5_000)
    state = await at.state("f2")
    assert state["deadline_ms"] == at.clock.at_ms + 5_000


async def test_a_plan_that_was_being_made_is_made_again() -> None:
    at = office()
    await at.submit("note it")
    await at.work()
    asked = at.asked.copy()
    await fork(at, 1)
    assert (await at.to_the_end("f1"))["status"] == "succeeded"
    assert (at.asked - asked)["f1/plan/1"] == 1
