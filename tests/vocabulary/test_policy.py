"""Gates fail closed, the strictest counts, and a consequential call waits for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from placet import Allow, App, Deny, Suspend, ToolContext
from placet.gates import Boundary, CallSubject
from tests.cases import case
from tests.vocabulary.apps import a_call, a_plan, named, with_deploy


def assert_judged(app: App, subject: CallSubject, verdict: str, rule: str, reason: str | None) -> None:
    found = app.judge(Boundary.TOOL_CALL, subject)
    assert found is not None
    assert (found.verdict, found.rule, found.reason) == (verdict, rule, reason)
    assert found.policy_version == app.policy_version


def test_no_gate_and_nothing_consequential_is_allowed_by_the_built_in_rule() -> None:
    assert_judged(with_deploy(), a_call(), "allow", "default", None)
    assert with_deploy().judge(Boundary.PLAN, a_plan()) is None


def test_the_strictest_gate_counts() -> None:
    app = with_deploy()
    app.gate("tool_call")(named("fine", lambda call: Allow()))
    app.gate("tool_call")(named("ask", lambda call: Suspend("Look at it.")))
    assert_judged(app, a_call(), "suspend", "ask", "Look at it.")
    app = with_deploy()
    app.gate("tool_call")(named("ask", lambda call: Suspend()))
    app.gate("tool_call")(named("no", lambda call: Deny("Never on Fridays.")))
    assert_judged(app, a_call(), "deny", "no", "Never on Fridays.")


def test_gates_that_all_suspend_ask_one_question_with_the_stricter_terms() -> None:
    app = with_deploy()
    app.gate("tool_call", quorum=2, expires_after_s=60)(named("money", lambda call: Suspend("It costs.")))
    app.gate("tool_call", expires_after_s=10, use_within_s=5)(named("time", lambda call: Suspend("It is late.")))
    found = app.judge(Boundary.TOOL_CALL, a_call())
    assert found is not None
    assert (found.verdict, found.rule, found.reason) == ("suspend", "money, time", "It costs. It is late.")
    assert (found.quorum, found.expires_after_ms, found.use_within_ms) == (2, 10_000, 5_000)


@case("E06", "E28")
@pytest.mark.parametrize("error", [ValueError("no such key"), SystemExit(1), RecursionError()])
def test_a_gate_that_raises_has_failed(error: BaseException) -> None:
    def gate(call: object) -> bool:
        raise error

    app = with_deploy()
    app.gate("tool_call")(gate)
    app.gate("plan")(named("plan_gate", gate))
    for boundary, subject in ((Boundary.TOOL_CALL, a_call()), (Boundary.PLAN, a_plan())):
        found = app.judge(boundary, subject)
        assert found is not None
        assert found.verdict == "failed"
        assert type(error).__name__ in (found.reason or "")


NONSENSE: list[Callable[[Any], Any]] = [
    lambda call: None,
    lambda call: "allow",
    lambda call: 1,
    lambda call: {"action": "maybe"},
    lambda call: Suspend(5),  # type: ignore[arg-type]
    lambda call: Suspend("half \ud800"),
    lambda call: Suspend("nul \x00"),
]


@case("E07", "E28")
@pytest.mark.parametrize("answer", NONSENSE)
def test_a_gate_that_answers_nonsense_has_failed(answer: Callable[[Any], Any]) -> None:
    app = with_deploy()
    app.gate("tool_call")(named("gate", answer))
    found = app.judge(Boundary.TOOL_CALL, a_call())
    assert found is not None
    assert (found.verdict, found.rule) == ("failed", "gate")
    (found.reason or "").encode()


def test_a_failed_gate_outweighs_every_other() -> None:
    app = with_deploy()
    app.gate("tool_call")(named("no", lambda call: False))
    app.gate("tool_call")(named("broken", lambda call: None))
    found = app.judge(Boundary.TOOL_CALL, a_call())
    assert found is not None
    assert (found.verdict, found.rule) == ("failed", "broken")


def test_true_and_false_stand_for_allow_and_deny() -> None:
    for answer, verdict in ((True, "allow"), (False, "deny")):
        app = with_deploy()
        app.gate("tool_call")(named("gate", lambda call, answer=answer: answer))
        assert_judged(app, a_call(), verdict, "gate", None)


def test_a_gate_cannot_change_what_others_see() -> None:
    app = with_deploy()
    call = a_call(amount=100)
    seen = []

    def cap(call: CallSubject) -> Allow:
        call.input["amount"] = 50
        return Allow()

    def look(call: CallSubject) -> Allow:
        seen.append(call.input["amount"])
        return Allow()

    app.gate("tool_call")(cap)
    app.gate("tool_call")(look)
    app.judge(Boundary.TOOL_CALL, call)
    assert seen == [100]
    assert call.input == {"amount": 100}


def test_a_consequential_call_waits_for_a_person_without_any_gate() -> None:
    found = with_deploy(consequential=True).judge(Boundary.TOOL_CALL, a_call(consequential=True))
    assert found is not None
    assert (found.verdict, found.rule) == ("suspend", "consequential")


def test_a_gate_for_all_tools_cannot_let_a_consequential_call_pass() -> None:
    app = with_deploy(consequential=True)
    app.gate("tool_call")(named("lax", lambda call: True))
    assert_judged(
        app, a_call(consequential=True), "suspend", "consequential", "A consequential call waits for a person."
    )


def test_a_gate_for_that_very_tool_can_let_a_consequential_call_pass() -> None:
    app = with_deploy(consequential=True)
    app.gate("tool_call", tools=["deploy"])(named("knows_it", lambda call: True))
    assert_judged(app, a_call(consequential=True), "allow", "knows_it", None)


def test_a_gate_for_another_tool_is_not_asked() -> None:
    app = with_deploy(consequential=True)

    @app.tool(effect="read_only")
    def look(ctx: ToolContext) -> None: ...

    app.gate("tool_call", tools=[look])(named("for_look", lambda call: False))
    assert_judged(
        app, a_call(consequential=True), "suspend", "consequential", "A consequential call waits for a person."
    )


def test_the_policy_version_changes_with_a_gate_s_source_terms_and_scope() -> None:
    def version(register: Callable[[App], object]) -> str:
        app = with_deploy()
        register(app)
        return app.policy_version

    def one(app: App) -> object:
        @app.gate("tool_call")
        def gate(call: CallSubject) -> bool:
            return True

        return gate

    def two(app: App) -> object:
        @app.gate("tool_call")
        def gate(call: CallSubject) -> bool:
            return False

        return gate

    def scoped(app: App) -> object:
        @app.gate("tool_call", tools=["deploy"])
        def gate(call: CallSubject) -> bool:
            return True

        return gate

    assert version(one) == version(one)
    assert len({version(one), version(two), version(scoped), version(lambda app: None)}) == 4
