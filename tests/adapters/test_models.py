"""A conversation reaches a model and comes back exact, over HTTP and scripted; nothing below us repeats a request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from placet import App, ContractError, ToolContext, scripted
from placet.activities import CallModel
from placet.adapters.models import ModelAccess, ModelCaller
from placet.calls import AssistantReply, ChatMessage, ModelReply, ToolCall, ToolResult, ToolResults, UserText
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.retries import RetryInputs, RetryPolicy, decide
from placet.runtime.ports import ActivityError
from placet.script import Script, call, fail, plan, raw_call
from placet.strict_json import parse
from placet.values import Usage
from tests.adapters.chat_server import Answer, ChatServer, asks, chat_server, completion, error, says
from tests.cases import case

ARGUMENTS = json.loads((Path(__file__).parents[1] / "vocabulary" / "golden" / "malformed_tool_args.json").read_text())
KEY = "sk-of-nobody-0123456789"
TASK: list[ChatMessage] = [UserText(text="Look at the sky.")]


def an_app(model: str | Script) -> App:
    app = App("desk", version="1")

    @app.tool(effect="read_only")
    def look(ctx: ToolContext, at: str, times: int = 1) -> str:
        """Look at something."""
        return at

    worker = app.agent("worker", model=model, instructions="You look at things.\nNever up.", tools=[look])
    lead = app.agent("lead", model=model, instructions="You lead.")
    app.team("watch", agents=[worker, lead], planner=lead)
    return app


def an_activity(
    purpose: Any = "work", *, agent: str = "worker", attempt: int = 1, timeout_ms: int = 10_000
) -> CallModel:
    return CallModel(
        tenant="t",
        run_id="r",
        thread_id="task:a",
        turn=1,
        attempt=attempt,
        purpose=purpose,
        team="watch",
        agent=agent,
        messages=1,
        timeout_ms=timeout_ms,
    )


@asynccontextmanager
async def caller_of(base_url: str, model: str = "openai-chat:small-1") -> AsyncIterator[ModelCaller]:
    caller = ModelCaller(an_app(model), access={"openai-chat": ModelAccess(api_key=KEY, base_url=base_url)})
    try:
        yield caller
    finally:
        await caller.close()


async def asked(chat: ChatServer, conversation: Sequence[ChatMessage] = TASK, **more: Any) -> ModelReply:
    async with caller_of(chat.base_url) as caller:
        return await caller.call(an_activity(**more), conversation)


async def failure_of(*answers: Answer, **more: Any) -> tuple[Failure, int]:
    """How a call fails, and how many requests it took."""
    async with chat_server(*answers) as chat:
        with pytest.raises(ActivityError) as failed:
            await asked(chat, **more)
        return failed.value.failure, len(chat.requests)


# ── over HTTP ──────────────────────────────────────────────────────────────────────────


async def test_a_text_answer_comes_back_with_its_usage() -> None:
    async with chat_server(says("It is blue.")) as chat:
        reply = await asked(chat)
    assert (reply.text, reply.calls) == ("It is blue.", ())
    assert reply.usage == Usage(input_tokens=11, output_tokens=7)
    assert chat.paths == ["/v1/chat/completions"]


async def test_the_model_is_told_its_instructions_the_task_and_its_tools() -> None:
    async with chat_server(says("ok")) as chat:
        await asked(chat)
    (body,) = chat.requests
    assert body["model"] == "small-1"
    assert [(m["role"], m["content"]) for m in body["messages"]] == [
        ("system", "You look at things.\nNever up."),
        ("user", "Look at the sky."),
    ]
    (tool,) = body["tools"]
    assert tool["function"]["name"] == "look"
    assert tool["function"]["description"] == "Look at something."
    assert tool["function"]["parameters"]["properties"]["at"] == {"type": "string"}
    assert tool["function"]["parameters"]["required"] == ["at"]


async def test_tool_calls_come_back_byte_for_byte_and_go_out_again_as_they_came() -> None:
    text = '{"at": "sky",  "times":2}'
    two = asks(("c1", "look", text), ("c2", "look", '{"at":"sea"}'))
    async with chat_server(two, says("Both blue.")) as chat, caller_of(chat.base_url) as caller:
        reply = await caller.call(an_activity(), TASK)
        assert reply.calls == (
            ToolCall(call_id="c1", tool="look", input_text=text),
            ToolCall(call_id="c2", tool="look", input_text='{"at":"sea"}'),
        )
        results = (
            ToolResult(call_id="c1", tool="look", ok=True, text='"blue"'),
            ToolResult(call_id="c2", tool="look", ok=False, text="A reviewer refused this call: not the sea."),
        )
        conversation = [*TASK, AssistantReply(reply=reply), ToolResults(results=results)]
        assert (await caller.call(an_activity(), conversation)).text == "Both blue."
    sent = chat.requests[1]["messages"]
    assert [call["id"] for call in sent[2]["tool_calls"]] == ["c1", "c2"]
    assert [(m["tool_call_id"], m["role"]) for m in sent[3:]] == [("c1", "tool"), ("c2", "tool")]
    assert sent[3]["content"] == '"blue"'
    assert "A reviewer refused this call: not the sea." in sent[4]["content"]


async def test_the_provider_s_message_survives_being_stored() -> None:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    async with chat_server(asks(("c1", "look", '{"at":"sky"}'))) as chat:
        reply = await asked(chat)
    stored = ModelReply.model_validate_json(reply.model_dump_json())
    assert stored == reply
    (message,) = ModelMessagesTypeAdapter.validate_json(stored.raw_text)
    assert ModelMessagesTypeAdapter.dump_json([message]).decode() == reply.raw_text
    assert getattr(message, "provider_response_id", None) == "chatcmpl-1"


async def test_a_stored_message_that_cannot_be_read_any_more_is_rebuilt_from_its_text_and_calls() -> None:
    reply = ModelReply(
        text="Looking.", calls=(ToolCall(call_id="c1", tool="look", input_text="{}"),), raw_text='[{"kind":"other"}]'
    )
    results = ToolResults(results=(ToolResult(call_id="c1", tool="look", ok=True, text="1"),))
    async with chat_server(says("ok")) as chat:
        await asked(chat, [*TASK, AssistantReply(reply=reply), results])
    sent = chat.requests[0]["messages"][2]
    assert (sent["content"], sent["tool_calls"][0]["id"]) == ("Looking.", "c1")


@pytest.mark.parametrize("row", ARGUMENTS["rows"], ids=lambda row: repr(row["text"]))
async def test_mangled_arguments_reach_us_as_the_model_wrote_them_and_are_no_object(row: dict[str, str]) -> None:
    mangled = asks(("c1", "look", row["text"]))
    async with chat_server(mangled, says("ok")) as chat, caller_of(chat.base_url) as caller:
        reply = await caller.call(an_activity(), TASK)
        assert reply.calls[0].input_text == row["text"]
        result = ToolResult(call_id="c1", tool="look", ok=False, text="the arguments cannot be read")
        said = [*TASK, AssistantReply(reply=reply), ToolResults(results=(result,))]
        assert (await caller.call(an_activity(), said)).text == "ok"  # the model hears of it and may try again
    try:
        value = parse(reply.calls[0].input_text)
    except ContractError:
        return
    assert not isinstance(value, dict)


async def test_planning_offers_one_tool_and_names_the_team() -> None:
    async with chat_server(asks(("c1", "submit_plan", '{"tasks":[]}'))) as chat:
        reply = await asked(chat, purpose="plan", agent="lead")
    assert reply.calls[0].tool == "submit_plan"
    (body,) = chat.requests
    (tool,) = body["tools"]
    assert tool["function"]["name"] == "submit_plan"
    task = tool["function"]["parameters"]["properties"]["tasks"]["items"]
    assert task["properties"]["assignee"] == {"enum": ["worker", "lead"]}
    assert body["tool_choice"] == "required"
    told = " ".join(m["content"] for m in body["messages"] if m["role"] == "system")
    assert "You lead." in told
    assert "- worker: You look at things. Tools: look." in told
    assert "Never up." not in told


async def test_summing_up_offers_no_tools() -> None:
    async with chat_server(says("All blue.")) as chat:
        reply = await asked(chat, purpose="answer", agent="worker")
    assert reply.text == "All blue."
    assert "tools" not in chat.requests[0]


# ── failures ───────────────────────────────────────────────────────────────────────────

KNOWN, UNKNOWN = Certainty.NOT_EXECUTED, Certainty.UNKNOWN


@case("G03")
@pytest.mark.parametrize(
    ("answer", "error_class", "certainty"),
    [
        (error(408), ErrorClass.TIMEOUT, UNKNOWN),
        (error(409), ErrorClass.TRANSIENT, KNOWN),
        (error(429), ErrorClass.TRANSIENT, KNOWN),
        (error(429, "insufficient_quota"), ErrorClass.BUDGET, KNOWN),
        (error(500), ErrorClass.TRANSIENT, UNKNOWN),
        (error(503), ErrorClass.TRANSIENT, UNKNOWN),
        (error(400), ErrorClass.INVALID, KNOWN),
        (error(401), ErrorClass.DENIED, KNOWN),
        (error(403), ErrorClass.DENIED, KNOWN),
        (error(404), ErrorClass.INVALID, KNOWN),
        (error(422), ErrorClass.INVALID, KNOWN),
        (Answer(drop=True), ErrorClass.TRANSIENT, UNKNOWN),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
async def test_an_error_has_a_class_and_a_certainty_and_is_not_repeated(
    answer: Answer, error_class: ErrorClass, certainty: Certainty
) -> None:
    failure, requests = await failure_of(answer)
    assert (failure.code, failure.error_class, failure.certainty) == (Code.MODEL_FAILED, error_class, certainty)
    assert requests == 1


async def test_the_wait_that_a_provider_asks_for_is_passed_on() -> None:
    failure, requests = await failure_of(error(429, retry_after="7"))
    assert (failure.retry_after_ms, requests) == (7_000, 1)


async def test_a_silent_provider_is_a_timeout_in_time() -> None:
    failure, requests = await failure_of(Answer(hang=True), timeout_ms=300)
    assert (failure.error_class, failure.certainty, requests) == (ErrorClass.TIMEOUT, Certainty.UNKNOWN, 1)


async def test_a_refused_connection_has_executed_nothing() -> None:
    async with chat_server() as chat:
        pass
    with pytest.raises(ActivityError) as failed:
        await asked(chat)
    failure = failed.value.failure
    assert (failure.error_class, failure.certainty) == (ErrorClass.TRANSIENT, Certainty.NOT_EXECUTED)


async def test_a_cancelled_call_ends_at_once_and_hangs_up() -> None:
    async with chat_server(Answer(hang=True)) as chat:
        asking = asyncio.ensure_future(asked(chat))
        await asyncio.wait_for(chat.hanging.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, 2)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(raw=b"<html>gateway</html>"),
        Answer(raw=b"<html>gateway</html>", headers={"content-type": "text/html"}),
        Answer({"object": "chat.completion"}),
        asks(*((f"c{n}", "look", "{}") for n in range(65))),
        asks(("c1", "look", '"' + "x" * 300_000 + '"')),
        completion({"content": "half \ud800"}),
        completion({"content": None}, finish="content_filter"),
    ],
    ids=["not json", "html", "no choices", "65 calls", "huge arguments", "lone surrogate", "filtered"],
)
async def test_an_answer_that_cannot_be_used_is_named_as_that(answer: Answer) -> None:
    failure, requests = await failure_of(answer)
    assert (failure.code, requests) == (Code.MODEL_ANSWER_INVALID, 1)
    failure.model_dump_json()


async def test_an_empty_answer_is_an_empty_text() -> None:
    async with chat_server(completion({"content": None})) as chat:
        assert (await asked(chat)).text == ""


async def test_no_failure_tells_the_key() -> None:
    echo = Answer({"error": {"message": f"Incorrect API key provided: {KEY}."}}, 401)
    failure, _ = await failure_of(echo)
    assert KEY not in failure.model_dump_json()
    assert "[key]" in failure.message
    assert KEY not in repr(ModelAccess(api_key=KEY))


@case("G08")
async def test_three_attempts_are_three_requests_and_not_nine() -> None:
    policy = RetryPolicy(attempts_max=3, base_ms=0)
    async with chat_server(*(error(500) for _ in range(9))) as chat, caller_of(chat.base_url) as caller:
        attempt = 0
        while True:
            attempt += 1
            with pytest.raises(ActivityError) as failed:
                await caller.call(an_activity(attempt=attempt), TASK)
            failure = failed.value.failure
            decision = decide(
                RetryInputs(
                    subject="task:a/1",
                    error_class=failure.error_class,
                    certainty=failure.certainty,
                    repeatable=True,
                    attempt=attempt,
                    policy=policy,
                )
            )
            if decision.action != "retry":
                break
        assert (attempt, decision.reason) == (3, "attempts")
        assert len(chat.requests) == 3


@case("G08")
async def test_anthropic_s_client_does_not_repeat_either() -> None:
    async with chat_server(*(error(529) for _ in range(5))) as chat:
        access = {"anthropic": ModelAccess(api_key=KEY, base_url=chat.base_url.removesuffix("/v1"))}
        caller = ModelCaller(an_app("anthropic:small-1"), access=access)
        with pytest.raises(ActivityError) as failed:
            await caller.call(an_activity(), TASK)
        await caller.close()
        assert failed.value.failure.error_class is ErrorClass.TRANSIENT
        assert chat.paths == ["/v1/messages"]


@pytest.mark.parametrize(
    ("model", "says"), [("nobody:model", "Unknown provider: nobody"), ("openai-chat:small-1", "OPENAI_API_KEY")]
)
async def test_a_model_that_cannot_be_reached_from_here_is_told_as_such(
    model: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ActivityError) as failed:
        await ModelCaller(an_app(model)).call(an_activity(), TASK)
    assert says in failed.value.failure.message
    assert failed.value.failure.error_class is ErrorClass.INVALID


async def test_an_agent_that_does_not_exist_is_told_as_such() -> None:
    with pytest.raises(ActivityError) as failed:
        await ModelCaller(an_app("x:y")).call(an_activity(agent="ghost"), TASK)
    assert "no agent 'ghost'" in failed.value.failure.message


# ── scripted, on the same path ─────────────────────────────────────────────────────────


async def test_a_script_goes_the_same_way() -> None:
    caller = ModelCaller(
        an_app(scripted(plan([{"id": "a"}]), [call("look", at="sky"), raw_call("look", "{")], "Blue."))
    )
    reply = await caller.call(an_activity(), TASK)
    assert [(c.call_id, c.tool, c.input_text) for c in reply.calls] == [
        ("call-1-1", "look", '{"at":"sky"}'),
        ("call-1-2", "look", "{"),
    ]
    assert reply.usage.output_tokens > 0
    results = tuple(ToolResult(call_id=c.call_id, tool=c.tool, ok=True, text="1") for c in reply.calls)
    said = [*TASK, AssistantReply(reply=reply), ToolResults(results=results)]
    assert (await caller.call(an_activity(), said)).text == "Blue."
    planned = await caller.call(an_activity("plan", agent="lead"), TASK)
    assert (planned.calls[0].tool, planned.calls[0].input_text) == ("submit_plan", '{"tasks":[{"id":"a"}]}')


async def test_a_scripted_failure_comes_out_as_it_was_written() -> None:
    caller = ModelCaller(an_app(scripted(fail("busy", retry_after_ms=9, times=1, then="now"))))
    with pytest.raises(ActivityError) as failed:
        await caller.call(an_activity(), TASK)
    assert (failed.value.failure.message, failed.value.failure.retry_after_ms) == ("busy", 9)
    assert (await caller.call(an_activity(attempt=2), TASK)).text == "now"


def test_importing_the_adapter_does_not_import_the_library() -> None:
    code = "import sys, placet.adapters.models; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
