"""Decides what a run remembers: its plan, how far each task is, whom it has asked what, and how it ended.

Small on purpose: of a conversation only the calls of the current turn, of an operation only what the run itself needs.
Tasks are told apart by their position in the plan; `dependents` and `waiting` make readiness a matter of counting
down, so that a plan of a thousand tasks costs a thousand small steps.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from placet.calls import ChatMessage, ToolCall
from placet.errors import Failure
from placet.gates import OnExpiry, OutsideAnswer
from placet.machine import State
from placet.messages import Mode
from placet.plans import PlannedTask, Release
from placet.requests import Scope
from placet.statuses import RUN_TERMINAL
from placet.values import PoolName, Principal, PrincipalKind, Usage, Value
from placet_dispatcher.soundness import contradiction

Phase = Literal["planning", "deciding", "working", "answering", "ended"]
"""The planner's model is at work; the plan is before its gate; tasks are done; the answer is written; over."""

CallStatus = Literal["judging", "asking", "running", "doubtful", "done"]
"""Gates outside are asked; a person is asked whether; the operation is under way; a person is asked whether it
happened; answered."""

TaskStatus = Literal["pending", "running", "succeeded", "failed", "skipped"]


PER_CALL = ("tool_call", "question")
"""Scopes of questions about one call: their answers are results of that call, and do not end the run."""


class Consulted(Value):
    """An outside gate that was asked about a call, and what it said."""

    gate: str
    answer: OutsideAnswer | None = None


class Call(Value):
    """A tool call of the current turn, from proposal to its one answer."""

    call_id: str
    """The model's own id, so that the provider can pair call and answer."""
    tool_call_id: str
    """Ours (ids.tool_call_id): unique within the task over time."""
    tool: str
    operation_id: str = ""
    """Empty where the call was refused before it became an operation."""
    pool: PoolName = ""
    """Of the tool, when the call was proposed."""
    status: CallStatus
    request_id: str | None = None
    # What was asked, to be compared with what was approved; dropped with the answer.
    agent: str = ""
    raw_input_text: str = ""
    input_text: str = ""
    consequential: bool = False
    findings: tuple[str, ...] = ()
    """What was found alarming about it when it was proposed."""
    consulted: tuple[Consulted, ...] = ()
    same_as: str = ""
    """The load-bearing part of the input (hash_scope) where the tool has other parts: what makes it the same call."""
    edited_text: str = ""
    """Canonical JSON of the input where a person has edited it: the model is told so, beside the result."""
    generation: int = 1
    """Of its last question."""
    requesters: str = ""
    """Who has edited it, one person id a line."""
    # The answer.
    ok: bool = False
    text: str = ""
    failure: Failure | None = None


class Past(Value):
    """What a task was in the middle of in the run that this one was forked from."""

    source: str
    """The run whose conversation, up to the turn before, or up to the calls, is how this task's begins."""
    turn: int
    """The turn to be asked for, or the one that called; 0 for a direct call."""
    append: tuple[ChatMessage, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    answered: tuple[Call, ...] = ()
    """Calls of that turn whose result stands."""
    repeats: tuple[str, ...] = ()
    """Ids of calls that the other run had ordered: whether they happened there is not known here."""


class Task(PlannedTask):
    """A task of the plan and how far it is."""

    status: TaskStatus = "pending"
    waiting: int = 0
    """Dependencies that have not succeeded yet."""
    dependents: tuple[int, ...] = ()
    """Positions of the tasks that wait for this one."""
    turn: int = 0
    """The last turn of its thread that was asked for; 0 for a direct call."""
    thinking: bool = False
    """Whether that turn is still with the model."""
    calls: tuple[Call, ...] = ()
    halted: bool = False
    """A person would have to be asked, but the run is ending: the task goes no further."""
    removed: bool = False
    """Whether a patch has taken it out of the plan before it began."""
    past: Past | None = None
    """In a fork, until the task has taken a turn of its own."""
    output: str | None = None
    failure: Failure | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None


class PendingRequest(Value):
    """A question to people that holds the run up, undecided or decided and not yet acted upon."""

    scope: Scope
    boundary: str
    request_id: str
    request_hash: str
    """Empty for `operation_outcome`, which the operation asks, not the run."""
    what: str
    """What would happen, in a few words; the exact content is the request's."""
    position: int | None = None
    """Of the task it is about, where it is about one."""
    operation_id: str | None = None
    asked_at_ms: int
    decision: str | None = None
    """The outcome's word; `revoked` where an approval was taken back in time, `changes` where others are asked for."""
    reason: str | None = None
    decided_by: str | None = None
    value_text: str | None = None
    """What a person answered, as canonical JSON."""
    use_by_ms: int | None = None
    """Of an approval: from this instant on it lets nothing happen."""
    generation: int = 1
    requesters: str = ""
    """Who has edited what is asked, one person id a line."""
    on_expiry: OnExpiry = "tell"
    reminded: bool = False
    """Whether people were reminded of it."""

    @property
    def is_own(self) -> bool:
        """Whether the run asked it."""
        return self.scope != "operation_outcome"


class Ending(Value):
    """How the run will end as soon as nothing is in flight any more."""

    status: str
    failure: Failure | None = None
    more_turns: bool = True
    """Whether work in flight may take further model turns to come to its end; not when the budget is spent."""
    over_doubt: bool = False
    """Whether it ends even while a person is asked if something happened."""


class Continuation(Value):
    """A further instruction, by the id that its sender has minted."""

    instruction_id: str
    content_digest: str
    """Tells a repeat from another instruction under the same id."""
    said_digest: str
    """Of what is said and in which conversation: the same, while it is in work, joins."""
    thread_id: str
    turn: int
    at_ms: int
    span_ms: int | None = None
    """How long the run was given for it."""


class Held(Value):
    """A conversation that a user has interrupted: it goes on with the next instruction only."""

    thread_id: str
    turn: int
    over: bool = False
    """Whether that turn has come to its end."""


class Lineage(Value):
    """Where a fork comes from."""

    run_id: str
    version: int
    state_digest: str
    """SHA-256 of that run's state at that version, as `placet run replay` gives it."""
    ordered: tuple[str, ...] = ()
    """Digests of calls that it had ordered without a result then, or has ordered since."""


class Patch(Value):
    """A change of the plan that is before its gate or a person, with its tasks completed as those of a plan are."""

    patch_id: str
    by: Principal
    base: str
    """The digest of the plan that it changes."""
    add: tuple[PlannedTask, ...] = ()
    change: tuple[PlannedTask, ...] = ()
    remove: tuple[str, ...] = ()
    reason: str = ""


class PatchEntry(Value):
    """What became of a patch, by the id that its sender has minted."""

    patch_id: str
    content_digest: str
    """Tells a repeat from another patch under the same id."""
    outcome: str
    """`asked`, `applied`, `stale`, or the outcome of the question that kept it from being applied."""
    request_id: str | None = None


class RunState(State):
    """One run."""

    mode: Mode
    team: str
    goal: str
    initiator: Principal
    content_digest: str
    """Of the submission: tells a repeat from another run under the same id."""
    submitted_at_ms: int
    forked: Lineage | None = None
    deadline_ms: int | None = None
    planned_at_ms: int | None = None
    ended_at_ms: int | None = None
    # Frozen at submission, so that a redeployed application does not change the rules of a run under way.
    planner: str
    round_gate: bool = False
    tokens_max: int | None = None
    release: Release = "all"

    attempt: int = 1
    """1, and one more for every continuation after a decision of a person."""
    phase: Phase
    tasks: tuple[Task, ...] = ()
    ready: tuple[int, ...] = ()
    """Positions of tasks that wait for admission, in the order of admission."""
    cleared: tuple[int, ...] = ()
    """Positions that no gate is asked about any more: an approved dispatch, the tasks of the current round."""
    active: tuple[int, ...] = ()
    """Positions of tasks at work, also of those that wait for a person."""
    round_done: tuple[int, ...] = ()
    """Positions that have succeeded since the last round began; kept only for teams with a round gate."""
    requests: tuple[PendingRequest, ...] = ()
    ending: Ending | None = None
    cancelled_by: Principal | None = None
    refused_calls: tuple[str, ...] = ()
    """Digests of calls that a reviewer rejected: the same call is not asked again as if it were a new one."""

    plan_turn: int = 1
    """The last turn that the planner was asked for."""
    answer_turn: int = 0
    """The last turn that the answer was asked for in; 0: none, or by a program that knew of one only."""
    continuations: tuple[Continuation, ...] = ()
    """In the order in which they came; several of one turn are one instruction."""
    held: tuple[Held, ...] = ()
    interruptions: tuple[str, ...] = ()
    """Ids of the last interruptions, also of those that found nothing to stop."""
    patch: Patch | None = None
    """The one that people are asked about."""
    patches: tuple[PatchEntry, ...] = ()
    plan_asked: str = ""
    """The last question about the plan, where a person asked for another one; its place is taken by the next."""
    plan_generation: int = 1

    answer: str | None = None
    failure: Failure | None = None
    usage: Usage = Usage()
    audit_seq: int = 0
    audit_last: str = ""

    @model_validator(mode="after")
    def _is_sound(self) -> RunState:
        what = contradiction(self)
        if what is not None:
            raise ValueError(what)
        return self

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.status in RUN_TERMINAL

    @property
    def initiating_person(self) -> str:
        """Whoever must not decide what this run asks; empty where no person started it."""
        return self.initiator.id if self.initiator.kind is PrincipalKind.HUMAN else ""
