"""The system under a seeded scheduler: the real machines, engine, worker and relay in a world that fails on purpose.

Where to read: `world` runs one seed; `scheduler` decides who runs next; `processes` spreads the machines over
services, merged hosts or one process; `ports` and `broker` stand between them and the store, the referee and each
other; `outside` is the world behind the tools; `workload`, `models`, `people` and `clients` are what is asked and who
decides; `tail` ends a world without faults. `ledger` and `row_ledger` check every commit, `checkers` every answer,
every rest and the end; `expected` computes how a predictable run must end.

A new fault is a name in `faults` and the one place that asks `hits`. A new invariant is a line in `invariants`, a
check that names it, and a mutant: a test fails until all three are there. A failing seed prints itself, its faults and
its last events; `make simulate SEED=…` repeats it exactly and names the faults that it needs.
"""
