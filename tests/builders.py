"""Readable data with sane defaults, a pure application, and a way to drive a machine without an engine.

`drive` holds every machine to what the engine relies on: a transition is repeatable, looks at declared rows only, and
its state survives storage byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placet import limits
from placet.calls import EffectClass, ToolCall, ToolSpec
from placet.errors import Failure
from placet.facts import Facts
from placet.gates import Boundary, Judgement, Subject
from placet.instants import Instant
from placet.machine import Machine, Receipt, Record, Reply, Send, State, Transition
from placet.messages import Message, SubmitRun
from placet.plans import AgentSpec, DirectCall, PlannedTask, TeamSpec
from placet.retries import RetryPolicy
from placet.rows import FactKey, Row, StateRow
from placet.values import Principal, PrincipalKind

TENANT = "acme"
RUN_ID = "run-1"
T0 = Instant(1_786_147_200_000)
"""2026-08-08T00:00:00.000Z, as in the fixtures of conformance.md."""
ALICE = Principal(kind=PrincipalKind.HUMAN, id="alice")
BOB = Principal(kind=PrincipalKind.HUMAN, id="bob")


# ── what an application says ───────────────────────────────────────────────────────────


def a_tool(name: str = "deploy", **changes: Any) -> ToolSpec:
    """A harmless, idempotent tool."""
    fields: dict[str, Any] = {
        "name": name,
        "version": "1",
        "schema_digest": "0" * 64,
        "effect": EffectClass.IDEMPOTENT,
        "consequential": False,
        "timeout_ms": 1_000,
        "retry": RetryPolicy(),
    }
    return ToolSpec(**{**fields, **changes})


def a_team(name: str = "team", agents: Mapping[str, Iterable[str]] | None = None, **changes: Any) -> TeamSpec:
    """A team; `agents` maps each agent to its tools. By default `worker`, who may deploy and search."""
    granted = {"worker": ("deploy", "search")} if agents is None else agents
    specs = tuple(AgentSpec(name=agent, tools=tuple(tools)) for agent, tools in granted.items())
    return TeamSpec(name=name, agents=specs, **changes)


def allow(rule: str = "rule", **changes: Any) -> Judgement:
    """A gate that lets through."""
    return Judgement(verdict="allow", rule=rule, policy_version="p1", **changes)


def deny(reason: str | None = None, **changes: Any) -> Judgement:
    """A gate that forbids."""
    return Judgement(verdict="deny", reason=reason, rule="rule", policy_version="p1", **changes)


def suspend(reason: str | None = None, **changes: Any) -> Judgement:
    """A gate that wants a person."""
    return Judgement(verdict="suspend", reason=reason, rule="rule", policy_version="p1", **changes)


def broken(reason: str = "the gate raised") -> Judgement:
    """A gate that threw, or answered nonsense."""
    return Judgement(verdict="failed", reason=reason, rule="rule", policy_version="p1")


Gate = Callable[[Any], Judgement | None]
Schema = Callable[[dict[str, Any]], dict[str, Any] | Failure]


@dataclass
class FakeApplication:
    """A pure application: dictionaries of teams, tools, schemas and gates, and a list of what its gates were asked."""

    teams: dict[str, TeamSpec] = field(default_factory=lambda: {"team": a_team()})
    tools: dict[str, ToolSpec] = field(default_factory=lambda: {n: a_tool(n) for n in ("deploy", "search")})
    schemas: dict[str, Schema] = field(default_factory=dict)
    gates: dict[Boundary, Gate] = field(default_factory=dict)
    model_timeouts_ms: dict[str, int] = field(default_factory=dict)
    version: str = "app-1"
    policy_version: str = "p1"
    asked: list[tuple[Boundary, Subject]] = field(default_factory=list)

    def team_spec(self, name: str) -> TeamSpec | None:
        return self.teams.get(name)

    def model_timeout_ms(self, agent: str) -> int:
        return self.model_timeouts_ms.get(agent, limits.MODEL_TIMEOUT_MS)

    def tool_spec(self, name: str) -> ToolSpec | None:
        return self.tools.get(name)

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        return self.schemas[tool](raw_input) if tool in self.schemas else raw_input

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        self.asked.append((boundary, subject))
        gate = self.gates.get(boundary)
        return gate(subject) if gate else None

    def asked_at(self, boundary: Boundary) -> list[Any]:
        """What the gates at a boundary were asked, in order."""
        return [subject for at, subject in self.asked if at is boundary]


# ── what people and models say ─────────────────────────────────────────────────────────


def a_task(task_id: str, *depends_on: str, **changes: Any) -> PlannedTask:
    """A task of an agent."""
    fields = {"id": task_id, "title": f"T {task_id}", "description": f"do {task_id}", "depends_on": depends_on}
    return PlannedTask(**{**fields, **changes})


def a_direct_task(task_id: str, *depends_on: str, tool: str = "deploy", **given: Any) -> PlannedTask:
    """A task that is one call."""
    return a_task(task_id, *depends_on, call=DirectCall(tool=tool, input=given))


def a_submission(*tasks: PlannedTask, **changes: Any) -> SubmitRun:
    """A goal, or the tasks as given."""
    fields: dict[str, Any] = {
        "tenant": TENANT,
        "run_id": RUN_ID,
        "team": "team",
        "mode": "tasks" if tasks else "goal",
        "goal": "" if tasks else "cut a release",
        "tasks": tasks,
        "initiator": ALICE,
    }
    return SubmitRun(**{**fields, **changes})


def a_call(call_id: str = "call-1", tool: str = "deploy", input_text: str = '{"env":"staging"}') -> ToolCall:
    """What a model asks for."""
    return ToolCall(call_id=call_id, tool=tool, input_text=input_text)


# ── driving a machine ──────────────────────────────────────────────────────────────────


def facts_of(*rows: Row, app: FakeApplication | None = None, declared: Iterable[FactKey] = ()) -> Facts:
    """Facts of a load that found exactly these rows; a declared key without a row is one that does not exist."""
    seen: dict[FactKey, Row | None] = dict.fromkeys(declared)
    seen.update({row.fact_key(): row for row in rows})
    return Facts(seen, app or FakeApplication())


def a_state_row(machine: str, key: str, status: str) -> StateRow:
    """Another machine's state, as far as a machine may see it."""
    return StateRow(tenant=TENANT, run_id=RUN_ID, machine=machine, key=key, version=1, status=status)


def drive(
    machine: Machine[Any],
    state: State | None,
    *messages: Message,
    rows: Mapping[FactKey, Row] | Iterable[Row] = (),
    app: FakeApplication | None = None,
    now_ms: Instant = T0,
) -> Transition[Any]:
    """The last message's transition, after folding all of them. Each is checked for what the engine relies on.

    `rows` by key are found under that key, whatever they say of themselves: a store may have been tampered with.
    """
    app = app or FakeApplication()
    found = dict(rows) if isinstance(rows, Mapping) else {row.fact_key(): row for row in rows}
    transition: Transition[Any] | None = None
    for message in messages:
        declared = {key: found.get(key) for key in machine.reads(message)}
        transition = machine.transition(state, message, Facts(declared, app), now_ms)
        _check(machine, state, message, declared, app, now_ms, transition)
        state = transition.state if transition.kind == "moved" else state
    assert transition is not None, "drive needs a message"
    return transition


def _check(
    machine: Machine[Any],
    state: State | None,
    message: Message,
    declared: dict[FactKey, Row | None],
    app: FakeApplication,
    now_ms: Instant,
    transition: Transition[Any],
) -> None:
    asked = len(app.asked)
    stored = state and machine.state_type.model_validate_json(state.model_dump_json())
    assert machine.transition(stored, message, Facts(declared, app), now_ms) == transition, "a replay is a repeat"
    del app.asked[asked:]
    if transition.kind == "moved":
        assert transition.state is not None
        body = transition.state.model_dump_json()
        assert machine.state_type.model_validate_json(body).model_dump_json() == body, "a state survives storage"
    else:
        assert transition.state is None, "nothing changes"
        assert all(isinstance(effect, Reply) for effect in transition.effects), "nothing is written"


def sent(transition: Transition[Any], kind: type[Message] | None = None) -> list[Any]:
    """The messages a transition sends, of one kind or all."""
    messages = [effect.message for effect in transition.effects if isinstance(effect, Send)]
    return [message for message in messages if kind is None or isinstance(message, kind)]


def recorded(transition: Transition[Any], kind: type[Row] | None = None) -> list[Any]:
    """The rows a transition writes, of one kind or all."""
    rows = [effect.row for effect in transition.effects if isinstance(effect, Record)]
    return [row for row in rows if kind is None or isinstance(row, kind)]


def reply(transition: Transition[Any]) -> Receipt:
    """The one answer of a transition."""
    [receipt] = [effect.receipt for effect in transition.effects if isinstance(effect, Reply)]
    return receipt
