"""Decides what an agent may ask a person, and how: a question with the form of its answer, which approves nothing.

The agent calls the built-in tool `ask_human`, which has to be granted to it like any other. No operation comes of it:
there is nothing that an executor could run. The answer, or that there is none, is the result of the call.
"""

from __future__ import annotations

from typing import Any

from placet.canonical import canonical_text
from placet.contents import Content, QuestionContent
from placet.errors import Code, ContractError
from placet.gates import Judgement
from placet.strict_json import parse
from placet_dispatcher.asking import ask, asks, checked_content, read_object
from placet_dispatcher.draft import Draft
from placet_dispatcher.states import Call, PendingRequest


@checked_content
def question_content(task_id: str, call: Call) -> Content:
    """The question that a call of `ask_human` is, from its validated input."""
    given = read_object(call.input_text)
    return QuestionContent(
        question=given.get("question", ""),
        options=given.get("options"),
        answer_schema=given.get("answer_schema"),
        agent_name=call.agent,
        task_id=task_id,
        tool_call_id=call.tool_call_id,
    )


def put_question(draft: Draft, position: int, call: Call, judgement: Judgement) -> Call:
    """Ask a person, on the terms of the gates. Raises ContractError for what nobody can be asked, with a pointer."""
    # Loaded where a question is put: it takes longer than all else here.
    from placet.forms import check_form

    task_id = draft.tasks[position].id
    content = question_content(task_id, call)
    if isinstance(content, QuestionContent) and content.answer_schema is not None:
        try:
            check_form(content.answer_schema)
        except ContractError as error:
            pointer = f"/answer_schema{error.pointer or ''}"
            raise ContractError(Code.TOOL_INPUT_INVALID, f"{pointer}: {error.message}", pointer=pointer) from error
    terms = judgement.model_copy(update={"verdict": "suspend", "quorum": 1, "use_within_ms": None})
    request = ask(draft, content, terms, f"{call.agent} asks a question for task {task_id}", position=position)
    # The run finds the call by it; no operation of that id exists.
    draft.requests[-1] = draft.requests[-1].model_copy(update={"operation_id": call.operation_id})
    return call.model_copy(update={"status": "asking", "request_id": request.request_id})


def asks_question(request: PendingRequest, task_id: str, call: Call) -> bool:
    """Whether `request` is the question of this call, letter by letter."""
    try:
        return asks(request, question_content(task_id, call))
    except ContractError:
        return False


def answer_of(value_text: str | None) -> str:
    """An answer as it stands alone: text as it is, everything else as JSON."""
    value: Any = parse(value_text or "null", long_integers_are_doubles=True)
    return value if isinstance(value, str) else canonical_text(value)
