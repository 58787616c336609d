"""Decides how the whole story of a run is put together: a timeline of every fact, and a receipt of what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from placet.canonical import digest
from placet.runtime.reading import Reader
from placet.views import AuditView, RunEvent, RunReceipt, Trace, TraceEntry
from placet_gateway.reading import (
    Columns,
    detail_of,
    failure_view,
    lineage,
    operations_of,
    request_summary,
    run_summary,
)

_INSTANTS: Mapping[str, tuple[str, ...]] = {
    "approval_request": ("requested_at_ms",),
    "approval_vote": ("voted_at_ms",),
    "approval_outcome": ("decided_at_ms",),
    "approval_revocation": ("revoked_at_ms",),
    "decision_attempt": ("answered_at_ms",),
    "operation": ("proposed_at_ms",),
    "operation_attempt": ("started_at_ms", "ended_at_ms"),
    "retry_decision": ("decided_at_ms",),
    "thread_message": ("said_at_ms",),
    "audit_leaf": ("at_ms",),
}
"""Each table of facts, and its columns that say when; one entry of the timeline for each that is filled."""
_ORDER = ("journal", *_INSTANTS, "dead_letter", "outbox")
"""Of entries of one instant: the message first, then the facts it made."""


async def events_of(reader: Reader, tenant: str, run_id: str, after: int) -> list[RunEvent]:
    """The audit leaves after number `after`."""
    leaves = await reader.rows(tenant, "audit_leaf", run_id)
    return [_event(leaf) for leaf in leaves if leaf["seq"] > after]


def _event(leaf: Columns) -> RunEvent:
    same = ("seq", "kind", "subject", "at_ms", "leaf")
    return RunEvent(**{name: leaf[name] for name in same}, detail=detail_of(leaf["detail_text"]))


async def trace_of(reader: Reader, tenant: str, run_id: str, status: str, now_ms: int) -> Trace:
    """Journal, facts, dead letters and what is still on its way, by time, each with its source."""
    entries = [_journal_entry(entry) for entry in await reader.journal(tenant, run_id)]
    for table in _INSTANTS:
        for row in await reader.rows(tenant, table, run_id):
            entries += _fact_entries(table, row)
    for letter in await reader.dead_letters(tenant, run_id=run_id, limit=1_000):
        what = f"refused: {letter['code']}"
        entries.append(TraceEntry(at_ms=letter["at_ms"], source="dead_letter", what=what, data=_plain(letter)))
    for row in await reader.outbox(tenant, run_id):
        entries.append(
            TraceEntry(
                at_ms=row["not_before_ms"] or None,
                source="outbox",
                what=f"{row['type']} is {'to come' if row['not_before_ms'] > now_ms else 'on its way'}",
                subject=row["destination"],
                data=_plain(row),
            )
        )
    entries.sort(key=_when)
    return Trace(run_id=run_id, status=status, entries=entries, as_of_ms=now_ms)


def _when(entry: TraceEntry) -> tuple[bool, int, int]:
    return entry.source == "outbox", entry.at_ms or 0, _ORDER.index(entry.source)


def _journal_entry(entry: Columns) -> TraceEntry:
    key = f"{entry['machine']} {entry['key']}".strip()
    return TraceEntry(
        at_ms=entry["at_ms"],
        source="journal",
        what=entry["type"],
        subject=key,
        data={"version": entry["version"], "message_id": entry["message_id"], "message": entry["message"]},
    )


def _fact_entries(table: str, row: Columns) -> Iterator[TraceEntry]:
    for column in _INSTANTS[table]:
        at_ms = row.get(column)
        if at_ms is not None:
            yield TraceEntry(
                at_ms=at_ms, source=table, what=_what(table, column, row), subject=_subject(row), data=_plain(row)
            )


def _what(table: str, column: str, row: Columns) -> str:
    match table, column:
        case "approval_vote", _:
            return f"{row['decision']} by {row['person_id']}"
        case "approval_outcome", _:
            return str(row["outcome"])
        case "decision_attempt", _:
            return f"answered {row['answer']} to {row['person_id']}"
        case "operation", _:
            return f"{row['tool']} proposed"
        case "operation_attempt", "started_at_ms":
            return f"attempt {row['n']} started"
        case "operation_attempt", _:
            return f"attempt {row['n']} {row['ended']}"
        case "thread_message", _:
            return f"{row['role']} message {row['n']}"
        case "audit_leaf", _:
            return f"leaf {row['seq']}: {row['kind']}"
        case _:
            return table.removeprefix("approval_").replace("_", " ")


def _subject(row: Columns) -> str:
    for name in ("operation_id", "request_id", "thread_id", "subject"):
        if row.get(name):
            return str(row[name])
    return ""


def _plain(row: Columns) -> dict[str, Any]:
    """Every column but those that are the same for the whole run, and bytes, which JSON does not have."""
    return {
        name: value
        for name, value in row.items()
        if name not in {"tenant", "run_id"} and value is not None and not isinstance(value, bytes)
    }


async def receipt_of(
    reader: Reader, tenant: str, run_id: str, stored: Columns, requests: Iterable[Columns], now_ms: int
) -> RunReceipt:
    """What the run came to, and on whose word."""
    leaves = await reader.rows(tenant, "audit_leaf", run_id)
    summary = run_summary(run_id, stored)
    body = stored["body"]
    return RunReceipt(
        run_id=run_id,
        status=summary.status,
        team=summary.team,
        initiator=summary.initiator,
        forked_from=lineage(body),
        answer=body.get("answer"),
        failure=failure_view(body.get("failure")),
        created_at_ms=summary.created_at_ms,
        updated_at_ms=summary.updated_at_ms,
        operations=await operations_of(reader, tenant, run_id),
        decisions=[request_summary(request) for request in requests],
        audit=AuditView(leaves=len(leaves), last=leaves[-1]["leaf"] if leaves else None, intact=is_intact(leaves)),
        as_of_ms=now_ms,
    )


def is_intact(leaves: list[dict[str, Any]]) -> bool:
    """Whether every leaf hashes to what it says, names the one before it, and none is missing between."""
    if not leaves:
        return True
    fields = ("tenant", "run_id", "seq", "kind", "subject", "detail_text", "at_ms", "previous")
    hashed = all(leaf["leaf"] == digest({name: leaf[name] for name in fields}) for leaf in leaves)
    chained = all(b["previous"] == a["leaf"] and b["seq"] == a["seq"] + 1 for a, b in pairwise(leaves))
    return hashed and chained and leaves[0]["seq"] == 1
