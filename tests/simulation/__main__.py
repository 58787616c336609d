"""Decides how the simulator is used by hand: many seeds with a progress line, or one seed in full."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.faults import FAULTS
from tests.simulation.many import Tally, judge_of, run_many
from tests.simulation.rare import RARE, RARE_AGAINST
from tests.simulation.shrinking import shrunk
from tests.simulation.world import MODES, Mode, Report

LONG = 10_000
"""Seeds after which every fault and every interesting branch must have been seen."""
INTERRUPTED = 130


def main() -> int:
    """Simulate; 0 when every invariant held."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its events")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds")
    parser.add_argument("--base", type=int, help="the first of them; from the time if it is not given")
    parser.add_argument("--mode", choices=MODES, help="liveness: faults end, all must; safety: they never end; or both")
    parser.add_argument("--differential", action="store_true", help="each seed with and without the referee")
    parser.add_argument("--processes", type=int, help="how many; by default one for each core")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, given.mode, against=given.differential)
    base = given.base if given.base is not None else time.time_ns() % 1_000_000_007
    print(f"seeds {base} to {base + given.seeds - 1}", flush=True)
    tally, interrupted = run_many(base, given.seeds, judge_of(given.mode, against=given.differential), given.processes)
    failed = _summed_up(tally, against=given.differential)
    return INTERRUPTED if interrupted else int(failed)


def _one(seed: int, mode: Mode | None, *, against: bool) -> int:
    report = judge_of(mode, against=against)(seed)
    print("\n".join(map(str, report.events)))
    print(report)
    if report.failed and not against:
        _shrink(report, mode)
    print(f"digest {report.digest}")
    return int(report.failed)


def _shrink(report: Report, mode: Mode | None) -> None:
    needed = shrunk(report.seed, report.violations[0].invariant, mode)
    print(f"these faults are enough: {' '.join(sorted(needed)) or 'none'}")


def _summed_up(tally: Tally, *, against: bool) -> bool:
    """Print what was found; whether something must be done about it."""
    for text in tally.shown:
        print(f"\n{text}")
    print()
    _table("runs ended as", tally.runs)
    _table("faults injected", tally.faults)
    _table("sometimes", tally.sometimes)
    rare = (*RARE, *RARE_AGAINST) if against else RARE
    unseen = [name for name in FAULTS if not tally.faults[name]] + [name for name in rare if not tally.sometimes[name]]
    if tally.seeds >= LONG and unseen:
        print(f"never seen in {tally.seeds:,} seeds, which proves nothing about them: {', '.join(unseen)}")
    for seed, text in list(tally.failed.items())[:20]:
        print(f"failed: make simulate SEED={seed}  {text[:100]}")
    return bool(tally.failed) or (tally.seeds >= LONG and bool(unseen))


def _table(title: str, counts: Counter[str]) -> None:
    print(title)
    for name, count in counts.most_common():
        print(f"  {count:>9,}  {name}")


if __name__ == "__main__":
    sys.exit(main())
