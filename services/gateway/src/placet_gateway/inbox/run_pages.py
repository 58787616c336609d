"""Decides what is shown of runs: the list, one run with its tasks drawn, and all that happened to it, by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from placet.addressees import RUN
from placet.errors import Code, ContractError
from placet.ids import Address
from placet.sentences import pretty
from placet.statuses import RUN_STATUSES
from placet.views import RunView, TraceEntry
from placet_gateway import reading, timeline
from placet_gateway.inbox.graph import graph_of
from placet_gateway.inbox.pages import PageRoute, Visit, Visiting, render
from placet_gateway.inbox.story import plain_json

router = APIRouter(prefix="/inbox/runs", route_class=PageRoute, include_in_schema=False)

PAGE = 50
ENTRIES_MAX = 600
"""Of a timeline in one page, the newest; all of them are in `placet run trace`."""
_TOLD = frozenset(
    {
        "approval_request", "approval_vote", "approval_outcome", "approval_revocation", "operation",
        "operation_attempt", "retry_decision", "dead_letter", "outbox",
    }
)  # fmt: skip
"""Facts that a person looks for; messages, conversations and audit leaves are shown with them on request."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a timeline. `kind` says how it looks: asked, decided, started, ended, retried, waits, lost, said."""

    at_ms: int | None
    kind: str
    what: str
    about: str
    detail: tuple[tuple[str, str], ...]
    request_id: str = ""
    tone: str = ""


@router.get("")
async def runs(at: Visiting, status: str = "", before: str = "") -> HTMLResponse:
    """Runs, newest first."""
    if status and status not in RUN_STATUSES:
        raise ContractError(Code.PARAMETER_INVALID, "There is no such status of a run.")
    found = await at.here.reader.runs(at.here.tenant, status=status or None, limit=PAGE + 1, before=before or None)
    items = [reading.run_summary(run["run_id"], run) for run in found[:PAGE]]
    return render(
        at.request, "runs.html", title="Runs", here="runs", run_id="", items=items, status=status,
        statuses=sorted(RUN_STATUSES), more=items[-1].run_id if len(found) > PAGE else "", badge=None, now_ms=at.now_ms,
    )  # fmt: skip


@router.get("/{run_id}")
async def run(run_id: str, at: Visiting, all: str = "") -> HTMLResponse:  # noqa: A002 — the word in the URL
    """One run, live."""
    return render(at.request, "run.html", title=run_id, here="runs", badge=None, **await _run(at, run_id, bool(all)))


@router.get("/{run_id}/now")
async def run_now(run_id: str, at: Visiting, all: str = "") -> HTMLResponse:  # noqa: A002
    """The same, for a page that is open."""
    return render(at.request, "_run.html", **await _run(at, run_id, bool(all)))


async def _run(at: Visit, run_id: str, is_all: bool) -> dict[str, Any]:
    reader, tenant = at.here.reader, at.here.tenant
    stored = await reader.state(tenant, Address(run_id, RUN, ""))
    if stored is None:
        raise ContractError(Code.RUN_NOT_FOUND, "There is no run of that id.")
    requests = await reading.requests_of(reader, tenant, run_id)
    view: RunView = reading.run_view(
        run_id, stored, [request for request in requests if request["status"] == reading.OPEN], at.now_ms
    )
    trace = await timeline.trace_of(reader, tenant, run_id, view.status, at.now_ms)
    told = [event for entry in trace.entries if is_all or entry.source in _TOLD for event in _events(entry)]
    told.sort(key=lambda event: (event.at_ms is None, event.at_ms or 0, _RANK.get(event.kind, 9)))
    return {
        "run": view,
        "run_id": run_id,
        "graph": graph_of(view.tasks),
        "events": told[-ENTRIES_MAX:],
        "left_out": max(0, len(told) - ENTRIES_MAX),
        "operations": await reading.operations_of(reader, tenant, run_id),
        "is_all": is_all,
        "now_ms": at.now_ms,
    }


# ── the timeline ───────────────────────────────────────────────────────────────────────

_KINDS: Mapping[str, str] = {
    "approval_request": "asked", "approval_vote": "decided", "approval_outcome": "decided",
    "approval_revocation": "decided", "operation": "proposed", "operation_attempt": "started",
    "retry_decision": "retried", "dead_letter": "lost", "outbox": "waits",
}  # fmt: skip
_RANK = {kind: n for n, kind in enumerate(("proposed", "asked", "decided", "started", "ended", "retried"))}
"""Of events of one instant: what leads to what."""
_HIDDEN = frozenset({"content_text", "tenant", "run_id", "body", "message", "leaf", "previous", "evidence_text"})
_TONES: Mapping[str, str] = {
    "approved": "good", "executed": "good", "succeeded": "good", "rejected": "bad", "failed": "bad",
    "expired": "bad", "unknown": "bad", "not_executed": "bad",
}  # fmt: skip


def _events(entry: TraceEntry) -> Iterator[Event]:
    data = entry.data
    kind = _KINDS.get(entry.source, "said")
    what = entry.what
    request_id = str(data.get("request_id") or "") if entry.source.startswith("approval_") else ""
    match entry.source:
        case "approval_request":
            what = f"a person is asked ({str(data.get('scope') or '').replace('_', ' ')})"
        case "approval_vote":
            what = f"{data.get('person_id')} said {str(data.get('decision')).replace('_', ' ')}"
        case "approval_outcome":
            what = f"decided: {str(data.get('outcome')).replace('_', ' ')}"
        case "operation_attempt" if what.split()[-1] != "started":
            kind = "ended"
        case "retry_decision":
            what = f"after attempt {data.get('attempt')}: {_retry(data)}"
        case _:
            pass
    word = str(data.get("outcome") or data.get("ended") or "") if kind in ("decided", "ended") else ""
    detail = tuple((name.removesuffix("_text"), _shown(value)) for name, value in data.items() if _is_told(name, value))
    yield Event(entry.at_ms, kind, what, entry.subject, detail, request_id, _TONES.get(word, ""))


def _retry(data: Mapping[str, Any]) -> str:
    decision = plain_json(data.get("decision_text"))
    if not isinstance(decision, dict):
        return "decided what to do next"
    action, reason = str(decision.get("action")), str(decision.get("reason")).replace("_", " ")
    told = {"give_up": "given up", "ask": "a person is asked"}.get(action, action)
    later = f" in {decision['delay_ms'] / 1_000:.1f} s" if action == "retry" and "delay_ms" in decision else ""
    return f"{told}{later} ({reason})"


def _is_told(name: str, value: Any) -> bool:
    return name not in _HIDDEN and value not in ("", None)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else pretty(value) if isinstance(value, dict | list) else str(value)
