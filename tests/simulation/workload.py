"""Decides what is asked of the world under one seed: runs in every mode, and what their models say.

Everything follows from the seed alone, never from the order in which things happen, so that two schedules of one seed
differ in nothing but their luck.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from placet.calls import ToolCall
from placet.messages import ANSWER_THREAD, PLAN_THREAD, CancelRun, Mode, SubmitRun, task_thread
from placet.plans import ASK_HUMAN, DirectCall, PlannedTask, Release
from placet.values import Principal, PrincipalKind
from tests.simulation.application import ASKING, LEDGER, LOOK, RARELY_ASKING, TAG, TOOLS, UNGRANTED, UPSERT

INITIATOR = Principal(kind=PrincipalKind.HUMAN, id="dora")
TENANT = "acme"

Says = str | tuple[ToolCall, ...]
"""One model turn: words, or calls."""


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
    instructions: tuple[int, ...] = ()
    """When somebody says how it is to go on."""
    interrupts: tuple[int, ...] = ()
    """When somebody stops the turn in work."""
    fork_after_ms: int | None = None
    fork_share: float = 1.0
    """From which of the versions that there are by then."""
    is_fork: bool = False

    @property
    def run_id(self) -> str:
        """The run's identity."""
        return self.submit.run_id


@dataclass(frozen=True, slots=True)
class Freeze:
    """An emergency stop, and its end."""

    after_ms: int
    for_ms: int
    tool: str | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What a workload leans to. The mutants narrow it, so that what they break is exercised at once."""

    runs_max: int = 3
    tools: Sequence[str] = TOOLS
    gates: Sequence[str] = (
        *("allow",) * 3,
        *("ask",) * 5,
        *("ask_two", "ask_soon", "ask_use", "deny", "fail", "none"),
    )
    modes: Sequence[Mode] = ("goal", "goal", "goal", "tasks", "tasks", "frozen_plan", "plan_only")
    outer: float = 0.5
    """How many of the runs have gates beside those of tool calls."""
    plan_gates: Sequence[str] = (*("none",) * 12, *("ask",) * 3, "allow", "ask_soon", "ask_two", "deny", "fail")
    task_gates: Sequence[str] = (*("none",) * 12, *("ask",) * 4, "allow", "ask_soon", "ask_two", "deny", "fail")
    teams: Sequence[str] = ("solo", "solo", "pair", "rounds", "poor")
    depends: float = 0.4
    cancels: float = 0.12
    cancel_ms_max: int = 30_000
    timeouts: float = 0.1
    moods: Sequence[str] = (
        "plain", "plain", "plain", "race", "race", "muddle", "repeat", "revoke", "edge", "silent", "edit", "else",
    )  # fmt: skip
    """How people decide; see `people`."""
    approve: float = 0.85
    questions: float = 0.08
    """How many of the turns ask a person something; further gates, in place of one that asks, are as many."""
    instructed: float = 0.25
    forked: float = 0.15
    frozen: float = 0.15
    released: Sequence[Release | None] = (None, None, "each")
    predictable: bool = False
    """Whether the end of every run follows from the workload alone; see `expected`."""


PREDICTABLE = Profile(
    tools=(LOOK, UPSERT, LEDGER, TAG),
    gates=("allow", "allow", "ask", "ask", "ask", "ask", "ask_two", "ask_soon", "deny", "fail", "none"),
    plan_gates=("none", "none", "none", "allow", "ask", "ask", "ask", "ask_soon", "deny", "fail"),
    task_gates=("none", "allow", "ask"),
    teams=("solo", "pair", "rounds"),
    cancels=0.0,
    timeouts=0.0,
    moods=("plain", "repeat"),
    approve=0.7,
    questions=0.0,
    instructed=0.0,
    forked=0.0,
    released=(None,),
    predictable=True,
)
"""Nobody contradicts anybody, nothing is cancelled, no time runs out: every run has one possible end."""


class Workload:
    """The work of one seed."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.profile = profile
        random = Random(f"{seed}/work")
        self.attempts_max = random.choice((1, 3, 3))
        self.grid_ms = random.choice((1, 1, 500, 2_000))
        """People and programs act at multiples of this, so that some worlds are crowded."""
        count = random.choice((1, 1, 1, 2, 2, 3))
        self.runs = [_run(f"run-{seed}-{at}", random, profile) for at in range(min(count, profile.runs_max))]
        for run in self.runs:
            embellish(run, Random(f"{run.run_id}/more"), profile)
        self.freezes = _freezes(Random(f"{seed}/freezes"), profile)
        self.by_id = {run.run_id: run for run in self.runs}
        self.gates = {(run.run_id, boundary): gate for run in self.runs for boundary, gate in run.gates.items()}

    def add(self, run: RunPlan, like: str) -> None:
        """A run that was not planned; its gates are those of another one."""
        self.runs.append(run)
        self.by_id[run.run_id] = run
        self.gates |= {(run.run_id, at): gate for (run_id, at), gate in self.gates.items() if run_id == like}

    def says(self, run_id: str, thread_id: str, turn: int) -> Says:
        """What the model says in its `turn`-th good answer of a thread, from 0."""
        script = self.by_id[run_id].says.get(thread_id, [])
        return script[turn] if turn < len(script) else f"{thread_id} has nothing more to say"

    def fate(self, run_id: str, scope: str, boundary: str, gate: str) -> str:
        """What becomes of a question in a predictable world: a word, or `silent` where nobody ever answers.

        A question with an end is never answered: whether an answer would come in time is a matter of luck.
        """
        if gate == "ask_soon" or (scope == "plan" and self.by_id[run_id].submit.timeout_ms is not None):
            return "silent"
        if scope == "tool_call":
            chance = Random(f"{self.seed}/fate/{run_id}/{boundary}").random()
            for bound, fate in ((0.1, "edit"), (0.2, "respond"), (0.25, "request_changes")):
                if chance < bound:
                    return fate
        return self.word(run_id, scope, boundary)

    def word(self, run_id: str, scope: str, boundary: str) -> str:
        """What a sensible person says to a question, whenever it is put: approve or reject."""
        if self.profile.predictable and scope in ("task_round", "task_dispatch"):
            return "approve"  # what else is under way when such a no arrives is a matter of luck
        chance = Random(f"{self.seed}/word/{run_id}/{scope}/{boundary}").random()
        return "approve" if chance < self.profile.approve else "reject"


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
    for task in tasks:
        if task.call is None:
            run.says[task_thread(task.id)] = _turns(task, random, profile)
    if random.random() < profile.outer:
        run.gates["plan"] = random.choice(profile.plan_gates)
        boundaries = ["round"] if team == "rounds" else [f"dispatch:{task.id}" for task in tasks]
        run.gates |= {boundary: random.choice(profile.task_gates) for boundary in boundaries}
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
    for turn in range(random.choice((0, 1, 1, 2, 2))):
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


# ── what came later: drawn from streams of its own, so that all else of a seed stays as it was ────

QUESTIONS: tuple[dict[str, object], ...] = (
    {"question": "Which colour?", "options": ["red", "blue"]},
    {"question": "How many?", "answer_schema": {"type": "integer", "minimum": 1}},
    {"question": "What is your name?"},
    {"question": "No form at all", "answer_schema": {"type": "integer", "pattern": "x"}},
)
ANSWERS: tuple[tuple[object, object], ...] = (("blue", "green"), (7, 0), ("Ann", ""), ("x", "x"))
"""To each question one that fits and one that does not. The last question is never put."""


def edited(given: dict[str, Any]) -> dict[str, Any]:
    """What a person makes of an input, where its end is computed."""
    return {**given, "n": given["n"] + 10}


def answer_to(content_text: str, at: int = 0) -> object:
    """The answer to a question, by its content, that fits; or the one that does not, `at` 1."""
    asked = json.loads(content_text)["question"]
    pairs = zip(QUESTIONS, ANSWERS, strict=True)
    return next(pair[at] for question, pair in pairs if question["question"] == asked)


def embellish(run: RunPlan, random: Random, profile: Profile) -> None:
    """Questions of agents, rarer gates, and what people do with the run while it is under way."""
    for turns in run.says.values():
        for at, said in enumerate(turns):
            if isinstance(said, tuple) and said and said[0].tool != "submit_plan":
                turns[at] = _embellished(said, random, profile)
    run.submit = run.submit.model_copy(update={"release": random.choice(profile.released)})
    if profile.predictable and random.random() < 0.1:
        # Nobody ever looks at the plan, until its time is over.
        run.submit = run.submit.model_copy(update={"timeout_ms": random.randint(1_000, 90_000)})
        run.gates["plan"] = "ask"
    if random.random() < profile.instructed:
        run.instructions = tuple(random.randint(0, 60_000) for _ in range(random.choice((1, 2))))
    if random.random() < profile.instructed:
        run.interrupts = tuple(random.randint(0, 20_000) for _ in range(random.choice((1, 1, 2))))
    if random.random() < profile.forked:
        run.fork_after_ms, run.fork_share = random.randint(100, 60_000), random.random()


def _embellished(calls: tuple[ToolCall, ...], random: Random, profile: Profile) -> tuple[ToolCall, ...]:
    made = [_rarely_gated(call, random) if random.random() < profile.questions else call for call in calls]
    if random.random() < profile.questions:
        text = json.dumps(random.choice(QUESTIONS))
        made.append(ToolCall(call_id=f"q{random.randint(0, 99)}", tool=ASK_HUMAN, input_text=text))
    return tuple(made)


def _rarely_gated(call: ToolCall, random: Random) -> ToolCall:
    for gate in ASKING:
        mark = f'"gate": "{gate}"'
        if mark in call.input_text:
            other = f'"gate": "{random.choice(RARELY_ASKING)}"'
            return call.model_copy(update={"input_text": call.input_text.replace(mark, other)})
    return call


def _freezes(random: Random, profile: Profile) -> list[Freeze]:
    if random.random() >= profile.frozen:
        return []
    tools = (None, *profile.tools)
    return [
        Freeze(random.randint(0, 30_000), random.randint(0, 60_000), random.choice(tools))
        for _ in range(random.choice((1, 1, 2, 3)))
    ]
