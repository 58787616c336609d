"""The system under a seeded scheduler: the real machines, engine, worker and relay in a world that fails on purpose."""
