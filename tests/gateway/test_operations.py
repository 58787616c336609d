"""One side effect from its id alone: everything that is kept of it, and whether every hash of it is the same."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.cases import case
from tests.cli.conftest import Placet, environment, offline, placet, server, url
from tests.gateway.world import NOW_MS, TENANT, World

__all__ = ["environment", "offline", "placet", "server", "url"]


def an_operation(world: World, **changes: Any) -> dict[str, Any]:
    """An approved tag that was made in a second attempt."""
    world.add_run()
    request = world.add_request(operation_id="op_1")
    world.put(
        "operation", run_id="r1", operation_id="op_1", task_id="cut", thread_id="task:cut", turn=1, call_id="c1.1",
        tool="create_tag", tool_version="7", tool_schema_digest="0" * 64, app_version="2026.11", effect="reconcilable",
        consequential=True, agent_name="releaser", initiator="developer", raw_input_text='{"name":"v1.2.0"}',
        input_text='{"name":"v1.2.0"}', request_id=request["request_id"], request_hash=request["request_hash"],
        authority="approval", rule="production", policy_version="p1", proposed_at_ms=NOW_MS, deadline_ms=None,
    )  # fmt: skip
    about = {"run_id": "r1", "request_id": request["request_id"]}
    hashed = {"request_hash": request["request_hash"]}
    world.put(
        "approval_vote", **about, **hashed, person_id="alice", decision="approve", decision_id="d-1", reason=None,
        voted_at_ms=NOW_MS,
    )  # fmt: skip
    world.put(
        "approval_outcome", **about, **{**hashed, **changes}, outcome="approved", decided_by="alice", decision_id="d-1",
        reason=None, decided_at_ms=NOW_MS, use_by_ms=None,
    )  # fmt: skip
    evidence = json.dumps({"certainty": "executed", "result_text": '{"tag":"v1.2.0"}', "failure": None})
    for n, ended, text in ((1, "unknown", None), (2, "succeeded", evidence)):
        world.put(
            "operation_attempt", run_id="r1", operation_id="op_1", n=n, started_at_ms=NOW_MS, ended=ended,
            ended_at_ms=NOW_MS, evidence_text=text,
        )  # fmt: skip
    world.put(
        "retry_decision", run_id="r1", machine="operation", key="op_1", subject="op_1", attempt=1,
        inputs_text='{"attempt":1}', decision_text='{"action":"retry","delay_ms":0,"reason":"transient"}',
        decided_at_ms=NOW_MS,
    )  # fmt: skip
    world.put(
        "retry_decision", run_id="r1", machine="operation", key="op_2", subject="op_2", attempt=1, inputs_text="{}",
        decision_text="{}", decided_at_ms=NOW_MS,
    )  # fmt: skip
    state = {"status": "succeeded", "version": 4, "created_at_ms": NOW_MS, "updated_at_ms": NOW_MS}
    world.states["r1", "operation", "op_1"] = {**state, "tenant": TENANT, "body": {}}
    return request


def journalled(world: World, machine: str, key: str, at_ms: int = NOW_MS + 1, **message: Any) -> None:
    world.journalled.append(
        {
            "tenant": TENANT, "run_id": "r1", "machine": machine, "key": key, "version": len(world.journalled) + 1,
            "message_id": f"m-{len(world.journalled)}", "type": message["type"], "message": {"message": message},
            "at_ms": at_ms,
        }
    )  # fmt: skip


@case("F15")
async def test_everything_is_found_by_the_id_and_all_hashes_are_equal(world: World, http: httpx.AsyncClient) -> None:
    request = an_operation(world)
    journalled(world, "run", "", NOW_MS, type="turn.taken")
    journalled(world, "run", "", type="turn.taken", task_id="other")
    journalled(world, "approval", request["request_id"], type="approval.decide", request_id=request["request_id"])
    journalled(world, "operation", "op_1", type="tool.returned", operation_id="op_1")
    journalled(world, "operation", "op_2", type="tool.returned", operation_id="op_2")
    journalled(world, "run", "", type="operation.done", operation_id="op_1")
    answer = await http.get("/v1/operations/op_1")
    assert answer.status_code == 200
    record = answer.json()
    assert {found["request_hash"] for found in record["hashes"]} == {request["request_hash"]}
    assert len(record["hashes"]) == 5
    assert record["hashes_agree"] is True
    assert record["proposal"]["tool_version"] == "7"
    assert [r["request_id"] for r in record["requests"]] == [request["request_id"]]
    assert [attempt["n"] for attempt in record["operation"]["attempts"]] == [1, 2]
    assert [retry["decision"]["action"] for retry in record["retries"]] == ["retry"]
    assert [c["message"] for c in record["checkpoints"]] == [
        "turn.taken", "approval.decide", "tool.returned", "operation.done",
    ]  # fmt: skip
    assert record["outcome"]["result_text"] == '{"tag":"v1.2.0"}'


@pytest.mark.parametrize("operation_id", ["op_9", "r1"])
async def test_an_id_that_is_nobodys_is_not_found(world: World, http: httpx.AsyncClient, operation_id: str) -> None:
    an_operation(world)
    assert (await http.get(f"/v1/operations/{operation_id}")).status_code == 404


async def test_another_tenants_operation_looks_like_none(world: World) -> None:
    an_operation(world)
    async with world.http(tenant="globex") as http:
        assert (await http.get("/v1/operations/op_1")).status_code == 404


async def test_a_hash_that_differs_anywhere_is_told(world: World, http: httpx.AsyncClient) -> None:
    an_operation(world, request_hash="0" * 64)
    assert (await http.get("/v1/operations/op_1")).json()["hashes_agree"] is False


async def test_content_that_was_changed_afterwards_is_told(world: World, http: httpx.AsyncClient) -> None:
    an_operation(world)
    [row] = world.tables["approval_request"]
    row["content_text"] = row["content_text"].replace("4f2a", "beef")
    assert (await http.get("/v1/operations/op_1")).json()["hashes_agree"] is False


def test_a_person_is_told_by_command(world: World, placet: Placet) -> None:
    request = an_operation(world)
    told = placet("operation", "show", "op_1")
    assert told.code == 0
    assert told.out.count(request["request_hash"]) == 5
    for part in (
        "create_tag",
        "attempt 2",
        "retry after 0 ms: transient",
        "approved by alice",
        "all equal",
        '{"tag":"v1.2.0"}',
    ):
        assert part in told.out, part
    assert placet("operation", "show", "op_1", "--json").document["hashes_agree"] is True
    assert placet("operation", "show", "op_9").code != 0


def test_a_command_ends_badly_where_hashes_differ(world: World, placet: Placet) -> None:
    an_operation(world, request_hash="0" * 64)
    told = placet("operation", "show", "op_1")
    assert (told.code, "NOT EQUAL" in told.out) == (1, True)
