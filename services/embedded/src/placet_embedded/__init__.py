"""The whole system in one process: every machine, the topology, and SQLite or memory beneath."""
