"""Decides which model calls are answered within the step that makes them: those of models that are at hand.

A script or a rule costs nothing and waits for nothing, so asking it again after a crash or a lost race does no harm,
and its turn is one commit instead of two. Every other call begins after the commit that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import TypeAdapter

from placet.activities import Activity, CallModel
from placet.calls import ChatMessage, ModelReply
from placet.errors import Code, Failure, PlacetError
from placet.ids import derived_id
from placet.messages import AnyMessage, Envelope, ModelAnswered, ModelFailed, enveloped
from placet.partials import partial_of, words_of
from placet.rows import ThreadMessageRow
from placet.runtime.fold import Fold
from placet.runtime.ports import ActivityError, AtHand, Partials, Store, Unit

log = logging.getLogger("placet.conversing")

KEPT_MAX = 256
"""Conversations kept. Those that nobody goes on with only make the memory in use larger."""
KEPT_MESSAGES_MAX = 32
"""Messages of one that is kept: a longer one is read, which costs little beside its turn."""
_CHAT: TypeAdapter[ChatMessage] = TypeAdapter(ChatMessage)
Thread = tuple[str, str]


class Conversing:
    """Answers the calls of a batch whose models are at hand.

    What was committed of a conversation never changes and only grows, so what this process has committed itself is
    kept and need not be read again.
    """

    def __init__(self, models: AtHand, store: Store, partials: Partials | None = None) -> None:
        self._models = models
        self._partials = partials
        self._store = store
        self._kept: dict[Thread, list[ChatMessage]] = {}
        """The oldest first."""

    async def answer(self, fold: Fold) -> None:
        """Put the results of the last wave's calls into the next one. Raises as `Store.read_thread` does."""
        for call, group in fold.calls():
            if self._models.is_at_hand(call.agent):
                conversation = await self._conversation(call, fold.said(call))
                message = self._asked(call, conversation)
                fold.answer(call, group, result_envelope(call, message))

    def committed(self, unit: Unit) -> None:
        """These rows are there for good."""
        for row in unit.rows:
            if isinstance(row, ThreadMessageRow):
                self._keep(row)

    def _keep(self, row: ThreadMessageRow) -> None:
        thread = (row.run_id, row.thread_id)
        kept = self._kept.pop(thread, None if row.n > 1 else [])
        if kept is None or len(kept) != row.n - 1 or row.n > KEPT_MESSAGES_MAX:
            return
        kept.append(_CHAT.validate_json(row.body_text))
        self._kept[thread] = kept
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    async def _conversation(self, call: CallModel, said: Sequence[ThreadMessageRow]) -> list[ChatMessage]:
        before = call.messages - len(said)
        kept = self._kept.get((call.run_id, call.thread_id), [])
        if len(kept) != before:
            bodies = await self._store.read_thread(call.run_id, call.thread_id, before)
            kept = [_CHAT.validate_json(body) for body in bodies]
        return [*kept, *(_CHAT.validate_json(row.body_text) for row in said)]

    def _asked(self, call: CallModel, conversation: Sequence[ChatMessage]) -> ModelAnswered | ModelFailed:
        try:
            reply = self._models.reply(call, conversation)
            if self._partials is not None and self._partials.listens(call.run_id):
                for at, word in words_of(reply.text or ""):
                    self._partials.tell(partial_of(call, at, word))
            return model_answered(call, reply)
        except Exception as error:  # noqa: BLE001  whatever a model raises is its failure, not the batch's
            return model_failed(call, failure_of_model(call, error))


def at_hand(models: object) -> AtHand | None:
    """Models that know which of them are at hand, as those."""
    return models if isinstance(models, AtHand) else None


def model_answered(call: CallModel, reply: ModelReply) -> ModelAnswered:
    """What a call came to."""
    return ModelAnswered(
        tenant=call.tenant,
        run_id=call.run_id,
        thread_id=call.thread_id,
        turn=call.turn,
        attempt=call.attempt,
        reply=reply,
    )


def model_failed(call: CallModel, failure: Failure, partial_text: str = "") -> ModelFailed:
    """That a call came to nothing, or to as much as it had said by then."""
    return ModelFailed(
        tenant=call.tenant,
        run_id=call.run_id,
        thread_id=call.thread_id,
        turn=call.turn,
        attempt=call.attempt,
        failure=failure,
        partial_text=partial_text,
    )


def failure_of_model(call: CallModel, error: Exception) -> Failure:
    """Why, as a value; what is no failure of a kind that adapters report is logged as the defect it is."""
    if isinstance(error, ActivityError):
        return error.failure
    if isinstance(error, PlacetError):
        return error.failure()
    log.error("model.call_raised", extra={"owner": call.owner().text()}, exc_info=error)
    return Failure(code=Code.MODEL_FAILED, message=f"{type(error).__name__}: {error}")


def result_envelope(activity: Activity, message: AnyMessage) -> Envelope:
    """The result of a call as a message. The same result has the same id, however often it is reported."""
    return enveloped(derived_id("res", activity.owner().text(), message.model_dump_json()), message)
