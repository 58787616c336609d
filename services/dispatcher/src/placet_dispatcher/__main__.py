"""Starts the dispatcher: schedules. The same rules serve two queues, each by a process of its own.

PLACET_APP=examples.release:app python -m placet_dispatcher
PLACET_APP=examples.release:app python -m placet_dispatcher --role resume
"""

from __future__ import annotations

import sys

from placet.hosting.parts import Parts
from placet.hosting.program import main
from placet.topology import DISPATCHER, RESUME
from placet_dispatcher.machine import RunMachine

PARTS = Parts(service="dispatcher", queues=(DISPATCHER, RESUME), machine=lambda _: RunMachine(), application=True)

if __name__ == "__main__":
    sys.exit(main(PARTS))
