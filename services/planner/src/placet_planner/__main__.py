"""Starts the planner: thinks. The only service that calls models, and the only one that needs their keys.

PLACET_APP=examples.release:app python -m placet_planner
"""

from __future__ import annotations

import sys

from placet.adapters.models import ModelCaller
from placet.application import App
from placet.hosting.parts import Parts
from placet.hosting.program import main
from placet.runtime.ports import Models
from placet.topology import PLANNER
from placet_planner.machine import ThreadMachine


async def models(app: App) -> Models:
    """Asks the models of the application's agents."""
    caller = ModelCaller(app)
    await caller.warm()
    return caller


PARTS = Parts(service="planner", queues=(PLANNER,), machine=lambda _: ThreadMachine(), application=True, models=models)

if __name__ == "__main__":
    sys.exit(main(PARTS))
