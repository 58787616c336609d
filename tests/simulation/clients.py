"""Decides how people and programs outside behave: they ask, lose patience, ask again with the same ids, and compare.

Whoever asks keeps asking until a final answer comes. What they were told is kept, for it must stay true.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

from placet.messages import (
    OPERATION,
    RUN,
    ApprovalDecided,
    CancelRun,
    DecideApproval,
    Envelope,
    ExecuteOperation,
    ExpireApproval,
    Message,
    OperationLeaseEnded,
    ProbeOperation,
    RequestApproval,
    RetryOperation,
    RevokeApproval,
    RunTimedOut,
    TurnLeaseEnded,
    task_thread,
)
from placet.requests import ApprovalRequest
from placet.signatures import SigningKey
from placet.values import Principal, PrincipalKind
from tests.signing import GATEWAY, a_key, signed
from tests.simulation.people import Voice
from tests.simulation.scheduler import Signal
from tests.simulation.workload import TENANT, RunPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

MALLORY = Principal(kind=PrincipalKind.HUMAN, id="mallory")
"""A person of another tenant."""
SIGNED_MS = 24 * 3_600_000
"""For how long before and after it was signed a decision counts: clocks here leap far."""
PATIENCE_MS = 3_000
TRIES_MAX = 400
"""An asker who has heard nothing final after so many tries in a healed world has found a bug."""
Answer = dict[str, Any]


class Clients:
    """Everybody outside."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._waiting: dict[str, tuple[Signal, list[str]]] = {}
        self.busy = 0
        """Askers who still wait for an answer, or for their time to act."""
        self.told: dict[str, list[str]] = defaultdict(list)
        """Every final answer that reached anybody, by decision id and content."""

    # ── asking ─────────────────────────────────────────────────────────────────────────

    def deliver(self, reply_to: str, text: str) -> None:
        """An answer has arrived; somebody may still wait for it."""
        self._world.ledger.spoken.text(text)
        waiting = self._waiting.get(reply_to)
        if waiting is not None:
            waiting[1].append(text)
            self._world.scheduler.set(waiting[0])

    async def ask(self, message: Message, name: str, heard: Callable[[str], None] = lambda text: None) -> Answer | None:
        """The final answer. None when the asker gives up, which happens only while things go wrong."""
        scheduler, faults = self._world.scheduler, self._world.faults
        signal, texts = self._waiting.setdefault(name, (Signal(), []))
        for tried in range(TRIES_MAX):
            if tried > 8 and not faults.healed and self._random.random() < 0.2:
                return None
            self._world.broker.send(Envelope(id=name, reply_to=name, message=message))  # type: ignore[arg-type]
            signal.is_set = bool(texts)
            await scheduler.wait(signal, PATIENCE_MS)
            while texts:
                text = texts.pop(0)
                answer: Answer = json.loads(text)
                if answer["final"]:
                    heard(text)
                    return answer
                self._world.history.sometimes["told to ask again"] += 1
                await scheduler.sleep(self._random.randint(50, 1_000))
        self._world.history.violate("I28", f"nobody answers {name}")
        return None

    async def _until(self, after_ms: int) -> None:
        """Wait so long, or a little longer: in a crowded world everybody acts at the same instants."""
        grid_ms = self._world.workload.grid_ms
        at_ms = self._world.scheduler.now_ms + after_ms
        await self._world.scheduler.sleep(at_ms + -at_ms % grid_ms - self._world.scheduler.now_ms)

    def spawn(self, name: str, act: Callable[..., Awaitable[object]], *args: object) -> None:
        """Let somebody act."""
        self.busy += 1

        async def until_done() -> None:
            await act(*args)
            self.busy -= 1

        self._world.scheduler.spawn(name, until_done())

    # ── runs ───────────────────────────────────────────────────────────────────────────

    async def submit(self, run: RunPlan) -> None:
        """Submit a run; perhaps again, perhaps with other content under the same id."""
        history = self._world.history
        await self._until(run.after_ms)
        answer = await self.ask(run.submit, f"submit-{run.run_id}")
        if answer is None:
            return
        if answer["answer"] == "refused" and self._world.release != "first":
            self._world.refused.add(run.run_id)
            return
        history.check(answer["answer"] in ("accepted", "duplicate"), "I6", f"{run.run_id} was submitted: {answer}")
        if run.submit_again:
            again = await self.ask(run.submit, f"submit-again-{run.run_id}")
            history.check(again is None or again["answer"] == "duplicate", "I6", f"the same run again: {again}")
            other = run.submit.model_copy(update={"goal": run.submit.goal + ".", "timeout_ms": 1})
            refused = await self.ask(other, f"submit-other-{run.run_id}")
            found = refused is None or (refused["answer"] != "duplicate" and "failure" in refused)
            history.check(found, "I6", f"another run under the same id: {refused}")

    async def cancel(self, run: RunPlan) -> None:
        """End a run for good."""
        assert run.cancel is not None
        await self._until(run.after_ms + run.cancel_after_ms)
        answer = await self.ask(run.cancel, f"cancel-{run.run_id}")
        if answer is not None and answer["answer"] == "accepted":
            self._world.history.note("cancelled", run.run_id)
            self._world.cancelled.add(run.run_id)

    # ── decisions ──────────────────────────────────────────────────────────────────────

    async def voice(self, request: ApprovalRequest, voice: Voice) -> None:
        """Say what the voice says, until somebody has listened."""
        scheduler = self._world.scheduler
        await self._until(voice.after_ms)
        word = voice.word
        if word == "truth":
            word = await self._truth(request)
        message = self._decision(request, voice, word)
        names = [f"{voice.decision_id}#{at}" for at in range(voice.times)]
        for name in names[1:]:
            self.spawn(name, self._decide, message, name)
        answer = await self._decide(message, names[0])
        if answer is None or not voice.then:
            return
        await scheduler.sleep(voice.then_after_ms)
        if voice.then == "other":
            changed = {"decision": "reject" if word == "approve" else "approve", "value_text": None}
            other = self._signed(message.model_copy(update=changed))
            refused = await self._decide(other, f"{voice.decision_id}#other")
            told = refused is None or refused["answer"] not in ("accepted", "duplicate")
            self._world.history.check(told, "I6", f"decision id used twice: {refused}")
        elif answer["answer"] == "accepted":
            await self._revoke(request, voice.person)

    async def _truth(self, request: ApprovalRequest) -> str:
        """What a person says who has looked until nothing can change any more."""
        operation_id = request.operation_id or json.loads(request.content_text)["operationId"]
        while not self._world.outside.has_settled(operation_id):
            await self._world.scheduler.sleep(500)
        return self._world.outside.truth(operation_id)

    def _decision(self, request: ApprovalRequest, voice: Voice, word: str) -> DecideApproval:
        hashes = {
            "right": request.request_hash,
            "wrong": request.request_hash[::-1],
            "upper": request.request_hash.upper(),
        }
        message = DecideApproval(
            tenant=TENANT,
            run_id=request.run_id,
            request_id=request.request_id,
            decision_id=voice.decision_id,
            request_hash=hashes[voice.hash_text],
            decision=word,
            reviewer=Principal(kind=voice.kind, id=voice.person),
            value_text=voice.value_text,
            reason=voice.reason,
        )
        return self._signed(message)

    def _signed(self, message: DecideApproval) -> DecideApproval:
        """As the gateway signs it, which does not sign for machines. Its clock and the store's need not agree."""
        if message.reviewer.kind is not PrincipalKind.HUMAN:
            return message
        now_ms = self._world.clock.now_ms()
        return signed(
            message, now_ms, GATEWAY, issued_at_ms=max(0, now_ms - SIGNED_MS), not_after_ms=now_ms + SIGNED_MS
        )

    async def _decide(self, message: DecideApproval, name: str) -> Answer | None:
        key = f"{message.request_id} {message.decision_id} {message.decision} {message.request_hash}"
        answer = await self.ask(message, name, lambda text: self._world.checker.answered(message, key, text))
        if answer is not None:
            self._world.history.note("answer", f"{message.request_id} {message.decision_id} {answer['answer']}")
        return answer

    async def _revoke(self, request: ApprovalRequest, person: str) -> None:
        message = RevokeApproval(
            tenant=TENANT,
            run_id=request.run_id,
            request_id=request.request_id,
            operation_id=request.operation_id,
            by=Principal(kind=PrincipalKind.HUMAN, id=person),
            reason="thought better of it",
        )
        answer = await self.ask(message, f"revoke-{request.request_id[-8:]}-{person}")
        if answer is not None:
            self._world.history.sometimes[f"revoke: {answer['answer']}"] += 1
            if answer["answer"] == "accepted":
                self._world.checker.revoked(request)

    # ── lies ───────────────────────────────────────────────────────────────────────────

    async def forge(self) -> None:
        """Somebody on the broker sends internal messages that are not true."""
        world = self._world
        while not world.faults.healed:
            await world.scheduler.sleep(self._random.randint(20, 1_000))
            if not world.faults.hits("forged"):
                continue
            forged = self._forged()
            if forged is not None:
                world.history.note("forged", f"{forged.type} {forged.to().text()}")  # type: ignore[attr-defined]
                name = f"forged-{self._random.random()}"
                world.broker.send(Envelope(id=name, message=forged))  # type: ignore[arg-type]

    def _forged(self) -> Message | None:
        ledger, pick = self._world.ledger, self._random.choice
        if not ledger.operations and not ledger.requests:
            return None
        names: dict[str, Any] = {"tenant": pick((TENANT, TENANT, TENANT, "evil")), "run_id": ""}
        if ledger.requests and (not ledger.operations or self._random.random() < 0.4):
            request = pick(list(ledger.requests.values()))
            names |= {"run_id": request.run_id, "request_id": request.request_id}
            return pick(_FORGED_FOR_REQUESTS)(names, request)
        operation = pick(list(ledger.operations.values()))
        names |= {"run_id": operation.run_id}
        attempt = pick((1, 1, 2, 3))
        asked = pick((operation.request_id, None, "apr_unheard_of"))
        forged: list[Callable[[], Message]] = [
            lambda: ExecuteOperation(**names, operation_id=operation.operation_id, request_id=asked),
            lambda: RetryOperation(**names, operation_id=operation.operation_id, attempt=attempt, request_id=asked),
            lambda: OperationLeaseEnded(
                **names, operation_id=operation.operation_id, attempt=attempt, probe=pick((0, 1)), request_id=asked
            ),
            lambda: ProbeOperation(**names, operation_id=operation.operation_id, attempt=attempt, probe=pick((1, 2))),
            lambda: RunTimedOut(**names),
            lambda: CancelRun(**{**names, "tenant": "evil"}, by=MALLORY),
            lambda: TurnLeaseEnded(
                **names, thread_id=task_thread(operation.task_id), turn=pick((1, 2)), attempt=attempt
            ),
        ]
        return pick(forged)()


def _forged_decision(
    names: dict[str, Any], request: ApprovalRequest, key: SigningKey | None = None, **said: Any
) -> DecideApproval:
    """What somebody says who can write to the queues between the services: unsigned, signed with a key that nobody has
    registered, or with an envelope around that says something else.
    """
    message = DecideApproval(
        **names, decision_id="d-forged", request_hash=request.request_hash, decision="approve", reviewer=MALLORY
    )
    if key is None:
        return message
    lent = signed(message, request.requested_at_ms, key, **said, not_after_ms=request.requested_at_ms + SIGNED_MS)
    return message.model_copy(update={"signed": lent.signed})


_FORGED_FOR_REQUESTS: list[Callable[[dict[str, Any], ApprovalRequest], Message]] = [
    lambda names, request: ApprovalDecided(
        **names, outcome="approved", asker_machine=request.asker_machine, asker_key=request.asker_key
    ),
    lambda names, request: ApprovalDecided(**names, outcome="rejected", asker_machine=RUN, asker_key=""),
    lambda names, request: ApprovalDecided(
        **names, outcome="executed", asker_machine=OPERATION, asker_key=request.operation_id
    ),
    lambda names, request: ExpireApproval(**names),
    lambda names, request: DecideApproval(
        **{**names, "tenant": "evil"},
        decision_id="d-evil",
        request_hash=request.request_hash,
        decision="approve",
        reviewer=MALLORY,
    ),
    lambda names, request: _forged_decision(names, request),
    lambda names, request: _forged_decision(names, request, a_key(MALLORY.id)),
    lambda names, request: _forged_decision(names, request, GATEWAY, decision="reject"),
    lambda names, request: RequestApproval(**names, request=request.model_copy(update={"quorum": 1, "initiator": ""})),
]
