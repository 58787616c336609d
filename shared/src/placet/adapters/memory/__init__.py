"""Facts in memory: the same promises as a database, without a disk, a thread or a wait.

No method suspends, so that a simulator decides alone who runs when. What is kept is immutable: frozen rows, texts and
bytes; what is handed out is a fresh collection of them.
"""

from placet.adapters.memory.store import MemoryStore

__all__ = ["MemoryStore"]
