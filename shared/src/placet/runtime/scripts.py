"""Decides how scripted models are asked where nothing but the script shall run: simulations, benchmarks, crash tests.

Everywhere else a script goes the way of every model (`placet.adapters.models`), whose library takes a second or two to
import and a third of a millisecond a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from placet.activities import CallModel
from placet.application import App
from placet.calls import ChatMessage, ModelReply
from placet.errors import Code, ErrorClass, Failure
from placet.runtime.ports import ActivityError
from placet.script import Script
from placet.values import Usage


class ScriptedModels:
    """Asks the scripts of an application's agents. It keeps no state, waits for nothing and knows no other model."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """The script's reply; as usage it counts characters. Raises ActivityError."""
        agent = self._app.agents.get(activity.agent)
        if agent is None or not isinstance(agent.model, Script):
            what = f"agent {activity.agent!r} has no scripted model"
            raise ActivityError(Failure(code=Code.MODEL_FAILED, message=what, error_class=ErrorClass.INVALID))
        said = agent.model.answer(activity.purpose, conversation, activity.attempt)
        if isinstance(said, Failure):
            raise ActivityError(said)
        written = len(said.text or "") + sum(len(call.input_text) for call in said.calls)
        return said.model_copy(update={"usage": Usage(input_tokens=len(conversation), output_tokens=written)})

    async def close(self) -> None:
        """Nothing is open."""
