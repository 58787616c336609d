"""Decides how a conversation reaches a model and how its answer comes back: one request of pydantic-ai, once.

`provider:model` is any provider that pydantic-ai knows; a scripted model is its function model, on the same path.
Retries of the provider's SDK are off: the one retry rule is ours (DESIGN §6, case G08). Clients without such a switch
(Bedrock, Hugging Face, xAI) keep theirs, within the one time limit. The library is imported when the first model is
called, in a thread, since that takes longer than everything else together.

Providers read their keys from their own variables (OPENAI_API_KEY, ANTHROPIC_API_KEY, …) unless `ModelAccess` gives
them. `openai:` speaks OpenAI's Responses API; servers that speak chat completions are reached by `openai-chat:`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from pydantic import ValidationError

from placet import limits
from placet.activities import CallModel
from placet.adapters.models.streams import in_pieces
from placet.application import Agent, App
from placet.calls import AssistantReply, ChatMessage, ModelReply, ToolCall, ToolResults, UserText
from placet.errors import Certainty, Code, ErrorClass, Failure
from placet.plans import PLAN_TOOL, TeamSpec
from placet.retries import classify_status
from placet.runtime.ports import ActivityError
from placet.script import Script
from placet.values import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition

Ask = Callable[..., Awaitable["ModelResponse"]]
"""Makes one request of a model of the library's."""

RAW_BYTES_MAX = limits.JSON_BYTES_MAX // 2
"""The provider's message is stored beside what we read from it, in one message."""
_MESSAGE_CHARS_MAX = 1_000

PLANNING = """\
You plan the work of the team {team!r}. Break the goal into tasks and call `{tool}` once, with all of them.
A task says in its description all that its assignee must know: the assignee sees the task and the results of the
tasks it depends on, and nothing else. Use as few tasks as the goal needs.

Agents:
{agents}"""
ANSWERING = "The tasks are done. Answer the goal from their results, in plain text; call nothing."


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """How a provider is reached. What is None the provider takes from its own variables."""

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None


class ModelCaller:
    """Asks agents' models for turns. One instance serves one event loop; `close` ends its connections.

    `access` is by the provider's name in the model string, e.g. `{"openai-chat": ModelAccess(base_url=…)}`.
    """

    def __init__(self, app: App, *, access: Mapping[str, ModelAccess] | None = None) -> None:
        self._app = app
        self._access = dict(access or {})
        self._models: dict[str, Model[Any]] = {}
        self._providers: dict[str, Provider[Any]] = {}
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._imported = False

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """The model's reply. Raises ActivityError with code MODEL_FAILED or MODEL_ANSWER_INVALID; never retries."""
        from pydantic_ai.direct import model_request

        return await self._asked(activity, conversation, model_request)

    async def stream(
        self, activity: CallModel, conversation: Sequence[ChatMessage], said: Callable[[str], None]
    ) -> ModelReply:
        """As ports.Streaming. A model whose provider, or whose client, cannot stream is asked in one piece."""

        async def streamed(model: Any, messages: Any, **given: Any) -> ModelResponse:
            response = await in_pieces(model, messages, said, **given)
            if response is None:
                raise _failed("the model's answer broke off before its end", ErrorClass.TRANSIENT)
            return response

        return await self._asked(activity, conversation, streamed)

    async def _asked(self, activity: CallModel, conversation: Sequence[ChatMessage], ask: Ask) -> ModelReply:
        agent = self._app.agents.get(activity.agent)
        team = self._app.team_spec(activity.team)
        if agent is None or team is None:
            what = f"there is no agent {activity.agent!r}" if agent is None else f"there is no team {activity.team!r}"
            raise _failed(what, ErrorClass.INVALID)
        await self.warm()
        model = await self._model(agent, activity, conversation)
        try:
            response = await ask(
                model,
                _to_messages(conversation),
                model_settings=_settings(activity, model),
                model_request_parameters=self._parameters(agent, team, activity),
            )
        except ActivityError:
            raise
        except Exception as error:
            raise ActivityError(_failure_of(error, self._secrets())) from error
        return _reply_of(response)

    def is_at_hand(self, agent: str) -> bool:
        """As ports.AtHand: a script is; its turn is one step, and the library is not imported for it."""
        known = self._app.agents.get(agent)
        return known is not None and isinstance(known.model, Script) and known.model.is_at_hand

    def reply(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """As ports.AtHand."""
        script = self._app.agents[activity.agent].model
        if not isinstance(script, Script):
            raise _failed(f"the model of agent {activity.agent!r} is not at hand", ErrorClass.INVALID)
        said = script.reply(activity.purpose, conversation, activity.attempt)
        if isinstance(said, Failure):
            raise ActivityError(said)
        return said

    async def warm(self) -> None:
        """Import the library, which takes seconds, without holding up the event loop, which has others to serve."""
        if not self._imported:
            async with self._opening:
                await asyncio.to_thread(importlib.import_module, "pydantic_ai.direct")
                self._imported = True

    async def close(self) -> None:
        """Close every connection. Closing twice is harmless."""
        self._models.clear()
        self._providers.clear()
        await self._open.aclose()

    # ── the model ──────────────────────────────────────────────────────────────────────

    async def _model(self, agent: Agent, activity: CallModel, conversation: Sequence[ChatMessage]) -> Model[Any]:
        if isinstance(agent.model, Script):
            return _function_model(agent.model, activity, conversation)
        async with self._opening:
            if agent.model not in self._models:
                self._models[agent.model] = await self._opened(agent.model)
            return self._models[agent.model]

    async def _opened(self, name: str) -> Model[Any]:
        from pydantic_ai.models import infer_model

        try:
            model = await asyncio.to_thread(infer_model, name, self._provider)  # it imports the provider's library
            return await self._open.enter_async_context(model)
        except Exception as error:  # a missing key, a provider that nobody knows or whose library is not installed
            what = f"the model {name!r} cannot be used: {_shown(error, self._secrets())}"
            raise _failed(what, ErrorClass.INVALID) from error

    def _provider(self, name: str) -> Provider[Any]:
        from pydantic_ai.providers import infer_provider, infer_provider_class

        if name not in self._providers:
            given = self._access.get(name)
            if given is None:
                self._providers[name] = infer_provider(name)
            else:
                named = {"api_key": given.api_key, "base_url": given.base_url}
                settings = {key: value for key, value in named.items() if value is not None}
                self._providers[name] = infer_provider_class(name)(**settings)
        return self._providers[name]

    def _secrets(self) -> list[str]:
        return [access.api_key for access in self._access.values() if access.api_key]

    # ── the request ────────────────────────────────────────────────────────────────────

    def _parameters(self, agent: Agent, team: TeamSpec, activity: CallModel) -> ModelRequestParameters:
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters

        texts = [agent.instructions]
        tools: list[ToolDefinition] = []
        if activity.purpose == "plan":
            texts.append(self._planning(team))
            tools = [_plan_tool(team)]
        elif activity.purpose == "answer":
            texts.append(ANSWERING)
        else:
            tools = [self._tool(name) for name in agent.tools]
        return ModelRequestParameters(
            function_tools=tools,
            instruction_parts=[InstructionPart(content=text, dynamic=False) for text in texts if text],
        )

    def _planning(self, team: TeamSpec) -> str:
        lines = []
        for each in team.agents:
            about = self._app.agents[each.name].instructions.strip().partition("\n")[0]
            tools = f" Tools: {', '.join(each.tools)}." if each.tools else ""
            lines.append(f"- {each.name}: {about}{tools}")
        return PLANNING.format(team=team.name, tool=PLAN_TOOL, agents="\n".join(lines))

    def _tool(self, name: str) -> ToolDefinition:
        from pydantic_ai.tools import ToolDefinition

        tool = self._app.tools[name]
        schema = {key: value for key, value in tool.input.schema.items() if key != "$schema"}
        return ToolDefinition(name=name, description=tool.description or None, parameters_json_schema=schema)


def _settings(activity: CallModel, model: Model[Any]) -> ModelSettings:
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(request_timeout=activity.timeout_ms / 1_000)
    if "max_retries" not in type(model).unsupported_settings:
        settings["max_retries"] = 0
    if activity.purpose == "plan":
        settings["tool_choice"] = [PLAN_TOOL]
    return settings


def _plan_tool(team: TeamSpec) -> ToolDefinition:
    from pydantic_ai.tools import ToolDefinition

    text = {"type": "string"}
    task = {
        "type": "object",
        "properties": {
            "id": {**text, "description": "A short name, unique in the plan."},
            "title": {**text, "description": "One line."},
            "description": {**text, "description": "All that the assignee must know."},
            "assignee": {"enum": [agent.name for agent in team.agents]},
            "depends_on": {"type": "array", "items": text, "description": "Ids of tasks that must be done before."},
            "priority": {"type": "integer", "description": "Of tasks that could start, the higher one starts first."},
        },
        "required": ["id", "title", "description", "assignee"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"tasks": {"type": "array", "items": task, "minItems": 1}},
        "required": ["tasks"],
        "additionalProperties": False,
    }
    return ToolDefinition(name=PLAN_TOOL, description="Submit the whole plan.", parameters_json_schema=schema)


# ── messages there and back ────────────────────────────────────────────────────────────


def _to_messages(conversation: Sequence[ChatMessage]) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    messages: list[ModelMessage] = []
    for said in conversation:
        if isinstance(said, UserText):
            messages.append(ModelRequest(parts=[UserPromptPart(content=said.text)]))
        elif isinstance(said, AssistantReply):
            messages.append(_to_response(said.reply))
        elif isinstance(said, ToolResults):
            parts = [
                ToolReturnPart(
                    tool_name=result.tool,
                    content=result.text,
                    tool_call_id=result.call_id,
                    outcome="success" if result.ok else "failed",
                )
                for result in said.results
            ]
            messages.append(ModelRequest(parts=parts))
        else:
            assert_never(said)
    return messages


def _to_response(reply: ModelReply) -> ModelResponse:
    """The provider's message as it was. One that this version of the library no longer reads is rebuilt from its text
    and calls, so that a run that waited for weeks goes on after an upgrade."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart

    if reply.raw_text:
        try:
            (message,) = ModelMessagesTypeAdapter.validate_json(reply.raw_text)
        except ValueError:
            message = None
        if isinstance(message, ModelResponse):
            return message
    parts: list[Any] = [TextPart(content=reply.text)] if reply.text else []
    parts += [ToolCallPart(tool_name=c.tool, args=c.input_text, tool_call_id=c.call_id) for c in reply.calls]
    return ModelResponse(parts=parts)


def _reply_of(response: ModelResponse) -> ModelReply:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, TextPart, ToolCallPart

    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if not texts and not calls and response.finish_reason == "content_filter":
        raise _failed("the provider's filter withheld the answer", ErrorClass.DENIED, Code.MODEL_ANSWER_INVALID)
    if len(calls) > limits.CALLS_PER_TURN_MAX:
        what = f"the model asked for {len(calls)} calls in one turn, more than {limits.CALLS_PER_TURN_MAX}"
        raise _failed(what, ErrorClass.INVALID, Code.MODEL_ANSWER_INVALID)
    try:
        raw = ModelMessagesTypeAdapter.dump_json([response])
        if len(raw) > RAW_BYTES_MAX:
            what = f"the model's answer has {len(raw)} bytes, more than {RAW_BYTES_MAX}"
            raise _failed(what, ErrorClass.INVALID, Code.MODEL_ANSWER_INVALID)
        return ModelReply(
            text="".join(texts) if texts or not calls else None,
            calls=tuple(
                ToolCall(call_id=call.tool_call_id, tool=call.tool_name, input_text=_input_text(call.args))
                for call in calls
            ),
            usage=Usage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens),
            raw_text=raw.decode(),
        )
    except ValueError as error:  # half of a surrogate pair, or argument text beyond all bounds
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise _failed(
            f"the model's answer cannot be kept: {what}", ErrorClass.INVALID, Code.MODEL_ANSWER_INVALID
        ) from error


def _input_text(args: str | Mapping[str, Any] | None) -> str:
    """The model's argument text. Some providers send it parsed; then it is written again, compactly."""
    from pydantic_core import to_json

    if args is None:
        return ""
    return args if isinstance(args, str) else to_json(args).decode()


def _function_model(script: Script, activity: CallModel, conversation: Sequence[ChatMessage]) -> Model[Any]:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    async def say(_messages: object, _info: object) -> ModelResponse:
        said = script.answer(activity.purpose, conversation, activity.attempt)
        if isinstance(said, Failure):
            raise ActivityError(said)
        parts: list[Any] = [] if said.text is None else [TextPart(content=said.text)]
        parts += [ToolCallPart(tool_name=c.tool, args=c.input_text, tool_call_id=c.call_id) for c in said.calls]
        return ModelResponse(parts=parts)

    return FunctionModel(say, model_name="scripted")


# ── errors ─────────────────────────────────────────────────────────────────────────────


def _failed(what: str, error_class: ErrorClass, code: Code = Code.MODEL_FAILED) -> ActivityError:
    return ActivityError(Failure(code=code, message=what, error_class=error_class))


def _failure_of(error: Exception, secrets: Sequence[str]) -> Failure:
    """The library's error as ours. A model call is a read: its certainty says whether tokens may have been spent."""
    from pydantic_ai import exceptions as known

    error_class, certainty, code = ErrorClass.PERMANENT, Certainty.UNKNOWN, Code.MODEL_FAILED
    if isinstance(error, known.ModelQuotaExceededError):
        error_class, certainty = ErrorClass.BUDGET, Certainty.NOT_EXECUTED
    elif isinstance(error, known.ModelHTTPError):
        error_class = classify_status(error.status_code)
        # A refusal of the request has used nothing; of a server's own failure nobody knows.
        refused = 400 <= error.status_code < 500 and error.status_code != 408
        certainty = Certainty.NOT_EXECUTED if refused else Certainty.UNKNOWN
    elif isinstance(error, known.ModelRequestTimeout | known.ModelTimeoutError):
        error_class = ErrorClass.TIMEOUT
    elif isinstance(error, known.ModelConnectionError):
        error_class = ErrorClass.TRANSIENT
        certainty = Certainty.NOT_EXECUTED if error.phase in ("pool", "connect") else Certainty.UNKNOWN
    elif isinstance(error, known.ModelAPIError | known.UnexpectedModelBehavior):
        error_class, code = ErrorClass.INVALID, Code.MODEL_ANSWER_INVALID
    details: dict[str, Any] = {"exception": type(error).__qualname__}
    if isinstance(error, known.ModelHTTPError):
        details["status"] = error.status_code
    wait_s = error.retry_after if isinstance(error, known.ModelAPIError) else None
    return Failure(
        code=code,
        message=_shown(error, secrets),
        error_class=error_class,
        certainty=certainty,
        retry_after_ms=None if wait_s is None else round(wait_s * 1_000),
        details=details,
    )


def _shown(error: Exception, secrets: Sequence[str]) -> str:
    """What a person reads: bounded, in one line, without a key that a server might have echoed."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in secrets:
        text = text.replace(secret, "[key]")
    return text[:_MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode().replace("\x00", "�")
