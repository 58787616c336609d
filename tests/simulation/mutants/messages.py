"""Decides how messages, timers and the run's own bookkeeping are broken: what is lost, repeated, or never woken."""

from __future__ import annotations

from dataclasses import replace as with_fields
from itertools import count
from typing import Any

from placet.adapters.memory import MemoryStore
from placet.errors import InvariantError
from placet.facts import Facts
from placet.machine import absorb, move
from placet.messages import OperationLeaseEnded, RequestApproval
from placet.retries import RetryDecision
from placet.runtime import fold as folding
from placet.runtime import relay as relaying
from placet.runtime.engine import Engine
from placet.runtime.fold import Fold
from placet.runtime.ports import CommitResult, Fate
from placet.runtime.relay import CLAIM_MS, RELAY_MAX, Relay
from placet_dispatcher import decisions as releasing
from placet_dispatcher import draft as drafting
from placet_dispatcher import machine as run
from placet_dispatcher.draft import Draft
from placet_planner import machine as thread
from placet_planner.machine import ThreadMachine
from placet_tool_executor import doubt
from placet_tool_executor import machine as operation
from placet_tool_executor.machine import OperationMachine
from tests.simulation.mutants.mutant import CERTAIN, PLAIN, RACES, around, changed, mutant, quiet, replace
from tests.simulation.workload import TENANT

mutant(
    "a run that has ended is changed by what comes later",
    "I14",
    lambda: [replace(run, "_late", lambda state, message: move(state.model_copy(update={"status": "cancelled"})))],
    quiet(gates=("allow",), cancels=1.0, timeouts=0.0, modes=("tasks",), teams=("solo",)),
    "delayed repeated",
)
mutant(
    "the word that wakes a run is dropped while something is in flight",
    "I15",
    lambda: [
        around(
            run,
            "decide",
            lambda original, draft, message: "busy" if draft.state.status == "running" else original(draft, message),
        )
    ],
    quiet(gates=("ask", "allow"), moods=("plain",), teams=("pair", "solo")),
    "tool_hangs model_hangs",
)


async def _discarding_first(relay: Any) -> int:
    """Relay.turn, but a row is deleted before anybody has it."""
    rows = await relay._store.claim_due(RELAY_MAX, CLAIM_MS)
    if rows:
        await relay._store.discard([row.id for row in rows])
        await relay._outlet.publish(rows)
    now_ms, due_ms = await relay._store.next_due_ms()
    return 60_000 if due_ms is None else max(1, min(60_000, due_ms - now_ms))


mutant(
    "a row is deleted before it is published",
    "I29",
    lambda: [replace(Relay, "turn", _discarding_first)],
    PLAIN,
    "crash lost",
)


async def _discarding_confirmed(store: Any, rows: Any, confirmed: Any) -> None:
    """relay.told_confirmed, but the broker's word is enough."""
    await store.discard(confirmed)


mutant(
    "a row is deleted when the broker has confirmed it",
    "I29",
    lambda: [replace(relaying, "told_confirmed", _discarding_confirmed)],
    PLAIN,
    "wiped lost delayed",
)


def _keeping(original: Any, self: Any, machines: Any, application: Any, deliveries: Any, **rest: Any) -> None:
    kept = [with_fields(delivery, outbox_id=None) for delivery in deliveries]
    original(self, machines, application, kept, **rest)


mutant(
    "an applied message leaves its row behind",
    "I28",
    lambda: [around(Fold, "__init__", _keeping)],
    PLAIN,
    seeds_max=20,
)


def _stepping(original: Any, self: Any, state: Any, message: Any, *rest: Any) -> Any:
    transition = original(self, state, message, *rest)
    return move(state) if transition.kind == "absorbed" and state is not None else transition


mutant(
    "a repeat steps the version",
    "I17",
    lambda: [around(OperationMachine, "transition", _stepping), around(ThreadMachine, "transition", _stepping)],
    PLAIN,
    "repeated",
)


def _any_tenant(original: Any, self: Any, state: Any, message: Any, *rest: Any) -> Any:
    return original(self, state, message.model_copy(update={"tenant": TENANT}), *rest)


mutant(
    "another tenant's message is taken for one's own",
    "I22",
    lambda: [around(run.RunMachine, "transition", _any_tenant)],
    quiet(gates=("ask",), moods=("plain",)),
    "forged",
)
mutant(
    "a leaf does not name the one before it",
    "I23",
    lambda: [around(drafting, "audit_leaf", changed(previous=""))],
)
mutant(
    "a run is called suspended while something is in flight",
    "I26",
    lambda: [
        around(
            Draft,
            "moved",
            lambda original, self, *replies: (
                self.change(status="suspended") if self.requests and not self.state.is_over else None,
                original(self, *replies),
            )[1],
        )
    ],
    PLAIN,
    "model_hangs tool_hangs",
)
mutant(
    "a back-off is not waited for",
    "I27",
    lambda: [
        around(
            doubt,
            "_retry_after",
            lambda original, state, certainty, delay_ms, *rest: original(state, certainty, 0, *rest),
        )
    ],
    PLAIN,
    "tool_refuses",
)
mutant(
    "a retry does not follow from the rule",
    "I27",
    lambda: [replace(doubt, "decide", lambda inputs: RetryDecision(action="retry", delay_ms=1, reason="transient"))],
    PLAIN,
    "tool_denies",
)
mutant(
    "nobody is told when a lease ends",
    "I29",
    lambda: [
        around(
            Fold,
            "_send",
            lambda original, self, item, version, position, effect, *rest, **named: (
                None
                if isinstance(effect.message, OperationLeaseEnded)
                else original(self, item, version, position, effect, *rest, **named)
            ),
        )
    ],
    PLAIN,
    "result_lost",
)
mutant(
    "a question is kept and never put",
    "I30",
    lambda: [
        around(
            Draft,
            "send",
            lambda original, self, message, *rest: (
                None if isinstance(message, RequestApproval) else original(self, message, *rest)
            ),
        )
    ],
)

_NUMBERS = count()
mutant(
    "a machine draws a number that is not derived",
    "replay",
    lambda: [
        around(
            Draft,
            "moved",
            lambda original, self, *replies: (
                self.change(attempt=next(_NUMBERS) + 1),
                original(self, *replies),
            )[1],
        )
    ],
)
mutant(
    "the journal does not hold what the application said",
    "replay",
    lambda: [replace(folding, "journalled", lambda facts, upgraded: '{"rows":[],"answers":[],"incarnation":0}')],
)


def _raising(original: Any, self: Any, state: Any, message: Any, *rest: Any) -> Any:
    if message.turn if hasattr(message, "turn") else False:
        raise InvariantError("broken on purpose")
    return original(self, state, message, *rest)


mutant("a machine raises", "I32", lambda: [around(ThreadMachine, "transition", _raising)], PLAIN)
mutant(
    "a repeated turn is asked again",
    "I17",
    lambda: [
        around(
            thread,
            "_take",
            lambda original, state, message, *rest: original(
                None if state is None else state.model_copy(update={"turn": message.turn - 1, "status": "idle"}),
                message,
                *rest,
            ),
        )
    ],
    PLAIN,
    "repeated",
)


def _wordless(original: Any, state: Any, outcome: Any, *effects: Any) -> Any:
    return original(state, outcome.model_copy(update={"result_text": "null"}), *effects)


def _expiring(original: Any, draft: Any, request: Any) -> Any:
    late = request.decision == "approved" and request.scope == "tool_call"
    return original(draft, request.model_copy(update={"decision": "expired"}) if late else request)


mutant(
    "what was approved is not done",
    "expected",
    lambda: [around(releasing, "_release_call", _expiring)],
    CERTAIN,
)
mutant(
    "a result is lost between operation and run",
    "expected",
    lambda: [around(operation, "executed", _wordless)],
    CERTAIN,
)


def _gone(state: Any, message: Any, due_ms: Any) -> Any:
    return absorb("not yet")


mutant(
    "a timer that came too early is gone",
    "I29",
    lambda: [replace(operation, "not_yet", _gone), replace(thread, "not_yet", _gone), replace(doubt, "not_yet", _gone)],
    PLAIN,
    "clock_steps_back result_lost store_slow",
    200,
)


async def _deleting_first(original: Any, engine: Any, deliveries: Any) -> Any:
    await engine._store.discard([each.outbox_id for each in deliveries if each.outbox_id is not None])
    return await original(engine, deliveries)


mutant(
    "the row of a message is deleted before the commit that applies it",
    "I29",
    lambda: [around(Engine, "process", _deleting_first)],
    PLAIN,
    "crash commit_fails",
)


async def _believing_itself(original: Any, engine: Any, deliveries: Any) -> Any:
    return [(outcome, CommitResult(Fate.COMMITTED)) for outcome, _ in await original(engine, deliveries)]


mutant(
    "a unit that lost its race is taken for committed",
    "I16",
    lambda: [around(Engine, "_attempt", _believing_itself)],
    RACES,
    "requeued repeated store_slow",
)


def _busy_as_running(original: Any, facts: Any, *key: str) -> Any:
    status = original(facts, *key)
    return "running" if status == "suspended" else status


mutant(
    "what a waiting run has not released is started by anybody",
    "I26",
    lambda: [around(Facts, "status", _busy_as_running)],
    quiet(gates=("ask",), moods=("plain",), approve=1.0),
    "forged",
    200,
)


async def _inventing(original: Any, store: Any, limit: int, lease_ms: int) -> Any:
    rows = await original(store, limit, lease_ms)
    return [*rows, *(with_fields(row, id=f"{row.id}x") for row in rows[:1])]


mutant(
    "a message is published that nobody committed",
    "I16",
    lambda: [around(MemoryStore, "claim_due", _inventing)],
)
