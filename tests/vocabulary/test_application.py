"""An application is checked as it is registered, and closed when it is first asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import Field

from placet import App, ContractError, Executed, RetryPolicy, ToolContext, scripted
from placet.calls import EffectClass
from placet.canonical import digest
from placet.facts import Application
from placet.instants import Instant
from tests.cases import case
from tests.vocabulary.apps import an_app, line_of, named, with_deploy


def test_an_app_is_what_the_rules_ask() -> None:
    app: Application = with_deploy()
    assert app.version == "1"


def test_a_tool_is_described_by_its_signature_and_docstring() -> None:
    app = an_app()

    @app.tool(effect="reconcilable", consequential=True, timeout_s=1.5, retry=3, quiescence_s=2)
    async def create_tag(ctx: ToolContext, name: Annotated[str, Field(description="vN")], tries: int = 1) -> str:
        """Create the tag."""
        return name

    @create_tag.reconcile
    async def tag_exists(ctx: ToolContext, name: str) -> Executed:
        return Executed(name)

    spec = app.tool_spec("create_tag")
    assert spec is not None
    assert (spec.effect, spec.consequential, spec.timeout_ms) == (EffectClass.RECONCILABLE, True, 1_500)
    assert (spec.retry, spec.quiescence_ms, spec.can_reconcile, spec.can_seal) == (
        RetryPolicy(attempts_max=3),
        2_000,
        True,
        False,
    )
    assert create_tag.description == "Create the tag."
    assert create_tag.input.schema == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "vN"},
            "tries": {"type": "integer", "default": 1},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert spec.schema_digest == digest(create_tag.input.schema)


def test_a_tool_without_a_version_gets_one_from_name_and_schema() -> None:
    first, again = with_deploy().tool_spec("deploy"), with_deploy().tool_spec("deploy")
    assert first is not None
    assert again is not None
    assert first.version == again.version
    app = an_app()

    @app.tool(effect="idempotent")
    def deploy(ctx: ToolContext, env: str = "production") -> str:
        return env

    other = app.tool_spec("deploy")
    assert other is not None
    assert other.version != first.version


def test_an_app_without_a_version_gets_a_digest_that_changes_with_what_is_declared() -> None:
    def made(instructions: str) -> str:
        app = App("desk")
        app.team("ops", agents=[app.agent("a", model="x:y", instructions=instructions)])
        return app.version

    assert made("Be kind.") == made("Be kind.")
    assert made("Be kind.") != made("Be quick.")


def test_a_team_knows_its_agents_tools_planner_and_round_gate() -> None:
    app = with_deploy()
    worker = app.agent("worker", model="anthropic:claude-sonnet-4-5", tools=["deploy"])
    lead = app.agent("lead", model=scripted("hello"))
    app.team("ops", agents=[worker], planner=lead, tokens_max=1_000)

    @app.gate("round")
    def pause(subject: object) -> bool:
        return True

    team = app.team_spec("ops")
    assert team is not None
    assert [(agent.name, agent.tools) for agent in team.agents] == [("worker", ("deploy",))]
    assert (team.planner, team.tokens_max, team.round_gate) == ("lead", 1_000, True)
    assert app.team_spec("nobody") is None
    assert app.tool_spec("nothing") is None


def test_a_registered_tool_can_be_called_as_the_function_it_is() -> None:
    app = an_app()

    @app.tool(effect="read_only")
    def twice(ctx: ToolContext, n: int) -> int:
        return 2 * n

    ctx = ToolContext(
        operation_id="op_1",
        idempotency_key="op_1",
        attempt=1,
        deadline=Instant(0),
        run_id="r",
        tenant="t",
        agent="a",
    )
    assert twice(ctx, n=4) == 8


# ── what may not be registered ─────────────────────────────────────────────────────────


def test_an_async_gate_is_refused() -> None:
    async def gate(call: object) -> bool:
        return True

    with pytest.raises(ContractError) as refused:
        an_app().gate("tool_call")(gate)
    assert "plain `def`" in line_of(refused)


@pytest.mark.parametrize("first", ["round", "dispatch"])
@case("E12")
def test_a_round_gate_and_a_dispatch_gate_together_are_refused(first: str) -> None:
    app = an_app()
    second = {"round": "dispatch", "dispatch": "round"}[first]
    app.gate(first)(named("one", lambda subject: True))  # type: ignore[arg-type]
    with pytest.raises(ContractError) as refused:
        app.gate(second)(named("two", lambda subject: True))  # type: ignore[arg-type]
    assert "not at both" in line_of(refused)


def fine(ctx: ToolContext) -> None: ...
def probe(ctx: ToolContext, other: int) -> None: ...


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (lambda app: app.tool(effect="sometimes"), "with one of read_only"),
        (lambda app: app.tool(fine), "effect=…"),
        (lambda app: app.tool("a b", effect="read_only")(fine), "cannot be called 'a b'"),
        (lambda app: app.tool("submit_plan", effect="read_only")(fine), "cannot be called"),
        (lambda app: app.tool(effect="read_only", timeout_s=0)(fine), "timeout_s"),
        (lambda app: app.agent("a", model=scripted("done"), timeout_s=0), "timeout_s"),
        (lambda app: app.tool(effect="read_only", retry=0)(fine), "retry"),
        (lambda app: app.tool(effect="read_only", retry=10_000)(fine), "retry"),
        (lambda app: app.tool(effect="read_only", quiescence_s=1)(fine), "quiescence_s is for reconcilable"),
        (lambda app: app.tool(effect="read_only", pool="GPU")(fine), "pool of tool 'fine' is a word of lower-case"),
        (lambda app: app.tool(effect="read_only", pool="control")(fine), "other than 'control'"),
        (lambda app: app.tool(effect="read_only", pool=None)(fine), "pool of tool 'fine'"),
        (lambda app: app.tool(effect="read_only", consequential="yes")(fine), "True or False"),
        (lambda app: [app.tool(effect="read_only")(fine) for _ in range(2)], "two tools called 'fine'"),
        (lambda app: app.tool(effect="non_retriable")(fine).reconcile(fine), "only a reconcilable tool"),
        (lambda app: app.tool(effect="reconcilable")(fine).reconcile(probe), "'other', which is no parameter"),
        (lambda app: [app.tool(effect="reconcilable")(fine), app.check()], "add @fine.reconcile"),
        (lambda app: app.gate("start"), "a gate stands at one of plan, round, dispatch, tool_call"),
        (lambda app: app.gate("tool_call", quorums=2), "there is no quorums="),
        (lambda app: app.gate("plan", tools=["x"]), "for gates at tool_call"),
        (lambda app: app.gate("tool_call", tools="deploy"), "a list is needed"),
        (lambda app: app.gate("tool_call", tools=[]), "at least one tool"),
        (lambda app: app.gate("tool_call", quorum=0), "quorum"),
        (lambda app: app.gate("tool_call", expires_after_s=-1), "expires_after_s"),
        (lambda app: app.gate("tool_call")(lambda: True), "exactly one argument"),
        (lambda app: [app.gate("plan")(named("g", bool)) for _ in range(2)], "must be a function"),
        (lambda app: [app.gate("plan")(named("g", lambda s: True)) for _ in range(2)], "two gates called 'g'"),
        (lambda app: [app.gate("tool_call", tools=["x"])(lambda s: True), app.check()], "'x', which does not exist"),
        (lambda app: app.agent("a", model="gpt"), "`provider:model`"),
        (lambda app: app.agent("a", model="x:y", tools=["nothing"]), "there is no tool 'nothing'"),
        (lambda app: app.agent("a", model="x:y", tools="nothing"), "a list is needed"),
        (lambda app: app.agent("a\nb", model="x:y"), "one line of text"),
        (lambda app: app.team("t", agents=[]), "at least one agent"),
        (lambda app: app.team("t", agents=["ghost"]), "there is no agent 'ghost'"),
        (lambda app: app.team("t", agents=[app.agent("a", model="x:y")], planner="ghost"), "no agent 'ghost'"),
        (lambda app: app.team("t", agents=[app.agent("a", model="x:y")], tokens_max=0), "tokens_max"),
        (lambda app: App(""), "the name of an application"),
    ],
)
def test_a_mistake_in_a_declaration_is_told_in_one_line(register: Callable[[Any], object], says: str) -> None:
    with pytest.raises(ContractError) as refused:
        register(an_app())
    assert says in line_of(refused)


def test_nothing_can_be_registered_once_the_application_was_asked() -> None:
    app = an_app()

    @app.tool(effect="reconcilable")
    def tag(ctx: ToolContext) -> None: ...

    tag.reconcile(named("probe", lambda ctx: None))
    assert app.tool_spec("tag") is not None
    late: list[Callable[[], object]] = [
        lambda: app.tool(effect="read_only")(fine),
        lambda: app.gate("plan")(named("gate", lambda subject: True)),
        lambda: app.agent("a", model="x:y"),
        lambda: tag.seal(named("seal", lambda ctx: None)),
    ]
    for register in late:
        with pytest.raises(ContractError) as refused:
            register()
        assert "comes too late" in line_of(refused)


def test_where_a_tool_runs_is_known_and_is_no_part_of_what_was_approved() -> None:
    def made(pool: str) -> App:
        app = App("shop")
        app.tool(effect="read_only", pool=pool)(fine)
        return app

    common, moved = made(""), made("gpu")
    spec, other = common.tool_spec("fine"), moved.tool_spec("fine")
    assert spec is not None
    assert other is not None
    assert (spec.pool, other.pool) == ("", "gpu")
    assert (common.version, spec.version, spec.schema_digest) == (moved.version, other.version, other.schema_digest)
