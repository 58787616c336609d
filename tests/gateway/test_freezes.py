"""The emergency stop at the door and by command: who, why, since when; set, lifted, shown."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from placet.freezing import FreezeOperations, freeze_run
from tests.cases import case
from tests.cli.conftest import Placet, environment, offline, placet, server, url
from tests.gateway.world import NOW_MS, TENANT, World

__all__ = ["environment", "offline", "placet", "server", "url"]


def is_frozen(world: World, *tools: str) -> None:
    switches = [{"tool": tool, "by": "alice", "reason": "fire", "since_ms": NOW_MS} for tool in tools]
    state = {"status": "frozen", "version": 2, "created_at_ms": NOW_MS, "updated_at_ms": NOW_MS, "tenant": TENANT}
    world.states[freeze_run(TENANT), "operation", "freeze"] = {**state, "body": {"frozen": switches}}


@case("M54")
async def test_a_stop_becomes_the_message_in_the_callers_name(world: World, http: httpx.AsyncClient) -> None:
    for body, tool in (({"reason": "fire"}, None), ({"reason": "fire", "tool": "create_tag"}, "create_tag")):
        answer = await http.post("/v1/freeze", json=body)
        assert answer.status_code == 200
        message, _ = world.asked.pop()
        assert isinstance(message, FreezeOperations)
        assert (message.word, message.tool, message.reason) == ("freeze", tool, "fire")
        assert message.by is not None
        assert (message.by.id, message.tenant, message.run_id) == ("developer", TENANT, freeze_run(TENANT))
        answer = await http.delete("/v1/freeze", params={"tool": tool} if tool else {})
        assert answer.status_code == 200
        message, _ = world.asked.pop()
        assert isinstance(message, FreezeOperations)
        assert (message.word, message.tool) == ("thaw", tool)


@pytest.mark.parametrize("body", [{}, {"reason": 1}, {"reason": "x", "by": "alice"}, {"reason": "x", "tool": ""}, []])
async def test_a_stop_that_says_not_what_is_refused(world: World, http: httpx.AsyncClient, body: Any) -> None:
    assert (await http.post("/v1/freeze", json=body)).status_code in (400, 422)
    assert world.asked == []


async def test_what_is_stopped_is_shown(world: World, http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/freeze")).json()["items"] == []
    is_frozen(world, "*", "create_tag")
    shown = (await http.get("/v1/freeze")).json()["items"]
    same = {"by": "alice", "reason": "fire", "since_ms": NOW_MS}
    assert shown == [{"tool": None, **same}, {"tool": "create_tag", **same}]
    async with world.http(tenant="globex") as other:
        assert (await other.get("/v1/freeze")).json()["items"] == []


def test_a_person_stops_looks_and_lets_go_on(world: World, placet: Placet) -> None:
    assert placet("stop").out == "Nothing is stopped.\n"
    assert placet("stop", "--reason", "fire").out == "accepted: freeze None\n"
    assert placet("stop", "--tool", "create_tag", "--reason", "fire").out == "accepted: freeze create_tag\n"
    is_frozen(world, "*", "create_tag")
    shown = placet("stop").out
    for part in ("every tool", "create_tag", "alice", "fire"):
        assert part in shown
    assert len(placet("stop", "--json").document["items"]) == 2
    assert placet("stop", "--off").out == "accepted: thaw None\n"
    assert placet("stop", "--off", "--tool", "create_tag", "--json").document["status"] == "thaw create_tag"


@pytest.mark.parametrize("arguments", [["--tool", "create_tag"], ["--off", "--reason", "fire"]])
def test_a_stop_that_may_be_meant_otherwise_is_refused(world: World, placet: Placet, arguments: list[str]) -> None:
    assert placet("stop", *arguments).code == 2
    assert world.asked == []
