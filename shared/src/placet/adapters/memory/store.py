"""Decides what a unit comes to in memory: every constraint of the SQL tables is checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placet.adapters.memory.archive import MemoryArchive
from placet.adapters.memory.reading import KeptRow, KeptState, Key, by_due
from placet.columns import FIELDS, KEYS, ONE_OPEN, VOTE_ONCE, broken_check, unstorable, values_of
from placet.ids import Address
from placet.instants import Instant
from placet.messages import LEASE_TYPES
from placet.rows import (
    STATE,
    AttemptEndRow,
    AttemptRow,
    DecisionAttemptRow,
    FactKey,
    RequestRow,
    Row,
    StateRow,
    ThreadMessageRow,
    VoteRow,
    owner_of,
)
from placet.runtime.ports import (
    Clock,
    CommitResult,
    Fate,
    JournalEntry,
    Loaded,
    OutboxRow,
    StateWrite,
    StoredState,
    Unit,
)


@dataclass(slots=True)
class _Staged:
    """What a unit would write, while it is checked."""

    facts: dict[tuple[str, Key], Row] = field(default_factory=dict)
    ends: dict[Key, AttemptEndRow] = field(default_factory=dict)
    opened: dict[Key, bool] = field(default_factory=dict)
    """By operation: whether one of its attempts is open now."""
    unique: set[Key] = field(default_factory=set)


class _Refused(Exception):  # noqa: N818  not an error: the store's no
    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class MemoryStore(MemoryArchive):
    """runtime.ports.Store, Reader and Archive without durability. `snapshot` shows all of it to checkers."""

    compares_and_sets = True
    is_verbatim = True

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._incarnation = 1

    def restart(self) -> None:
        """As if a new owner opened a database: nobody's claim counts, timers of work in hand are due at once."""
        self._incarnation += 1
        self._closed = False
        now_ms = self._clock.now_ms()
        for outbox_id, waiting in self._outbox.items():
            due_ms = min(waiting.due_ms, now_ms) if waiting.row.type in LEASE_TYPES else waiting.due_ms
            self._outbox[outbox_id] = replace(waiting, due_ms=due_ms, claimed_until_ms=0)

    # ── for the engine ─────────────────────────────────────────────────────────────────

    async def load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """As ports.Store."""
        self._check_open()
        states = {address: self._stored(address) for address in addresses}
        versions = {address: self._version(address) for address in addresses}
        versions |= {owner_of(key): self._version(owner_of(key)) for key in keys}
        rows = {key: self._row(key) for key in keys}
        return Loaded(self._clock.now_ms(), self._incarnation, states, rows, versions)

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """As ports.Store."""
        self._check_open()
        now_ms = self._clock.now_ms()
        return [self._commit(unit, now_ms) for unit in units]

    async def claim_due(self, limit: int, lease_ms: int) -> Sequence[OutboxRow]:
        """As ports.Store."""
        self._check_open()
        now_ms = self._clock.now_ms()
        free = (w for w in self._outbox.values() if w.due_ms <= now_ms and w.claimed_until_ms <= now_ms)
        claimed = sorted(free, key=by_due)[:limit]
        for waiting in claimed:
            self._outbox[waiting.row.id] = replace(waiting, claimed_until_ms=now_ms + lease_ms)
        return [waiting.row for waiting in claimed]

    async def next_due_ms(self) -> tuple[Instant, Instant | None]:
        """As ports.Store."""
        self._check_open()
        now_ms = self._clock.now_ms()
        instants = (w.due_ms if w.claimed_until_ms <= now_ms else w.claimed_until_ms for w in self._outbox.values())
        due_ms = min(instants, default=None)
        return now_ms, None if due_ms is None else Instant(due_ms)

    async def defer(self, outbox_ids: Sequence[str], longest_ms: int) -> None:
        """As ports.Store."""
        self._check_open()
        now_ms = self._clock.now_ms()
        for waiting in [self._outbox[outbox_id] for outbox_id in outbox_ids if outbox_id in self._outbox]:
            until_ms = now_ms + min(now_ms - waiting.due_ms, longest_ms)
            if until_ms > waiting.claimed_until_ms:
                self._outbox[waiting.row.id] = replace(waiting, claimed_until_ms=until_ms)

    async def recall(self, within_ms: int) -> None:
        """As ports.Store."""
        self._check_open()
        until_ms = self._clock.now_ms() + within_ms
        for waiting in list(self._outbox.values()):
            if waiting.due_ms <= until_ms - within_ms and waiting.claimed_until_ms > until_ms:
                self._outbox[waiting.row.id] = replace(waiting, claimed_until_ms=until_ms)

    async def discard(self, outbox_ids: Sequence[str]) -> None:
        """As ports.Store."""
        self._check_open()
        for outbox_id in outbox_ids:
            self._outbox.pop(outbox_id, None)

    async def read_journal(self, address: Address) -> Sequence[JournalEntry]:
        """As ports.Store."""
        self._check_open()
        return [entry for _, entry in sorted(self._journal.get(address, {}).items())]

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> Sequence[str]:
        """As ports.Store."""
        self._check_open()
        return [body for n, body in sorted(self._threads.get((run_id, thread_id), {}).items()) if n <= upto]

    async def close(self) -> None:
        """As ports.Store. `restart` opens it again."""
        self._closed = True

    def _stored(self, address: Address) -> StoredState | None:
        found = self._states.get(address)
        return None if found is None else found.stored

    def _version(self, address: Address) -> int:
        found = self._states.get(address)
        return 0 if found is None else found.stored.version

    def _row(self, key: FactKey) -> Row | None:
        if key.table == STATE:
            address = owner_of(key)
            found = self._states.get(address)
            if found is None:
                return None
            run_id, machine, name = address
            version, status = found.stored.version, found.stored.status
            return StateRow(
                tenant=found.tenant, run_id=run_id, machine=machine, key=name, version=version, status=status
            )
        if key.table == DecisionAttemptRow.table:
            return self._answers.get(key[1:])
        return self._facts[key.table].get((key.run_id, key.key))

    # ── one unit ───────────────────────────────────────────────────────────────────────

    def _commit(self, unit: Unit, now_ms: Instant) -> CommitResult:
        if not self._holds(unit, now_ms):
            return CommitResult(Fate.LOST)
        try:
            _check_values(unit)
            self._check_steps(unit)
            staged = self._stage(unit.rows)
            self._check_ids(unit)
        except _Refused as refused:
            return CommitResult(Fate.VIOLATED, refused.constraint)
        self._write(unit, staged, now_ms)
        return CommitResult(Fate.COMMITTED)

    def _holds(self, unit: Unit, now_ms: Instant) -> bool:
        if unit.before_ms is not None and now_ms >= unit.before_ms:
            return False
        guarded = [*unit.guards.items(), *((write.address, write.expected) for write in unit.states)]
        return all(self._version(address) == version for address, version in guarded)

    def _check_steps(self, unit: Unit) -> None:
        tenants: dict[Address, str] = {}
        for write in unit.states:
            if write.version <= write.expected or write.address in tenants:
                raise _Refused("state_step")
            found = self._states.get(write.address)
            if found is not None and found.tenant != write.tenant:
                raise _Refused("state_tenant")
            tenants[write.address] = write.tenant
        for row in unit.rows:
            if row.owner() not in tenants:
                raise _Refused("owner_step")
            named = {(row.tenant, row.run_id)} | (
                {(row.request.tenant, row.request.run_id)} if isinstance(row, RequestRow) else set()
            )
            if named != {(tenants[row.owner()], row.owner().run_id)}:
                raise _Refused("owner_tenant")
        if any(entry.address not in tenants for entry in unit.journal):
            raise _Refused("owner_step")

    def _stage(self, rows: Iterable[Row]) -> _Staged:
        staged = _Staged()
        for row in rows:
            if isinstance(row, AttemptEndRow):
                self._stage_end(row, staged)
                continue
            values = values_of(row)
            if (check := broken_check(row.table, values)) is not None:
                raise _Refused(check)
            named = dict(zip(FIELDS[row.table], values, strict=True))
            key = tuple(named[column] for column in KEYS[row.table])
            if key in self._facts[row.table] or (row.table, key) in staged.facts:
                raise _Refused(f"pk_{row.table}")
            staged.facts[row.table, key] = row
            if isinstance(row, VoteRow):
                once = tuple(named[column] for column in VOTE_ONCE)
                if once in self._unique or once in staged.unique:
                    raise _Refused("uq_approval_vote_decision")
                staged.unique.add(once)
            elif isinstance(row, AttemptRow):
                operation = tuple(named[column] for column in ONE_OPEN)
                if staged.opened.get(operation, operation in self._open):
                    raise _Refused("uq_operation_attempt_open")
                staged.opened[operation] = True
        return staged

    def _stage_end(self, row: AttemptEndRow, staged: _Staged) -> None:
        key = (row.run_id, row.operation_id, row.n)
        begun = key in self._facts[AttemptRow.table] or (AttemptRow.table, key) in staged.facts
        if not begun or key in self._ends or key in staged.ends:
            raise _Refused("operation_attempt_end")
        staged.ends[key] = row
        staged.opened[row.run_id, row.operation_id] = False

    def _check_ids(self, unit: Unit) -> None:
        seen: set[tuple[Address, int]] = set()
        for entry in unit.journal:
            place = (entry.address, entry.version)
            if entry.version < 1:
                raise _Refused("ck_journal_version")
            if entry.version in self._journal.get(entry.address, {}) or place in seen:
                raise _Refused("pk_journal")
            seen.add(place)
        ids = [row.id for row in unit.outbox]
        if len(set(ids)) < len(ids) or any(outbox_id in self._outbox for outbox_id in ids):
            raise _Refused("uq_outbox_id")

    def _write(self, unit: Unit, staged: _Staged, now_ms: Instant) -> None:
        for write in unit.states:
            self._states[write.address] = self._stepped(write, now_ms)
        for (table, key), row in staged.facts.items():
            self._facts[table][key] = row
            if isinstance(row, DecisionAttemptRow):
                asked = row.fact_key()[1:]
                first = self._answers.get(asked)
                self._answers[asked] = row if first is None or row.n < first.n else first
            elif isinstance(row, ThreadMessageRow):
                self._threads[row.run_id, row.thread_id][row.n] = row.body_text
        self._unique |= staged.unique
        self._ends |= staged.ends
        for operation, is_open in staged.opened.items():
            (self._open.add if is_open else self._open.discard)(operation)
        for entry in unit.journal:
            self._journal[entry.address][entry.version] = entry
            self._arrived.append(entry)
        for sent in unit.outbox:
            self._seq += 1
            due_ms = max(sent.not_before_ms, now_ms)
            until_ms = now_ms + sent.claim_ms if sent.claim_ms else 0
            self._outbox[sent.id] = KeptRow(replace(sent, claim_ms=0), due_ms, self._seq, until_ms)
        for letter in unit.dead_letters:
            self._letters.setdefault(letter.id, letter)
        for outbox_id in unit.consumed:
            self._outbox.pop(outbox_id, None)

    def _stepped(self, write: StateWrite, now_ms: Instant) -> KeptState:
        before = self._states.get(write.address)
        created_at_ms = now_ms if before is None else before.created_at_ms
        return KeptState(
            write.tenant, StoredState(write.version, write.status, bytes(write.body)), created_at_ms, now_ms
        )


def _check_values(unit: Unit) -> None:
    """Whatever no store can keep is refused, wherever it stands."""
    parts: list[tuple[Any, ...]] = [values_of(row) for row in unit.rows]
    parts += [(*s.address, s.tenant, s.version, s.status) for s in unit.states]
    parts += [(e.message_id, e.message, e.facts, e.at_ms) for e in unit.journal]
    parts += [(o.id, o.destination, o.run_id, o.type, o.not_before_ms, o.body) for o in unit.outbox]
    parts += [
        (d.id, d.tenant, d.run_id, d.destination, d.code, d.reason, d.body, d.at_ms, d.queue, d.about_text)
        for d in unit.dead_letters
    ]
    for part in parts:
        if (fault := unstorable(part)) is not None:
            raise _Refused(fault)
