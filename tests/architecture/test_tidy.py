"""The code stays readable, and no file names one machine or one registry. Each rule bites on a small bad source."""

from __future__ import annotations

import pytest

from tests.architecture import tidy
from tests.architecture.imports import Rule
from tests.architecture.sources import ROOT, Source, repository_files, repository_sources, shipped

EVERYWHERE: list[Rule] = [tidy.has_docstring, tidy.file_size, tidy.function_size]
PATH = "shared/src/placet/plans.py"


@pytest.mark.parametrize("rule", EVERYWHERE, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    assert [str(finding) for source in repository_sources() for finding in rule(source)] == []


def test_every_length_of_time_says_its_unit() -> None:
    assert [str(finding) for source in shipped() for finding in tidy.units_last(source)] == []


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    found: list[str] = []
    for path in repository_files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # A picture or another binary file.
            continue
        found += [str(finding) for finding in tidy.names_no_machine(path, text)]
    assert found == []


LONG = "\n".join(f"    x{n} = {n}" for n in range(tidy.FUNCTION_LINES_MAX + 1))

BAD = [
    (tidy.has_docstring, "x = 1"),
    (tidy.has_docstring, '"""  """\nx = 1'),
    (tidy.file_size, "\n" * (tidy.FILE_LINES_MAX + 1)),
    (tidy.function_size, f"def f():\n{LONG}"),
    (tidy.function_size, f"class C:\n  async def f(self):\n{LONG}"),
    (tidy.units_last, "lease = 3_000"),
    (tidy.units_last, "LEASE_MAX = 3 * SECOND"),
    (tidy.units_last, "retry_delay: int = 0"),
    (tidy.units_last, "def f(timeout: float | None = None): ..."),
    (tidy.units_last, "def f(*, poll_interval: 'int'): ..."),
    (tidy.units_last, "class C:\n    ttl: Annotated[int, Ge(0)]"),
    (tidy.units_last, "class C:\n    grace: Final[float] = 1.5"),
    (tidy.units_last, "delay = policy.delay_ms * 2"),
    (tidy.units_last, "self.elapsed = now_ms - started_ms"),
    (tidy.units_last, "lease_seconds = 3"),
    (tidy.units_last, "def f(deadline: int): ..."),
]

GOOD = [
    (tidy.has_docstring, ""),
    (tidy.has_docstring, '"""Decides."""\nx = 1'),
    (tidy.function_size, f"def f():\n    '''{LONG}'''\n    return 1"),
    (tidy.units_last, "lease_ms = 3_000\nLEASE_MS_MAX: int = 3\ntimeout_s: float = 0.1\njitter_ms_max = 5"),
    (tidy.units_last, "class Kind(StrEnum):\n    TIMEOUT = 'timeout'"),
    (tidy.units_last, "class C:\n    lease: Lease\n    deadline: Instant | None = None\n    leases: int = 0"),
    (tidy.units_last, "def f(timeout: Timeout, has_timeout: bool = False): ...\nlease = take()"),
    (tidy.units_last, "def f(delay: Callable[[int], int]): ..."),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_the_rule_bites(rule: Rule, text: str) -> None:
    assert len(list(rule(Source(PATH, text)))) >= 1


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_the_rule_lets_good_code_pass(rule: Rule, text: str) -> None:
    assert list(rule(Source(PATH, text))) == []


@pytest.mark.parametrize("name", [*tidy.HOSTS, *(f"/{folder}/x" for folder in tidy.MACHINE_PATHS)])
def test_a_host_or_machine_path_is_found(name: str) -> None:
    assert len(list(tidy.names_no_machine("README.md", f"Look at {name} for more."))) == 1


@pytest.mark.parametrize("text", ["examples/work/notes", "tests/tmp/x", "GET /v1/runs", "https://example.org/root/a"])
def test_an_ordinary_path_is_none_of_them(text: str) -> None:
    assert list(tidy.names_no_machine("README.md", text)) == []
