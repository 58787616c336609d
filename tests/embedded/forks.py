"""Decides how a test forks a run, and finds the version of it that it wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from placet import App
from placet.adapters.memory import MemoryStore
from placet.believing import ReplayedVoices
from placet.ids import Address
from placet.messages import RUN, ForkRun
from placet.runtime.checkpoints import StoredCheckpoints
from placet.runtime.ports import StoredState
from placet.runtime.verifying import Kept, verify
from placet_embedded.system import machines
from tests.contracts.desks import an_app
from tests.contracts.units import ManualClock
from tests.rebuilding import ALICE, TENANT, Office


def office(app: Callable[[], App] = an_app) -> Office:
    """An application on an empty store."""
    clock = ManualClock()
    return Office(MemoryStore(clock), clock, app)


async def fork(at: Office, version: int, run_id: str = "f1", source: str = "r1", **more: Any) -> dict[str, Any]:
    """Fork a run; the receipt."""
    message = ForkRun(
        **{"tenant": TENANT, "run_id": run_id, "forked_from": source, "at": version, "initiator": ALICE, **more}
    )
    at.answers.clear()
    await at.say(message, f"fork-{run_id}")
    (answer,) = at.answers
    told: dict[str, Any] = json.loads(answer)
    return told


async def requests_of(at: Office, run_id: str) -> list[dict[str, Any]]:
    return list(await at.store.rows(TENANT, "approval_request", run_id))


async def is_true(at: Office, run_id: str) -> None:
    """The fork's journals give what is stored of it, and nothing of the run it comes from is needed."""
    states = {
        Address(run_id, row["machine"], row["key"]): StoredState(row["version"], row["status"], row["body"])
        for row in await at.store.states_of(TENANT, run_id)
    }
    journals = {address: await at.store.read_journal(address) for address in states}
    facts = {table: await at.store.rows(TENANT, table, run_id) for table in at.store._facts}
    assert verify(machines(ReplayedVoices()), Kept(states, journals, facts)).differences == []


async def version_where(at: Office, holds: Callable[[dict[str, Any]], Any], run_id: str = "r1") -> int:
    """The first version of the run of which that holds."""
    kept = StoredCheckpoints(at.store, machines())
    address = Address(run_id, RUN, "")
    latest = await kept.latest(address)
    assert latest is not None
    for version in range(1, latest.version + 1):
        found = await kept.load(address, version)
        assert found is not None
        if holds(json.loads(found.state.json_bytes())):
            return version
    raise AssertionError("there is no such version")
