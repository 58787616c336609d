"""Decides what is frozen: nothing starts for a tenant, or of one of its tools, until the freeze is lifted.

What is held back is neither refused nor counted as tried: it comes again, and starts when it may.
"""

from __future__ import annotations

from dataclasses import replace

from placet.errors import Code
from placet.facts import Facts
from placet.freezing import ALL, FREEZE, FreezeOperations, Frozen, freeze_run, is_frozen, status_of
from placet.instants import Instant
from placet.machine import Receipt, Reply, Send, Transition, absorb, move, refuse
from placet.messages import OPERATION
from placet.rows import STATE, FactKey
from placet_tool_executor.state import OperationState

ORDERS_KEPT = 128
"""Of so many orders a repeat is known, so that a thaw that comes again lifts no later freeze."""
FROZEN_MS = 2_000
"""When what is held back looks again."""


def freeze_key(tenant: str) -> FactKey:
    """What every start reads."""
    return FactKey(STATE, freeze_run(tenant), OPERATION, FREEZE)


def held_by(tenant: str, tool: str, facts: Facts) -> str | None:
    """Why the tool must not start now; None: it may. That there is no freeze yet is relied on as well, at commit."""
    status = facts.status(freeze_run(tenant), OPERATION, FREEZE)
    return None if status is None or not is_frozen(status, tool) else f"operations of {tool} are frozen"


def opened(then: Transition[OperationState], tenant: str, facts: Facts) -> Transition[OperationState]:
    """The first start of a tenant has the state made that says nothing is frozen.

    One that is there is relied on by all starts at once; its absence, by one after the other.
    """
    if then.kind != "moved" or facts.status(freeze_run(tenant), OPERATION, FREEZE) is not None:
        return then
    return replace(then, effects=(*then.effects, Send(opening(tenant))))


def opening(tenant: str) -> FreezeOperations:
    """What has it made."""
    return FreezeOperations(tenant=tenant, run_id=freeze_run(tenant), word="open")


def switch(
    state: OperationState | None, message: FreezeOperations, facts: Facts, now_ms: Instant
) -> Transition[OperationState]:
    """Set a switch, or lift it. The same again changes nothing, and is told who has set it."""
    if message.run_id != freeze_run(message.tenant):
        return refuse(Code.MESSAGE_UNEXPECTED, "a freeze is of a tenant, not of a run", run_id=message.run_id)
    if message.word == "open":
        return absorb("there is one already") if state is not None else move(_kept(message, ()))
    if message.by is None or (message.word == "freeze" and not message.reason.strip()):
        return refuse(Code.SUBMISSION_INVALID, "a freeze says who wants it, and why", run_id=message.run_id)
    tool = ALL if message.tool is None else message.tool
    if message.tool is not None and message.word == "freeze" and facts.tool(message.tool) is None:
        return refuse(Code.TOOL_UNKNOWN, f"there is no tool {message.tool!r}: nothing is frozen", run_id=message.run_id)
    known = () if state is None else state.frozen or ()
    heard = () if state is None else state.heard or ()
    if message.order_id in heard:
        return absorb("ordered already", _told(message, "duplicate", status_of(known)))
    rest = tuple(each for each in known if each.tool != tool)
    if (message.word == "freeze") == (len(rest) != len(known)):
        status = status_of(known)
        told = _told(message, "duplicate", status)
        if not message.order_id:
            return absorb(f"that is so already: {status}", told)
        return move(_kept(message, known, heard), told)  # later it may not be so, and then its repeat is old news
    if message.word == "freeze":
        rest = (*rest, Frozen(tool=tool, by=message.by.id, reason=message.reason, since_ms=now_ms))
    changed = _kept(message, rest, heard)
    return move(changed, _told(message, "accepted", changed.status))


def _kept(message: FreezeOperations, frozen: tuple[Frozen, ...], heard: tuple[str, ...] = ()) -> OperationState:
    orders = (*heard, message.order_id)[-ORDERS_KEPT:] if message.order_id else heard
    return OperationState(
        tenant=message.tenant,
        run_id=message.run_id,
        status=status_of(frozen),
        operation_id=FREEZE,
        frozen=frozen or None,
        heard=orders or None,
    )


def _told(message: FreezeOperations, answer: str, status: str) -> Reply:
    return Reply(Receipt(answer=answer, run_id=message.run_id, status=status))
