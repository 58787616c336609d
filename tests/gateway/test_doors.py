"""Who gets in: host, origin, token, person; and that every refusal is a problem."""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest

from placet.errors import Code, PlacetError
from placet_gateway.identity import development_token
from tests.gateway.world import TOKEN, World

PROBLEM = "application/problem+json"


def assert_problem(answer: httpx.Response, status: int, code: Code) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    body = answer.json()
    assert body["type"] == f"urn:placet:problem:{code}"
    assert (body["status"], body["code"]) == (status, code)
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["final"], bool)
    return dict(body)


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/runs/r1", "/v1/requests", "/v1/app", "/v1/dead-letters"])
@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
async def test_nobody_gets_in_without_the_token(http: httpx.AsyncClient, path: str, header: str | None) -> None:
    http.headers.pop("authorization")
    answer = await http.get(path, headers={} if header is None else {"Authorization": header})
    assert_problem(answer, 401, Code.UNAUTHENTICATED)
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_decision_without_the_token_reaches_nobody(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    http.headers.pop("authorization")
    answer = await http.post(
        f"/v1/requests/{row['request_id']}/decisions",
        json={"decision": "approve", "decision_id": "d1", "request_hash": row["request_hash"]},
    )
    assert_problem(answer, 401, Code.UNAUTHENTICATED)
    assert world.asked == []


@pytest.mark.parametrize(
    "host", ["rebound.example.test", "localhost.example.test", "10.0.0.7:7300", "127.0.0.1.example.test", ""]
)
async def test_a_name_that_is_not_ours_is_refused(http: httpx.AsyncClient, host: str) -> None:
    """DNS rebinding: a page's own name resolves to this machine."""
    assert_problem(await http.get("/v1/runs", headers={"Host": host}), 421, Code.HOST_NOT_ALLOWED)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7300", "127.0.0.1:9", "127.8.8.8", "[::1]:7300"])
async def test_loopback_names_are_ours(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/v1/runs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example.test"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_pages_of_other_sites_may_not_post(
    world: World, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    world.add_run()
    assert_problem(await http.post("/v1/runs/r1/cancel", headers=headers), 403, Code.ORIGIN_NOT_ALLOWED)
    assert world.asked == []


async def test_our_own_page_may_post(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    headers = {"Origin": "http://localhost:7300", "Sec-Fetch-Site": "same-origin"}
    assert (await http.post("/v1/runs/r1/cancel", headers=headers)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_only_a_post_decides(world: World, http: httpx.AsyncClient, method: str) -> None:
    row = world.add_request()
    answer = await http.request(method, f"/v1/requests/{row['request_id']}/decisions")
    assert answer.status_code == 405
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["allow"] == "POST"
    assert world.asked == []


async def test_an_unknown_path_is_a_problem(http: httpx.AsyncClient) -> None:
    assert_problem(await http.get("/v1/nothing"), 404, Code.NOT_FOUND)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1000", "status=happy"])
async def test_a_bad_parameter_is_named(http: httpx.AsyncClient, query: str) -> None:
    body = assert_problem(await http.get(f"/v1/runs?{query}"), 422, Code.PARAMETER_INVALID)
    assert body["parameter"] == query.partition("=")[0]


async def test_a_defect_tells_an_id_and_nothing_else(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_args: object, **_more: object) -> None:
        raise RuntimeError("SELECT secret FROM somewhere")

    monkeypatch.setattr(world, "runs", fails)
    answer = await http.get("/v1/runs")
    body = assert_problem(answer, 500, Code.INVARIANT)
    assert "SELECT" not in answer.text
    assert body["error_id"] in caplog.text
    assert answer.headers["cache-control"] == "no-store"


async def test_every_answer_forbids_storing_framing_and_guessing(http: httpx.AsyncClient) -> None:
    for path in ("/v1/runs", "/v1/nothing", "/livez"):
        headers = (await http.get(path)).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers


async def test_the_person_is_the_one_named_or_a_default_by_what_is_done(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    decision = {"decision": "approve", "decision_id": "d1", "request_hash": row["request_hash"]}
    where = f"/v1/requests/{row['request_id']}/decisions"
    await http.post("/v1/runs", json={"run_id": "r2", "team": "release", "goal": "x"})
    await http.post(where, json=decision)
    await http.post(where, json=decision, headers={b"Placet-Person": "Mária".encode()})
    submitted, decided, named = (message.model_dump() for message, _ in world.asked)
    assert (submitted["initiator"]["id"], submitted["initiator"]["kind"]) == ("developer", "human")
    assert decided["reviewer"]["id"] == "reviewer"
    assert named["reviewer"]["id"] == "Mária"


@pytest.mark.parametrize("name", [b"", b"  ", b"\xff\xfe", b"a" * 129])
async def test_a_person_that_is_no_name_is_refused(world: World, http: httpx.AsyncClient, name: bytes) -> None:
    headers: Any = [("Placet-Person", name)]
    body = assert_problem(await http.get("/v1/runs", headers=headers), 422, Code.PARAMETER_INVALID)
    assert body["parameter"] == "Placet-Person"
    assert world.asked == []


def test_the_development_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Any) -> None:
    token = development_token(tmp_path / "data")
    assert len(token) >= 40
    assert development_token(tmp_path / "data") == token
    path = tmp_path / "data" / "token"
    assert os.stat(path).st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(PlacetError, match="chmod 600"):
        development_token(tmp_path / "data")
