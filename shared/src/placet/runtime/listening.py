"""Decides what is made of a reply while it comes: told piece by piece, and so much of it is kept as is evidence."""

from __future__ import annotations

from collections.abc import Sequence

from placet import limits
from placet.activities import CallModel
from placet.calls import ChatMessage, ModelReply
from placet.partials import partial_of
from placet.runtime.ports import Models, Partials, Streaming


class Listener:
    """Hears one reply."""

    def __init__(self, call: CallModel, partials: Partials | None) -> None:
        self._call = call
        self._partials = partials
        self._pieces: list[str] = []
        self._at = 0
        self._room = limits.PARTIAL_BYTES_MAX

    def heard(self, text: str) -> None:
        """The next piece."""
        if not text:
            return
        if self._partials is not None:
            self._partials.tell(partial_of(self._call, self._at, text))
        self._at += len(text)
        kept = text.encode(errors="replace")[: self._room].decode(errors="ignore")
        self._room -= len(kept.encode())
        if kept:
            self._pieces.append(kept)

    @property
    def text(self) -> str:
        """What has come so far, as far as it is kept."""
        return "".join(self._pieces)


async def asked(models: Models, call: CallModel, conversation: Sequence[ChatMessage], listener: Listener) -> ModelReply:
    """The reply, told as it comes where the models can do that. Raises as Models.call does."""
    if isinstance(models, Streaming):
        return await models.stream(call, conversation, listener.heard)
    return await models.call(call, conversation)
