"""Further instructions and interruptions over HTTP: what reaches the machines, and how refusals are told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from placet.client import AsyncPlacetClient, Connection
from placet.errors import Code, Failure, TerminalError
from placet.machine import Receipt
from placet.messages import ContinueRun, InterruptRun
from tests.cases import case
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import NOW_MS, TENANT, TOKEN, World

INSTRUCTION = {"instruction": "And the changelog.", "instruction_id": "i-1"}


async def test_an_instruction_reaches_the_run_in_the_callers_name(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    body = {**INSTRUCTION, "task": "cut", "after": "task:cut/1", "timeout_ms": 5_000}
    answer = await http.post("/v1/runs/r1/continue", json=body)
    assert (answer.status_code, answer.json()["turn"]) == (200, "task:cut/2")
    (message, _) = world.asked[0]
    assert message == ContinueRun(
        tenant=TENANT,
        run_id="r1",
        instruction_id="i-1",
        text="And the changelog.",
        by=message.by,  # type: ignore[attr-defined]
        task="cut",
        after="task:cut/1",
        timeout_ms=5_000,
    )
    assert message.by.id == "developer"


async def test_the_same_key_is_the_same_instruction_to_the_same_run(world: World, http: httpx.AsyncClient) -> None:
    world.add_run("r1")
    world.add_run("r2")
    for run_id in ("r1", "r1", "r2"):
        headers = {"Idempotency-Key": '"k-7"'}
        assert (await http.post(f"/v1/runs/{run_id}/continue", json={"instruction": "x"}, headers=headers)).is_success
    first, again, other = (message.instruction_id for message, _ in world.asked if isinstance(message, ContinueRun))
    assert first == again != other


async def test_an_instruction_without_an_id_is_refused(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    refused = await http.post("/v1/runs/r1/continue", json={"instruction": "x"})
    assert_problem(refused, 422, Code.SUBMISSION_INVALID)
    assert refused.json()["pointer"] == "/instruction_id"
    assert world.asked == []


@pytest.mark.parametrize("path", ["continue", "interrupt"])
@pytest.mark.parametrize("run_id", ["absent", "not%20an%20id"])
@case("I09")
async def test_no_run_and_nobodys_business_are_told_alike(
    world: World, http: httpx.AsyncClient, path: str, run_id: str
) -> None:
    world.add_run("r1")
    body = INSTRUCTION if path == "continue" else {}
    absent = await http.post(f"/v1/runs/{run_id}/{path}", json=body)
    assert_problem(absent, 404, Code.RUN_NOT_FOUND)
    failure = Failure(code=Code.RUN_NOT_FOUND, message="there is no run r1")
    world.scripted.append(Receipt(answer="not_found", run_id="r1", failure=failure))
    foreign = await http.post(f"/v1/runs/r1/{path}", json=body)
    assert_problem(foreign, 404, Code.RUN_NOT_FOUND)
    assert set(foreign.json()) - {"receipt"} == set(absent.json()) - {"receipt"}


@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [
        ("refused", Code.TURN_BUSY, 409),
        ("refused", Code.TURN_MISMATCH, 409),
        ("closed", Code.RUN_TERMINAL, 409),
        ("conflict", Code.INSTRUCTION_EXISTS, 409),
        ("refused", Code.TURN_LIMIT, 422),
    ],
)
@case("I10")
async def test_a_refusal_names_its_code_and_the_turn(
    world: World, http: httpx.AsyncClient, answer: str, code: Code, status: int
) -> None:
    world.add_run()
    failure = Failure(code=code, message="no", details={"turn": "task:cut/2"})
    world.scripted.append(Receipt(answer=answer, run_id="r1", failure=failure))
    refused = await http.post("/v1/runs/r1/continue", json=INSTRUCTION)
    assert_problem(refused, status, code)
    assert refused.json()["turn"] == "task:cut/2"


@pytest.mark.parametrize("answer", ["accepted", "duplicate", "joined"])
async def test_what_is_no_refusal_is_a_receipt(world: World, http: httpx.AsyncClient, answer: str) -> None:
    world.add_run()
    world.scripted.append(Receipt(answer=answer, run_id="r1", turn="task:cut/2"))
    said = await http.post("/v1/runs/r1/continue", json=INSTRUCTION)
    assert (said.status_code, said.json()["answer"]) == (200, answer)


@case("I21")
async def test_where_nothing_is_in_work_the_answer_says_so(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    world.scripted.append(Receipt(answer="nothing_interrupted", run_id="r1", status="succeeded"))
    said = await http.post("/v1/runs/r1/interrupt")
    assert (said.status_code, said.json()["answer"]) == (200, "nothing_interrupted")
    await http.post("/v1/runs/r1/interrupt", json={"turn": "task:cut/1", "reason": "wrong way"})
    message, _ = world.asked[-1]
    assert isinstance(message, InterruptRun)
    assert (message.turn, message.reason, message.by.id) == ("task:cut/1", "wrong way", "developer")
    assert len({asked.interrupt_id for asked, _ in world.asked if isinstance(asked, InterruptRun)}) == 2
    for _ in range(2):
        await http.post("/v1/runs/r1/interrupt", headers={"Idempotency-Key": "k-1"})
    first, again = (asked.interrupt_id for asked, _ in world.asked[-2:] if isinstance(asked, InterruptRun))
    assert first == again


async def test_both_through_the_client(world: World) -> None:
    world.add_run()
    transport = httpx.ASGITransport(app=world.app())
    async with AsyncPlacetClient(Connection("http://localhost:7300", TOKEN), transport=transport) as client:
        said = await client.continue_run("r1", "Go on.", instruction_id="i-1", task="cut")
        assert (said.answer, said.turn) == ("accepted", "task:cut/2")
        assert (await client.interrupt_run("r1", interrupt_id="int-1", turn="task:cut/1")).turn == "task:cut/1"
        failure = Failure(code=Code.TURN_BUSY, message="busy", details={"turn": "task:cut/2"})
        world.scripted.append(Receipt(answer="refused", run_id="r1", failure=failure))
        with pytest.raises(TerminalError) as busy:
            await client.continue_run("r1", "Else.", instruction_id="i-2")
        assert (busy.value.code, busy.value.details["turn"]) == (Code.TURN_BUSY, "task:cut/2")


def add_thread(world: World, status: str, key: str = "task:cut", **body: Any) -> None:
    stored = {"status": status, "version": 3, "created_at_ms": NOW_MS, "updated_at_ms": NOW_MS, "tenant": TENANT}
    world.states["r1", "thread", key] = {**stored, "body": {"turn": 2, "attempt": 1, **body}}


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        ("calling", {"lease_until_ms": NOW_MS + 60_000}, ("calling", 0)),
        ("calling", {"lease_until_ms": NOW_MS}, ("interrupted", 0)),
        ("calling", {"lease_until_ms": NOW_MS + 60_000, "lost": 1, "attempt": 2}, ("calling", 1)),
        ("waiting", {}, ("waiting", 0)),
        ("failed", {}, ("failed", 0)),
        ("failed", {"stop": 2}, ("interrupted", 0)),
        ("failed", {"stop": 1}, ("failed", 0)),
        ("closed", {}, ("interrupted", 0)),
        ("idle", {}, ("done", 0)),
    ],
)
@case("K08")
async def test_an_unfinished_turn_is_shown_as_interrupted(
    world: World, http: httpx.AsyncClient, status: str, body: dict[str, Any], told: tuple[str, int]
) -> None:
    task = {"id": "cut", "title": "Cut it", "status": "running", "assignee": "releaser", "turn": 2}
    world.add_run(phase="working", tasks=[task])
    add_thread(world, status, **body)
    [turn] = (await http.get("/v1/runs/r1")).json()["turns"]
    assert (turn["turn"], (turn["status"], turn["interruptions"])) == ("task:cut/2", told)
