"""Proves what deciders meet on the whole system: one wins, everybody is told the truth, nothing runs twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from placet import App, ToolContext, scripted
from placet.adapters.sql.sqlite import SqliteStore
from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.messages import APPROVAL, RUN, Envelope, RequestApproval, SubmitRun
from placet.plans import DirectCall, PlannedTask
from placet.rows import FactKey
from placet.runtime.engine import Engine
from placet.runtime.ports import CommitResult, Delivery, Unit
from placet.runtime.scripts import ScriptedModels
from placet.script import call
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import Embedded
from placet_embedded.system import machines
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity
from tests.cases import case

TENANT = "default"
TOKEN = "t" * 43
EFFECTS: Counter[str] = Counter()


def an_app() -> App:
    """A desk that pays: each payment waits for a person."""
    app = App("desk", version="1")

    @app.tool(effect="non_retriable", consequential=True, retry=3)
    async def pay(ctx: ToolContext, customer: str, cents: int = 100) -> str:
        """Pay."""
        EFFECTS[ctx.operation_id] += 1
        return f"paid {customer}"

    clerk = app.agent("clerk", model=scripted(call("pay", customer="c-1"), "Done."), tools=[pay])
    app.team("desk", agents=[clerk])
    return app


class System:
    """The embedded system with its HTTP door."""

    def __init__(self, embedded: Embedded) -> None:
        self.embedded = embedded
        http = gateway(embedded.door, embedded.store, DevelopmentIdentity(TOKEN), tenant=TENANT)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=http),
            base_url="http://127.0.0.1",
            headers={"authorization": f"Bearer {TOKEN}"},
        )

    async def suspended(self, run_id: str, payments: int = 1) -> list[dict[str, Any]]:
        """A run that waits for so many payments to be approved."""
        tasks = tuple(
            PlannedTask(id=f"pay-{n}", title="Pay", call=DirectCall(tool="pay", input={"customer": f"c-{n}"}))
            for n in range(payments)
        )
        message = SubmitRun(
            tenant=TENANT,
            run_id=run_id,
            team="desk",
            mode="tasks",
            tasks=tasks,
            initiator=Principal(kind=PrincipalKind.HUMAN, id="developer"),
        )
        await self.embedded.door.ask(message, message_id=f"submit-{run_id}", timeout_ms=30_000)
        await self.until(run_id, "suspended")
        rows = await self.embedded.store.requests(TENANT, open_only=True, limit=100, after=None)
        return [row for row in rows if row["run_id"] == run_id]

    async def until(self, run_id: str, status: str) -> dict[str, Any]:
        """Wait for a status."""
        changes = self.embedded.door.changes(run_id)
        async with asyncio.timeout(30):
            while True:
                state = await self.embedded.store.state(TENANT, Address(run_id, RUN, ""))
                if state is not None and state["status"] == status:
                    return state
                await anext(changes)

    async def decide(self, request: dict[str, Any], decision_id: str, **changes: Any) -> httpx.Response:
        """POST a decision."""
        body = {"request_hash": request["request_hash"], "decision": "approve", "decision_id": decision_id, **changes}
        return await self.http.post(f"/v1/requests/{request['request_id']}/decisions", json=body)

    async def outcomes(self, run_id: str) -> list[dict[str, Any]]:
        """All outcomes of a run."""
        return await self.embedded.store.rows(TENANT, "approval_outcome", run_id)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    EFFECTS.clear()
    app = an_app()
    embedded = await Embedded.start(app, tmp_path, models=ScriptedModels(app))
    system = System(embedded)
    yield system
    await system.http.aclose()
    await embedded.stop()


@case("C11", "C08")
async def test_of_fifty_who_decide_at_once_one_wins_and_the_others_are_told_who(system: System) -> None:
    (request,) = await system.suspended("r1")
    words = ["approve", "reject"] * 25
    answers = await asyncio.gather(*(system.decide(request, f"d-{n}", decision=word) for n, word in enumerate(words)))
    won = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    assert len(won) == 1
    outcome = {"approve": "approved", "reject": "rejected"}[words[won[0]]]
    lost = [answer.json() for answer in answers if answer.status_code != 200]
    assert {(problem["status"], problem["code"]) for problem in lost} == {(409, "APPROVAL_CONFLICT")}
    assert {problem["receipt"]["outcome"] for problem in lost} == {outcome}
    assert [row["decision_id"] for row in await system.outcomes("r1")] == [f"d-{won[0]}"]
    await system.until("r1", "succeeded" if outcome == "approved" else "rejected")
    journal = await system.embedded.store.journal(TENANT, "r1")
    assert sum(entry["type"] == "approval.decided" for entry in journal) == 1
    assert sum(EFFECTS.values()) == (outcome == "approved")


async def test_a_decision_that_is_sent_again_gets_the_same_receipt_byte_for_byte(system: System) -> None:
    (request,) = await system.suspended("r1")
    first = await system.decide(request, "d-1")
    await system.until("r1", "succeeded")
    again = [await system.decide(request, "d-1") for _ in range(3)]
    assert first.status_code == 200
    assert {answer.content for answer in again} == {first.content}
    other = await system.decide(request, "d-1", decision="reject")
    assert (other.status_code, other.json()["code"]) == (409, "APPROVAL_CONFLICT")
    assert sum(EFFECTS.values()) == 1


@case("C23")
async def test_of_many_decided_at_once_none_is_applied_when_one_hash_is_wrong(system: System) -> None:
    requests = await system.suspended("r1", payments=3)
    items = [
        {"request_id": row["request_id"], "request_hash": row["request_hash"], "decision_id": f"d-{n}"}
        for n, row in enumerate(requests)
    ]
    wrong = [*items[:2], {**items[2], "request_hash": "0" * 64}]
    refused = await system.http.post("/v1/decisions", json={"decision": "approve", "items": wrong})
    assert (refused.status_code, refused.json()["code"]) == (412, "APPROVAL_STALE_DECISION")
    assert [result["answer"] for result in refused.json()["results"]] == ["not_decided", "not_decided", "refused"]
    assert await system.outcomes("r1") == []
    assert sum(EFFECTS.values()) == 0
    accepted = await system.http.post("/v1/decisions", json={"decision": "approve", "items": items})
    assert accepted.status_code == 200
    assert [result["answer"] for result in accepted.json()["results"]] == ["accepted"] * 3
    await system.until("r1", "succeeded")
    assert sorted(EFFECTS.values()) == [1, 1, 1]
    again = await system.http.post("/v1/decisions", json={"decision": "approve", "items": items})
    assert again.status_code == 200
    assert again.json() == accepted.json()


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"items": []}, "/items"),
        ({"decision": "executed"}, "/decision"),
        ({"everything": True}, "/everything"),
        ("twice", "/items/1/request_id"),
    ],
)
async def test_a_batch_that_is_not_one_names_the_place(system: System, change: Any, pointer: str) -> None:
    (request,) = await system.suspended("r1")
    item = {"request_id": request["request_id"], "request_hash": request["request_hash"], "decision_id": "d-1"}
    body: dict[str, Any] = {"decision": "approve", "items": [item]}
    body |= {"items": [item, {**item, "decision_id": "d-2"}]} if change == "twice" else change
    refused = await system.http.post("/v1/decisions", json=body)
    assert (refused.status_code, refused.json()["pointer"]) == (422, pointer)
    assert await system.outcomes("r1") == []


async def test_an_approval_is_taken_back_only_before_it_is_used(system: System) -> None:
    (request,) = await system.suspended("r1")
    await system.decide(request, "d-1")
    await system.until("r1", "succeeded")
    late = await system.http.post(f"/v1/requests/{request['request_id']}/revocation", json={})
    assert (late.status_code, late.json()["code"]) == (409, "OPERATION_CONSUMED")


@case("D04", "E25")
async def test_nothing_runs_while_one_of_two_questions_is_open(system: System) -> None:
    first, second = await system.suspended("r1", payments=2)
    await system.decide(first, "d-1")
    await system.until("r1", "suspended")
    assert sum(EFFECTS.values()) == 0
    await system.decide(second, "d-2", decision="reject")
    state = await system.until("r1", "rejected")
    assert sorted(task["status"] for task in state["body"]["tasks"]) == ["failed", "succeeded"]
    assert sorted(EFFECTS.values()) == [1]


@case("B19")
async def test_thirty_two_who_open_one_request_at_once_open_one(system: System) -> None:
    """Each through an engine of its own, as processes would."""
    (row,) = await system.suspended("r1")
    key = FactKey("approval_request", "r1", row["request_id"])
    known = (await system.embedded.store.load([], [key])).rows[key]
    request = known.request.model_copy(update={"run_id": "r2"})  # type: ignore[union-attr]
    opening = _another_run(request)
    store = system.embedded.store
    engines = [Engine({APPROVAL: machines()[APPROVAL]}, system.embedded.app, store) for _ in range(32)]
    settled = await asyncio.gather(
        *(engine.process([Delivery(Envelope(id=f"open-{n}", message=opening), n)]) for n, engine in enumerate(engines))
    )
    assert all(len(settlement.done) == 1 and not settlement.back for settlement in settled)
    assert sum(bool(settlement.changed) for settlement in settled) == 1
    rows = await store.rows(TENANT, "approval_request", opening.run_id)
    assert len(rows) == 1


def _another_run(request: Any) -> RequestApproval:
    from placet.requests import create_request

    opened = create_request(
        tenant=request.tenant,
        run_id="r2",
        scope=request.scope,
        boundary=request.boundary,
        content=json.loads(request.content_text),
        requested_at_ms=request.requested_at_ms,
        asker_machine=RUN,
        asker_key="",
    )
    return RequestApproval(tenant=request.tenant, run_id="r2", request_id=opened.request_id, request=opened)


class FailingStore(SqliteStore):
    """Cannot save what holds a request."""

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        if any(row.table == "approval_request" for unit in units for row in unit.rows):
            raise RetryableError(Code.STORE_UNAVAILABLE, "the disk is full")
        return await super().commit(units)


@case("B15")
async def test_where_the_stop_cannot_be_saved_nothing_runs_and_nothing_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EFFECTS.clear()
    monkeypatch.setattr("placet_embedded.embedded.SqliteStore", FailingStore)
    app = an_app()
    embedded = await Embedded.start(app, tmp_path, models=ScriptedModels(app))
    try:
        call_ = DirectCall(tool="pay", input={"customer": "c-1"})
        message = SubmitRun(
            tenant=TENANT,
            run_id="r1",
            team="desk",
            mode="tasks",
            tasks=(PlannedTask(id="pay", title="Pay", call=call_),),
            initiator=Principal(kind=PrincipalKind.HUMAN, id="developer"),
        )
        answer = await embedded.door.ask(message, message_id="submit", timeout_ms=300)
        assert answer is None, "nobody is told that a run was accepted which could not be saved"
        assert await embedded.store.requests(TENANT, open_only=False, limit=10, after=None) == []
        assert await embedded.store.state(TENANT, Address("r1", RUN, "")) is None
        assert Counter() == EFFECTS
        assert not embedded.loops.health.ready
        assert embedded.loops.health.live
    finally:
        await embedded.stop(grace_ms=100)


@case("G12")
async def test_a_call_that_waits_for_a_person_is_no_failed_attempt_and_is_not_retried(system: System) -> None:
    """The tool allows three attempts; waiting uses none of them."""
    (request,) = await system.suspended("r1")
    for table in ("operation_attempt", "retry_decision"):
        assert await system.embedded.store.rows(TENANT, table, "r1") == []
    await system.decide(request, "d-1")
    await system.until("r1", "succeeded")
    attempts = await system.embedded.store.rows(TENANT, "operation_attempt", "r1")
    assert [attempt["n"] for attempt in attempts] == [1]
