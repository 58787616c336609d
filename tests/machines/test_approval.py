"""One question to people: how it is put, what one voice comes to, and that the first outcome stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from placet.errors import Code
from placet.messages import ApprovalDecided, DecideApproval, ExpireApproval, RemindApproval, RequestApproval
from placet.rows import DecisionAttemptRow, OutcomeRow, RequestRow, VoteRow
from tests.cases import case
from tests.machines.bench import (
    ELSEWHERE,
    RUN_ID,
    TENANT,
    code,
    recorded,
    reply,
    reply_text,
    sent,
    timers,
)
from tests.machines.builders_approval import (
    DOUBT,
    EXPIRES_AT_MS,
    OPERATION_ID,
    REMIND_AT_MS,
    USE_BY_MS,
    WRONG_HASH,
    ApprovalBench,
    a_person,
    a_request,
    decided,
    tampered,
)

# ── opening ─────────────────────────────────────────────────────────────────────────────


def test_a_question_is_written_down_and_its_deadline_set() -> None:
    bench = ApprovalBench(opened=False)
    opened = bench.give(bench.ask())
    assert recorded(opened) == [RequestRow(tenant=TENANT, run_id=RUN_ID, request=bench.request)]
    expected = [(ExpireApproval, EXPIRES_AT_MS), (RemindApproval, REMIND_AT_MS)]
    assert [(type(message), at) for message, at in timers(opened)] == expected
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


# ── deciding ────────────────────────────────────────────────────────────────────────────


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


# ── the same decision again ─────────────────────────────────────────────────────────────


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
