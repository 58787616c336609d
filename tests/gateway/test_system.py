"""What else the door shows: the application, dead letters, probes, and the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from placet.calls import EffectClass, ToolSpec
from placet.describing import described
from placet.errors import Code, ContractError, InvariantError, PlacetError, RetryableError, TerminalError
from placet.plans import AgentSpec, TeamSpec
from placet.retries import RetryPolicy
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import World


@dataclass
class HealthOf:
    live: bool = True
    ready: bool = True
    failing: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


@dataclass
class ToolOf:
    spec: ToolSpec


class Application:
    """As much of one as is shown."""

    name = "release"
    version = "2026.11"
    policy_version = "p1"

    def __init__(self) -> None:
        spec = ToolSpec(
            name="create_tag", version="1", schema_digest="d", effect=EffectClass.RECONCILABLE, consequential=True,
            timeout_ms=1_000, retry=RetryPolicy(),
        )  # fmt: skip
        agent = AgentSpec(name="releaser", tools=("create_tag",))
        self.tools = {"create_tag": ToolOf(spec)}
        self.agents = {"releaser": agent}
        self.teams = {"release": TeamSpec(name="release", agents=(agent,))}


async def test_the_application_is_shown_without_models_and_instructions(world: World) -> None:
    async with world.http(application=Application()) as http:
        assert (await http.get("/v1/app")).json() == {
            "name": "release",
            "version": "2026.11",
            "policy_version": "p1",
            "teams": [{"name": "release", "agents": ["releaser"], "planner": None}],
            "agents": [{"name": "releaser", "tools": ["create_tag"]}],
            "tools": [
                {
                    "name": "create_tag",
                    "version": "1",
                    "effect": "reconcilable",
                    "consequential": True,
                    "schema_digest": "d",
                    "binding": "tool",
                    "advisory": [],
                    "volatile": [],
                }
            ],
        }


async def test_a_gateway_without_an_application_says_what_to_set_for_it(http: httpx.AsyncClient) -> None:
    told = assert_problem(await http.get("/v1/app"), 501, Code.APP_UNKNOWN)
    assert "PLACET_APP_VIEW_FILE" in told["detail"]


async def test_a_gateway_that_is_told_of_an_application_shows_it_without_its_code(world: World) -> None:
    view = described(Application())
    async with world.http(application=view) as http:
        assert (await http.get("/v1/app")).json() == view.model_dump(mode="json")


async def test_dead_letters_are_shown_with_the_reason_of_each(world: World, http: httpx.AsyncClient) -> None:
    for run_id in ("r1", "r2"):
        world.letters.append(
            {"id": f"l-{run_id}", "run_id": run_id, "destination": "run", "code": "MESSAGE_INVALID", "reason": "why",
             "at_ms": 1, "body": "{}"}
        )  # fmt: skip
    assert len((await http.get("/v1/dead-letters")).json()["items"]) == 2
    (letter,) = (await http.get("/v1/dead-letters?run_id=r2")).json()["items"]
    assert (letter["id"], letter["code"], letter["reason"], letter["body"]) == ("l-r2", "MESSAGE_INVALID", "why", "{}")


async def test_the_probes_need_no_token_and_tell_living_from_ready(world: World) -> None:
    health = HealthOf()
    async with world.http(health=health) as http:
        http.headers.pop("authorization")
        assert [(await http.get(path)).status_code for path in ("/livez", "/readyz")] == [200, 200]
        health.ready, health.failing = False, {"relay": "the store is away"}
        assert [(await http.get(path)).status_code for path in ("/livez", "/readyz")] == [200, 503]
        assert (await http.get("/readyz")).json()["failing"] == {"relay": "the store is away"}
        health.live = False
        assert (await http.get("/livez")).status_code == 503


async def test_states_that_cannot_be_read_are_counted_by_the_probe_and_named_to_nobody(world: World) -> None:
    async with world.http(health=HealthOf(unreadable={"run:r1/": "of a newer version"})) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "unreadable": 1})


async def test_a_store_that_is_away_makes_the_door_unready_and_reading_unavailable(
    world: World, http: httpx.AsyncClient, monkeypatch: Any
) -> None:
    async def away(*_args: object, **_more: object) -> None:
        raise RetryableError(Code.STORE_UNAVAILABLE, "the store is away")

    monkeypatch.setattr(world, "dead_letters", away)
    monkeypatch.setattr(world, "runs", away)
    assert (await http.get("/readyz")).status_code == 503
    answer = await http.get("/v1/runs")
    assert assert_problem(answer, 503, Code.STORE_UNAVAILABLE)["final"] is False
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "error",
    [
        RetryableError(Code.STORE_UNAVAILABLE, "the store is away"),
        TerminalError(Code.STORE_IN_USE, "another process owns it"),
        TerminalError(Code.CHECKPOINT_CORRUPT, "what is stored contradicts itself"),
        ContractError(Code.CHECKPOINT_VERSION_UNSUPPORTED, "the schema is newer"),
        InvariantError("never to happen"),
    ],
    ids=lambda error: error.code.value,
)
async def test_whatever_is_wrong_with_the_store_the_probe_answers_with_the_reason(
    world: World, http: httpx.AsyncClient, monkeypatch: Any, error: PlacetError
) -> None:
    async def unfit(*_args: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(world, "dead_letters", unfit)
    answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "failing", "failing": {"store": f"{error.code.value}: {error.message}"}}


async def test_the_openapi_document_is_3_1_and_names_bodies_and_problems(http: httpx.AsyncClient) -> None:
    document = (await http.get("/v1/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    assert {"submitRun", "listRuns", "getRun", "watchRun", "cancelRun", "getRunReceipt", "traceRun"} <= set(ids)
    assert {"listRequests", "getRequest", "decideRequest", "revokeApproval", "listDeadLetters", "getApp"} <= set(ids)
    for operation in operations:
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert operation["security"]
    schemas = document["components"]["schemas"]
    assert {"RunSubmission", "Decision", "PlannedTask", "Receipt", "RequestView", "Problem"} <= set(schemas)
    assert schemas["Decision"]["additionalProperties"] is False
    assert set(schemas["Decision"]["required"]) == {"decision_id", "decision"}
    _assert_refs_resolve(document, document)


def _assert_refs_resolve(part: Any, document: dict[str, Any]) -> None:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            at: Any = document
            for step in part["$ref"].removeprefix("#/").split("/"):
                at = at[step]
        for value in part.values():
            _assert_refs_resolve(value, document)
    elif isinstance(part, list):
        for value in part:
            _assert_refs_resolve(value, document)
