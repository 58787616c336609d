"""The system under a seeded scheduler: the real machines, engine, worker and relay in a world that fails on purpose.

Where to read: `world` runs one seed; `scheduler` decides who runs next; `processes` spreads the machines over
services, merged hosts or one process; `ports` and `broker` stand between them and the store, the referee and each
other; `outside` is the world behind the tools; `workload`, `models`, `people`, `instructing` and `clients` are what is
asked, who decides, instructs, forks and freezes; `tail` ends a world without faults. `ledger` and `row_ledger` check
every commit, `checkers` every answer, every rest and the end; `expected` computes how a predictable run must end;
`canaries` are the secrets that must occur nowhere; `differential` holds each seed against the same without a referee.

Two modes. In `liveness` faults end, and then everything must come to its end; in `safety` they never do, and what was
written must be true all the same. One seed in five is the latter, unless a mode is given. One in four is predictable.

A new fault is a name in `faults` and the one place that asks `hits`. A new invariant is a line in `invariants`, a
check that names it, and a mutant: a test fails until all three are there. A branch that a long run must have seen is a
name in `rare`. A failing seed prints itself and its last events; `make simulate SEED=…` repeats it exactly and names
the faults that it needs; then it goes into `seeds.txt`, with what it taught.

    make simulate SEEDS=4000                          all cores; ARGS="--base N" for the same seeds again
    make simulate SEEDS=500 ARGS=--differential       with and without the referee, and with every lie of it
    make simulate SEEDS=500 ARGS="--mode safety"      faults that never end
"""
