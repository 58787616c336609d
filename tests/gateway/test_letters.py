"""Dead letters over HTTP: shown to their tenant, and sent again as the same message."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from placet.calls import Executed
from placet.errors import Code, Failure, RetryableError, TerminalError
from placet.machine import Receipt
from placet.messages import (
    ApprovalDecided,
    CancelRun,
    DecideApproval,
    Message,
    RevokeApproval,
    SubmitRun,
    ToolReturned,
)
from placet.values import Principal, PrincipalKind
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import TENANT, World

ALICE = Principal(kind=PrincipalKind.HUMAN, id="alice")
HERE: dict[str, Any] = {"tenant": TENANT, "run_id": "r1"}
RETURNED = ToolReturned(**HERE, operation_id="op_1", attempt=1, outcome=Executed(result_text="1"))
REFUSED = Receipt(answer="refused", run_id="r1", failure=Failure(code=Code.NOT_FOUND, message="still not there"))


def applied(world: World, message_id: str = "msg_1") -> None:
    world.journalled.append({"tenant": TENANT, "run_id": "r1", "message_id": message_id})


async def test_one_is_shown_with_its_message_and_whether_that_has_been_applied_since(
    world: World, http: httpx.AsyncClient
) -> None:
    world.add_letter(RETURNED)
    letter = (await http.get("/v1/dead-letters/dead_1")).json()
    assert (letter["code"], letter["applied"]) == ("NOT_FOUND", False)
    assert '"tool.returned"' in letter["body"]
    applied(world)
    assert (await http.get("/v1/dead-letters/dead_1")).json()["applied"] is True


async def test_it_is_sent_again_as_the_same_message_and_stays(world: World, http: httpx.AsyncClient) -> None:
    world.add_letter(RETURNED)
    world.silent = True
    answer = await http.post("/v1/dead-letters/dead_1/redrive")
    assert (answer.status_code, answer.json()) == (200, {"id": "dead_1", "message_id": "msg_1", "answer": "sent"})
    assert world.asked == [(RETURNED, "msg_1")]
    assert len(world.letters) == 1
    applied(world)
    again = await http.post("/v1/dead-letters/dead_1/redrive", json={})
    assert again.json()["answer"] == "applied"
    assert len(world.asked) == 1, "what is applied is not sent once more"


async def test_what_could_not_be_sent_is_not_said_to_be_sent(world: World, http: httpx.AsyncClient) -> None:
    world.add_letter(RETURNED)
    world.broken = RetryableError(Code.BROKER_UNAVAILABLE, "the broker takes no messages in")
    told = assert_problem(await http.post("/v1/dead-letters/dead_1/redrive"), 503, Code.BROKER_UNAVAILABLE)
    assert "takes no messages in" in told["detail"]


async def test_who_sends_it_again_is_told_why_it_is_still_refused(world: World, http: httpx.AsyncClient) -> None:
    world.add_letter(RETURNED)
    world.scripted.append(REFUSED)
    told = assert_problem(await http.post("/v1/dead-letters/dead_1/redrive"), 404, Code.NOT_FOUND)
    assert told["detail"] == "still not there"


@pytest.mark.parametrize(
    "message",
    [
        SubmitRun(**HERE, team="release", goal="x", initiator=ALICE),
        CancelRun(**HERE, by=ALICE),
        RevokeApproval(**HERE, request_id="apr_1", by=ALICE),
        DecideApproval(
            **HERE, request_id="apr_1", decision_id="d1", request_hash="0" * 64, decision="approve", reviewer=ALICE
        ),
        ApprovalDecided(**HERE, request_id="apr_1", outcome="approved", asker_machine="nobody", asker_key=""),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_nobody_speaks_again_in_anothers_name_nor_to_nobody(
    world: World, http: httpx.AsyncClient, message: Message
) -> None:
    world.add_letter(message)
    assert_problem(await http.post("/v1/dead-letters/dead_1/redrive"), 422, Code.MESSAGE_UNEXPECTED)
    assert world.asked == []


async def test_what_this_version_cannot_read_is_shown_and_not_sent(world: World, http: httpx.AsyncClient) -> None:
    world.add_letter(RETURNED)
    world.letters[0]["body"] = world.letters[0]["body"].replace('"attempt":', '"of_a_newer_version":1,"attempt":')
    assert (await http.get("/v1/dead-letters/dead_1")).json()["applied"] is False
    assert_problem(await http.post("/v1/dead-letters/dead_1/redrive"), 422, Code.MESSAGE_INVALID)
    assert world.asked == []


@pytest.mark.parametrize("tenant", [None, "globex"])
async def test_anothers_dead_letter_looks_like_none(world: World, http: httpx.AsyncClient, tenant: str | None) -> None:
    if tenant is not None:
        world.add_letter(RETURNED.model_copy(update={"tenant": tenant}))
    for answer in (
        await http.get("/v1/dead-letters/dead_1"),
        await http.post("/v1/dead-letters/dead_1/redrive"),
    ):
        assert_problem(answer, 404, Code.NOT_FOUND)
    assert world.asked == []


# ── of outsiders, and nobody's ─────────────────────────────────────────────────────────

SUBMISSIONS = "placet.ingress.submissions"


def add_of_an_outsider(world: World, body: bytes = b"{}", **about: Any) -> None:
    """As the quarantine keeps what an outsider had published and nobody accepted."""
    try:
        shown = {"body": body.decode(), "body_base64": None}
    except UnicodeDecodeError:
        shown = {"body": body.decode(errors="backslashreplace"), "body_base64": base64.b64encode(body).decode()}
    world.letters.append(
        {"id": "dead_9", "tenant": "", "run_id": "", "destination": "ingress.submissions", "code": "UNAUTHENTICATED",
         "reason": "who?", "at_ms": 1, "queue": SUBMISSIONS, "about": about, "bytes": len(body), **shown}
    )  # fmt: skip


async def test_what_belongs_to_no_tenant_is_shown_to_the_operators_alone(world: World) -> None:
    world.add_letter(RETURNED)
    add_of_an_outsider(world, user_id="mallory", exchange="placet.submissions")
    async with world.http(operators=True) as http:
        listed = (await http.get("/v1/dead-letters")).json()["items"]
        assert [letter["id"] for letter in listed] == ["dead_1", "dead_9"], "one list, newest first"
        assert [letter["id"] for letter in (await http.get("/v1/dead-letters?limit=1")).json()["items"]] == ["dead_1"]
        shown = (await http.get("/v1/dead-letters/dead_9")).json()
        assert (shown["queue"], shown["about"]["user_id"], shown["bytes"]) == (SUBMISSIONS, "mallory", 2)
    async with world.http() as http:
        assert [letter["id"] for letter in (await http.get("/v1/dead-letters")).json()["items"]] == ["dead_1"]
        assert_problem(await http.get("/v1/dead-letters/dead_9"), 404, Code.NOT_FOUND)
        assert_problem(await http.post("/v1/dead-letters/dead_9/redrive"), 404, Code.NOT_FOUND)


async def test_what_an_outsider_had_published_is_published_again_byte_for_byte_and_asked_of_no_machine(
    world: World,
) -> None:
    sent: list[tuple[str, bytes, Any]] = []

    async def send_again(queue: str, body: bytes, about: Any) -> None:
        sent.append((queue, body, about))

    add_of_an_outsider(world, b"\xff\x00\\xff", message_id="m-1")
    async with world.http(operators=True, send_again=send_again) as http:
        answer = (await http.post("/v1/dead-letters/dead_9/redrive")).json()
    assert answer == {"id": "dead_9", "message_id": "m-1", "answer": "sent"}
    assert sent == [(SUBMISSIONS, b"\xff\x00\\xff", {"message_id": "m-1"})]
    assert world.asked == []


async def test_a_broker_that_forbids_it_is_told_with_what_is_missing(world: World) -> None:
    async def send_again(queue: str, body: bytes, about: Any) -> None:
        raise TerminalError(Code.BROKER_MISMATCH, "it needs the tag impersonator")

    add_of_an_outsider(world)
    async with world.http(operators=True, send_again=send_again) as http:
        answer = await http.post("/v1/dead-letters/dead_9/redrive")
    assert "impersonator" in assert_problem(answer, 422, Code.BROKER_MISMATCH)["detail"]
