"""Decides what a batch of deliveries comes to: load, fold, commit, and what to do with whoever lost a race."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from placet import limits
from placet.activities import Activity
from placet.errors import Code, ContractError, RetryableError
from placet.events import events_of
from placet.facts import Application
from placet.ids import Address
from placet.instants import Instant
from placet.rows import PAST, FactKey, Row
from placet.runtime.conversing import Conversing
from placet.runtime.fold import Fold, Machines
from placet.runtime.gathering import Outcome
from placet.runtime.opened import OpenedStates
from placet.runtime.origins import Origins
from placet.runtime.parcels import dead_letter
from placet.runtime.ports import AtHand, CommitResult, Delivery, Fate, Loaded, OutboxRow, Partials, Store, Unit
from placet.topology import EVENTS

log = logging.getLogger("placet.engine")

_WAITS_ALREADY = "uq_outbox_id"
"""What is violated by a message that is in the outbox already, byte for byte."""


@dataclass(slots=True)
class Settlement:
    """What a batch came to. Everything here happened durably before anybody is told."""

    done: list[Delivery] = field(default_factory=list)
    back: list[Delivery] = field(default_factory=list)
    """Lost too many races in a row, or stuck: to come again."""
    stuck: list[str] = field(default_factory=list)
    """Messages that could be neither applied nor parked."""
    activities: list[Activity] = field(default_factory=list)
    replies: list[tuple[str, str]] = field(default_factory=list)
    changed: dict[str, set[str]] = field(default_factory=dict)
    """What now stands how, as `machine:status`, by run."""
    units: list[Unit] = field(default_factory=list)
    """What was committed."""
    unreadable: dict[Address, str] = field(default_factory=dict)
    """States that could not be read, and why: what was for them waits."""
    outbox_rows: int = 0
    outgoing: list[OutboxRow] = field(default_factory=list)
    """Due at once and claimed: whoever has called for this publishes them."""
    timer_ms: int | None = None
    """In how many milliseconds the first row is due that is not due at once, by the store's clock."""
    dead_letters: int = 0
    conflicts: int = 0


class Engine:
    """Runs all machines hosted in this process, in batches."""

    def __init__(
        self,
        machines: Machines,
        application: Application,
        store: Store,
        *,
        hand_over: bool = True,
        events_from: str | None = None,
        claim_ms: int = 0,
        at_hand: AtHand | None = None,
        partials: Partials | None = None,
    ) -> None:
        """`at_hand`: models whose turn is one step; `partials`: who is told of it.

        `events_from`: the source that events name; without one, none are sent to the outside. `claim_ms`: what is due
        at once is claimed for so long by whoever calls `process`, who publishes it; 0: relays do.

        Raises ContractError(APPROVAL_ATOMIC_STORE_REQUIRED) for a store on which no approval could be relied."""
        if not getattr(store, "compares_and_sets", False) or not getattr(store, "is_verbatim", False):
            told = f"{type(store).__name__} cannot hold approvals: it must compare and set, and keep every byte"
            raise ContractError(Code.APPROVAL_ATOMIC_STORE_REQUIRED, told)
        self.machines = machines
        self._application = application
        self._store = store
        self._hand_over = hand_over
        self._events_from = events_from
        self._claim_ms = claim_ms
        self._opened = OpenedStates()
        self._origins = Origins(store, machines)
        self._conversing = None if at_hand is None else Conversing(at_hand, store, partials)

    def hand_over_no_more(self) -> None:
        """From now on everything goes by the outbox, also what is for a machine hosted here: this process is ending."""
        self._hand_over = False

    async def process(self, deliveries: Sequence[Delivery]) -> Settlement:
        """Load, fold and commit a batch.

        A unit that lost a race is loaded and folded again, three times at most, without its neighbours. One whose
        facts violate a constraint is tried message by message; a message that does so alone is parked. One that
        cannot even be parked is given back, and where nothing else was done, an error is raised: so the worker rests
        before it tries again, and the health of its loop says why.
        Raises RetryableError when the store is away or the commit's outcome is unknown: deliver everything again.
        If a part was committed before, that part is settled and the rest is given back: its calls to the world would
        otherwise not begin, and be looked for only when their leases end.
        """
        settlement = Settlement()
        try:
            await self._process(deliveries, settlement)
        except RetryableError as error:
            if not settlement.done:
                raise
            about = {"code": error.code.value, "what": error.message, "settled": len(settlement.done)}
            log.warning("batch.cut_short", extra=about)
            settled = {id(delivery) for delivery in settlement.done}
            settlement.back = [delivery for delivery in deliveries if id(delivery) not in settled]
        if settlement.stuck and not settlement.done:
            told = f"can be neither applied nor parked: {', '.join(settlement.stuck)}"
            raise RetryableError(Code.INVARIANT, told)
        return settlement

    async def _process(self, deliveries: Sequence[Delivery], settlement: Settlement) -> None:
        waiting = list(deliveries)
        alone: list[Delivery] = []
        for _ in range(limits.CONFLICT_TRIES_MAX):
            if not waiting:
                break
            lost: list[Delivery] = []
            for outcome, result in await self._attempt(waiting):
                if result.fate is Fate.COMMITTED:
                    _settle(settlement, outcome)
                elif result.fate is Fate.LOST:
                    lost += outcome.deliveries
                else:
                    alone += outcome.deliveries
            settlement.conflicts += len(lost)
            waiting = lost
        settlement.back += waiting
        for delivery in alone:
            await self._one_by_one(delivery, settlement)

    async def _attempt(self, deliveries: Sequence[Delivery]) -> list[tuple[Outcome, CommitResult]]:
        fold = Fold(self.machines, self._application, deliveries, claim_ms=self._claim_ms, opened=self._opened)
        for wave in range(limits.HANDOVERS_MAX):
            addresses, keys = fold.wanted()
            if addresses or keys:
                fold.take(await self._load(addresses, keys))
            fold.run_wave(hand_over=self._hand_over and wave < limits.HANDOVERS_MAX - 1)
            if self._conversing is not None and self._hand_over and wave < limits.HANDOVERS_MAX - 1:
                await self._conversing.answer(fold)
            if not fold.wave:
                break
        outcomes = fold.outcomes()
        if self._events_from is not None:
            for outcome in outcomes:
                outcome.unit.outbox += _events(outcome.unit.rows, self._events_from, self._claim_ms)
        writing = [outcome for outcome in outcomes if _writes(outcome.unit)]
        results = await self._store.commit([outcome.unit for outcome in writing]) if writing else []
        fates = dict(zip(map(id, writing), results, strict=True))
        found = [(outcome, fates.get(id(outcome), CommitResult(Fate.COMMITTED))) for outcome in outcomes]
        if self._conversing is not None:
            for outcome, result in found:
                if result.fate is Fate.COMMITTED:
                    self._conversing.committed(outcome.unit)
        return found

    async def _load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """States and rows; what a fork asks of another run's past is no row of a table."""
        past = [key for key in keys if key.table in PAST]
        if not past:
            return await self._store.load(addresses, keys)
        loaded = await self._store.load(addresses, [key for key in keys if key.table not in PAST])
        return replace(loaded, rows={**loaded.rows, **await self._origins.load(past)})

    async def _one_by_one(self, delivery: Delivery, settlement: Settlement) -> None:
        for outcome, result in await self._attempt([delivery]):
            if result.fate is Fate.COMMITTED:
                _settle(settlement, outcome)
            elif result.fate is Fate.LOST:
                settlement.back.append(delivery)
            elif result.constraint == _WAITS_ALREADY and _only_sends(outcome.unit):
                # Another process has put a copy of it off at the same instant, and that one waits.
                settlement.done.append(delivery)
            else:
                await self._park(delivery, f"the facts violate {result.constraint}", outcome, settlement)

    async def _park(self, delivery: Delivery, reason: str, outcome: Outcome, settlement: Settlement) -> None:
        told = [entry.at_ms for entry in outcome.unit.journal] + [letter.at_ms for letter in outcome.unit.dead_letters]
        now = max(told, default=Instant(0))
        unit = Unit(dead_letters=[dead_letter(delivery.envelope, Code.INVARIANT, reason, now)])
        if delivery.outbox_id is not None:
            unit.consumed.append(delivery.outbox_id)
        [result] = await self._store.commit([unit])
        if result.fate is not Fate.COMMITTED:
            about = {"envelope": delivery.envelope.id, "type": delivery.envelope.message.type, "reason": reason}
            log.error("message.not_parked", extra={**about, "fate": result.fate, "constraint": result.constraint})
            settlement.back.append(delivery)
            settlement.stuck.append(delivery.envelope.id)
            return
        settlement.done.append(delivery)
        settlement.dead_letters += 1


def _events(rows: Iterable[Row], source: str, claim_ms: int) -> list[OutboxRow]:
    """Committed with the rows they tell of, and published like everything else."""
    return [
        OutboxRow(event.id, EVENTS, event.run_id, event.name, 0, event.body, claim_ms)
        for event in events_of(rows, source)
    ]


def _writes(unit: Unit) -> bool:
    return bool(unit.states or unit.rows or unit.journal or unit.outbox or unit.dead_letters or unit.consumed)


def _only_sends(unit: Unit) -> bool:
    return not (unit.states or unit.rows or unit.journal or unit.dead_letters)


def _settle(settlement: Settlement, outcome: Outcome) -> None:
    settlement.done += outcome.deliveries
    settlement.activities += outcome.activities
    settlement.replies += outcome.replies
    for write in outcome.unit.states:
        words = settlement.changed.setdefault(write.address.run_id, set())
        words.add(f"{write.address.machine}:{write.status}")
    settlement.unreadable |= outcome.unreadable
    settlement.units.append(outcome.unit)
    settlement.outbox_rows += len(outcome.unit.outbox)
    for row in outcome.unit.outbox:
        if row.claim_ms:
            settlement.outgoing.append(row)
        else:
            in_ms = max(0, row.not_before_ms - outcome.now_ms)
            settlement.timer_ms = in_ms if settlement.timer_ms is None else min(in_ms, settlement.timer_ms)
    settlement.dead_letters += len(outcome.unit.dead_letters)
