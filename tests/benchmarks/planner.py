"""Starts the planner of a benchmark: scripts are asked directly, as peers ask theirs, without a model library between.

PLACET_APP=tests.benchmarks.application:app python -m tests.benchmarks.planner
"""

from __future__ import annotations

import dataclasses
import sys

from placet.application import App
from placet.hosting.program import main
from placet.runtime.ports import Models
from placet.runtime.scripts import ScriptedModels
from placet_planner.__main__ import PARTS


async def models(app: App) -> Models:
    """Asks the scripts of the application's agents."""
    return ScriptedModels(app)


if __name__ == "__main__":
    sys.exit(main(dataclasses.replace(PARTS, models=models)))
