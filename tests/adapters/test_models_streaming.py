"""A model's reply is heard while it comes, over HTTP and scripted; what breaks off is none; one client serves all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from placet.activities import CallModel
from placet.adapters.models import ModelCaller
from placet.calls import ModelReply, ToolCall
from placet.errors import Code, ErrorClass
from placet.runtime.ports import ActivityError, Streaming
from placet.script import scripted
from placet.values import Usage
from tests.adapters.chat_server import Answer, chat_server, error, says
from tests.adapters.test_models import TASK, an_activity, an_app, caller_of
from tests.cases import case


def streamed(*deltas: dict[str, Any], finish: str | None = "stop", end: bool = True) -> Answer:
    """A chat completion in pieces, as a stream of server-sent events."""
    about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_785_000_000, "model": "small-1"}
    chunks: list[Any] = [
        {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if finish is not None:
        chunks.append({**about, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        chunks.append({**about, "choices": [], "usage": usage})
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if end else "")
    return Answer(raw=lines.encode(), headers={"content-type": "text/event-stream"})


async def heard(*answers: Answer, **more: Any) -> tuple[ModelReply, list[str], list[dict[str, Any]]]:
    pieces: list[str] = []
    async with chat_server(*answers) as chat, caller_of(chat.base_url) as caller:
        reply = await caller.stream(an_activity(**more), TASK, pieces.append)
        return reply, [piece for piece in pieces if piece], chat.requests


async def test_a_text_comes_in_pieces_and_whole_with_its_usage() -> None:
    parts = ({"role": "assistant", "content": "It is "}, {"content": "clear"}, {"content": "."})
    reply, pieces, requests = await heard(streamed(*parts))
    assert pieces == ["It is ", "clear", "."]
    assert (reply.text, reply.calls) == ("It is clear.", ())
    assert reply.usage == Usage(input_tokens=11, output_tokens=7)
    assert requests[0]["stream"] is True
    assert len(requests) == 1


async def test_calls_come_byte_for_byte_and_are_no_words() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sk'}}
    rest = {"index": 0, "function": {"arguments": 'y",  "times": 2}'}}
    answer = streamed({"role": "assistant", "tool_calls": [call]}, {"tool_calls": [rest]}, finish="tool_calls")
    reply, pieces, _ = await heard(answer)
    assert pieces == []
    assert reply.calls == (ToolCall(call_id="c1", tool="look", input_text='{"at": "sky",  "times": 2}'),)


async def test_a_streamed_reply_survives_being_stored_as_any_other() -> None:
    reply, _, _ = await heard(streamed({"role": "assistant", "content": "clear"}))
    async with chat_server(says("yes")) as chat, caller_of(chat.base_url) as caller:
        from placet.calls import AssistantReply, UserText

        await caller.call(an_activity(), [*TASK, AssistantReply(reply=reply), UserText(text="sure?")])
        assert [message["role"] for message in chat.requests[0]["messages"]][-3:] == ["user", "assistant", "user"]


async def failure_of(*answers: Answer) -> tuple[Any, int]:
    async with chat_server(*answers) as chat, caller_of(chat.base_url) as caller:
        with pytest.raises(ActivityError) as raised:
            await caller.stream(an_activity(), TASK, lambda piece: None)
        return raised.value.failure, len(chat.requests)


@case("G08")
@pytest.mark.parametrize(
    ("answer", "error_class"),
    [(error(429), ErrorClass.TRANSIENT), (error(401), ErrorClass.DENIED), (error(500), ErrorClass.TRANSIENT)],
)
async def test_a_refusal_is_told_as_any_other_and_is_not_repeated(answer: Answer, error_class: ErrorClass) -> None:
    failure, requests = await failure_of(answer, answer, answer)
    assert (failure.code, failure.error_class, requests) == (Code.MODEL_FAILED, error_class, 1)


async def test_a_stream_that_is_cut_is_no_reply() -> None:
    cut = streamed({"role": "assistant", "content": "I have pa"}, finish=None, end=False)
    failure, requests = await failure_of(cut)
    assert (failure.code, requests) == (Code.MODEL_FAILED, 1)
    assert failure.error_class is ErrorClass.TRANSIENT


@pytest.mark.parametrize("step", ["It is clear.", lambda conversation: "It is clear."])
async def test_a_script_speaks_word_by_word(step: Any) -> None:
    caller = ModelCaller(an_app(scripted(step)))
    assert isinstance(caller, Streaming)
    pieces: list[str] = []
    reply = await caller.stream(an_activity(), TASK, pieces.append)
    assert (pieces, reply.text) == (["It ", "is ", "clear."], "It is clear.")
    await caller.close()


@case("L07")
async def test_runs_that_overlap_share_one_client_that_is_opened_once_and_closed_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    closed: list[str] = []
    async with chat_server(*[says("yes")] * 6) as chat:
        async with caller_of(chat.base_url) as caller:
            inner = caller._opened

            async def counted(name: str) -> Any:
                opened.append(name)
                model = await inner(name)
                caller._open.callback(closed.append, name)
                return model

            monkeypatch.setattr(caller, "_opened", counted)

            def of(run: int) -> CallModel:
                return an_activity().model_copy(update={"run_id": f"r{run}"})

            await asyncio.gather(*(caller.call(of(run), TASK) for run in range(3)))
            await caller.call(of(3), TASK)
            assert (opened, closed) == (["openai-chat:small-1"], [])
        assert closed == ["openai-chat:small-1"]
        await caller.close()
        assert len(closed) == 1
