"""Decides in which order tests run, so that no process waits at the end for another's long test: long ones come first.

pytest-xdist hands each process a stretch of the list, and lets who is done take from the end of another's. So each
stretch begins with its share of the long tests and ends with tests that need no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol, TypeVar

LONG = (
    "test_commit_points",
    "test_whole_zombies",
    "test_public_failures_rabbitmq",
    "test_whole_outage",
    "test_whole_database",
    "test_whole_broker",
    "test_queue_faults",
    "test_servers",
    "test_whole_redis",
    "test_signed_decisions",
    "test_services",
    "test_pools_and_stops",
)
"""Modules of tests that take seconds each, the longest first."""


class Named(Protocol):
    """A test as pytest names it."""

    @property
    def nodeid(self) -> str:
        """`path::name`."""


Test = TypeVar("Test", bound=Named)


def dealt(tests: Sequence[Test], processes: int) -> list[Test]:
    """The same tests: long ones in turn to each process, then those on servers, then all others, by modules."""
    long = sorted((test for test in tests if rank(test) < len(LONG)), key=rank)
    rest = sorted((test for test in tests if rank(test) >= len(LONG)), key=rank)
    stretches: list[list[Test]] = [long[number::processes] for number in range(processes)]
    for _, module in groupby(rest, key=module_of):
        min(stretches, key=len).extend(module)
    sizes = [(len(tests) + number) // processes for number in range(processes)]
    spare = [stretch.pop() for stretch, size in zip(stretches, sizes, strict=True) for _ in range(len(stretch) - size)]
    for stretch, size in zip(stretches, sizes, strict=True):
        while len(stretch) < size:
            stretch.append(spare.pop())
    return [test for stretch in stretches for test in stretch]


def module_of(test: Named) -> str:
    """Its path."""
    return test.nodeid.partition("::")[0]


def rank(test: Named) -> int:
    """Below len(LONG) for a long test, and the lower the longer; above it where no server is needed."""
    folder, _, name = module_of(test).rpartition("/")
    if not folder.endswith("tests/live"):
        return len(LONG) + 1
    name = name.removesuffix(".py")
    return LONG.index(name) if name in LONG else len(LONG)
