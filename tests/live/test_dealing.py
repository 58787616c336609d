"""Proves that the order of the tests loses none, and that each process begins with its share of the long ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tests.live.dealing import LONG, dealt, rank


@dataclass(frozen=True)
class Named:
    nodeid: str


def some(*modules: str, each: int = 3) -> list[Named]:
    return [Named(f"{module}.py::test_{number}") for module in modules for number in range(each)]


def test_every_test_is_dealt_once_and_long_ones_come_first_in_each_stretch() -> None:
    tests = some(
        "tests/a", "tests/live/test_light", "tests/live/test_services", "tests/live/test_commit_points", "tests/z"
    )
    ordered = dealt(tests, 2)
    assert sorted(ordered, key=tests.index) == tests
    halves = ordered[: len(tests) // 2], ordered[len(tests) // 2 :]
    for half in halves:
        assert rank(half[0]) < len(LONG)
        assert rank(half[-1]) > len(LONG), "what comes last needs no server"
    first, *_ = halves
    assert "test_commit_points" in first[0].nodeid


def test_with_one_process_the_order_is_long_ones_then_those_on_servers_then_all_others() -> None:
    ordered = dealt(some("tests/a", "tests/live/test_light", "tests/live/test_services"), 1)
    assert [rank(test) for test in ordered] == sorted(rank(test) for test in ordered)


def test_a_module_stays_together_so_that_what_its_tests_share_is_made_once() -> None:
    ordered = dealt(some("tests/a", "tests/b", "tests/live/test_light", "tests/live/test_other"), 2)
    modules = [test.nodeid.partition("::")[0] for test in ordered]
    changes = sum(one != other for one, other in pairwise(modules))
    assert changes == len(set(modules)) - 1
