"""A run replayed by command: what it was at a version, and that what is stored is what it did."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from placet.adapters.memory import MemoryStore
from placet.ids import Address
from placet.instants import Instant
from placet.messages import RUN, ForkRun
from placet.runtime.checkpoints import StoredCheckpoints
from placet_embedded.system import machines
from placet_gateway import gateway, keeping
from placet_gateway.identity import DevelopmentIdentity
from tests.cli.conftest import Placet, Server
from tests.contracts.desks import an_app
from tests.contracts.units import ManualClock
from tests.gateway.world import TOKEN, World
from tests.rebuilding import TENANT, Office

THE_RUN = Address("r1", RUN, "")


@pytest.fixture
def store(server: Server, placet: Placet) -> MemoryStore:
    """A store with a run that has ended, and a gateway on it."""
    clock = ManualClock()
    store = MemoryStore(clock)

    async def work() -> None:
        office = Office(store, clock, an_app)
        await office.submit("note it")
        assert (await office.to_the_end())["status"] == "succeeded"

    asyncio.run(work())
    server.application = gateway(World(), store, DevelopmentIdentity(TOKEN), tenant=TENANT)
    return store


def versions(store: MemoryStore) -> int:
    return len(store._journal[THE_RUN])


def test_a_run_is_replayed_step_by_step_and_compared_with_what_is_stored(store: MemoryStore, placet: Placet) -> None:
    result = placet("run", "replay", "r1")
    assert result.code == 0, result.out
    lines = [line for line in result.out.splitlines() if line[:5].strip()]
    assert len(lines) == versions(store)
    assert lines[0].split()[0] == "1"
    assert "run.submit" in lines[0]
    assert lines[-1].endswith("succeeded")
    assert "approval.decided" in result.out
    assert "all is as stored" in result.err


def test_a_run_is_shown_as_it_was_at_a_version(store: MemoryStore, placet: Placet) -> None:
    shown = placet("run", "replay", "r1", "--to", "2", "--json").document
    assert (shown["version"], shown["verified"], shown["differences"]) == (2, True, [])
    assert [step["version"] for step in shown["steps"]] == [1, 2]
    assert shown["state"]["status"] == "suspended"
    assert shown["state"]["schema_version"] == 1
    assert [task["status"] for task in shown["state"]["tasks"]] == ["pending", "pending"]
    assert '"status": "suspended"' in placet("run", "replay", "r1", "--to", "2").out
    last = placet("run", "replay", "r1", "--json").document
    assert (last["version"], last["state"]["status"]) == (versions(store), "succeeded")
    assert last["entries"] == sum(len(kept) for at, kept in store._journal.items() if at.run_id == "r1")


def test_the_first_difference_is_named_and_the_exit_code_is_1(store: MemoryStore, placet: Placet) -> None:
    entries = store._journal[THE_RUN]
    entries[3] = replace(entries[3], at_ms=Instant(entries[3].at_ms + 1))
    store._arrived = [entry for kept in store._journal.values() for entry in kept.values()]
    result = placet("run", "replay", "r1")
    assert result.code == 1
    assert "NOT WHAT IS STORED: run:r1/ version 3: " in result.out
    told = placet("run", "replay", "r1", "--json")
    assert told.code == 1
    assert told.document["verified"] is False
    assert told.document["differences"][0]["version"] == 3


@pytest.mark.parametrize("version", ["1000", "0", "-1", "x"])
def test_a_version_that_there_never_was_is_refused(store: MemoryStore, placet: Placet, version: str) -> None:
    result = placet("run", "replay", "r1", "--to", version, "--json")
    assert result.code == 2
    assert result.error["code"] == "PARAMETER_INVALID"


def test_a_version_that_was_pruned_is_refused_with_what_is_left(store: MemoryStore, placet: Placet) -> None:
    asyncio.run(StoredCheckpoints(store, machines(), store).prune(THE_RUN, 4))
    result = placet("run", "replay", "r1", "--to", "3")
    assert result.code == 2
    assert f"the run has versions 4 to {versions(store) + 3}; what was before was pruned" in result.err
    assert placet("run", "replay", "r1", "--to", "4").code == 0


def test_a_run_that_nobody_knows_is_not_replayed(store: MemoryStore, placet: Placet) -> None:
    assert "[RUN_NOT_FOUND]" in placet("run", "replay", "nobody").err


def forked(world: World) -> ForkRun:
    (message,) = [message for message, _ in world.asked if isinstance(message, ForkRun)]
    return message


def test_a_run_is_forked_under_a_fresh_id_that_is_printed(
    world: World, server: Server, store: MemoryStore, placet: Placet
) -> None:
    server.application = gateway(world, store, DevelopmentIdentity(TOKEN), tenant=TENANT)
    result = placet("run", "fork", "r1", "--at", "3", "--timeout", "10m", "--as", "carol")
    message = forked(world)
    assert (result.code, result.out.strip()) == (0, message.run_id), result.err
    assert (message.forked_from, message.at, message.timeout_ms) == ("r1", 3, 600_000)
    assert message.initiator.id == "carol"
    assert message.run_id.startswith("run-")


def test_a_fork_of_a_chosen_id_says_what_became_of_it(
    world: World, server: Server, store: MemoryStore, placet: Placet
) -> None:
    server.application = gateway(world, store, DevelopmentIdentity(TOKEN), tenant=TENANT)
    told = placet("run", "fork", "r1", "--at", "3", "--id", "mine", "--json")
    assert (told.code, told.document["run_id"], told.document["answer"]) == (0, "mine", "accepted")
    assert forked(world).run_id == "mine"


@pytest.mark.parametrize("arguments", [(), ("--at", "0"), ("--at", "x"), ("--at", "3", "--timeout", "soon")])
def test_a_fork_that_cannot_be_asked_for_is_not(store: MemoryStore, placet: Placet, arguments: tuple[str, ...]) -> None:
    assert placet("run", "fork", "r1", *arguments).code == 2


def test_a_long_journal_comes_in_pages(store: MemoryStore, placet: Placet, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = placet("run", "replay", "r1", "--json").document
    journal_of = keeping.journal_of

    async def in_threes(reader, tenant, run_id, limit, after):
        return await journal_of(reader, tenant, run_id, min(limit, 3), after)

    monkeypatch.setattr(keeping, "journal_of", in_threes)
    assert placet("run", "replay", "r1", "--json").document == whole


def test_a_run_that_moves_while_it_is_read_is_not_called_wrong(
    store: MemoryStore, placet: Placet, monkeypatch: pytest.MonkeyPatch
) -> None:
    states_of, looks = store.states_of, []

    async def moving(tenant: str, run_id: str) -> list[dict[str, object]]:
        looks.append(run_id)
        return [{**state, "version": len(looks)} for state in await states_of(tenant, run_id)]

    monkeypatch.setattr(store, "states_of", moving)
    result = placet("run", "replay", "r1")
    assert result.code == 4
    assert "is moving" in result.err
    assert len(looks) == 6
