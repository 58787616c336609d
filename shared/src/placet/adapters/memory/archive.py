"""Decides what the owner of facts kept in memory may let go of: as on SQL."""

from __future__ import annotations

from placet.adapters.memory.reading import MemoryReader
from placet.ids import Address
from placet.runtime.ports import JournalEntry


class MemoryArchive(MemoryReader):
    """runtime.checkpoints.Archive on the collections of a store in memory."""

    async def forget(self, run_id: str) -> bool:
        """As Archive."""
        self._check_open()
        gone = [address for address in self._states if address.run_id == run_id]
        for address in gone:
            del self._states[address]
        for kept in [address for address in self._journal if address.run_id == run_id]:
            del self._journal[kept]
        self._arrived = [entry for entry in self._arrived if entry.address.run_id != run_id]
        for thread in [thread for thread in self._threads if thread[0] == run_id]:
            del self._threads[thread]
        said = self._facts["thread_message"]
        for key in [key for key, row in said.items() if row.run_id == run_id]:
            del said[key]
        for outbox_id in [name for name, waiting in self._outbox.items() if waiting.row.run_id == run_id]:
            del self._outbox[outbox_id]
        return bool(gone)

    async def rebase(self, base: JournalEntry) -> int:
        """As Archive."""
        self._check_open()
        kept = self._journal.get(base.address, {})
        if base.version not in kept:
            return 0
        gone = [version for version in kept if version <= base.version]
        for version in gone:
            del kept[version]
        kept[base.version] = base
        self._arrived = [e for e in self._arrived if not _is_replaced(e, base.address, base.version)] + [base]
        return len(gone)


def _is_replaced(entry: JournalEntry, address: Address, version: int) -> bool:
    return entry.address == address and entry.version <= version
