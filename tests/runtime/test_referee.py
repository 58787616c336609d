"""Proves what the referee is asked and told about decisions: what is raced for, and how it stands after the commit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from placet.errors import Code, RetryableError
from placet.runtime.ports import CommitResult, Mark, Unit
from tests.runtime.deciding import Decider, Questions, RecordingArbiter, decision


async def test_a_request_is_raced_for_under_its_tenant_and_run_so_that_nobody_claims_another_tenant_s():
    questions, arbiter = Questions(), RecordingArbiter()
    request = await questions.open()
    foreign = decision(request, "mallory", tenant="globex")
    await Decider(questions, arbiter).decide(decision(request, "alice"), foreign)
    mine, theirs = arbiter.claimed
    assert mine == f"acme/{request.run_id}/{request.request_id}"
    assert theirs == f"globex/{request.run_id}/{request.request_id}"
    assert arbiter.marks == {mine: Mark.FINAL, theirs: Mark.FREE}


@pytest.mark.parametrize("word", ["approve", "reject"])
async def test_a_decided_request_is_past_racing_also_when_a_later_decision_finds_it_so(word):
    questions, arbiter = Questions(), RecordingArbiter()
    request = await questions.open()
    decider = Decider(questions, arbiter)
    assert await decider.decide(decision(request, "alice", decision=word)) == ["accepted"]
    assert set(arbiter.marks.values()) == {Mark.FINAL}
    arbiter.marks.clear()
    assert await decider.decide(decision(request, "bob")) == ["conflict"]
    assert set(arbiter.marks.values()) == {Mark.FINAL}


async def test_a_refused_decision_frees_the_request_for_the_next():
    questions, arbiter = Questions(), RecordingArbiter()
    request = await questions.open()
    decider = Decider(questions, arbiter)
    assert await decider.decide(decision(request, "alice", request_hash="0" * 64)) == ["stale"]
    assert set(arbiter.marks.values()) == {Mark.FREE}
    assert await decider.decide(decision(request, "bob", decision="perhaps")) == ["invalid"]
    assert set(arbiter.marks.values()) == {Mark.FREE}


async def test_a_request_that_wants_more_voices_is_open_to_all_of_them():
    questions, arbiter = Questions(), RecordingArbiter()
    request = await questions.open(quorum=2)
    decider = Decider(questions, arbiter)
    assert await decider.decide(decision(request, "alice"), decision(request, "dave", request_hash="0" * 64)) == [
        "accepted",
        "stale",
    ]
    assert set(arbiter.marks.values()) == {Mark.SHARED}
    assert await decider.decide(decision(request, "bob")) == ["accepted"]
    assert set(arbiter.marks.values()) == {Mark.FINAL}


async def test_what_a_failing_store_left_undecided_is_freed_at_once(monkeypatch):
    questions, arbiter = Questions(), RecordingArbiter()
    request = await questions.open()

    async def fails(units: Sequence[Unit]) -> Sequence[CommitResult]:
        raise RetryableError(Code.STORE_UNAVAILABLE, "away")

    monkeypatch.setattr(questions.store, "commit", fails)
    with pytest.raises(RetryableError):
        await Decider(questions, arbiter).decide(decision(request, "alice"))
    assert set(arbiter.marks.values()) == {Mark.FREE}


async def test_of_a_batch_each_request_is_told_as_it_stands():
    questions, arbiter = Questions(), RecordingArbiter()
    one, two, three = [await questions.open(n, quorum=quorum) for n, quorum in enumerate((1, 2, 1))]
    decider = Decider(questions, arbiter)
    await decider.decide(
        decision(one, "alice"), decision(two, "alice"), decision(three, "alice", request_hash="0" * 64)
    )
    assert [arbiter.marks[f"acme/{r.run_id}/{r.request_id}"] for r in (one, two, three)] == [
        Mark.FINAL,
        Mark.SHARED,
        Mark.FREE,
    ]


async def test_who_is_told_to_ask_again_has_changed_nothing():
    questions, arbiter = Questions(), RecordingArbiter()
    arbiter.grants = False
    request = await questions.open()
    assert await Decider(questions, arbiter).decide(decision(request, "alice")) == ["busy"]
    assert await questions.status(request) == "open"
    assert arbiter.marks == {}
