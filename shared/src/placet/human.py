"""Decides the built-in tool by which an agent asks a person: `ask_human`, granted to an agent like any other tool.

A question approves nothing. No operation comes of it, so the function below is never run: the run puts the question to
people, and the answer, checked against the form that the agent gave, is the result of the call.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from placet.plans import ASK_HUMAN
from placet.tooling import NotExecuted, ToolContext

QUESTION_CHARS_MAX = 8_000
OPTIONS_MAX = 64

__all__ = ["ASK_HUMAN", "ask_human"]


def ask_human(
    ctx: ToolContext,
    question: Annotated[str, Field(min_length=1, max_length=QUESTION_CHARS_MAX)],
    options: Annotated[list[str], Field(min_length=1, max_length=OPTIONS_MAX)] | None = None,
    answer_schema: dict[str, Any] | None = None,
) -> str:
    """Ask a person, and wait for the answer, which may take days.

    question: what you need to know, in plain words; whoever answers sees nothing else of your work.
    options: the answers to choose from, where there are only some.
    answer_schema: a JSON schema (2020-12) of the answer, where it is more than text; without `pattern` and `$ref`.

    An answer is information, not a permission: whatever needs approval still needs it.
    """
    del ctx, question, options, answer_schema
    raise NotExecuted("a question is put to people by the run; there is nothing to run here")
