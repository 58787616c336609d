"""Decides how the simulator is used by hand: many seeds with a progress line, or one seed in full."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.faults import FAULTS
from tests.simulation.shrinking import shrunk
from tests.simulation.world import Report, simulate

FAILURES_SHOWN = 3
RARE = (
    "a call came too late to begin",
    "a claim was held by another",
    "a unit lost a race",
    "a probe found the effect",
    "a probe found nothing",
    "a seal refused a late request",
    "a request came too late to arrive",
    "an idempotent tool saw its key again",
    "a run ended as computed",
    "a timer came early, and came again",
    "a forged word moved an operation",
    "a person was asked whether it happened",
    "a late result was taken",
    "a question took another's place",
    "an edited call was asked about",
    "decision: closed",
    "decision: conflict",
    "decision: expired",
    "decision: stale",
    "revoke: accepted",
    "revoke: refused",
)
"""What a long simulation must have seen: a branch that nothing reaches is not tested."""
LONG = 2_000


def main() -> int:
    """Simulate; 0 when every invariant held."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its events")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds")
    parser.add_argument("--base", type=int, help="the first of them; from the time if it is not given")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed)
    return _many(given.base if given.base is not None else time.time_ns() % 1_000_000_007, given.seeds)


def _one(seed: int) -> int:
    report = simulate(seed)
    print("\n".join(map(str, report.events)))
    _explain(report)
    print(f"digest {report.digest}")
    return int(report.failed)


def _explain(report: Report) -> None:
    print(report)
    if report.failed:
        needed = shrunk(report.seed, report.violations[0].invariant)
        print(f"these faults are enough: {' '.join(sorted(needed)) or 'none'}")
        print(f"again: make simulate SEED={report.seed}")


def _many(base: int, seeds: int) -> int:
    print(f"seeds {base} to {base + seeds - 1}", flush=True)
    began_s = shown_s = time.monotonic()
    faults: Counter[str] = Counter()
    sometimes: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    failed: list[int] = []
    for done, seed in enumerate(range(base, base + seeds), start=1):
        report = simulate(seed)
        faults += report.faults
        sometimes += report.sometimes
        runs += report.runs
        if report.failed:
            failed.append(seed)
            if len(failed) <= FAILURES_SHOWN:
                print()
                _explain(report)
        now_s = time.monotonic()
        if now_s - shown_s > 1 or done == seeds:
            shown_s = now_s
            rate = done / (now_s - began_s) * 60
            print(f"\r{done:,} seeds · {rate:,.0f} a minute · {len(failed)} failed", end="", flush=True)
    print("\n")
    _table("runs ended as", runs)
    _table("faults injected", faults)
    _table("sometimes", sometimes)
    unseen = [name for name in FAULTS if not faults[name]] + [name for name in RARE if not sometimes[name]]
    if seeds >= LONG and unseen:
        print(f"never seen in {seeds:,} seeds, which proves nothing about them: {', '.join(unseen)}")
        return 1
    if failed:
        print(f"failed: {' '.join(map(str, failed[:20]))}")
    return int(bool(failed))


def _table(title: str, counts: Counter[str]) -> None:
    print(title)
    for name, count in counts.most_common():
        print(f"  {count:>9,}  {name}")


if __name__ == "__main__":
    sys.exit(main())
