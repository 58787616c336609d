"""Decides what a fork is told of the run it comes from: read from that run's journals, never from what it is today.

The rules ask for it as for any other row, and it is written to the fork's own journal with the message: a replay of the
fork needs nothing of the other run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placet.calls import ToolCall
from placet.errors import PlacetError
from placet.ids import Address
from placet.machine import Machine, Record, Send, State
from placet.messages import OPERATION, RUN, THREAD, OperationDone, TakeTurn, TurnTaken
from placet.rows import (
    CHECKPOINT,
    STATE,
    CheckpointRow,
    ConversationRow,
    FactKey,
    OperationRow,
    OrderedCall,
    PastTurn,
    Row,
    StateRow,
    ThreadMessageRow,
)
from placet.runtime.ports import Store
from placet.runtime.replay import Step, steps


class Origins:
    """The past of other runs, for the machines hosted in this process."""

    def __init__(self, store: Store, machines: Mapping[str, Machine[Any]]) -> None:
        self._store = store
        self._machines = machines

    async def load(self, keys: Sequence[FactKey]) -> dict[FactKey, Row | None]:
        """The rows of `rows.PAST` that the keys name; None for what there never was, or is no longer known.

        Raises RetryableError while the store is away.
        """
        found: dict[FactKey, Row | None] = {}
        for key in keys:
            found[key] = await (self._checkpoint(key) if key.table == CHECKPOINT else self._conversation(key))
        return found

    async def _checkpoint(self, key: FactKey) -> Row | None:
        at, version = Address(key.key, RUN, ""), int(key.sub)
        machine, last = self._machines.get(RUN), FactKey(STATE, key.key, RUN, "")
        stored = (await self._store.load([], [last])).rows[last]
        if machine is None or not isinstance(stored, StateRow) or not 1 <= version <= stored.version:
            return None
        entries, past = await self._store.read_journal(at), _Past()
        told: dict[str, Any] = {
            "tenant": stored.tenant, "run_id": key.run_id, "source": key.key, "version": version
        }  # fmt: skip
        try:
            for step in steps(machine, entries):
                past.take(step, is_past=step.version <= version)
        except PlacetError as error:
            return CheckpointRow(**told, body_text="", failure=error.failure())
        if past.state is None or past.version != version:
            return None  # pruned
        body_text = past.state.json_bytes().decode()
        turns, ordered = tuple(past.turns.values()), await self._ordered(key.key, past)
        return CheckpointRow(**told, body_text=body_text, turns=turns, ordered=ordered)

    async def _ordered(self, run_id: str, past: _Past) -> tuple[OrderedCall, ...]:
        """What has a record of its own by now was ordered: whether it happened is not for a fork to guess."""
        addresses = [Address(run_id, OPERATION, operation_id) for operation_id in past.operations]
        if not addresses:
            return ()
        states = (await self._store.load(addresses, [])).states
        return tuple(past.operations[address.key] for address in addresses if states[address] is not None)

    async def _conversation(self, key: FactKey) -> Row | None:
        turn, _, run_id = key.sub.partition("@")
        at, machine = Address(run_id, THREAD, key.key), self._machines.get(THREAD)
        if machine is None:
            return None
        entries = await self._store.read_journal(at)
        said, tenant, replied = 0, "", False
        try:
            for step in steps(machine, entries):
                if isinstance(step.message, TakeTurn) and step.message.turn > int(turn):
                    break
                said, tenant = max([said, *_numbers(step)]), step.state.tenant
                replied = getattr(step.state, "turn", 0) == int(turn)
        except PlacetError:
            return None
        if not said or not replied:
            return None  # pruned, or not said yet
        bodies = await self._store.read_thread(run_id, key.key, said)
        if len(bodies) != said:
            return None
        return ConversationRow(
            tenant=tenant, run_id=key.run_id, source=run_id, thread_id=key.key, turn=int(turn), bodies=tuple(bodies)
        )


class _Past:
    """What the steps of a run come to that its state does not say."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.version = 0
        self.turns: dict[str, PastTurn] = {}
        self.operations: dict[str, OrderedCall] = {}

    def take(self, step: Step, *, is_past: bool) -> None:
        """The next one; of those after the version only what they proposed."""
        for effect in step.effects:
            if isinstance(effect, Record) and isinstance(effect.row, OperationRow):
                row = effect.row
                self.operations[row.operation_id] = OrderedCall(
                    operation_id=row.operation_id, tool=row.tool, input_text=row.input_text
                )
        if is_past:
            self._take(step)

    def _take(self, step: Step) -> None:
        self.state, self.version = step.state, step.version
        message = step.message
        if isinstance(message, TurnTaken):
            self._taken(message.thread_id, message.calls)
        elif isinstance(message, OperationDone):
            self.operations.pop(message.operation_id, None)
        for effect in step.effects:
            if isinstance(effect, Send) and isinstance(effect.message, TakeTurn):
                asked = effect.message
                self.turns[asked.thread_id] = PastTurn(
                    thread_id=asked.thread_id,
                    turn=asked.turn,
                    append=asked.append,
                    forked_from=asked.forked_from,
                )

    def _taken(self, thread_id: str, calls: tuple[ToolCall, ...]) -> None:
        asked = self.turns.pop(thread_id, None)
        if asked is not None and calls:
            self.turns[thread_id] = asked.model_copy(update={"append": (), "calls": calls})


def _numbers(step: Step) -> list[int]:
    """Of what the step adds to a conversation."""
    rows = [effect.row for effect in step.effects if isinstance(effect, Record)]
    return [row.n for row in rows if isinstance(row, ThreadMessageRow)]
