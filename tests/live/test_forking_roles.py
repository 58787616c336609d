"""Proves that a run is forked by services that know their own machine only, each with the rights of its role."""

from __future__ import annotations

import asyncio
import json

import pytest

from placet.adapters.sql.postgres import PostgresStore
from placet.adapters.sql.postgres_migrating import SERVICES, role_of
from placet.messages import ForkRun
from placet.topology import QUEUES
from tests.contracts.desks import DONE, an_app
from tests.contracts.units import ManualClock
from tests.live import spaces
from tests.live.postgres_stores import EMPTY, MOVABLE_CLOCK, ClockedStore, execute, held
from tests.rebuilding import ALICE, TENANT, Office


@pytest.fixture(scope="module")
def prefix():
    """Roles belong to the whole server, which others use as well."""
    return spaces.fresh_name()


@pytest.fixture(scope="module")
def url(postgres, prefix):
    with held(postgres.url, MOVABLE_CLOCK, prefix=prefix) as url:
        yield url
    for service in SERVICES:
        asyncio.run(execute(postgres.url, f"DROP ROLE {role_of(service, prefix)}"))


async def test_a_run_is_forked_by_services_with_the_rights_of_their_roles(url, prefix):
    await execute(url, EMPTY)
    clock = ManualClock()
    owner = await ClockedStore.open(url, clock)
    await owner.tell()
    stores = {
        machine: await PostgresStore.open(url, role=role_of(service, prefix)) for service, machine in QUEUES.items()
    }
    try:
        DONE.clear()
        office = Office(owner, clock, an_app, store_of=stores.__getitem__)
        await office.submit("note it")
        ended = await office.to_the_end()
        assert ended["status"] == "succeeded"
        done = dict(DONE)
        for version in (2, ended["version"] // 2, ended["version"] - 2):
            name = f"f{version}"
            fork = ForkRun(tenant=TENANT, run_id=name, forked_from="r1", at=version, initiator=ALICE)
            await office.say(fork, name)
            assert json.loads(office.answers[-1])["answer"] == "accepted"
            state = await office.to_the_end(name)
            assert (state["status"], state["answer"]) == ("succeeded", ended["answer"])
        assert all(DONE[key] == times for key, times in done.items())
        assert await owner.dead_letters(TENANT, run_id=None, limit=9) == []
    finally:
        for store in {id(store): store for store in stores.values()}.values():
            await store.close()
        await owner.close()
