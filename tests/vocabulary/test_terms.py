"""Proves what an author may say of what a gate asks: reminders, ends in time, editors; and of when calls are made."""

from __future__ import annotations

from typing import Any

import pytest

from placet import App, Suspend, ToolContext, ask_human, scripted
from placet.errors import Code, ContractError
from placet.gates import Boundary, CallSubject


def an_app() -> App:
    app = App("desk", version="1")

    @app.tool(effect="idempotent")
    async def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        return "paid"

    return app


def a_subject() -> CallSubject:
    return CallSubject(
        run_id="r", team="t", agent="a", task_id="t", tool="pay", input={"cents": 1}, raw_input={"cents": 1},
        consequential=True, effect="idempotent", initiator="alice",
    )  # fmt: skip


def judged(app: App) -> Any:
    return app.judge(Boundary.TOOL_CALL, a_subject())


def test_the_terms_of_a_gate_go_with_its_question() -> None:
    app = an_app()

    @app.gate(
        "tool_call", expires_after_s=60, remind_before_s=10, on_expiry="fail", editor_may_approve=True, tools=["pay"]
    )
    def waits(call: Any) -> Suspend:
        return Suspend()

    judgement = judged(app)
    assert (judgement.remind_before_ms, judgement.on_expiry, judgement.editor_may_approve) == (10_000, "fail", True)


def test_of_several_gates_the_stricter_terms_hold() -> None:
    app = an_app()

    @app.gate("tool_call", expires_after_s=60, on_expiry="ask_again", editor_may_approve=True)
    def one(call: Any) -> Suspend:
        return Suspend()

    @app.gate("tool_call", expires_after_s=50, remind_before_s=10)
    def two(call: Any) -> Suspend:
        return Suspend()

    judgement = judged(app)
    assert (judgement.expires_after_ms, judgement.remind_before_ms) == (50_000, 10_000)
    assert (judgement.on_expiry, judgement.editor_may_approve) == ("tell", False)


@pytest.mark.parametrize(
    "terms",
    [
        {"remind_before_s": 10},
        {"remind_before_s": 60, "expires_after_s": 60},
        {"remind_before_s": 0, "expires_after_s": 60},
        {"on_expiry": "approve"},
        {"editor_may_approve": 1},
    ],
)
def test_terms_that_cannot_be_meant_are_refused_when_they_are_declared(terms: dict[str, Any]) -> None:
    app = an_app()
    with pytest.raises(ContractError) as caught:

        @app.gate("tool_call", **terms)
        def waits(call: Any) -> Suspend:
            return Suspend()

    assert caught.value.code is Code.APP_INVALID


def test_no_end_in_time_lets_anything_happen() -> None:
    from typing import get_args

    from placet.gates import OnExpiry

    assert set(get_args(OnExpiry)) == {"tell", "fail", "ask_again"}


def test_asking_people_has_to_be_granted_and_nobody_else_may_be_called_so() -> None:
    app = an_app()
    assert app.tool_spec("ask_human") is None
    app = an_app()
    app.agent("clerk", model=scripted("Done."), tools=[ask_human])
    app.agent("other", model=scripted("Done."), tools=["ask_human"])
    app.team("desk", agents=["clerk", "other"])
    spec = app.tool_spec("ask_human")
    assert spec is not None
    assert (spec.effect.value, spec.consequential) == ("read_only", False)
    assert app.validate_input("ask_human", {"question": "?"}) == {
        "answer_schema": None, "options": None, "question": "?",
    }  # fmt: skip
    with pytest.raises(ContractError) as caught:

        @an_app().tool(effect="read_only", name="ask_human")
        async def mine(ctx: ToolContext) -> str:
            """Mine."""
            return ""

    assert caught.value.code is Code.APP_INVALID


def test_when_approved_calls_are_made_is_said_by_the_team() -> None:
    app = an_app()
    app.agent("clerk", model=scripted("Done."), tools=["pay"])
    app.team("desk", agents=["clerk"], release="each")
    assert app.teams["desk"].release == "each"
    other = an_app()
    other.agent("clerk", model=scripted("Done."), tools=["pay"])
    with pytest.raises(ContractError):
        other.team("desk", agents=["clerk"], release="some")  # type: ignore[arg-type]
