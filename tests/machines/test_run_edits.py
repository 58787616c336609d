"""A run whose questions people edit, answer or send back: what it asks next, of whom, and what it lets happen."""

from __future__ import annotations

from typing import Any

import pytest

from placet.canonical import canonical_text
from placet.errors import Code, Failure
from placet.gates import Boundary
from placet.instants import Instant
from placet.requests import ApprovalRequest, follows, verified_content
from placet.rows import RequestRow
from tests.builders import T0, FakeApplication, a_call, a_direct_task, a_task, a_tool, deny, suspend
from tests.cases import case
from tests.machines.run_play import HERE, Play

EDITED = {"env": "test"}


def an_app(**terms: Any) -> FakeApplication:
    app = FakeApplication(tools={n: a_tool(n, consequential=True) for n in ("deploy", "search")})
    app.gates[Boundary.TOOL_CALL] = lambda call: (
        deny("never there") if call.input.get("env") == "moon" else suspend(**terms)
    )
    return app


def before_a_person(**terms: Any) -> Play:
    return Play(an_app(**terms)).submit(a_task("task-1")).call("task-1", a_call())


def edit(play: Play, value: Any = None, by: str = "bob", **changes: Any) -> ApprovalRequest:
    """Somebody edits the one question; the next one."""
    (pending,) = play.pending()
    text = canonical_text(EDITED if value is None else value)
    play.decide(pending, "superseded", value_text=text, decided_by=by, successor="apr_next", **changes)
    (after,) = play.pending()
    return play.request(after)


def test_the_next_question_is_about_what_was_edited_and_follows_the_first() -> None:
    play = before_a_person()
    (first,) = play.pending()
    second = edit(play)
    assert follows(second, first)
    assert second.request_id != first
    content: Any = verified_content(second)
    assert content.raw_input == EDITED
    assert (second.operation_id, second.requesters, second.generation) == (play.request(first).operation_id, "bob", 2)
    assert (play.status, play.executed()) == ("suspended", [])


@case("E39")
def test_nothing_of_the_old_question_lets_anything_happen_any_more() -> None:
    play = before_a_person()
    (first,) = play.pending()
    edit(play)
    play.wake(first, "approved")
    assert play.last is not None
    assert play.last.kind == "absorbed"
    assert play.executed() == []


@case("E39")
def test_the_order_to_start_names_the_question_that_was_approved() -> None:
    play = before_a_person()
    second = edit(play)
    play.decide(second.request_id, "approved", decided_by="carol")
    [order] = play.executed()
    assert (order.request_id, order.operation_id) == (second.request_id, second.operation_id)
    play.done(order.operation_id)
    [result] = play.results()
    assert result.text == (
        "A reviewer changed the input of this call before it was made. "
        'It was made with {"env":"test"}. Its result:\n"ok"'
    )


def test_a_failure_of_an_edited_call_says_so_as_well() -> None:
    play = before_a_person()
    second = edit(play)
    play.decide(second.request_id, "approved", decided_by="carol")
    play.done(second.operation_id, "failed", None, failure=Failure(code=Code.TOOL_FAILED, message="no such host"))
    [result] = play.results()
    assert "It was made with" in result.text
    assert result.text.endswith("TOOL_FAILED: no such host")


def test_the_output_of_a_direct_call_is_its_result_alone() -> None:
    play = Play(an_app()).submit(a_direct_task("a", env="staging"))
    second = edit(play)
    play.decide(second.request_id, "approved", decided_by="carol")
    play.done(second.operation_id)
    assert (play.status, play.task("a").output) == ("succeeded", '"ok"')


@case("E39")
@pytest.mark.parametrize(
    ("value", "told"),
    [({"env": "moon"}, "never there"), ({"env": 5}, "/env")],
)
def test_an_edit_that_does_not_pass_is_nobody_s_approval_and_the_first_is_asked_again(value: Any, told: str) -> None:
    play = before_a_person()
    bad = Failure(code=Code.TOOL_INPUT_INVALID, message="/env: not text")
    play.app.schemas["deploy"] = lambda raw: bad if raw == {"env": 5} else raw
    (first,) = play.pending()
    second = edit(play, value)
    assert second.content_text == play.request(first).content_text
    assert (second.requesters, second.generation) == ("", 2)
    assert second.reason is not None
    assert told in second.reason
    play.decide(second.request_id, "approved", decided_by="carol")
    assert [order.request_id for order in play.executed()] == [second.request_id]
    assert play.done(second.operation_id).results()[0].text == '"ok"', "nothing was edited"


def test_an_edit_that_only_its_editor_could_approve_is_refused() -> None:
    play = before_a_person(reviewers=("bob",))
    (first,) = play.pending()
    second = edit(play, by="bob")
    assert second.content_text == play.request(first).content_text
    assert "NO_REVIEWER" in (second.reason or "")


def test_terms_are_never_looser_than_they_were() -> None:
    play = before_a_person(quorum=2, expires_after_ms=60_000, use_within_ms=5_000)
    play.app.gates[Boundary.TOOL_CALL] = lambda call: None
    second = edit(play)
    assert second.quorum == 2
    assert second.expires_at_ms is not None
    assert second.use_by_ms is not None
    assert second.expires_at_ms - second.requested_at_ms == 60_000
    assert second.use_by_ms - second.expires_at_ms == 5_000


def test_a_question_whose_editors_were_forgotten_is_not_believed() -> None:
    play = before_a_person()
    second = edit(play)
    row = RequestRow(**HERE, request=second.model_copy(update={"requesters": ""}))
    play.rows[row.fact_key()] = row
    play.decide(second.request_id, "approved", decided_by="bob")
    assert (play.status, play.executed()) == ("failed", [])
    assert play.run.failure is not None
    assert play.run.failure.code is Code.APPROVAL_STALE_DECISION


def test_a_tool_that_changed_since_makes_an_edited_call_stale_too() -> None:
    play = before_a_person()
    second = edit(play)
    play.app.schemas["deploy"] = lambda raw: {**raw, "force": True}
    play.decide(second.request_id, "approved", decided_by="carol")
    assert (play.status, play.executed()) == ("failed", [])


def test_a_gate_s_own_editor_is_not_counted_as_asking() -> None:
    play = before_a_person(editor_may_approve=True)
    assert edit(play).requesters == ""


@case("M07")
def test_an_approval_that_ran_out_while_another_was_waited_for_is_asked_for_anew() -> None:
    play = Play(an_app()).submit(a_direct_task("a", env="one"), a_direct_task("b", env="two"))
    first, second = play.pending()
    play.decide(first, "approved", use_by_ms=T0 + 1_000)
    play.now_ms = Instant(T0 + 2_000)
    play.decide(second, "approved", use_by_ms=T0 + 9_000)
    assert (play.status, play.executed()) == ("suspended", [])
    (again,) = play.pending()
    assert follows(play.request(again), first)
    play.decide(again, "approved", use_by_ms=T0 + 9_000)
    assert {order.request_id for order in play.executed()} == {again, second}


@case("M07")
def test_that_an_approval_was_not_used_is_heard_once_however_often_it_is_said() -> None:
    play = before_a_person()
    (first,) = play.pending()
    play.decide(first, "approved", use_by_ms=T0 + 9_000)
    operation_id = play.request(first).operation_id
    play.done(operation_id, "lapsed", None, request_id=first)
    (second,) = play.pending()
    assert follows(play.request(second), first)
    for request_id in (first, second, None):
        play.done(operation_id, "lapsed", None, request_id=request_id)
        assert play.last is not None
        assert play.last.kind == "absorbed"
    play.decide(second, "approved", use_by_ms=T0 + 9_000)
    play.done(operation_id, "lapsed", None, request_id=first)
    assert play.last is not None and play.last.kind == "absorbed", "the second order is under way"  # noqa: PT018
    assert [order.request_id for order in play.executed()] == [first, second]


@case("M07")
def test_what_a_gate_denies_by_then_is_not_asked_for_anew() -> None:
    play = before_a_person()
    (first,) = play.pending()
    play.app.gates[Boundary.TOOL_CALL] = lambda call: deny("not any more")
    play.now_ms = Instant(T0 + 2_000)
    play.decide(first, "approved", use_by_ms=T0 + 1_000)
    assert play.executed() == []
    assert "not any more" in play.results()[0].text


@case("M56")
def test_with_each_a_stale_approval_still_ends_the_run_before_anything_runs() -> None:
    app = an_app()
    play = Play(app).submit(a_direct_task("a", env="one"), a_direct_task("b", env="two"), release="each")
    first, _ = play.pending()
    app.schemas["deploy"] = lambda raw: {**raw, "force": True}
    play.decide(first, "approved")
    assert (play.status, play.executed()) == ("failed", [])


def test_a_question_s_answer_belongs_to_that_question() -> None:
    app = FakeApplication(tools={"ask_human": a_tool("ask_human")})
    app.teams["team"] = app.teams["team"].model_copy(
        update={"agents": (app.teams["team"].agents[0].model_copy(update={"tools": ("ask_human",)}),)}
    )
    play = Play(app).submit(a_task("task-1"))
    play.call("task-1", a_call(tool="ask_human", input_text='{"question":"Which?"}'))
    (asked,) = play.pending()
    assert play.request(asked).scope == "question"
    assert [row for row in play.rows.values() if row.table == "operation"] == []
    play.decide(asked, "approved")
    assert (play.status, play.executed()) == ("failed", []), "a yes to a question lets nothing happen"
