"""Conversations and readable defaults for the tests of the thread machine."""

from __future__ import annotations

import json
from typing import Any

from placet import limits
from placet.calls import ChatMessage, ModelReply, ToolCall, ToolResult, ToolResults, UserText
from placet.errors import Code, ErrorClass, Failure
from placet.messages import (
    CloseThread,
    Message,
    ModelAnswered,
    ModelFailed,
    RetryTurn,
    StopTurn,
    TakeTurn,
    TurnFailed,
    TurnLeaseEnded,
)
from placet.plans import PLAN_TOOL
from placet.rows import ThreadMessageRow
from placet.values import Usage
from placet_planner.machine import ThreadMachine
from tests.builders import FakeApplication, a_team
from tests.machines.bench import RUN_ID, TENANT, Bench, sent

LEASE_MS = limits.MODEL_TIMEOUT_MS + limits.LEASE_MARGIN_MS
BUSY = Failure(code=Code.MODEL_FAILED, message="503", error_class=ErrorClass.TRANSIENT)
FORBIDDEN = Failure(code=Code.MODEL_FAILED, message="401", error_class=ErrorClass.DENIED)
TEN = Usage(input_tokens=7, output_tokens=3)


def a_reply(text: str | None = "Done.", *calls: ToolCall, usage: Usage = TEN) -> ModelReply:
    """What the model says, for ten tokens."""
    return ModelReply(text=text, calls=calls, usage=usage, raw_text='{"raw":true}')


def a_plan_call(*tasks: dict[str, Any], call_id: str = "call-1") -> ToolCall:
    """A call of the planning function."""
    return ToolCall(call_id=call_id, tool=PLAN_TOOL, input_text=json.dumps({"tasks": tasks}))


def a_planned(task_id: str = "a", **changes: Any) -> dict[str, Any]:
    """A task as a model writes it."""
    return {"id": task_id, "title": f"T {task_id}", "assignee": "worker", **changes}


def results(*call_ids: str) -> ToolResults:
    """The answers to calls."""
    return ToolResults(
        results=tuple(ToolResult(call_id=call_id, tool="deploy", ok=True, text="ok") for call_id in call_ids)
    )


class ThreadBench(Bench):
    """One conversation, with nothing said yet."""

    def __init__(self, purpose: str = "work", *, thread_id: str = "task:a") -> None:
        super().__init__(ThreadMachine(), app=FakeApplication(teams={"team": a_team()}))
        self.purpose = purpose
        self.thread_id = thread_id
        self.run_is("running")

    @property
    def turn(self) -> int:
        """The turn in work, at least 1."""
        return self.state.turn if self.state is not None and self.state.turn else 1

    @property
    def attempt(self) -> int:
        """The attempt in work, at least 1."""
        return self.state.attempt if self.state is not None and self.state.attempt else 1

    def take(self, turn: int | None = None, *append: ChatMessage, **changes: Any) -> TakeTurn:
        """Ask for a turn; by default the one in work, with one line of text."""
        number = turn or self.turn
        fields: dict[str, Any] = {
            "tenant": TENANT,
            "run_id": RUN_ID,
            "thread_id": self.thread_id,
            "turn": number,
            "purpose": self.purpose,
            "team": "team",
            "agent": "worker",
            "append": append or (UserText(text=f"turn {number}"),),
        }
        return TakeTurn(**{**fields, **changes})

    def answered(
        self, reply: ModelReply | None = None, attempt: int | None = None, turn: int | None = None
    ) -> ModelAnswered:
        """The model's reply; by default to the attempt in work."""
        return ModelAnswered(
            tenant=TENANT,
            run_id=RUN_ID,
            thread_id=self.thread_id,
            turn=turn or self.turn,
            attempt=attempt or self.attempt,
            reply=reply or a_reply(),
        )

    def failed(
        self,
        failure: Failure = BUSY,
        attempt: int | None = None,
        usage: Usage | None = None,
        partial_text: str = "",
    ) -> ModelFailed:
        """The model call failed."""
        return ModelFailed(
            tenant=TENANT,
            run_id=RUN_ID,
            thread_id=self.thread_id,
            turn=self.turn,
            attempt=attempt or self.attempt,
            failure=failure,
            usage=usage or Usage(),
            partial_text=partial_text,
        )

    def retry(self, attempt: int | None = None) -> RetryTurn:
        """The back-off is over."""
        return RetryTurn(
            tenant=TENANT,
            run_id=RUN_ID,
            thread_id=self.thread_id,
            turn=self.turn,
            attempt=attempt or self.attempt + 1,
        )

    def lease_end(self, attempt: int | None = None) -> TurnLeaseEnded:
        """Nobody reported."""
        return TurnLeaseEnded(
            tenant=TENANT,
            run_id=RUN_ID,
            thread_id=self.thread_id,
            turn=self.turn,
            attempt=attempt or self.attempt,
        )

    def stop(self, turn: int | None = None) -> StopTurn:
        """A user interrupts the turn; by default the one in work."""
        return StopTurn(
            tenant=TENANT, run_id=RUN_ID, thread_id=self.thread_id, turn=turn or self.turn, reason="wrong way"
        )

    def close(self) -> CloseThread:
        """The run has ended."""
        return CloseThread(tenant=TENANT, run_id=RUN_ID, thread_id=self.thread_id, reason="the run is cancelled")

    def every_message(self) -> dict[str, Message]:
        """One message of each kind, as it would come rightly now."""
        return {
            "take": self.take(self.turn + 1 if self.state is not None and self.state.turn else 1),
            "answered": self.answered(),
            "failed": self.failed(),
            "retry": self.retry(),
            "lease": self.lease_end(),
            "stop": self.stop(),
            "close": self.close(),
        }

    # ── longer ways ────────────────────────────────────────────────────────────────────

    def calling(self) -> ThreadBench:
        """The model is asked for turn 1."""
        assert self.give(self.take(1)).kind == "moved"
        return self

    def idle(self) -> ThreadBench:
        """Turn 1 is done."""
        self.calling()
        assert self.give(self.answered()).kind == "moved"
        return self

    def waiting(self) -> ThreadBench:
        """The first attempt of turn 1 failed."""
        self.calling()
        assert self.give(self.failed()).kind == "moved"
        return self

    def conversation(self) -> list[tuple[str, dict[str, Any]]]:
        """What was said: roles and bodies, in order of the rows, whose numbers have no gaps."""
        rows = self.all_written(ThreadMessageRow)
        assert [row.n for row in rows] == list(range(1, len(rows) + 1)), "rows are dense"
        return [(row.role, json.loads(row.body_text)) for row in rows]


def failure(transition: Any) -> Any:
    """Why the turn failed."""
    [message] = sent(transition, TurnFailed)
    return message.failure
