"""Decides how a test works a whole application one message at a time, and tears everything but the store down between.

Nothing is held in memory from one applied step to the next: store, engine, application, queue and invoker are new. A
call to the world whose step was applied just before is lost once, before it begins; its lease brings it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from placet.activities import Activity, CallModel, ProbeTool, RunTool
from placet.application import App
from placet.calls import ChatMessage, ModelReply
from placet.ids import Address
from placet.messages import RUN, DecideApproval, Envelope, Message, SubmitRun, decode_envelope
from placet.plans import PlannedTask
from placet.runtime.engine import Engine
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import Delivery
from placet.runtime.scripts import ScriptedModels
from placet.runtime.tools import ToolRunner
from placet.values import Principal, PrincipalKind
from placet_embedded.system import machines

TENANT = "default"
ALICE = Principal(kind=PrincipalKind.HUMAN, id="alice")
BOB = Principal(kind=PrincipalKind.HUMAN, id="bob")
HORIZON_MS = 3_600_000
"""Timers further away than this are not waited for."""
CLAIM_MS = 60_000
STEPS_MAX = 2_000


class Counted:
    """Models that say how often each turn was asked."""

    def __init__(self, inner: Any, asked: Counter[str]) -> None:
        self._inner = inner
        self._asked = asked

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        self._asked[f"{activity.run_id}/{activity.thread_id}/{activity.turn}"] += 1
        reply: ModelReply = await self._inner.call(activity, conversation)
        return reply

    async def close(self) -> None:
        await self._inner.close()


class Office:
    """An application at work on a store."""

    def __init__(
        self,
        store: Any,
        clock: Any,
        app: Callable[[], App],
        *,
        reopen: Callable[[Any], Awaitable[Any]] | None = None,
        lose: bool = True,
        store_of: Callable[[str], Any] | None = None,
    ) -> None:
        """`reopen`: how a store is opened anew. `lose`: so that everything is torn down after every applied step.

        `store_of`: each machine works alone, as a service does, on a store of its own.
        """
        self.store, self.clock, self.app_of, self._store_of = store, clock, app, store_of
        self._reopen = reopen
        self._loses = lose and reopen is not None
        self.hold = False
        """Whether calls to the world do not begin."""
        self.asked: Counter[str] = Counter()
        self.rebuilt = 0
        self.answers: list[str] = []
        self.lost: set[str] = set()
        """Calls that never began, since everything was torn down before."""
        self.results: list[Envelope] = []
        self._tokens = 0
        self._build()

    def _build(self) -> None:
        self.app = self.app_of()
        models = Counted(ScriptedModels(self.app), self.asked)
        self.engine = Engine(machines(), self.app, self.store, hand_over=False)
        self._engines = {name: self._alone(name) for name in machines()} if self._store_of is not None else {}
        self.results.clear()
        self._invoker = TaskInvoker(
            models,
            ToolRunner(self.app),
            self.store,
            self.results.append,
            monotonic_ms=lambda: float(self.clock.at_ms),
        )

    def _alone(self, machine: str) -> Engine:
        assert self._store_of is not None
        return Engine({machine: machines()[machine]}, self.app, self._store_of(machine), hand_over=False)

    async def rebuild(self) -> None:
        """Everything that was in memory is gone."""
        self.rebuilt += 1
        if self._reopen is not None:
            self.store = await self._reopen(self.store)
        self._build()

    # ── one step ───────────────────────────────────────────────────────────────────────

    async def say(self, message: Message, name: str) -> None:
        """Somebody outside says something, and hears the answer."""
        envelope = Envelope(id=name, reply_to=name, message=message)  # type: ignore[arg-type]
        await self._apply(envelope, None, None)

    async def work(self, until: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Go on until nothing is left to do but to wait for a person (or until a condition holds)."""
        for _ in range(STEPS_MAX):
            if until is not None and await until():
                return
            if self.results:
                await self._apply(self.results.pop(0), None, None)
                continue
            rows = await self.store.claim_due(1, CLAIM_MS)
            if rows:
                await self._apply(decode_envelope(rows[0].body), rows[0].id, rows[0].body)
                continue
            now_ms, due_ms = await self.store.next_due_ms()
            if due_ms is None or due_ms > now_ms + HORIZON_MS:
                return
            self.clock.at_ms = due_ms
        raise AssertionError("the run does not come to rest")

    async def _apply(self, envelope: Envelope, outbox_id: str | None, body: bytes | None) -> None:
        self._tokens += 1
        delivery = Delivery(envelope, self._tokens, outbox_id, body)
        engine = self._engines.get(envelope.message.to().machine, self.engine)
        settlement = await engine.process([delivery])
        assert not settlement.back
        self.answers += [text for _, text in settlement.replies]
        kept = [activity for activity in settlement.activities if self._is_begun(activity)]
        self._invoker.start(kept, float(self.clock.at_ms))
        await self._invoker.settled()
        if self._loses and not self.results:
            await self.rebuild()

    def _is_begun(self, activity: Activity) -> bool:
        """Whether the call begins: where everything is torn down, only if the same one was lost before."""
        if self.hold:
            return False
        if not self._loses or not isinstance(activity, CallModel | RunTool | ProbeTool):
            return True
        turn = getattr(activity, "turn", "")
        name = f"{type(activity).__name__} {activity.owner().text()} {turn}"
        known = name in self.lost
        self.lost.add(name)
        return known

    # ── what people do and see ─────────────────────────────────────────────────────────

    async def submit(
        self, goal: str = "", tasks: tuple[PlannedTask, ...] = (), run_id: str = "r1", **more: Any
    ) -> None:
        mode = more.pop("mode", "tasks" if tasks else "goal")
        message = SubmitRun(
            tenant=TENANT, run_id=run_id, team="desk", goal=goal, tasks=tasks, mode=mode, initiator=ALICE, **more
        )
        await self.say(message, f"submit-{run_id}")

    async def open_requests(self, run_id: str = "r1") -> list[dict[str, Any]]:
        found = await self.store.requests(TENANT, open_only=True, limit=100, after=None)
        return [row for row in found if row["run_id"] == run_id]

    async def decide(self, request: dict[str, Any], word: str = "approve", **more: Any) -> None:
        message = DecideApproval(
            tenant=TENANT,
            run_id=request["run_id"],
            request_id=request["request_id"],
            decision_id=f"d-{request['request_id']}",
            request_hash=request["request_hash"],
            decision=word,
            reviewer=BOB,
            **more,
        )
        await self.say(message, f"d-{request['request_id']}")

    async def state(self, run_id: str = "r1") -> dict[str, Any]:
        found = await self.store.state(TENANT, Address(run_id, RUN, ""))
        assert found is not None
        body: dict[str, Any] = found["body"]
        return {**body, "version": found["version"]}

    async def to_the_end(self, run_id: str = "r1") -> dict[str, Any]:
        """Approve whatever is asked, until the run has ended."""
        for _ in range(50):
            await self.work()
            requests = await self.open_requests(run_id)
            if not requests:
                return await self.state(run_id)
            for request in requests:
                await self.decide(request)
        raise AssertionError("the run asks for ever")

    async def kinds(self, run_id: str = "r1") -> list[str]:
        """What happened, by the audit."""
        return [row["kind"] for row in await self.store.rows(TENANT, "audit_leaf", run_id)]
