"""What is over is let go of by the owner of the store, and by nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from placet.adapters.clocks import SystemClock
from placet.adapters.sql.sqlite import SqliteStore
from placet.believing import ReplayedVoices
from placet.ids import Address
from placet.messages import RUN
from placet.runtime.replay import replay
from placet_embedded.system import machines
from tests.cli.conftest import Placet
from tests.contracts.desks import an_app
from tests.contracts.units import ManualClock
from tests.rebuilding import TENANT, Office

THE_RUN = Address("r1", RUN, "")


@pytest.fixture
def folder(tmp_path: Path, offline: Placet, environment: pytest.MonkeyPatch) -> Path:
    """A data directory with a run that has ended and one that waits for a person."""
    environment.delenv("PLACET_DATABASE_URL", raising=False)

    async def work() -> None:
        clock = ManualClock()
        store = await SqliteStore.open(tmp_path / "placet.db", clock=clock)
        office = Office(store, clock, an_app)
        await office.submit("note it")
        await office.to_the_end()
        await office.submit("note it", run_id="r2")
        await office.work()
        await store.close()

    asyncio.run(work())
    return tmp_path


def looked_at(folder: Path, look: Any) -> Any:
    """What `look` says of the store."""

    async def work() -> Any:
        store = await SqliteStore.open(folder / "placet.db", clock=SystemClock())
        try:
            return await look(store)
        finally:
            await store.close()

    return asyncio.run(work())


async def evidence(store: Any) -> dict[str, Any]:
    tables = ("audit_leaf", "approval_request", "approval_vote", "approval_outcome", "operation", "operation_attempt")
    return {table: await store.rows(TENANT, table, "r1") for table in tables}


def test_a_run_that_has_ended_is_deleted_and_its_evidence_stays(folder: Path, offline: Placet) -> None:
    before = looked_at(folder, evidence)
    assert all(before.values())
    told = offline("--data", str(folder), "archive", "delete", "r1", "--json")
    assert (told.code, told.document) == (0, {"run_id": "r1", "deleted": True}), told.err
    assert looked_at(folder, lambda store: store.states_of(TENANT, "r1")) == []
    assert looked_at(folder, lambda store: store.read_journal(THE_RUN)) == []
    assert looked_at(folder, evidence) == before
    assert len(looked_at(folder, lambda store: store.states_of(TENANT, "r2"))) > 1
    again = offline("--data", str(folder), "archive", "delete", "r1")
    assert (again.code, again.out) == (0, "there is no run r1: nothing to do\n")


def test_a_run_that_has_not_ended_is_not_deleted(folder: Path, offline: Placet) -> None:
    told = offline("--data", str(folder), "archive", "delete", "r2", "--json")
    assert (told.code, told.error["code"]) == (2, "RUN_ACTIVE")
    assert len(looked_at(folder, lambda store: store.states_of(TENANT, "r2"))) > 1


def test_another_tenants_run_is_not_deleted(folder: Path, offline: Placet) -> None:
    told = offline("--data", str(folder), "archive", "delete", "r1", "--tenant", "other", "--json")
    assert told.document == {"run_id": "r1", "deleted": False}
    assert looked_at(folder, lambda store: store.states_of(TENANT, "r1"))


@pytest.mark.parametrize("run_id", ["r1", "r2"])
def test_a_pruned_run_is_what_it_was_and_begins_there(folder: Path, offline: Placet, run_id: str) -> None:
    at = Address(run_id, RUN, "")
    (stored,) = looked_at(folder, lambda store: store.load([at], [])).states.values()
    told = offline("--data", str(folder), "archive", "prune", run_id, "--json")
    assert told.code == 0, told.err
    assert told.document["pruned"] > 0
    entries = looked_at(folder, lambda store: store.read_journal(at))
    assert [entry.version for entry in entries] == [stored.version]
    replayed = replay(machines(ReplayedVoices())[RUN], entries)
    assert replayed is not None
    assert replayed.json_bytes() == stored.body
    assert offline("--data", str(folder), "archive", "prune", run_id).out == "0 entries are gone\n"
    assert "nothing to do" in offline("--data", str(folder), "archive", "prune", "nobody").out


def test_a_pruned_run_that_waits_goes_on(folder: Path, offline: Placet) -> None:
    assert offline("--data", str(folder), "archive", "prune", "r2").code == 0

    async def work(store: Any) -> Any:
        clock = ManualClock()
        office = Office(store, clock, an_app)
        return await office.to_the_end("r2")

    assert looked_at(folder, work)["status"] == "succeeded"


def test_a_directory_without_a_store_is_named(folder: Path, offline: Placet, tmp_path: Path) -> None:
    told = offline("--data", str(tmp_path / "elsewhere"), "archive", "delete", "r1")
    assert told.code == 1
    assert "PLACET_DATABASE_URL" in told.err


def test_a_store_in_use_is_left_alone(folder: Path, offline: Placet) -> None:
    async def meanwhile(store: Any) -> Any:
        return await asyncio.to_thread(offline, "--data", str(folder), "archive", "delete", "r1")

    told = looked_at(folder, meanwhile)
    assert told.code == 1
    assert "STORE_IN_USE" in told.err
