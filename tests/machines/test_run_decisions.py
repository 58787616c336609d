"""Decisions: believed from rows only, for exactly what was shown, and acted upon only when none is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet.canonical import canonical_text
from placet.contents import boundary_of
from placet.errors import Code, ContractError, Failure
from placet.gates import Boundary
from placet.messages import CloseApproval, SubmitRun, TakeTurn
from placet.requests import ApprovalRequest, create_request, request_hash
from placet.rows import OutcomeRow, RequestRow
from placet.strict_json import parse
from placet_dispatcher.asking import asks_call, call_content, read_object
from placet_dispatcher.states import Call, PendingRequest, Task
from tests.builders import FakeApplication, a_call, a_direct_task, a_task, a_team, a_tool, sent, suspend
from tests.cases import case
from tests.machines.run_play import HERE, Play
from tests.vocabulary.test_strict_json import JSON_VALUES

STALE = Code.APPROVAL_STALE_DECISION
INTEGRITY = Code.APPROVAL_INTEGRITY_ERROR


def an_app(*boundaries: Boundary, **team: Any) -> FakeApplication:
    gates = {boundary: lambda subject: suspend() for boundary in boundaries}
    return FakeApplication(teams={"team": a_team(**team)}, gates=gates)  # type: ignore[arg-type]


def a_plan() -> Play:
    return Play(an_app(Boundary.PLAN)).submit(a_task("a"), a_task("b", "a"))


def a_round() -> Play:
    play = Play(an_app(Boundary.ROUND, round_gate=True)).submit(a_task("a"), a_task("b", "a"), a_task("c", "a"))
    return play.say("a")


def a_dispatch() -> Play:
    return Play(an_app(Boundary.DISPATCH)).submit(a_task("a"))


def a_suspended_call() -> Play:
    return Play(an_app(Boundary.TOOL_CALL)).submit(a_task("a")).call("a", a_call())


def two_suspended_calls() -> Play:
    calls = a_call("one"), a_call("two", input_text='{"env":"production"}')
    return Play(an_app(Boundary.TOOL_CALL)).submit(a_task("a")).call("a", *calls)


EVERY_QUESTION = [a_plan, a_round, a_dispatch, a_suspended_call]


def assert_nothing_ran(play: Play, code: Code) -> None:
    assert play.last is not None
    assert (play.status, play.run.failure and play.run.failure.code) == ("failed", code)
    assert (play.executed(), sent(play.last, TakeTurn)) == ([], [])


# ── a hint is a hint ───────────────────────────────────────────────────────────────────


@case("C20")
@pytest.mark.parametrize("make", EVERY_QUESTION)
def test_a_message_without_an_outcome_row_frees_nothing(make: Callable[[], Play]) -> None:
    play = make()
    before, turns = play.run, len(play.turns())
    play.wake(play.pending()[0])
    assert play.last is not None
    assert (play.last.kind, play.last.reason) == ("absorbed", "no such outcome")
    assert (play.run, play.executed(), len(play.turns())) == (before, [], turns)


def test_the_word_of_the_message_counts_for_nothing() -> None:
    play = a_suspended_call()
    request = play.request(play.pending()[0])
    play.decide(request.request_id, "rejected")
    assert play.executed() == []
    late = a_suspended_call()
    late.decide(late.pending()[0], "rejected").wake(request.request_id, "approved")
    assert late.executed() == []


def test_a_decision_on_somebody_elses_question_is_absorbed() -> None:
    play = a_suspended_call()
    play.wake("apr_of_another_run")
    assert play.last is not None
    assert play.last.kind == "absorbed"


@case("D03", "I18")
@pytest.mark.parametrize("make", EVERY_QUESTION)
def test_waking_an_undecided_run_leaves_it_suspended_with_the_same_questions(make: Callable[[], Play]) -> None:
    play = make()
    before, asked, turns = play.run, len(play.requests()), len(play.turns())
    submission = SubmitRun.model_validate(_submission_of(play))
    play.wake(play.pending()[0])
    play.tell(submission)
    assert play.run == before
    assert (play.status, len(play.requests()), len(play.turns()), play.executed()) == ("suspended", asked, turns, [])


def _submission_of(play: Play) -> dict[str, Any]:
    run = play.run
    given = {name: getattr(run, name) for name in ("team", "mode", "goal", "initiator")}
    tasks = tuple(
        a_task(task.id, *task.depends_on, title=task.title, description=task.description) for task in run.tasks
    )
    return {**HERE, **given, "tasks": tasks}


@case("D04")
def test_one_of_two_decided_frees_nothing_yet() -> None:
    play = two_suspended_calls()
    first, second = play.pending()
    play.decide(first)
    assert (play.status, play.executed(), play.pending()) == ("suspended", [], [second])
    assert [(request.request_id, request.decision) for request in play.run.requests] == [
        (first, "approved"),
        (second, None),
    ]
    assert play.decide(first).last.kind == "absorbed"  # type: ignore[union-attr]
    play.decide(second, "rejected")
    assert [execute.request_id for execute in play.executed()] == [first]
    assert play.run.requests == ()


def test_an_approval_taken_back_while_others_are_awaited_is_not_acted_upon() -> None:
    play = two_suspended_calls()
    first, second = play.pending()
    play.decide(first).revoke(first).wake(first).decide(second)
    assert [execute.request_id for execute in play.executed()] == [second]


def test_a_decision_is_acted_upon_once_however_often_it_is_told() -> None:
    play = a_suspended_call()
    [request_id] = play.pending()
    for _ in range(3):
        play.decide(request_id)
    assert len(play.executed()) == 1


# ── what was shown, and what would run ─────────────────────────────────────────────────


def rewritten(play: Play, **changes: Any) -> Play:
    play.state = play.run.model_copy(update=changes)
    return play


def with_task(play: Play, at: int, **changes: Any) -> Play:
    tasks: list[Task] = list(play.run.tasks)
    tasks[at] = tasks[at].model_copy(update=changes)
    return rewritten(play, tasks=tuple(tasks))


@case("D09")
@pytest.mark.parametrize(
    "changes",
    [
        {"description": "do something else"},
        {"depends_on": ()},
        {"assignee": "mallory"},
        {"priority": 9},
        {"call": a_direct_task("x", env="production").call},
    ],
)
def test_a_plan_that_changed_after_it_was_approved_is_not_carried_out(changes: dict[str, Any]) -> None:
    play = with_task(a_plan(), 1, **changes)
    play.decide(play.pending()[0])
    assert_nothing_ran(play, STALE)
    assert play.turns() == []


def test_a_plan_to_look_at_does_not_become_a_plan_to_carry_out() -> None:
    play = Play(an_app(Boundary.PLAN)).submit(mode="plan_only").plan(a_task("a"))
    rewritten(play, mode="goal").decide(play.pending()[0])
    assert_nothing_ran(play, STALE)


@case("D11")
@pytest.mark.parametrize("ready", [(1,), (1, 2, 0), ()])
def test_a_round_that_gained_or_lost_a_task_is_not_begun(ready: tuple[int, ...]) -> None:
    play = rewritten(a_round(), ready=ready)
    play.decide(play.pending()[0])
    assert_nothing_ran(play, STALE)


@case("D12")
@pytest.mark.parametrize("make", EVERY_QUESTION)
def test_a_question_at_another_boundary_is_not_the_one_that_was_answered(make: Callable[[], Play]) -> None:
    play = make()
    [request] = play.run.requests
    rewritten(play, requests=(request.model_copy(update={"boundary": "elsewhere"}),))
    play.decide(request.request_id)
    assert_nothing_ran(play, STALE)


@case("D08")
def test_a_call_whose_input_changed_after_it_was_approved_is_not_made() -> None:
    play = a_suspended_call()
    call = play.task("a").calls[0].model_copy(update={"input_text": '{"env":"production"}'})
    with_task(play, 0, calls=(call,)).decide(play.pending()[0])
    assert_nothing_ran(play, STALE)


@case("D08")
@pytest.mark.parametrize(
    "change",
    [
        {"raw_input_text": '{"env":"production"}'},
        {"agent": "somebody"},
        {"tool_call_id": "other.1"},
        {"input_text": '{"env":"test","kind":"tool_call"}'},
    ],
)
def test_whatever_of_a_call_changed_after_it_was_approved_is_another_call(change: dict[str, str]) -> None:
    play = a_suspended_call()
    [request], task = play.run.requests, play.task("a")
    call = task.calls[0]
    assert asks_call(request, task.id, call, consequential=False)
    assert not asks_call(request, task.id, call, consequential=True)
    assert not asks_call(request, task.id, call.model_copy(update=change), consequential=False)


@given(JSON_VALUES, st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Z", "Cf"]), min_size=1))
def test_a_question_about_a_call_is_recognised_by_the_text_of_its_content(value: Any, name: str) -> None:
    inputs = {"value": value}
    try:
        text = canonical_text(inputs)
    except ContractError:
        return
    call = Call(
        call_id="c", tool_call_id="c.1", tool=name, status="asking", agent=name, raw_input_text=text, input_text=text
    )
    content = call_content("a", call, read_object(text), read_object(text), consequential=True)
    request = PendingRequest(
        scope="tool_call",
        boundary=boundary_of(content),
        request_id="apr_1",
        request_hash=request_hash("tool_call", boundary_of(content), content),
        what="a call",
        asked_at_ms=1,
    )
    assert asks_call(request, "a", call, consequential=True)


@case("D13")
def test_a_schema_that_adds_a_default_makes_the_approval_stale() -> None:
    play = a_suspended_call()
    play.app.schemas["deploy"] = lambda raw: {"force": True, **raw}
    play.decide(play.pending()[0])
    assert_nothing_ran(play, STALE)


def test_input_that_todays_schema_refuses_is_not_run() -> None:
    play = a_suspended_call()
    play.app.schemas["deploy"] = lambda raw: Failure(code=Code.TOOL_INPUT_INVALID, message="no")
    assert_nothing_ran(play.decide(play.pending()[0]), STALE)


@case("D14")
def test_a_tool_that_became_consequential_makes_the_approval_stale() -> None:
    play = a_suspended_call()
    play.app.tools["deploy"] = a_tool(consequential=True)
    assert_nothing_ran(play.decide(play.pending()[0]), STALE)


@case("D15")
@pytest.mark.parametrize("gone", ["tool", "grant", "team"])
def test_a_tool_that_is_gone_or_no_longer_granted_makes_the_approval_stale(gone: str) -> None:
    play = a_suspended_call()
    if gone == "tool":
        del play.app.tools["deploy"]
    elif gone == "grant":
        play.app.teams["team"] = a_team(agents={"worker": ("search",)})
    else:
        del play.app.teams["team"]
    assert_nothing_ran(play.decide(play.pending()[0]), STALE)


def test_one_stale_call_keeps_the_others_from_running_too() -> None:
    play = two_suspended_calls()
    first, second = play.pending()
    play.decide(first)
    play.app.schemas["deploy"] = lambda raw: {**raw, "force": True} if raw["env"] == "production" else raw
    play.decide(second)
    assert_nothing_ran(play, STALE)


def test_a_rejected_call_needs_no_schema_of_today() -> None:
    play = a_suspended_call()
    del play.app.tools["deploy"]
    play.decide(play.pending()[0], "rejected")
    assert play.status == "running"


# ── rows that contradict ───────────────────────────────────────────────────────────────


def told_with(play: Play, request: ApprovalRequest | None, **outcome: Any) -> Play:
    """Decide the only question on the word of tampered rows."""
    [request_id] = play.pending()
    if request is not None:
        row = RequestRow(**HERE, request=request)
        play.rows[row.fact_key()._replace(key=request_id)] = row
    fields: dict[str, Any] = {
        **HERE, "request_id": request_id, "outcome": "approved", "decided_by": "bob", "decision_id": "dec-1",
        "request_hash": play.request(request_id).request_hash, "reason": None, "decided_at_ms": 1, "use_by_ms": None,
    }  # fmt: skip
    row_ = OutcomeRow(**{**fields, **outcome})
    play.rows[row_.fact_key()] = row_
    return play.wake(request_id)


@case("D24")
@pytest.mark.parametrize("make", EVERY_QUESTION)
def test_a_request_row_whose_content_was_edited_is_not_believed(make: Callable[[], Play]) -> None:
    play = make()
    request = play.request(play.pending()[0])
    text = request.content_text.replace("do a", "do b").replace("staging", "stating")
    edited = request.model_copy(update={"content_text": text})
    assert edited != request
    told_with(play, edited)
    assert_nothing_ran(play, INTEGRITY)


def test_an_outcome_without_a_request_row_is_not_believed() -> None:
    assert_nothing_ran(told_with(a_suspended_call(), None), INTEGRITY)


@case("D07")
@pytest.mark.parametrize("changes", [{"request_hash": "0" * 64}, {"request_hash": ""}, {"outcome": "executed"}])
def test_an_outcome_that_does_not_belong_to_its_request_is_not_believed(changes: dict[str, Any]) -> None:
    play = a_suspended_call()
    assert_nothing_ran(told_with(play, play.request(play.pending()[0]), **changes), INTEGRITY)


def test_an_outcome_in_upper_case_is_another_hash() -> None:
    play = a_suspended_call()
    request = play.request(play.pending()[0])
    assert_nothing_ran(told_with(play, request, request_hash=request.request_hash.upper()), INTEGRITY)


def test_a_row_of_another_tenant_looks_like_no_row() -> None:
    play = a_suspended_call()
    told_with(play, play.request(play.pending()[0]), tenant="rival")
    assert play.last is not None
    assert play.last.kind == "absorbed"


@case("D20")
def test_an_approval_of_another_run_never_frees_this_ones_work() -> None:
    play = a_suspended_call()
    own = play.request(play.pending()[0])
    foreign = create_request(
        tenant="acme",
        run_id="run-2",
        scope=own.scope,
        boundary=own.boundary,
        content=parse(own.content_text),  # type: ignore[arg-type]
        requested_at_ms=own.requested_at_ms,
    )
    assert foreign.request_hash == own.request_hash
    assert_nothing_ran(told_with(play, foreign), INTEGRITY)
    copied = a_suspended_call()
    [pending] = copied.run.requests
    rewritten(copied, requests=(pending.model_copy(update={"request_id": foreign.request_id}),))
    copied.wake(foreign.request_id)
    assert copied.last is not None
    assert (copied.last.kind, copied.executed()) == ("absorbed", [])


def test_a_pending_hash_that_was_changed_in_the_state_matches_no_row() -> None:
    play = a_suspended_call()
    [pending] = play.run.requests
    rewritten(play, requests=(pending.model_copy(update={"request_hash": "f" * 64}),))
    assert_nothing_ran(play.decide(pending.request_id), STALE)


# ── operations that run ahead of the run ───────────────────────────────────────────────


def test_an_operation_that_ended_before_its_approval_was_acted_upon_is_taken_as_it_is() -> None:
    play = two_suspended_calls()
    first, second = play.pending()
    play.decide(first).done(play.request(first).operation_id, result='"early"')
    assert [request.request_id for request in play.run.requests] == [second]
    play.decide(second)
    assert [execute.request_id for execute in play.executed()] == [second]
    play.done(play.executed()[0].operation_id)
    assert [result.text for result in play.results()] == ['"early"', '"ok"']


def test_an_operation_that_ended_undecided_takes_its_question_with_it() -> None:
    play = a_suspended_call()
    [request_id] = play.pending()
    play.done(play.request(request_id).operation_id, "cancelled", None)
    assert [m.request_id for m in play.sent if isinstance(m, CloseApproval)] == [request_id]
    assert (play.status, play.pending()) == ("running", [])


def test_a_refused_call_keeps_the_reviewers_words_though_its_operation_speaks_first() -> None:
    play = two_suspended_calls()
    first, second = play.pending()
    play.decide(first, "rejected", reason="no").done(play.request(first).operation_id, "refused", None)
    assert play.last is not None
    assert play.last.kind == "absorbed"
    play.decide(second, "rejected")
    assert play.results()[0].text == "A reviewer refused this call: no"


@pytest.mark.parametrize("recorded", ["started", "needs_operator", "failed"])
def test_a_forged_end_of_an_operation_is_not_believed(recorded: str) -> None:
    play = Play().submit(a_task("a")).call("a", a_call())
    before = play.run
    play.done(play.executed()[0].operation_id, "succeeded", recorded=recorded)
    assert play.last is not None
    assert (play.last.kind, play.run) == ("absorbed", before)


def test_a_forged_doubt_does_not_hold_a_run_up() -> None:
    play = Play().submit(a_task("a")).call("a", a_call())
    play.doubt(play.executed()[0].operation_id, "started")
    assert play.status == "running"


def test_the_end_of_an_operation_counts_once() -> None:
    play = Play().submit(a_task("a")).call("a", a_call(), a_call("other"))
    first = play.executed()[0].operation_id
    play.done(first, result='"one"').done(first, result='"two"')
    play.done(play.executed()[1].operation_id)
    assert play.results()[0].text == '"one"'
    play.done(first)
    assert play.last is not None
    assert play.last.kind == "absorbed"
