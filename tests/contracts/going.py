"""Decides how runs that go on are tried: one clerk with one tool, torn down and told things message by message."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from placet import App, Suspend, ToolContext, scripted
from placet.calls import UserText
from placet.ids import Address
from placet.messages import (
    THREAD,
    ContinueRun,
    Envelope,
    InterruptRun,
    Message,
)
from placet.plans import PlannedTask
from placet.runtime.ports import Delivery
from placet.script import call
from placet_dispatcher.words import CONTINUATION
from tests.contracts.on_store import OnStore
from tests.rebuilding import ALICE, CLAIM_MS, TENANT, Office

TASK = PlannedTask(id="one", title="Pay the invoice of c-1", assignee="clerk")
PAID: Counter[str] = Counter()


def obeys(conversation: Any) -> Any:
    """A model that begins the task again whenever it is told to, but not when it is told that finished work stays."""
    last = next(said for said in reversed(conversation) if isinstance(said, UserText))
    return "It is paid; nothing was left to do." if CONTINUATION in last.text else call("pay", to="c-1")


def an_office(*steps: Any, asks: bool = False) -> App:
    """One clerk with one tool; `asks`: whose every call waits for a person."""
    app = App("desk", version="1")

    @app.tool(effect="idempotent", consequential=asks)
    async def pay(ctx: ToolContext, to: str) -> str:
        """Pay."""
        PAID[ctx.idempotency_key] += 1
        return f"paid {to}"

    if asks:

        @app.gate("tool_call", tools=[pay])
        def a_person_reads_it(subject: Any) -> Suspend:
            return Suspend("every payment is read")

    app.team("desk", agents=[app.agent("clerk", model=scripted(*steps), tools=[pay])])
    return app


def an_instruction(text: str = "And tell them.", name: str = "i-1", **more: Any) -> ContinueRun:
    return ContinueRun(**{"tenant": TENANT, "run_id": "r1", "instruction_id": name, "text": text, "by": ALICE, **more})


class Going(OnStore):
    """What these tests share."""

    @pytest.fixture(autouse=True)
    def no_payment_yet(self) -> None:
        PAID.clear()

    @staticmethod
    def delivery(message: Message, at: int) -> Delivery:
        envelope = Envelope(id=f"m-{at}", reply_to=f"r-{at}", message=message)  # type: ignore[arg-type]
        return Delivery(envelope, at)

    @staticmethod
    def interruption(turn: str) -> InterruptRun:
        return InterruptRun(tenant=TENANT, run_id="r1", interrupt_id=f"int {turn}", by=ALICE, turn=turn)

    @staticmethod
    async def said(office: Office) -> list[dict[str, Any]]:
        rows = await office.store.rows(TENANT, "thread_message", "r1")
        return [json.loads(row["body_text"]) for row in sorted(rows, key=lambda row: row["n"])]

    @staticmethod
    async def calls(office: Office) -> bool:
        thread = await office.store.state(TENANT, Address("r1", THREAD, "task:one"))
        return thread is not None and thread["status"] == "calling"

    @staticmethod
    async def has_open(office: Office) -> bool:
        return bool(await office.open_requests())

    @staticmethod
    async def due(office: Office) -> list[Any]:
        return list(await office.store.claim_due(100, CLAIM_MS))


class Counting:
    """A store that counts passes."""

    compares_and_sets = True
    is_verbatim = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.loads = self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load(self, *asked: Any) -> Any:
        self.loads += 1
        return await self._inner.load(*asked)

    async def commit(self, units: Any) -> Any:
        self.commits += 1
        return await self._inner.commit(units)
