"""Scripts can be asked without any model library, with the same words."""

from __future__ import annotations

import pytest

from placet import App, scripted
from placet.activities import CallModel
from placet.adapters.models import ModelCaller
from placet.calls import ChatMessage, UserText
from placet.errors import Code
from placet.runtime.ports import ActivityError
from placet.runtime.scripts import ScriptedModels
from placet.script import call, fail


def an_app() -> App:
    app = App("desk", version="1")
    talker = app.agent("talker", model=scripted(["Wait. ", call("look", at="sky")]))
    broken = app.agent("broken", model=scripted(fail("busy")))
    real = app.agent("real", model="openai:gpt")
    app.team("all", agents=[talker, broken, real])
    return app


def an_activity(agent: str) -> CallModel:
    return CallModel(
        tenant="t",
        run_id="r",
        thread_id="task:a",
        turn=1,
        attempt=1,
        purpose="work",
        team="all",
        agent=agent,
        messages=1,
        timeout_ms=1_000,
    )


TASK: list[ChatMessage] = [UserText(text="Look.")]


async def test_it_says_the_same_as_on_the_way_of_every_model() -> None:
    app = an_app()
    short = await ScriptedModels(app).call(an_activity("talker"), TASK)
    long = await ModelCaller(app).call(an_activity("talker"), TASK)
    assert (short.text, short.calls) == (long.text, long.calls)
    assert short.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("agent", "code", "says"),
    [
        ("broken", Code.MODEL_FAILED, "busy"),
        ("real", Code.MODEL_FAILED, "no scripted model"),
        ("ghost", Code.MODEL_FAILED, "no scripted model"),
    ],
)
async def test_what_it_cannot_say_fails(agent: str, code: Code, says: str) -> None:
    with pytest.raises(ActivityError) as failed:
        await ScriptedModels(an_app()).call(an_activity(agent), TASK)
    assert failed.value.failure.code is code
    assert says in failed.value.failure.message
