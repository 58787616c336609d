"""The system broken on purpose: every invariant has a mutant that the simulator must catch."""

from tests.simulation.mutants import decisions, engine, features, messages, starts
from tests.simulation.mutants.mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "decisions", "engine", "features", "messages", "starts"]
