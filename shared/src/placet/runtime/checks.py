"""Decides what is asked of the world right before a tool is called, and what speaks against the call.

Targets are looked up anew, preconditions are asked once more, in the very attempt. Only True lets the tool be called:
what is False, or cannot be found out, is not executed. An answer that it no longer holds is final; that it could not be
asked is a failure like another, which the retry policy judges by its class.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from pydantic_core import to_json

from placet import calls, tooling
from placet.canonical import canonical_text, parse_canonical
from placet.declarations import AnyTool
from placet.errors import Certainty, Code, ErrorClass
from placet.runtime.outcomes import (
    NotBegunError,
    NoTimeError,
    TimeOverError,
    class_of,
    details,
    failure_of,
    not_executed,
    said,
)
from placet.strict_json import parse

Ask = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[object]]
"""Calls a hook with its arguments, within the attempt's time."""


class _Check(NamedTuple):
    name: str
    function: Callable[..., Any]
    verdict: Callable[[object], calls.NotExecuted | None]


async def objection(tool: AnyTool, arguments: dict[str, Any], input_text: str, ask: Ask) -> calls.NotExecuted | None:
    """The first thing that speaks against calling the tool now; None where nothing does.

    Lets pass NotBegunError and NoTimeError, where the attempt must not go on, and CancelledError.
    """
    for check in _checks(tool, input_text):
        taken = taken_by(check.function, arguments)
        try:
            answer = await ask(check.function, taken)
        except (NotBegunError, NoTimeError):
            raise
        except tooling.ToolError as error:
            return _of_word(error)
        except Exception as error:  # noqa: BLE001 — what cannot be found out stops the call, whatever it raises
            what = f"{check.name} could not be asked, so {tool.name} was not called: {said(error)}"
            code = Code.TOOL_TIMEOUT if isinstance(error, TimeOverError) else Code.TOOL_FAILED
            return not_executed(code, what, class_of(error), **details(error))
        if (found := check.verdict(answer)) is not None:
            return found
    return None


def _of_word(error: tooling.ToolError) -> calls.NotExecuted:
    """A hook that raises a word of tooling: whatever it says, the tool has not been called."""
    failure = failure_of(error, Certainty.NOT_EXECUTED, transient=isinstance(error, tooling.Unsure))
    if isinstance(error, tooling.NotExecuted) and failure.error_class is ErrorClass.PERMANENT:
        failure = failure.model_copy(update={"code": Code.PRECONDITION_FAILED, "error_class": ErrorClass.APPROVAL})
    return calls.NotExecuted(failure=failure)


def taken_by(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Of the tool's arguments, those that a hook takes."""
    taken = list(inspect.signature(function).parameters)[1:]
    return {name: value for name, value in arguments.items() if name in taken}


def _checks(tool: AnyTool, input_text: str) -> Iterator[_Check]:
    """Where it would act first, then whether it may."""
    for parameter, resolver in tool.resolvers.items():
        yield _Check(f"what {parameter} is now", resolver, _same(tool, parameter, input_text))
    for precondition in tool.preconditions:
        name = getattr(precondition, "__name__", "precondition")
        yield _Check(f"the precondition {name}", precondition, _holds(tool, name))


def _same(tool: AnyTool, parameter: str, input_text: str) -> Callable[[object], calls.NotExecuted | None]:
    given = parse_canonical(input_text)
    reviewed = canonical_text(given.get(parameter) if isinstance(given, dict) else None)

    def verdict(answer: object) -> calls.NotExecuted | None:
        try:
            now = canonical_text(parse(to_json(answer)))
        except Exception as error:  # noqa: BLE001 — whatever it is, it is not the reviewed value
            now = f"something that is no JSON ({said(error)})"
        if now == reviewed:
            return None
        what = f"{parameter} was reviewed as {reviewed} and is {now} by now: {tool.name} was not called"
        return not_executed(Code.APPROVAL_STALE_DECISION, what, ErrorClass.APPROVAL)

    return verdict


def _holds(tool: AnyTool, name: str) -> Callable[[object], calls.NotExecuted | None]:
    def verdict(answer: object) -> calls.NotExecuted | None:
        if answer is True:
            return None
        if answer is not False and not isinstance(answer, str):
            what = f"the precondition {name} answered {type(answer).__name__}, not True, False or a reason"
            return not_executed(Code.TOOL_RESULT_INVALID, f"{what}: {tool.name} was not called", ErrorClass.PERMANENT)
        why = f": {answer}" if answer else ""
        what = f"the precondition {name} does not hold any more, so {tool.name} was not called{why}"
        return not_executed(Code.PRECONDITION_FAILED, what, ErrorClass.APPROVAL)

    return verdict
