"""Declarative rules: compiled once, strict about names, of bounded cost, and asking a person wherever they err."""

from __future__ import annotations

import time
from typing import Any

import pytest

from placet import App, Suspend, ToolContext
from placet.errors import ContractError
from placet.gates import Boundary, CallSubject, DispatchSubject, Judgement, RoundSubject, Subject, TaskSubject
from placet.rules import FUNCTIONS, SUBJECTS
from tests.cases import case
from tests.vocabulary.apps import a_call, a_plan, line_of, named, with_deploy

TASK = TaskSubject(id="a", title="A", description="", assignee="ann", depends_on=())


def judged(app: App, subject: Subject | None = None, boundary: Boundary = Boundary.TOOL_CALL) -> Judgement:
    found = app.judge(boundary, subject or a_call())
    assert found is not None
    return found


def ruled(when: str, subject: Subject | None = None, **rule: Any) -> Judgement:
    """What one rule says to a call that is not consequential."""
    app = with_deploy()
    app.rule("the-rule", when=when, **rule)
    return judged(app, subject)


def refusal(**rule: Any) -> str:
    with pytest.raises(ContractError) as refused:
        with_deploy().rule(**{"name": "the-rule", "when": "true", **rule})
    return line_of(refused)


# ── what a rule answers ────────────────────────────────────────────────────────────────


def test_a_rule_whose_condition_holds_answers_what_it_says_and_why() -> None:
    found = ruled("input.cents > 40000", a_call(cents=40_001), reason="more than 400.00")
    assert (found.verdict, found.rule, found.reason) == ("suspend", "the-rule", "more than 400.00")
    assert ruled("input.cents > 40000", a_call(cents=40_001), then="deny").verdict == "deny"


def test_a_rule_whose_condition_does_not_hold_says_nothing() -> None:
    found = ruled("input.cents > 40000", a_call(cents=40_000))
    assert (found.verdict, found.rule) == ("allow", "default")


def test_a_rule_that_says_nothing_lets_no_consequential_call_pass() -> None:
    app = with_deploy(consequential=True)
    app.rule("big", when="input.cents > 40000", tools=["deploy"])
    found = judged(app, a_call(consequential=True, cents=1))
    assert (found.verdict, found.rule) == ("suspend", "consequential")


def test_a_rule_for_that_very_tool_can_let_a_consequential_call_pass() -> None:
    app = with_deploy(consequential=True)
    app.rule("big", when="input.cents > 40000", tools=["deploy"], otherwise="allow")
    assert judged(app, a_call(consequential=True, cents=1)).verdict == "allow"
    assert judged(app, a_call(consequential=True, cents=40_001)).verdict == "suspend"


def test_a_rule_for_all_tools_lets_no_consequential_call_pass() -> None:
    app = with_deploy(consequential=True)
    app.rule("lax", when="true", then="allow")
    assert judged(app, a_call(consequential=True)).rule == "consequential"


@case("E32", "E35")
@pytest.mark.parametrize("first", ["allow", "deny"])
def test_a_saved_always_allow_never_beats_a_configured_deny(first: str) -> None:
    app = with_deploy(consequential=True)
    rules = {"allow": ("always", "true"), "deny": ("never", "input.env == 'production'")}
    for then in sorted(rules, reverse=first == "deny"):
        name, when = rules[then]
        app.rule(name, when=when, then=then, tools=["deploy"])  # type: ignore[arg-type]
    app.gate("tool_call", tools=["deploy"])(named("fine", lambda call: True))
    found = judged(app, a_call(consequential=True, env="production"))
    assert (found.verdict, found.rule) == ("deny", "never")
    assert judged(app, a_call(consequential=True, env="staging")).verdict == "allow"


def test_rules_and_gates_that_suspend_ask_one_question_on_the_stricter_terms() -> None:
    app = with_deploy()
    app.rule("money", when="true", quorum=2, expires_after_s=60, reviewers=["ann", "ben"], reason="It costs.")
    app.gate("tool_call", expires_after_s=10, reviewers=["ben", "ann", "cyd"])(
        named("late", lambda c: Suspend("Late."))
    )
    found = judged(app)
    assert (found.rule, found.reason, found.quorum) == ("money, late", "It costs. Late.", 2)
    assert (found.expires_after_ms, found.reviewers) == (10_000, ("ann", "ben"))


@pytest.mark.parametrize(
    ("boundary", "subject", "when"),
    [
        (Boundary.PLAN, a_plan(), "continuation == 'execute' && size(tasks) == 0 && goal == 'g'"),
        (
            Boundary.ROUND,
            RoundSubject(run_id="r", team="ops", completed=(TASK,), next=(TASK,), initiator="alice"),
            "next.exists(t, t.assignee == 'ann') && completed[0].id == 'a'",
        ),
        (
            Boundary.DISPATCH,
            DispatchSubject(run_id="r", team="ops", task=TASK, initiator="alice"),
            "task.title == 'A' && initiator == 'alice'",
        ),
        (Boundary.TOOL_CALL, a_call(env="x"), "tool == 'deploy' && agent.startsWith('op') && raw_input == input"),
    ],
)
def test_a_rule_sees_at_each_boundary_what_a_gate_sees(boundary: Any, subject: Subject, when: str) -> None:
    app = with_deploy()
    app.rule("the-rule", when=when, boundary=boundary, then="deny")
    assert judged(app, subject, boundary).rule == "the-rule"


def test_numbers_are_compared_as_numbers_whole_or_not() -> None:
    for cents in (41_000, 40_000.5, 1e20, 2**63, 2**200):
        assert ruled("input.cents > 40000", a_call(cents=cents)).verdict == "suspend"
    assert ruled("input.cents > 40000.5", a_call(cents=40_000)).verdict == "allow"


# ── a rule that errs ───────────────────────────────────────────────────────────────────

ERRING = [
    ("input.cents > 40000", {}, "there is no 'cents'"),
    ("input.cents > 40000", {"cents": "many"}, "No such overload"),
    ("input.cents > 40000", {"cents": None}, "No such overload"),
    ("input.a.b.c", {"a": {}}, "there is no 'b'"),
    ("input.cents", {"cents": 5}, "not true or false"),
    ("input.text", {"text": "true"}, "not true or false"),
    ("input.nothing", {"nothing": None}, "not true or false"),
    ("input.n / input.d > 1", {"n": 1, "d": 0}, "division by zero"),
    ("input.n * input.n > 1", {"n": 2**53 - 1}, "overflow"),
    ("input.list[7] == 1", {"list": [1]}, ""),
    ("input.text.matches(input.pattern)", {"text": "x", "pattern": "("}, "regex"),
    ("int(input.text) > 1", {"text": "x"}, ""),
    ("input.list.all(x, x.ok)", {"list": [{"ok": True}, {}]}, "there is no 'ok'"),
]


@pytest.mark.parametrize("then", ["suspend", "deny", "allow"])
@pytest.mark.parametrize(("when", "given", "told"), ERRING)
def test_a_rule_that_errs_asks_a_person_whatever_it_would_have_said(
    when: str, given: dict[str, Any], told: str, then: Any
) -> None:
    for otherwise in (None, "allow"):
        app = with_deploy(consequential=True)
        app.rule("the-rule", when=when, then=then, otherwise=otherwise, tools=["deploy"])
        found = judged(app, a_call(consequential=True, **given))
        assert (found.verdict, found.rule) == ("suspend", "the-rule")
        assert (found.reason or "").startswith("Rule 'the-rule' could not be evaluated, so a person decides: ")
        assert told in (found.reason or "")
        assert "\n" not in (found.reason or "")


def test_a_rule_that_errs_outweighs_one_that_allows_and_not_one_that_denies() -> None:
    app = with_deploy()
    app.rule("errs", when="input.gone")
    app.rule("fine", when="true", then="allow", tools=["deploy"])
    assert judged(app).verdict == "suspend"
    app = with_deploy()
    app.rule("errs", when="input.gone")
    app.rule("never", when="true", then="deny")
    assert judged(app).verdict == "deny"


def test_a_condition_that_needs_no_missing_field_does_not_err() -> None:
    assert ruled("has(input.cents) && input.cents > 40000").rule == "default"


HUGE: dict[str, Any] = {"list": [{"n": n} for n in range(2_000)]}


@pytest.mark.parametrize(
    "when",
    [
        "input.list.all(a, input.list.all(b, input.list.all(c, a.n + b.n + c.n >= 0)))",
        "size(input.list.map(a, a.n)) > 1",
        "size([input.list]" + ".map(x, x + x)" * 40 + "[0]) > 1",
        "size(" + "+".join(["input.text"] * 100) + ") > 1",
        "input.list.all(a, 'b' in input.list.map(b, 'x'))",
    ],
)
def test_a_rule_that_could_cost_too_much_is_not_begun(when: str) -> None:
    began_s = time.monotonic()
    found = ruled(when, a_call(text="x" * 200_000, **HUGE))
    assert found.verdict == "suspend"
    assert "more than a rule may look at" in (found.reason or "")
    assert time.monotonic() - began_s < 2


def test_what_stands_in_text_or_a_comment_costs_nothing() -> None:
    when = "input.text != '.all(x, .all(x, .all(x, .map(x, .map(x, ++++++ ))' // .all(a, .all(b, .all(c, \n && true"
    assert ruled(when, a_call(text="x", **HUGE)).rule == "the-rule"
    assert ruled(r"""input.text != r'\' && input.list.exists(x, x.n == 7)""", a_call(text="x", **HUGE)).reason is None


def test_the_largest_plan_can_be_looked_through() -> None:
    tasks = tuple(TASK.model_copy(update={"id": f"t{n}"}) for n in range(1_000))
    app = with_deploy()
    app.rule("the-rule", boundary="plan", when="size(tasks.filter(t, t.assignee == 'ann')) > 3")
    found = judged(app, a_plan().model_copy(update={"tasks": tasks}), Boundary.PLAN)
    assert (found.rule, found.reason) == ("the-rule", None)


def test_a_rule_changes_nothing_of_what_others_see() -> None:
    call = a_call(list=[1])
    ruled("size(input.list + [2]) == 2", call)
    assert call.input == {"list": [1]}


# ── what cannot be a rule ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"when": "input.cents >"}, "rule 'the-rule' does not compile: line 1, column 14: Syntax error"),
        ({"when": "true &&\n  )"}, "line 2, column 3"),
        ({"when": "((("}, "does not compile"),
        ({"when": "(" * 2_000 + "true" + ")" * 2_000}, "does not compile"),
        ({"when": ""}, "when is a condition"),
        ({"when": True}, "when is a condition"),
        ({"when": "x" * 5_000}, "at most 4096"),
        ({"when": "inputs.cents > 1"}, "line 1, column 1: there is no 'inputs' at tool_call, only agent, "),
        ({"when": "'ü' != tool &&\n goal == ''"}, "line 2, column 2: there is no 'goal' at tool_call"),
        ({"when": "input.list.all(x, y > 1)"}, "there is no 'y'"),
        ({"when": "now() > 1"}, "line 1, column 1: there is no function 'now', only bytes, "),
        ({"when": "tool.lower() == 'x'"}, "column 6: there is no function 'lower'"),
        ({"when": "goal == ''", "boundary": "tool_call"}, "there is no 'goal'"),
        ({"then": "ask"}, "then is one of suspend, deny, allow, not 'ask'"),
        ({"otherwise": "maybe"}, "otherwise is one of"),
        ({"boundary": "moon"}, "a gate stands at one of"),
        ({"boundary": "plan", "tools": ["deploy"]}, "is for gates at tool_call"),
        ({"tools": []}, "names at least one tool"),
        ({"name": "consequential"}, "which is the name of a rule that is always there"),
        ({"name": ""}, "the name of a rule"),
        ({"reason": 5}, "reason is text"),
        ({"reason": "nul \x00"}, "reason is text"),
        ({"quorum": 0}, "quorum"),
        ({"quorums": 2}, "there is no quorums="),
        ({"reviewers": []}, "names at least one person"),
        ({"reviewers": "ann"}, "a list of persons"),
        ({"reviewers": ["ann", "ann"]}, "twice"),
        ({"expires_after_s": -1}, "expires_after_s"),
    ],
)
def test_a_mistake_in_a_rule_is_told_with_rule_place_and_reason(rule: dict[str, Any], says: str) -> None:
    assert says in refusal(**rule)


def test_two_rules_of_one_name_are_refused_also_where_one_is_a_gate() -> None:
    app = with_deploy()
    app.gate("tool_call")(named("twice", lambda call: True))
    with pytest.raises(ContractError) as refused:
        app.rule("twice", when="true")
    assert "two gates called 'twice'" in line_of(refused)


def test_a_rule_for_a_tool_that_does_not_exist_is_refused_when_the_application_is_checked() -> None:
    app = with_deploy()
    app.rule("r", when="true", tools=["nothing"])
    with pytest.raises(ContractError) as refused:
        app.check()
    assert "'nothing', which does not exist" in line_of(refused)


@case("E12")
def test_a_round_rule_and_a_dispatch_rule_together_are_refused() -> None:
    app = with_deploy()
    app.rule("one", boundary="round", when="true")
    with pytest.raises(ContractError) as refused:
        app.rule("two", boundary="dispatch", when="true")
    assert "not at both" in line_of(refused)


def test_every_function_that_a_rule_may_call_is_there() -> None:
    """The library tells a function that it does not know at the first evaluation only."""
    forms = ("f(x)", "x.f()", "x.f(x)", "f('1')", "'1'.f('1')", "f('1s')", "f('2026-12-01T00:00:00Z')")
    for function in FUNCTIONS:
        told = [ruled(form.replace("f", function).replace("x", "input"), a_call()).reason for form in forms]
        assert not all("Undefined" in (reason or "") for reason in told), function


def test_the_variables_of_every_boundary_are_the_fields_of_its_subject() -> None:
    assert set(SUBJECTS) == set(Boundary)
    assert {"input", "tool", "findings"} <= set(CallSubject.model_fields)


# ── which policy it is ─────────────────────────────────────────────────────────────────


def digest_with(**rule: Any) -> str:
    app = with_deploy()
    app.rule(**{"name": "r", "when": "true", **rule})
    return app.policy_digest


def test_the_digest_of_the_policy_changes_with_everything_that_a_rule_says() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"name": "s"},
        {"when": "false"},
        {"then": "deny"},
        {"otherwise": "allow"},
        {"reason": "why"},
        {"boundary": "plan"},
        {"tools": ["deploy"]},
        {"quorum": 2},
        {"reviewers": ["ann"]},
        {"expires_after_s": 1},
        {"use_within_s": 1},
        {"expires_after_s": 1, "remind_before_s": 0.5},
        {"on_expiry": "fail"},
        {"editor_may_approve": True},
    ]
    digests = [digest_with(**change) for change in changes]
    assert len(set(digests)) == len(changes)
    assert digest_with() == digests[0]
    assert all(len(each) == 64 for each in digests)


def test_a_judgement_names_the_policy_by_version_and_digest() -> None:
    app = with_deploy()
    app.rule("r", when="true")
    found = judged(app)
    assert (found.policy_version, found.policy_digest) == (app.policy_version, app.policy_digest)
    assert app.policy_digest.startswith(app.policy_version)


# ── gates outside, agents, reviewers ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (lambda app: app.http_gate("g", "ftp://x/y"), "url is an address"),
        (lambda app: app.http_gate("g", "https://"), "url is an address"),
        (lambda app: app.http_gate("g", "https://user:pw@x/y"), "url is an address"),
        (lambda app: app.http_gate("g", "/local"), "url is an address"),
        (lambda app: app.http_gate("g", "https://x/\n"), "url is an address"),
        (lambda app: app.http_gate("g", 5), "url is an address"),
        (lambda app: app.http_gate("g", "https://x", on_error="allow"), "on_error is one of suspend, deny"),
        (lambda app: app.http_gate("g", "https://x", timeout_s=0), "timeout_s"),
        (lambda app: app.http_gate("g", "https://x", timeout_s=61), "timeout_s is at most 60"),
        (lambda app: app.http_gate("g", "https://x", headers={"a": "b\r\nc: d"}), "headers are names and values"),
        (lambda app: app.http_gate("g", "https://x", headers={"a b": "c"}), "headers are names and values"),
        (lambda app: app.http_gate("g", "https://x", tools=[]), "names at least one tool"),
        (lambda app: [app.http_gate("g", "https://x"), app.http_gate("g", "https://y")], "two gates called 'g'"),
        (lambda app: app.agent("a", model="x:y", tools=["deploy"], require_approval=["other"]), "not among its tools"),
        (lambda app: app.agent("a", model="x:y", tools=["deploy"], require_approval="deploy"), "a list is needed"),
        (lambda app: [app.rule("r", when="true", quorum=3, reviewers=["a", "b"]), app.check()], "3 people must agree"),
    ],
)
def test_a_mistake_about_who_is_asked_is_told_in_one_line(register: Any, says: str) -> None:
    with pytest.raises(ContractError) as refused:
        register(with_deploy())
    assert says in line_of(refused)


def test_an_application_whose_gates_want_more_people_than_it_has_is_refused() -> None:
    app = App("desk", version="1", reviewers=["ann"])
    app.rule("two", when="true", quorum=2)
    with pytest.raises(ContractError) as refused:
        app.check()
    assert "2 people must agree, and 1 may decide" in line_of(refused)


def test_the_digest_of_the_policy_changes_with_gates_outside_agents_and_reviewers() -> None:
    def digest(register: Any, **app: Any) -> str:
        made = App("desk", version="1", **app)

        @made.tool(effect="read_only")
        def look(ctx: ToolContext) -> None: ...

        register(made)
        return made.policy_digest

    digests = [
        digest(lambda app: None),
        digest(lambda app: None, reviewers=[]),
        digest(lambda app: None, reviewers=["ann"]),
        digest(lambda app: app.agent("a", model="x:y", tools=["look"], require_approval=True)),
        digest(lambda app: app.http_gate("g", "https://x")),
        digest(lambda app: app.http_gate("g", "https://y")),
        digest(lambda app: app.http_gate("g", "https://x", on_error="deny")),
        digest(lambda app: app.http_gate("g", "https://x", timeout_s=6)),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(lambda app: app.agent("a", model="x:y", tools=["look"])) == digests[0]


def test_a_gate_outside_is_asked_first_and_only_where_nothing_here_denies() -> None:
    app = with_deploy()
    app.http_gate("elsewhere", "https://x", tools=["deploy"])
    found = judged(app)
    assert ([asked.name for asked in found.outside], found.verdict) == (["elsewhere"], "suspend")
    app = with_deploy()
    app.http_gate("elsewhere", "https://x")
    app.rule("never", when="true", then="deny")
    assert judged(app).outside == ()
