"""A change of a plan over HTTP and by the clients: what reaches the run, and how it is told."""

from __future__ import annotations

import httpx
import pytest

from placet.client import AsyncPlacetClient, Connection, PlacetClient
from placet.errors import Code, Failure
from placet.machine import Receipt
from placet.messages import PatchPlan
from placet.plans import DirectCall, PlannedTask, plan_digest
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import TENANT, World

TASK = {"id": "n", "title": "Note", "depends_on": ["a"], "call": {"tool": "note", "input": {"x": 1}}}
PATCH = {"patch_id": "p-1", "add": [TASK], "remove": ["b"], "reason": "b is of no use"}


def applied(world: World, **fields: object) -> None:
    world.scripted.append(Receipt(answer="accepted", run_id="r1", status="running", **fields))  # type: ignore[arg-type]


async def test_a_patch_reaches_the_run_in_the_callers_name(world: World, http: httpx.AsyncClient) -> None:
    world.add_run("r1")
    applied(world, outcome="applied")
    answer = await http.post("/v1/runs/r1/plan", json={**PATCH, "base": "0" * 64})
    assert (answer.status_code, answer.json()["outcome"]) == (200, "applied")
    [(message, _)] = world.asked
    task = PlannedTask(id="n", title="Note", depends_on=("a",), call=DirectCall(tool="note", input={"x": 1}))
    assert message == PatchPlan(
        tenant=TENANT,
        run_id="r1",
        patch_id="p-1",
        by=message.by,  # type: ignore[attr-defined]
        base="0" * 64,
        add=(task,),
        remove=("b",),
        reason="b is of no use",
    )
    assert message.by.id == "developer"


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"add": [TASK]}, Code.PLAN_INVALID, "/patch_id"),
        ({"patch_id": "p", "adds": []}, Code.PLAN_INVALID, "/adds"),
        ({"patch_id": "p", "add": [{"id": "n"}]}, Code.PLAN_INVALID, "/add/0/title"),
        ({"patch_id": "p", "remove": "b"}, Code.PLAN_INVALID, "/remove"),
        ({"patch_id": "p", "add": [{**TASK, "priority": "1"}]}, Code.PLAN_INVALID, "/add/0/priority"),
    ],
)
async def test_what_is_no_patch_is_refused_with_its_place(
    world: World, http: httpx.AsyncClient, body: dict[str, object], code: Code, pointer: str
) -> None:
    world.add_run("r1")
    refused = await http.post("/v1/runs/r1/plan", json=body)
    assert_problem(refused, 422, code)
    assert refused.json()["pointer"] == pointer
    assert world.asked == []


@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [
        ("refused", Code.PLAN_CHANGED, 409),
        ("refused", Code.PLAN_BUSY, 409),
        ("conflict", Code.PATCH_EXISTS, 409),
        ("closed", Code.RUN_TERMINAL, 409),
        ("not_found", Code.RUN_NOT_FOUND, 404),
        ("refused", Code.GATE_DENIED, 403),
        ("refused", Code.PLAN_INVALID, 422),
        ("refused", Code.NO_REVIEWER, 422),
    ],
)
async def test_a_refusal_is_told_by_its_own_code(
    world: World, http: httpx.AsyncClient, answer: str, code: Code, status: int
) -> None:
    world.add_run("r1")
    world.scripted.append(Receipt(answer=answer, run_id="r1", failure=Failure(code=code, message="no")))
    assert_problem(await http.post("/v1/runs/r1/plan", json=PATCH), status, code)


async def test_a_run_tells_the_digest_of_its_plan(world: World, http: httpx.AsyncClient) -> None:
    tasks = [PlannedTask(id=name, title=name.upper()) for name in ("a", "b", "gone")]
    plain = [{**task.model_dump(mode="json"), "status": "pending", "removed": task.id == "gone"} for task in tasks]
    world.add_run("r1", tasks=plain)
    view = (await http.get("/v1/runs/r1")).json()
    assert view["plan_digest"] == plan_digest(tasks[:2])
    assert [task["removed"] for task in view["tasks"]] == [False, False, True]


async def test_the_clients_send_what_they_are_given(world: World, http: httpx.AsyncClient) -> None:
    world.add_run("r1")
    applied(world, request_id="apr_1")
    client = AsyncPlacetClient(Connection("http://127.0.0.1", "x"))
    client._http = http
    receipt = await client.patch_plan("r1", patch_id="p-1", change=[PlannedTask(id="a", title="A")], remove=["b"])
    assert (receipt.request_id, receipt.outcome) == ("apr_1", None)
    [(message, _)] = world.asked
    assert isinstance(message, PatchPlan)
    assert (message.change[0].id, message.remove) == ("a", ("b",))


def test_both_clients_have_it() -> None:
    assert PlacetClient.patch_plan.__doc__ == AsyncPlacetClient.patch_plan.__doc__
