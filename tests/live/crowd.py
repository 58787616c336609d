"""Decides what many clients of a gateway do at once: submit, answer what they are asked, wait for the end; and insist.

Each keeps its ids and repeats until it has an answer. The answers are kept, to be compared with the facts afterwards.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import asyncpg

from placet.adapters.sql.postgres_errors import FAILURES
from placet.client import AsyncPlacetClient
from placet.errors import Code, RetryableError, TerminalError
from placet.machine import Receipt
from placet.messages import DecisionWord
from placet.statuses import RUN_TERMINAL
from placet.views import RequestView, RunReceipt
from tests.live.recorded import ONCE, Ledger
from tests.live.whole import WholeSystem

T = TypeVar("T")

LOOK_S = 0.1
"""How often it is asked whether something has happened, which happens in other processes."""
ANSWER_S = 3.0
"""How long a client waits before it repeats."""
PATIENCE_S = 100.0


@dataclass
class Crowd:
    """Clients of one system; as a context. `deciding` takes up what waits for a person."""

    system: WholeSystem
    reviewers: tuple[str, ...] = ("alice",)
    """All of them decide, at once."""
    pace_s: float = 0.0
    """How long after one request the next one is taken up."""
    patience_s: float = PATIENCE_S
    receipts: dict[str, Receipt] = field(default_factory=dict)
    """What was accepted, by the id of what was asked."""
    refusals: dict[str, TerminalError] = field(default_factory=dict)
    """What was refused, by the same."""
    accepted_s: dict[str, float] = field(default_factory=dict)
    """When a decision was accepted, by its id and by this process's monotonic clock."""
    unknown: int = 0
    """How often the answer was that it is not known."""

    async def __aenter__(self) -> Self:
        self._client = AsyncPlacetClient(self.system.connection("alice"), timeout_s=ANSWER_S)
        self._author = AsyncPlacetClient(self.system.connection(None), timeout_s=ANSWER_S)
        self.may_decide = asyncio.Event()
        """Cleared while nobody is to decide."""
        self.may_decide.set()
        self._accepted = asyncio.Event()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._deciding = asyncio.create_task(self._decide_all())
        self._looking: asyncio.Task[dict[str, str]] | None = None
        self._database: asyncpg.Connection | None = None
        self._reading = asyncio.Lock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self._deciding, *self._asking.values(), *((self._looking,) if self._looking else ())]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._database is not None:
            self._database.terminate()
        await self._client.close()
        await self._author.close()

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, as often as it takes to get one."""
        async with asyncio.timeout(self.patience_s):
            while True:
                try:
                    return await ask()
                except RetryableError:
                    self.unknown += 1
                    await asyncio.sleep(LOOK_S)

    async def submit(self, run_id: str) -> None:
        """Start a run."""
        self.receipts[run_id] = await self.insist(
            lambda: self._author.submit_run("release", run_id=run_id, goal="Release it")
        )

    async def ended(self, run_ids: Collection[str]) -> dict[str, str]:
        """The status of each run, once all have ended."""
        return await self.reached(run_ids, RUN_TERMINAL)

    async def reached(self, run_ids: Collection[str], wanted: Collection[str]) -> dict[str, str]:
        """The status of each run, once all have a wanted one."""
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(self.patience_s):
                while any(found.get(run_id) not in wanted for run_id in run_ids):
                    seen = await self._next_look()
                    self._raise_failures()
                    found = {run_id: seen[run_id] for run_id in run_ids if run_id in seen}
        except TimeoutError:
            late = {run_id: found.get(run_id) for run_id in run_ids if found.get(run_id) not in wanted}
            told = await asyncio.to_thread(self.system.describe, next(iter(late)))
            raise AssertionError(f"not within {self.patience_s} s: {late}\n{told}") from None
        return found

    async def _next_look(self) -> dict[str, str]:
        """The statuses a moment from now: one look for all who wait."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> dict[str, str]:
        await asyncio.sleep(LOOK_S)
        return await self.statuses()

    async def statuses(self) -> dict[str, str]:
        """Of all runs, as the database says; none while it is away."""
        try:
            return {
                row["run_id"]: row["status"]
                for row in await self.facts("SELECT run_id, status FROM state WHERE machine = 'run'")
            }
        except FAILURES:
            return {}

    async def facts(self, query: str, *values: Any) -> list[asyncpg.Record]:
        """Rows of the database, on a connection that is kept as long as it lasts."""
        async with self._reading:
            if self._database is None or self._database.is_closed():
                self._database = await asyncpg.connect(self.system.settings["DATABASE_URL"])
            rows: list[asyncpg.Record] = await self._database.fetch(query, *values)
            return rows

    # ── people ─────────────────────────────────────────────────────────────────────────

    async def another_accepted(self) -> None:
        """Until one more decision is accepted."""
        self._accepted.clear()
        await self._accepted.wait()

    async def all_answered(self) -> None:
        """Until everybody who has decided has an answer."""
        async with asyncio.timeout(self.patience_s):
            while self._asking:
                await asyncio.wait([*self._asking.values()])
                self._raise_failures()

    def _raise_failures(self) -> None:
        for request_id, task in list(self._asking.items()):
            if task.done():
                task.result()
                del self._asking[request_id]
        if self._deciding.done():
            self._deciding.result()

    async def _decide_all(self) -> None:
        seen: set[str] = set()
        while True:
            await self.may_decide.wait()
            with suppress(RetryableError):
                for request in (await self._client.requests(limit=200)).items:
                    if request.request_id not in seen:
                        seen.add(request.request_id)
                        self._asking[request.request_id] = asyncio.create_task(self._decide(request.request_id))
                        await asyncio.sleep(self.pace_s)
            await asyncio.sleep(LOOK_S)

    async def _decide(self, request_id: str) -> None:
        shown = await self.insist(lambda: self._client.request(request_id))
        await asyncio.gather(*(self._say(shown, self._word(shown), person) for person in self.reviewers))

    async def _say(self, shown: RequestView, word: DecisionWord, person: str) -> None:
        decision_id = f"{person}-{shown.request_id}"
        try:
            self.receipts[decision_id] = await self.insist(
                lambda: self._client.decide(
                    shown.request_id,
                    decision=word,
                    request_hash=shown.request_hash,
                    decision_id=decision_id,
                    person=person,
                )
            )
            self.accepted_s[decision_id] = time.monotonic()
            self._accepted.set()
        except TerminalError as error:
            self.refusals[decision_id] = error

    def _word(self, shown: RequestView) -> DecisionWord:
        """Approve what is to happen; where it is asked whether it has, say the truth."""
        if shown.scope != "operation_outcome":
            return "approve"
        operation_id = json.loads(shown.content_text)["operationId"]
        return "executed" if self.system.ledger.has(shown.run_id, operation_id) else "not_executed"

    # ── afterwards ─────────────────────────────────────────────────────────────────────

    async def assert_answers_hold(self) -> None:
        """Each answer that was given is a fact: what was accepted is a vote, who was refused is told the winner."""
        votes = {
            row["decision_id"]: row["request_id"]
            for row in await self.facts("SELECT decision_id, request_id FROM approval_vote")
        }
        winners = {
            row["request_id"]: row["decision_id"]
            for row in await self.facts("SELECT request_id, decision_id FROM approval_outcome")
        }
        runs = {row["run_id"] for row in await self.facts("SELECT run_id FROM state WHERE machine = 'run'")}
        for asked, receipt in self.receipts.items():
            if receipt.decision_id is None:
                assert receipt.run_id in runs, f"{asked} was told {receipt}"
                continue
            assert votes.get(receipt.decision_id) == receipt.request_id, f"{asked} was told {receipt}"
        for decision_id, error in self.refusals.items():
            request_id = decision_id.partition("-")[2]
            # Nobody wins a question that has closed by itself, since what it asked about has become known.
            expected = Code.APPROVAL_CLOSED if winners[request_id] is None else Code.APPROVAL_CONFLICT
            assert error.code is expected, f"{decision_id} was told {error.code}: {error}"
            assert winners[request_id] != decision_id, decision_id
            assert decision_id not in votes, decision_id

    async def assert_happened_once(self, run_id: str) -> None:
        """Succeeded, with each effect once, by the operation that says so; one decision; an intact chain of leaves."""
        receipt = await self.insist(lambda: self._author.run_receipt(run_id))
        assert_once(receipt, self.system.ledger)

    async def assert_nothing_parked(self) -> None:
        """No dead letters."""
        parked = await self.insist(lambda: self._author.dead_letters())
        assert parked.items == []


def assert_once(receipt: RunReceipt, ledger: Ledger) -> None:
    """What a run says of itself is what happened."""
    told = receipt.model_dump_json(indent=1)
    assert receipt.status == "succeeded", told
    assert receipt.audit.intact, told
    effects = ledger.of(receipt.run_id)
    assert sorted(effect.tool for effect in effects) == sorted(ONCE), f"{effects}\n{told}"
    for tool in ("look", *ONCE):
        done = [each for each in receipt.operations if each.tool == tool and each.status == "succeeded"]
        assert len(done) == 1, f"{tool}\n{told}"
        happened = [effect.operation_id for effect in effects if effect.tool == tool]
        assert tool == "look" or happened == [done[0].operation_id], f"{effects}\n{told}"
    others = [each for each in receipt.operations if each.status != "succeeded"]
    assert {each.tool for each in others} <= {"announce"}, told
    asked = [each for each in receipt.decisions if each.scope == "tool_call"]
    assert [each.outcome for each in asked] == ["approved"], told
