"""Decides what is proved of one side effect on every store: its one identity, its record, its ways to end."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from placet import App, ToolContext, Unsure
from placet.errors import Code
from placet.freezing import FreezeOperations, freeze_run
from placet.messages import OPERATION, ApprovalDecided, Envelope, ToolReturned
from placet.rows import AttemptRow
from placet.runtime.engine import Engine
from placet.runtime.ports import Delivery
from placet_embedded.system import machines
from placet_tool_executor.machine import OperationMachine
from tests.cases import case
from tests.embedded.on_store import ALICE, TENANT, Whole, a_team, whole


class OperationContract:
    """A test class says `adapter` and `make`."""

    adapter: str

    async def make(self) -> Any:
        """An empty store with the time of a real clock."""
        raise NotImplementedError

    # ── one identity, one record ───────────────────────────────────────────────────────

    @case("F01", "F15")
    async def test_one_identity_runs_from_the_proposal_to_the_result_and_all_is_found_by_it(self) -> None:
        seen: list[tuple[str, str, int]] = []
        app = App("desk", version="1")

        @app.tool(effect="idempotent", consequential=True, retry=3)
        async def pay(ctx: ToolContext, customer: str) -> str:
            """Pay."""
            seen.append((ctx.operation_id, ctx.idempotency_key, ctx.attempt))
            if ctx.attempt == 1:
                raise ConnectionResetError("try again")
            return f"paid {customer}"

        async with whole(a_team(app, pay), await self.make()) as system:
            await system.pay(customer="c-1")
            request = await system.asked()
            suspended = await system.status("suspended")
            await system.decide(request)
            await system.status("succeeded")
            [proposal] = await system.rows("operation")
            operation_id = proposal["operation_id"]
            assert seen == [(operation_id, operation_id, 1), (operation_id, operation_id, 2)]
            assert request["operation_id"] == operation_id
            assert operation_id in json.dumps(suspended["body"]), "in the checkpoint that waits"
            assert {row["operation_id"] for row in await system.rows("operation_attempt")} == {operation_id}

            record = await system.get(f"/v1/operations/{operation_id}")
            assert (record["run_id"], record["operation_id"]) == ("run-1", operation_id)
            assert record["proposal"]["input_text"] == '{"customer":"c-1"}'
            assert [found["where"] for found in record["hashes"]] == [
                "proposal", "request", "content, computed anew", "vote of alice", "outcome",
            ]  # fmt: skip
            assert {found["request_hash"] for found in record["hashes"]} == {request["request_hash"]}
            assert record["hashes_agree"] is True
            assert [r["decision"]["outcome"] for r in record["requests"]] == ["approved"]
            attempts = [(attempt["n"], attempt["ended"]) for attempt in record["operation"]["attempts"]]
            assert attempts == [(1, "unknown"), (2, "succeeded")]
            [retry] = record["retries"]
            assert (retry["attempt"], retry["decision"]["action"]) == (1, "retry")
            assert retry["inputs"]["subject"] == operation_id
            assert record["outcome"]["result_text"] == '"paid c-1"'
            told = {(c["machine"], c["message"]) for c in record["checkpoints"]}
            assert {
                ("operation", "operation.execute"),
                ("operation", "tool.returned"),
                ("run", "operation.done"),
            } <= told
            assert {machine for machine, _ in told} == {"run", "operation", "approval"}
            assert (await system.http.get("/v1/operations/op_none")).status_code == 404

    @case("F10")
    async def test_a_decision_that_is_told_three_times_resumes_once(self) -> None:
        paid: Counter[str] = Counter()
        app = App("desk", version="1")

        @app.tool(effect="non_retriable", consequential=True)
        async def pay(ctx: ToolContext, customer: str) -> str:
            """Pay."""
            paid[ctx.operation_id] += 1
            return "paid"

        async with whole(a_team(app, pay), await self.make()) as system:
            await system.pay(customer="c-1")
            request = await system.asked()
            await system.status("suspended")
            told = ApprovalDecided(
                tenant=TENANT,
                run_id="run-1",
                request_id=request["request_id"],
                outcome="approved",
                asker_machine=request["asker_machine"],
                asker_key=request["asker_key"],
            )
            await system.decide(request)
            for number in range(3):
                system.embedded.queue.put(Envelope(id=f"again-{number}", message=told))
            await system.status("succeeded")
            for number in range(3):
                system.embedded.queue.put(Envelope(id=f"late-{number}", message=told))
            await system.embedded.queue.drained()  # all are acknowledged
            assert list(paid.values()) == [1]
            assert len(await system.rows("operation_attempt")) == 1
            journal = await system.store.journal(TENANT, "run-1")
            resumed = [e for e in journal if e["machine"] == "run" and e["type"] == "approval.decided"]
            assert len(resumed) == 1

    @case("F18")
    async def test_a_message_that_trips_whoever_handles_it_is_parked_and_its_run_says_so(self) -> None:
        app = App("desk", version="1")

        @app.tool(effect="read_only")
        async def look(ctx: ToolContext, customer: str) -> str:
            """Look."""
            return customer

        class Tripping(OperationMachine):
            """Trips over what one run's tools bring."""

            repaired = False

            def transition(self, state: Any, message: Any, facts: Any, now_ms: Any) -> Any:
                if isinstance(message, ToolReturned) and message.run_id == "run-1" and not self.repaired:
                    raise KeyError("what now?")
                return super().transition(state, message, facts, now_ms)

        rules = Tripping()
        async with whole(a_team(app, look), await self.make(), rules={OPERATION: rules}) as system:
            await system.pay("run-1", tool="look", customer="c-1")

            async def parked() -> Any:
                return (await system.get("/v1/runs/run-1"))["parked"]

            [letter] = await system.eventually(parked)
            assert (letter["code"], letter["reason"]) == ("INVARIANT", "KeyError: 'what now?'")
            await system.pay("run-2", tool="look", customer="c-2")
            await system.status("succeeded", run_id="run-2")
            assert (await system.get("/v1/runs/run-2"))["parked"] == []
            assert (await system.get("/v1/runs/run-1"))["status"] == "running"
            rules.repaired = True
            again = await system.http.post(f"/v1/dead-letters/{letter['id']}/redrive", json={})
            assert again.json()["answer"] == "applied"
            await system.status("succeeded")
            assert (await system.get("/v1/runs/run-1"))["parked"] == []

    # ── the emergency stop ─────────────────────────────────────────────────────────────

    @case("M54")
    @pytest.mark.parametrize("tool", [None, "pay"])
    async def test_what_is_stopped_is_not_started_nor_counted_and_runs_once_when_it_may(self, tool: str | None) -> None:
        paid: Counter[str] = Counter()
        app = App("desk", version="1")

        @app.tool(effect="non_retriable", consequential=True)
        async def pay(ctx: ToolContext, customer: str) -> str:
            """Pay."""
            paid[ctx.run_id] += 1
            return "paid"

        @app.tool(effect="read_only")
        async def look(ctx: ToolContext, customer: str) -> str:
            """Look."""
            paid[ctx.run_id] += 1
            return customer

        async with whole(a_team(app, pay, look), await self.make()) as system:
            assert (await system.get("/v1/freeze"))["items"] == []
            await system.pay(customer="c-1")
            request = await system.asked()
            body = {"reason": "the bank is on fire", **({"tool": tool} if tool else {})}
            stopped = await system.http.post("/v1/freeze", json=body)
            assert (stopped.status_code, stopped.json()["answer"]) == (200, "accepted")
            [switch] = (await system.get("/v1/freeze"))["items"]
            assert (switch["tool"], switch["by"], switch["reason"]) == (tool, "developer", "the bank is on fire")
            await system.decide(request)
            await system.status("running")
            if tool is not None:  # others go on
                await system.pay("run-2", tool="look", customer="c-2")
                await system.status("succeeded", run_id="run-2")
                assert paid.pop("run-2") == 1

            async def held() -> bool:
                waits = await system.store.outbox(TENANT, "run-1")
                return any(row["type"] == "operation.execute" and row["not_before_ms"] for row in waits)

            await system.eventually(held)
            assert paid == {}
            assert await system.rows("operation_attempt") == [], "no attempt is counted"
            [outcome] = await system.rows("approval_outcome")
            assert outcome["outcome"] == "approved", "and it stays so"
            lifted = await system.http.request("DELETE", "/v1/freeze", params={"tool": tool} if tool else {})
            assert lifted.json()["status"] == "thawed"
            await system.status("succeeded")
            assert paid == {"run-1": 1}
            assert [row["n"] for row in await system.rows("operation_attempt")] == [1]
            unknown = await system.http.post("/v1/freeze", json={"reason": "typo", "tool": "dploy"})
            assert (unknown.status_code, unknown.json()["code"]) == (422, "TOOL_UNKNOWN")

    @case("M54")
    async def test_a_stop_that_is_said_while_a_start_is_being_committed_wins_or_loses_and_never_half(self) -> None:
        paid: Counter[str] = Counter()
        app = App("desk", version="1")

        @app.tool(effect="non_retriable", consequential=True)
        async def pay(ctx: ToolContext, customer: str) -> str:
            """Pay."""
            paid[ctx.run_id] += 1
            return "paid"

        store = await self.make()
        commit = store.commit
        raced: list[bool] = []
        team = a_team(app, pay)
        stop = FreezeOperations(tenant=TENANT, run_id=freeze_run(TENANT), word="freeze", by=ALICE, reason="fire")

        async def racing(units: Any) -> Any:
            if not raced and any(isinstance(row, AttemptRow) for unit in units for row in unit.rows):
                raced.append(True)  # the start has read that nothing is frozen; now something is
                elsewhere = Engine(machines(), team, store)
                said = Delivery(Envelope(id="stop-1", message=stop), token=1)
                assert (await elsewhere.process([said])).done == [said]
            return await commit(units)

        store.commit = racing
        async with whole(team, store) as system:
            await system.pay(customer="c-1")
            await system.decide(await system.asked())

            async def held() -> Any:
                waits = await system.store.outbox(TENANT, "run-1")
                return raced and any(row["type"] == "operation.execute" and row["not_before_ms"] for row in waits)

            await system.eventually(held)
            assert (raced, paid, await system.rows("operation_attempt")) == ([True], {}, [])
            await system.http.delete("/v1/freeze")
            await system.status("succeeded")
            assert paid == {"run-1": 1}

    # ── did it happen? ─────────────────────────────────────────────────────────────────

    @case("M38", "M39", "F03")
    @pytest.mark.parametrize(("word", "status"), [("executed", "succeeded"), ("not_executed", "failed")])
    async def test_what_a_person_says_about_an_unknown_outcome_ends_it_and_nothing_is_called_again(
        self, word: str, status: str
    ) -> None:
        paid: Counter[str] = Counter()
        app = App("desk", version="1")

        @app.tool(effect="non_retriable", consequential=True, retry=3)
        async def pay(ctx: ToolContext, customer: str) -> str:
            """Pay."""
            paid[ctx.operation_id] += 1
            raise Unsure("the bank has not answered")

        async with whole(a_team(app, pay), await self.make()) as system:
            await system.pay(customer="c-1")
            await system.decide(await system.asked())

            async def question() -> dict[str, Any] | None:
                rows = await system.store.requests(TENANT, open_only=True, limit=9, after=None)
                return next((row for row in rows if row["scope"] == "operation_outcome"), None)

            asked = await system.until(question)
            assert (await system.operation())["status"] == "needs_operator"
            assert (await system.decide(asked, word, "d-2"))["answer"] == "accepted"
            await system.status("succeeded", "failed")
            operation = await system.operation()
            assert operation["status"] == status
            assert list(paid.values()) == [1]
            [attempt] = await system.rows("operation_attempt")
            assert attempt["ended"] == "unknown", "the attempt's own end is not rewritten"
            done = [e for e in await system.store.journal(TENANT, "run-1") if e["type"] == "operation.done"]
            [message] = [entry["message"]["message"] for entry in done]
            if word == "executed":
                assert json.loads(message["result_text"]) == {"settled_by": "alice"}, "a manual mark"
            else:
                assert message["failure"]["code"] == Code.OPERATION_OUTCOME_UNKNOWN
                assert "propose the call again" in message["failure"]["message"]

    # ── right before the effect ────────────────────────────────────────────────────────

    async def test_a_precondition_is_asked_again_right_before_the_effect_and_never_blindly_retried(self) -> None:
        happened: list[str] = []
        balance = [900]
        app = App("desk", version="1")

        @app.tool(effect="idempotent", consequential=True, retry=3)
        async def pay(ctx: ToolContext, cents: int) -> str:
            """Pay."""
            happened.append("paid")
            return "paid"

        @pay.precondition
        async def covered(ctx: ToolContext, cents: int) -> bool | str:
            happened.append("asked")
            return balance[0] >= cents or f"the balance is {balance[0]}"

        async with whole(a_team(app, pay), await self.make()) as system:
            await system.pay(cents=900)
            request = await system.asked()
            assert happened == [], "nothing is asked of the world while a person thinks"
            balance[0] = 700
            await system.decide(request)
            await system.status("succeeded", "failed")
            assert happened == ["asked"]
            operation = await system.operation()
            assert operation["status"] == "failed"
            [attempt] = await system.rows("operation_attempt")
            failure = json.loads(attempt["evidence_text"])["failure"]
            assert (failure["code"], failure["certainty"]) == ("PRECONDITION_FAILED", "not_executed")
            [retry] = await system.rows("retry_decision")
            assert json.loads(retry["decision_text"]) == {"action": "give_up", "delay_ms": 0, "reason": "approval"}
            done = [e for e in await system.store.journal(TENANT, "run-1") if e["type"] == "operation.done"]
            assert "the balance is 700" in done[0]["message"]["message"]["failure"]["message"], "the model is told"

    # ── cancel ─────────────────────────────────────────────────────────────────────────

    @case("J04")
    @pytest.mark.parametrize("plain", [False, True])
    async def test_a_cancel_during_a_tool_ends_the_programs_it_has_started_within_five_seconds(
        self, plain: bool, tmp_path: Path
    ) -> None:
        from placet.programs import run_program, run_program_blocking

        # A program that does not want to end, and has started another one of that kind.
        script = (
            f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/child; while :; do sleep 1; done' & "
            f"echo $$ > {tmp_path}/parent; while :; do sleep 1; done"
        )
        app = App("desk", version="1")

        if plain:

            @app.tool(effect="non_retriable", timeout_s=60)
            def build(ctx: ToolContext) -> str:
                """Build."""
                return run_program_blocking(ctx, "sh", "-c", script).text

        else:

            @app.tool(effect="non_retriable", timeout_s=60)
            async def build(ctx: ToolContext) -> str:
                """Build."""
                return (await run_program(ctx, "sh", "-c", script)).text

        async with whole(a_team(app, build), await self.make()) as system:
            await system.pay(tool="build")
            await _until(lambda: all((tmp_path / name).exists() for name in ("parent", "child")))
            await asyncio.sleep(0.05)  # until the numbers are written whole
            pids = [int((tmp_path / name).read_text()) for name in ("parent", "child")]
            assert all(_lives(pid) for pid in pids)
            began = time.monotonic()
            answer = await system.http.post("/v1/runs/run-1/cancel", json={"reason": "enough"})
            assert answer.status_code == 200
            await _until(lambda: not any(_lives(pid) for pid in pids))
            assert time.monotonic() - began < 5
            await system.status("cancelled")

            async def over() -> bool:
                return (await system.operation())["status"] == "cancelled"

            await system.eventually(over)
            [attempt] = await system.rows("operation_attempt")
            assert attempt["ended"] != "succeeded", "an abort is no commit"


async def _until(done: Any) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 — another process: nobody tells
            await asyncio.sleep(0.02)


def _lives(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not yet buried does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


__all__ = ["OperationContract", "Whole"]
