"""Decides which faults a failing seed needs: those that cannot be left out one by one."""

from __future__ import annotations

from tests.simulation.world import Mode, chosen_faults, simulate


def shrunk(seed: int, invariant: str, mode: Mode | None = None) -> set[str]:
    """The faults that are enough to violate the invariant under this seed.

    Faults draw from streams of their own, so that leaving one out changes little else.
    """
    needed = set(chosen_faults(seed))
    for name in sorted(needed):
        report = simulate(seed, without=set(chosen_faults(seed)) - needed | {name}, mode=mode)
        if any(violation.invariant == invariant for violation in report.violations):
            needed.discard(name)
    return needed
