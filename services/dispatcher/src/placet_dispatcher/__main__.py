"""Starts the dispatcher: schedules. The same rules serve two queues, each by a process of its own.

PLACET_APP=examples.release:app python -m placet_dispatcher
PLACET_APP=examples.release:app python -m placet_dispatcher --role resume
"""

from __future__ import annotations

import sys

from placet.application import App
from placet.hosting.parts import Parts
from placet.hosting.program import main
from placet.runtime.ports import Gates
from placet.topology import DISPATCHER, RESUME
from placet_dispatcher.machine import RunMachine


def gates(app: App) -> Gates | None:
    """Who asks the application's gates outside, where it has any."""
    if not app.http_gates:
        return None
    from placet.adapters.http_gates import HttpGates

    return HttpGates(app.http_gates)


PARTS = Parts(
    service="dispatcher",
    queues=(DISPATCHER, RESUME),
    machine=lambda _: RunMachine(),
    application=True,
    gates=gates,
)

if __name__ == "__main__":
    sys.exit(main(PARTS))
