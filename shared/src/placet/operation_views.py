"""Decides how one side effect is accounted for, from its id alone: the proposal, on whose word, every try, the end."""

from __future__ import annotations

from typing import Any

from placet.views import OperationView, RequestView, View


class ProposalView(View):
    """What was proposed, as it was sealed."""

    task_id: str
    thread_id: str | None = None
    turn: int | None = None
    call_id: str
    agent_name: str = ""
    initiator: str = ""
    tool: str
    tool_version: str
    tool_schema_digest: str
    app_version: str
    policy_version: str
    policy_digest: str = ""
    effect: str
    consequential: bool
    authority: str
    rule: str
    raw_input_text: str
    input_text: str
    proposed_at_ms: int
    deadline_ms: int | None = None


class RetryView(View):
    """One decision of the retry rule about it, with everything that it depends on."""

    subject: str
    attempt: int
    inputs: dict[str, Any]
    decision: dict[str, Any]
    decided_at_ms: int


class CheckpointView(View):
    """A version of a state that a message about the operation led to."""

    machine: str
    key: str
    version: int
    message: str
    """The message's type."""
    message_id: str
    at_ms: int


class HashView(View):
    """A hash, where it stands, and of which request."""

    where: str
    request_id: str
    request_hash: str


class OutcomeOfOperation(View):
    """What it came to. `result_text` is canonical JSON; `certainty` is of its last attempt."""

    status: str
    certainty: str | None = None
    result_text: str | None = None
    failure: dict[str, Any] | None = None


class OperationRecord(View):
    """Everything that is known of one operation.

    `hashes_agree`: whether, of each request, every hash that is kept and the one computed anew from the content are
    equal, letter by letter.
    """

    operation_id: str
    run_id: str
    operation: OperationView
    proposal: ProposalView
    requests: list[RequestView]
    retries: list[RetryView]
    checkpoints: list[CheckpointView]
    outcome: OutcomeOfOperation | None = None
    hashes: list[HashView]
    hashes_agree: bool
    as_of_ms: int


class FrozenView(View):
    """A switch that is on. `tool` is none where it is for all of them."""

    tool: str | None = None
    by: str
    reason: str
    since_ms: int


class FreezeView(View):
    """What is not started now; nothing is frozen where there are no items."""

    items: list[FrozenView]
    as_of_ms: int
