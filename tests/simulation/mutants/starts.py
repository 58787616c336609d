"""Decides how starts and effects are broken: who may start, what, how often, and what is said afterwards."""

from __future__ import annotations

from typing import Any

from placet.adapters.memory import MemoryStore
from placet.calls import EffectClass
from placet.errors import Certainty
from placet.facts import Facts
from placet.rows import OperationRow
from placet.runtime.engine import Engine
from placet.runtime.fold import Fold
from placet.runtime.worker import Worker
from placet_dispatcher.draft import Draft
from placet_tool_executor import doubt, guard, steps
from placet_tool_executor import machine as operation
from placet_tool_executor.state import attempt_key
from tests.simulation.application import LEDGER, MAIL, TAG, UPSERT
from tests.simulation.mutants.mutant import PLAIN, around, changed, knowing, mutant, quiet, replace
from tests.simulation.ports import SimInvoker
from tests.simulation.workload import Profile

# ── starts ─────────────────────────────────────────────────────────────────────────────

mutant(
    "a start does not look for the approval",
    "I7",
    lambda: [replace(guard, "_approval", lambda *_: None)],
    quiet(gates=("ask", "allow"), moods=("plain",)),
    "forged model_hangs",
)
mutant(
    "a revocation is not read",
    "I7",
    lambda: [replace(Facts, "revocation", lambda *_: None)],
    quiet(gates=("ask",), moods=("revoke",), approve=1.0),
    "delayed",
)
mutant(
    "an approval is used after its time",
    "I7",
    lambda: [replace(guard, "_use_by", lambda *_: None)],
    quiet(gates=("ask_use", "ask"), moods=("plain",)),
    "clock_jumps delayed tool_refuses",
)


def _unguarded(original: Any, self: Any) -> Any:
    outcomes = original(self)
    for outcome in outcomes:
        outcome.unit.guards.clear()
    return outcomes


mutant(
    "what a start has read is not guarded at the commit",
    "I7",
    lambda: [around(Fold, "outcomes", _unguarded)],
    quiet(gates=("ask", "allow"), moods=("revoke", "plain"), cancels=0.5),
    "store_slow delayed",
    200,
)
mutant(
    "a run that has ended starts things",
    "I7",
    lambda: [replace(guard, "RUN_TERMINAL", frozenset())],
    quiet(gates=("allow",), cancels=1.0, cancel_ms_max=2_000, timeouts=0.0, modes=("tasks",)),
    "delayed",
    200,
)
mutant(
    "the input is executed as it came, not as it was validated",
    "I8",
    lambda: [around(steps, "RunTool", lambda original, **given: original(**{**given, "input_text": '{"n":99}'}))],
)


def _another(original: Any, self: Any, row: Any) -> Any:
    if isinstance(row, OperationRow):
        row = row.model_copy(update={"input_text": row.input_text.replace('"n":', '"n":1')})
    return original(self, row)


mutant(
    "another input is shown than is executed",
    "I31",
    lambda: [around(Draft, "record", _another)],
)


def _starting_again(original: Any, state: Any, known: Any, message: Any, facts: Any, now_ms: Any, *rest: Any) -> Any:
    if known is None or known.status != "started":
        return original(state, known, message, facts, now_ms, *rest)
    verdict = guard.judge_start(message, facts, now_ms)
    if not isinstance(verdict, guard.Permit):
        return original(state, known, message, facts, now_ms, *rest)
    return steps.start(known, verdict, facts.incarnation, now_ms)


def _forgetting_open(original: Any, store: Any, rows: Any) -> Any:
    store._open.clear()
    return original(store, rows)


mutant(
    "a second start finds nothing consumed",
    "I9",
    lambda: [around(operation, "_execute", _starting_again), around(MemoryStore, "_stage", _forgetting_open)],
    PLAIN,
    "requeued repeated",
)
mutant(
    "attempts are not counted one by one",
    "I10",
    lambda: [around(steps, "AttemptRow", lambda original, **given: original(**{**given, "n": given["n"] + 1}))],
)
mutant(
    "the fence does not grow",
    "I11",
    lambda: [around(steps, "AttemptRow", changed(fence=1))],
    PLAIN,
    "tool_refuses result_lost",
)

# ── effects ────────────────────────────────────────────────────────────────────────────


def _only(tool: str) -> Profile:
    return quiet(tools=(tool,), gates=("allow", "ask"), moods=("plain",), approve=1.0)


mutant(
    "what cannot be repeated is repeated in doubt",
    "I12",
    lambda: [replace(doubt, "REPEATABLE", frozenset(EffectClass))],
    _only(MAIL),
    "result_lost tool_answer_lost",
)
mutant(
    "every attempt of an idempotent tool has a key of its own",
    "I12",
    lambda: [replace(steps, "key_for", lambda operation_id, n, spec: attempt_key(operation_id, n))],
    _only(UPSERT),
    "result_lost tool_answer_lost",
)


def _impatient(original: Any, state: Any, probe: int, due_ms: int, now_ms: int, *rest: Any) -> Any:
    return original(state, probe, now_ms, now_ms, *rest)


mutant(
    "the tool's world is asked before it is quiet",
    "I12",
    lambda: [around(doubt, "_probe_at", _impatient)],
    _only(TAG),
    "tool_arrives_late result_lost",
)
mutant(
    "a call begins however late it is",
    "I12",
    lambda: [replace(SimInvoker, "_begin_left_ms", lambda self, since_ms: 1.0)],
    _only(MAIL),
    "freeze store_slow",
)
mutant(
    "an attempt is probed and not sealed",
    "I13",
    lambda: [around(doubt, "ProbeTool", lambda original, **given: original(**{**given, "seal": False}))],
    _only(LEDGER),
    "tool_arrives_late result_lost",
)
mutant(
    "nobody knows is told as did not happen",
    "I13",
    lambda: [
        around(
            operation,
            "doubtful",
            lambda original, state, failure, facts, now_ms, *effects, lost: steps.finish(
                state, "failed", *effects, failure=failure.model_copy(update={"certainty": Certainty.NOT_EXECUTED})
            ),
        )
    ],
    _only(MAIL),
    "result_lost tool_answer_lost",
)
mutant(
    "the doubt about an earlier attempt is forgotten",
    "I13",
    lambda: [replace(operation, "_in_doubt_before", lambda state: False)],
    _only(UPSERT),
    "tool_answer_lost tool_denies",
)


async def _invoking_early(original: Any, engine: Any, deliveries: Any) -> Any:
    fold = Fold(engine.machines, engine._application, deliveries)
    addresses, keys = fold.wanted()
    fold.take(await engine._store.load(addresses, keys))
    fold.run_wave(hand_over=False)
    for outcome in fold.outcomes():
        engine.invoker.start(outcome.activities, engine.invoker.monotonic_ms())
    return await original(engine, deliveries)


mutant(
    "a call to the world begins before its commit",
    "I7",
    lambda: [around(Engine, "_attempt", _invoking_early), around(Worker, "__init__", knowing)],
    PLAIN,
    "commit_fails",
)
