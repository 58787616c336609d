"""Decides what a batch of messages comes to, before anything is committed: states, effects, and what belongs together.

The fold is synchronous and pure. It works in waves: the messages as they came, then what they handed over to machines
hosted here, then what those handed over. Whatever read or wrote something uncommitted of another key joins it in one
unit, so that nothing is ever based on a write that might be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placet.activities import CallModel
from placet.errors import Code, Failure, InvariantError, PlacetError
from placet.facts import Application, Facts
from placet.ids import Address, derived_id, message_id
from placet.instants import Instant, later
from placet.machine import Invoke, Machine, Receipt, Record, Reply, Send, State, Transition, Withdraw
from placet.messages import Envelope, enveloped
from placet.rows import STATE, FactKey, Row, StateRow, ThreadMessageRow, owner_of
from placet.runtime.gathering import Outcome, earlier, journalled, merge, withdraw
from placet.runtime.opened import OpenedStates
from placet.runtime.parcels import dead_letter, named_envelope, outbox_row
from placet.runtime.ports import Delivery, JournalEntry, Loaded, StateWrite, StoredState, Unit

Machines = Mapping[str, Machine[Any]]

HELD_MS = 10_000
"""When what is for a state that cannot be read comes again."""


@dataclass(slots=True)
class Item:
    """One message of the batch or of a wave. `delivery` is set for what came from outside."""

    envelope: Envelope
    delivery: Delivery | None
    group: int
    reads: tuple[FactKey, ...] | None = None
    """What its machine wants to read, once it has been asked."""
    broken: Failure | None = None
    """Why its machine cannot even say that: a bug in the rules."""
    address: Address = field(init=False)

    def __post_init__(self) -> None:
        self.address = self.envelope.message.to()


@dataclass(slots=True)
class _Working:
    """A state in the making."""

    loaded_version: int
    version: int
    state: State | None
    status: str | None
    broken: Failure | None = None
    """Why the stored state cannot be read: every message for it waits, its neighbours go on."""
    upgraded: bool = False
    """Whether an older program stored it: the journal then says what it was read as."""

    @property
    def dirty(self) -> bool:
        return self.version != self.loaded_version


class Fold:
    """The fold of one batch."""

    def __init__(
        self,
        machines: Machines,
        application: Application,
        deliveries: Sequence[Delivery],
        *,
        claim_ms: int = 0,
        opened: OpenedStates | None = None,
    ) -> None:
        """`claim_ms`: for how long nobody else publishes what is due at once. `opened`: kept from batch to batch."""
        self._claim_ms = claim_ms
        self._opened_states = OpenedStates() if opened is None else opened
        self._machines = machines
        self._application = application
        self._now = Instant(0)
        self._incarnation = 0
        self._working: dict[Address, _Working] = {}
        self._rows: dict[FactKey, Row | None] = {}
        self._versions: dict[Address, int] = {}
        self._parents: list[int] = list(range(len(deliveries)))
        self._outcomes: list[Outcome] = [Outcome(Unit()) for _ in deliveries]
        self._group_of: dict[Address, int] = {}
        self._calls: list[tuple[CallModel, int]] = []
        self._said: dict[tuple[str, str], list[ThreadMessageRow]] = {}
        self.wave: list[Item] = []
        for at, delivery in enumerate(deliveries):
            outcome = self._outcomes[at]
            outcome.deliveries.append(delivery)
            if delivery.outbox_id is not None:
                outcome.unit.consumed.append(delivery.outbox_id)
            self.wave.append(Item(delivery.envelope, delivery, at))

    def wanted(self) -> tuple[list[Address], list[FactKey]]:
        """States and rows that the current wave needs and that are not here yet."""
        addresses: dict[Address, None] = {}
        keys: dict[FactKey, None] = {}
        for item in self.wave:
            if item.address not in self._working:
                addresses[item.address] = None
            for key in self._reads(item):
                if key.table == STATE:
                    if owner_of(key) not in self._working:
                        addresses[owner_of(key)] = None
                elif key not in self._rows:
                    keys[key] = None
        return list(addresses), list(keys)

    def take(self, loaded: Loaded) -> None:
        """Add what a load brought. A load never overwrites what this fold has already changed.

        Waves load at different instants. The first version seen of a state is the one that is guarded: if it moved in
        between, the commit loses and everything is loaded afresh.
        """
        self._now = max(self._now, loaded.now_ms)
        self._incarnation = loaded.incarnation
        for address, version in loaded.versions.items():
            self._versions.setdefault(address, version)
        for address, stored in loaded.states.items():
            if address not in self._working:
                self._working[address] = self._opened(address, stored)
        for key, row in loaded.rows.items():
            self._rows.setdefault(key, row)

    def _opened(self, address: Address, stored: StoredState | None) -> _Working:
        seen = self._versions[address]
        if stored is None:
            return _Working(seen, seen, None, None)
        machine = self._machines.get(address.machine)
        if machine is None:  # read only for its status
            return _Working(seen, seen, None, stored.status)
        try:
            state = self._opened_states.read(machine.state_type, address, stored.body)
        except PlacetError as error:
            reason = f"the state {address.text()} at version {stored.version} cannot be read: {error.message}"
            return _Working(seen, seen, None, stored.status, Failure(code=error.code, message=reason))
        upgraded = bool(machine.state_type.upgraders) and self._opened_states.was_upgraded(address)
        return _Working(seen, seen, state, stored.status, upgraded=upgraded)

    @property
    def now_ms(self) -> Instant:
        """The latest instant a load saw."""
        return self._now

    def run_wave(self, *, hand_over: bool) -> None:
        """Fold the current wave; what it hands over becomes the next one."""
        items, self.wave = self.wave, []
        for item in items:
            self._apply(item, hand_over=hand_over)

    def outcomes(self) -> list[Outcome]:
        """One outcome per unit, in the order of their first messages."""
        merged: dict[int, Outcome] = {}
        for at, outcome in enumerate(self._outcomes):
            root = self._root(at)
            if root in merged:
                merge(merged[root], outcome)
            else:
                merged[root] = outcome
        for address, working in self._working.items():
            if working.dirty and working.state is not None:
                unit, body = merged[self._root(self._group_of[address])].unit, working.state.json_bytes()
                self._opened_states.keep(address, body, working.state)
                unit.states.append(
                    StateWrite(
                        address=address,
                        tenant=working.state.tenant,
                        expected=working.loaded_version,
                        version=working.version,
                        status=working.state.status,
                        body=body,
                    )
                )
        for outcome in merged.values():
            outcome.now_ms = self._now
            for write in outcome.unit.states:
                outcome.unit.guards.pop(write.address, None)
        return list(merged.values())

    # ── calls that are answered within the step that makes them ────────────────────────

    def calls(self) -> list[tuple[CallModel, int]]:
        """The model calls of the waves since this was last asked, each with the group it belongs to."""
        calls, self._calls = self._calls, []
        return calls

    def said(self, call: CallModel) -> Sequence[ThreadMessageRow]:
        """What this batch adds to the conversation that the call is about."""
        return self._said.get((call.run_id, call.thread_id), ())

    def answer(self, call: CallModel, group: int, envelope: Envelope) -> None:
        """The call has its result already: it comes in the next wave, and nobody begins the call."""
        self._outcomes[self._root(group)].activities.remove(call)
        self.wave.append(Item(envelope, None, group))

    # ── one message ────────────────────────────────────────────────────────────────────

    def _apply(self, item: Item, *, hand_over: bool) -> None:
        address = item.address
        working = self._working[address]
        if working.broken is not None:
            self._hold(item, working.broken)
            return
        self._join(item.group, address)
        facts = Facts(self._visible(item), self._application, self._incarnation)
        transition = self._transition(item, working, facts)
        outcome = self._outcomes[self._root(item.group)]
        if transition.kind == "moved":
            self._move(item, working, transition, facts, outcome, hand_over=hand_over)
            return
        if transition.kind == "passed":
            self._pass_on(item, transition, outcome)
            return
        self._answer(item, transition, outcome)
        if transition.kind == "refused" and (transition.keep or item.envelope.reply_to is None):
            failure = transition.failure or Failure(code=Code.MESSAGE_UNEXPECTED, message=transition.reason)
            kept = item.envelope.model_copy(update={"reply_to": None})  # asked again, it is the same letter
            outcome.unit.dead_letters.append(dead_letter(kept, failure.code, failure.message, self._now))

    def _hold(self, item: Item, failure: Failure) -> None:
        """Lose nothing that is for a state which only a newer program can read, or none until it is repaired.

        Whoever asked is told to ask again. Anything else comes again, as a timer does.
        """
        envelope, outcome = item.envelope, self._outcomes[self._root(item.group)]
        outcome.unreadable[item.address] = failure.message
        if envelope.reply_to is not None:
            run_id = envelope.message.run_id
            receipt = Receipt(answer="refused", final=False, run_id=run_id, failure=failure)
            outcome.replies.append((envelope.reply_to, receipt.model_dump_json(exclude_none=True)))
            return
        # A message that was delivered twice waits twice, as rows of their own.
        token = "" if item.delivery is None else str(item.delivery.token)
        held = envelope.model_copy(update={"again": derived_id("held", envelope.id, str(self._now), token)})
        outcome.unit.outbox.append(outbox_row(held, later(self._now, HELD_MS)))

    def _pass_on(self, item: Item, transition: Transition[Any], outcome: Outcome) -> None:
        """The message goes where it belongs, under its id, in the commit that takes it in.

        A copy of it goes as the very same row: what was delivered twice waits once, however long it has to wait.
        """
        again = derived_id("passed", item.envelope.id, item.envelope.again or "")
        for effect in transition.effects:
            if isinstance(effect, Send):
                envelope = item.envelope.model_copy(update={"again": again, "message": effect.message})
                claim_ms = self._claim_ms if effect.not_before is None else 0
                outcome.unit.outbox.append(outbox_row(envelope, effect.not_before, claim_ms=claim_ms))

    def _transition(self, item: Item, working: _Working, facts: Facts) -> Transition[Any]:
        machine = self._machines.get(item.address.machine)
        run_id = item.envelope.message.run_id
        if item.broken is not None:
            return _refused(run_id, item.broken)
        if machine is None:
            failure = Failure(code=Code.MESSAGE_UNEXPECTED, message=f"no {item.address.machine} machine is hosted here")
            return _refused(run_id, failure)
        try:
            transition: Transition[Any] = machine.transition(working.state, item.envelope.message, facts, self._now)
            return transition
        except Exception as error:  # noqa: BLE001  a bug in the rules: the message is parked with the reason, unapplied
            return _refused(run_id, _bug(error))

    def _move(
        self,
        item: Item,
        working: _Working,
        transition: Transition[Any],
        facts: Facts,
        outcome: Outcome,
        *,
        hand_over: bool,
    ) -> None:
        address, unit = item.address, outcome.unit
        if transition.state is None:
            raise InvariantError("a move has a state")
        upgraded, working.upgraded = working.state if working.upgraded else None, False
        working.state, working.status = transition.state, transition.state.status
        working.version += 1
        for key in facts.seen:
            owner = owner_of(key)
            unit.guards.setdefault(owner, self._version(owner))
        unit.before_ms = earlier(unit.before_ms, transition.before_ms)
        unit.journal.append(
            JournalEntry(
                address=address,
                version=working.version,
                message_id=item.envelope.id,
                message=(item.delivery and item.delivery.body) or item.envelope.encode(),
                facts=journalled(facts, upgraded),
                at_ms=self._now,
            )
        )
        self._answer(item, transition, outcome)
        position = 0
        for effect in transition.effects:
            if isinstance(effect, Send):
                self._send(item, working.version, position, effect, outcome, hand_over=hand_over)
                position += 1
            elif isinstance(effect, Record):
                unit.rows.append(effect.row)
                key = effect.row.fact_key()
                if self._rows.get(key) is None:
                    self._rows[key] = effect.row
                if isinstance(effect.row, ThreadMessageRow):
                    self._said.setdefault((address.run_id, address.key), []).append(effect.row)
            elif isinstance(effect, Invoke):
                outcome.activities.append(effect.activity)
                if isinstance(effect.activity, CallModel):
                    self._calls.append((effect.activity, item.group))
            elif isinstance(effect, Withdraw):
                withdraw(unit, named_envelope(effect.message))

    def _send(
        self, item: Item, version: int, position: int, effect: Send, outcome: Outcome, *, hand_over: bool
    ) -> None:
        if effect.is_named:
            outcome.unit.outbox.append(outbox_row(named_envelope(effect.message), effect.not_before))
            return
        named = message_id(item.address, version, position)
        envelope = enveloped(named, effect.message, cause=item.envelope.id)
        local = effect.message.to().machine in self._machines
        if hand_over and local and effect.not_before is None:
            self.wave.append(Item(envelope, None, item.group))
            return
        claim_ms = self._claim_ms if effect.not_before is None else 0
        outcome.unit.outbox.append(outbox_row(envelope, effect.not_before, claim_ms=claim_ms))

    @staticmethod
    def _answer(item: Item, transition: Transition[Any], outcome: Outcome) -> None:
        if item.envelope.reply_to is None:
            return
        for effect in transition.effects:
            if isinstance(effect, Reply):
                text = effect.text or effect.receipt.model_dump_json(exclude_none=True)
                outcome.replies.append((item.envelope.reply_to, text))

    # ── reading ────────────────────────────────────────────────────────────────────────

    def _reads(self, item: Item) -> Iterable[FactKey]:
        if item.reads is None:
            item.reads = ()
            machine = self._machines.get(item.address.machine)
            try:
                if machine is not None:
                    item.reads = tuple(machine.reads(item.envelope.message))
            except Exception as error:  # noqa: BLE001  as in a transition
                item.broken = _bug(error)
        return item.reads

    def _visible(self, item: Item) -> dict[FactKey, Row | None]:
        rows: dict[FactKey, Row | None] = {}
        for key in self._reads(item):
            owner = owner_of(key)
            working = self._working.get(owner)
            if working is not None and working.dirty:
                self._join(item.group, owner)  # it sees something uncommitted: both commit, or neither
            if key.table == STATE:
                rows[key] = self._state_row(owner)
            else:
                rows[key] = self._rows[key]
        return rows

    def _state_row(self, address: Address) -> StateRow | None:
        working = self._working[address]
        if working.status is None:
            return None
        tenant = working.state.tenant if working.state is not None else ""
        return StateRow.trusted(
            tenant=tenant,
            run_id=address.run_id,
            machine=address.machine,
            key=address.key,
            version=working.version,
            status=working.status,
        )

    def _version(self, owner: Address) -> int:
        return self._versions[owner] if owner in self._versions else self._working[owner].loaded_version

    # ── what belongs together ──────────────────────────────────────────────────────────

    def _root(self, group: int) -> int:
        while self._parents[group] != group:
            self._parents[group] = self._parents[self._parents[group]]
            group = self._parents[group]
        return group

    def _join(self, group: int, address: Address) -> None:
        root = self._root(group)
        other = self._group_of.get(address)
        if other is None:
            self._group_of[address] = root
            return
        other = self._root(other)
        if other != root:
            first, second = min(root, other), max(root, other)
            self._parents[second] = first
            merge(self._outcomes[first], self._outcomes[second])
            self._outcomes[second] = Outcome(Unit())


def _bug(error: Exception) -> Failure:
    code = error.code if isinstance(error, PlacetError) else Code.INVARIANT
    return Failure(code=code, message=f"{type(error).__name__}: {error}")


def _refused(run_id: str, failure: Failure) -> Transition[Any]:
    reply = Reply(Receipt(answer="refused", run_id=run_id, failure=failure))
    return Transition("refused", None, (reply,), failure=failure)
