"""Decides what an application is: its tools, gates, agents and teams; and answers the rules that ask about them.

An `App` is filled while its module is imported and answers the rules afterwards (`facts.Application`). The first
question closes it: what runs depend on does not change under them. Registering calls nothing of the author's code.
Every mistake raises ContractError(APP_INVALID) with one line that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from placet import limits
from placet.calls import Binding, EffectClass, ToolSpec
from placet.canonical import digest
from placet.declarations import (
    Agent,
    AnyTool,
    EffectName,
    Tool,
    built_in,
    check_binding,
    check_count,
    check_name,
    invalid,
    make_agent,
    make_tool,
    names_of,
)
from placet.errors import Code, ErrorClass, Failure
from placet.gates import Boundary, Judgement, Subject
from placet.gating import Gating, check_quorums, persons_of
from placet.human import ask_human
from placet.plans import ASK_HUMAN, AgentSpec, Release, TeamSpec
from placet.policy import Gate, Policy, judge, policy_digest
from placet.retries import RetryPolicy
from placet.script import Script
from placet.tooling import ToolContext

__all__ = ["Agent", "App", "Tool"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Answers:
    """What is worked out once, when the application is first asked."""

    version: str
    policy: Policy
    gates: tuple[Gate, ...]
    specs: Mapping[str, ToolSpec]
    teams: Mapping[str, TeamSpec]


class App(Gating):
    """An application. `version` is recorded with every approval; without it, it is a digest of the declarations.

    `binding`: what an approval is bound to beside the reviewed content, for every tool that says nothing else. With
    `release` an approval starts nothing once tool, schema, gates or the application's version have changed: it is
    STALE, and the call to be proposed again. With `policy` the application's version may change, with `tool` the gates
    as well, and with `data` all of them, as long as today's schema reads the input as it was reviewed. By default
    `release` where a version is declared, `policy` where it is a digest, which changes with every word of an agent's
    instructions.

    `reviewers`: ids of the persons who may decide what no gate names others for; without it anybody who is let in. An
    empty list says that nobody can be asked here: what would wait for a person is refused, and not done.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str | None = None,
        binding: Binding | None = None,
        reviewers: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.name = check_name(name, "the name of an application")
        self._reviewers = None if reviewers is None else persons_of(reviewers, f"the reviewers of application {name!r}")
        by_default: Binding = "policy" if version is None else "release"
        self._binding = by_default if binding is None else check_binding(binding, f"binding of application {name!r}")
        self._version = None if version is None else check_name(version, "the version of an application")
        self._tools: dict[str, AnyTool] = {}
        self._agents: dict[str, Agent] = {}
        self._teams: dict[str, TeamSpec] = {}
        self._answers: _Answers | None = None

    def __repr__(self) -> str:
        return f"<app {self.name}: {len(self._tools)} tools, {len(self._gates)} gates, {len(self._teams)} teams>"

    @property
    def tools(self) -> Mapping[str, AnyTool]:
        """Every tool by name."""
        return MappingProxyType(self._tools)

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Every agent by name."""
        return MappingProxyType(self._agents)

    @property
    def teams(self) -> Mapping[str, TeamSpec]:
        """Every team by name."""
        return self._asked().teams

    # ── registering ────────────────────────────────────────────────────────────────────

    def tool(
        self,
        name: str | None = None,
        *,
        effect: EffectName | None = None,
        consequential: bool = False,
        timeout_s: float = limits.TOOL_TIMEOUT_MS / 1_000,
        version: str | None = None,
        retry: RetryPolicy | int = 1,
        quiescence_s: float | None = None,
        pool: str = "",
        binding: Binding | None = None,
        advisory: Sequence[str] = (),
        volatile: Sequence[str] = (),
    ) -> Callable[[Callable[Concatenate[ToolContext, P], R]], Tool[P, R]]:
        """`@app.tool(effect=…)` registers a function.

        `effect`: what may be done when the outcome is unknown (DESIGN §3). `consequential`: a person must agree, unless
        a gate for this very tool allows it. `version` names the behaviour of the tool; without it, it changes with name
        and schema only. `retry`: a policy, or a number of attempts. `quiescence_s`, for reconcilable tools: how long
        after its worker is gone a request may still have its effect; without it, as long as `timeout_s`. `pool`: whose
        executors run it, one of PLACET_TOOL_POOLS; without it, the common ones. Where one process does everything, it
        serves all pools. `binding`: what an approval of it is bound to, as of the application. `advisory`, `volatile`:
        parameters that an approval does not rest on, words for people and noise (`placet.hash_scope`); every other one
        is load-bearing.
        """
        if not isinstance(effect, str) or effect not in list(EffectClass):
            raise invalid(f"write @app.tool(effect=…) with one of {', '.join(EffectClass)}, not {effect!r}")

        def register(function: Callable[Concatenate[ToolContext, P], R]) -> Tool[P, R]:
            made: Tool[P, R] = make_tool(
                function,
                self._ensure_open,
                name=name,
                effect=effect,
                consequential=consequential,
                timeout_s=timeout_s,
                version=version,
                retry=retry,
                quiescence_s=quiescence_s,
                pool=pool,
                binding=self._binding if binding is None else binding,
                advisory=advisory,
                volatile=volatile,
            )
            self._add("tool", made.name, self._tools)
            self._tools[made.name] = made
            return made

        return register

    def agent(
        self,
        name: str,
        *,
        model: str | Script,
        instructions: str = "",
        tools: Sequence[AnyTool | str | Callable[..., Any]] = (),
        timeout_s: float = limits.MODEL_TIMEOUT_MS / 1_000,
        require_approval: bool | Sequence[AnyTool | str] = False,
    ) -> Agent:
        """Register an agent. `model` is `provider:model`, e.g. `anthropic:claude-sonnet-4-5`, or a script.

        `tools`: what it may call, registered tools or their names; `ask_human` lets it ask people.

        `timeout_s`: how long one model call may take. A call whose planner died is asked again a little after that.

        `require_approval`: the tools whose calls by this agent wait for a person whatever gates allow; True: all of
        them. It makes nothing less strict: what a gate denies stays denied.
        """
        made = make_agent(
            check_name(name, "the name of an agent"), model, instructions, tools, timeout_s, require_approval
        )
        self._add("agent", name, self._agents)
        if ASK_HUMAN in made.tools and ASK_HUMAN not in self._tools:
            self._tools[ASK_HUMAN] = built_in(ask_human, self._ensure_open)
        for tool in made.tools:
            if tool not in self._tools:
                raise invalid(f"agent {name!r}: there is no tool {tool!r}; register it by @app.tool(…) first")
        self._agents[name] = made
        return made

    def team(
        self,
        name: str,
        *,
        agents: Sequence[Agent | str],
        planner: Agent | str | None = None,
        tokens_max: int | None = None,
        release: Release = "all",
    ) -> TeamSpec:
        """Register a team. `planner` plans and sums up: by default the first agent; it may be one without tasks.

        `release`: when an approved call is made: when nothing of the run waits for a decision (`all`), or at once
        (`each`). Whoever starts a run may choose.
        """
        check_name(name, "the name of a team")
        self._add("team", name, self._teams)
        members = names_of(agents, f"the agents of team {name!r}")
        lead = None if planner is None else names_of([planner], f"the planner of team {name!r}")[0]
        if not members:
            raise invalid(f"team {name!r} needs at least one agent")
        for who in (*members, *(() if lead is None else (lead,))):
            if who not in self._agents:
                raise invalid(f"team {name!r}: there is no agent {who!r}; register it by app.agent(…) first")
        if tokens_max is not None:
            check_count(tokens_max, f"tokens_max of team {name!r}")
        if release not in get_args(Release):
            raise invalid(f"release of team {name!r} is one of {', '.join(get_args(Release))}, not {release!r}")
        specs = tuple(
            AgentSpec(name=who, tools=self._agents[who].tools, require_approval=self._agents[who].require_approval)
            for who in members
        )
        self._teams[name] = TeamSpec(name=name, agents=specs, planner=lead, tokens_max=tokens_max, release=release)
        return self._teams[name]

    # ── answering the rules (facts.Application) ────────────────────────────────────────

    def check(self) -> None:
        """Close the application and find what only shows when all is registered. Raises ContractError(APP_INVALID)."""
        self._asked()

    @property
    def version(self) -> str:
        """The application's version."""
        return self._asked().version

    @property
    def policy_version(self) -> str:
        """What the policy is called, and the beginning of its digest: it changes with every gate and rule."""
        return self._asked().policy.version

    @property
    def policy_digest(self) -> str:
        """SHA-256 over all gates and rules (`policy.policy_digest`)."""
        return self._asked().policy.digest

    def team_spec(self, name: str) -> TeamSpec | None:
        """What the rules know of a team."""
        return self._asked().teams.get(name)

    def tool_spec(self, name: str) -> ToolSpec | None:
        """What the rules know of a tool."""
        return self._asked().specs.get(name)

    def model_timeout_ms(self, agent: str) -> int:
        """How long one call of the agent's model may take; the usual time for an agent that is not there."""
        self._asked()
        known = self._agents.get(agent)
        return limits.MODEL_TIMEOUT_MS if known is None else known.timeout_ms

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        """The input as today's schema reads it, with defaults; TOOL_INPUT_INVALID; TOOL_UNKNOWN."""
        self._asked()
        known = self._tools.get(tool)
        if known is None:
            return Failure(code=Code.TOOL_UNKNOWN, message=f"there is no tool {tool!r}", error_class=ErrorClass.INVALID)
        return known.input.check(raw_input)

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        """The judgement that counts at that boundary; None when no gate applies (`policy.judge`)."""
        answers = self._asked()
        return judge(answers.gates, answers.policy, boundary, subject)

    # ── ──

    def _add(self, kind: str, name: str, known: Mapping[str, object]) -> None:
        self._ensure_open(f"{kind} {name!r}")
        if name in known:
            raise invalid(f"there are two {kind}s called {name!r}")

    def _ensure_open(self, what: str) -> None:
        if self._answers is not None:
            raise invalid(f"{what} comes too late: application {self.name!r} is in use already")

    def _asked(self) -> _Answers:
        if self._answers is None:
            self._check_whole()
            self._answers = self._worked_out()
        return self._answers

    def _check_whole(self) -> None:
        for tool in self._tools.values():
            spec = tool.spec
            if spec.effect is EffectClass.RECONCILABLE and not (spec.can_reconcile or spec.can_seal):
                raise invalid(f"tool {tool.name!r} is reconcilable: add @{tool.name}.reconcile, or @{tool.name}.seal")
        for gate in self._gates.values():
            for name in sorted(gate.tools or ()):
                if name not in self._tools:
                    raise invalid(f"gate {gate.name!r} is for the tool {name!r}, which does not exist")
        check_quorums(self._gates, self._reviewers)

    def _worked_out(self) -> _Answers:
        gates = tuple(self._gates.values())
        rounds = any(gate.boundary is Boundary.ROUND for gate in gates)
        specs = {name: tool.spec for name, tool in self._tools.items()}
        teams = {name: team.model_copy(update={"round_gate": rounds}) for name, team in self._teams.items()}
        policy = self._policy_of(gates)
        declared = [
            [spec.model_dump(mode="json", exclude={"pool"}) for spec in specs.values()],  # where is not what
            [[agent.name, agent.instructions, list(agent.tools)] for agent in self._agents.values()],
            [team.model_dump(mode="json") for team in teams.values()],
            policy.version,
        ]
        return _Answers(self._version or digest(declared)[:12], policy, gates, specs, teams)

    def _policy_of(self, gates: Sequence[Gate]) -> Policy:
        strict = [
            [agent.name, list(agent.require_approval)] for agent in self._agents.values() if agent.require_approval
        ]
        more: list[object] = [{"require_approval": strict}] if strict else []
        if self._reviewers is not None:
            more.append({"reviewers": sorted(self._reviewers)})
        found = policy_digest(gates, *more)
        # With the digest's beginning: a file that was changed and not renamed is another policy all the same.
        version = found[:16] if self._policy_label is None else f"{self._policy_label}+{found[:16]}"
        return Policy(version, found, self._reviewers)
