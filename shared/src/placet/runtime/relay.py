"""Decides what is published when: outbox rows that are due, which is also every timer, retry, lease and deadline.

A row stays until its receiver's commit deletes it, so that a broker that loses what it has confirmed loses nothing
(cases C13, F57). One that is still there when its claim lapses is published again, ever more rarely: it may only wait
in a long queue. What is due at once is published by whoever commits it (`Eager`); the relay does so where that failed.

A row that nobody can read is parked with its reason, as a dead letter, so that it holds up no other row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from placet.errors import Code, ContractError
from placet.ids import derived_id
from placet.instants import Instant
from placet.messages import decode_envelope
from placet.runtime.ports import DeadLetter, Fate, OutboxRow, Outlet, Store, Unit
from placet.topology import EVENTS

log = logging.getLogger("placet.relay")

RELAY_MAX = 512
"""Rows claimed at a time."""
CLAIM_MS = 20_000
"""How long a claimed row stays away from other relays: longer than any publish, shorter than anybody's patience."""
DEFER_MS_MAX = 120_000
"""The longest time between two publications of a row that is confirmed and not consumed."""
RECALL_MS = 2_000
"""How soon everything that is due is published again by a process that has lost its broker and has it back."""
IDLE_MS = 15_000
"""Look again at least this often: another process may have died with timers that only it knew of."""


class Relay:
    """Publishes what is due. Two relays are harmless; a row published twice has one message id."""

    def __init__(self, store: Store, outlet: Outlet) -> None:
        self._store = store
        self._outlet = outlet
        self._connections = outlet.connections
        self.lag_ms = 0
        """How long the first unclaimed row had been due when this relay looked last: what it does not keep up with."""

    async def turn(self) -> int:
        """Publish what is due now. Returns how many milliseconds may pass before the next row is due (0: more now)."""
        await self._recall()
        rows = await self._store.claim_due(RELAY_MAX, CLAIM_MS)
        if rows:
            await told_confirmed(self._store, rows, await self._published(rows))
        now, due = await self._store.next_due_ms()
        self.lag_ms = 0 if due is None else max(0, now - due)
        if len(rows) == RELAY_MAX:
            return 0
        return IDLE_MS if due is None else max(0, min(IDLE_MS, due - now))

    async def _recall(self) -> None:
        """The broker was away, and may have come back empty: what it had confirmed does not wait for its receiver.

        Not where it is reached for the first time: new processes beside a long queue would publish all of it again.
        """
        connections = self._outlet.connections
        if connections != self._connections:
            if connections > 1:
                await self._store.recall(RECALL_MS)
            self._connections = connections

    async def _published(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """What the outlet confirms of the rows that can be read."""
        readable = await self._readable(rows)
        return await self._outlet.publish(readable) if readable else ()

    async def _readable(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """The rows that are messages; all others are parked, each by itself, but for those of a newer version: a
        process of that version publishes them."""
        readable: list[OutboxRow] = []
        damaged: list[tuple[OutboxRow, ContractError]] = []
        for row in rows:
            error = _defect(row)
            if error is None:
                readable.append(row)
            elif error.code is Code.VERSION_UNSUPPORTED:
                log.info("outbox.row_of_a_newer_version", extra={"row": row.id})
            else:
                damaged.append((row, error))
        if damaged:
            await self._park(damaged)
        return readable

    async def _park(self, damaged: Sequence[tuple[OutboxRow, ContractError]]) -> None:
        now, _ = await self._store.next_due_ms()
        parking = [_parked(row, error, now) for row, error in damaged]
        for unit, result in zip(parking, await self._store.commit(parking), strict=True):
            [letter] = unit.dead_letters
            told = {"row": unit.consumed[0], "destination": letter.destination, "code": letter.code}
            if result.fate is Fate.COMMITTED:
                log.error("outbox.row_parked", extra={**told, "reason": letter.reason})
            else:  # it stays a row, and is tried again when its claim has lapsed
                log.error("outbox.row_not_parked", extra={**told, "constraint": result.constraint})


async def told_confirmed(store: Store, rows: Sequence[OutboxRow], confirmed: Collection[str]) -> None:
    """Events have no receiver of ours; everything else is its receiver's to delete."""
    known = set(confirmed)
    events = [row.id for row in rows if row.id in known and row.destination == EVENTS]
    if events:
        await store.discard(events)
    others = [row.id for row in rows if row.id in known and row.destination != EVENTS]
    if others:
        await store.defer(others, DEFER_MS_MAX)


def _defect(row: OutboxRow) -> ContractError | None:
    """Why a row is no message that this version can read. Events for the outside are bytes of another kind."""
    if row.destination != EVENTS:
        try:
            decode_envelope(row.body)
        except ContractError as error:
            return error
    return None


def _parked(row: OutboxRow, error: ContractError, now: Instant) -> Unit:
    letter = DeadLetter(
        id=derived_id("dead", row.id),
        run_id=row.run_id,
        destination=row.destination,
        code=error.code,
        reason=error.message,
        body=row.body,
        at_ms=now,
    )
    return Unit(dead_letters=[letter], consumed=[row.id])
