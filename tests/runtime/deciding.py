"""Decides how decisions are raced for in tests: the real approval machine, workers over one store in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from placet.activities import Activity
from placet.adapters.memory import MemoryStore
from placet.ids import Address
from placet.instants import Instant
from placet.machine import Receipt
from placet.messages import APPROVAL, DecideApproval, Envelope, RequestApproval
from placet.requests import ApprovalRequest
from placet.runtime.engine import Engine
from placet.runtime.ports import Arbiter, Delivery, Mark
from placet.runtime.worker import Worker
from placet.values import Principal, PrincipalKind
from placet.voices import OwnDoor, Voices
from placet_approval.machine import ApprovalMachine
from tests.builders import T0, TENANT
from tests.machines.builders_approval import CALL, a_request
from tests.runtime.toy import NoApplication

_TOKENS = count(1)


class StandingClock:
    """Time does not matter here."""

    def now_ms(self) -> Instant:
        """As ports.Clock."""
        return T0


class Questions:
    """Requests in a store that all workers of a test share."""

    def __init__(self, voices: Voices | None = None) -> None:
        self.store = MemoryStore(StandingClock())
        self.machine = ApprovalMachine(voices or OwnDoor())

    def engine(self) -> Engine:
        """As one process has it."""
        return Engine({APPROVAL: self.machine}, NoApplication(), self.store)

    async def open(self, n: int = 0, **changes: Any) -> ApprovalRequest:
        """One more question."""
        request = a_request(CALL.model_copy(update={"tool_call_id": f"call-{n}"}), **{"expires_at_ms": None, **changes})
        message = RequestApproval(tenant=TENANT, run_id=request.run_id, request_id=request.request_id, request=request)
        await self.engine().process(
            [Delivery(Envelope(id=f"ask-{request.request_id}", message=message), next(_TOKENS))]
        )
        return request

    async def status(self, request: ApprovalRequest) -> str:
        """How it stands, by the facts."""
        address = Address(request.run_id, APPROVAL, request.request_id)
        state = (await self.store.load([address], [])).states[address]
        return state.status if state is not None else "absent"


def decision(request: ApprovalRequest, by: str, n: int = 0, **changes: Any) -> Envelope:
    """One voice; `n` counts the times that it is raised."""
    fields: dict[str, Any] = {
        "tenant": request.tenant,
        "run_id": request.run_id,
        "request_id": request.request_id,
        "decision_id": f"d-{by}",
        "request_hash": request.request_hash,
        "decision": "approve",
        "reviewer": Principal(kind=PrincipalKind.HUMAN, id=by),
    }
    message = DecideApproval(**{**fields, **changes})
    return Envelope(id=f"{by}-{request.request_id}-{n}", reply_to=f"{by}-{n}", message=message)


class Decider:
    """One worker of one approval service: what it is given it decides, and says what it answered."""

    def __init__(self, questions: Questions, arbiter: Arbiter | None) -> None:
        self._waiting: list[Delivery] = []
        self.answers: dict[str, Receipt] = {}
        self._worker = Worker(questions.engine(), self, self, self, arbiter=arbiter)

    async def decide(self, *envelopes: Envelope) -> list[str]:
        """One turn over these; the answers to their askers, in order."""
        self._waiting = [Delivery(envelope, next(_TOKENS)) for envelope in envelopes]
        await self._worker.turn()
        return [self.answers[envelope.reply_to or ""].answer for envelope in envelopes]

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        """As ports.Inbox."""
        taken, self._waiting = self._waiting[:batch_max], self._waiting[batch_max:]
        return taken

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        """As ports.Inbox; what is given back waits for the next turn."""
        self._waiting += back

    async def send(self, reply_to: str, text: str) -> None:
        """As ports.Replies."""
        self.answers[reply_to] = Receipt.model_validate_json(text)

    def monotonic_ms(self) -> float:
        """As ports.Invoker."""
        return 0.0

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        """As ports.Invoker."""


class RecordingArbiter:
    """Grants all or nothing and notes what it is told."""

    def __init__(self) -> None:
        self.grants = True
        self.claimed: list[str] = []
        self.marks: dict[str, Mark] = {}

    async def claim(self, keys: Sequence[str], nonce: str) -> Sequence[bool]:
        """As ports.Arbiter."""
        self.claimed += keys
        return [self.grants for _ in keys]

    async def finish(self, marks: Mapping[str, Mark], nonce: str) -> None:
        """As ports.Arbiter."""
        self.marks |= marks
