"""Decides what is asked of the world under one seed: runs in every mode, what their models say, who decides how.

Everything follows from the seed alone, never from the order in which things happen, so that two schedules of one seed
differ in nothing but their luck.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from placet.calls import ToolCall
from placet.messages import ANSWER_THREAD, PLAN_THREAD, CancelRun, Mode, SubmitRun, task_thread
from placet.plans import DirectCall, PlannedTask
from placet.requests import ApprovalRequest
from placet.values import Principal, PrincipalKind
from tests.simulation.application import TOOLS, UNGRANTED

INITIATOR = Principal(kind=PrincipalKind.HUMAN, id="dora")
REVIEWERS = ("alice", "bob", "carol")
TENANT = "acme"

Says = str | tuple[ToolCall, ...]
"""One model turn: words, or calls."""


@dataclass(frozen=True, slots=True)
class Voice:
    """Somebody who decides on a request, and how."""

    after_ms: int
    person: str
    word: str
    decision_id: str
    hash_text: str = "right"
    """right, wrong, upper"""
    kind: PrincipalKind = PrincipalKind.HUMAN
    times: int = 1
    """How often the same decision is sent at once."""
    then: str = ""
    """revoke: takes the approval back; other: uses the decision's id again for another decision."""
    then_after_ms: int = 0


@dataclass(slots=True)
class RunPlan:
    """One run: what is submitted, what its models will say, and what happens to it."""

    submit: SubmitRun
    after_ms: int
    says: dict[str, list[Says]] = field(default_factory=dict)
    plan: tuple[PlannedTask, ...] = ()
    gates: dict[str, str] = field(default_factory=dict)
    submit_again: bool = False
    """Also with other content, which must be refused."""
    cancel: CancelRun | None = None
    cancel_after_ms: int = 0

    @property
    def run_id(self) -> str:
        return self.submit.run_id


@dataclass(frozen=True, slots=True)
class Profile:
    """What a workload leans to. The mutants narrow it, so that what they break is exercised at once."""

    runs_max: int = 3
    tools: Sequence[str] = TOOLS
    gates: Sequence[str] = (
        *("allow", "allow", "allow", "ask", "ask", "ask", "ask", "ask"),
        *("ask_two", "ask_soon", "ask_use", "deny", "fail", "none"),
    )
    modes: Sequence[Mode] = ("goal", "goal", "goal", "tasks", "tasks", "frozen_plan", "plan_only")
    outer_gates: Sequence[str] = (
        *("none",) * 24,
        *("ask",) * 6,
        "allow",
        "allow",
        "ask_soon",
        "ask_two",
        "deny",
        "fail",
    )
    teams: Sequence[str] = ("solo", "solo", "pair", "rounds", "poor")
    depends: float = 0.4
    outer: float = 0.5
    """How many of the runs have gates beside those of tool calls."""
    cancels: float = 0.12
    cancel_ms_max: int = 30_000
    timeouts: float = 0.1
    moods: Sequence[str] = ("plain", "plain", "plain", "race", "race", "muddle", "repeat", "revoke", "silent")
    approve: float = 0.85


class Workload:
    """The work of one seed."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.profile = profile
        random = Random(f"{seed}/work")
        self.attempts_max = random.choice((1, 3, 3))
        count = random.choice((1, 1, 2, 2, 3))
        self.runs = [_run(f"run-{seed}-{at}", random, profile) for at in range(min(count, profile.runs_max))]
        self.by_id = {run.run_id: run for run in self.runs}
        self.gates = {(run.run_id, boundary): gate for run in self.runs for boundary, gate in run.gates.items()}

    def says(self, run_id: str, thread_id: str, turn: int) -> Says:
        """What the model says in its `turn`-th good answer of a thread, from 0."""
        script = self.by_id[run_id].says.get(thread_id, [])
        return script[turn] if turn < len(script) else f"{thread_id} has nothing more to say"

    def voices(self, request: ApprovalRequest) -> list[Voice]:
        """Who decides on a request. Follows from its identity, whenever it is asked."""
        random = Random(f"{self.seed}/voices/{request.request_id}")
        return _voices(request, random, self.profile)


# ── runs ───────────────────────────────────────────────────────────────────────────────


def _run(run_id: str, random: Random, profile: Profile) -> RunPlan:
    mode = random.choice(profile.modes)
    team = random.choice(profile.teams)
    given = mode in ("tasks", "frozen_plan")
    tasks = _tasks(random, profile, team)
    submit = SubmitRun(
        tenant=TENANT,
        run_id=run_id,
        team=team,
        mode=mode,
        goal="" if given else f"the goal of {run_id}",
        tasks=tasks if given else (),
        initiator=INITIATOR,
        timeout_ms=random.randint(1_000, 90_000) if random.random() < profile.timeouts else None,
    )
    run = RunPlan(submit, random.randint(0, 2_000), plan=tasks, submit_again=random.random() < 0.2)
    run.says[PLAN_THREAD] = [plan_call(tasks)]
    run.says[ANSWER_THREAD] = [f"the answer of {run_id}"]
    outer_gates = profile.outer_gates if random.random() < profile.outer else ("none",)
    run.gates["plan"] = random.choice(outer_gates)
    for task in tasks:
        if task.call is None:
            run.says[task_thread(task.id)] = _turns(task, random, profile)
        if team != "rounds":
            run.gates[f"dispatch:{task.id}"] = random.choice(outer_gates)
    if team == "rounds":
        run.gates["round"] = random.choice(outer_gates)
    if random.random() < profile.cancels:
        run.cancel = CancelRun(tenant=TENANT, run_id=run_id, by=INITIATOR, reason="changed my mind")
        run.cancel_after_ms = random.randint(0, profile.cancel_ms_max)
    return run


def plan_call(tasks: Sequence[PlannedTask]) -> tuple[ToolCall, ...]:
    """How a model proposes a plan."""
    text = json.dumps({"tasks": [task.model_dump(mode="json", exclude_none=True) for task in tasks]})
    return (ToolCall(call_id="plan-1", tool="submit_plan", input_text=text),)


def _tasks(random: Random, profile: Profile, team: str) -> tuple[PlannedTask, ...]:
    tasks: list[PlannedTask] = []
    for at in range(random.choice((1, 2, 2, 3, 4))):
        call = None
        if random.random() < 0.35:
            call = DirectCall(tool=random.choice(profile.tools), input=_input(random, profile))
        everybody = team == "pair" and (call is None or call.tool != UNGRANTED)
        tasks.append(
            PlannedTask(
                id=f"t{at}",
                title=f"task {at}",
                description=random.choice(("", "with care")),
                assignee=random.choice(("ann", "ben")) if everybody else "ann",
                depends_on=tuple(other.id for other in tasks if random.random() < profile.depends),
                priority=random.choice((0, 0, 1)),
                call=call,
            )
        )
    return tuple(tasks)


def _input(random: Random, profile: Profile) -> dict[str, object]:
    value: dict[str, object] = {"n": random.randint(0, 9)}
    gate = random.choice(profile.gates)
    if gate != "allow" or random.random() < 0.5:
        value["gate"] = gate
    return value


def _turns(task: PlannedTask, random: Random, profile: Profile) -> list[Says]:
    turns: list[Says] = []
    for turn in range(random.choice((0, 1, 1, 2, 3))):
        calls = [_call(f"c{at}", random, profile) for at in range(random.choice((1, 1, 2, 3)))]
        if random.random() < 0.1:
            calls.append(calls[0])  # the same call id twice in one turn
        if random.random() < 0.05:
            calls.append(ToolCall(call_id=f"x{turn}", tool="unheard_of", input_text="{}"))
        turns.append(tuple(calls))
    return [*turns, f"{task.id} is done"]


def _call(call_id: str, random: Random, profile: Profile) -> ToolCall:
    text = json.dumps(_input(random, profile))
    if random.random() < 0.05:
        text = random.choice((text[:-1], '{"n":"seven"}', "", "[1]", '{"n":1,"n":2}'))
    return ToolCall(call_id=call_id, tool=random.choice(profile.tools), input_text=text)


# ── people ─────────────────────────────────────────────────────────────────────────────


def _voices(request: ApprovalRequest, random: Random, profile: Profile) -> list[Voice]:
    if request.scope == "operation_outcome":
        return [_voice(request, random, person, "truth") for person in REVIEWERS[: random.choice((0, 1, 1, 2))]]
    mood = random.choice(profile.moods)
    word = "approve" if random.random() < profile.approve else "reject"
    persons = random.sample(REVIEWERS, 3)
    voices: list[Voice] = []
    if mood == "silent":
        return []
    if mood == "race":
        words = [word, *(random.choice(("approve", "reject")) for _ in range(2))]
        return [_voice(request, random, person, said, 400) for person, said in zip(persons, words, strict=True)]
    if mood == "muddle":
        voices = [
            _voice(request, random, persons[0], word, hash_text=random.choice(("wrong", "upper"))),
            _voice(request, random, INITIATOR.id, word),
            _voice(request, random, "robot", word, kind=random.choice((PrincipalKind.AGENT, PrincipalKind.SERVICE))),
            _voice(request, random, persons[1], random.choice(("yes", "executed", "APPROVE"))),
        ]
    times = 3 if mood == "repeat" else 1
    then = {"revoke": "revoke", "repeat": "other"}.get(mood, "")
    for person in persons[: request.quorum]:
        voices.append(_voice(request, random, person, word, times=times, then=then))
    return voices


def _voice(
    request: ApprovalRequest,
    random: Random,
    person: str,
    word: str,
    after_ms_max: int = 20_000,
    *,
    hash_text: str = "right",
    kind: PrincipalKind = PrincipalKind.HUMAN,
    times: int = 1,
    then: str = "",
) -> Voice:
    return Voice(
        after_ms=random.randint(1, after_ms_max),
        person=person,
        word=word,
        decision_id=f"d-{request.request_id[-8:]}-{person}-{random.randint(0, 9_999)}",
        hash_text=hash_text,
        kind=kind,
        times=times,
        then=then,
        then_after_ms=random.choice((0, 0, 1, 500, 5_000)),
    )
