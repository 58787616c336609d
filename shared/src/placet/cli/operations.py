"""Decides how a person accounts for one side effect, from its id alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from placet.cli import exits, output, session
from placet.cli.session import Json

if TYPE_CHECKING:
    from placet.operation_views import OperationRecord

OperationId = Annotated[str, typer.Argument(metavar="ID", help="Its id, as receipts and tools know it.")]


def show(ctx: typer.Context, operation: OperationId, as_json: Json = False) -> int:
    """Proposal, hashes, decisions, attempts, retry decisions, checkpoints and outcome of one side effect."""
    view = session.of(ctx).client().operation(operation)
    if as_json:
        output.document(view)
    else:
        _tell(view)
    return exits.OK if view.hashes_agree else exits.REFUSED


def _tell(view: OperationRecord) -> None:
    from placet.cli.times import at

    proposal = view.proposal
    beside = {
        "operation": view.operation_id,
        "run": f"{view.run_id}, task {proposal.task_id}, call {proposal.call_id}",
        "proposed": f"{at(proposal.proposed_at_ms)} by {proposal.agent_name or 'the plan'}",
        "call": f"{proposal.tool} {proposal.input_text}",
        "tool": f"version {proposal.tool_version}, {proposal.effect}, schema {proposal.tool_schema_digest}",
        "under": f"policy {proposal.policy_version}, application {proposal.app_version}, rule {proposal.rule}",
        "status": view.operation.status or "not started",
    }
    for name, value in beside.items():
        output.line(f"{name + ':':<11}{output.safe(value)}")
    for request in view.requests:
        by = f" by {request.decided_by}" if request.decided_by else ""
        output.line(f"- asked: {request.request_id} {output.safe(f'{request.status}{by}')}")
    for found in view.hashes:
        output.line(f"- hash:  {found.request_hash}  {output.safe(found.where)}")
    for attempt in view.operation.attempts:
        output.line(f"- attempt {attempt.n} at {at(attempt.started_at_ms)}: {attempt.ended or 'not reported yet'}")
    for retry in view.retries:
        decided = retry.decision
        what = f"{decided.get('action')} after {decided.get('delay_ms', 0)} ms: {decided.get('reason')}"
        output.line(f"- after attempt {retry.attempt}: {output.safe(what)}")
    for checkpoint in view.checkpoints:
        state = f"{checkpoint.machine} {checkpoint.key}".strip()
        output.line(f"- {at(checkpoint.at_ms)} {output.safe(state)} version {checkpoint.version}: {checkpoint.message}")
    if view.outcome is not None:
        told = view.outcome.failure["message"] if view.outcome.failure else view.outcome.result_text or ""
        output.line(f"outcome:   {view.outcome.status} {output.safe(told)}".rstrip())
    output.line(f"hashes:    {'all equal' if view.hashes_agree else 'NOT EQUAL'}")


COMMANDS: dict[str, Callable[..., int]] = {"show": show}
