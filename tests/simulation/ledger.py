"""Decides, at every commit, whether what was written was allowed: the invariants that one pass can check.

The ledger sees what the store has taken, in commit order and by the store's clock, and keeps its own copy, so that a
later change of an insert-only row is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from placet.errors import Code
from placet.ids import Address
from placet.messages import APPROVAL, LEASE_TYPES, OPERATION, RUN, THREAD
from placet.runtime.ports import CommitResult, Fate, JournalEntry, OutboxRow, StateWrite, Unit
from placet.statuses import APPROVAL_TERMINAL, OPERATION_TERMINAL, RUN_TERMINAL, THREAD_TERMINAL
from placet.topology import EVENTS
from tests.simulation.history import History
from tests.simulation.row_ledger import RowLedger

TERMINAL = {RUN: RUN_TERMINAL, OPERATION: OPERATION_TERMINAL, APPROVAL: APPROVAL_TERMINAL, THREAD: THREAD_TERMINAL}

REPEATABLE = ("approval.decide", "approval.request", "approval.revoke", "run.interrupt")
"""Whoever asks again is answered again, in a step of its own: those are moves that decide nothing anew."""

TIMERS = frozenset(
    ("approval.expire", "operation.lease_ended", "operation.probe", "operation.retry", "run.timed_out")
) | {"turn.lease_ended", "turn.retry"}
"""What comes again when it comes before its time, in a step that changes nothing."""
CheckReply = Callable[[dict[str, Any], Sequence[str], History], None]
"""Whether a reply is one to the conversation as it was committed."""
MADE_UP = "forged-"
"""How the ids of messages begin that somebody made up: those may be parked."""
IN_FLIGHT = {OPERATION: {"started", "waiting", "reconciling"}, THREAD: {"calling", "waiting"}}
"""States in which somebody, or a timer, works for a run."""


class Ledger(RowLedger):
    """Everything ever committed, and the checks on each commit."""

    def __init__(self, history: History, check_reply: CheckReply, *, exclusive: bool) -> None:
        super().__init__(history)
        self.check_reply = check_reply
        self._exclusive = exclusive
        """One process owns the store: when it comes back, the leases of its former life have ended."""
        self.commits = 0
        self.jumped: set[Address] = set()
        """Operations that somebody's forged word started: approved, but not yet released by their run."""
        self.in_flight: dict[str, set[Address]] = defaultdict(set)
        self.journal: dict[Address, list[JournalEntry]] = defaultdict(list)
        self.applied: Counter[tuple[Address, str]] = Counter()
        self.sent: dict[str, OutboxRow] = {}
        self.alive: dict[str, OutboxRow] = {}
        """Outbox rows that are still there, but for events."""
        self.telling: dict[str, OutboxRow] = {}
        """Events that are still there: nobody waits for them."""
        self.answered_in: dict[str, int] = {}
        """The version of its run in which each operation's end was heard of."""
        self.done: dict[str, dict[str, Any]] = {}
        """What the run was told of each operation's end."""

    # ── one commit ─────────────────────────────────────────────────────────────────────

    def committed(self, unit: Unit, now_ms: int) -> None:
        """Check and keep what one unit wrote. `now_ms` is the store's clock at the commit."""
        self.commits += 1
        self.spoken.unit(unit)
        self._before = {write.address: self.states.get(write.address) for write in unit.states}
        for write in unit.states:
            self._state(write, self._before[write.address], unit)
        self._forged_starts(unit)
        self._suspended(unit)
        for row in unit.rows:
            self._row(row, now_ms)
        for entry in unit.journal:
            self._entry(entry)
        for outgoing in unit.outbox:
            # What was put off goes as the same row as its copies, one after the other.
            new = outgoing.id not in self.sent or (b'"again":"' in outgoing.body and outgoing.id not in self.alive)
            self._check(new, "I16", f"message {outgoing.id} ({outgoing.type}) was sent twice")
            self.sent[outgoing.id] = outgoing
            (self.telling if outgoing.destination == EVENTS else self.alive)[outgoing.id] = outgoing
        for outbox_id in unit.consumed:
            self.alive.pop(outbox_id, None)
        for address, version in unit.guards.items():
            found = self.states.get(address)
            now_there = found.version if found is not None else 0
            self._check(
                now_there == version, "I4", f"committed on a stale read of {address.text()}: {version}, now {now_there}"
            )
        if unit.before_ms is not None:
            self._check(now_ms < unit.before_ms, "I19", f"committed {now_ms - unit.before_ms} ms after its deadline")
        for letter in unit.dead_letters:
            envelope = json.loads(letter.body)
            message = envelope["message"]
            self._history.note("parked", f"{letter.code} {letter.reason}: {message['type']} {_details(message)}")
            self._check(letter.code != Code.INVARIANT, "I32", f"a rule raised on {message['type']}: {letter.reason}")
            made_up = envelope["id"].startswith(MADE_UP)
            unbelieved = message["type"] == "approval.decide" and letter.code.startswith("SIGNATURE_")
            self._check(made_up or unbelieved, "I32", f"{message['type']} was parked: {letter.code} {letter.reason}")

    def refused(self, unit: Unit, result: CommitResult) -> None:
        """The store did not take a unit."""
        if result.fate is Fate.VIOLATED:
            self._history.sometimes[f"a constraint refused a unit: {result.constraint}"] += 1
            self._history.note("violated", result.constraint)

    def claimed(self, rows: Sequence[OutboxRow], now_ms: int) -> None:
        """A relay got rows as due. A lease whose worker is known to be dead is due at once."""
        for row in rows:
            early_ms = row.not_before_ms - now_ms
            woken = self._exclusive and row.type in LEASE_TYPES
            self._check(early_ms <= 0 or woken, "I18", f"published {row.type} {early_ms} ms early")

    def discarded(self, outbox_ids: Sequence[str]) -> None:
        """Published rows were deleted."""
        for outbox_id in outbox_ids:
            self.alive.pop(outbox_id, None)
            self.telling.pop(outbox_id, None)

    def journal_digests(self) -> dict[str, str]:
        """A hash over each state's journal, by address: two worlds in which all are equal did the same."""
        digests: dict[str, str] = {}
        for address, entries in self.journal.items():
            hashed = hashlib.sha256()
            for entry in entries:
                hashed.update(f"{entry.at_ms} {entry.message_id} {entry.facts}\n".encode() + entry.message)
            digests[address.text()] = hashed.hexdigest()
        return digests

    def due(self, now_ms: int) -> bool:
        """Whether a row is on its way or ought to be."""
        return any(row.not_before_ms <= now_ms for row in self.alive.values())

    def _state(self, write: StateWrite, before: StateWrite | None, unit: Unit) -> None:
        address = write.address
        version = before.version if before is not None else 0
        self._check(
            write.expected == version,
            "I4",
            f"{address.text()}: version {write.expected} replaced, but {version} was there",
        )
        steps = sum(entry.address == address for entry in unit.journal)
        self._check(
            write.version == write.expected + steps,
            "I17",
            f"{address.text()}: {steps} messages, {write.version - write.expected} steps",
        )
        if before is not None and before.status in TERMINAL[address.machine] and write.status != before.status:
            taken_back = address.machine == APPROVAL and (before.status, write.status) == ("approved", "revoked")
            taken_back |= address.machine == RUN and any(b'"run.continue"' in entry.message for entry in unit.journal)
            self._check(taken_back, "I14", f"{address.text()} was {before.status} and became {write.status}")
        if before is None or before.status != write.status:
            self._history.note("state", f"{address.text()} v{write.version} {write.status}")
        self.states[address] = write
        if address.machine in IN_FLIGHT:
            busy = self.in_flight[address.run_id]
            (busy.add if write.status in IN_FLIGHT[address.machine] else busy.discard)(address)

    def _forged_starts(self, unit: Unit) -> None:
        """A known limit: an approved operation can be started by anybody on the broker while its run is at work."""
        for entry in unit.journal:
            run = self.states.get(Address(entry.address.run_id, RUN, ""))
            at_work = run is not None and run.status != "suspended"
            if entry.address.machine == OPERATION and entry.message_id.startswith(MADE_UP) and at_work:
                self.jumped.add(entry.address)
                self._history.sometimes["a forged word moved an operation"] += 1

    def _suspended(self, unit: Unit) -> None:
        """Waiting is free: while people are waited for, nothing works for the run."""
        for run_id in {write.address.run_id for write in unit.states}:
            run, busy = self.states.get(Address(run_id, RUN, "")), self.in_flight[run_id] - self.jumped
            if run is not None and run.status == "suspended" and busy:
                self._history.violate("I26", f"{run_id} is suspended, and {sorted(busy)} are in flight")

    def _entry(self, entry: JournalEntry) -> None:
        message = json.loads(entry.message)["message"]
        self._history.note("applied", f"{message['type']} {entry.address.text()} v{entry.version} {_details(message)}")
        entries = self.journal[entry.address]
        self._check(
            entry.version == len(entries) + 1,
            "I17",
            f"{entry.address.text()}: journal entry {entry.version} follows {len(entries)}",
        )
        entries.append(entry)
        tenant = self.states[entry.address].tenant
        self._check(
            message["tenant"] == tenant, "I22", f"{message['type']} of {message['tenant']} moved a state of {tenant}"
        )
        before = self._before.get(entry.address)
        if message["type"] == "tool.returned" and before is not None and before.status != "started":
            self._history.sometimes["a late result was taken"] += 1
        if (
            message["type"] == "tool.returned"
            and before is not None
            and message["attempt"] < json.loads(before.body)["n"]
        ):
            self._history.sometimes["a result of an earlier attempt was taken"] += 1
        if message["type"] == "gate.answered":
            self._history.sometimes[f"gate outside: {message['answer']['verdict']}"] += 1
        if message["type"] == "model.answered":
            self.check_reply(message, self.said[message["run_id"], message["thread_id"]], self._history)
        if message["type"] == "operation.done":
            self.answered_in.setdefault(message["operation_id"], entry.version)
            self.done[message["operation_id"]] = message
        kind = message["type"]
        if kind in TIMERS and self._came_early(entry):
            self._history.sometimes["a timer came early, and came again"] += 1
        elif kind not in REPEATABLE:
            self.applied[entry.address, entry.message_id] += 1
            times = self.applied[entry.address, entry.message_id]
            if kind == "approval.decided" and message["request_id"] in self.revocations:
                times -= 1  # the same word brings other news once the approval was taken back
            self._check(times <= 1, "I17", f"{kind} {entry.message_id} was applied {times} times")

    def will_fork(self, fork_id: str, origin_id: str, at: int) -> None:
        """Somebody asks for a fork: what has been started by now, and not answered by then, is not repeated unasked."""
        ordered = set(self.ordered_before.get(origin_id, ()))
        for operation in self.operations.values():
            known = self.answered_in.get(operation.operation_id, at + 1) <= at
            if operation.run_id == origin_id and self.attempts[operation.operation_id] and not known:
                ordered.add((operation.tool, self.approved_input(operation)))
        self.ordered_before.setdefault(fork_id, ordered)

    def _came_early(self, entry: JournalEntry) -> bool:
        """Whether a timer came too early and changed nothing; where that cannot be told, as with forged ones, yes."""
        before, now, sent = self._before.get(entry.address), self.states[entry.address], self.sent.get(entry.message_id)
        alone = before is not None and now.version == before.version + 1
        if sent is None or (before is not None and alone and now.body == before.body):
            return True
        if entry.at_ms >= sent.not_before_ms > 0:
            return False
        if alone:
            woken = self._exclusive and sent.type in LEASE_TYPES
            early_ms = sent.not_before_ms - entry.at_ms
            self._check(early_ms <= 0 or woken, "I18", f"{sent.type} fired {early_ms} ms early")
        return not alone


_TELLING = ("operation_id", "request_id", "thread_id", "turn", "attempt", "probe", "decision", "outcome", "status")


def _details(message: dict[str, Any]) -> str:
    """What tells one message of a type from another, for the events of a failing seed."""
    return " ".join(f"{name}={str(message[name])[:60]}" for name in _TELLING if message.get(name) is not None)
