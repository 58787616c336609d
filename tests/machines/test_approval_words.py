"""One question to people: which words fit it, what each must come with, and what it comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet import limits
from placet.canonical import canonical_text
from placet.contents import (
    PlanContent,
    PlanPatchContent,
    QuestionContent,
    TaskDispatchContent,
    TaskRoundContent,
    TaskSnapshot,
)
from placet.decision_words import ALL_WORDS, WORDS_FOR
from placet.errors import Code, Failure
from placet.messages import RUN, ApprovalExpiring, RequestApproval
from placet.requests import follows, successor_id, verify_request
from placet.rows import DecisionAttemptRow, FactKey, OutcomeRow, RequestRow, VoteRow
from tests.cases import case
from tests.machines.bench import RUN_ID, T0, TENANT, code, recorded, reply, reply_text, sent
from tests.machines.builders_approval import (
    CALL,
    DOUBT,
    REMIND_AT_MS,
    ApprovalBench,
    a_request,
    decided,
)
from tests.machines.test_approval_signed import SignedBench

AT = "2026-08-08T00:00:00.000Z"
TASK = TaskSnapshot(id="a", title="A", description="", status="pending", created_at=AT, updated_at=AT)
QUESTION = QuestionContent(
    question="How many?",
    answer_schema={"type": "integer", "minimum": 1},
    agent_name="operator",
    task_id="task-1",
    tool_call_id="call-1",
)
CONTENTS: dict[str, Any] = {
    "plan": PlanContent(tasks=(TASK,), continuation="execute"),
    "task_round": TaskRoundContent(completed_tasks=(TASK,), next_tasks=(TASK,)),
    "task_dispatch": TaskDispatchContent(task=TASK),
    "tool_call": CALL,
    "operation_outcome": DOUBT,
    "question": QUESTION,
    "plan_patch": PlanPatchContent(
        patch_id="p1", base="0" * 64, added=(TASK,), changed=(), replaced=(), removed=(), reason="", proposed_by="carol"
    ),
}
EDITED = {"env": "production"}
SAID: dict[str, dict[str, Any]] = {
    "edit": {"value_text": canonical_text(EDITED)},
    "respond": {"value_text": "3"},
    "request_changes": {"reason": "name the release"},
}
OUTCOME = {
    "approve": "approved", "reject": "rejected", "edit": "superseded", "respond": "answered",
    "request_changes": "superseded", "executed": "executed", "not_executed": "not_executed",
}  # fmt: skip


def asked_about(scope: str, **changes: Any) -> ApprovalBench:
    more = {"operation_id": ""} if scope not in ("tool_call", "operation_outcome") else {}
    return ApprovalBench(a_request(CONTENTS[scope], **{**more, **changes}))


def why(transition: Any) -> Failure:
    """What a refusal says, to whoever asked or of the message."""
    failure = transition.failure or reply(transition).failure
    assert failure is not None
    return failure


def said(scope: str, word: str) -> dict[str, Any]:
    if (scope, word) == ("plan", "edit"):
        return {"value_text": canonical_text({"tasks": [{"id": "b", "title": "B"}]})}
    return SAID.get(word, {})


@pytest.mark.parametrize(("scope", "word"), [(scope, word) for scope in WORDS_FOR for word in ALL_WORDS])
def test_a_word_answers_the_questions_it_fits_and_no_others(scope: str, word: str) -> None:
    bench = asked_about(scope)
    given = decided(bench, word, **said(scope, word))
    if word in WORDS_FOR[scope]:  # type: ignore[index]
        assert (reply(given).answer, reply(given).outcome) == ("accepted", OUTCOME[word])
        assert [row.decision for row in recorded(given, VoteRow)] == [word]
        assert [row.outcome for row in recorded(given, OutcomeRow)] == [OUTCOME[word]]
        return
    assert (given.kind, reply(given).answer, code(given)) == ("absorbed", "invalid", Code.APPROVAL_VALIDATION_ERROR)
    assert why(given).pointer == "/decision"
    assert bench.state.status == "open"


@pytest.mark.parametrize(
    ("word", "changes", "pointer"),
    [
        ("approve", {"value_text": "{}"}, "/value"),
        ("reject", {"value_text": '"no"'}, "/value"),
        ("edit", {}, "/value"),
        ("edit", {"value_text": "[]"}, "/value"),
        ("edit", {"value_text": '"text"'}, "/value"),
        ("edit", {"value_text": '{ "env":1}'}, "/value"),
        ("edit", {"value_text": '{"env":1,"env":2}'}, "/value/env"),
        ("edit", {"value_text": "{"}, "/value"),
        ("respond", {}, "/value"),
        ("respond", {"value_text": ""}, "/value"),
        ("request_changes", {}, "/reason"),
        ("request_changes", {"reason": " \n"}, "/reason"),
        ("request_changes", {"reason": "so", "value_text": '"so"'}, "/value"),
    ],
)
def test_what_a_word_does_not_come_with_or_must_not_is_told_and_nothing_is_written(
    word: str, changes: dict[str, Any], pointer: str
) -> None:
    bench = ApprovalBench()
    refused = decided(bench, word, **changes)
    assert (refused.kind, reply(refused).answer) == ("absorbed", "invalid")
    assert why(refused).pointer == pointer
    assert reply(decided(bench)).answer == "accepted"


@case("E39")
def test_an_edit_closes_the_question_names_the_next_and_keeps_what_was_said() -> None:
    bench = ApprovalBench()
    edited = decided(bench, "edit", value_text=canonical_text(EDITED), reason="not there")
    successor = successor_id(RUN_ID, bench.request.request_id, 2)
    assert reply(edited).successor == bench.state.successor == successor
    [outcome] = recorded(edited, OutcomeRow)
    assert (outcome.value_text, outcome.successor, outcome.decided_by) == (canonical_text(EDITED), successor, "alice")
    assert (outcome.is_edit, outcome.asks_for_changes, outcome.use_by_ms) == (True, False, None)
    assert [message.outcome for message in sent(edited)] == ["superseded"]

    for word, more in (("approve", {}), ("reject", {}), ("edit", {"value_text": '{"env":"x"}'})):
        late = decided(bench, word, "bob", **more)
        assert (reply(late).answer, code(late), reply(late).successor) == ("closed", Code.APPROVAL_CLOSED, successor)
        assert successor in why(late).message


@case("M30")
def test_asking_for_changes_closes_the_question_and_promises_no_other() -> None:
    bench = ApprovalBench()
    sent_back = decided(bench, "request_changes", reason="name the release")
    [outcome] = recorded(sent_back, OutcomeRow)
    assert (outcome.outcome, outcome.reason, outcome.successor) == ("superseded", "name the release", None)
    assert (outcome.is_edit, outcome.asks_for_changes) == (False, True)
    late = decided(bench, by="bob")
    assert (code(late), "alice has asked for changes" in why(late).message) == (Code.APPROVAL_CLOSED, True)


def test_what_the_asker_closes_is_neither() -> None:
    bench = ApprovalBench()
    [outcome] = recorded(bench.give(bench.closing("superseded")), OutcomeRow)
    assert (outcome.is_edit, outcome.asks_for_changes) == (False, False)


def test_an_edit_that_changes_nothing_is_told_so_and_written_down() -> None:
    bench = ApprovalBench()
    same = decided(bench, "edit", value_text=canonical_text(CALL.raw_input))
    assert (reply(same).answer, why(same).pointer) == ("invalid", "/value")
    assert [row.answer for row in recorded(same, DecisionAttemptRow)] == ["invalid"]
    assert bench.state.status == "open"


@pytest.mark.parametrize("word", ["edit", "respond", "request_changes", "reject"])
def test_one_person_is_enough_for_what_lets_nothing_happen_and_not_for_a_yes(word: str) -> None:
    bench = ApprovalBench(a_request(quorum=2))
    assert reply(decided(bench, "approve", "bob")).outcome is None
    assert reply(decided(bench, word, **SAID.get(word, {}))).outcome == OUTCOME[word]


@pytest.mark.parametrize("word", ["approve", "reject", "edit", "respond", "request_changes"])
def test_whoever_started_the_run_says_none_of_these_words(word: str) -> None:
    bench = ApprovalBench()
    assert code(decided(bench, word, "carol", **SAID.get(word, {}))) is Code.APPROVER_NOT_ALLOWED
    assert bench.state.status == "open"


def test_whoever_started_the_run_may_answer_its_agents() -> None:
    bench = asked_about("question")
    assert reply(decided(bench, "respond", "carol", value_text="3")).answer == "accepted"


@case("E39", "M16")
def test_an_editor_may_do_anything_but_approve() -> None:
    def bench() -> ApprovalBench:
        return ApprovalBench(a_request(requesters="alice\nbob"))

    for editor in ("alice", "bob", " bob "):
        refused = bench()
        assert code(decided(refused, "approve", editor)) is Code.APPROVER_NOT_ALLOWED
        assert refused.state.status == "open"
    for word in ("reject", "edit", "respond", "request_changes"):
        assert reply(decided(bench(), word, "alice", **SAID.get(word, {}))).answer == "accepted"
    assert reply(decided(bench(), "approve", "dora")).answer == "accepted"


def test_an_answer_is_held_against_its_form_and_the_question_stays_open_until_one_fits() -> None:
    bench = asked_about("question")
    for value, pointer in (("0", "/value"), ('"3"', "/value"), ("null", "/value")):
        refused = decided(bench, "respond", value_text=value)
        assert (reply(refused).answer, why(refused).pointer) == ("invalid", pointer)
    taken = decided(bench, "respond", value_text="3")
    assert [row.value_text for row in recorded(taken, OutcomeRow)] == ["3"]


def test_the_same_decision_again_has_the_same_receipt_and_another_value_is_another_decision() -> None:
    bench = ApprovalBench()
    first = bench.decision("edit", decision_id="d", value_text=canonical_text(EDITED))
    receipt = reply(bench.give(first))
    again = bench.give(first)
    assert (reply(again).answer, json.loads(reply_text(again) or "")["successor"]) == ("duplicate", receipt.successor)
    other = bench.give(first.model_copy(update={"value_text": '{"env":"x"}'}))
    assert reply(other).answer == "conflict"


def test_after_so_many_edits_there_are_no_more() -> None:
    last = a_request(generation=limits.GENERATIONS_MAX, supersedes="apr_before")
    bench = ApprovalBench(last, opened=False)
    bench.give(bench.ask())  # refused: what it follows is not there
    assert bench.state is None
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=last))
    bench.state = ApprovalBench().state.model_copy(
        update={"request_id": last.request_id, "request_hash": last.request_hash, "generation": last.generation}
    )
    assert reply(decided(bench, "edit", value_text=canonical_text(EDITED))).answer == "invalid"
    assert reply(decided(bench)).answer == "accepted"


# ── signed ─────────────────────────────────────────────────────────────────────────────


def test_a_value_is_signed_by_its_digest_and_no_other_value_is_believed() -> None:
    bench = SignedBench()
    message = bench.signed("approve")
    edit = bench.decision("edit", value_text=canonical_text(EDITED))
    honest = bench.signed_as(edit)
    for value_text in (canonical_text({"env": "elsewhere"}), None, "{}"):
        bench.refuses(honest.model_copy(update={"value_text": value_text}), Code.SIGNATURE_MISMATCH)
    bench.refuses(message.model_copy(update={"value_text": "{}"}), Code.SIGNATURE_MISMATCH)
    bench.refuses(honest.model_copy(update={"decision": "respond"}), Code.SIGNATURE_MISMATCH)
    assert reply(bench.give(honest)).outcome == "superseded"


# ── taking another's place ─────────────────────────────────────────────────────────────


def next_of(bench: ApprovalBench, **changes: Any) -> RequestApproval:
    """What the run asks after an edit."""
    content = CALL.model_copy(update={"raw_input": EDITED, "input": EDITED})
    fields: dict[str, Any] = {
        "generation": 2,
        "supersedes": bench.request.request_id,
        "requesters": "alice",
        "content": content,
    }
    request = a_request(**{**fields, **changes})
    return RequestApproval(tenant=TENANT, run_id=RUN_ID, request_id=request.request_id, request=request)


def edited() -> ApprovalBench:
    """A question that alice has edited; the bench then looks at the next one."""
    bench = ApprovalBench()
    decided(bench, "edit", value_text=canonical_text(EDITED))
    bench.state = None
    return bench


def test_the_next_question_takes_the_place_of_the_edited_one() -> None:
    bench = edited()
    message = next_of(bench)
    opened = bench.give(message)
    assert [row.request for row in recorded(opened, RequestRow)] == [message.request]
    assert (bench.state.generation, bench.state.status) == (2, "open")
    assert message.request_id == successor_id(RUN_ID, bench.request.request_id, 2)
    verify_request(message.request)
    assert follows(message.request, bench.request.request_id)
    assert not follows(message.request, "apr_0")


def test_the_question_as_it_was_may_be_asked_again_where_the_edit_was_refused() -> None:
    bench = edited()
    assert bench.give(next_of(bench, content=CALL, requesters="")).kind == "moved"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"content": CALL.model_copy(update={"raw_input": {"env": "x"}})}, "neither what was asked nor"),
        ({"content": CALL.model_copy(update={"agent_name": "intern"})}, "another call"),
        ({"content": CALL.model_copy(update={"tool_name": "destroy"})}, "another call"),
        ({"content": CALL.model_copy(update={"consequential": False})}, "another call"),
        ({"operation_id": "op_2"}, "something else"),
        ({"initiator": ""}, "something else"),
        ({"generation": 3}, "something else"),
        ({"supersedes": "apr_0"}, "has not been decided"),
    ],
)
def test_a_question_that_does_not_follow_is_refused(changes: dict[str, Any], told: str) -> None:
    bench = edited()
    message = next_of(bench, **changes)
    for table in ("approval_request", "approval_outcome"):
        bench.rows.setdefault(FactKey(table, RUN_ID, message.request.supersedes), None)  # type: ignore[arg-type]
    refused = bench.give(message)
    assert (refused.kind, code(refused)) == ("refused", Code.APPROVAL_INTEGRITY_ERROR)
    assert told in why(refused).message
    assert recorded(refused) == []


def test_who_edited_it_is_not_forgotten_by_the_next() -> None:
    bench = ApprovalBench(a_request(requesters="zoe"))
    decided(bench, "edit", value_text=canonical_text(EDITED))
    bench.state = None
    refused = bench.give(next_of(bench))
    assert "forgets who has edited" in why(refused).message


@pytest.mark.parametrize("word", [None, "reject", "respond", "request_changes"])
def test_nothing_takes_the_place_of_what_is_open_or_was_answered_for_good(word: str | None) -> None:
    bench = ApprovalBench()
    if word is not None:
        decided(bench, word, **SAID.get(word, {}))
    bench.state = None
    for content in (CALL, CALL.model_copy(update={"raw_input": EDITED, "input": EDITED})):
        assert bench.give(next_of(bench, content=content, requesters="")).kind == "refused"


@pytest.mark.parametrize("how", ["approved", "expired"])
def test_the_same_may_be_asked_again_after_an_approval_or_an_end_in_time(how: str) -> None:
    bench = ApprovalBench()
    if how == "approved":
        decided(bench)
    else:
        bench.later(60_000)
        bench.give(bench.expiry())
    bench.state = None
    assert bench.give(next_of(bench, requesters="")).kind == "refused", "but nothing else"
    assert bench.give(next_of(bench, content=CALL, requesters="")).kind == "moved"


# ── reminders ──────────────────────────────────────────────────────────────────────────


@case("M05")
def test_people_are_reminded_once_at_the_instant_of_the_request() -> None:
    bench = ApprovalBench()
    early = bench.give(bench.reminder())
    assert sent(early, ApprovalExpiring) == []
    assert sent(early) == [bench.reminder()], "it comes again at its time"
    bench.later(REMIND_AT_MS - T0)
    [word] = sent(bench.give(bench.reminder()))
    assert isinstance(word, ApprovalExpiring)
    assert (word.request_id, word.to().machine) == (bench.request.request_id, RUN)
    assert bench.give(bench.reminder()).kind == "absorbed"


@case("M05")
@pytest.mark.parametrize("ended", ["approve", "expired"])
def test_nobody_is_reminded_of_what_has_ended(ended: str) -> None:
    bench = ApprovalBench()
    if ended == "approve":
        decided(bench)
        bench.later(REMIND_AT_MS - T0)
        assert bench.give(bench.reminder()).kind == "absorbed"
        return
    bench.later(60_000)
    assert sent(bench.give(bench.reminder()), ApprovalExpiring) == []
