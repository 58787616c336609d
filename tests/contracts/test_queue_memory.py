"""The queue in memory keeps every promise of a queue."""

from __future__ import annotations

from placet.adapters.memory_queue import MemoryQueue
from tests.contracts.queue_contract import QueueContract


class TestMemoryQueue(QueueContract):
    adapter = "memory"

    async def ends(self):
        queue = MemoryQueue()
        return queue, queue
