"""Decides what the models of the simulation say: what the workload scripted, with blunders in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from placet import limits
from placet.activities import CallModel
from placet.calls import AssistantReply, ChatMessage, ModelReply, ToolCall
from placet.errors import Code, ErrorClass, Failure
from placet.messages import PLAN_THREAD
from placet.runtime.ports import ActivityError
from placet.values import Usage
from tests.simulation.application import LOOK
from tests.simulation.canaries import provider_says
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.scheduler import Scheduler
from tests.simulation.workload import Workload

BLUNDER = "blunder"
_BAD_PLANS = (
    '{"tasks":[]}',
    '{"tasks":[{"id":"a","title":"a","assignee":"ann","depends_on":["b"]},{"id":"b","title":"b","assignee":"ann","depends_on":["a"]}]}',
    '{"tasks":[{"id":"a","title":"a","assignee":"nobody"}]}',
    "not json",
    '{"tasks":7}',
)
_CALLS = tuple(ToolCall(call_id=f"c{at}", tool=LOOK, input_text="{}") for at in range(limits.CALLS_PER_TURN_MAX + 1))
_OUT_OF_BOUNDS = {
    "work": ModelReply(calls=_CALLS, raw_text=BLUNDER),
    "answer": ModelReply(calls=_CALLS[:1], raw_text=BLUNDER),
}
"""More calls than a model may make, and one where there are no tools."""


class SimModels:
    """Every model there is. What it says next follows from the conversation alone."""

    def __init__(self, scheduler: Scheduler, faults: Faults, workload: Workload, at_hand: Random) -> None:
        """`at_hand`: draws which agents' models are."""
        self._scheduler = scheduler
        self._faults = faults
        self._workload = workload
        self._draw = at_hand
        self._heard: dict[tuple[str, str, int, int, str], set[tuple[int, tuple[str, ...]]]] = {}
        """By turn, attempt and reply: the conversations to which that was the reply, and how long each should be."""
        self._at_hand: dict[str, bool] = {}

    def is_at_hand(self, agent: str) -> bool:
        """As ports.AtHand: every second agent's is."""
        if agent not in self._at_hand:
            self._at_hand[agent] = self._draw.random() < 0.5
        return self._at_hand[agent]

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """As ports.Models."""
        await self._scheduler.pause()
        if self._faults.hits("model_hangs"):
            await self._scheduler.sleep(self._faults.between("model_hangs", 1_000, activity.timeout_ms + 60_000))
        return self.reply(activity, conversation)

    def reply(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """As ports.AtHand."""
        reply = self._reply(activity, conversation)
        key = (activity.run_id, activity.thread_id, activity.turn, activity.attempt, reply.model_dump_json())
        said = tuple(message.model_dump_json() for message in conversation)
        self._heard.setdefault(key, set()).add((activity.messages, said))
        return reply

    def _reply(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        if self._faults.hits("model_fails"):
            error_class = ErrorClass.TIMEOUT if self._faults.between("model_fails", 0, 1) else ErrorClass.TRANSIENT
            raise ActivityError(
                Failure(code=Code.MODEL_FAILED, message=provider_says("overloaded"), error_class=error_class)
            )
        if self._faults.hits("model_blunders"):
            return self._blunder() if activity.thread_id == PLAN_THREAD else _OUT_OF_BOUNDS[activity.purpose]
        replies = [message.reply for message in conversation if isinstance(message, AssistantReply)]
        turn = sum(reply.raw_text != BLUNDER for reply in replies)
        said = self._workload.says(activity.run_id, activity.thread_id, turn)
        usage = Usage(input_tokens=len(conversation), output_tokens=10)
        return ModelReply(text=said, usage=usage) if isinstance(said, str) else ModelReply(calls=said, usage=usage)

    def check_reply(self, message: dict[str, Any], said: Sequence[str], history: History) -> None:
        """A reply has been taken: it must be one to the conversation as it was committed, `said`."""
        reply = ModelReply.model_validate_json(json.dumps(message["reply"])).model_dump_json()
        key = (message["run_id"], message["thread_id"], message["turn"], message["attempt"], reply)
        known = any(tuple(said[:count]) == heard for count, heard in self._heard.get(key, ()))
        history.check(known, "I4", f"{key[:4]} was answered, but not on the conversation that is recorded")

    async def close(self) -> None:
        """As ports.Models; there is nothing to give back."""

    def _blunder(self) -> ModelReply:
        kind = self._faults.between("model_blunders", 0, len(_BAD_PLANS))
        if kind == len(_BAD_PLANS):
            return ModelReply(text="I would rather talk.", raw_text=BLUNDER)
        call = ToolCall(call_id="bad", tool="submit_plan", input_text=_BAD_PLANS[kind])
        return ModelReply(calls=(call,), raw_text=BLUNDER)
