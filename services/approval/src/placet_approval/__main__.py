"""Starts the approval service: decides. It loads no application: no tool, model or gate of anybody runs beside a vote.

python -m placet_approval
"""

from __future__ import annotations

import sys

from placet.hosting.parts import Parts
from placet.hosting.program import main
from placet.topology import APPROVALS
from placet_approval.machine import ApprovalMachine

PARTS = Parts(
    service="approval",
    queues=(APPROVALS,),
    machine=lambda _: ApprovalMachine(),
    decides=ApprovalMachine,
    application=False,
    arbiter=True,
)

if __name__ == "__main__":
    sys.exit(main(PARTS))
