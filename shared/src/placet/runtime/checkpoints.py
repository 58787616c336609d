"""Decides what a checkpoint is: a state at a version, kept as the last state and the journal that leads to it.

A checkpoint is named by its address (run, machine, key) and its version, which counts from 1 without gaps; its parent
is the version before. Every step of the engine is one. The last is kept as such; an older one is replayed from the
journal, so that keeping them costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from placet.compatibility import read_state
from placet.errors import Code, ContractError, PlacetError, TerminalError
from placet.ids import Address
from placet.machine import Machine, State
from placet.runtime.ports import Fate, JournalEntry, StateWrite, Store, StoredState, Unit
from placet.runtime.replay import base_entry, corrupt, is_pruned, replay

Machines = Mapping[str, Machine[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state as of a version."""

    address: Address
    version: int
    state: State

    @property
    def id(self) -> str:
        """`machine:run_id/key@version`, the same for ever. Two runs, or two machines of one, share none."""
        return f"{self.address.text()}@{self.version}"

    @property
    def parent(self) -> int | None:
        """The version that this one followed; None of the first."""
        return self.version - 1 if self.version > 1 else None


class Archive(Protocol):
    """What only the owner of the facts may do with them: let go of what is over. No service has these rights.

    What people decided and what was done on it (requests, votes, outcomes, operations, the audit) is evidence, and
    stays whatever is let go here. Raises as `Store.commit` does.
    """

    async def forget(self, run_id: str) -> bool:
        """Everything a run could be continued from is gone at once: its states, journals and conversations, and what
        is on its way for it. Whether there was a state."""

    async def rebase(self, base: JournalEntry) -> int:
        """One base (replay.base_entry) takes the place of all entries of its state up to its version, at once. How many
        it replaced; 0, and nothing is done, where there is no entry of just that version."""


class CheckpointStore(Protocol):
    """The checkpoints of all runs. Every method raises RetryableError(STORE_UNAVAILABLE) while they are away,
    ContractError(CHECKPOINT_VERSION_UNSUPPORTED) for what only a newer program can read and TerminalError
    CHECKPOINT_CORRUPT for what nobody can: never None, and nothing is written over it."""

    async def save(self, address: Address, state: State, *, parent: int | None) -> int:
        """Make `state` the next checkpoint after version `parent` (None: the first); its version, once it is durable.

        Raises TerminalError(CHECKPOINT_CONFLICT) when `parent` is not the latest (any more), ContractError
        SUBMISSION_INVALID for a state of another run, tenant or machine. Nothing is written then. A save that may or
        may not have happened (RetryableError OUTCOME_UNKNOWN) is repeated, or the latest is looked at.
        """

    async def load(self, address: Address, version: int) -> Checkpoint | None:
        """That checkpoint; None where there never was one, or it was pruned."""

    async def latest(self, address: Address) -> Checkpoint | None:
        """The one with the highest version, whatever any clock says."""

    async def delete(self, run_id: str) -> bool:
        """All checkpoints of the run are gone, of all its machines. Whether there were any. What people decided and
        what was done stays: it is evidence. For the owner of the store only."""

    async def prune(self, address: Address, before: int) -> int:
        """Checkpoints older than version `before` need not be loaded any more; how many entries of the journal are
        gone. All from `before` on load as they did. For the owner of the store only."""


class StoredCheckpoints:
    """CheckpointStore on any store. `archive`: what the owner may do; without it nothing is deleted or pruned."""

    def __init__(self, store: Store, machines: Machines, archive: Archive | None = None) -> None:
        self._store = store
        self._machines = machines
        self._archive = archive

    async def save(self, address: Address, state: State, *, parent: int | None) -> int:
        """As CheckpointStore."""
        machine = self._machine(address)
        if state.run_id != address.run_id or type(state) is not machine.state_type:
            what = f"a {type(state).__name__} of run {state.run_id!r} is no checkpoint of {address.text()}"
            raise ContractError(Code.SUBMISSION_INVALID, what)
        stored, now_ms = await self._stored(address)
        if stored is not None and stored.version == parent:
            before = _read(machine, address, stored)
            if before.tenant != state.tenant:
                raise ContractError(Code.SUBMISSION_INVALID, f"{address.text()} is another tenant's")
        version = (parent or 0) + 1
        body = state.json_bytes()
        write = StateWrite(address, state.tenant, version - 1, version, state.status, body)
        [result] = await self._store.commit(
            [Unit(states=[write], journal=[base_entry(address, version, state, now_ms, "saved")])]
        )
        if result.fate is Fate.LOST:
            raise _conflict(address, parent)
        if result.fate is not Fate.COMMITTED:
            raise TerminalError(
                Code.CHECKPOINT_CORRUPT, f"{address.text()} contradicts its journal: {result.constraint}"
            )
        return version

    async def load(self, address: Address, version: int) -> Checkpoint | None:
        """As CheckpointStore."""
        machine = self._machine(address)
        stored, _ = await self._stored(address)
        if stored is None or not 1 <= version <= stored.version:
            return None
        if version == stored.version:
            return Checkpoint(address, version, _read(machine, address, stored))
        entries = await self._store.read_journal(address)
        if entries and version < entries[0].version and is_pruned(entries[0]):
            return None
        return Checkpoint(address, version, _replayed(machine, address, entries, version))

    async def latest(self, address: Address) -> Checkpoint | None:
        """As CheckpointStore."""
        machine = self._machine(address)
        stored, _ = await self._stored(address)
        return None if stored is None else Checkpoint(address, stored.version, _read(machine, address, stored))

    async def delete(self, run_id: str) -> bool:
        """As CheckpointStore."""
        return await self._owner().forget(run_id)

    async def prune(self, address: Address, before: int) -> int:
        """As CheckpointStore. Nothing is pruned of a journal that does not lead to the state that is stored."""
        machine, archive = self._machine(address), self._owner()
        stored, _ = await self._stored(address)
        if stored is None or before <= 1:
            return 0
        entries = await self._store.read_journal(address)
        last = _replayed(machine, address, entries, stored.version)
        if last.json_bytes() != _read(machine, address, stored).json_bytes():
            raise corrupt(address, "replayed, it is not the state that is stored")
        horizon = min(before, stored.version)
        if horizon == entries[0].version:
            return 0
        base = _replayed(machine, address, entries, horizon)
        at_ms = next(entry.at_ms for entry in entries if entry.version == horizon)
        return await archive.rebase(base_entry(address, horizon, base, at_ms, "pruned")) - 1

    # ── parts ──────────────────────────────────────────────────────────────────────────

    def _machine(self, address: Address) -> Machine[Any]:
        machine = self._machines.get(address.machine)
        if machine is None:
            raise ContractError(Code.MESSAGE_UNEXPECTED, f"no {address.machine} machine is known here")
        return machine

    def _owner(self) -> Archive:
        if self._archive is None:
            raise ContractError(Code.MESSAGE_UNEXPECTED, "only the owner of the store deletes: this is a service")
        return self._archive

    async def _stored(self, address: Address) -> tuple[StoredState | None, Any]:
        loaded = await self._store.load([address], [])
        return loaded.states[address], loaded.now_ms


def _read(machine: Machine[Any], address: Address, stored: StoredState) -> State:
    try:
        state: State = read_state(machine.state_type, stored.body).state
    except PlacetError as error:
        told = f"the state {address.text()} at version {stored.version} cannot be read: {error.message}"
        raise type(error)(error.code, told) from error
    if state.run_id != address.run_id or state.status != stored.status:
        told = f"the state {address.text()} at version {stored.version} says it is another"
        raise TerminalError(Code.CHECKPOINT_CORRUPT, told)
    return state


def _replayed(machine: Machine[Any], address: Address, entries: Any, version: int) -> State:
    state = replay(machine, entries, upto=version)
    last = max((entry.version for entry in entries if entry.version <= version), default=0)
    if state is None or last != version:
        raise corrupt(address, f"entry {last + 1} is missing")
    return state


def _conflict(address: Address, parent: int | None) -> TerminalError:
    after = "a first checkpoint" if parent is None else f"a checkpoint after version {parent}"
    return TerminalError(Code.CHECKPOINT_CONFLICT, f"{address.text()} is not where {after} would follow: load it again")
