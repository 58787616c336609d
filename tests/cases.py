"""Decides how a test says which numbered conformance case it proves, and how the cases are tallied.

A test carries `@case("A07")`. `make conformance` runs only such tests and prints one line per case and adapter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

SECTIONS = {
    "A": "canonical hash and content binding",
    "B": "request creation strictness",
    "C": "decide: first wins, conflict, stale",
    "D": "restore: request, checkpoint, ledger, schema",
    "E": "the four gates",
    "F": "crash windows and operation identity",
    "G": "retry policy",
    "H": "checkpoint store contract",
    "I": "resume coalescing and ownership",
    "J": "cancel, shutdown, failure",
    "K": "continuation instruction",
    "L": "cleanup order",
    "M": "what people ask for beyond: expiry, quorum, revocation, audit",
    "P": "what broke elsewhere: failures that others have reported",
}
_NUMBER = re.compile(r"[A-Z]\d{2,3}")
_WORST_FIRST = ("failed", "passed", "skipped")


def case(*numbers: str) -> pytest.MarkDecorator:
    """Mark a test as proof of the numbered cases, e.g. `@case("A07")` or `@case("A01", "A02")`.

    Raises ValueError for a number of another form or another section, so that a slip cannot hide a case.
    """
    if not numbers:
        raise ValueError("a case mark names at least one case")
    for number in numbers:
        if not _NUMBER.fullmatch(number) or number[0] not in SECTIONS:
            raise ValueError(f"{number!r} is not a case number such as 'A07', in sections {', '.join(SECTIONS)}")
    return pytest.mark.case(*numbers)


def numbers_of(item: pytest.Item) -> list[str]:
    """The cases that a test proves, each once, in the order of their marks."""
    return list(dict.fromkeys(number for mark in item.iter_markers("case") for number in mark.args))


def adapter_of(item: pytest.Item) -> str:
    """Which implementation the test ran on: the `store` parameter, else the class's `adapter`, else `-`."""
    callspec = getattr(item, "callspec", None)
    store = callspec.params.get("store") if callspec is not None else None
    if store is None:
        store = getattr(getattr(item, "cls", None), "adapter", None)
    if store is None:
        return "-"
    return store if isinstance(store, str) else getattr(store, "__name__", type(store).__name__)


class Row(NamedTuple):
    """One line of the table: a case on an adapter, and how its tests ended."""

    number: str
    adapter: str
    outcome: str
    tests: int


class Tally:
    """Counts how the tests of each case ended. A case fails when any of its tests does."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], dict[str, str]] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take one phase of one test; a failure in any phase stays, a skip counts where nothing ran."""
        properties = report.user_properties
        adapter = str(dict(properties).get("adapter", "-"))
        for number in (str(value) for name, value in properties if name == "case"):
            ends = self._ends.setdefault((number, adapter), {})
            if report.failed:
                ends[report.nodeid] = "failed"
            elif report.skipped:
                ends.setdefault(report.nodeid, "skipped")
            elif report.when == "call":
                ends.setdefault(report.nodeid, "passed")

    def rows(self) -> Iterator[Row]:
        """The table, by case and adapter."""
        for (number, adapter), ends in sorted(self._ends.items()):
            outcome = next((word for word in _WORST_FIRST if word in ends.values()), "not run")
            yield Row(number, adapter, outcome, len(ends))


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as lines of text under their sections, and a closing line with the totals."""
    section = ""
    cases: dict[str, str] = {}
    for row in rows:
        if row.number[0] != section:
            section = row.number[0]
            yield f"{section}. {SECTIONS[section]}"
        yield f"  {row.number:<5} {row.adapter:<14} {row.outcome:<8} {row.tests} test{'s' * (row.tests != 1)}"
        ranks = [outcome for outcome in (cases.get(row.number), row.outcome) if outcome is not None]
        cases[row.number] = min(ranks, key=lambda word: (*_WORST_FIRST, "not run").index(word))
    totals = Counter(cases.values())
    yield ", ".join(f"{totals[word]} {word}" for word in ("passed", "failed", "skipped")) + f" of {len(cases)} cases"
