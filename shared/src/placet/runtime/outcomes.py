"""Decides what became of an effect, from what a function returned or raised: it happened, it did not, nobody knows.

What the tool says counts (placet.tooling); where it says nothing clear, the effect class decides (DESIGN §6): a tool
that only reads has executed nothing, of any other nobody knows.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from placet import calls, limits, tooling
from placet.calls import EffectClass, ToolOutcome
from placet.canonical import canonical_text
from placet.declarations import AnyTool
from placet.errors import Certainty, Code, ErrorClass, Failure, PlacetError
from placet.strict_json import parse

_MESSAGE_CHARS_MAX = 2_000


class NotBegunError(Exception):
    """It was too late to begin: the function has not been called, and will not be."""


class NoTimeError(Exception):
    """The attempt's time was over before its tool could be called."""


class TimeOverError(Exception):
    """The time limit passed, and the grace after it."""


def of_returned(answer: object) -> ToolOutcome:
    """What a function has answered; anything but a word of tooling is a result."""
    if isinstance(answer, tooling.NotExecuted):
        return calls.NotExecuted(failure=failure_of(answer, Certainty.NOT_EXECUTED))
    if isinstance(answer, tooling.Unsure):
        return calls.Unsure(failure=failure_of(answer, Certainty.UNKNOWN, transient=True))
    if isinstance(answer, calls.NotExecuted | calls.Unsure):
        return answer
    if isinstance(answer, calls.Executed):
        return _executed(lambda: answer.result_text, answer.failure)
    if isinstance(answer, tooling.Failed):
        failed = _executed(lambda: to_json(answer.result), failure_of(answer, Certainty.EXECUTED))
        return _with_result_told(failed)
    result = answer.result if isinstance(answer, tooling.Executed) else answer
    return _executed(lambda: to_json(result), None)


def _with_result_told(failed: calls.Executed) -> calls.Executed:
    """What is told of a failed call is its failure: the result goes with it."""
    if failed.failure is None or failed.result_text == "null":
        return failed
    told = _sound(f"{failed.failure.message}: {failed.result_text}")
    return failed.model_copy(update={"failure": failed.failure.model_copy(update={"message": told})})


def _executed(json_of_result: Callable[[], str | bytes], failure: Failure | None) -> calls.Executed:
    try:
        text = canonical_text(parse(json_of_result()))
    except Exception as error:  # noqa: BLE001 — the effect has happened, whatever its result is made of
        what = f"the tool ran, but its result cannot be kept as JSON: {said(error)}"
        return calls.Executed(failure=failure or _result_invalid(what))
    size = len(text.encode())
    if size > limits.RESULT_BYTES_MAX:
        what = f"the tool ran, but its result has {size} bytes, more than {limits.RESULT_BYTES_MAX}: return less"
        return calls.Executed(failure=failure or _result_invalid(what))
    return calls.Executed(result_text=text, failure=failure)


def of_raised(tool: AnyTool, error: BaseException) -> ToolOutcome:
    """What an exception says: what it says itself, else what the effect class says."""
    if isinstance(error, tooling.NotExecuted | tooling.Unsure | tooling.Failed):
        return of_returned(error)
    if isinstance(error, TimeOverError):
        code, what, error_class = Code.TOOL_TIMEOUT, f"{tool.name}: {error}", ErrorClass.TIMEOUT
    else:
        code, what, error_class = Code.TOOL_FAILED, said(error), class_of(error)
    if tool.spec.effect is EffectClass.READ_ONLY:
        return not_executed(code, what, error_class, **details(error))
    return unsure(code, what, error_class, **details(error))


def failure_of(told: tooling.ToolError, certainty: Certainty, *, transient: bool = False) -> Failure:
    """What an author's word means as a failure; `transient` where the author does not say."""
    again = transient if told.transient is None else told.transient
    return Failure(
        code=Code.TOOL_FAILED,
        message=_sound(told.reason or type(told).__name__),
        error_class=ErrorClass.TRANSIENT if again else ErrorClass.PERMANENT,
        certainty=certainty,
        retry_after_ms=None if told.retry_after_s is None else round(told.retry_after_s * 1_000),
    )


def _result_invalid(what: str) -> Failure:
    return Failure(
        code=Code.TOOL_RESULT_INVALID,
        message=what,
        error_class=ErrorClass.PERMANENT,
        certainty=Certainty.EXECUTED,
    )


def not_executed(code: Code, what: str, error_class: ErrorClass, **details: Any) -> calls.NotExecuted:
    """It did not happen, for a reason that is not the tool's own word."""
    failure = Failure(
        code=code, message=_sound(what), error_class=error_class, certainty=Certainty.NOT_EXECUTED, details=details
    )
    return calls.NotExecuted(failure=failure)


def unsure(code: Code, what: str, error_class: ErrorClass, **details: Any) -> calls.Unsure:
    """Nobody knows, for such a reason."""
    failure = Failure(code=code, message=what, error_class=error_class, certainty=Certainty.UNKNOWN, details=details)
    return calls.Unsure(failure=failure)


def class_of(error: BaseException) -> ErrorClass:
    """By the standard library's own types, also as the cause of a client library's error; never by its text."""
    at: BaseException | None = error
    for _ in range(8):
        if at is None:
            break
        if isinstance(at, TimeoutError | TimeOverError):
            return ErrorClass.TIMEOUT
        if isinstance(at, ConnectionError):
            return ErrorClass.TRANSIENT
        if isinstance(at, PermissionError):
            return ErrorClass.DENIED
        at = at.__cause__
    return ErrorClass.PERMANENT


def said(error: BaseException) -> str:
    """An exception in one bounded text."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return _sound(f"{'/'.join(str(part) for part in first['loc'])}: {first['msg']}")
    if isinstance(error, tooling.ToolError | PlacetError | TimeOverError):
        return _sound(str(error) or type(error).__name__)
    return _sound(f"{type(error).__name__}: {error}".removesuffix(": "))


def _sound(text: str) -> str:
    """Bounded, and without what a message cannot carry."""
    return text[:_MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode().replace("\x00", "�")


def details(error: BaseException) -> dict[str, Any]:
    """For operators: what was raised, and where in the tool."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return {"exception": f"{type(error).__module__}.{type(error).__qualname__}", "at": at}
