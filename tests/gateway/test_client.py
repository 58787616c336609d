"""The Python client: typed answers, refusals as errors with their codes, streams that survive being cut."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from placet.client import AsyncPlacetClient, Connection, PlacetClient
from placet.client.events import RECONNECTS_MAX
from placet.errors import Code, ContractError, PlacetError, RetryableError, TerminalError
from placet.messages import OperationDone
from tests.gateway.world import TENANT, TOKEN, World

ADDRESS = Connection("http://localhost:7300", TOKEN)


def async_client(world: World, **connection: Any) -> AsyncPlacetClient:
    return AsyncPlacetClient(
        Connection("http://localhost:7300", TOKEN, **connection), transport=httpx.ASGITransport(app=world.app())
    )


def blocking_client(handler: Callable[[httpx.Request], httpx.Response]) -> PlacetClient:
    return PlacetClient(ADDRESS, transport=httpx.MockTransport(handler))


async def test_the_whole_job_through_the_client(world: World) -> None:
    async with async_client(world) as client:
        receipt = await client.submit_run("release", run_id="r1", goal="cut v1.2.0")
        assert (receipt.answer, receipt.run_id) == ("accepted", "r1")
        world.add_request()
        (summary,) = (await client.requests()).items
        request = await client.request(summary.request_id)
        decided = await client.decide(
            request.request_id, decision="approve", request_hash=request.request_hash, decision_id="d1", person="alice"
        )
        assert (decided.outcome, decided.decided_by) == ("approved", "alice")
        assert (await client.requests()).items == []
        assert [item.status for item in (await client.requests(state="all")).items] == ["approved"]
        assert (await client.run("r1")).team == "release"
        assert [run.run_id for run in (await client.runs(status="planning")).items] == ["r1"]
        assert (await client.run_receipt("r1")).audit.intact
        assert {entry.source for entry in (await client.trace("r1")).entries} == {
            "approval_request", "approval_outcome",
        }  # fmt: skip
        assert (await client.revoke(request.request_id, "changed my mind")).answer == "accepted"
        assert (await client.cancel_run("r1", "enough")).answer == "accepted"
        assert (await client.dead_letters()).items == []
        world.add_letter(OperationDone(tenant=TENANT, run_id="r1", operation_id="op_1", status="succeeded"))
        world.silent = True
        assert (await client.dead_letter("dead_1")).applied is False
        assert (await client.redrive("dead_1")).answer == "sent"


async def test_the_person_of_the_connection_speaks_unless_a_call_names_another(world: World) -> None:
    world.add_run()
    async with async_client(world, person="bob") as client:
        await client.cancel_run("r1")
        row = world.add_request()
        await client.decide(
            row["request_id"], decision="reject", request_hash=row["request_hash"], decision_id="d1", person="carol"
        )
    cancelled, decided = (message.model_dump() for message, _ in world.asked)
    assert (cancelled["by"]["id"], decided["reviewer"]["id"]) == ("bob", "carol")


async def test_ids_are_quoted_so_that_they_cannot_name_another_resource(world: World) -> None:
    world.add_run("r1")
    async with async_client(world) as client:
        with pytest.raises(TerminalError) as refused:
            await client.run("../runs/r1")
    assert refused.value.code in {Code.RUN_NOT_FOUND, Code.NOT_FOUND}


@pytest.mark.parametrize(
    ("status", "problem", "kind", "code"),
    [
        (422, {"code": "PLAN_INVALID", "pointer": "/tasks/0"}, ContractError, Code.PLAN_INVALID),
        (428, {"code": "PRECONDITION_REQUIRED"}, ContractError, Code.PRECONDITION_REQUIRED),
        (401, {"code": "UNAUTHENTICATED"}, TerminalError, Code.UNAUTHENTICATED),
        (404, {"code": "RUN_NOT_FOUND"}, TerminalError, Code.RUN_NOT_FOUND),
        (409, {"code": "APPROVAL_CONFLICT", "final": True}, TerminalError, Code.APPROVAL_CONFLICT),
        (409, {"code": "APPROVAL_BUSY", "final": False}, RetryableError, Code.APPROVAL_BUSY),
        (503, {"code": "OUTCOME_UNKNOWN", "final": False}, RetryableError, Code.OUTCOME_UNKNOWN),
        (500, {"code": "INVARIANT", "final": False}, RetryableError, Code.INVARIANT),
        (418, {"code": "A_CODE_OF_NEXT_YEAR"}, TerminalError, Code.MESSAGE_INVALID),
    ],
)
def test_each_problem_is_an_error_of_its_family(
    status: int, problem: dict[str, Any], kind: type[PlacetError], code: Code
) -> None:
    told = {"type": "urn:x", "title": "T", "status": status, "detail": "why", "receipt": {"answer": "x"}, **problem}
    with blocking_client(lambda _: httpx.Response(status, json=told)) as client, pytest.raises(kind) as raised:
        client.cancel_run("r1")
    error = raised.value
    assert (error.code, error.message, error.pointer) == (code, "why", problem.get("pointer"))
    assert error.details["http_status"] == status
    assert error.details["receipt"] == {"answer": "x"}


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (httpx.Response(200, text="<html>"), RetryableError, Code.OUTCOME_UNKNOWN),
        (httpx.Response(502, text="bad gateway"), RetryableError, Code.OUTCOME_UNKNOWN),
        (httpx.Response(404, text="not here"), TerminalError, Code.MESSAGE_INVALID),
        (
            httpx.Response(302, headers={"Location": "http://elsewhere.example.test"}),
            TerminalError,
            Code.MESSAGE_INVALID,
        ),
    ],
)
def test_what_no_gateway_says_is_never_taken_for_a_refusal_of_what_may_have_happened(
    answer: httpx.Response, kind: type[PlacetError], code: Code
) -> None:
    with blocking_client(lambda _: answer) as client, pytest.raises(kind) as raised:
        client.cancel_run("r1")
    assert raised.value.code is code


@pytest.mark.parametrize(
    ("fault", "written", "read"),
    [
        (httpx.ConnectError("refused"), Code.GATEWAY_UNREACHABLE, Code.GATEWAY_UNREACHABLE),
        (httpx.ConnectTimeout("slow"), Code.GATEWAY_UNREACHABLE, Code.GATEWAY_UNREACHABLE),
        (httpx.ReadTimeout("slow"), Code.OUTCOME_UNKNOWN, Code.GATEWAY_UNREACHABLE),
        (httpx.RemoteProtocolError("cut"), Code.OUTCOME_UNKNOWN, Code.GATEWAY_UNREACHABLE),
    ],
)
def test_a_broken_connection_says_whether_anything_can_have_happened(
    fault: httpx.TransportError, written: Code, read: Code
) -> None:
    def broken(_request: httpx.Request) -> httpx.Response:
        raise fault

    with blocking_client(broken) as client:
        with pytest.raises(RetryableError) as post:
            client.cancel_run("r1")
        with pytest.raises(RetryableError) as get:
            client.run("r1")
    assert (post.value.code, get.value.code) == (written, read)


def test_a_newer_gateway_may_say_more(world: World) -> None:
    page: dict[str, Any] = {"items": [], "next": None, "as_of_ms": 1, "a_field_of_next_year": {"x": 1}}
    with blocking_client(lambda _: httpx.Response(200, json=page)) as client:
        assert client.runs().items == []


# ── watching ───────────────────────────────────────────────────────────────────────────


def frame(seq: int) -> bytes:
    data = {"seq": seq, "kind": "task.started", "subject": "t", "at_ms": 1, "detail": {"text": "\u2028"}}
    return f"id: {seq}\nevent: task.started\ndata: {json.dumps(data)}\n\n".encode()


END = b'event: end\ndata: {"status":"succeeded"}\n\n'


class Cut(httpx.SyncByteStream):
    """Some frames, and then the connection breaks."""

    def __init__(self, *frames: bytes) -> None:
        self._frames = frames

    def __iter__(self) -> Iterator[bytes]:
        yield from self._frames
        raise httpx.ReadError("cut")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr("placet.client.blocking.time.sleep", slept.append)
    return slept


def test_a_cut_stream_goes_on_after_the_last_event(pauses: list[float]) -> None:
    asked: list[str] = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["last-event-id"])
        match len(asked):
            case 1:
                return httpx.Response(200, stream=Cut(b"retry: 1000\n\n", frame(1), frame(2), b": still here\n\n"))
            case 2:
                return httpx.Response(200, stream=Cut(frame(3)[:20]))
            case 3:
                return httpx.Response(200, content=frame(3))  # ends properly, but before the run
            case _:
                return httpx.Response(200, content=frame(4) + END)

    with blocking_client(serve) as client:
        assert [event.seq for event in client.watch("r1")] == [1, 2, 3, 4]
    assert asked == ["0", "2", "2", "3"]
    assert len(pauses) == 3


def test_a_run_of_which_everything_was_seen_ends_at_once(pauses: list[float]) -> None:
    with blocking_client(lambda _: httpx.Response(204)) as client:
        assert list(client.watch("r1", after=7)) == []
    assert pauses == []


def test_a_gateway_that_stays_away_is_given_up(pauses: list[float]) -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with blocking_client(refuse) as client, pytest.raises(RetryableError) as raised:
        list(client.watch("r1"))
    assert raised.value.code is Code.GATEWAY_UNREACHABLE
    assert len(pauses) == RECONNECTS_MAX


def test_a_run_that_does_not_exist_is_not_asked_for_again(pauses: list[float]) -> None:
    told = {"type": "urn:x", "title": "T", "status": 404, "detail": "none", "code": "RUN_NOT_FOUND", "final": True}
    with blocking_client(lambda _: httpx.Response(404, json=told)) as client, pytest.raises(TerminalError):
        list(client.watch("r1"))
    assert pauses == []


async def test_the_asynchronous_client_watches_too(world: World) -> None:
    world.add_run(status="succeeded")
    for kind in ("run.submitted", "run.ended"):
        world.add_leaf(kind, note="\u2028\n\ndata: x")
    async with async_client(world) as client:
        assert [event.kind async for event in client.watch("r1")] == ["run.submitted", "run.ended"]


def test_both_clients_have_the_same_verbs() -> None:
    def verbs(client: type[Any]) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(client, inspect.isfunction)
            if not name.startswith("_")
        }

    assert verbs(PlacetClient) == verbs(AsyncPlacetClient)
