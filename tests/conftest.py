"""Decides what every test shares: the `case` mark, the conformance table, and hypothesis's settings."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import settings

from placet.values import Value
from tests.cases import Tally, adapter_of, numbers_of, table

pytest_plugins = ["pytester"]


def _checked(cls: type[Value], **fields: Any) -> Value:
    """`Value.trusted`, held to what the constructor says of the same fields."""
    value = _trusted(cls, **fields)
    assert list(fields) == list(cls.model_fields), f"{cls.__name__} is built of {', '.join(fields)}"
    assert value == cls(**fields)
    return value


_trusted = Value.trusted.__func__  # type: ignore[attr-defined]
Value.trusted = classmethod(_checked)  # type: ignore[method-assign, assignment, arg-type]

# No deadline: a busy machine must not fail a property. The blob lets a failing example be repeated exactly.
settings.register_profile("placet", deadline=None, print_blob=True)
settings.load_profile("placet")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--conformance` and `--seed`."""
    parser.addoption("--seed", type=int, help="what chance is derived from; without it, from the time, and printed")
    parser.addoption(
        "--conformance", action="store_true", help="run only tests of numbered cases and print a table of the cases"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and the table where it was asked for. One seed for all processes of a run."""
    if config.option.seed is None:
        config.option.seed = time.time_ns() % 1_000_000_007
    config.addinivalue_line("markers", "case(*numbers): the conformance cases that this test proves")
    if config.getoption("conformance") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ConformanceReport(), "placet-conformance")


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, before anything else happens."""
    return f"seed: {config.option.seed} (repeat with --seed {config.option.seed})"


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """What chance is derived from in this run."""
    return int(request.config.option.seed)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write case and adapter onto each test, as properties: those reach the reports also from other processes."""
    for item in items:
        numbers = numbers_of(item)
        item.user_properties.extend(("case", number) for number in numbers)
        if numbers:
            item.user_properties.append(("adapter", adapter_of(item)))
    if config.getoption("conformance"):
        rest = [item for item in items if not numbers_of(item)]
        items[:] = [item for item in items if numbers_of(item)]
        config.hook.pytest_deselected(items=rest)


class ConformanceReport:
    """Gathers the outcomes as they come in and prints the table at the end."""

    def __init__(self) -> None:
        self.tally = Tally()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        self.tally.add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("conformance")
        for line in table(self.tally.rows()):
            terminalreporter.write_line(line)
