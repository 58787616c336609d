"""Decides that the referee decides nothing: each seed is run without it, with an honest one, and with every way to lie.

All must hold every invariant. A predictable run ends the same in all of them. And a referee that answers at once and
has nobody to refuse changes no step of any process: then every journal is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.faults import FAULTS
from tests.simulation.history import Violation
from tests.simulation.world import Report, simulate

WITHOUT, AT_ONCE, HONEST = "without", "at once", "honest"
LIES = tuple(name for name in FAULTS if name.startswith("referee_"))


def differential(seed: int, **how: object) -> Report:
    """The world of a seed without a referee; violated where one with a referee is worse, or ends otherwise."""
    without = simulate(seed, referee=WITHOUT, **how)  # type: ignore[arg-type]
    reports = {
        AT_ONCE: simulate(seed, referee=AT_ONCE, **how),  # type: ignore[arg-type]
        HONEST: simulate(seed, referee=HONEST, **how),  # type: ignore[arg-type]
    }
    for lie in LIES:
        reports[lie] = simulate(seed, referee=HONEST, forced=(lie,), **how)  # type: ignore[arg-type]
    for name, report in reports.items():
        without.violations += _differs(name, report, without)
        without.sometimes += report.sometimes
        without.faults += report.faults
        without.runs += report.runs
    return without


def _differs(name: str, report: Report, without: Report) -> list[Violation]:
    found = [Violation("I24", f"with the referee {name}: {violation}") for violation in report.violations]
    for run_id, end in without.ends.items():
        other = report.ends.get(run_id, end)  # one of them may have needed a person's word for what happened
        if other != end:
            found.append(Violation("I24", f"{run_id} ends as {other} with the referee {name}, as {end} without"))
    if name == AT_ONCE and not report.sometimes["a claim was held by another"]:
        report.sometimes["the journals are the same with and without a referee"] += 1
        if report.journals != without.journals:
            differ = _first(report.journals, without.journals)
            found.append(Violation("I24", f"a referee that refuses nobody changes the journal of {differ}"))
    return found


def _first(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    return min(name for name in {*one, *other} if one.get(name) != other.get(name))
