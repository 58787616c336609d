"""Decides what is one unit: how what several messages came to is put together, and what is written down of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from placet.activities import Activity
from placet.facts import Facts
from placet.ids import Address
from placet.instants import Instant
from placet.machine import State
from placet.messages import Envelope
from placet.runtime.parcels import outbox_id
from placet.runtime.ports import Delivery, Unit


@dataclass(slots=True)
class Outcome:
    """What one unit will do once it is committed."""

    unit: Unit
    deliveries: list[Delivery] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    replies: list[tuple[str, str]] = field(default_factory=list)
    unreadable: dict[Address, str] = field(default_factory=dict)
    """States that could not be read, and why."""
    now_ms: int = 0
    """What the machines were told the time is."""


def merge(into: Outcome, other: Outcome) -> None:
    into.deliveries += other.deliveries
    into.activities += other.activities
    into.replies += other.replies
    into.unreadable |= other.unreadable
    a, b = into.unit, other.unit
    a.states += b.states
    a.rows += b.rows
    a.journal += b.journal
    a.outbox += b.outbox
    a.dead_letters += b.dead_letters
    a.consumed += b.consumed
    for owner, version in b.guards.items():
        a.guards.setdefault(owner, version)
    a.before_ms = earlier(a.before_ms, b.before_ms)


def withdraw(unit: Unit, envelope: Envelope) -> None:
    """Not even written, where it is of the same commit; otherwise deleted by it, wherever it waits."""
    row_id = outbox_id(envelope)
    kept = [row for row in unit.outbox if row.id != row_id]
    if len(kept) < len(unit.outbox):
        unit.outbox[:] = kept
    else:
        unit.consumed.append(row_id)


def earlier(a: Instant | None, b: Instant | None) -> Instant | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)


def journalled(facts: Facts, upgraded: State | None) -> str:
    """What the machine was told, for the journal: rows it looked at, answers it got, the incarnation.

    `upgraded`: what an older program's state was read as, where that is what the message was applied to.
    """
    value: dict[str, Any] = {
        "rows": [[*key, row] for key, row in facts.seen.items()],
        "answers": facts.answers,
        "incarnation": facts.incarnation,
    }
    if upgraded is not None:
        value["upgraded"] = upgraded.json_bytes().decode()
    return to_json(value).decode()
