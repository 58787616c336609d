"""Decides how a reply is heard while it comes: which models can stream, what is words, and when it is whole.

A model whose provider, or whose client in the library, cannot stream is asked in one piece, and told word by word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from placet.partials import words_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model


async def in_pieces(
    model: Model[Any], messages: Any, said: Callable[[str], None], **given: Any
) -> ModelResponse | None:
    """One request, whose text `said` gets as it comes. None where the stream broke off: what came is no reply."""
    from pydantic_ai.direct import model_request, model_request_stream

    if not _streams(model):
        response = await model_request(model, messages, **given)
        for part in response.parts:
            for _, word in words_of(_text_of(part)):
                said(word)
        return response
    async with model_request_stream(model, messages, **given) as stream:
        async for event in stream:
            said(_text_of(_news_of(event)))
        response = stream.get()
    return response if response.state == "complete" and _is_finished(model, response) else None


def _streams(model: Model[Any]) -> bool:
    """Whether the library can stream this model's replies."""
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import FunctionModel

    is_written = type(model).request_stream is not Model.request_stream
    return is_written and not (isinstance(model, FunctionModel) and model.stream_function is None)


def _is_finished(model: Model[Any], response: ModelResponse) -> bool:
    """Whether the provider has said why its stream ends: one that was cut ends without a reason.

    For chat completions the library fills in `stop`; what the provider said stands in the details.
    """
    said = bool((response.provider_details or {}).get("finish_reason"))
    is_chat = any(base.__name__ == "OpenAIChatModel" for base in type(model).__mro__)
    return said or (response.finish_reason is not None and not is_chat)


def _news_of(event: object) -> object:
    """What an event of a stream brings that is new; the end of a part repeats it."""
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent

    if isinstance(event, PartStartEvent):
        return event.part
    return event.delta if isinstance(event, PartDeltaEvent) else None


def _text_of(part: object) -> str:
    """The words in a part of a reply, or in what is added to one; of a call, of a thought: none."""
    from pydantic_ai.messages import TextPart, TextPartDelta

    if isinstance(part, TextPart):
        return part.content
    return part.content_delta if isinstance(part, TextPartDelta) else ""
