"""The simulator notices every way in which the system is broken on purpose; each invariant has such a way."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.simulation.invariants import INVARIANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import simulate

CHECKS = (
    "canaries",
    "checkers",
    "clients",
    "differential",
    "ledger",
    "models",
    "outside",
    "row_ledger",
    "tail",
    "world",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulator_notices(mutant: Mutant) -> None:
    seen: set[str] = set()
    with mutant.apply():
        for number in range(mutant.seeds_max):
            report = mutant.judged_by(number, profile=mutant.profile, temper="calm", only=mutant.only)
            seen |= {violation.invariant for violation in report.violations}
            if mutant.invariant in seen:
                print(f"noticed with {number + 1} seeds")
                return
    pytest.fail(f"{mutant.name}: {mutant.invariant} held in {mutant.seeds_max} seeds; seen were {sorted(seen)}")


def test_every_invariant_has_a_mutant() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(INVARIANTS)


def test_every_invariant_is_checked_and_every_check_names_one() -> None:
    folder = Path(__file__).parent
    named: set[str] = set()
    for name in CHECKS:
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= {node.value} if re.fullmatch(r"I\d+|replay|expected", node.value) else set()
    assert named == set(INVARIANTS)


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_ends_with_its_stack() -> None:
    for mutant in MUTANTS:
        with mutant.apply():
            pass
    assert not simulate(1).failed
