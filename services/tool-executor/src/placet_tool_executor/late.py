"""Decides what an attempt says that reports only after another one has been started: the result, or a contradiction.

Where the tool dedupes on the one key of all attempts, whichever of them reports brings the operation's result
(reliability b15). Elsewhere an attempt follows only one that surely did nothing: a report that it did contradicts what
is written down, and is kept for a person.
"""

from __future__ import annotations

from placet.calls import Executed
from placet.canonical import canonical_text
from placet.errors import Certainty
from placet.instants import Instant
from placet.machine import Invoke, Transition, absorb, move
from placet.statuses import OPERATION_TERMINAL
from placet_tool_executor.state import REPEATABLE, OperationState
from placet_tool_executor.steps import attempt_ended, cancelled, executed, question_closed, stopped


def happened_before(
    state: OperationState, attempt: int, outcome: Executed, now_ms: Instant
) -> Transition[OperationState]:
    """An attempt before n reports after all that it happened."""
    if state.status in OPERATION_TERMINAL:
        return absorb(f"attempt {attempt} is over: the operation is {state.status}")
    if state.effect not in REPEATABLE:
        return _contradicted(state, attempt)
    if state.earlier is None:
        return absorb(f"attempt {attempt} has said that it did nothing")
    if state.status != "started":
        return executed(state, outcome, *question_closed(state, "succeeded"))
    evidence = canonical_text({"reported_by_attempt": attempt, "outcome": outcome.model_dump(mode="json")})
    end = attempt_ended(state, outcome.certainty, now_ms, evidence)
    if state.cancelling:  # attempt n has its signal already
        return cancelled(state, Certainty.EXECUTED, end)
    return executed(state, outcome, end, Invoke(stopped(state, f"attempt {attempt} has brought the result")))


def _contradicted(state: OperationState, attempt: int) -> Transition[OperationState]:
    if state.contradicted is not None:
        return absorb("that an earlier attempt says otherwise is known")
    told = f"attempt {attempt} reports after all that it happened"
    return move(state.model_copy(update={"contradicted": told}))
