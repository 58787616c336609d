"""Approval requests over HTTP: the inbox, one in full, a decision, a revocation."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from placet.canonical import parse_canonical
from placet.errors import Code, Failure
from placet.machine import Receipt
from placet.messages import DecideApproval, RevokeApproval
from placet.requests import request_hash
from tests.gateway.test_doors import assert_problem
from tests.gateway.test_runs import filled
from tests.gateway.world import BIDI, TAG, World


def decision(row: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {"decision": "approve", "decision_id": "d1", "request_hash": row["request_hash"], **changed}


def where(row: dict[str, Any]) -> str:
    return f"/v1/requests/{row['request_id']}/decisions"


async def test_the_inbox_pages_oldest_first_and_shows_only_open_requests(world: World, http: httpx.AsyncClient) -> None:
    rows = [world.add_request(TAG | {"toolCallId": f"c{n}.1"}, requested_at_ms=1_000 + n) for n in range(6)]
    await http.post(where(rows[2]), json=decision(rows[2]))
    seen, after = [], None
    while True:
        page = (await http.get("/v1/requests", params={"limit": 2} | ({"after": after} if after else {}))).json()
        seen += [request["request_id"] for request in page["items"]]
        after = page.get("next")
        if after is None:
            break
    assert seen == [row["request_id"] for n, row in enumerate(rows) if n != 2]
    everything = (await http.get("/v1/requests?state=all")).json()["items"]
    assert [(request["status"], request["decided_by"]) for request in everything][2] == ("approved", "reviewer")


async def test_a_request_in_full_shows_the_bytes_that_are_hashed(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    answer = await http.get(f"/v1/requests/{row['request_id']}")
    shown = answer.json()
    assert shown["content_text"] == row["content_text"]
    assert shown["request_hash"] == request_hash(
        shown["scope"],
        shown["boundary"],
        parse_canonical(shown["content_text"]),  # type: ignore[arg-type]
    )
    assert answer.headers["etag"] == f'"{shown["request_hash"]}"'
    assert shown["sentence"] == (
        'releaser wants to run create_tag(commit="4f2a", name="v1.2.0") in run r1 — consequential. '
        "Reason: touches production."
    )
    assert (shown["status"], shown["findings"], shown["decision"]) == ("open", [], None)


async def test_hidden_characters_are_found_and_counted(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request(TAG | {"input": BIDI, "rawInput": BIDI})
    shown = (await http.get(f"/v1/requests/{row['request_id']}")).json()
    found = {(finding["pointer"], finding["code_point"]) for finding in shown["findings"]}
    assert {("/input/url", "U+202E"), ("/input/url", "U+2066"), ("/input/url", "U+2069")} <= found
    assert {("/input/path", "U+200B"), ("/input/line", "U+2028")} <= found
    for character in "\u202e\u2066\u2069\u200b\u2028":
        assert character not in shown["sentence"]
        assert character in shown["content_text"]
    (listed,) = (await http.get("/v1/requests")).json()["items"]
    assert listed["hazards"] == len(shown["findings"]) > 0


async def test_very_long_content_is_looked_through_in_full_only_when_it_is_opened(
    world: World, http: httpx.AsyncClient
) -> None:
    long = {"text": "x" * 100_000 + "\u202e"}
    row = world.add_request(TAG | {"input": long, "rawInput": long})
    (listed,) = (await http.get("/v1/requests")).json()["items"]
    assert listed["hazards"] is None
    assert len(listed["sentence"]) < 500
    shown = (await http.get(f"/v1/requests/{row['request_id']}")).json()
    assert [found["pointer"] for found in shown["findings"]] == ["/input/text", "/rawInput/text"]
    assert shown["hazards"] == 2


async def test_what_was_decided_and_what_became_of_it_are_two_things(world: World, http: httpx.AsyncClient) -> None:
    row = filled(world)
    shown = (await http.get(f"/v1/requests/{row['request_id']}")).json()
    assert shown["status"] == "approved"
    assert (shown["decision"]["outcome"], shown["decision"]["decided_by"]) == ("approved", "reviewer")
    assert [vote["person_id"] for vote in shown["votes"]] == ["reviewer"]
    assert (shown["operation"]["status"], shown["operation"]["attempts"][0]["ended"]) == ("succeeded", "succeeded")


async def test_another_tenants_request_looks_like_none(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request(tenant="other")
    foreign = await http.get(f"/v1/requests/{row['request_id']}")
    absent = await http.get("/v1/requests/apr_00000000000000000000000000000000")
    assert_problem(foreign, 404, Code.APPROVAL_NOT_FOUND)
    assert foreign.content == absent.content
    assert (await http.get("/v1/requests?state=all")).json()["items"] == []
    assert_problem(await http.post(where(row), json=decision(row)), 404, Code.APPROVAL_NOT_FOUND)
    assert world.asked == []


async def test_a_decision_about_nothing_is_not_found(world: World, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/requests/apr_unknown/decisions", json=decision({"request_hash": "0" * 64}))
    assert_problem(answer, 404, Code.APPROVAL_NOT_FOUND)
    assert world.asked == []


async def test_a_decision_becomes_the_message_and_the_receipt_comes_back_byte_for_byte(
    world: World, http: httpx.AsyncClient
) -> None:
    row = world.add_request()
    first = await http.post(where(row), json=decision(row, reason="checked", shown_digest="s"))
    again = await http.post(where(row), json=decision(row, reason="checked", shown_digest="s"))
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.content == again.content == world.stored["d1"].encode()
    (message, message_id), (_, again_id) = world.asked
    assert message_id == again_id
    assert isinstance(message, DecideApproval)
    assert message.model_dump(exclude={"reviewer", "type"}) == {
        "tenant": "default", "run_id": "r1", "request_id": row["request_id"], "decision_id": "d1", "reason": "checked",
        "request_hash": row["request_hash"], "decision": "approve", "shown_digest": "s", "value_text": None,
        "signed": None,
    }  # fmt: skip


async def test_the_hash_may_come_as_if_match(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    body = {name: value for name, value in decision(row).items() if name != "request_hash"}
    etag = (await http.get(f"/v1/requests/{row['request_id']}")).headers["etag"]
    assert (await http.post(where(row), json=body, headers={"If-Match": etag})).status_code == 200
    star = await http.post(where(row), json=body, headers={"If-Match": "*"})
    assert_problem(star, 428, Code.PRECONDITION_REQUIRED)
    both = await http.post(where(row), json=decision(row), headers={"If-Match": '"other"'})
    assert_problem(both, 422, Code.APPROVAL_VALIDATION_ERROR)


async def test_the_idempotency_key_of_a_decision_is_its_decision_id(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    other = await http.post(where(row), json=decision(row), headers={"Idempotency-Key": "d2"})
    assert_problem(other, 422, Code.APPROVAL_VALIDATION_ERROR)
    assert world.asked == []
    assert (await http.post(where(row), json=decision(row), headers={"Idempotency-Key": '"d1"'})).status_code == 200


@pytest.mark.parametrize("change", [str.upper, lambda h: h[:-1], lambda h: h + "0", lambda h: "0" * 64])
async def test_another_hash_is_stale_and_the_right_one_still_decides(
    world: World, http: httpx.AsyncClient, change: Any
) -> None:
    row = world.add_request()
    stale = await http.post(where(row), json=decision(row, request_hash=change(row["request_hash"])))
    assert_problem(stale, 412, Code.APPROVAL_STALE_DECISION)
    assert (await http.post(where(row), json=decision(row, decision_id="d2"))).status_code == 200


async def test_a_lost_race_names_the_winner(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    await http.post(where(row), json=decision(row), headers={"Placet-Person": "alice"})
    lost = await http.post(
        where(row), json=decision(row, decision="reject", decision_id="d2"), headers={"Placet-Person": "bob"}
    )
    told = assert_problem(lost, 409, Code.APPROVAL_CONFLICT)
    assert told["final"] is True
    assert told["detail"] == "already approved by alice"
    assert (told["receipt"]["outcome"], told["receipt"]["decided_by"]) == ("approved", "alice")


@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [
        ("conflict", None, 409),
        ("closed", Code.APPROVAL_CLOSED, 409),
        ("expired", Code.APPROVAL_EXPIRED, 410),
        ("stale", Code.APPROVAL_STALE_DECISION, 412),
        ("not_allowed", Code.APPROVER_NOT_ALLOWED, 403),
        ("invalid", Code.APPROVAL_VALIDATION_ERROR, 422),
        ("not_found", Code.APPROVAL_NOT_FOUND, 404),
        ("refused", Code.APPROVAL_INTEGRITY_ERROR, 409),
        ("refused", Code.APPROVAL_VALIDATION_ERROR, 422),
    ],
)
async def test_each_answer_of_the_machines_has_its_status(
    world: World, http: httpx.AsyncClient, answer: str, code: Code | None, status: int
) -> None:
    row = world.add_request()
    failure = None if code is None else Failure(code=code, message="because")
    world.scripted.append(Receipt(answer=answer, run_id="r1", request_id=row["request_id"], failure=failure))
    told = assert_problem(await http.post(where(row), json=decision(row)), status, code or Code.APPROVAL_CONFLICT)
    assert told["receipt"]["answer"] == answer


async def test_busy_is_not_final_and_says_when_to_ask_again(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    world.scripted.append(Receipt(answer="busy", final=False, run_id="r1"))
    answer = await http.post(where(row), json=decision(row))
    told = assert_problem(answer, 409, Code.APPROVAL_BUSY)
    assert told["final"] is False
    assert answer.headers["retry-after"] == "1"


async def test_an_unanswered_decision_is_unknown_and_is_to_be_repeated_under_its_id(
    world: World, http: httpx.AsyncClient
) -> None:
    row = world.add_request()
    world.silent = True
    answer = await http.post(where(row), json=decision(row))
    told = assert_problem(answer, 503, Code.OUTCOME_UNKNOWN)
    assert told["final"] is False
    assert "d1" in told["detail"]


async def test_a_revocation_names_who_and_why(world: World, http: httpx.AsyncClient) -> None:
    row = world.add_request()
    answer = await http.post(f"/v1/requests/{row['request_id']}/revocation", json={"reason": "wrong commit"})
    assert answer.status_code == 200
    (message, _) = world.asked[0]
    assert isinstance(message, RevokeApproval)
    assert (message.by.id, message.reason, message.run_id) == ("reviewer", "wrong commit", "r1")
    absent = await http.post("/v1/requests/apr_unknown/revocation")
    assert_problem(absent, 404, Code.APPROVAL_NOT_FOUND)


async def test_a_batch_of_which_one_was_only_busy_is_worth_repeating(world: World, http: httpx.AsyncClient) -> None:
    rows = [world.add_request(TAG | {"toolCallId": f"c{n}.1"}) for n in range(2)]
    items = [
        {"request_id": row["request_id"], "request_hash": row["request_hash"], "decision_id": f"d{n}"}
        for n, row in enumerate(rows)
    ]
    world.scripted = [Receipt(answer="busy", final=False, run_id="r1", request_id=rows[0]["request_id"])]
    answer = await http.post("/v1/decisions", json={"decision": "approve", "items": items})
    problem = assert_problem(answer, 409, Code.APPROVAL_BUSY)
    assert [result["answer"] for result in problem["results"]] == ["busy", "accepted"]
    assert (problem["final"], answer.headers["retry-after"]) == (False, "1")
