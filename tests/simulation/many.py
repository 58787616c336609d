"""Decides how many seeds are run at once: in blocks, by as many processes as there are cores, into one summary.

Nothing is written. Ctrl-C ends the processes and shows what was found until then.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_context

from tests.simulation.differential import differential
from tests.simulation.world import Mode, Report, simulate

BLOCK = 25
"""Seeds that a process runs before it reports."""
SHOWN_MAX = 3
"""Failing seeds of which the last events are kept."""
Judge = Callable[[int], Report]


@dataclass(slots=True)
class Tally:
    """What many seeds came to."""

    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    sometimes: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """The first violation of each seed that failed."""
    shown: list[str] = field(default_factory=list)
    """Some of them, in full."""

    def take(self, report: Report) -> None:
        """Count one seed."""
        self.seeds += 1
        self.faults += report.faults
        self.sometimes += report.sometimes
        self.runs += report.runs
        if report.failed:
            self.failed[report.seed] = str(report.violations[0])
            if len(self.shown) < SHOWN_MAX:
                self.shown.append(str(report))

    def add(self, other: Tally) -> None:
        """Count what another process has counted."""
        self.seeds += other.seeds
        self.faults += other.faults
        self.sometimes += other.sometimes
        self.runs += other.runs
        self.failed |= other.failed
        self.shown += other.shown[: SHOWN_MAX - len(self.shown)]


def judge_of(mode: Mode | None, *, against: bool) -> Judge:
    """How one seed is judged: by itself, or against the same seed without a referee."""
    return partial(differential if against else simulate, mode=mode)


def run_many(base: int, seeds: int, judge: Judge, processes: int | None = None) -> tuple[Tally, bool]:
    """All seeds from `base`, with a line that says how far it is; and whether it was interrupted."""
    tally, began_s = Tally(), time.monotonic()
    blocks = iter(range(base, base + seeds, BLOCK))
    count = processes or os.cpu_count() or 1
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_prepare) as pool:
        _begun(pool)
        try:
            for found in _completed(pool, blocks, base + seeds, judge, 2 * count):
                tally.add(found)
                rate = tally.seeds / (time.monotonic() - began_s) * 60
                print(
                    f"\r{tally.seeds:,} seeds · {rate:,.0f} a minute · {len(tally.failed)} failed ", end="", flush=True
                )
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((pool._processes or {}).values()):  # they ignore the key themselves
                process.terminate()
            print("\ninterrupted", flush=True)
            return tally, True
    print(flush=True)
    return tally, False


def _begun(pool: ProcessPoolExecutor) -> None:
    """Start the processes deaf to the key that is for their parent, from the first instant on."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pool.submit(int).result()
    finally:
        signal.signal(signal.SIGINT, heard)


def _completed(pool: ProcessPoolExecutor, blocks: Iterator[int], end: int, judge: Judge, ahead: int) -> Iterator[Tally]:
    """The tallies of the blocks as they come, with no more than `ahead` of them under way."""
    under_way: set[Future[Tally]] = set()
    while True:
        for first in islice(blocks, ahead - len(under_way)):
            under_way.add(pool.submit(block, first, min(first + BLOCK, end), judge))
        if not under_way:
            return
        done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def block(first: int, end: int, judge: Judge) -> Tally:
    """The seeds of one block."""
    tally = Tally()
    for seed in range(first, end):
        tally.take(judge(seed))
    gc.collect()
    return tally


def _prepare() -> None:
    """A process of the pool: a world is small and short, so what it leaves behind is collected between blocks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.dont_write_bytecode = True
    gc.freeze()
    gc.disable()
