"""Decides whether what is stored of a run is what its journals say: every step replayed, and compared with the rows.

Believes nothing but the journal's own messages. What a step wrote (its rows, its messages where their receivers have
applied them, the state at the end) must be there exactly as the replay makes it again, and nothing else may be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from placet.columns import ENDED, FIELDS, KEYS, row_of, values_of
from placet.compatibility import read_state
from placet.errors import PlacetError
from placet.ids import Address, message_id
from placet.machine import Machine, Record, Send
from placet.messages import Message
from placet.rows import AttemptEndRow, AttemptRow, Row
from placet.runtime.ports import JournalEntry, StoredState
from placet.runtime.replay import Step, is_base, steps

Columns = Mapping[str, Any]

_ADDRESS = frozenset({"pool"})
"""What of a message may have changed on its way: whoever passed it on gave it a better address."""


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is stored of one run."""

    states: Mapping[Address, StoredState]
    journals: Mapping[Address, Sequence[JournalEntry]]
    facts: Mapping[str, Sequence[Columns]]
    """By table."""


class Difference(NamedTuple):
    """Where what is stored is not what the journal says."""

    at_ms: int
    address: Address
    version: int
    what: str

    def sentence(self) -> str:
        """For people."""
        return f"{self.address.text()} version {self.version}: {self.what}"


@dataclass
class Verified:
    """What a replay of everything came to."""

    steps: dict[Address, list[Step]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    """The earliest first."""


def verify(machines: Mapping[str, Machine[Any]], kept: Kept) -> Verified:
    """Replay every journal of a run, and compare each step with what is stored."""
    found = Verified()
    for address in sorted(kept.journals.keys() | kept.states.keys()):
        _replay(machines, address, kept, found)
    _compare_rows(kept, found)
    _compare_messages(kept, found)
    times = {address: _times(entries) for address, entries in kept.journals.items()}
    found.differences.sort(key=lambda each: (times.get(each.address, {}).get(each.version, each.at_ms), *each[1:]))
    return found


def _times(entries: Sequence[JournalEntry]) -> dict[int, int]:
    """When each version came to be, at the latest: no later than those after it, whatever its own entry says."""
    times: dict[int, int] = {}
    upto_ms = entries[-1].at_ms if entries else 0
    for entry in reversed(entries):
        upto_ms = min(entry.at_ms, upto_ms)
        times[entry.version] = upto_ms
    return times


# ── states ─────────────────────────────────────────────────────────────────────────────


def _replay(machines: Mapping[str, Machine[Any]], address: Address, kept: Kept, found: Verified) -> None:
    machine, stored = machines.get(address.machine), kept.states.get(address)
    entries = kept.journals.get(address, ())
    last = entries[-1] if entries else None

    def differs(version: int, what: str, at_ms: int | None = None) -> None:
        told = at_ms if at_ms is not None else last.at_ms if last is not None else 0
        found.differences.append(Difference(told, address, version, what))

    if machine is None:
        differs(0, f"no {address.machine} machine is known here")
        return
    taken = found.steps.setdefault(address, [])
    try:
        for step in steps(machine, entries):
            taken.append(step)
    except PlacetError as error:
        at = entries[len(taken)]
        differs(at.version, error.message, at.at_ms)
        return
    if stored is None:
        differs(0, "there is a journal and no state")
        return
    if not taken or taken[-1].version != stored.version:
        differs(stored.version, f"the journal ends at version {taken[-1].version if taken else 0}")
        return
    _compare_state(machine, taken[-1], stored, differs)


def _compare_state(machine: Machine[Any], last: Step, stored: StoredState, differs: Callable[..., None]) -> None:
    try:
        read = read_state(machine.state_type, stored.body)
    except PlacetError as error:
        differs(stored.version, f"the stored state cannot be read: {error.message}")
        return
    # What an older program has stored is compared as what it is now.
    body = read.state.json_bytes() if read.upgraded else stored.body
    if last.state.json_bytes() != body:
        told = _first(json.loads(last.state.json_bytes()), json.loads(read.state.json_bytes()))
        differs(stored.version, f"the stored state is another: {told}")
    elif last.state.status != stored.status:
        differs(stored.version, f"the status beside the state is {stored.status!r}, not {last.state.status!r}")


def _first(told: Any, stored: Any, path: str = "") -> str:
    """The first place where two JSON values differ."""
    if isinstance(told, dict) and isinstance(stored, dict):
        for name in dict.fromkeys([*told, *stored]):
            if told.get(name, ...) != stored.get(name, ...):
                return _first(told.get(name), stored.get(name), f"{path}/{name}")
    if isinstance(told, list) and isinstance(stored, list):
        for at, (one, other) in enumerate(zip(told, stored, strict=False)):
            if one != other:
                return _first(one, other, f"{path}/{at}")
    return f"{path or '/'} is {_short(stored)} and was {_short(told)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# ── rows ───────────────────────────────────────────────────────────────────────────────


def _compare_rows(kept: Kept, found: Verified) -> None:
    stored = {(table, *(row[name] for name in KEYS[table])): row for table, rows in kept.facts.items() for row in rows}
    told: set[tuple[Any, ...]] = set()
    for step, row in _recorded(found):
        table = AttemptRow.table if isinstance(row, AttemptEndRow) else row.table
        if table not in kept.facts:
            continue
        values = dict(zip(FIELDS[row.table], values_of(row), strict=True))
        key = (table, *(values[name] for name in KEYS[table]))
        told.add(key)
        there = stored.get(key)
        if there is None:
            _add(found, step, f"the row {_named(key)} is missing")
            continue
        other = next((name for name in values if there.get(name) != values[name]), None)
        if other is not None:
            what = f"{other} is {_short(there.get(other))} and was {_short(values[other])}"
            _add(found, step, f"the row {_named(key)} is another: {what}")
    _unexplained(kept, found, stored, told)


def _recorded(found: Verified) -> Iterator[tuple[Step, Row]]:
    for taken in found.steps.values():
        for step in taken:
            for effect in step.effects:
                if isinstance(effect, Record):
                    yield step, effect.row


def _unexplained(
    kept: Kept, found: Verified, stored: Mapping[tuple[Any, ...], Columns], told: Iterable[tuple[Any, ...]]
) -> None:
    """Rows, and ends of attempts, that no step wrote; of a state whose past was pruned nobody can say."""
    blind = {address for address, entries in kept.journals.items() if entries and is_base(entries[0])}
    broken = {difference.address for difference in found.differences}
    ended = {
        (AttemptRow.table, row.run_id, row.operation_id, row.n)
        for _, row in _recorded(found)
        if isinstance(row, AttemptEndRow)
    }
    explained = set(told)
    for key, columns in stored.items():
        table = str(key[0])
        owner = row_of(table, [columns[name] for name in FIELDS[table]]).owner()
        if owner in blind or owner in broken:
            continue
        if key not in explained:
            found.differences.append(Difference(0, owner, 0, f"no step has written the row {_named(key)}"))
        elif table == AttemptRow.table and key not in ended and any(columns[name] is not None for name in ENDED):
            found.differences.append(Difference(0, owner, 0, f"no step has ended the row {_named(key)}"))


def _named(key: Sequence[Any]) -> str:
    return f"{key[0]} {'/'.join(str(part) for part in key[2:])}"


# ── messages ───────────────────────────────────────────────────────────────────────────


def _compare_messages(kept: Kept, found: Verified) -> None:
    """What a step sent is what its receiver applied under that id."""
    applied = {
        (address, step.entry.message_id): step
        for address, taken in found.steps.items()
        for step in taken
        if step.message is not None
    }
    for address, taken in found.steps.items():
        for step in taken:
            sends = [effect.message for effect in step.effects if isinstance(effect, Send)]
            for position, message in enumerate(sends):
                heard = applied.get((message.to(), message_id(address, step.version, position)))
                if heard is not None and heard.message is not None and _plain(heard.message) != _plain(message):
                    _add(found, heard, f"{heard.message.type} is not what {address.text()} sent")


def _plain(message: Message) -> dict[str, Any]:
    return message.model_dump(exclude=set(_ADDRESS))


def _add(found: Verified, step: Step, what: str) -> None:
    found.differences.append(Difference(step.entry.at_ms, step.entry.address, step.version, what))
