"""Decides how stored rows and states become what people are shown.

Tolerant: a state of an older or newer version shows what it has. Nothing here decides anything about a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from placet.canonical import parse_canonical
from placet.errors import ContractError
from placet.ids import Address, trace_id
from placet.messages import OPERATION
from placet.plans import PlannedTask, plan_digest
from placet.runtime.reading import Reader
from placet.sentences import sentence, warnings
from placet.statuses import RUN_TERMINAL
from placet.views import (
    AttemptView,
    FailureView,
    HazardView,
    LineageView,
    OperationView,
    OutcomeView,
    RequestSummary,
    RequestView,
    RevocationView,
    RunSummary,
    RunView,
    TaskView,
    VoteView,
    Waiting,
)

Columns = Mapping[str, Any]

GOAL_CHARS_MAX = 200
"""Of a goal in a list."""
SCANNED_CHARS_MAX = 16_384
"""Of content that is looked through for hidden characters while listing; in full it always is."""
OPEN = "open"
_SETTLED = frozenset({"executed", "not_executed"})


# ── runs ───────────────────────────────────────────────────────────────────────────────


def run_summary(run_id: str, stored: Columns) -> RunSummary:
    """A run in a list."""
    body = stored["body"]
    goal = str(body.get("goal") or "")
    return RunSummary(
        run_id=run_id,
        status=stored["status"],
        team=body.get("team"),
        mode=body.get("mode"),
        goal=goal if len(goal) <= GOAL_CHARS_MAX else f"{goal[:GOAL_CHARS_MAX]}… ({len(goal):,} characters)",
        initiator=(body.get("initiator") or {}).get("id"),
        version=stored["version"],
        created_at_ms=stored["created_at_ms"],
        updated_at_ms=stored["updated_at_ms"],
    )


def run_view(run_id: str, stored: Columns, requests: Iterable[Columns], now_ms: int) -> RunView:
    """A run, with the questions it waits for."""
    body = stored["body"]
    summary = run_summary(run_id, stored).model_dump() | {"goal": body.get("goal")}
    attempt = int(body.get("attempt") or 1)
    return RunView(
        **summary,
        terminal=stored["status"] in RUN_TERMINAL,
        attempt=attempt,
        trace_id=trace_id(run_id, attempt),
        resumed_from=trace_id(run_id, attempt - 1) if attempt > 1 else None,
        forked_from=lineage(body),
        answer=body.get("answer"),
        failure=failure_view(body.get("failure")),
        tasks=[_task(task) for task in body.get("tasks") or ()],
        plan_digest=_plan_digest(body.get("tasks") or ()),
        waiting_for=[_waiting(request) for request in requests],
        as_of_ms=now_ms,
    )


def _plan_digest(tasks: Iterable[Columns]) -> str | None:
    fields = set(PlannedTask.model_fields)
    plain = [{name: task[name] for name in fields & set(task)} for task in tasks if not task.get("removed")]
    try:
        return plan_digest(PlannedTask.model_validate_json(json.dumps(task)) for task in plain) if plain else None
    except (ValidationError, ContractError):
        return None


def _task(task: Columns) -> TaskView:
    return TaskView(
        id=task["id"],
        title=task.get("title") or "",
        status=task["status"],
        assignee=task.get("assignee"),
        depends_on=list(task.get("depends_on") or ()),
        removed=bool(task.get("removed")),
        output=task.get("output"),
        failure=failure_view(task.get("failure")),
    )


def lineage(body: Columns) -> LineageView | None:
    """Where a stored run comes from, where it is a fork."""
    forked = body.get("forked")
    return None if not forked else LineageView.model_validate(forked)


def failure_view(failure: Columns | None) -> FailureView | None:
    """A stored failure."""
    return None if not failure else FailureView.model_validate(failure)


def _waiting(request: Columns) -> Waiting:
    return Waiting(
        request_id=request["request_id"],
        scope=request["scope"],
        sentence=_sentence(request),
        expires_at_ms=request.get("expires_at_ms"),
    )


# ── requests ───────────────────────────────────────────────────────────────────────────


async def requests_of(reader: Reader, tenant: str, run_id: str) -> list[Columns]:
    """The questions of a run, oldest first, each with its status and outcome, as the inbox has them."""
    outcomes = {row["request_id"]: row for row in await reader.rows(tenant, "approval_outcome", run_id)}
    revoked = {row["request_id"] for row in await reader.rows(tenant, "approval_revocation", run_id)}
    found: list[Columns] = []
    for row in sorted(await reader.rows(tenant, "approval_request", run_id), key=lambda row: row["requested_at_ms"]):
        outcome = outcomes.get(row["request_id"])
        decided: dict[str, Any] = {"status": OPEN}
        if outcome is not None:
            decided["status"] = "settled" if outcome["outcome"] in _SETTLED else outcome["outcome"]
            decided |= {name: outcome.get(name) for name in ("outcome", "decided_by", "decided_at_ms")}
        if row["request_id"] in revoked:
            decided["status"] = "revoked"
        found.append({**row, **decided})
    return found


def _sentence(request: Columns) -> str:
    return sentence(request["content_text"], run_id=request["run_id"], reason=request.get("reason"))


def findings_of(content_text: str) -> list[HazardView]:
    """What in the content cannot be seen; for content that cannot be read, that it cannot."""
    try:
        value = parse_canonical(content_text)
    except ContractError as error:
        return [HazardView(pointer="", hazard="unreadable", position=0, code_point="", name=error.message)]
    return [HazardView(**found._asdict()) for found in warnings(value)]


def request_summary(request: Columns) -> RequestSummary:
    """A request in the inbox. A page of the longest contents must not hold up everything else."""
    text = request["content_text"]
    return RequestSummary(
        **_summary(request), hazards=len(findings_of(text)) if len(text) <= SCANNED_CHARS_MAX else None
    )


def _summary(request: Columns) -> dict[str, Any]:
    same = ("request_id", "run_id", "scope", "status", "request_hash", "requested_at_ms")
    optional = ("expires_at_ms", "outcome", "decided_by")
    return {
        **{name: request[name] for name in same},
        **{name: request.get(name) for name in optional},
        "sentence": _sentence(request),
    }


async def request_view(reader: Reader, tenant: str, request: Columns, now_ms: int) -> RequestView:
    """A request in full, with what was decided and what became of the operation."""
    run_id, request_id = request["run_id"], request["request_id"]
    votes = _of_request(await reader.rows(tenant, "approval_vote", run_id), request_id)
    outcomes = _of_request(await reader.rows(tenant, "approval_outcome", run_id), request_id)
    revocations = _of_request(await reader.rows(tenant, "approval_revocation", run_id), request_id)
    found = findings_of(request["content_text"])
    beside = ("boundary", "content_text", "quorum")
    optional = (
        "reason", "initiator", "agent_name", "operation_id", "tool_version", "policy_version", "app_version",
        "use_by_ms", "remind_at_ms", "policy_digest", "rule",
    )  # fmt: skip
    summary = _summary(request)
    if outcomes:
        summary |= {"outcome": outcomes[0]["outcome"], "decided_by": outcomes[0].get("decided_by")}
    columns: dict[str, Any] = {name: request[name] for name in beside}
    columns |= {name: request.get(name) for name in optional}
    return RequestView(
        **summary,
        **columns,
        generation=request.get("generation") or 1,
        supersedes=request.get("supersedes") or None,
        requesters=[person for person in (request.get("requesters") or "").split("\n") if person],
        reviewers=[person for person in (request.get("reviewers") or "").split("\n") if person],
        hazards=len(found),
        findings=found,
        votes=[VoteView.model_validate(vote) for vote in votes],
        decision=OutcomeView.model_validate(outcomes[0]) if outcomes else None,
        revocation=RevocationView.model_validate(revocations[0]) if revocations else None,
        operation=await _operation(reader, tenant, run_id, request.get("operation_id")),
        as_of_ms=now_ms,
    )


def _of_request(rows: Iterable[Columns], request_id: str) -> list[Columns]:
    return [row for row in rows if row["request_id"] == request_id]


# ── operations ─────────────────────────────────────────────────────────────────────────


async def _operation(reader: Reader, tenant: str, run_id: str, operation_id: str | None) -> OperationView | None:
    found = await operations_of(reader, tenant, run_id, operation_id) if operation_id else []
    return found[0] if found else None


async def operations_of(
    reader: Reader, tenant: str, run_id: str, operation_id: str | None = None
) -> list[OperationView]:
    """Every side effect of a run, in the order proposed; or the one of that id."""
    rows = [
        row
        for row in await reader.rows(tenant, "operation", run_id)
        if operation_id is None or row["operation_id"] == operation_id
    ]
    tried: dict[str, list[Columns]] = {}
    for attempt in await reader.rows(tenant, "operation_attempt", run_id):
        tried.setdefault(attempt["operation_id"], []).append(attempt)
    asked = {row["request_id"]: row["request_hash"] for row in await reader.rows(tenant, "approval_request", run_id)}
    views = []
    for row in sorted(rows, key=lambda row: int(row["proposed_at_ms"])):
        state = await reader.state(tenant, Address(run_id, OPERATION, row["operation_id"]))
        views.append(_operation_view(row, state, tried.get(row["operation_id"], ()), asked))
    return views


def _operation_view(
    row: Columns, state: Columns | None, attempts: Iterable[Columns], asked: Mapping[str, str]
) -> OperationView:
    """`asked`: the hash of each request of the run. What was approved may be another input than was proposed."""
    body: Columns = state["body"] if state is not None else {}
    same = (
        "operation_id", "task_id", "tool", "tool_version", "effect", "authority", "rule", "input_text", "request_id",
        "request_hash",
    )  # fmt: skip
    columns: dict[str, Any] = {name: row.get(name) for name in same}
    if body.get("edited_text"):
        columns["input_text"] = body["edited_text"]
    if body.get("request_id") in asked:
        columns |= {"request_id": body["request_id"], "request_hash": asked[body["request_id"]]}
    return OperationView(
        **columns,
        status=state["status"] if state is not None else None,
        doubt=failure_view(body.get("doubt")),
        attempts=[_attempt(attempt) for attempt in sorted(attempts, key=lambda attempt: int(attempt["n"]))],
    )


def _attempt(attempt: Columns) -> AttemptView:
    return AttemptView(
        n=attempt["n"],
        started_at_ms=attempt["started_at_ms"],
        ended=attempt.get("ended"),
        ended_at_ms=attempt.get("ended_at_ms"),
        evidence=attempt.get("evidence_text"),
    )


def detail_of(text: str) -> dict[str, Any]:
    """The detail of an audit leaf, which the machines wrote as canonical JSON."""
    value = json.loads(text)
    return value if isinstance(value, dict) else {"value": value}
