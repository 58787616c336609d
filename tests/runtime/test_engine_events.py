"""Proves that events to the outside are committed with the rows they tell of, and only where they are wanted."""

from __future__ import annotations

import json

from placet.adapters.memory import MemoryStore
from placet.gates import Boundary
from placet.messages import RUN, Envelope
from placet.runtime.engine import Engine
from placet.topology import EVENTS
from placet_dispatcher.machine import RunMachine
from tests.builders import RUN_ID, FakeApplication, a_direct_task, a_submission, deny
from tests.runtime.test_engine import SetClock, delivered

SOURCE = "urn:placet:test"


async def told_of_a_refused_run(events_from: str | None) -> list[dict[str, str]]:
    """A run whose plan a gate forbids: it is accepted and over at once."""
    store = MemoryStore(SetClock())
    application = FakeApplication(gates={Boundary.PLAN: lambda subject: deny("never")})
    engine = Engine({RUN: RunMachine()}, application, store, events_from=events_from)
    settlement = await engine.process(delivered(Envelope(id="m", message=a_submission(a_direct_task("a")))))
    rows = [row for row in await store.claim_due(99, 1_000) if row.destination == EVENTS]
    assert settlement.outbox_rows >= len(rows)
    bodies = [json.loads(row.body) for row in rows]
    assert [row.type for row in rows] == [body["type"].removeprefix("placet.").removesuffix(".v1") for body in bodies]
    assert [row.id for row in rows] == [body["id"] for body in bodies]
    return bodies


async def test_events_are_outbox_rows_of_the_commit_of_what_they_tell() -> None:
    submitted, ended = await told_of_a_refused_run(SOURCE)
    assert (submitted["type"], ended["type"]) == ("placet.run.submitted.v1", "placet.run.ended.v1")
    assert {submitted["source"], ended["source"]} == {SOURCE}
    assert {submitted["subject"], ended["subject"]} == {RUN_ID}


async def test_without_a_source_nobody_is_told() -> None:
    assert await told_of_a_refused_run(None) == []
