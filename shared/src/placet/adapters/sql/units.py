"""Decides whether a unit holds, and which rows it writes table by table, before any SQL is run: for every database.

What no version can mend is refused by the name that the constraint has in every store; the versions are looked at
first, so that whoever is late hears that, whatever else is wrong.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from placet.columns import ENDED, KEYS, values_of
from placet.ids import Address
from placet.instants import Instant
from placet.rows import AttemptEndRow, AttemptRow, RequestRow, Row
from placet.runtime.ports import CommitResult, DeadLetter, Fate, JournalEntry, Unit

COMMITTED = CommitResult(Fate.COMMITTED)
LOST = CommitResult(Fate.LOST)

Stored = tuple[int, str | None]
"""Version and tenant of a state; version 0 and no tenant where there is none."""


class Refused(Exception):  # noqa: N818  not an error: the store's no
    """A constraint refuses a unit."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


def holds(unit: Unit, stored: Callable[[Address], Stored], now_ms: Instant) -> bool:
    """Whether the unit's versions and its deadline hold. Raises `Refused` for what no version can mend."""
    if unit.before_ms is not None and now_ms >= unit.before_ms:
        return False
    for address, version in unit.guards.items():
        if stored(address)[0] != version:
            return False
    for write in unit.states:
        if stored(write.address)[0] != write.expected:
            return False
    check_steps(unit)
    for write in unit.states:
        if stored(write.address)[1] not in (None, write.tenant):
            raise Refused("state_tenant")
    return True


def check_steps(unit: Unit) -> None:
    """Every state steps forward, once, and every row goes with a step of its owner. Raises `Refused`."""
    stepped: dict[Address, str] = {}
    for write in unit.states:
        if write.version <= write.expected or write.address in stepped:
            raise Refused("state_step")
        stepped[write.address] = write.tenant
    for row in unit.rows:
        _check_owner(row, stepped)
    if any(entry.address not in stepped for entry in unit.journal):
        raise Refused("owner_step")


def _check_owner(row: Row, stepped: Mapping[Address, str]) -> None:
    """A fact is written with a step of its owner, of the same tenant."""
    tenant = stepped.get(row.owner())
    if tenant is None:
        raise Refused("owner_step")
    if tenant != row.tenant or (
        isinstance(row, RequestRow) and (row.request.tenant, row.request.run_id) != (row.tenant, row.run_id)
    ):
        raise Refused("owner_tenant")


CREATED = ("run_id", "machine", "key", "tenant", "version", "status", "body", "created_at_ms", "updated_at_ms")
STEPPED = ("new_version", "new_status", "new_body", "new_updated_at_ms", "is_run_id", "is_machine", "is_key")
JOURNAL = ("run_id", "machine", "key", "version", "message_id", "message", "facts", "at_ms")
OUTBOX = ("id", "destination", "run_id", "type", "not_before_ms", "due_ms", "claimed_until_ms", "body")
LETTER = ("id", "tenant", "run_id", "destination", "code", "reason", "body", "at_ms", "queue", "about_text")
ENDING = (*(f"new_{name}" for name in ENDED), *(f"is_{name}" for name in KEYS[AttemptRow.table]))
"""The parameters that the rows of a batch, and `ending`, are."""


def ending(row: AttemptEndRow) -> tuple[Any, ...]:
    """The parameters that end an attempt."""
    return (row.ended, row.ended_at_ms, row.evidence_text, row.run_id, row.operation_id, row.n)


class Batch:
    """What several units write, table by table."""

    def __init__(self, now_ms: Instant) -> None:
        self._now_ms = now_ms
        self.created: list[tuple[Any, ...]] = []
        self.stepped: list[tuple[Any, ...]] = []
        self.facts: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.attempts: list[AttemptRow | AttemptEndRow] = []
        """In order: an attempt must be closed before the next one opens."""
        self.journal: list[tuple[Any, ...]] = []
        self.outbox: list[tuple[Any, ...]] = []
        self.letters: list[tuple[Any, ...]] = []
        self.consumed: dict[str, tuple[str]] = {}

    def add(self, unit: Unit) -> None:
        """Raises `Refused` for U+0000, which PostgreSQL's text cannot hold."""
        now_ms = self._now_ms
        for write in unit.states:
            key, body = write.address, bytes(write.body)
            if write.expected == 0:
                new = (*key, write.tenant, write.version, write.status, body, now_ms, now_ms)
                self.created.append(_without_nul(new))
            else:
                self.stepped.append(_without_nul((write.version, write.status, body, now_ms, *key)))
        for row in unit.rows:
            values = _without_nul(values_of(row))
            if isinstance(row, AttemptRow | AttemptEndRow):
                self.attempts.append(row)
            else:
                self.facts[row.table].append(values)
        for e in unit.journal:
            self.journal.append(_without_nul(journal_values(e)))
        for o in unit.outbox:
            due_ms, until_ms = max(o.not_before_ms, now_ms), now_ms + o.claim_ms if o.claim_ms else 0
            sent = (o.id, o.destination, o.run_id, o.type, o.not_before_ms, due_ms, until_ms, o.body)
            self.outbox.append(_without_nul(sent))
            self.consumed.pop(o.id, None)  # what an earlier unit consumed is not what this one sends
        self.letters += [_without_nul(letter_values(letter)) for letter in unit.dead_letters]
        self.consumed |= {outbox_id: (outbox_id,) for outbox_id in unit.consumed}


def _without_nul(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        if type(value) is str and "\x00" in value:
            raise Refused("text_nul")
    return values


def journal_values(entry: JournalEntry) -> tuple[Any, ...]:
    """An entry's values, in the order of JOURNAL."""
    e = entry
    return (*e.address, e.version, e.message_id, e.message, e.facts, e.at_ms)


def letter_values(letter: DeadLetter) -> tuple[Any, ...]:
    """A dead letter's values, in the order of LETTER."""
    d = letter
    tenant = tenant_of(d.body) or "" if d.tenant is None else d.tenant
    return (d.id, tenant, d.run_id, d.destination, d.code, d.reason, d.body, d.at_ms, d.queue, d.about_text)


def tenant_of(body: bytes) -> str | None:
    """The tenant that the message in an envelope names; None when that cannot be read."""
    try:
        tenant = json.loads(body)["message"]["tenant"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tenant if isinstance(tenant, str) else None
