"""Decides how scripted models are asked where nothing but the script shall run: simulations, benchmarks, crash tests.

Everywhere else a script goes the way of every model (`placet.adapters.models`), whose library takes a second or two to
import and a third of a millisecond a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placet.activities import CallModel
from placet.application import App
from placet.calls import ChatMessage, ModelReply
from placet.errors import Code, ErrorClass, Failure
from placet.partials import words_of
from placet.runtime.ports import ActivityError
from placet.script import Script


class ScriptedModels:
    """Asks the scripts of an application's agents. It keeps no state, waits for nothing and knows no other model."""

    def __init__(self, app: App) -> None:
        self._app = app

    def is_at_hand(self, agent: str) -> bool:
        """As ports.AtHand."""
        known = self._app.agents.get(agent)
        return known is None or not isinstance(known.model, Script) or known.model.is_at_hand

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """As ports.Models."""
        return self.reply(activity, conversation)

    async def stream(
        self, activity: CallModel, conversation: Sequence[ChatMessage], said: Callable[[str], None]
    ) -> ModelReply:
        """As ports.Streaming: word by word."""
        reply = self.reply(activity, conversation)
        for _, word in words_of(reply.text or ""):
            said(word)
        return reply

    def reply(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """The script's reply; as usage it counts characters. Raises ActivityError."""
        agent = self._app.agents.get(activity.agent)
        if agent is None or not isinstance(agent.model, Script):
            what = f"agent {activity.agent!r} has no scripted model"
            raise ActivityError(Failure(code=Code.MODEL_FAILED, message=what, error_class=ErrorClass.INVALID))
        said = agent.model.reply(activity.purpose, conversation, activity.attempt)
        if isinstance(said, Failure):
            raise ActivityError(said)
        return said

    async def close(self) -> None:
        """Nothing is open."""
