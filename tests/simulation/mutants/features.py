"""Decides how edits, answers, instructions, forks and freezes are broken."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

from placet.machine import absorb
from placet.runtime import engine
from placet_approval import decisions as deciding
from placet_dispatcher import continuing, edits, proposals
from placet_dispatcher import decisions as releasing
from placet_dispatcher import machine as run
from placet_tool_executor import freezes, guard
from placet_tool_executor import machine as operation
from tests.simulation.application import UPSERT
from tests.simulation.mutants.mutant import around, mutant, quiet, replace

_EDITS = quiet(gates=("ask",), moods=("edit",), approve=1.0)
_ELSE = quiet(gates=("ask",), moods=("else",))
_FROZEN = quiet(gates=("allow", "ask"), moods=("plain",), approve=1.0, frozen=1.0)

# ── edits and answers ──────────────────────────────────────────────────────────────────


def _as_proposed(original: Any, message: Any, facts: Any, now_ms: Any) -> Any:
    verdict = original(message, facts, now_ms)
    if not isinstance(verdict, guard.Permit):
        return verdict
    proposed = facts.operation(message.run_id, message.operation_id)
    return with_fields(verdict, row=verdict.row.model_copy(update={"input_text": proposed.input_text}))


mutant(
    "an edited call is executed as it was before the edit",
    "I8",
    lambda: [around(operation, "judge_start", _as_proposed)],
    _EDITS,
    seeds_max=200,
)
mutant(
    "a question does not say who has edited what it asks",
    "I20",
    lambda: [replace(edits, "_lines", lambda persons: "")],
    _EDITS,
)


def _answered_is_approved(original: Any, draft: Any, request: Any) -> Any:
    return original(draft, request.model_copy(update={"decision": "approved"}) if request.decision else request)


mutant(
    "a call that a person has answered is made all the same",
    "I7",
    lambda: [
        around(releasing, "_release_call", _answered_is_approved),
        replace(guard, "_approval", lambda *_: None),
    ],
    _ELSE,
)
mutant(
    "an answer is taken that does not fit its form",
    "I4",
    lambda: [replace(deciding, "check_value", lambda *_: None)],
    quiet(gates=("allow",), questions=1.0),
)

# ── instructions and forks ─────────────────────────────────────────────────────────────

_INSTRUCTED = quiet(gates=("allow",), modes=("goal", "tasks"), instructed=1.0)
mutant(
    "the end of an interrupted turn counts each time it is heard",
    "I17",
    lambda: [replace(run, "has_ended", lambda *_: False)],
    quiet(gates=("allow",), modes=("goal",), instructed=1.0),
    "repeated model_hangs",
    200,
)
mutant(
    "an instruction is taken in each time it is heard",
    "I17",
    lambda: [
        around(
            continuing,
            "continued",
            lambda original, state, *rest: original(state.model_copy(update={"continuations": ()}), *rest),
        )
    ],
    _INSTRUCTED,
    "delayed repeated",
    200,
)
mutant(
    "a fork makes again what was made before it",
    "I12",
    lambda: [replace(proposals, "tightened", lambda state, task, call, tool, judgement: judgement)],
    quiet(gates=("allow", "ask"), moods=("plain",), tools=(UPSERT,), forked=1.0),
    "tool_hangs delayed",
    200,
)

# ── freezes ────────────────────────────────────────────────────────────────────────────

mutant(
    "a freeze is not looked at",
    "I7",
    lambda: [replace(guard, "held_by", lambda *_: None)],
    _FROZEN,
)
mutant(
    "what a freeze holds back is forgotten",
    "I29",
    lambda: [replace(operation, "pass_on", lambda message, reason, *rest: absorb(reason))],
    _FROZEN,
)
mutant(
    "an order that comes again is carried out again",
    "I17",
    lambda: [
        around(
            freezes,
            "switch",
            lambda original, state, message, *rest: original(state, message.model_copy(update={"order_id": ""}), *rest),
        ),
        around(
            operation,
            "switch",
            lambda original, state, message, *rest: original(state, message.model_copy(update={"order_id": ""}), *rest),
        ),
    ],
    _FROZEN,
    "repeated delayed",
    200,
)
mutant(
    "a copy of what waits already is a dead letter",
    "I32",
    lambda: [replace(engine, "_WAITS_ALREADY", "")],
    _FROZEN,
    "repeated ack_lost",
    200,
)
mutant(
    "people may decide who are not named",
    "I20",
    lambda: [replace(deciding, "_allowed", lambda *_: None)],
    quiet(gates=("ask_some",), moods=("plain",)),
)
