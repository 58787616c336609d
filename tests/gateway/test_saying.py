"""Words that come with a value over HTTP: edits, answers, requests for changes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from placet import App, ToolContext
from placet.errors import Code, Failure
from placet.machine import Receipt
from placet.messages import DecideApproval
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity
from tests.gateway.test_client import async_client
from tests.gateway.test_doors import assert_problem
from tests.gateway.test_requests import decision, where
from tests.gateway.world import TAG, TENANT, TOKEN, World


def accepted(world: World, **more: Any) -> None:
    world.scripted.append(Receipt(answer="accepted", run_id="r1", **more))


def asked(world: World) -> DecideApproval:
    message, _ = world.asked[-1]
    assert isinstance(message, DecideApproval)
    return message


@pytest.mark.parametrize(
    ("body", "value_text"),
    [
        ({"decision": "edit", "value": {"name": "v2", "commit": "1"}}, '{"commit":"1","name":"v2"}'),
        ({"decision": "respond", "value": "by hand"}, '"by hand"'),
        ({"decision": "respond", "value": None}, "null"),
        ({"decision": "respond", "value": [1.0, True]}, "[1,true]"),
        ({"decision": "request_changes", "reason": "name it"}, None),
    ],
)
async def test_what_is_said_becomes_the_message_in_its_one_form(
    world: World, http: httpx.AsyncClient, body: dict[str, Any], value_text: str | None
) -> None:
    row = world.add_request()
    accepted(world)
    assert (await http.post(where(row), json=decision(row, **body))).status_code == 200
    assert (asked(world).decision, asked(world).value_text) == (body["decision"], value_text)
    assert asked(world).reason == body.get("reason")


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"decision": "edit"}, Code.APPROVAL_VALIDATION_ERROR, "/value"),
        ({"decision": "edit", "value": []}, Code.APPROVAL_VALIDATION_ERROR, "/value"),
        ({"decision": "respond"}, Code.APPROVAL_VALIDATION_ERROR, "/value"),
        ({"decision": "approve", "value": {}}, Code.APPROVAL_VALIDATION_ERROR, "/value"),
        ({"decision": "reject", "value": None}, Code.APPROVAL_VALIDATION_ERROR, "/value"),
        ({"decision": "request_changes"}, Code.APPROVAL_VALIDATION_ERROR, "/reason"),
        ({"decision": "edit", "input": {}}, Code.APPROVAL_VALIDATION_ERROR, "/input"),
        ({"decision": "respond", "value": "x" * 100_000}, Code.TOO_LARGE, "/value"),
    ],
)
async def test_a_body_that_cannot_be_meant_reaches_nobody(
    world: World, http: httpx.AsyncClient, body: dict[str, Any], code: Code, pointer: str
) -> None:
    row = world.add_request()
    answer = await http.post(where(row), json=decision(row, **body))
    told = assert_problem(answer, 413 if code is Code.TOO_LARGE else 422, code)
    assert told["pointer"] == pointer
    assert world.asked == []


def an_app() -> App:
    app = App("release", version="1")

    @app.tool(effect="idempotent", consequential=True)
    async def create_tag(ctx: ToolContext, name: str, commit: str = "HEAD") -> str:
        """Tag a commit."""
        return f"{name} {commit}"

    return app


def with_tools(world: World) -> httpx.AsyncClient:
    """A gateway in a process that has the application's tools."""
    app = gateway(world, world, DevelopmentIdentity(TOKEN), tenant=TENANT, application=an_app())
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {TOKEN}"},
    )


async def test_where_the_tool_is_known_an_input_that_it_cannot_take_is_refused_with_its_place(world: World) -> None:
    row = world.add_request()
    async with with_tools(world) as http:
        wrong = await http.post(where(row), json=decision(row, decision="edit", value={"name": 1}))
        assert assert_problem(wrong, 422, Code.TOOL_INPUT_INVALID)["pointer"] == "/value/name"
        assert world.asked == []
        accepted(world)
        right = await http.post(where(row), json=decision(row, decision="edit", value={"name": "v2"}))
        assert right.status_code == 200
        assert asked(world).value_text == '{"name":"v2"}', "as it was given: defaults are the tool's to fill in"


async def test_a_repeat_gets_its_receipt_whatever_the_tool_takes_today(world: World) -> None:
    row = world.add_request()
    world.put("approval_outcome", request_id=row["request_id"], run_id="r1", outcome="superseded")
    accepted(world)
    async with with_tools(world) as http:
        again = await http.post(where(row), json=decision(row, decision="edit", value={"name": 1}))
    assert again.status_code == 200


async def test_the_receipt_of_an_edit_and_of_who_comes_too_late_names_the_successor(
    world: World, http: httpx.AsyncClient
) -> None:
    row = world.add_request()
    accepted(world, outcome="superseded", successor="apr_next")
    edited = await http.post(where(row), json=decision(row, decision="edit", value={"name": "v2"}))
    assert edited.json()["successor"] == "apr_next"
    failure = Failure(code=Code.APPROVAL_CLOSED, message="apr_next has taken its place")
    world.scripted.append(Receipt(answer="closed", run_id="r1", successor="apr_next", failure=failure))
    late = assert_problem(await http.post(where(row), json=decision(row)), 409, Code.APPROVAL_CLOSED)
    assert late["receipt"]["successor"] == "apr_next"


async def test_a_request_says_whose_place_it_takes_who_edited_it_and_what_was_said(
    world: World, http: httpx.AsyncClient
) -> None:
    first = world.add_request()
    world.put(
        "approval_outcome",
        request_id=first["request_id"], run_id="r1", outcome="superseded", decided_by="bob", decided_at_ms=1,
        value_text='{"name":"v2"}', successor="apr_next",
    )  # fmt: skip
    second = world.add_request(
        TAG | {"rawInput": {"name": "v2"}}, generation=2, supersedes=first["request_id"], requesters="bob\neve"
    )
    shown = (await http.get(f"/v1/requests/{second['request_id']}")).json()
    assert (shown["generation"], shown["supersedes"], shown["requesters"]) == (2, first["request_id"], ["bob", "eve"])
    before = (await http.get(f"/v1/requests/{first['request_id']}")).json()
    assert (before["generation"], before["supersedes"], before["requesters"]) == (1, None, [])
    assert (before["decision"]["value_text"], before["decision"]["successor"]) == ('{"name":"v2"}', "apr_next")


async def test_the_client_says_it(world: World) -> None:
    row = world.add_request()
    async with async_client(world) as client:
        for word, value in (("edit", {"name": "v2"}), ("respond", None), ("respond", "by hand")):
            accepted(world, successor="apr_next")
            receipt = await client.decide(
                row["request_id"],
                decision=word,  # type: ignore[arg-type]
                request_hash=row["request_hash"],
                decision_id=f"d-{value}",
                value=value,  # type: ignore[arg-type]
            )
            assert receipt.successor == "apr_next"
        assert asked(world).value_text == '"by hand"'


async def test_several_are_decided_at_once_only_where_a_yes_is_an_answer(world: World, http: httpx.AsyncClient) -> None:
    question = {"kind": "question", "question": "Which?", "agentName": "a", "taskId": "cut", "toolCallId": "c1.1"}
    row = world.add_request(question, boundary="question:cut:c1.1")
    item = {"request_id": row["request_id"], "request_hash": row["request_hash"], "decision_id": "d1"}
    answer = await http.post("/v1/decisions", json={"decision": "approve", "items": [item]})
    assert_problem(answer, 422, Code.APPROVAL_VALIDATION_ERROR)
    assert world.asked == []
