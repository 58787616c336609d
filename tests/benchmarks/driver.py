"""Decides what the world outside does in the job: it starts runs, approves what they wait for, and sees them end.

It speaks to the services only over the broker, as everybody does, and reads facts. Hints tell it which runs to look at,
as they tell an open window; one look is on its way at a time, for all runs that were hinted meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import NamedTuple

import aio_pika
import asyncpg
from aio_pika.abc import AbstractIncomingMessage

from placet.adapters.rabbitmq import RabbitDoor
from placet.adapters.rabbitmq.asking import Asker
from placet.adapters.rabbitmq.wire import JSON
from placet.events import ApprovalRequested, RunEnded
from placet.messages import Message, SubmitRun
from placet.plans import PlannedTask
from placet.signatures import DecisionStatement, SigningKey, message_of
from placet.statuses import RUN_ACTIVE, RUN_TERMINAL
from placet.topology import DECIDE_KEY, DECISIONS_EXCHANGE, EVENTS_EXCHANGE, HINTS_KEY, make_topology
from placet.values import Principal, PrincipalKind

TENANT = "bench"
AUTHOR = Principal(kind=PrincipalKind.HUMAN, id="author")
REVIEWER = "reviewer"
ENVIRONMENT = "bench"
PATIENCE_MS = 60_000
VALID_MS = 5 * 60_000
_OPEN = "approval:open"
_ENDS = {f"run:{status}" for status in RUN_TERMINAL}
_ASKED = "SELECT run_id, request_id, request_hash FROM approval_request WHERE run_id = ANY($1)"
_ENDED = (
    "SELECT run_id, status FROM state WHERE run_id = ANY($1) AND machine = 'run' AND key = '' AND status <> ALL($2)"
)


class Asked(NamedTuple):
    """What a suspended run waits for."""

    request_id: str
    request_hash: str


class Driver:
    """Made by `open`. Every wait ends with an error after a minute."""

    def __init__(
        self, door: RabbitDoor, broker: aio_pika.abc.AbstractConnection, facts: asyncpg.Connection, key: SigningKey
    ) -> None:
        self._door = door
        self._key = key
        self._public: Asker | None = None
        self._broker = broker
        self._facts = facts
        self._suspended: dict[str, asyncio.Future[Asked]] = {}
        self._ended: dict[str, asyncio.Future[str]] = {}
        self._hinted: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self.submitted_ns: dict[str, int] = {}
        self.suspended_ns: dict[str, int] = {}
        self.decided_ns: dict[str, int] = {}

    @classmethod
    async def open(
        cls, amqp_url: str, database_url: str, key: SigningKey, *, events: bool = False, public: bool = False
    ) -> Driver:
        """Connected. `key` is the reviewer's. `events`: the services publish events, and it needs no hints.
        `public`: decisions are published where outsiders publish them, each in an AMQP message of its own; otherwise
        as a gateway sends them on, those of one moment in one.
        """
        door = RabbitDoor(amqp_url, make_topology(), "bench")
        door.start()
        broker = await aio_pika.connect(amqp_url)
        driver = cls(door, broker, await asyncpg.connect(database_url), key)
        if public:
            driver._public = Asker(amqp_url, "bench reviewer")
            driver._public.start()
        channel = await broker.channel()
        queue = await channel.declare_queue(exclusive=True, auto_delete=True)
        for name in (ApprovalRequested.name, RunEnded.name) if events else (HINTS_KEY,):
            await queue.bind(EVENTS_EXCHANGE, name)
        await queue.consume(driver._heard, no_ack=True)
        return driver

    async def close(self) -> None:
        """End the connections."""
        await self._door.close()
        if self._public is not None:
            await self._public.close()
        await self._broker.close()
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self._facts.close()

    # ── the job ────────────────────────────────────────────────────────────────────────

    async def start(self, run_id: str) -> Asked:
        """Start a run; what it asks, once it is suspended durably."""
        task = PlannedTask(id="pay", title="Pay the customer back", assignee="clerk")
        message = SubmitRun(tenant=TENANT, run_id=run_id, team="desk", mode="tasks", tasks=(task,), initiator=AUTHOR)
        suspended = self._suspended[run_id] = asyncio.get_running_loop().create_future()
        self.submitted_ns[run_id] = time.monotonic_ns()
        await self._accepted(message, f"submit-{run_id}")
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            asked = await suspended
        self.suspended_ns[run_id] = time.monotonic_ns()
        return asked

    async def approve(self, run_id: str, asked: Asked) -> None:
        """Approve; returns with the receipt, so that the decision is durable."""
        now_ms = time.time_ns() // 1_000_000
        statement = DecisionStatement(
            environment=ENVIRONMENT,
            tenant=TENANT,
            run_id=run_id,
            request_id=asked.request_id,
            request_hash=asked.request_hash,
            decision="approve",
            decision_id=f"decision-{run_id}",
            person=REVIEWER,
            issued_at_ms=now_ms,
            not_after_ms=now_ms + VALID_MS,
        )
        self._ended[run_id] = asyncio.get_running_loop().create_future()
        self.decided_ns[run_id] = time.monotonic_ns()
        signed = self._key.sign(statement)
        if self._public is None:
            await self._accepted(message_of(statement, signed), f"decide-{run_id}")
        else:
            body = signed.encode()
            answer = await self._public.ask(
                DECISIONS_EXCHANGE, DECIDE_KEY, body, content_type=JSON, timeout_ms=PATIENCE_MS
            )
            _check(answer, run_id)

    async def done(self, run_id: str) -> None:
        """Wait until the approved run has ended durably."""
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            status = await self._ended[run_id]
        del self._ended[run_id]
        if status != "succeeded":
            raise RuntimeError(f"{run_id} ended as {status}")

    async def whole(self, run_id: str, rest_s: float = 0) -> None:
        """The whole job, with a rest before the approval."""
        asked = await self.start(run_id)
        if rest_s:
            await asyncio.sleep(rest_s)
        await self.approve(run_id, asked)
        await self.done(run_id)

    async def _accepted(self, message: Message, message_id: str) -> None:
        answer = await self._door.ask(message, message_id=message_id, timeout_ms=PATIENCE_MS)
        _check(answer, message_id)

    # ── what it hears ──────────────────────────────────────────────────────────────────

    async def _heard(self, message: AbstractIncomingMessage) -> None:
        if message.routing_key != HINTS_KEY:
            self._told(json.loads(message.body)["data"])
            return
        for line in message.body.decode().split("\n"):
            words, _, run_id = line.rpartition("\t")
            if not run_id:
                self._hinted |= self._suspended.keys() | self._ended.keys()
            elif (run_id in self._suspended and _OPEN in words) or not _ENDS.isdisjoint(words.split(",")):
                self._hinted.add(run_id)
        if self._hinted and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._hinted:
            hinted, self._hinted = self._hinted, set()
            if starting := [run_id for run_id in hinted if run_id in self._suspended]:
                for row in await self._facts.fetch(_ASKED, starting):
                    self._told(row)
            if ending := [run_id for run_id in hinted if run_id in self._ended]:
                for row in await self._facts.fetch(_ENDED, ending, list(RUN_ACTIVE)):
                    self._told(row)

    def _told(self, fact: Mapping[str, str]) -> None:
        run_id = fact["run_id"]
        if "request_id" in fact:
            suspended = self._suspended.pop(run_id, None)
            if suspended is not None and not suspended.done():
                suspended.set_result(Asked(fact["request_id"], fact["request_hash"]))
        else:
            ended = self._ended.get(run_id)
            if ended is not None and not ended.done():
                ended.set_result(fact["status"])


def _check(answer: str | None, what: str) -> None:
    if answer is None or json.loads(answer)["answer"] != "accepted":
        raise RuntimeError(f"{what} was not accepted: {answer}")
