"""Decides what the HTTP API shows: the names and types of its answers, for the gateway and for its clients.

Within `/v1` fields are added, never removed or renamed; readers ignore those they do not know. Instants are
milliseconds since 1970 (UTC), as in receipts. A view is informational, true as of `as_of_ms`: nothing acts on it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    """Base of all views."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FailureView(View):
    """Why something failed."""

    code: str
    message: str
    pointer: str | None = None


class TaskView(View):
    """A task of a run."""

    id: str
    title: str = ""
    status: str
    assignee: str | None = None
    depends_on: list[str] = []
    removed: bool = False
    """Whether it was taken out of the plan."""
    output: str | None = None
    failure: FailureView | None = None


class TurnView(View):
    """A turn of one of a run's conversations: the one in work, or the last one where it did not come to its end."""

    turn: str
    """Such as `task:a/3`."""
    status: str
    """`calling`: the model is; `waiting`: for the next attempt; `interrupted`: by a user, or whoever called the model
    is gone, and it is called again; `failed`; `done`."""
    attempt: int
    interruptions: int = 0
    """Attempts of it that nobody reported on, such as before a cold resume."""
    partial_text: str | None = None
    """What had come of its reply when it was stopped."""


class RunSummary(View):
    """A run in a list."""

    run_id: str
    status: str
    team: str | None = None
    mode: str | None = None
    goal: str | None = None
    initiator: str | None = None
    version: int
    created_at_ms: int
    updated_at_ms: int


class Waiting(View):
    """A question that a run waits for."""

    request_id: str
    scope: str
    sentence: str
    expires_at_ms: int | None = None


class Parked(View):
    """A message of a run that nobody could handle: until it is sent again, the run may wait for it in vain."""

    id: str
    code: str
    reason: str
    at_ms: int


class LineageView(View):
    """Where a fork comes from: another run, as it was at a version."""

    run_id: str
    version: int
    state_digest: str
    """SHA-256 of that run's state then, as `placet run replay` shows it."""


class RunView(RunSummary):
    """A run. `parked`: why it may be stuck; none once it has ended, and none of what was applied since."""

    terminal: bool
    attempt: int = 1
    """1, and one more for every continuation after a decision of a person."""
    trace_id: str = ""
    """Of this attempt."""
    resumed_from: str | None = None
    """The trace of the attempt before."""
    forked_from: LineageView | None = None
    answer: str | None = None
    failure: FailureView | None = None
    tasks: list[TaskView] = []
    plan_digest: str | None = None
    """Of the plan as it is: what a change of it is for."""
    turns: list[TurnView] = []
    """Those in work, and those that a further instruction would follow upon."""
    waiting_for: list[Waiting] = []
    parked: list[Parked] = []
    as_of_ms: int


class RunPage(View):
    """Runs, newest first. `next`: what to send as `before` for the next page; none after the last."""

    items: list[RunSummary]
    next: str | None = None
    as_of_ms: int


class VoteView(View):
    """One person's voice."""

    person_id: str
    decision: str
    decision_id: str | None = None
    reason: str | None = None
    voted_at_ms: int


class OutcomeView(View):
    """The one final answer to a request. `decided_by` is empty where no person decided: expired, cancelled."""

    outcome: str
    decided_by: str | None = None
    decision_id: str | None = None
    reason: str | None = None
    decided_at_ms: int | None = None
    value_text: str | None = None
    """What was said besides the word, as canonical JSON: an edited input, an answer."""
    successor: str | None = None
    """The request that has taken its place, where a person edited what was asked."""


class RevocationView(View):
    """An approval taken back."""

    revoked_by: str
    reason: str = ""
    revoked_at_ms: int


class AttemptView(View):
    """One try of an operation; still open while `ended` is none."""

    n: int
    started_at_ms: int
    ended: str | None = None
    ended_at_ms: int | None = None
    evidence: str | None = None


class OperationView(View):
    """One side effect and what became of it. `status` is none before its first start; `doubt` is why the outcome of
    its last attempt is not known. What it returned is the evidence of its last attempt.
    """

    operation_id: str
    task_id: str | None = None
    tool: str
    tool_version: str | None = None
    effect: str | None = None
    authority: str | None = None
    rule: str | None = None
    input_text: str | None = None
    request_id: str | None = None
    request_hash: str | None = None
    status: str | None = None
    doubt: FailureView | None = None
    attempts: list[AttemptView] = []


class HazardView(View):
    """Something in the content that cannot be seen, or looks like something else. `pointer` is into the content."""

    pointer: str
    hazard: str
    position: int
    code_point: str
    name: str


class RequestSummary(View):
    """A request in the inbox. The sentence folds long values, so it is no basis for a decision.

    `hazards` counts the findings; none for content too long to be looked through for a list.
    """

    request_id: str
    run_id: str
    scope: str
    status: str
    sentence: str
    request_hash: str
    requested_at_ms: int
    expires_at_ms: int | None = None
    outcome: str | None = None
    decided_by: str | None = None
    hazards: int | None = None


class RequestView(RequestSummary):
    """A request in full. `content_text` is, byte for byte, what is hashed and what would be executed."""

    boundary: str
    content_text: str
    reason: str | None = None
    initiator: str | None = None
    agent_name: str | None = None
    operation_id: str | None = None
    tool_version: str | None = None
    policy_version: str | None = None
    policy_digest: str | None = None
    rule: str | None = None
    """Which gates or rules want to know, by name."""
    app_version: str | None = None
    quorum: int = 1
    use_by_ms: int | None = None
    remind_at_ms: int | None = None
    generation: int = 1
    supersedes: str | None = None
    """The request whose place it has taken."""
    requesters: list[str] = []
    """Who has edited what is asked, and so cannot approve it."""
    reviewers: list[str] = []
    """Who may decide it; empty: anybody who is let in."""
    findings: list[HazardView] = []
    votes: list[VoteView] = []
    decision: OutcomeView | None = None
    revocation: RevocationView | None = None
    operation: OperationView | None = None
    load_bearing: list[str] = []
    """Fields of the call's input that the approval rests on, to be shown in full: all of them, unless the tool of that
    very version says otherwise."""
    advisory: list[str] = []
    volatile: list[str] = []
    as_of_ms: int


class RequestPage(View):
    """The inbox, oldest first. `next`: what to send as `after` for the next page; none after the last."""

    items: list[RequestSummary]
    next: str | None = None
    as_of_ms: int


class RunEvent(View):
    """One leaf of a run's audit chain, as the event stream carries it; `seq` is the event's id."""

    seq: int
    kind: str
    subject: str = ""
    detail: dict[str, Any] = {}
    at_ms: int
    leaf: str | None = None


class PartialText(View):
    """A piece of a reply that a model is giving. No fact: the whole reply comes as one, or not at all."""

    turn: str
    attempt: int
    """Another attempt begins the text anew."""
    at: int
    """How many characters of it came before."""
    text: str


class TraceEntry(View):
    """One fact of a run and where it is kept: `journal`, a table of facts, `outbox` or `dead_letter`."""

    at_ms: int | None
    source: str
    what: str
    subject: str = ""
    data: dict[str, Any] = {}


class Trace(View):
    """Every fact of a run, by time; what is still on its way comes last, without a time in the past."""

    run_id: str
    status: str
    entries: list[TraceEntry]
    as_of_ms: int


class AuditView(View):
    """The state of a run's audit chain: `intact` says whether every leaf hashes to its successor."""

    leaves: int
    last: str | None = None
    intact: bool


class RunReceipt(View):
    """What a run came to: every side effect, on whose word it ran, and how it ended."""

    run_id: str
    status: str
    team: str | None = None
    initiator: str | None = None
    forked_from: LineageView | None = None
    """In a fork: what was done before it is in the receipt of that run."""
    answer: str | None = None
    failure: FailureView | None = None
    created_at_ms: int
    updated_at_ms: int
    operations: list[OperationView]
    decisions: list[RequestSummary]
    audit: AuditView
    as_of_ms: int


class DeadLetterView(View):
    """A message that no rule accepted, and why."""

    id: str
    run_id: str
    destination: str
    code: str
    reason: str
    at_ms: int
    queue: str | None = None
    """The broker's queue that it was taken from; None for what was parked before it got there."""
    about: dict[str, Any] | None = None
    """How it came to that queue: exchange, routing_key, content_type, message_id, user_id, headers and so on."""
    bytes: int | None = None
    """How long the message is. A list shows its beginning."""
    body: str | None = None
    """The message; what of it is no text is escaped."""


class DeadLetterPage(View):
    """Dead letters, newest first."""

    items: list[DeadLetterView]
    as_of_ms: int


class DeadLetter(DeadLetterView):
    """One of them, and whether its message has been applied since, which the run's journal says."""

    applied: bool
    body_base64: str | None = None
    """The message as it was, where it is no text."""


class Redriven(View):
    """What came of sending a dead letter's message again."""

    id: str
    message_id: str
    answer: Literal["applied", "sent"]
    """`applied`: the run's journal has it, now or since earlier. `sent`: it has left, and nothing is known of it yet;
    a repeat that changes nothing stays so for ever."""


class ToolView(View):
    """A tool of the application."""

    name: str
    version: str
    effect: str
    consequential: bool
    schema_digest: str | None = None
    binding: str | None = None
    """What an approval is bound to beside the content: data, tool, policy or release."""
    advisory: list[str] = []
    volatile: list[str] = []
    """Fields of its input that an approval does not rest on; every other one is load-bearing."""


class AgentView(View):
    """An agent of the application."""

    name: str
    tools: list[str] = []


class TeamView(View):
    """A team of the application."""

    name: str
    agents: list[str]
    planner: str | None = None


class AppView(View):
    """What can be submitted here, and what it may do."""

    name: str = ""
    version: str
    policy_version: str = ""
    teams: list[TeamView] = []
    agents: list[AgentView] = []
    tools: list[ToolView] = []
