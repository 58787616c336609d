"""Decides the form of all rules: a pure function from state, message, facts and now to a transition.

A transition moves (new state and effects), absorbs (a repeat, harmless) or refuses (dead letter with a reason). What
only another process may begin is passed on to it, unapplied.
There are five effects and no others. Machines read no clock, draw no random number, await and log nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from placet.activities import Activity
from placet.errors import Code, ErrorClass, Failure
from placet.facts import Facts
from placet.instants import Instant
from placet.messages import Message
from placet.rows import FactKey, Row
from placet.values import Value

Upgrader = Callable[[dict[str, Any]], dict[str, Any]]
"""What a stored state of one schema version is in the next one, as plain JSON."""


class State(Value):
    """Base of all states. `status` is a column, because operators ask by it.

    A change that old states cannot be read with gives the class another default of `schema_version`, and an upgrader of
    the version before; a field that is added with a default needs neither.
    """

    upgraders: ClassVar[Mapping[int, Upgrader]] = {}
    """By the schema version that each takes."""

    tenant: str
    run_id: str
    status: str
    schema_version: int = 1


S = TypeVar("S", bound=State)


class Receipt(Value):
    """The answer to whoever asked. `final` is false for "ask again" (DESIGN §5)."""

    answer: str
    """accepted, duplicate, joined, nothing_interrupted, conflict, expired, stale, closed, not_allowed, invalid,
    not_found, refused, busy"""
    final: bool = True
    run_id: str
    status: str | None = None
    turn: str | None = None
    """The turn that an instruction is taken in, as `messages.turn_name` gives it."""
    request_id: str | None = None
    request_hash: str | None = None
    decision_id: str | None = None
    outcome: str | None = None
    decided_by: str | None = None
    decided_at_ms: int | None = None
    successor: str | None = None
    """The request that has taken its place: that one can be decided."""
    recorded_at_ms: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A message, now or not before an instant: every wait in the system."""

    message: Message
    not_before: Instant | None = None
    is_named: bool = False
    """It goes by a name made from its own content, so that it can be withdrawn. It is sent once and never again."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """What it was sent to wait for is over: a named message that is still on its way is not sent any more.

    Best effort: one that has left already comes, and is absorbed. So it spares work, and no rule may rest on it.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class Invoke:
    """A call to the world, after the commit."""

    activity: Activity


@dataclass(frozen=True, slots=True)
class Record:
    """An insert-only row, in the same commit."""

    row: Row


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to whoever asked, after the commit. `text`: the exact bytes to repeat, for stored receipts."""

    receipt: Receipt
    text: str | None = None


Effect = Send | Withdraw | Invoke | Record | Reply


@dataclass(frozen=True, slots=True)
class Transition(Generic[S]):
    """What one message does to one state."""

    kind: Literal["moved", "absorbed", "refused", "passed"]
    state: S | None = None
    effects: tuple[Effect, ...] = ()
    failure: Failure | None = None
    reason: str = ""
    before_ms: Instant | None = None
    """A guard that holds at commit: the store's clock must not have reached this instant."""
    keep: bool = False
    """Of a refusal: it becomes a dead letter although whoever asked is told."""


def move(state: S, *effects: Effect, before_ms: Instant | None = None) -> Transition[S]:
    """The state changes; its version steps by one."""
    return Transition("moved", state, effects, before_ms=before_ms)


def absorb(reason: str, *replies: Reply) -> Transition[Any]:
    """A repeat or a late message: nothing changes, nothing is written."""
    return Transition("absorbed", None, replies, reason=reason)


def timer(message: Message, due_ms: Instant) -> Send:
    """A wait that may turn out to be pointless: `Withdraw` of the same message ends it."""
    return Send(message, not_before=due_ms, is_named=True)


def not_yet(state: S, message: Message, due_ms: Instant) -> Transition[S]:
    """A timer that came before its time, because the store's clock went back or because somebody made it up.

    It comes again, nameless. What is absorbed is gone, and whatever waits for the timer would wait for ever.
    """
    return move(state, Send(message, not_before=due_ms))


def pass_on(message: Message, reason: str, not_before: Instant | None = None) -> Transition[Any]:
    """What the message wants begins in another process: it goes there, and nothing is written here.

    `message` is what came, or what came with a better address.
    """
    return Transition("passed", None, (Send(message, not_before),), reason=reason)


def refuse(
    code: Code, message: str, *, run_id: str, pointer: str | None = None, keep: bool = False, **details: Any
) -> Transition[Any]:
    """No rule accepts the message: whoever waits is told; if nobody does, or to `keep` it, it becomes a dead letter."""
    failure = Failure(code=code, message=message, error_class=ErrorClass.INVALID, pointer=pointer, details=details)
    told = Reply(Receipt(answer="refused", run_id=run_id, failure=failure))
    return Transition("refused", None, (told,), failure=failure, keep=keep)


class Machine(Protocol[S]):
    """One service's rules."""

    name: str
    state_type: type[S]
    messages: frozenset[type[Message]]
    """The messages it has an answer for in every state."""

    def reads(self, message: Message) -> Sequence[FactKey]:
        """The rows to load for this message. Their owners' versions are guarded at commit."""

    def transition(self, state: S | None, message: Message, facts: Facts, now_ms: Instant) -> Transition[S]:
        """What the message does."""
