"""Decides what the whole system is: the four machines, listed once.

The simulator, `placet dev` and the tests all take it from here.
"""

from __future__ import annotations

from placet.messages import APPROVAL, OPERATION, RUN, THREAD
from placet.runtime.fold import Machines
from placet.voices import OwnDoor, Voices
from placet_approval.machine import ApprovalMachine
from placet_dispatcher.machine import RunMachine
from placet_planner.machine import ThreadMachine
from placet_tool_executor.machine import OperationMachine


def machines(voices: Voices | None = None) -> Machines:
    """Every machine by its name. `voices`: whose decisions are believed; by default whoever stands at our own door."""
    return {
        RUN: RunMachine(),
        THREAD: ThreadMachine(),
        OPERATION: OperationMachine(),
        APPROVAL: ApprovalMachine(voices or OwnDoor()),
    }
