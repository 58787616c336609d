"""What a body may be: strict JSON of a closed shape, bounded while it is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from placet import limits
from placet.errors import Code
from placet_gateway import bodies
from tests.cases import case
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import World

JSON = {"Content-Type": "application/json"}


async def submit(http: httpx.AsyncClient, body: bytes | str, **headers: str) -> httpx.Response:
    return await http.post("/v1/runs", content=body, headers={**JSON, **headers})


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        (b"", Code.JSON_SYNTAX, None),
        (b"{", Code.JSON_SYNTAX, None),
        (b'{"team": "a"} {}', Code.JSON_SYNTAX, None),
        (b'{"team": "a", "team": "b"}', Code.JSON_DUPLICATE_KEY, "/team"),
        (b'{"team": "a", "tasks": [{"call": {"input": {"x": NaN}}}]}', Code.JSON_NUMBER, "/tasks/0/call/input/x"),
        (b'{"timeout_ms": 1e400}', Code.JSON_NUMBER, "/timeout_ms"),
        (b'{"timeout_ms": 9007199254740993}', Code.JSON_NUMBER, "/timeout_ms"),
        (b'{"goal": "\\ud83d"}', Code.JSON_TEXT, "/goal"),
        (b"\xff", Code.JSON_TEXT, None),
        (b"\xef\xbb\xbf{}", Code.JSON_TEXT, None),
        (b"[" * 20_000 + b"]" * 20_000, Code.TOO_DEEP, None),
    ],
)
async def test_what_two_readers_might_read_differently_is_refused(
    world: World, http: httpx.AsyncClient, body: bytes, code: Code, pointer: str | None
) -> None:
    told = assert_problem(await submit(http, body), 400, code)
    assert told.get("pointer") == pointer
    assert world.asked == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ([], ""),
        ({"run_id": "r1"}, "/team"),
        ({"run_id": "r1", "team": ""}, "/team"),
        ({"run_id": "../r1", "team": "a"}, "/run_id"),
        ({"run_id": "r" * 129, "team": "a"}, "/run_id"),
        ({"run_id": 5, "team": "a"}, "/run_id"),
        ({"run_id": "r1", "team": "a", "mode": "dream"}, "/mode"),
        ({"run_id": "r1", "team": "a", "timeout_ms": "60"}, "/timeout_ms"),
        ({"run_id": "r1", "team": "a", "timeout_ms": True}, "/timeout_ms"),
        ({"run_id": "r1", "team": "a", "timeout_ms": 0}, "/timeout_ms"),
        ({"run_id": "r1", "team": "a", "initiator": {"kind": "human", "id": "boss"}}, "/initiator"),
        ({"run_id": "r1", "team": "a", "tasks": [{"id": "t"}]}, "/tasks/0/title"),
        ({"run_id": "r1", "team": "a", "tasks": [{"id": "t", "title": "T", "approved": True}]}, "/tasks/0/approved"),
        ({"team": "a"}, "/run_id"),
    ],
)
async def test_a_submission_of_another_shape_is_refused_with_the_place(
    world: World, http: httpx.AsyncClient, body: Any, pointer: str
) -> None:
    told = assert_problem(await submit(http, json.dumps(body)), 422, Code.SUBMISSION_INVALID)
    assert told["pointer"] == pointer
    assert world.asked == []


async def test_every_finding_is_told_not_only_the_first(http: httpx.AsyncClient) -> None:
    told = assert_problem(await submit(http, b'{"team": "", "mode": "x", "y": 1}'), 422, Code.SUBMISSION_INVALID)
    assert [error["pointer"] for error in told["errors"]] == ["/team", "/mode", "/y"]


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "application/jsonx"],
)
async def test_only_json_is_read(world: World, http: httpx.AsyncClient, kind: str) -> None:
    answer = await submit(http, b'{"run_id": "r1", "team": "a"}', **{"Content-Type": kind})
    assert_problem(answer, 415, Code.MEDIA_TYPE_UNSUPPORTED)
    assert world.asked == []


async def test_a_charset_that_says_what_is_so_anyway_is_fine(http: httpx.AsyncClient) -> None:
    kind = 'application/json; charset="UTF-8"'
    assert (await submit(http, b'{"run_id": "r1", "team": "a"}', **{"Content-Type": kind})).status_code == 201


async def test_compressed_bodies_are_not_read(http: httpx.AsyncClient) -> None:
    assert_problem(await submit(http, b"{}", **{"Content-Encoding": "gzip"}), 415, Code.MEDIA_TYPE_UNSUPPORTED)


async def test_a_body_of_a_mebibyte_is_read_and_one_byte_more_is_not(http: httpx.AsyncClient) -> None:
    body = b'{"run_id": "r1", "team": "a"}'
    exact = body + b" " * (limits.JSON_BYTES_MAX - len(body))
    assert (await submit(http, exact)).status_code == 201
    assert_problem(await submit(http, exact + b" "), 413, Code.TOO_LARGE)


async def test_a_body_too_large_is_cut_off_while_it_arrives(http: httpx.AsyncClient) -> None:
    """Without a Content-Length, a sender could go on for ever."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 65_536

    assert_problem(await http.post("/v1/runs", content=endless(), headers=JSON), 413, Code.TOO_LARGE)
    assert sent <= limits.JSON_BYTES_MAX // 65_536 + 2


async def test_a_body_that_drips_is_cut_off(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "ARRIVAL_TIMEOUT_S", 0.05)
    never = asyncio.Event()

    async def dripping() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    told = assert_problem(await http.post("/v1/runs", content=dripping(), headers=JSON), 408, Code.REQUEST_TOO_SLOW)
    assert told["final"] is False


@case("C04")
@pytest.mark.parametrize(
    "decision", ["approved", "APPROVE", "APPROVE ", "yes", "false", True, None, ["approve"], 1, ""]
)
async def test_a_decision_is_one_of_the_exact_words(world: World, http: httpx.AsyncClient, decision: Any) -> None:
    row = world.add_request()
    body = {"decision_id": "d1", "request_hash": row["request_hash"], "decision": decision}
    answer = await http.post(f"/v1/requests/{row['request_id']}/decisions", json=body)
    told = assert_problem(answer, 422, Code.APPROVAL_VALIDATION_ERROR)
    assert told["pointer"] == "/decision"
    assert world.asked == []


async def test_a_decision_word_is_checked_before_the_request_is_looked_for(http: httpx.AsyncClient) -> None:
    body = {"decision_id": "d1", "request_hash": "0" * 64, "decision": "yes"}
    answer = await http.post("/v1/requests/apr_unknown/decisions", json=body)
    assert_problem(answer, 422, Code.APPROVAL_VALIDATION_ERROR)


@pytest.mark.parametrize(
    "extra",
    [
        {"approved": "false"},
        {"args": {"amount": 9000}},
        {"tool": "pay_all"},
        {"reviewer": {"kind": "human", "id": "boss"}},
        {"decided_at_ms": 5},
        {"request_id": "apr_other"},
    ],
)
async def test_a_decision_carries_nothing_but_itself(
    world: World, http: httpx.AsyncClient, extra: dict[str, Any]
) -> None:
    """Neither arguments nor another reviewer nor a time of one's own."""
    row = world.add_request()
    body = {"decision_id": "d1", "request_hash": row["request_hash"], "decision": "approve", **extra}
    answer = await http.post(f"/v1/requests/{row['request_id']}/decisions", json=body)
    told = assert_problem(answer, 422, Code.APPROVAL_VALIDATION_ERROR)
    assert told["pointer"] == f"/{next(iter(extra))}"
    assert world.asked == []


@pytest.mark.parametrize("field", ["decision_id", "decision"])
async def test_a_decision_needs_each_of_its_parts(world: World, http: httpx.AsyncClient, field: str) -> None:
    row = world.add_request()
    body = {"decision_id": "d1", "request_hash": row["request_hash"], "decision": "approve"}
    del body[field]
    answer = await http.post(f"/v1/requests/{row['request_id']}/decisions", json=body)
    assert assert_problem(answer, 422, Code.APPROVAL_VALIDATION_ERROR)["pointer"] == f"/{field}"
    assert world.asked == []


@pytest.mark.parametrize("given", [{}, {"request_hash": None}, {"request_hash": ""}])
async def test_a_decision_without_the_hash_is_no_decision(
    world: World, http: httpx.AsyncClient, given: dict[str, Any]
) -> None:
    row = world.add_request()
    body = {"decision_id": "d1", "decision": "approve", **given}
    answer = await http.post(f"/v1/requests/{row['request_id']}/decisions", json=body)
    assert assert_problem(answer, 428, Code.PRECONDITION_REQUIRED)["pointer"] == "/request_hash"
    assert world.asked == []
