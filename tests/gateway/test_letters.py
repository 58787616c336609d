"""Dead letters over HTTP: shown to their tenant, and sent again as the same message."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from placet.calls import Executed
from placet.errors import Code, Failure
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
