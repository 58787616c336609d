"""Proves that agents and tools reach no checkpoint and no approval: neither by what they are given nor by a name."""

from __future__ import annotations

from typing import Any

import pytest

from placet import App, ToolContext, scripted
from placet.adapters.memory import MemoryStore
from placet.ids import Address
from placet.messages import APPROVAL, OPERATION, RUN, THREAD
from placet.plans import DirectCall, PlannedTask
from tests.cases import case
from tests.contracts.units import ManualClock
from tests.rebuilding import TENANT, Office

RESERVED = ("plan", "answer", "checkpoints", "approvals", "checkpoint", "approval", "run", "state", "journal")
SEEN: list[ToolContext] = []


def a_desk() -> App:
    """A desk whose tool keeps what it was given, and may be called by any name."""
    app = App("desk", version="1")

    @app.tool(effect="idempotent")
    async def write(ctx: ToolContext, key: str, value: str) -> str:
        """Write a value under a key."""
        SEEN.append(ctx)
        return f"{key}={value}"

    app.team("desk", agents=[app.agent("clerk", model=scripted("done"), tools=[write])])
    return app


@case("H25")
async def test_tasks_and_values_with_reserved_names_meet_no_checkpoint_and_no_approval() -> None:
    SEEN.clear()
    clock = ManualClock()
    office = Office(MemoryStore(clock), clock, a_desk)
    calls = [DirectCall(tool="write", input={"key": name, "value": "mine"}) for name in RESERVED]
    tasks = [PlannedTask(id=name, title=name, call=given) for name, given in zip(RESERVED, calls, strict=True)]
    tasks += [PlannedTask(id=f"{name}.", title=name) for name in RESERVED]
    await office.submit(tasks=tuple(tasks))
    state = await office.to_the_end()
    assert state["status"] == "succeeded"
    places = {(row["machine"], row["key"]) for row in await office.store.states_of(TENANT, "r1")}
    operations = {row["operation_id"] for row in await office.store.rows(TENANT, "operation", "r1")}
    threads = {(THREAD, f"task:{name}.") for name in RESERVED}
    assert places == {(RUN, "")} | {(OPERATION, key) for key in operations} | threads
    assert await office.store.state(TENANT, Address("r1", APPROVAL, "approvals")) is None


@case("H25")
async def test_a_tool_is_given_nothing_that_reads_or_writes_a_store() -> None:
    SEEN.clear()
    clock = ManualClock()
    office = Office(MemoryStore(clock), clock, a_desk)
    given = DirectCall(tool="write", input={"key": "checkpoints", "value": "mine"})
    await office.submit(tasks=(PlannedTask(id="one", title="write", call=given),))
    await office.to_the_end()
    (context,) = SEEN
    for reached in parts_of(context):
        for word in ("commit", "load", "read_journal", "claim_due", "states_of", "requests"):
            assert not hasattr(reached, word), reached
    with pytest.raises(AttributeError):
        context.operation_id = "another"  # type: ignore[misc]


def parts_of(context: Any) -> list[Any]:
    """The context and what its fields hold."""
    names = [name for name in dir(context) if not name.startswith("__")]
    return [context, *(getattr(context, name) for name in names)]
