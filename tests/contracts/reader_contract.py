"""Decides what every store promises to people (runtime.ports.Reader): their own tenant's facts, in a steady order."""

from __future__ import annotations

import json

import pytest

from placet import limits
from placet.errors import Code, ContractError, TerminalError
from placet.runtime.ports import Unit
from tests.builders import RUN_ID, T0, TENANT
from tests.contracts.on_store import COMMITTED, OnStore
from tests.contracts.units import (
    ONE_OF_EACH,
    OPERATION_AT,
    THREAD_AT,
    approval_at,
    attempt,
    attempt_end,
    entry,
    envelope,
    leaf,
    letter,
    operation,
    outcome,
    request,
    run_at,
    said,
    sent,
    step,
    steps_of,
    write,
)

OTHER = "other"


class ReaderContract(OnStore):
    """What people are shown."""

    async def ask(self, store, clock, number: int, tenant: str = TENANT, status: str = "open"):
        """Open a request in a run of its own; returns its row."""
        row = request(f"run-{number}", f"call_{number}.1", tenant)
        at = approval_at(row.request.request_id, row.run_id)
        assert await store.commit([step(at, 0, row, tenant=tenant, status=status)]) == [COMMITTED]
        clock.at_ms += 1
        return row

    # ── runs ───────────────────────────────────────────────────────────────────────────

    async def test_runs_are_listed_newest_first_with_their_columns(self, store, clock):
        await store.commit([step(run_at("run-1"), body=b'{"goal":"one"}'), step(THREAD_AT)])
        clock.at_ms += 5
        await store.commit([step(run_at("run-2"), status="suspended")])
        clock.at_ms += 5
        await store.commit([step(run_at("run-1"), 1, body=b'{"goal":"uno"}', status="succeeded")])
        assert await store.runs(TENANT, status=None, limit=9, before=None) == [
            {
                "run_id": "run-2",
                "status": "suspended",
                "version": 1,
                "created_at_ms": T0 + 5,
                "updated_at_ms": T0 + 5,
                "body": {"status": "running"},
            },
            {
                "run_id": "run-1",
                "status": "succeeded",
                "version": 2,
                "created_at_ms": T0,
                "updated_at_ms": T0 + 10,
                "body": {"goal": "uno"},
            },
        ]
        assert [run["run_id"] for run in await store.runs(TENANT, status="suspended", limit=9, before=None)] == [
            "run-2"
        ]

    @pytest.mark.parametrize("status", [None, "running"])
    async def test_pages_of_runs_neither_repeat_nor_miss_one_while_new_ones_come(self, store, clock, status):
        names = [f"run-{number:02}" for number in range(7)]
        for number, name in enumerate(names):
            await store.commit([step(run_at(name)), step(run_at(f"new-{number}"), status="failed")])
            clock.at_ms += number % 2  # some share an instant
        seen: list[str] = []
        while page := await store.runs(TENANT, status=status, limit=3, before=seen[-1] if seen else None):
            seen += [run["run_id"] for run in page]
            await store.commit([step(run_at(f"later-{len(seen)}"))])
            clock.at_ms += 1
        assert [name for name in seen if name.startswith("run-")] == sorted(
            (name for name in seen if name.startswith("run-")), key=seen.index
        )
        assert sorted(name for name in seen if name.startswith("run-")) == names
        assert len(set(seen)) == len(seen)
        assert not any(name.startswith("later-") for name in seen)

    async def test_a_page_before_an_unknown_or_foreign_run_is_refused_with_its_name(self, store):
        await store.commit([step(run_at("theirs"), tenant=OTHER)])
        for before in ("theirs", "nobody's"):
            with pytest.raises(ContractError) as raised:
                await store.runs(TENANT, status=None, limit=1, before=before)
            assert (raised.value.code, raised.value.pointer) == (Code.PARAMETER_INVALID, "/before")

    # ── states ─────────────────────────────────────────────────────────────────────────

    async def test_a_state_is_shown_to_its_tenant_only(self, store):
        await store.commit([step(body=b'{"a":[1]}')])
        shown = {"status": "running", "version": 1, "created_at_ms": T0, "updated_at_ms": T0, "body": {"a": [1]}}
        assert await store.state(TENANT, run_at()) == shown
        assert await store.state(OTHER, run_at()) is None
        assert await store.state(TENANT, run_at("nobody's")) is None

    @pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"cut":'])
    async def test_a_body_that_cannot_be_read_is_an_error_and_hides_no_other_run(self, store, body):
        await store.commit([step(body=body), step(run_at("run-2"))])
        with pytest.raises(TerminalError) as raised:
            await store.state(TENANT, run_at())
        assert raised.value.code is Code.CHECKPOINT_CORRUPT
        runs = await store.runs(TENANT, status=None, limit=9, before=None)
        assert {run["run_id"]: run["body"] for run in runs} == {RUN_ID: {}, "run-2": {"status": "running"}}

    # ── facts ──────────────────────────────────────────────────────────────────────────

    async def test_the_facts_of_a_run_are_listed_in_the_order_of_their_key(self, store):
        await store.commit([step(THREAD_AT, 0, said(10), said(9), said(1)), step(run_at("run-2"), 0, leaf(1, "run-2"))])
        rows = await store.rows(TENANT, "thread_message", RUN_ID)
        assert [row["n"] for row in rows] == [1, 9, 10]
        assert rows[0] == said(1).model_dump()
        assert await store.rows(TENANT, "audit_leaf", RUN_ID) == []

    async def test_facts_of_another_tenant_look_like_none(self, store):
        await store.commit([steps_of(*ONE_OF_EACH)])
        for row in ONE_OF_EACH:
            assert len(await store.rows(TENANT, row.table, RUN_ID)) == 1
            assert await store.rows(OTHER, row.table, RUN_ID) == []

    async def test_an_attempt_is_shown_with_its_end(self, store):
        await store.commit([step(OPERATION_AT, 0, attempt(1), attempt_end(1), attempt(2))])
        first, second = await store.rows(TENANT, "operation_attempt", RUN_ID)
        assert first == attempt(1).model_dump() | {
            "ended": "succeeded",
            "ended_at_ms": T0 + 5,
            "evidence_text": '{"certainty":"executed"}',
        }
        assert second == attempt(2).model_dump() | {"ended": None, "ended_at_ms": None, "evidence_text": None}

    @pytest.mark.parametrize("table", ["state", "operation_attempt_end", "sqlite_master", "x; DROP TABLE state"])
    async def test_a_table_that_holds_no_facts_is_refused(self, store, table):
        with pytest.raises(ContractError) as raised:
            await store.rows(TENANT, table, RUN_ID)
        assert raised.value.code is Code.PARAMETER_INVALID

    # ── the inbox ──────────────────────────────────────────────────────────────────────

    async def test_the_inbox_shows_request_status_and_outcome_oldest_first(self, store, clock):
        first, second = await self.ask(store, clock, 2), await self.ask(store, clock, 1)
        request_id = first.request.request_id
        decided = outcome("rejected", run_id=first.run_id, request_id=request_id)
        await store.commit([step(approval_at(request_id, first.run_id), 1, decided, status="rejected")])
        both = await store.requests(TENANT, open_only=False, limit=9, after=None)
        assert both == [
            first.request.model_dump()
            | {
                "status": "rejected",
                "outcome": "rejected",
                "decided_by": "alice",
                "decision_id": "dec_1",
                "decided_at_ms": T0,
            },
            second.request.model_dump()
            | {"status": "open", "outcome": None, "decided_by": None, "decision_id": None, "decided_at_ms": None},
        ]
        assert await store.requests(TENANT, open_only=True, limit=9, after=None) == both[1:]
        assert await store.request(TENANT, request_id) == both[0]

    async def test_a_request_is_shown_to_its_tenant_only(self, store, clock):
        theirs = await self.ask(store, clock, 1, OTHER)
        assert await store.requests(TENANT, open_only=False, limit=9, after=None) == []
        assert await store.request(TENANT, theirs.request.request_id) is None
        assert await store.request(OTHER, theirs.request.request_id) is not None
        with pytest.raises(ContractError) as raised:
            await store.requests(TENANT, open_only=True, limit=9, after=theirs.request.request_id)
        assert (raised.value.code, raised.value.pointer) == (Code.PARAMETER_INVALID, "/after")

    @pytest.mark.parametrize("open_only", [True, False])
    async def test_pages_of_the_inbox_neither_repeat_nor_miss_one_while_some_are_decided(self, store, clock, open_only):
        asked = [(await self.ask(store, clock, number)).request.request_id for number in range(8)]
        seen: list[str] = []
        while page := await store.requests(TENANT, open_only=open_only, limit=3, after=seen[-1] if seen else None):
            seen += [row["request_id"] for row in page]
            # The last one shown is decided before the next page is asked for.
            last = page[-1]
            await store.commit([step(approval_at(last["request_id"], last["run_id"]), 1, status="approved")])
        assert seen == asked

    async def test_the_latest_requests_come_newest_first_in_pages_decided_or_not(self, store, clock):
        asked = [(await self.ask(store, clock, number)).request for number in range(5)]
        await self.ask(store, clock, 9, OTHER)
        await store.commit([step(approval_at(asked[3].request_id, asked[3].run_id), 1, status="approved")])
        seen: list[str] = []
        while page := await store.latest_requests(TENANT, limit=2, before=seen[-1] if seen else None):
            seen += [row["request_id"] for row in page]
        assert seen == [request.request_id for request in reversed(asked)]
        (newest,) = await store.latest_requests(TENANT, limit=1, before=None)
        assert newest == await store.request(TENANT, asked[4].request_id)
        with pytest.raises(ContractError) as raised:
            await store.latest_requests(TENANT, limit=1, before="apr_of_nobody")
        assert (raised.value.code, raised.value.pointer) == (Code.PARAMETER_INVALID, "/before")

    # ── what happened, and what is to come ─────────────────────────────────────────────

    async def test_an_operation_is_found_by_its_id_alone_and_by_its_tenant_only(self, store):
        await store.commit([step(run_at(), 0, operation(), operation("op_9"))])
        await store.commit([step(run_at("run-2"), 0, operation("op_2", run_id="run-2"))])
        assert await store.run_of_operation(TENANT, "op_2") == "run-2"
        assert await store.run_of_operation(TENANT, "op_9") == RUN_ID
        assert await store.run_of_operation(OTHER, "op_2") is None
        assert await store.run_of_operation(TENANT, "op_3") is None

    async def test_the_journal_of_a_run_is_told_by_time_then_arrival_over_all_machines(self, store):
        entries = [entry(THREAD_AT, 1, at_ms=T0 + 1), entry(version=2, at_ms=T0 + 1), entry(version=1, at_ms=T0)]
        units = [Unit(states=[write(version=2), write(THREAD_AT)], journal=entries)]
        units += [step(run_at("run-2"), journal=[entry(run_at("run-2"))])]
        assert await store.commit(units) == [COMMITTED] * 2
        told = await store.journal(TENANT, RUN_ID)
        assert [(row["machine"], row["version"]) for row in told] == [("run", 1), ("thread", 1), ("run", 2)]
        assert told[0] == {
            "machine": "run",
            "key": "",
            "version": 1,
            "message_id": "msg_1",
            "type": "run.cancel",
            "message": json.loads(envelope()),
            "at_ms": T0,
        }
        assert await store.journal(OTHER, RUN_ID) == []

    async def test_what_is_on_its_way_is_told_to_its_tenant(self, store):
        foreign = sent("msg_3", body=envelope(tenant=OTHER))
        await store.commit(
            [step(outbox=[sent("msg_2", T0 + 9), sent("msg_1"), foreign, sent("msg_4", run_id="run-2")])]
        )
        assert await store.outbox(TENANT, RUN_ID) == [
            {"id": "msg_1", "destination": "dispatcher", "type": "run.cancel", "not_before_ms": 0},
            {"id": "msg_2", "destination": "dispatcher", "type": "run.cancel", "not_before_ms": T0 + 9},
        ]
        assert [row["id"] for row in await store.outbox(OTHER, RUN_ID)] == ["msg_3"]

    async def test_dead_letters_are_told_newest_first_to_the_tenant_they_name(self, store):
        letters = [
            letter("dead_1"),
            letter("dead_2", at_ms=T0 + 2, run_id="run-2"),
            letter("dead_3", at_ms=T0 + 1),
            letter("dead_4", body=envelope(tenant=OTHER)),
            letter("dead_5", body=b"\xff"),
        ]
        await store.commit([Unit(dead_letters=letters)])
        everything = await store.dead_letters(TENANT, run_id=None, limit=9)
        assert [row["id"] for row in everything] == ["dead_2", "dead_3", "dead_1"]
        assert everything[2] == {
            "id": "dead_1",
            "run_id": RUN_ID,
            "destination": "dispatcher",
            "code": "MESSAGE_UNEXPECTED",
            "reason": "no such run",
            "at_ms": T0,
            "queue": None,
            "about": None,
            "bytes": len(envelope()),
            "body": envelope().decode(),
        }
        assert [row["id"] for row in await store.dead_letters(TENANT, run_id=RUN_ID, limit=1)] == ["dead_3"]
        assert [row["id"] for row in await store.dead_letters(OTHER, run_id=None, limit=9)] == ["dead_4"]
        assert await store.dead_letter(TENANT, "dead_1") == {**everything[2], "body_base64": None}
        assert [await store.dead_letter(TENANT, other) for other in ("dead_4", "dead_5", "dead_9")] == [None] * 3

    async def test_what_nobody_can_be_believed_for_is_shown_to_the_operators_alone(self, store):
        about = {"content_type": "text/plain", "headers": {"x": "\x00"}}
        ours = letter("dead_1", tenant="", queue="placet.ingress.submissions", about_text=json.dumps(about))
        await store.commit([Unit(dead_letters=[ours, letter("dead_2", body=b"\xff\x00", at_ms=T0 + 1)])])
        assert await store.dead_letters(TENANT, run_id=None, limit=9) == []
        assert await store.dead_letter(TENANT, "dead_1") is None, "whatever its message says"
        binary, claimed = await store.dead_letters("", run_id=None, limit=9)
        assert (claimed["id"], claimed["queue"], claimed["about"]) == ("dead_1", "placet.ingress.submissions", about)
        assert (binary["id"], binary["body"], binary["bytes"]) == ("dead_2", "\\xff\x00", 2)
        assert (await store.dead_letter("", "dead_2"))["body_base64"] == "/wA="

    async def test_a_list_shows_the_beginning_of_a_long_dead_letter_and_its_length(self, store):
        await store.commit([Unit(dead_letters=[letter(body=b"x" * 10_000, tenant=TENANT)])])
        (shown,) = await store.dead_letters(TENANT, run_id=None, limit=9)
        assert (shown["body"], shown["bytes"]) == ("x" * limits.LISTED_BYTES_MAX, 10_000)
        assert (await store.dead_letter(TENANT, "dead_1"))["body"] == "x" * 10_000

    async def test_the_dead_letters_of_a_queue_are_counted_no_further_than_is_asked(self, store):
        letters = [letter(f"dead_{n}", queue="placet.resume" if n else "placet.planner") for n in range(4)]
        await store.commit([Unit(dead_letters=[*letters, letter("dead_9")])])
        assert [await store.count_dead_letters("placet.resume", upto) for upto in (1, 3, 9)] == [1, 3, 3]
        assert await store.count_dead_letters("placet.planner", 9) == 1
        assert await store.count_dead_letters("placet.approval", 9) == 0

    async def test_everything_people_are_shown_is_plain_json(self, store, clock):
        await self.ask(store, clock, 7)
        changes = {"journal": [entry(version=1)], "outbox": [sent()], "dead_letters": [letter()]}
        facts = steps_of(*(row for row in ONE_OF_EACH if row.owner() != run_at()))
        assert await store.commit([facts, step(None, 0, leaf(), operation(), **changes)]) == [COMMITTED] * 2
        shown = [
            await store.runs(TENANT, status=None, limit=9, before=None),
            await store.state(TENANT, run_at()),
            await store.requests(TENANT, open_only=False, limit=9, after=None),
            await store.journal(TENANT, RUN_ID),
            await store.outbox(TENANT, RUN_ID),
            await store.dead_letters(TENANT, run_id=None, limit=9),
            *[await store.rows(TENANT, row.table, RUN_ID) for row in ONE_OF_EACH],
        ]
        assert json.loads(json.dumps(shown)) == shown
        assert all(shown)
