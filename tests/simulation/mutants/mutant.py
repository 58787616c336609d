"""Decides what a mutant is: a small patch that breaks one invariant, which the simulator must notice.

A mutant that survives is a hole in the workload, the faults or the checkers. Each names the invariant that must be
found violated, whatever else is, and the work and the faults under which it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any
from unittest.mock import patch

from tests.simulation.workload import PREDICTABLE, Profile
from tests.simulation.world import Report, simulate

Broken = Callable[[], Sequence[Any]]
"""Makes the patches of a mutant."""


def quiet(**fields: Any) -> Profile:
    """Nothing but the tasks themselves, and what is named."""
    calm = Profile(
        outer=0.0,
        cancels=0.0,
        timeouts=0.0,
        modes=("tasks",),
        teams=("solo",),
        questions=0.0,
        instructed=0.0,
        forked=0.0,
        frozen=0.0,
        released=(None,),
    )
    return with_fields(calm, **fields)


PLAIN = quiet(gates=("allow", "ask"), moods=("plain",), approve=1.0)
CERTAIN = with_fields(PREDICTABLE, outer=0.0)
RACES = quiet(gates=("ask",), moods=("race",))


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to be wrong."""

    name: str
    invariant: str
    broken: Broken
    profile: Profile = PLAIN
    only: frozenset[str] = frozenset()
    """The faults under which it shows."""
    seeds_max: int = 60
    judged_by: Callable[..., Report] = simulate

    def apply(self) -> ExitStack:
        """Break the system until the stack is closed."""
        stack = ExitStack()
        for patched in self.broken():
            stack.enter_context(patched)
        return stack


MUTANTS: list[Mutant] = []


def mutant(
    name: str,
    invariant: str,
    broken: Broken,
    profile: Profile = PLAIN,
    only: str = "",
    seeds_max: int = 60,
    judged_by: Callable[..., Report] = simulate,
) -> None:
    """Add a mutant."""
    MUTANTS.append(Mutant(name, invariant, broken, profile, frozenset(only.split()), seeds_max, judged_by))


def replace(target: Any, name: str, value: Any) -> Any:
    """A patch that puts `value` in place of what is there."""
    return patch.object(target, name, value)


def around(target: Any, name: str, wrap: Callable[..., Any]) -> Any:
    """A patch that calls `wrap(original, *args)` in place of the original."""
    original = getattr(target, name)
    return patch.object(target, name, lambda *args, **kwargs: wrap(original, *args, **kwargs))


def changed(**fields: Any) -> Callable[..., Any]:
    """A wrap that makes the value with other fields."""
    return lambda original, **given: original(**{**given, **fields})


def knowing(original: Any, self: Any, engine: Any, inbox: Any, invoker: Any, replies: Any, **rest: Any) -> None:
    """A wrap of Worker.__init__ that lets the engine reach what only the worker should."""
    engine.replies, engine.invoker = replies, invoker
    original(self, engine, inbox, invoker, replies, **rest)
