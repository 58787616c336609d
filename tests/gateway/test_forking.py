"""A run's past over HTTP: its journals and facts as they are kept, and a new run from any version."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from placet.adapters.memory import MemoryStore
from placet.client import AsyncPlacetClient, Connection
from placet.errors import Code, PlacetError
from placet.messages import ForkRun
from placet_embedded.embedded import Embedded
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity
from tests.contracts.desks import an_app
from tests.contracts.units import ManualClock
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import TOKEN, World
from tests.rebuilding import TENANT, Office


def forked(world: World) -> ForkRun:
    (message,) = [message for message, _ in world.asked if isinstance(message, ForkRun)]
    return message


async def test_a_fork_becomes_the_message_and_the_receipt_comes_back(world: World, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/runs/r1/fork", json={"at": 3, "run_id": "f1", "timeout_ms": 9_000})
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/runs/f1")
    assert answer.json()["answer"] == "accepted"
    message = forked(world)
    assert (message.run_id, message.forked_from, message.at, message.timeout_ms) == ("f1", "r1", 3, 9_000)
    assert message.initiator.id == "developer"


async def test_a_fork_without_an_id_has_one_of_its_key(world: World, http: httpx.AsyncClient) -> None:
    assert_problem(await http.post("/v1/runs/r1/fork", json={"at": 3}), 422, Code.SUBMISSION_INVALID)
    for _ in range(2):
        answer = await http.post("/v1/runs/r1/fork", json={"at": 3}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201
    first, second = [message for message, _ in world.asked]
    assert first == second


@pytest.mark.parametrize(
    "body", [{}, {"at": 0}, {"at": "3"}, {"at": 1.5}, {"at": 1, "run_id": "no good"}, {"at": 1, "initiator": "bob"}]
)
async def test_a_fork_that_says_something_else_is_refused(
    world: World, http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    body = {"run_id": "f1", **body}
    assert_problem(await http.post("/v1/runs/r1/fork", json=body), 422, Code.SUBMISSION_INVALID)
    assert world.asked == []


async def test_a_name_that_no_run_can_have_is_not_found(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/runs/no%20run/fork", json={"at": 1, "run_id": "f1"})
    assert_problem(answer, 404, Code.RUN_NOT_FOUND)


# ── on the whole system ────────────────────────────────────────────────────────────────


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncPlacetClient]:
    """The embedded system and a client of it."""
    embedded = await Embedded.start(an_app(), tmp_path)
    app = gateway(embedded.door, embedded.store, DevelopmentIdentity(TOKEN), tenant=TENANT)
    connection = Connection("http://localhost:7300", TOKEN)
    async with AsyncPlacetClient(connection, transport=httpx.ASGITransport(app=app)) as client:
        yield client
    await embedded.stop()


async def test_a_run_is_forked_replayed_and_accounted_for_through_the_door(client: AsyncPlacetClient) -> None:
    await client.submit_run("desk", run_id="r1", goal="note it")
    while (run := await client.run("r1")).status != "suspended":
        pass
    told = await client.fork_run("r1", at=run.version, fork_id="f1")
    assert told.answer == "accepted"
    assert (await client.fork_run("r1", at=run.version, fork_id="f1")).answer == "duplicate"
    view, receipt = await client.run("f1"), await client.run_receipt("f1")
    assert view.forked_from is not None
    assert (view.forked_from.run_id, view.forked_from.version) == ("r1", run.version)
    assert receipt.forked_from == view.forked_from
    assert receipt.audit.intact
    assert run.forked_from is None
    page, facts = await client.journal("f1"), await client.facts("f1")
    assert json.loads(page.items[-1].message)["message"]["type"] in {"run.fork", "approval.request"}
    assert {state.machine for state in facts.states} >= {"run"}
    for wrong in (("r1", 99), ("nobody", 1)):
        with pytest.raises(PlacetError) as raised:
            await client.fork_run(wrong[0], at=wrong[1], fork_id="f2")
        assert raised.value.code is Code.RUN_NOT_FOUND


# ── as it is kept ──────────────────────────────────────────────────────────────────────


@pytest.fixture
async def kept() -> MemoryStore:
    """A store with a run that has ended."""
    clock = ManualClock()
    store = MemoryStore(clock)
    office = Office(store, clock, an_app)
    await office.submit("note it")
    await office.to_the_end()
    return store


def http_on(store: MemoryStore, tenant: str = TENANT) -> httpx.AsyncClient:
    app = gateway(World(), store, DevelopmentIdentity(TOKEN), tenant=tenant)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://localhost:7300",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )


async def test_the_journals_of_a_run_come_in_pages_and_byte_for_byte(kept: MemoryStore) -> None:
    async with http_on(kept) as http:
        entries: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            query = {"limit": "7"} | ({"after": after} if after else {})
            page = (await http.get("/v1/runs/r1/journal", params=query)).json()
            assert 0 < len(page["items"]) <= 7
            entries += page["items"]
            after = page["next"]
            if after is None:
                break
    stored = [
        (a.machine, a.key, e.version, e) for a, each in kept._journal.items() for e in each.values() if a.run_id == "r1"
    ]
    assert [(e["machine"], e["key"], e["version"]) for e in entries] == sorted(each[:3] for each in stored)
    for machine, key, version, entry in stored:
        (found,) = [e for e in entries if (e["machine"], e["key"], e["version"]) == (machine, key, version)]
        assert found["message"].encode() == entry.message
        assert (found["facts"], found["at_ms"], found["message_id"]) == (entry.facts, entry.at_ms, entry.message_id)


async def test_the_facts_of_a_run_are_all_there_and_byte_for_byte(kept: MemoryStore) -> None:
    async with http_on(kept) as http:
        facts = (await http.get("/v1/runs/r1/facts")).json()
    for state in facts["states"]:
        (stored,) = [
            s.stored for a, s in kept._states.items() if (a.machine, a.key) == (state["machine"], state["key"])
        ]
        assert (state["body"].encode(), state["version"], state["status"]) == (
            stored.body,
            stored.version,
            stored.status,
        )
    assert {table for table, rows in facts["tables"].items() if rows} >= {"audit_leaf", "operation", "thread_message"}


async def test_another_tenants_run_is_kept_from_everybody_else(kept: MemoryStore) -> None:
    async with http_on(kept, "other") as http:
        for what in ("journal", "facts"):
            assert_problem(await http.get(f"/v1/runs/r1/{what}"), 404, Code.RUN_NOT_FOUND)


@pytest.mark.parametrize("after", ["x", "", "W10", "WyJydW4iLCIiLCJ4Il0", "%00", "é"])
async def test_a_page_after_what_no_page_said_is_refused(kept: MemoryStore, after: str) -> None:
    async with http_on(kept) as http:
        answer = await http.get("/v1/runs/r1/journal", params={"after": after})
        assert_problem(answer, 422, Code.PARAMETER_INVALID)
