"""Decides how operations are stopped from starting: one switch for a tenant, and one for each of its tools.

A freeze is a state like any other, of the tool executors, under a run id that no run has: who set it, why and when is
in it, and its journal has every change. Each start reads its status and is guarded by its version, so that a start and
a freeze exclude each other. What a freeze holds back stays as it is, approved and unstarted, until it is lifted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from placet.addressees import OperationMessage
from placet.ids import derived_id
from placet.values import Name, Principal, Text, Value

FREEZE = "freeze"
"""The key of that state."""
ALL = "*"
"""In the place of a tool's name: every tool."""
THAWED = "thawed"
STATUS_PATTERN = r"^(thawed|frozen( \S+)+)$"


def freeze_run(tenant: str) -> str:
    """The run id under which a tenant's freeze is kept."""
    return derived_id("freeze", tenant)


class Frozen(Value):
    """A switch that is on."""

    tool: str
    """Its name, or `*`."""
    by: str
    reason: str
    since_ms: int


class FreezeOperations(OperationMessage):
    """Set a switch or lift it. `open`: there is to be a state that says that nothing is frozen, and nothing else."""

    type: Literal["operation.freeze"] = "operation.freeze"
    operation_id: Literal["freeze"] = "freeze"
    word: Literal["open", "freeze", "thaw"]
    tool: Name | None = None
    """None: all tools."""
    by: Principal | None = None
    reason: Text = ""
    order_id: str = ""
    """Minted with the order: a repeat of it, however late, undoes nothing that was ordered after it."""


def status_of(frozen: Iterable[Frozen]) -> str:
    """The status by which a start is guarded: a word, then the names."""
    names = sorted(each.tool for each in frozen)
    return " ".join(["frozen", *names]) if names else THAWED


def is_frozen(status: str, tool: str) -> bool:
    """Whether a status holds a tool back. One that is not understood holds back everything."""
    if status == THAWED:
        return False
    word, *names = status.split(" ")
    return word != "frozen" or not names or not {ALL, tool, ""}.isdisjoint(names)
