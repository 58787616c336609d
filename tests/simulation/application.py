"""Decides what the simulated application is: a tool of each effect class, and gates that answer as the workload says.

A call carries its gate's verdict in its own input, so that a checker can tell what should have been asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from placet import limits
from placet.calls import EffectClass, ToolSpec
from placet.canonical import digest
from placet.errors import Code, ErrorClass, Failure
from placet.gates import (
    Asked,
    Boundary,
    CallSubject,
    DispatchSubject,
    Judgement,
    OutsideAnswer,
    PlanPatchSubject,
    PlanSubject,
    RoundSubject,
    Subject,
)
from placet.plans import ASK_HUMAN, AgentSpec, TeamSpec
from placet.retries import RetryPolicy

TIMEOUT_MS = 2_000
QUIESCENCE_MS = 4_000
"""How long after its lease a request of `tag` may still arrive: the promise its effect class rests on."""
EXPIRES_MS = 40_000
USE_WITHIN_MS = 15_000

LOOK, UPSERT, LEDGER, TAG, MAIL = "look", "upsert", "ledger", "tag", "mail"
EFFECTS: Mapping[str, EffectClass] = {
    LOOK: EffectClass.READ_ONLY,
    UPSERT: EffectClass.IDEMPOTENT,
    LEDGER: EffectClass.RECONCILABLE,  # can seal an attempt
    TAG: EffectClass.RECONCILABLE,  # can only be asked
    MAIL: EffectClass.NON_RETRIABLE,
}
TOOLS = tuple(EFFECTS)
UNGRANTED = "mail"
"""What the agent `ben` may not call."""

RARELY_ASKING = ("ask_again", "ask_or_end", "ask_remind", "ask_some", "ask_editor", "outside")
"""Verdicts of rarer gates: what follows when nobody decides, who is reminded, who may decide, on an own edit, and what
a gate outside says."""
GATES = (
    "allow",
    "ask",
    "ask_two",
    "ask_soon",
    "ask_use",
    "deny",
    "fail",
    "none",
    *RARELY_ASKING,
)
"""Verdicts that an input can name. `none`: no gate applies."""
ASKING = ("ask", "ask_two", "ask_soon", "ask_use", *RARELY_ASKING[:-1])
GUARD = "guard"
"""The gate outside."""
SOME = ("alice", "bob", "emil", "fred", "tess", "theo")
"""Who may decide where a gate names persons."""

TEAMS: Mapping[str, TeamSpec] = {
    team.name: team
    for team in (
        TeamSpec(name="solo", agents=(AgentSpec(name="ann", tools=(*TOOLS, ASK_HUMAN)),)),
        TeamSpec(
            name="pair",
            agents=(
                AgentSpec(name="ann", tools=(*TOOLS, ASK_HUMAN)),
                AgentSpec(name="ben", tools=tuple(tool for tool in TOOLS if tool != UNGRANTED)),
            ),
            planner="ben",
        ),
        TeamSpec(name="rounds", agents=(AgentSpec(name="ann", tools=(*TOOLS, ASK_HUMAN)),), round_gate=True),
        TeamSpec(name="poor", agents=(AgentSpec(name="ann", tools=(*TOOLS, ASK_HUMAN)),), tokens_max=45),
    )
}


RELEASES: Mapping[str, str] = {
    "first": "as the workload was made for",
    "schema": "every tool has another version, and one more default",
    "gone": "two tools are no more",
    "ungranted": "ann may no longer call two tools",
    "effect": "a tool has another effect class, and another is no longer consequential",
}
LOST = (UPSERT, TAG)
"""The tools that are gone, or no longer granted."""


QUESTION = ToolSpec(
    name=ASK_HUMAN,
    version="1",
    schema_digest=digest({"tool": ASK_HUMAN}),
    effect=EffectClass.READ_ONLY,
    consequential=False,
    timeout_ms=TIMEOUT_MS,
    retry=RetryPolicy(attempts_max=1),
)


class SimApplication:
    """One release of the application."""

    def __init__(self, gates: Mapping[tuple[str, str], str], *, attempts_max: int, release: str = "first") -> None:
        self._gates = gates
        """Verdict by run and boundary: `plan`, `round`, or `dispatch:` and the task's id."""
        self._attempts_max = attempts_max
        self._release = release
        self._defaults = {"gate": "allow", "note": ""} if release == "schema" else {"gate": "allow"}
        self._tools = {name: self._spec(name) for name in TOOLS if release != "gone" or name not in LOST}

    def _spec(self, name: str) -> ToolSpec:
        schema = self._release if self._release == "schema" else "first"
        changed = self._release == "effect"
        return ToolSpec(
            name=name,
            version=schema,
            schema_digest=digest({"tool": name, "schema": schema}),
            effect=EffectClass.IDEMPOTENT if changed and name == MAIL else EFFECTS[name],
            consequential=name != LOOK and not (changed and name == UPSERT),
            timeout_ms=TIMEOUT_MS,
            retry=RetryPolicy(attempts_max=self._attempts_max, base_ms=200, delay_ms_max=2_000),
            can_reconcile=EFFECTS[name] is EffectClass.RECONCILABLE,
            can_seal=name == LEDGER,
            quiescence_ms=QUIESCENCE_MS if name == TAG else 0,
        )

    @property
    def version(self) -> str:
        return f"app-{self._release}"

    @property
    def policy_version(self) -> str:
        return "policy-1"

    def team_spec(self, name: str) -> TeamSpec | None:
        team = TEAMS.get(name)
        if team is None or self._release != "ungranted":
            return team
        ann = AgentSpec(name="ann", tools=tuple(tool for tool in TOOLS if tool not in LOST))
        return team.model_copy(update={"agents": (ann, *team.agents[1:])})

    def model_timeout_ms(self, agent: str) -> int:
        return limits.MODEL_TIMEOUT_MS

    def tool_spec(self, name: str) -> ToolSpec | None:
        if name == ASK_HUMAN:
            return QUESTION
        return self._tools.get(name)

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        """`n` is a whole number, `gate` one of GATES (default `allow`); nothing else."""
        if tool == ASK_HUMAN:
            return {"answer_schema": None, "options": None, **raw_input}
        unknown = sorted(set(raw_input) - {"n", *self._defaults})
        if unknown or type(raw_input.get("n")) is not int or raw_input.get("gate", "allow") not in GATES:
            return Failure(
                code=Code.TOOL_INPUT_INVALID,
                message=f"{tool}: n must be a whole number",
                error_class=ErrorClass.INVALID,
            )
        return {**self._defaults, **raw_input}

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        match subject:
            case CallSubject():
                gate = subject.input.get("gate", "none")
                return judgement(gate) if gate != "outside" else heard_outside(subject.outside.get(GUARD))
            case DispatchSubject():
                return self._at(subject.run_id, f"dispatch:{subject.task.id}")
            case PlanSubject() | RoundSubject() | PlanPatchSubject():
                return self._at(subject.run_id, boundary.value)

    def _at(self, run_id: str, boundary: str) -> Judgement | None:
        return judgement(self._gates.get((run_id, boundary), "none"))


def said_outside(given: dict[str, Any]) -> OutsideAnswer:
    """What the gate outside says about an input, where it says anything."""
    verdicts: tuple[Literal["allow", "suspend", "deny"], ...] = ("allow", "suspend", "allow", "deny")
    return OutsideAnswer(verdict=verdicts[given["n"] % 4], reason="so it says", version="g1")


def heard_outside(answer: OutsideAnswer | None) -> Judgement:
    """The judgement that follows from it; without an answer, that it has to be asked."""
    asked = (Asked(name=GUARD, timeout_ms=TIMEOUT_MS),) if answer is None else ()
    verdict = "suspend" if answer is None else answer.verdict
    return Judgement(verdict=verdict, reason="outside", rule="outside", policy_version="policy-1", outside=asked)


def judgement(gate: str) -> Judgement | None:
    """The judgement that a gate's word stands for."""
    if gate == "none":
        return None
    verdicts = {"allow": "allow", "deny": "deny", "fail": "failed"}
    return Judgement(
        verdict=verdicts.get(gate, "suspend"),  # type: ignore[arg-type]
        reason=f"the gate says {gate}",
        rule=gate,
        policy_version="policy-1",
        quorum=2 if gate == "ask_two" else 1,
        expires_after_ms=EXPIRES_MS if gate in ("ask_soon", "ask_again", "ask_or_end", "ask_remind") else None,
        remind_before_ms=EXPIRES_MS // 2 if gate == "ask_remind" else None,
        on_expiry={"ask_again": "ask_again", "ask_or_end": "fail"}.get(gate, "tell"),  # type: ignore[arg-type]
        reviewers=SOME if gate == "ask_some" else None,
        editor_may_approve=gate == "ask_editor",
        use_within_ms=USE_WITHIN_MS if gate == "ask_use" else None,
    )
