"""Decides how the engine is broken where it spares work: timers, models at hand, the referee; and what it tells."""

from __future__ import annotations

from dataclasses import replace as with_fields
from functools import partial
from typing import Any

from placet.adapters.models import caller
from placet.hosting import logs
from placet.machine import Receipt, Send, Withdraw, move
from placet.messages import CancelOperation, decode_envelope
from placet.runtime import conversing, worker
from placet.runtime.conversing import Conversing
from placet.runtime.engine import Engine
from placet.runtime.ports import Delivery, Fate
from placet.runtime.worker import Worker
from placet_planner import machine as thread
from placet_tool_executor import doubt
from placet_tool_executor import machine as operation
from placet_tool_executor.machine import OperationMachine
from placet_tool_executor.steps import lease_ended
from tests.simulation.differential import differential
from tests.simulation.mutants.mutant import CERTAIN, PLAIN, RACES, around, mutant, quiet, replace
from tests.simulation.processes import EVERYTHING, Layout
from tests.simulation.world import simulate

# ── withdrawn timers ───────────────────────────────────────────────────────────────────


def _hasty(original: Any, self: Any, state: Any, message: Any, *rest: Any) -> Any:
    then = original(self, state, message, *rest)
    if then.kind != "moved" or not isinstance(message, CancelOperation) or state is None or state.status != "started":
        return then
    return with_fields(then, effects=(*then.effects, Withdraw(lease_ended(state))))


mutant(
    "a cancel withdraws the lease of what still runs",
    "I29",
    lambda: [around(OperationMachine, "transition", _hasty)],
    quiet(gates=("allow",), cancels=1.0, cancel_ms_max=3_000),
    "result_lost tool_hangs",
    200,
)


def _by_name(state: Any, message: Any, due_ms: Any) -> Any:
    return move(state, Send(message, not_before=due_ms, is_named=True))


mutant(
    "a timer that came too early comes again by its name",
    "I32",
    lambda: [
        replace(operation, "not_yet", _by_name),
        replace(thread, "not_yet", _by_name),
        replace(doubt, "not_yet", _by_name),
    ],
    PLAIN,
    "forged clock_steps_back result_lost",
    200,
)

# ── models at hand ─────────────────────────────────────────────────────────────────────


async def _keeping_all(original: Any, engine: Any, deliveries: Any) -> Any:
    found = await original(engine, deliveries)
    for outcome, result in found:
        if result.fate is not Fate.COMMITTED:
            engine._conversing.committed(outcome.unit)
    return found


_TWINS = Layout(
    "twins",
    (("host-0", EVERYTHING), ("host-1", EVERYTHING)),
    confirming=True,
    exclusive=False,
    hand_over=True,
    latency_ms=3,
)
"""Two processes that are slow enough for each to begin what the other has begun."""
_HAND = quiet(gates=("allow",), modes=("goal",), tools=("upsert", "look"))
mutant(
    "what was said in a unit that lost its race is remembered",
    "I4",
    lambda: [around(Engine, "_attempt", _keeping_all)],
    _HAND,
    "requeued repeated model_blunders model_fails",
    60,
    partial(simulate, layout=_TWINS),
)


def _lying_in_wait(original: Any, self: Any, call: Any, said: Any) -> Any:
    """Conversing._conversation, but what is remembered is never compared with what should be there."""
    kept = self._kept.get((call.run_id, call.thread_id))
    missing = 0 if kept is None else call.messages - len(said) - len(kept)
    return original(self, call.model_copy(update={"messages": call.messages - missing}), said)


mutant(
    "what another process has said meanwhile is not read",
    "I4",
    lambda: [
        around(Conversing, "_conversation", _lying_in_wait),
        replace(Conversing, "_keep", _never_forgetting),
    ],
    _HAND,
    "crash result_lost requeued",
    200,
)


def _never_forgetting(self: Any, row: Any) -> None:
    """Conversing._keep, but a row that does not follow upon the last is left out, and the others stay."""
    kept = self._kept.setdefault((row.run_id, row.thread_id), [])
    if len(kept) == row.n - 1:
        kept.append(conversing._CHAT.validate_json(row.body_text))


async def _answering_all_the_same(original: Any, engine: Any, deliveries: Any) -> Any:
    found = await original(engine, deliveries)
    for outcome, result in found:
        entries = [] if result.fate is Fate.COMMITTED else outcome.unit.journal
        answers = [Delivery(decode_envelope(e.message), 0) for e in entries if b'"model.answered"' in e.message]
        asked = {delivery.envelope.id for delivery in deliveries}
        if answers := [answer for answer in answers if answer.envelope.id not in asked]:
            await original(engine, answers)
    return found


mutant(
    "a model at hand has answered although the step that asked it lost its race",
    "I32",
    lambda: [around(Engine, "_attempt", _answering_all_the_same)],
    _HAND,
    "requeued repeated store_slow",
    500,
)

# ── the referee ────────────────────────────────────────────────────────────────────────


def _final(message: Any) -> str:
    told = Receipt(
        answer="conflict", run_id=message.run_id, request_id=message.request_id, decision_id=message.decision_id
    )
    return told.model_dump_json(exclude_none=True)


mutant(
    "the referee's word is final",
    "I24",
    lambda: [replace(worker, "_busy", _final)],
    RACES,
    judged_by=differential,
)


async def _in_another_order(original: Any, self: Any, taken: Any, nonce: str) -> Any:
    mine, busy = await original(self, taken, nonce)
    return (mine if self._arbiter is None else mine[::-1]), busy


mutant(
    "the referee says in which order messages are applied",
    "I24",
    lambda: [around(Worker, "_referee", _in_another_order)],
    with_fields(CERTAIN, runs_max=3),
    judged_by=differential,
)

# ── secrets ────────────────────────────────────────────────────────────────────────────

mutant(
    "a provider's error is shown as it came",
    "I25",
    lambda: [replace(caller, "_shown", lambda error, secrets: str(error))],
    PLAIN,
    "model_fails",
)
mutant(
    "the log shows the addresses of databases with their passwords",
    "I25",
    lambda: [replace(logs, "masked", lambda text: text)],
    PLAIN,
    "commit_fails store_slow requeued",
    200,
)
