"""A toy system for tests of the engine: accounts that pay each other, in two machines that hand over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from placet.activities import Stop
from placet.calls import ToolSpec
from placet.errors import Code, Failure, InvariantError
from placet.facts import Facts
from placet.gates import Boundary, Judgement, Subject
from placet.instants import Instant
from placet.machine import Invoke, Receipt, Record, Reply, Send, State, Transition, absorb, move, refuse
from placet.messages import RUN, THREAD, CancelRun, CloseThread, Envelope, Message, RunTimedOut, SubmitRun
from placet.plans import TeamSpec
from placet.rows import STATE, AuditLeafRow, FactKey, audit_leaf
from placet.values import Principal, PrincipalKind

ALICE = Principal(kind=PrincipalKind.HUMAN, id="alice")


class NoApplication:
    """The toy machines ask the application nothing but its version."""

    version = "1"
    policy_version = "1"

    def team_spec(self, name: str) -> TeamSpec | None:
        return None

    def tool_spec(self, name: str) -> ToolSpec | None:
        return None

    def model_timeout_ms(self, agent: str) -> int:
        return 1_000

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        return raw_input

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        return None


class Counter(State):
    """Counts submissions; `seen` keeps their goals, so that a repeat is absorbed."""

    seen: tuple[str, ...] = ()


class CounterMachine:
    """`run`: SubmitRun(goal) counts once per goal, records a leaf, tells the `thread` machine, and answers.

    goal "refuse": refused. goal "bug": raises. goal "twice": records a row whose key is taken. CancelRun reads the
    status of the follower and puts it into its own. timeout_ms: a timer.
    """

    name = RUN
    state_type = Counter
    messages: frozenset[type[Message]] = frozenset({SubmitRun, CancelRun, RunTimedOut})

    def reads(self, message: Message) -> Sequence[FactKey]:
        return (FactKey(STATE, message.run_id, THREAD, "follower"),) if isinstance(message, CancelRun) else ()

    def transition(self, state: Counter | None, message: Message, facts: Facts, now_ms: Instant) -> Transition[Counter]:
        if isinstance(message, CancelRun):
            status = facts.status(message.run_id, THREAD, "follower") or "nobody"
            before = Counter(tenant=message.tenant, run_id=message.run_id, status="") if state is None else state
            return move(before.model_copy(update={"status": f"follower {status}"}))
        if not isinstance(message, SubmitRun):
            return absorb("nothing to do")
        if message.goal == "bug":
            raise InvariantError("a bug")
        if message.goal == "refuse":
            return refuse(Code.SUBMISSION_INVALID, "not this one", run_id=message.run_id, pointer="/goal")
        seen = () if state is None else state.seen
        if message.goal in seen:
            return absorb("counted", Reply(Receipt(answer="duplicate", run_id=message.run_id)))
        return self._count(message, seen, facts, now_ms)

    @staticmethod
    def _count(message: SubmitRun, seen: tuple[str, ...], facts: Facts, now_ms: Instant) -> Transition[Counter]:
        number = 1 if message.goal == "twice" else len(seen) + 1
        leaf: AuditLeafRow = audit_leaf(
            tenant=message.tenant,
            run_id=message.run_id,
            seq=number,
            kind="counted",
            subject=message.goal,
            detail={"app": facts.app_version},
            at_ms=now_ms,
            previous="",
        )
        timer = [Send(message, not_before=Instant(now_ms + message.timeout_ms))] if message.timeout_ms else []
        return move(
            Counter(tenant=message.tenant, run_id=message.run_id, status="counting", seen=(*seen, message.goal)),
            Record(leaf),
            Send(CloseThread(tenant=message.tenant, run_id=message.run_id, thread_id="follower", reason=message.goal)),
            *timer,
            Invoke(Stop(tenant=message.tenant, run_id=message.run_id, machine=RUN, key="", reason="example")),
            Reply(Receipt(answer="accepted", run_id=message.run_id)),
            before_ms=Instant(1_000_000) if message.goal == "in time" else None,
        )


class Follower(State):
    """Follows the counter."""

    heard: tuple[str, ...] = ()


class FollowerMachine:
    """`thread`: hears what was counted; goal "deaf" is refused, which must not undo the counter."""

    name = THREAD
    state_type = Follower
    messages: frozenset[type[Message]] = frozenset({CloseThread})

    def reads(self, message: Message) -> Sequence[FactKey]:
        return ()

    def transition(
        self, state: Follower | None, message: Message, facts: Facts, now_ms: Instant
    ) -> Transition[Follower]:
        if not isinstance(message, CloseThread):
            return absorb("nothing to do")
        if message.reason == "deaf":
            return refuse(Code.MESSAGE_UNEXPECTED, "cannot hear this", run_id=message.run_id)
        heard = () if state is None else state.heard
        if message.reason in heard:
            return absorb("heard")
        return move(
            Follower(tenant=message.tenant, run_id=message.run_id, status="listening", heard=(*heard, message.reason))
        )


def submit(goal: str, *, run_id: str = "run-1", reply: bool = True, timeout_ms: int | None = None) -> Envelope:
    """A submission in an envelope of its own."""
    message = SubmitRun(tenant="acme", run_id=run_id, team="t", goal=goal, initiator=ALICE, timeout_ms=timeout_ms)
    return Envelope(id=f"m-{run_id}-{goal}", reply_to=f"r-{goal}" if reply else None, message=message)


def cancel(run_id: str = "run-1") -> Envelope:
    """A cancel in an envelope of its own."""
    return Envelope(id=f"c-{run_id}", message=CancelRun(tenant="acme", run_id=run_id, by=ALICE))


TOYS: dict[Literal["run", "thread"] | str, Any] = {RUN: CounterMachine(), THREAD: FollowerMachine()}
