"""A small world behind the gateway: a door that answers like the machines in the simple cases, and a read side over
lists. What the real machines do with a message is tested with them; here it is what reaches them and what comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

from placet.canonical import digest
from placet.errors import Code, Failure, RetryableError
from placet.freezing import FreezeOperations
from placet.ids import Address
from placet.machine import Receipt
from placet.messages import (
    CancelRun,
    ContinueRun,
    DecideApproval,
    Envelope,
    ForkRun,
    InterruptRun,
    Message,
    RevokeApproval,
    SubmitRun,
)
from placet.requests import create_request
from placet.rows import audit_leaf
from placet.runtime.reading import Place
from placet_gateway import gateway
from placet_gateway.identity import DevelopmentIdentity

TENANT = "default"
TOKEN = "a-token-of-this-test-and-of-no-other-place"
NOW_MS = 1_786_147_200_000
TAG = {
    "kind": "tool_call",
    "toolName": "create_tag",
    "rawInput": {"name": "v1.2.0"},
    "input": {"name": "v1.2.0", "commit": "4f2a"},
    "agentName": "releaser",
    "taskId": "cut",
    "toolCallId": "c1.1",
    "consequential": True,
}
BIDI = {
    "url": "http://safe.example.test/\u202e\u2066moc.rehto\u2069/data",
    "path": "/srv/\u200bimportant",
    "line": "a\u2028b",
}
"""Arguments that do not read as they are."""


class World:
    """Door and Reader. `silent`: the door hears and never answers; `broken`: it cannot be reached at all."""

    def __init__(self) -> None:
        self.asked: list[tuple[Message, str]] = []
        self.silent = False
        self.broken: RetryableError | None = None
        self.scripted: list[Receipt] = []
        """Answers to give next, instead of one's own."""
        self.states: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.journalled: list[dict[str, Any]] = []
        self.letters: list[dict[str, Any]] = []
        self.pending_rows: list[dict[str, Any]] = []
        self.stored: dict[str, str] = {}
        self.listening = asyncio.Event()
        self._watchers: list[asyncio.Event] = []

    # ── filling it ─────────────────────────────────────────────────────────────────────

    def put(self, table: str, **columns: Any) -> None:
        self.tables.setdefault(table, []).append({"tenant": TENANT, **columns})

    def add_run(self, run_id: str = "r1", status: str = "suspended", tenant: str = TENANT, **body: Any) -> None:
        known = {
            "team": "release",
            "mode": "goal",
            "goal": "cut v1.2.0",
            "initiator": {"kind": "human", "id": "developer"},
            "tasks": [{"id": "cut", "title": "Cut it", "status": "running", "assignee": "releaser"}],
        }
        stored = {"status": status, "version": 3, "created_at_ms": NOW_MS, "updated_at_ms": NOW_MS + 5}
        self.states[run_id, "run", ""] = {**stored, "tenant": tenant, "body": {**known, **body}}

    def add_request(
        self, content: dict[str, Any] = TAG, run_id: str = "r1", boundary: str | None = None, **beside: Any
    ) -> dict[str, Any]:
        made = create_request(
            tenant=beside.pop("tenant", TENANT),
            run_id=run_id,
            scope=content["kind"],
            boundary=boundary or f"{content['taskId']}:{content['toolCallId']}",
            content=content,
            requested_at_ms=beside.pop("requested_at_ms", NOW_MS),
            reason=beside.pop("reason", "touches production"),
            initiator="developer",
            **beside,
        )
        columns = made.model_dump(mode="json")
        self.tables.setdefault("approval_request", []).append(columns)
        return columns

    def add_leaf(self, kind: str, subject: str = "", run_id: str = "r1", **detail: Any) -> None:
        chain = [leaf for leaf in self.tables.setdefault("audit_leaf", []) if leaf["run_id"] == run_id]
        leaf = audit_leaf(
            tenant=TENANT,
            run_id=run_id,
            seq=len(chain) + 1,
            kind=kind,
            subject=subject,
            detail=detail,
            at_ms=NOW_MS + len(chain),
            previous=chain[-1]["leaf"] if chain else "",
        )
        self.tables["audit_leaf"].append(leaf.model_dump(mode="json"))
        self.hint()

    def end_run(self, run_id: str = "r1", status: str = "succeeded") -> None:
        self.states[run_id, "run", ""] |= {"status": status}
        self.hint()

    def hint(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    # ── door ───────────────────────────────────────────────────────────────────────────

    async def ask(self, message: Message, *, message_id: str, timeout_ms: int) -> str | None:
        del timeout_ms
        self.asked.append((message, message_id))
        if self.broken is not None:
            raise self.broken
        if self.silent:
            return None
        if self.scripted:
            return self.scripted.pop(0).model_dump_json(exclude_none=True)
        return self._answer(message)

    def _answer(self, message: Message) -> str:
        match message:
            case SubmitRun():
                return self._submitted(message)
            case DecideApproval():
                return self._decided(message)
            case CancelRun(run_id=run_id) | ContinueRun(run_id=run_id) | InterruptRun(run_id=run_id) if (
                run_id,
                "run",
                "",
            ) not in self.states:
                failure = Failure(code=Code.RUN_NOT_FOUND, message=f"there is no run {run_id}")
                return _text(Receipt(answer="not_found", run_id=run_id, failure=failure))
            case ForkRun(run_id=run_id):
                return _text(Receipt(answer="accepted", run_id=run_id, status="suspended"))
            case ContinueRun():
                return _text(Receipt(answer="accepted", run_id=message.run_id, status="running", turn="task:cut/2"))
            case InterruptRun():
                return _text(Receipt(answer="accepted", run_id=message.run_id, status="running", turn="task:cut/1"))
            case FreezeOperations():
                return _text(Receipt(answer="accepted", run_id=message.run_id, status=f"{message.word} {message.tool}"))
            case CancelRun() | RevokeApproval():
                return _text(Receipt(answer="accepted", run_id=message.run_id, status="cancelled"))
            case _:
                raise AssertionError(f"the gateway sent {message!r}")

    def _submitted(self, message: SubmitRun) -> str:
        submitted = digest(message.model_dump(mode="json"))
        known = self.stored.setdefault(message.run_id, submitted)
        if known != submitted:
            failure = Failure(code=Code.RUN_EXISTS, message=f"run {message.run_id} exists and is another one")
            return _text(Receipt(answer="refused", run_id=message.run_id, failure=failure))
        is_new = (message.run_id, "run", "") not in self.states
        if is_new:
            self.add_run(message.run_id, "planning", team=message.team, goal=message.goal, mode=message.mode)
        return _text(Receipt(answer="accepted" if is_new else "duplicate", run_id=message.run_id, status="planning"))

    def _decided(self, message: DecideApproval) -> str:
        row = next(row for row in self.tables["approval_request"] if row["request_id"] == message.request_id)
        if message.decision_id in self.stored:
            return self.stored[message.decision_id]
        about: dict[str, Any] = {
            "run_id": message.run_id,
            "request_id": message.request_id,
            "decision_id": message.decision_id,
        }
        if message.request_hash != row["request_hash"]:
            failure = Failure(code=Code.APPROVAL_STALE_DECISION, message="decided about another content")
            return _text(Receipt(answer="stale", failure=failure, **about))
        winner = next(iter(self.outcome_of(message.request_id)), None)
        if winner is not None:
            won: dict[str, Any] = {name: winner[name] for name in ("outcome", "decided_by", "decided_at_ms")}
            return _text(Receipt(answer="conflict", **about, **won))
        outcome = {"approve": "approved", "reject": "rejected"}.get(message.decision, message.decision)
        self.put(
            "approval_outcome", **about, outcome=outcome, decided_by=message.reviewer.id, decided_at_ms=NOW_MS,
            reason=message.reason, request_hash=message.request_hash, use_by_ms=None,
        )  # fmt: skip
        receipt = Receipt(answer="accepted", outcome=outcome, decided_by=message.reviewer.id, **about)
        self.stored[message.decision_id] = _text(receipt)
        return self.stored[message.decision_id]

    def outcome_of(self, request_id: str) -> list[dict[str, Any]]:
        return [row for row in self.tables.get("approval_outcome", []) if row["request_id"] == request_id]

    async def changes(self, run_id: str | None) -> AsyncIterator[None]:
        del run_id
        changed = asyncio.Event()
        self._watchers.append(changed)
        self.listening.set()
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            self._watchers.remove(changed)

    # ── read side ──────────────────────────────────────────────────────────────────────

    async def runs(self, tenant: str, *, status: str | None, limit: int, before: str | None) -> list[dict[str, Any]]:
        found = [
            {"run_id": key[0], **stored}
            for key, stored in reversed(self.states.items())
            if key[1] == "run" and stored["tenant"] == tenant and status in {None, stored["status"]}
        ]
        names = [run["run_id"] for run in found]
        return found[names.index(before) + 1 if before in names else 0 :][:limit]

    async def state(self, tenant: str, address: Address) -> dict[str, Any] | None:
        stored = self.states.get((address.run_id, address.machine, address.key))
        return stored if stored is not None and stored["tenant"] == tenant else None

    async def rows(self, tenant: str, table: str, run_id: str) -> list[dict[str, Any]]:
        return [row for row in self.tables.get(table, []) if row["tenant"] == tenant and row["run_id"] == run_id]

    async def requests(self, tenant: str, *, open_only: bool, limit: int, after: str | None) -> list[dict[str, Any]]:
        found = [self._with_outcome(row) for row in self.tables.get("approval_request", []) if row["tenant"] == tenant]
        found = [row for row in found if not open_only or row["status"] == "open"]
        names = [row["request_id"] for row in found]
        return found[names.index(after) + 1 if after in names else 0 :][:limit]

    async def latest_requests(self, tenant: str, *, limit: int, before: str | None) -> list[dict[str, Any]]:
        found = (await self.requests(tenant, open_only=False, limit=1_000_000, after=None))[::-1]
        names = [row["request_id"] for row in found]
        return found[names.index(before) + 1 if before in names else 0 :][:limit]

    async def request(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        found = await self.requests(tenant, open_only=False, limit=1_000_000, after=None)
        return next((row for row in found if row["request_id"] == request_id), None)

    def _with_outcome(self, row: dict[str, Any]) -> dict[str, Any]:
        outcome = next(iter(self.outcome_of(row["request_id"])), {})
        decided = {name: outcome.get(name) for name in ("outcome", "decided_by", "decided_at_ms")}
        return {**row, **decided, "status": outcome.get("outcome", "open")}

    async def run_of_operation(self, tenant: str, operation_id: str) -> str | None:
        rows = (r for r in self.tables.get("operation", []) if r["tenant"] == tenant)
        return next((r["run_id"] for r in rows if r["operation_id"] == operation_id), None)

    async def journal(self, tenant: str, run_id: str) -> list[dict[str, Any]]:
        return [entry for entry in self.journalled if (entry["tenant"], entry["run_id"]) == (tenant, run_id)]

    async def states_of(self, tenant: str, run_id: str) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def entries_of(self, tenant: str, run_id: str, *, limit: int, after: Place | None) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def outbox(self, tenant: str, run_id: str) -> list[dict[str, Any]]:
        del tenant, run_id
        return self.pending_rows

    async def dead_letters(self, tenant: str, *, run_id: str | None, limit: int) -> list[dict[str, Any]]:
        own = [letter for letter in self.letters if letter.get("tenant", TENANT) == tenant]
        return [letter for letter in own if run_id in {None, letter["run_id"]}][:limit]

    async def dead_letter(self, tenant: str, letter_id: str) -> dict[str, Any] | None:
        found = (letter for letter in self.letters if letter["id"] == letter_id)
        return next((letter for letter in found if letter.get("tenant", TENANT) == tenant), None)

    def add_letter(self, message: Message, *, letter_id: str = "dead_1", message_id: str = "msg_1") -> None:
        """A message that was parked."""
        body = Envelope(id=message_id, message=message).encode().decode()  # type: ignore[arg-type]
        about = {"run_id": message.run_id, "tenant": message.tenant, "destination": "tool-executor", "at_ms": NOW_MS}
        self.letters.append(
            {"id": letter_id, "code": "NOT_FOUND", "reason": "no such operation", "body": body, **about}
        )

    # ── reaching it ────────────────────────────────────────────────────────────────────

    def app(self, **settings: Any) -> Any:
        settings = {"tenant": TENANT, "now_ms": lambda: NOW_MS + 1_000, **settings}
        return gateway(self, self, DevelopmentIdentity(TOKEN), **settings)

    def http(self, **settings: Any) -> httpx.AsyncClient:
        """A client with the token, straight into the application."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app(**settings)),
            base_url="http://localhost:7300",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )


def _text(receipt: Receipt) -> str:
    return receipt.model_dump_json(exclude_none=True)
