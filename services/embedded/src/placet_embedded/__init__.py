"""The whole system in one process: every machine, one worker, one relay, and one SQLite file beneath."""
