"""A scripted model says the same to the same conversation, whatever happened before."""

from __future__ import annotations

from typing import Any

import pytest

from placet import ContractError, PlannedTask, scripted
from placet.calls import AssistantReply, ChatMessage, ModelReply, ToolCall, ToolResult, ToolResults, UserText
from placet.errors import Code, ErrorClass, Failure
from placet.script import Call, Conversation, Script, Step, call, fail, plan, raw_call

START: list[ChatMessage] = [UserText(text="Do it.")]


def after(*replies: ModelReply) -> list[ChatMessage]:
    """A conversation with these replies, each call answered."""
    said = list(START)
    for reply in replies:
        said.append(AssistantReply(reply=reply))
        if reply.calls:
            results = tuple(ToolResult(call_id=c.call_id, tool=c.tool, ok=True, text="1") for c in reply.calls)
            said.append(ToolResults(results=results))
    return said


def replied(script: Script, conversation: Conversation, attempt: int = 1) -> ModelReply:
    said = script.answer("work", conversation, attempt)
    assert isinstance(said, ModelReply), said
    return said


def test_the_step_follows_from_the_conversation_alone() -> None:
    script = scripted(call("look", at="sky"), "It is blue.")
    first = replied(script, START)
    second = replied(script, after(first))
    assert (first.text, first.calls) == (
        None,
        (ToolCall(call_id="call-1-1", tool="look", input_text='{"at":"sky"}'),),
    )
    assert (second.text, second.calls) == ("It is blue.", ())
    for _ in range(3):  # a crash, a repeat, another process
        assert replied(script, START) == first
        assert replied(script, after(first)) == second


def test_several_calls_and_words_make_one_reply() -> None:
    reply = replied(scripted(["Both. ", call("a"), call("b", n=1)]), START)
    assert reply.text == "Both. "
    assert [(c.call_id, c.tool, c.input_text) for c in reply.calls] == [
        ("call-1-1", "a", "{}"),
        ("call-1-2", "b", '{"n":1}'),
    ]


def test_a_broken_call_goes_out_byte_for_byte_and_with_the_id_it_was_given() -> None:
    reply = replied(scripted([raw_call("a", "{'n':", call_id="x"), raw_call("a", "", call_id="x")]), START)
    assert [(c.call_id, c.input_text) for c in reply.calls] == [("x", "{'n':"), ("x", "")]


def test_plans_serve_planning_and_the_other_steps_serve_work() -> None:
    script = scripted(plan([PlannedTask(id="a", title="A")]), "worked", answering="summed up")
    planned = script.answer("plan", START)
    assert isinstance(planned, ModelReply)
    assert [(c.tool, c.input_text) for c in planned.calls] == [("submit_plan", '{"tasks":[{"id":"a","title":"A"}]}')]
    assert replied(script, START).text == "worked"
    answered = script.answer("answer", START)
    assert isinstance(answered, ModelReply)
    assert answered.text == "summed up"


def test_planning_can_be_listed_apart_to_try_a_correction() -> None:
    script = scripted("worked", planning=["No tool, only words.", plan([{"id": "a", "title": "A"}])])
    first = script.answer("plan", START)
    assert isinstance(first, ModelReply)
    assert first.calls == ()
    second = script.answer("plan", after(first))
    assert isinstance(second, ModelReply)
    assert second.calls[0].tool == "submit_plan"


def test_plans_in_two_places_are_refused() -> None:
    with pytest.raises(ContractError):
        scripted(plan([]), planning=[plan([])])


def test_a_function_decides_from_what_the_tools_said() -> None:
    def then(conversation: Conversation) -> Step:
        last = conversation[-1]
        assert isinstance(last, ToolResults)
        return f"It said {last.results[0].text}."

    script = scripted(call("look"), then)
    assert replied(script, after(replied(script, START))).text == "It said 1."


def test_a_failure_can_pass_after_some_attempts() -> None:
    script = scripted(fail("overloaded", retry_after_ms=50, times=2, then="well again"))
    for attempt in (1, 2):
        failure = script.answer("work", START, attempt)
        assert isinstance(failure, Failure)
        assert (failure.code, failure.error_class, failure.retry_after_ms) == (
            Code.MODEL_FAILED,
            ErrorClass.TRANSIENT,
            50,
        )
    assert replied(script, START, 3).text == "well again"
    assert isinstance(scripted(fail()).answer("work", START, 100), Failure)


def broken(_conversation: Conversation) -> Step:
    raise KeyError("no such commit")


def endless(_conversation: Conversation) -> Step:
    return endless


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (scripted(), "has 0 steps for purpose 'work'; step 1"),
        (scripted(broken), "raised KeyError"),
        (scripted(endless), "comes to no end"),
        (scripted(5), "is text, calls, a plan or a failure"),  # type: ignore[arg-type]
        (scripted([call("a"), 5]), "is text, calls, a plan or a failure"),  # type: ignore[list-item]
    ],
)
def test_a_script_that_does_not_know_what_to_say_fails_aloud(script: Script, says: str) -> None:
    failure = script.answer("work", START)
    assert isinstance(failure, Failure)
    assert failure.code is Code.MODEL_ANSWER_INVALID
    assert says in failure.message


def test_a_script_that_has_run_out_invents_nothing() -> None:
    script = scripted("once")
    failure = script.answer("work", after(replied(script, START)))
    assert isinstance(failure, Failure)
    assert script.answer("plan", START) != script.answer("work", START)
    assert isinstance(script.answer("answer", START), Failure)


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, object(), "\ud800"])
def test_a_call_with_input_that_is_no_json_is_refused_when_it_is_written(value: Any) -> None:
    with pytest.raises(ContractError):
        call("a", value=value)


def test_a_tool_with_a_parameter_called_tool_can_be_called() -> None:
    assert call("a", tool="hammer") == Call("a", '{"tool":"hammer"}')
