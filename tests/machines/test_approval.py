"""One question to people: who may vote, in which order things are checked, and that the first outcome stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from placet.errors import Code
from placet.messages import ApprovalDecided, DecideApproval, ExpireApproval, RequestApproval, TakeTurn
from placet.requests import ApprovalRequest
from placet.rows import DecisionAttemptRow, OutcomeRow, RequestRow, RevocationRow, VoteRow
from placet.statuses import APPROVAL_STATUSES, APPROVAL_TERMINAL, RUN_TERMINAL
from placet.values import PrincipalKind
from placet_approval.machine import ApprovalMachine
from tests.cases import case
from tests.machines.bench import (
    ELSEWHERE,
    RUN_ID,
    TENANT,
    a_state_row,
    code,
    every,
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
    USE_BY_MS,
    ApprovalBench,
    a_person,
    a_request,
)

WRONG_HASH = "0" * 64


def decided(bench: ApprovalBench, word: str = "approve", by: str = "alice", **changes: Any) -> Any:
    """Give one decision."""
    return bench.give(bench.decision(word, by, **changes))


# ── opening ────────────────────────────────────────────────────────────────────────────


def test_a_question_is_written_down_and_its_deadline_set() -> None:
    bench = ApprovalBench(opened=False)
    opened = bench.give(bench.ask())
    assert recorded(opened) == [RequestRow(tenant=TENANT, run_id=RUN_ID, request=bench.request)]
    assert [(type(message), at) for message, at in timers(opened)] == [(ExpireApproval, EXPIRES_AT_MS)]
    assert bench.state.status == "open"


def test_a_question_without_a_deadline_has_no_timer() -> None:
    bench = ApprovalBench(a_request(expires_at_ms=None, use_by_ms=None), opened=False)
    assert sent(bench.give(bench.ask())) == []


@case("B16")
def test_the_same_question_again_is_one_question() -> None:
    bench = ApprovalBench()
    assert bench.give(bench.ask(a_request(reason="asked once more"))).kind == "absorbed"
    decided(bench)
    again = bench.give(bench.ask())
    assert [message.outcome for message in sent(again, ApprovalDecided)] == ["approved"]
    assert recorded(again) == []
    assert len(bench.all_written(RequestRow)) == 1


@case("B18")
def test_other_content_under_a_known_id_is_refused_and_nothing_is_overwritten() -> None:
    bench = ApprovalBench()
    before = bench.state
    other = bench.give(bench.ask(a_request(initiator="dave")))
    assert (other.kind, code(other)) == ("refused", Code.APPROVAL_CONFLICT)
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=tampered(bench.request)))
    broken = bench.give(bench.ask())
    assert (broken.kind, code(broken)) == ("refused", Code.APPROVAL_INTEGRITY_ERROR)
    assert bench.state is before


def tampered(request: ApprovalRequest, **changes: Any) -> ApprovalRequest:
    """The row as somebody with write access would leave it."""
    edited = {"content_text": request.content_text.replace("staging", "production")}
    return request.model_copy(update=changes or edited)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"request_hash": WRONG_HASH},
        {"boundary": "task-1:call-2"},
        {"scope": "plan"},
        {"version": 2},
        {"tenant": ELSEWHERE},
        {"run_id": "run-2"},
        {"asker_machine": "approval"},
    ],
)
def test_a_question_that_does_not_verify_is_not_opened(changes: dict[str, Any]) -> None:
    bench = ApprovalBench(opened=False)
    refused = bench.give(bench.ask(tampered(bench.request, **changes)))
    assert (refused.kind, code(refused)) == ("refused", Code.APPROVAL_INTEGRITY_ERROR)
    assert bench.written == []


def test_a_question_announced_under_another_id_is_not_opened() -> None:
    bench = ApprovalBench(opened=False)
    message = RequestApproval(tenant=TENANT, run_id=RUN_ID, request_id="apr_other", request=bench.request)
    assert bench.give(message).kind == "refused"


# ── deciding ───────────────────────────────────────────────────────────────────────────


@case("C01")
@pytest.mark.parametrize("name", ["alice", " alice "])
def test_the_first_approval_is_the_outcome(name: str) -> None:
    bench = ApprovalBench()
    bench.later(1_500)
    accepted = decided(bench, by=name, reason="looks right", shown_digest="5" * 64)
    request = bench.request
    [outcome] = recorded(accepted, OutcomeRow)
    assert outcome == OutcomeRow(
        tenant=TENANT,
        run_id=RUN_ID,
        request_id=request.request_id,
        outcome="approved",
        request_hash=request.request_hash,
        decided_by="alice",
        decision_id="d-1",
        reason="looks right",
        decided_at_ms=bench.now_ms,
        use_by_ms=USE_BY_MS,
    )
    [vote] = recorded(accepted, VoteRow)
    assert (vote.person_id, vote.decision, vote.reason, vote.shown_digest) == (
        "alice", "approve", "looks right", "5" * 64,
    )  # fmt: skip
    receipt = reply(accepted)
    assert (receipt.answer, receipt.final, receipt.status) == ("accepted", True, "approved")
    assert (receipt.request_id, receipt.run_id, receipt.request_hash) == (
        request.request_id, RUN_ID, request.request_hash,
    )  # fmt: skip
    assert (receipt.outcome, receipt.decided_by, receipt.decided_at_ms) == ("approved", "alice", bench.now_ms)
    assert bench.state.status == "approved"


@case("C02")
def test_the_first_rejection_is_the_outcome() -> None:
    bench = ApprovalBench()
    rejected = decided(bench, "reject", reason="not on a Friday")
    [outcome] = recorded(rejected, OutcomeRow)
    assert (outcome.outcome, outcome.decided_by, outcome.reason) == ("rejected", "alice", "not on a Friday")
    assert (reply(rejected).answer, reply(rejected).outcome) == ("accepted", "rejected")
    assert bench.state.status == "rejected"


def test_whoever_asked_is_told_the_outcome() -> None:
    bench = ApprovalBench()
    [told] = sent(decided(bench))
    assert (told.to().machine, told.to().key, told.outcome) == ("run", "", "approved")
    doubt = ApprovalBench(a_request(DOUBT))
    [told] = sent(decided(doubt, "not_executed"))
    assert (told.to().machine, told.to().key, told.outcome) == ("operation", OPERATION_ID, "not_executed")
    assert doubt.state.status == "settled"


@case("C03")
@pytest.mark.parametrize(
    "reviewer",
    [
        None,
        "alice",
        {},
        {"kind": "human"},
        {"kind": "human", "id": ""},
        {"kind": "human", "id": " \t"},
        {"kind": "human", "id": "alice", "display_name": 5},
        {"kind": "robot", "id": "alice"},
    ],
)
def test_a_decision_without_a_proper_reviewer_is_no_decision(reviewer: object) -> None:
    body = ApprovalBench().decision().model_dump(mode="json") | {"reviewer": reviewer}
    with pytest.raises(ValidationError):
        DecideApproval.model_validate_json(json.dumps(body))


@case("C03")
def test_a_blank_reviewer_that_got_this_far_is_invalid_and_nothing_is_written() -> None:
    bench = ApprovalBench()
    nobody = a_person("alice").model_copy(update={"id": " "})
    invalid = bench.give(bench.decision().model_copy(update={"reviewer": nobody}))
    assert (invalid.kind, reply(invalid).answer, code(invalid)) == (
        "absorbed", "invalid", Code.APPROVAL_VALIDATION_ERROR,
    )  # fmt: skip
    assert bench.state.status == "open"


@case("C04")
@pytest.mark.parametrize("word", ["approved", "APPROVE", "yes", "true", "approve ", "", "false", "executed"])
def test_only_the_exact_words_decide(word: str) -> None:
    bench = ApprovalBench()
    invalid = decided(bench, word)
    assert (invalid.kind, reply(invalid).answer, code(invalid)) == (
        "absorbed", "invalid", Code.APPROVAL_VALIDATION_ERROR,
    )  # fmt: skip
    assert bench.state.status == "open"
    assert decided(bench).kind == "moved"


@case("C04")
@pytest.mark.parametrize("word", [True, None, ["approve"], 1])
def test_a_word_that_is_no_text_is_not_even_read(word: object) -> None:
    body = ApprovalBench().decision().model_dump(mode="json") | {"decision": word}
    with pytest.raises(ValidationError):
        DecideApproval.model_validate_json(json.dumps(body))


def test_the_question_whether_it_happened_has_words_of_its_own() -> None:
    bench = ApprovalBench(a_request(DOUBT))
    assert reply(decided(bench, "approve")).answer == "invalid"
    assert reply(decided(bench, "executed")).answer == "accepted"


@case("C05")
def test_an_unknown_request_is_not_found_and_leaves_no_trace() -> None:
    bench = ApprovalBench(opened=False)
    unknown = decided(bench)
    assert (unknown.kind, reply(unknown).answer, code(unknown)) == (
        "absorbed", "not_found", Code.APPROVAL_NOT_FOUND,
    )  # fmt: skip


def test_another_tenants_request_is_answered_in_the_words_of_an_unknown_one() -> None:
    known, unknown = ApprovalBench(), ApprovalBench(opened=False)
    for make in (
        lambda bench: bench.decision(tenant=ELSEWHERE),
        lambda bench: bench.decision("executed", tenant=ELSEWHERE),
        lambda bench: bench.decision(tenant=ELSEWHERE, request_hash=WRONG_HASH),
        lambda bench: bench.revocation(tenant=ELSEWHERE),
    ):
        assert known.look(make(known)).effects == unknown.look(make(unknown)).effects
    assert known.look(known.closing().model_copy(update={"tenant": ELSEWHERE})).kind == "refused"
    assert known.look(known.ask().model_copy(update={"tenant": ELSEWHERE})).kind == "refused"


@case("C06")
def test_a_decision_on_other_content_is_stale_and_a_right_one_still_decides() -> None:
    bench = ApprovalBench()
    stale = decided(bench, request_hash=WRONG_HASH)
    assert (reply(stale).answer, code(stale)) == ("stale", Code.APPROVAL_STALE_DECISION)
    assert recorded(stale, VoteRow) == []
    assert bench.state.status == "open"
    assert reply(decided(bench)).answer == "accepted"


def test_a_stale_answer_does_not_give_the_right_hash_away() -> None:
    bench = ApprovalBench()
    assert bench.request.request_hash not in reply_text(decided(bench, request_hash=WRONG_HASH))


@case("A22")
@pytest.mark.parametrize("change", [str.upper, lambda text: text[:-1], lambda text: text + "0"])
def test_a_hash_in_another_writing_never_equals(change: Callable[[str], str]) -> None:
    bench = ApprovalBench()
    wrong = change(bench.request.request_hash)
    assert reply(decided(bench, request_hash=wrong)).answer == "stale"
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=tampered(bench.request, request_hash=wrong)))
    assert code(decided(bench, request_hash=wrong)) is Code.APPROVAL_INTEGRITY_ERROR


@case("C07")
def test_a_wrong_hash_on_a_decided_request_is_stale_and_not_a_conflict() -> None:
    bench = ApprovalBench()
    decided(bench)
    assert reply(decided(bench, by="bob", request_hash=WRONG_HASH)).answer == "stale"


@case("C08")
def test_a_second_decision_changes_nothing_and_names_the_winner() -> None:
    bench = ApprovalBench()
    decided(bench)
    before = [row.model_dump_json() for row in bench.written]
    conflict = decided(bench, "reject", by="bob")
    receipt = reply(conflict)
    assert (receipt.answer, receipt.outcome, receipt.decided_by) == ("conflict", "approved", "alice")
    assert code(conflict) is Code.APPROVAL_CONFLICT
    assert [row.model_dump_json() for row in bench.written][: len(before)] == before
    assert recorded(conflict, VoteRow) == recorded(conflict, OutcomeRow) == sent(conflict) == []
    assert bench.state.outcome == "approved"


@case("C09")
def test_the_same_voice_again_under_a_new_decision_id_is_a_conflict() -> None:
    bench = ApprovalBench()
    decided(bench)
    assert reply(decided(bench)).answer == "conflict"


def test_of_many_deciders_one_wins_and_all_others_are_told_so() -> None:
    bench = ApprovalBench()
    answers = [reply(decided(bench, "approve" if at % 2 else "reject", by=f"person-{at}")).answer for at in range(50)]
    assert answers == ["accepted"] + ["conflict"] * 49
    assert [row.outcome for row in bench.all_written(OutcomeRow)] == ["rejected"]
    assert [type(effect.message) for effect in bench.sent if effect.not_before is None] == [ApprovalDecided]


# ── the same decision again ────────────────────────────────────────────────────────────


def test_a_repeat_gets_the_same_receipt_byte_for_byte_for_ever() -> None:
    bench = ApprovalBench()
    decision = bench.decision()
    first = reply_text(bench.give(decision))
    for _ in range(3):
        bench.later(100_000_000)
        again = bench.give(decision)
        assert reply(again).answer == "duplicate"
        assert reply_text(again) == first
        assert [row.answer for row in recorded(again)] == ["duplicate"], "the answer rests on a commit that wrote"
        assert sent(again) == []
    assert json.loads(first)["answer"] == "accepted"


@pytest.mark.parametrize(
    ("changes", "answer"), [({"request_hash": WRONG_HASH}, "stale"), ({"reviewer": a_person("carol")}, "not_allowed")]
)
def test_a_repeated_refusal_is_the_same_refusal(changes: dict[str, Any], answer: str) -> None:
    bench = ApprovalBench()
    decision = bench.decision(**changes)
    first = reply_text(bench.give(decision))
    assert json.loads(first)["answer"] == answer
    decided(bench)
    bench.later(1_000)
    assert reply_text(bench.give(decision)) == first


@pytest.mark.parametrize(
    "changes", [{"decision": "reject"}, {"reviewer": a_person("bob")}, {"reason": "on second thoughts"}]
)
def test_the_same_decision_id_with_other_content_changes_nothing(changes: dict[str, Any]) -> None:
    bench = ApprovalBench(a_request(quorum=3))
    decision = bench.decision()
    bench.give(decision)
    other = bench.give(decision.model_copy(update=changes))
    assert (reply(other).answer, code(other)) == ("conflict", Code.APPROVAL_CONFLICT)
    assert len(bench.all_written(VoteRow)) == 1


def test_every_answer_about_an_existing_request_is_written_down() -> None:
    bench = ApprovalBench()
    for changes in ({"request_hash": WRONG_HASH}, {"reviewer": a_person("carol")}, {}, {"decision": "reject"}):
        bench.give(bench.decision(**changes))
    attempts = bench.all_written(DecisionAttemptRow)
    assert [(row.n, row.answer) for row in attempts] == [
        (1, "stale"), (2, "not_allowed"), (3, "accepted"), (4, "conflict"),
    ]  # fmt: skip
    assert [json.loads(row.receipt_text)["answer"] for row in attempts] == [row.answer for row in attempts]


# ── the order of checks ────────────────────────────────────────────────────────────────


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


@case("C19", "J01", "M50")
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


# ── expiry ─────────────────────────────────────────────────────────────────────────────


@case("M01")
def test_a_deadline_that_passes_undecided_is_an_outcome_of_nobody() -> None:
    bench = ApprovalBench()
    bench.later(59_999)
    assert bench.give(bench.expiry()).kind == "absorbed"
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


# ── several people ─────────────────────────────────────────────────────────────────────


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


# ── who may decide ─────────────────────────────────────────────────────────────────────


@case("M16")
@pytest.mark.parametrize("word", ["approve", "reject"])
@pytest.mark.parametrize("name", ["carol", " carol "])
def test_whoever_started_the_run_decides_none_of_its_requests(word: str, name: str) -> None:
    bench = ApprovalBench()
    refused = decided(bench, word, by=name)
    assert (reply(refused).answer, code(refused)) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
    assert [row.answer for row in recorded(refused)] == ["not_allowed"], "the attempt is on record, no vote is"
    assert bench.state.status == "open"


@pytest.mark.parametrize("kind", [PrincipalKind.AGENT, PrincipalKind.SERVICE, PrincipalKind.POLICY])
def test_no_machine_ever_votes(kind: PrincipalKind) -> None:
    bench = ApprovalBench()
    refused = decided(bench, reviewer=a_person("deployer", kind))
    assert (reply(refused).answer, code(refused)) == ("not_allowed", Code.APPROVER_NOT_ALLOWED)
    assert recorded(refused, VoteRow) == []


# ── taking back ────────────────────────────────────────────────────────────────────────


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


# ── the whole table ────────────────────────────────────────────────────────────────────


def in_status(status: str) -> ApprovalBench:
    """A question that has come to `status`."""
    if status in ("absent", "withdrawn"):
        bench = ApprovalBench(opened=False)
        if status == "withdrawn":
            bench.give(bench.closing())
        return bench
    bench = ApprovalBench(a_request(DOUBT) if status == "settled" else None)
    match status:
        case "approved" | "revoked":
            decided(bench)
            if status == "revoked":
                bench.give(bench.revocation())
        case "rejected":
            decided(bench, "reject")
        case "settled":
            decided(bench, "executed")
        case "expired":
            bench.later(60_000)
            bench.give(bench.expiry())
        case "cancelled" | "superseded":
            bench.give(bench.closing(status))
        case _:
            assert status == "open"
    return bench


_ENDED = {"request": "moved", "decide": "moved", "revoke": "moved", "expire": "absorbed", "close": "absorbed"}
TABLE: dict[str, dict[str, str]] = {
    "absent": every(["request", "close"], "moved") | every(["decide", "revoke", "expire"], "absorbed"),
    "withdrawn": {"request": "moved"} | every(["decide", "revoke", "expire", "close"], "absorbed"),
    "open": every(["decide", "revoke", "close"], "moved") | every(["request", "expire"], "absorbed"),
    **dict.fromkeys(sorted(APPROVAL_TERMINAL), _ENDED),
}


def test_the_table_covers_every_status_and_every_message() -> None:
    assert set(TABLE) == APPROVAL_STATUSES | {"absent", "withdrawn"}
    messages = ApprovalBench().every_message()
    assert {type(message) for message in messages.values()} == ApprovalMachine.messages
    assert all(set(row) == set(messages) for row in TABLE.values())


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status in TABLE for kind in TABLE[status]])
def test_every_message_in_every_status_has_its_answer(status: str, kind: str) -> None:
    bench = in_status(status)
    before = bench.state
    assert before is None or before.status == ("cancelled" if status == "withdrawn" else status)
    transition = bench.give(bench.every_message()[kind])
    assert transition.kind == TABLE[status][kind]
    if status not in APPROVAL_TERMINAL:
        return
    taken_back = (status, kind) == ("approved", "revoke")
    assert bench.state.status == ("revoked" if taken_back else status), "terminal stays terminal"
    assert recorded(transition, OutcomeRow) == recorded(transition, VoteRow) == []
    for field in ("outcome", "decided_by", "decided_at_ms", "votes"):
        assert getattr(bench.state, field) == getattr(before, field)


@pytest.mark.parametrize("status", sorted(TABLE))
def test_a_word_that_is_not_for_an_approval_is_refused(status: str) -> None:
    stray = TakeTurn(
        tenant=TENANT, run_id=RUN_ID, thread_id="plan", turn=1, purpose="plan", team="t", agent="a", append=()
    )
    refused = in_status(status).give(stray)
    assert (refused.kind, refused.failure and refused.failure.code) == ("refused", Code.MESSAGE_UNEXPECTED)


def test_the_state_of_a_question_is_small() -> None:
    bench = ApprovalBench(a_request(CALL.model_copy(update={"input": {"text": "x" * 50_000}}), quorum=2))
    decided(bench)
    assert len(bench.state.model_dump_json()) < 700
