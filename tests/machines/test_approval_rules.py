"""One question to people: the order of checks, deadlines, several voices, who may decide, taking back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from placet.errors import Code
from placet.messages import DecideApproval
from placet.requests import ApprovalRequest
from placet.rows import OutcomeRow, RequestRow, RevocationRow, VoteRow
from placet.statuses import RUN_TERMINAL
from placet.values import PrincipalKind
from tests.cases import case
from tests.machines.bench import (
    ELSEWHERE,
    RUN_ID,
    TENANT,
    a_state_row,
    code,
    recorded,
    reply,
    reply_text,
    sent,
    timers,
)
from tests.machines.builders_approval import (
    CALL,
    DOUBT,
    EXPIRES_AT_MS,
    OPERATION_ID,
    WRONG_HASH,
    ApprovalBench,
    a_person,
    a_request,
    decided,
    tampered,
)
from tests.machines.builders_operation import OperationBench

# ── the order of checks ─────────────────────────────────────────────────────────────────


@case("C15")
def test_a_bad_reviewer_comes_before_an_unknown_request() -> None:
    bench = ApprovalBench(opened=False)
    nobody = a_person("alice").model_copy(update={"id": " "})
    decision = bench.decision().model_copy(update={"reviewer": nobody})
    assert reply(bench.give(decision)).answer == "invalid"
    assert reply(decided(bench, "perhaps")).answer == "invalid"
    assert reply(decided(bench)).answer == "not_found"


@case("C15")
def test_a_broken_row_comes_before_a_wrong_hash() -> None:
    bench = ApprovalBench()
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=tampered(bench.request)))
    assert code(decided(bench, request_hash=WRONG_HASH)) is Code.APPROVAL_INTEGRITY_ERROR


@case("C15")
def test_a_wrong_hash_comes_before_who_may_decide_and_what_was_decided() -> None:
    bench = ApprovalBench()
    assert reply(decided(bench, by="carol", request_hash=WRONG_HASH)).answer == "stale"
    decided(bench)
    assert reply(decided(bench, "reject", by="carol", request_hash=WRONG_HASH)).answer == "stale"


@case("C16")
@pytest.mark.parametrize(
    "break_row",
    [
        lambda request: tampered(request),
        lambda request: tampered(request, version=2),
        lambda request: tampered(request, content_text="{"),
        lambda request: a_request(CALL.model_copy(update={"input": {"env": "production"}})),
        lambda request: a_request(tenant=ELSEWHERE),
        lambda request: a_request(run_id="run-2"),
    ],
)
def test_a_row_that_does_not_verify_decides_nothing_and_is_left_as_it_is(
    break_row: Callable[[ApprovalRequest], ApprovalRequest],
) -> None:
    bench = ApprovalBench()
    broken = RequestRow(tenant=TENANT, run_id=RUN_ID, request=break_row(bench.request))
    key = RequestRow(tenant=TENANT, run_id=RUN_ID, request=bench.request).fact_key()
    bench.rows[key] = broken
    refused = decided(bench)
    assert (reply(refused).answer, code(refused)) == ("refused", Code.APPROVAL_INTEGRITY_ERROR)
    assert recorded(refused, VoteRow) == recorded(refused, OutcomeRow) == []
    assert bench.rows[key] is broken
    assert bench.state.status == "open"


@case("C16")
def test_a_row_that_is_gone_decides_nothing() -> None:
    bench = ApprovalBench()
    del bench.rows[RequestRow(tenant=TENANT, run_id=RUN_ID, request=bench.request).fact_key()]
    assert code(decided(bench)) is Code.APPROVAL_INTEGRITY_ERROR


@case("C18")
def test_the_time_of_a_decision_is_the_stores_and_a_client_cannot_send_one() -> None:
    bench = ApprovalBench()
    body = bench.decision().model_dump(mode="json") | {"decided_at_ms": 5}
    with pytest.raises(ValidationError, match="decided_at_ms"):
        DecideApproval.model_validate_json(json.dumps(body))
    bench.later(777)
    assert reply(decided(bench)).decided_at_ms == bench.now_ms


@case("C19")
@pytest.mark.parametrize("status", sorted(RUN_TERMINAL))
def test_nobody_decides_for_a_run_that_has_ended(status: str) -> None:
    bench = ApprovalBench()
    bench.run_is(status)
    closed = decided(bench)
    assert (reply(closed).answer, code(closed)) == ("closed", Code.APPROVAL_CLOSED)
    assert recorded(closed, VoteRow) == []
    assert [row.outcome for row in recorded(closed, OutcomeRow)] == ["cancelled"]
    assert bench.state.status == "cancelled"


@case("C19")
@pytest.mark.parametrize("outcome", ["cancelled", "superseded"])
def test_a_closed_request_stays_closed(outcome: str) -> None:
    bench = ApprovalBench()
    closing = bench.give(bench.closing(outcome))
    [row] = recorded(closing, OutcomeRow)
    assert (row.outcome, row.decided_by, row.reason) == (outcome, None, "the run is cancelled")
    assert [message.outcome for message in sent(closing)] == [outcome]
    late = decided(bench)
    assert (reply(late).answer, code(late)) == ("closed", Code.APPROVAL_CLOSED)
    assert sent(late) == []


def test_a_closing_that_overtakes_its_question_closes_it_on_arrival() -> None:
    bench = ApprovalBench(opened=False)
    bench.give(bench.closing("superseded"))
    assert reply(decided(bench)).answer == "not_found"
    opened = bench.give(bench.ask())
    assert [row.outcome for row in recorded(opened, OutcomeRow)] == ["superseded"]
    assert len(recorded(opened, RequestRow)) == 1
    assert reply(decided(bench)).answer == "closed"


# ── expiry ──────────────────────────────────────────────────────────────────────────────


def test_a_deadline_that_passes_undecided_is_an_outcome_of_nobody() -> None:
    bench = ApprovalBench()
    bench.later(59_999)
    assert timers(bench.give(bench.expiry())) == [(bench.expiry(), EXPIRES_AT_MS)], "it comes again"
    bench.later(1)
    expired = bench.give(bench.expiry())
    [row] = recorded(expired, OutcomeRow)
    assert (row.outcome, row.decided_by, row.use_by_ms) == ("expired", None, None)
    assert [message.outcome for message in sent(expired)] == ["expired"]
    assert bench.give(bench.expiry()).kind == "absorbed"
    assert reply(decided(bench)).answer == "expired"


@case("M02")
@pytest.mark.parametrize("word", ["approve", "reject"])
def test_a_decision_after_the_deadline_finds_it_expired_even_before_the_timer(word: str) -> None:
    bench = ApprovalBench()
    bench.later(60_000)
    late = decided(bench, word)
    assert (reply(late).answer, code(late)) == ("expired", Code.APPROVAL_EXPIRED)
    assert recorded(late, VoteRow) == []
    assert [row.outcome for row in recorded(late, OutcomeRow)] == ["expired"]
    assert [message.outcome for message in sent(late)] == ["expired"]
    assert bench.state.status == "expired"
    assert bench.give(bench.expiry()).kind == "absorbed"


def test_a_vote_must_commit_before_the_deadline() -> None:
    bench = ApprovalBench()
    bench.later(59_999)
    assert bench.look(bench.decision()).before_ms == EXPIRES_AT_MS
    assert bench.look(bench.decision(request_hash=WRONG_HASH)).before_ms is None, "a refusal is true later as well"


# ── several people ──────────────────────────────────────────────────────────────────────


@case("M09")
def test_two_of_three_means_two_different_people() -> None:
    bench = ApprovalBench(a_request(quorum=2))
    first = decided(bench)
    assert (reply(first).answer, reply(first).status, reply(first).outcome) == ("accepted", "open", None)
    assert sent(first) == recorded(first, OutcomeRow) == []
    second = decided(bench, by="bob")
    assert (reply(second).status, reply(second).decided_by) == ("approved", "alice,bob")
    assert len(sent(second)) == 1


@case("M10")
def test_one_person_counts_once() -> None:
    bench = ApprovalBench(a_request(quorum=2))
    decided(bench)
    for word in ("approve", "reject"):
        again = decided(bench, word, by=" alice ")
        assert (reply(again).answer, code(again)) == ("conflict", Code.APPROVAL_CONFLICT)
    assert bench.state.status == "open"
    assert len(bench.all_written(VoteRow)) == 1


@case("M12")
def test_one_rejection_ends_it() -> None:
    bench = ApprovalBench(a_request(quorum=3))
    decided(bench)
    rejected = decided(bench, "reject", by="bob")
    assert (reply(rejected).outcome, reply(rejected).decided_by) == ("rejected", "bob")
    assert reply(decided(bench, by="dave")).answer == "conflict"


def test_people_who_disagree_whether_it_happened_decide_nothing_until_enough_say_the_same() -> None:
    bench = ApprovalBench(a_request(DOUBT, quorum=2))
    assert reply(decided(bench, "executed")).outcome is None
    assert reply(decided(bench, "not_executed", by="bob")).outcome is None
    settled = decided(bench, "not_executed", by="dave")
    assert (reply(settled).outcome, reply(settled).decided_by) == ("not_executed", "bob,dave")


# ── who may decide ──────────────────────────────────────────────────────────────────────


@case("M16")
@pytest.mark.parametrize("word", ["approve", "reject"])
@pytest.mark.parametrize("name", ["carol", " carol "])
def test_whoever_started_the_run_decides_none_of_its_requests(word: str, name: str) -> None:
    bench = ApprovalBench()
    refused = decided(bench, word, by=name)
    assert (reply(refused).answer, code(refused)) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
    assert [row.answer for row in recorded(refused)] == ["not_allowed"], "the attempt is on record, no vote is"
    assert bench.state.status == "open"


@pytest.mark.parametrize("authority", ["approval", "policy"])
def test_whether_it_happened_is_asked_on_behalf_of_whoever_started_the_run(authority: str) -> None:
    bench = OperationBench("non_retriable", authority=authority).asked_person()
    assert bench.question.initiator == "carol"
    approval = ApprovalBench(bench.question)
    own = reply(approval.give(approval.decision("executed", "carol")))
    assert (own.answer, own.failure and own.failure.code) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
    assert reply(approval.give(approval.decision("executed", "alice"))).answer == "accepted"


@pytest.mark.parametrize("kind", [PrincipalKind.AGENT, PrincipalKind.SERVICE, PrincipalKind.POLICY])
def test_no_machine_ever_votes(kind: PrincipalKind) -> None:
    bench = ApprovalBench()
    refused = decided(bench, reviewer=a_person("deployer", kind))
    assert (reply(refused).answer, code(refused)) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
    assert recorded(refused, VoteRow) == []


# ── taking back ─────────────────────────────────────────────────────────────────────────


@case("M25")
def test_an_approval_can_be_taken_back_before_it_is_used() -> None:
    bench = ApprovalBench()
    decided(bench)
    revoked = bench.give(bench.revocation(reason="wrong branch"))
    [row] = recorded(revoked, RevocationRow)
    assert (row.revoked_by, row.reason, row.revoked_at_ms) == ("bob", "wrong branch", bench.now_ms)
    assert (reply(revoked).answer, reply(revoked).status) == ("accepted", "revoked")
    assert recorded(revoked, OutcomeRow) == [], "history is not rewritten"
    assert bench.state.outcome == "approved"
    assert reply(bench.give(bench.revocation())).answer == "duplicate"


@case("M28")
@pytest.mark.parametrize("word", ["approve", "reject"])
def test_nobody_can_approve_again_what_was_taken_back(word: str) -> None:
    bench = ApprovalBench()
    decided(bench)
    bench.give(bench.revocation())
    refused = decided(bench, word, by="dave")
    assert (reply(refused).answer, code(refused)) == ("closed", Code.APPROVAL_REVOKED)
    assert bench.state.status == "revoked"


@case("M27")
@pytest.mark.parametrize(
    "status", ["started", "reconciling", "needs_operator", "succeeded", "failed", "refused", "cancelled"]
)
def test_taking_back_what_was_used_is_refused_and_says_so(status: str) -> None:
    bench = ApprovalBench()
    decided(bench)
    bench.put(a_state_row("operation", OPERATION_ID, status))
    refused = bench.give(bench.revocation())
    assert (reply(refused).answer, code(refused)) == ("refused", Code.OPERATION_CONSUMED)
    assert "already consumed" in reply_text(refused)
    assert [row.answer for row in recorded(refused)] == ["refused"], "the attempt is on record"
    assert bench.state.status == "approved"


def test_between_two_attempts_an_approval_can_still_be_taken_back() -> None:
    bench = ApprovalBench()
    decided(bench)
    bench.put(a_state_row("operation", OPERATION_ID, "waiting"))
    assert reply(bench.give(bench.revocation())).answer == "accepted"


@pytest.mark.parametrize("operation_id", ["", "op_2"])
def test_a_revocation_names_the_operation_whose_start_it_competes_with(operation_id: str) -> None:
    bench = ApprovalBench()
    decided(bench)
    invalid = bench.give(bench.revocation(operation_id=operation_id))
    assert (invalid.kind, code(invalid)) == ("absorbed", Code.APPROVAL_VALIDATION_ERROR)


def test_only_an_approval_can_be_taken_back_and_no_agent_does() -> None:
    bench = ApprovalBench()
    assert code(bench.give(bench.revocation())) is Code.OPERATION_NOT_APPROVED
    decided(bench)
    agent = a_person("operator", PrincipalKind.AGENT)
    assert code(bench.give(bench.revocation(by=agent.id).model_copy(update={"by": agent}))) is Code.APPROVER_NOT_ALLOWED
    assert bench.state.status == "approved"
    rejected = ApprovalBench()
    decided(rejected, "reject")
    assert code(rejected.give(rejected.revocation())) is Code.APPROVAL_CLOSED
    settled = ApprovalBench(a_request(DOUBT))
    decided(settled, "executed")
    assert code(settled.give(settled.revocation())) is Code.APPROVAL_CLOSED
