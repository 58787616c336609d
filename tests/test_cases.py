"""The conformance table counts what the tests of each case did, in one process and in several."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cases import Row, Tally, adapter_of, case, table


def report(
    node: str, outcome: str, when: str = "call", adapter: str = "-", cases: tuple[str, ...] = ("A07",)
) -> pytest.TestReport:
    """One phase of one test as pytest reports it."""
    properties = [*(("case", number) for number in cases), ("adapter", adapter)]
    return pytest.TestReport(node, ("f", 1, "t"), {}, outcome, None, when, user_properties=properties)  # type: ignore[arg-type]


def tallied(*reports: pytest.TestReport) -> list[Row]:
    """The rows that come of the reports."""
    tally = Tally()
    for each in reports:
        tally.add(each)
    return list(tally.rows())


def test_a_case_passes_when_all_its_tests_pass() -> None:
    assert tallied(report("a", "passed", "setup"), report("a", "passed"), report("b", "passed")) == [
        ("A07", "-", "passed", 2)
    ]


def test_a_case_fails_when_one_of_its_tests_fails_in_any_phase() -> None:
    assert tallied(report("a", "passed"), report("b", "failed", "setup")) == [("A07", "-", "failed", 2)]
    assert tallied(report("a", "passed"), report("a", "failed", "teardown")) == [("A07", "-", "failed", 1)]


def test_a_case_whose_tests_are_all_skipped_is_skipped() -> None:
    assert tallied(report("a", "skipped", "setup")) == [("A07", "-", "skipped", 1)]
    assert tallied(report("a", "skipped", "setup"), report("b", "passed")) == [("A07", "-", "passed", 2)]


def test_each_adapter_has_a_line_of_its_own() -> None:
    rows = tallied(
        report("a", "passed", adapter="sqlite"), report("b", "failed", adapter="memory", cases=("A07", "C01"))
    )
    assert rows == [("A07", "memory", "failed", 1), ("A07", "sqlite", "passed", 1), ("C01", "memory", "failed", 1)]


def test_a_case_that_fails_on_one_adapter_has_failed() -> None:
    tally = Tally()
    for each in (
        report("a", "passed", adapter="sqlite"),
        report("b", "failed", adapter="memory"),
        report("c", "passed", cases=("B01",)),
    ):
        tally.add(each)
    assert list(table(tally.rows()))[-1] == "1 passed, 1 failed, 0 skipped of 2 cases"


@pytest.mark.parametrize("number", ["A7", "a07", "Z01", "A07 ", "", "07"])
def test_a_mistyped_case_number_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="not a case number"):
        case(number)


def test_a_mark_without_a_case_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        case()


def test_the_adapter_is_the_store_parameter_or_the_class_attribute() -> None:
    def on(**attributes: Any) -> str:
        item: Any = SimpleNamespace(**attributes)
        return adapter_of(item)

    assert on(callspec=SimpleNamespace(params={"store": "sqlite"}), cls=None) == "sqlite"
    assert on(callspec=SimpleNamespace(params={"store": dict}), cls=None) == "dict"
    assert on(cls=SimpleNamespace(adapter="memory")) == "memory"
    assert on(cls=None) == "-"


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_the_option_runs_only_cases_and_prints_the_table(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, processes: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(
        """
        import pytest
        from tests.cases import case

        @case("A07")
        @pytest.mark.parametrize("store", ["memory", "sqlite"])
        def test_numbers(store): assert store == "memory"

        def test_of_no_case(): raise AssertionError("must not run")
        """
    )
    result = pytester.runpytest_subprocess("--conformance", *processes)
    result.assert_outcomes(passed=1, failed=1, deselected=0 if processes else 1)
    result.stdout.fnmatch_lines(
        [
            "  A07   memory         passed   1 test",
            "  A07   sqlite         failed   1 test",
            "0 passed, 1 failed, 0 skipped of 1 cases",
        ]
    )
