"""Runs over HTTP: start, list, look, watch, cancel, account for."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from placet.errors import Code, Failure, RetryableError
from placet.machine import Receipt
from placet.messages import CancelRun, SubmitRun
from placet.views import RunEvent
from placet_gateway.streams import Streams
from placet_gateway.timeline import events_of
from tests.gateway.test_doors import assert_problem
from tests.gateway.world import NOW_MS, World

SUBMISSION: dict[str, Any] = {"run_id": "r9", "team": "release", "goal": "cut v1.2.0", "timeout_ms": 60_000}


async def test_a_submission_becomes_the_message_and_the_receipt_comes_back(
    world: World, http: httpx.AsyncClient
) -> None:
    answer = await http.post("/v1/runs", json=SUBMISSION)
    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/runs/r9"
    assert answer.json() == {"answer": "accepted", "final": True, "run_id": "r9", "status": "planning"}
    (message, _), *more = world.asked
    assert not more
    assert isinstance(message, SubmitRun)
    assert message.model_dump(exclude={"initiator", "tasks", "type"}) == {
        **SUBMISSION, "tenant": "default", "mode": "goal", "release": None,
    }  # fmt: skip


async def test_the_same_submission_again_is_the_same_message_and_is_answered_so(
    world: World, http: httpx.AsyncClient
) -> None:
    await http.post("/v1/runs", json=SUBMISSION)
    again = await http.post("/v1/runs", json=SUBMISSION)
    assert (again.status_code, again.json()["answer"]) == (200, "duplicate")
    first_id, second_id = (message_id for _, message_id in world.asked)
    assert first_id == second_id


async def test_another_submission_under_the_same_id_is_another_message_and_a_conflict(
    world: World, http: httpx.AsyncClient
) -> None:
    await http.post("/v1/runs", json=SUBMISSION)
    other = await http.post("/v1/runs", json={**SUBMISSION, "goal": "cut v2"})
    told = assert_problem(other, 409, Code.RUN_EXISTS)
    assert told["receipt"]["run_id"] == "r9"
    first_id, second_id = (message_id for _, message_id in world.asked)
    assert first_id != second_id


async def test_the_run_id_can_come_from_the_idempotency_key(world: World, http: httpx.AsyncClient) -> None:
    submission = {name: value for name, value in SUBMISSION.items() if name != "run_id"}
    runs = set()
    for key in ('"k-1"', "k-1", "k-2"):
        answer = await http.post("/v1/runs", json=submission, headers={"Idempotency-Key": key})
        assert answer.status_code in {200, 201}
        runs.add(answer.json()["run_id"])
    assert len(runs) == 2
    other_person = await http.post(
        "/v1/runs", json=submission, headers={"Idempotency-Key": "k-1", "Placet-Person": "bob"}
    )
    assert other_person.json()["run_id"] not in runs


async def test_what_the_machines_refuse_comes_back_with_code_and_pointer(world: World, http: httpx.AsyncClient) -> None:
    failure = Failure(code=Code.PLAN_INVALID, message="the plan has a cycle: a → b → a", pointer="/tasks/0/depends_on")
    world.scripted.append(Receipt(answer="refused", run_id="r9", failure=failure))
    told = assert_problem(await http.post("/v1/runs", json=SUBMISSION), 422, Code.PLAN_INVALID)
    assert (told["detail"], told["pointer"]) == (failure.message, failure.pointer)
    assert told["final"] is True


@pytest.mark.parametrize("fault", ["silent", "broken"])
async def test_no_answer_is_told_as_unknown_never_as_failed(world: World, http: httpx.AsyncClient, fault: str) -> None:
    world.silent = fault == "silent"
    world.broken = RetryableError(Code.STORE_UNAVAILABLE, "away") if fault == "broken" else None
    answer = await http.post("/v1/runs", json=SUBMISSION)
    told = assert_problem(answer, 503, Code.OUTCOME_UNKNOWN)
    assert told["final"] is False
    assert "r9" in told["detail"]
    assert answer.headers["retry-after"] == "1"


async def test_a_run_is_shown_with_its_tasks_and_what_it_waits_for(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    row = world.add_request()
    answer = await http.get("/v1/runs/r1")
    shown = answer.json()
    assert answer.headers["etag"] == '"3"'
    assert (shown["status"], shown["terminal"], shown["team"], shown["initiator"]) == (
        "suspended", False, "release", "developer",
    )  # fmt: skip
    assert [(task["id"], task["status"]) for task in shown["tasks"]] == [("cut", "running")]
    assert [waiting["request_id"] for waiting in shown["waiting_for"]] == [row["request_id"]]
    assert shown["as_of_ms"] == NOW_MS + 1_000


async def test_the_goal_is_whole_in_one_run_and_shortened_with_its_size_in_the_list(
    world: World, http: httpx.AsyncClient
) -> None:
    world.add_run(goal="x" * 5_000)
    assert (await http.get("/v1/runs/r1")).json()["goal"] == "x" * 5_000
    (listed,) = (await http.get("/v1/runs")).json()["items"]
    assert listed["goal"].endswith("… (5,000 characters)")


async def test_pages_of_runs_hold_every_run_once_newest_first(world: World, http: httpx.AsyncClient) -> None:
    for number in range(7):
        world.add_run(f"r{number}", "suspended" if number % 2 else "succeeded")
    seen, before = [], None
    while True:
        page = (await http.get("/v1/runs", params={"limit": 3} | ({"before": before} if before else {}))).json()
        seen += [run["run_id"] for run in page["items"]]
        before = page.get("next")
        if before is None:
            break
    assert seen == [f"r{number}" for number in reversed(range(7))]
    suspended = (await http.get("/v1/runs?status=suspended")).json()["items"]
    assert [run["run_id"] for run in suspended] == ["r5", "r3", "r1"]


@pytest.mark.parametrize("path", ["", "/events", "/receipt", "/trace"])
async def test_another_tenants_run_looks_like_none(world: World, http: httpx.AsyncClient, path: str) -> None:
    world.add_run("foreign", tenant="other")
    foreign = await http.get(f"/v1/runs/foreign{path}")
    absent = await http.get(f"/v1/runs/absent{path}")
    assert_problem(foreign, 404, Code.RUN_NOT_FOUND)
    assert foreign.content == absent.content


async def test_cancelling_names_who_and_why(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    assert (await http.post("/v1/runs/r1/cancel", json={"reason": "wrong branch"})).status_code == 200
    (message, _) = world.asked[0]
    assert isinstance(message, CancelRun)
    assert (message.by.id, message.reason) == ("developer", "wrong branch")


@pytest.mark.parametrize("run_id", ["absent", "not%20an%20id", "-x"])
async def test_cancelling_what_does_not_exist_is_not_found(world: World, http: httpx.AsyncClient, run_id: str) -> None:
    assert_problem(await http.post(f"/v1/runs/{run_id}/cancel"), 404, Code.RUN_NOT_FOUND)


async def test_cancelling_an_ended_run_is_refused(world: World, http: httpx.AsyncClient) -> None:
    failure = Failure(code=Code.RUN_TERMINAL, message="the run has succeeded")
    world.scripted.append(Receipt(answer="closed", run_id="r1", status="succeeded", failure=failure))
    assert_problem(await http.post("/v1/runs/r1/cancel", json={}), 409, Code.RUN_TERMINAL)


# ── watching ───────────────────────────────────────────────────────────────────────────


def events_in(text: str) -> list[tuple[str, str]]:
    """(id, event) of every frame that has data."""
    found = []
    for frame in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in frame.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("id", ""), fields["event"]))
    return found


async def test_the_events_of_an_ended_run_are_all_told_and_then_its_end(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    for kind in ("run.submitted", "task.started", "run.ended"):
        world.add_leaf(kind)
    world.end_run()
    answer = await http.get("/v1/runs/r1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events_in(answer.text) == [("1", "run.submitted"), ("2", "task.started"), ("3", "run.ended"), ("", "end")]


@pytest.mark.parametrize("how", ["header", "query"])
async def test_who_was_cut_off_goes_on_after_the_last_event_seen(
    world: World, http: httpx.AsyncClient, how: str
) -> None:
    world.add_run()
    for number in range(3):
        world.add_leaf(f"kind.{number}")
    world.end_run()
    headers, query = ({"Last-Event-ID": "2"}, "") if how == "header" else ({}, "?after=2")
    answer = await http.get(f"/v1/runs/r1/events{query}", headers=headers)
    assert events_in(answer.text) == [("3", "kind.2"), ("", "end")]


async def test_who_has_seen_everything_of_an_ended_run_is_told_not_to_come_again(
    world: World, http: httpx.AsyncClient
) -> None:
    world.add_run()
    world.add_leaf("run.submitted")
    world.end_run()
    assert (await http.get("/v1/runs/r1/events", headers={"Last-Event-ID": "1"})).status_code == 204


async def test_a_last_event_that_is_no_number_is_refused(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    answer = await http.get("/v1/runs/r1/events", headers={"Last-Event-ID": "x"})
    assert_problem(answer, 422, Code.PARAMETER_INVALID)


async def test_text_of_an_agent_cannot_begin_an_event_of_its_own(world: World, http: httpx.AsyncClient) -> None:
    world.add_run()
    world.add_leaf("task.ended", "t", output="x\n\nid: 99\nevent: end\ndata: {}\u2028\x85")
    world.end_run()
    answer = await http.get("/v1/runs/r1/events")
    assert events_in(answer.text) == [("1", "task.ended"), ("", "end")]
    assert answer.text.isascii()


class Follower:
    """Reads a stream as it comes. Frames without data are kept as they are."""

    def __init__(self, world: World, streams: Streams) -> None:
        self._world = world
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._streams = streams
        self.task = asyncio.create_task(self._read())

    async def _look(self, after: int) -> tuple[list[RunEvent], str | None]:
        status = self._world.states["r1", "run", ""]["status"]
        return await events_of(self._world, "default", "r1", after), status if status == "succeeded" else None

    async def _read(self) -> None:
        async for text in self._streams.follow("r1", 0, self._look):
            self._told.put_nowait(text)

    async def next(self) -> str:
        return await asyncio.wait_for(self._told.get(), 5)

    async def next_event(self) -> tuple[str, str]:
        while True:
            for event in events_in(await self.next()):
                return event

    async def ended(self) -> list[tuple[str, str]]:
        await asyncio.wait_for(self.task, 5)
        return [event for _ in range(self._told.qsize()) for event in events_in(self._told.get_nowait())]


async def test_an_event_is_told_when_it_happens_and_the_stream_ends_with_the_run(world: World) -> None:
    world.add_run()
    follower = Follower(world, Streams(world, heartbeat_s=60))
    await world.listening.wait()
    world.add_leaf("task.started")
    assert await follower.next_event() == ("1", "task.started")
    world.add_leaf("run.ended")
    world.end_run()
    assert await follower.ended() == [("2", "run.ended"), ("", "end")]
    assert world.watchers == 0


async def test_a_silent_stream_says_that_it_is_alive_and_looks_again_without_a_hint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_run()
    follower = Follower(world, Streams(world, heartbeat_s=0.01))
    while await follower.next() != ": still here\n\n":
        pass
    monkeypatch.setattr(world, "hint", lambda: None)  # from now on every hint is lost
    world.add_leaf("run.ended")
    world.end_run()
    assert await follower.ended() == [("1", "run.ended"), ("", "end")]


async def test_a_stopping_server_ends_its_streams_at_once(world: World) -> None:
    world.add_run()
    streams = Streams(world, heartbeat_s=60)
    follower = Follower(world, streams)
    await world.listening.wait()
    streams.close()
    assert await follower.ended() == []
    assert world.watchers == 0


async def test_who_goes_away_is_forgotten(world: World) -> None:
    world.add_run()
    follower = Follower(world, Streams(world, heartbeat_s=60))
    await world.listening.wait()
    assert world.watchers == 1
    follower.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower.task
    assert world.watchers == 0


# ── accounting ─────────────────────────────────────────────────────────────────────────


def filled(world: World) -> dict[str, Any]:
    """A run whose one operation was approved and ran."""
    world.add_run(status="succeeded", answer="v1.2.0 is out")
    row = world.add_request(operation_id="op_1")
    world.put(
        "approval_vote", run_id="r1", request_id=row["request_id"], person_id="reviewer", decision_id="d1",
        decision="approve", request_hash=row["request_hash"], reason="ok", voted_at_ms=NOW_MS + 20,
    )  # fmt: skip
    world.put(
        "approval_outcome", run_id="r1", request_id=row["request_id"], outcome="approved", decided_by="reviewer",
        decision_id="d1", reason="ok", decided_at_ms=NOW_MS + 20, request_hash=row["request_hash"], use_by_ms=None,
    )  # fmt: skip
    world.put(
        "operation", run_id="r1", operation_id="op_1", task_id="cut", tool="create_tag", tool_version="1",
        effect="reconcilable", authority="approval", rule="consequential", input_text='{"name":"v1.2.0"}',
        request_id=row["request_id"], request_hash=row["request_hash"], proposed_at_ms=NOW_MS,
    )  # fmt: skip
    world.put(
        "operation_attempt", run_id="r1", operation_id="op_1", n=1, started_at_ms=NOW_MS + 21, ended="succeeded",
        ended_at_ms=NOW_MS + 30, evidence_text='{"tag":"v1.2.0"}',
    )  # fmt: skip
    world.states["r1", "operation", "op_1"] = {
        "status": "succeeded", "version": 2, "tenant": "default", "created_at_ms": NOW_MS, "updated_at_ms": NOW_MS,
        "body": {"result_text": "tagged"},
    }  # fmt: skip
    world.journalled.append(
        {"tenant": "default", "run_id": "r1", "machine": "run", "key": "", "version": 1, "message_id": "m1",
         "type": "run.submit", "message": {"type": "run.submit"}, "at_ms": NOW_MS - 5}
    )  # fmt: skip
    world.pending_rows.append({"id": "o1", "destination": "run", "type": "run.timed_out", "not_before_ms": NOW_MS * 2})
    world.letters.append(
        {"id": "l1", "run_id": "r1", "destination": "run", "code": "MESSAGE_UNEXPECTED", "reason": "late",
         "at_ms": NOW_MS + 25, "body": "{}"}
    )  # fmt: skip
    world.add_leaf("run.submitted")
    world.add_leaf("run.ended", "succeeded")
    return row


async def test_the_receipt_says_what_ran_and_on_whose_word(world: World, http: httpx.AsyncClient) -> None:
    row = filled(world)
    receipt = (await http.get("/v1/runs/r1/receipt")).json()
    (operation,) = receipt["operations"]
    assert (operation["tool"], operation["status"], operation["authority"], operation["request_hash"]) == (
        "create_tag", "succeeded", "approval", row["request_hash"],
    )  # fmt: skip
    assert [attempt["ended"] for attempt in operation["attempts"]] == ["succeeded"]
    assert [(made["outcome"], made["decided_by"]) for made in receipt["decisions"]] == [("approved", "reviewer")]
    assert receipt["audit"]["intact"] is True
    assert receipt["audit"]["leaves"] == 2


@pytest.mark.parametrize("tamper", ["detail", "drop", "swap"])
async def test_a_tampered_audit_chain_is_told(world: World, http: httpx.AsyncClient, tamper: str) -> None:
    filled(world)
    leaves = world.tables["audit_leaf"]
    if tamper == "detail":
        leaves[0]["detail_text"] = '{"changed":true}'
    elif tamper == "drop":
        del leaves[0]
    else:
        leaves.reverse()
    assert (await http.get("/v1/runs/r1/receipt")).json()["audit"]["intact"] is False


async def test_the_trace_has_every_fact_by_time_with_its_source(world: World, http: httpx.AsyncClient) -> None:
    filled(world)
    trace = (await http.get("/v1/runs/r1/trace")).json()
    told = [(entry["source"], entry["what"]) for entry in trace["entries"]]
    assert told == [
        ("journal", "run.submit"),
        ("approval_request", "request"),
        ("operation", "create_tag proposed"),
        ("audit_leaf", "leaf 1: run.submitted"),
        ("audit_leaf", "leaf 2: run.ended"),
        ("approval_vote", "approve by reviewer"),
        ("approval_outcome", "approved"),
        ("operation_attempt", "attempt 1 started"),
        ("dead_letter", "refused: MESSAGE_UNEXPECTED"),
        ("operation_attempt", "attempt 1 succeeded"),
        ("outbox", "run.timed_out is to come"),
    ]
