"""Decides how a person changes what is asked, or answers instead: a form, what is wrong beside each field, then a diff.

Nothing is changed by it: an edit is another question, with another hash, which somebody else approves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from placet.canonical import canonical_text, parse_canonical
from placet.contents import ToolCallContent
from placet.decision_words import check_value, editable, words_for
from placet.errors import Code, ContractError, Failure
from placet.sentences import pretty
from placet.strict_json import JsonValue
from placet_gateway.inbox.asking import Asking, Said, asking_of, filters_in, new_decision_id, request_page
from placet_gateway.inbox.bodies import Form, form_of, require_token
from placet_gateway.inbox.cards import schema_of
from placet_gateway.inbox.deciding import fault_of, say, told_of
from placet_gateway.inbox.differences import Change, changes
from placet_gateway.inbox.forms import Field, faults_at, field_of, read_field
from placet_gateway.inbox.pages import PageRoute, Visit, Visiting, render
from placet_gateway.inbox.queueing import Filters, filters_of

router = APIRouter(prefix="/inbox/requests", route_class=PageRoute, include_in_schema=False)

Check = Callable[[str, dict[str, Any]], dict[str, Any] | Failure]
ROOT = "value"
ANSWER: Mapping[str, Any] = {"type": "string", "title": "Answer", "minLength": 1}
"""The form of an answer instead of a call: what the agent reads in place of the tool's result."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a person has put into the form so far."""

    reason: str = ""
    decision_id: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@router.get("/{request_id}/edit")
async def edit(request_id: str, at: Visiting) -> HTMLResponse:
    """The form."""
    asking = await _changeable(at, request_id, "edit")
    return _form(at, asking, "edit", _edit_field(at, asking), filters_in(at), Draft())


@router.post("/{request_id}/edit")
async def send_edit(request_id: str, request: Request, at: Visiting) -> Response:
    """First what would differ, then the edit itself."""
    form = await form_of(request)
    require_token(form, at.session)
    asking = await _changeable(at, request_id, "edit")
    filters = filters_of(dict(parse_qsl(form.one("filters"))))
    shape = _edit_field(at, asking)
    draft = Draft(form.one("reason"), form.one("decision_id"), dict(form.items()))
    if form.one("step") == "back":
        return _form(at, asking, "edit", _filled(at, asking, form), filters, Draft(draft.reason, draft.decision_id))
    if form.one("step") == "send":
        value: JsonValue = parse_canonical(form.one("value_text"))
        faults: Mapping[str, str] = {}
    else:
        value, faults = read_field(shape, form)
    faults = faults or _faults(at, asking, shape, value)
    if faults:
        told = "Nothing is sent yet: see below."
        return _form(
            at, asking, "edit", shape, filters, Draft(draft.reason, draft.decision_id, draft.given, faults, told), 422
        )
    if form.one("step") != "send":
        return _preview(at, asking, value, filters, draft)
    return await _said(at, asking, form, filters, "edit", value)


@router.get("/{request_id}/respond")
async def respond(request_id: str, at: Visiting) -> HTMLResponse:
    """The form of an answer instead of a call."""
    asking = await _changeable(at, request_id, "respond")
    return _form(at, asking, "respond", field_of(ANSWER, ROOT), filters_in(at), Draft())


@router.post("/{request_id}/respond")
async def send_response(request_id: str, request: Request, at: Visiting) -> Response:
    """Answer instead of letting the call be made."""
    form = await form_of(request)
    require_token(form, at.session)
    asking = await _changeable(at, request_id, "respond")
    filters = filters_of(dict(parse_qsl(form.one("filters"))))
    shape = field_of(ANSWER, ROOT)
    value, faults = read_field(shape, form)
    if faults:
        draft = Draft(form.one("reason"), form.one("decision_id"), dict(form.items()), faults, "Nothing is sent yet.")
        return _form(at, asking, "respond", shape, filters, draft, 422)
    return await _said(at, asking, form, filters, "respond", value)


async def _changeable(at: Visit, request_id: str, word: str) -> Asking:
    asking = await asking_of(at, request_id)
    if word not in words_for(asking.card.scope) or asking.shown.content is None:
        raise ContractError(Code.APPROVAL_VALIDATION_ERROR, f"This question takes no {word}.")
    return asking


def _asked(asking: Asking) -> dict[str, JsonValue]:
    content = asking.shown.content
    return {} if content is None else editable(content) or {}


def _edit_field(at: Visit, asking: Asking, value: dict[str, JsonValue] | None = None) -> Field:
    asked = _asked(asking) if value is None else value
    schema = schema_of(at.here.application, asking.card.tool) if asking.card.tool else None
    return field_of(schema or inferred(asked, asking.card.tool == ""), ROOT, cast(JsonValue, asked), is_there=True)


def _filled(at: Visit, asking: Asking, form: Form) -> Field:
    value = parse_canonical(form.one("value_text"))
    return _edit_field(at, asking, value if isinstance(value, dict) else None)


def inferred(value: Mapping[str, JsonValue], as_json: bool = False) -> dict[str, Any]:
    """A schema for what is there, where nobody knows the real one: its types, and nothing about what may be."""
    if as_json:
        return {}
    types = {str: "string", bool: "boolean", int: "integer", float: "number"}
    parts = {name: {"type": types[type(one)]} if type(one) in types else {} for name, one in value.items()}
    return {"type": "object", "properties": parts}


def _faults(at: Visit, asking: Asking, shape: Field, value: JsonValue) -> Mapping[str, str]:
    """What speaks against the new input, by field."""
    content = asking.shown.content
    if content is None or not isinstance(value, dict):
        return {shape.name: "This has to be an object."}
    check: Check | None = getattr(at.here.application, "validate_input", None)
    if check is not None and isinstance(content, ToolCallContent):
        read = check(content.tool_name, value)
        if isinstance(read, Failure):
            told = read.message.rpartition(f"{read.pointer}: ")[2] if read.pointer else read.message
            return faults_at(shape, read.pointer or "", told[:1].upper() + told[1:])
    try:
        check_value(content, "edit", value)
    except ContractError as error:
        pointer = (error.pointer or "").removeprefix("/value")
        return faults_at(shape, pointer, error.message[:1].upper() + error.message[1:] + ".")
    return {}


def _form(
    at: Visit, asking: Asking, word: str, shape: Field, filters: Filters, draft: Draft, status: int = 200
) -> HTMLResponse:
    title = "Change what is asked" if word == "edit" else "Answer instead"
    return render(
        at.request, "edit.html", status, title=title, here="queue", word=word, step="form", shape=shape,
        run_id=asking.card.run_id, **_common(at, asking, filters, draft),
    )  # fmt: skip


def _preview(at: Visit, asking: Asking, value: JsonValue, filters: Filters, draft: Draft) -> HTMLResponse:
    differences: list[Change] = changes(cast(JsonValue, _asked(asking)), value)
    return render(
        at.request, "edit.html", 200, title="Check what you changed", here="queue", word="edit", step="check",
        run_id=asking.card.run_id, changes=differences, value_text=canonical_text(value),
        **_common(at, asking, filters, draft),
    )  # fmt: skip


def _common(at: Visit, asking: Asking, filters: Filters, draft: Draft) -> dict[str, Any]:
    return {
        "a": asking,
        "card": asking.card,
        "shown": asking.shown,
        "view": asking.view,
        "filters": filters,
        "draft": draft,
        "decision_id": draft.decision_id or new_decision_id(),
        # The form holds every value in full, so all of it has been given.
        "tokens": [asking.shown.token(at.session, part) for part in asking.shown.folded],
        "barred": asking.barred(at.person),
        "badge": None,
        "now_ms": at.now_ms,
    }


async def _said(at: Visit, asking: Asking, form: Form, filters: Filters, word: str, value: JsonValue) -> Response:
    said = Said(
        reason=form.one("reason"),
        opened=form.all("opened"),
        decision_id=form.one("decision_id") or new_decision_id(),
        written=value if isinstance(value, str) else pretty(value),
    )
    fault = fault_of(at, asking, form, word, said)
    if fault is not None:
        return await request_page(at, asking, filters, replace(said, error=fault[1], decision_id=""), fault[0])
    try:
        return await say(at, asking, filters, said, word, value)
    except ContractError as error:
        shape = _filled(at, asking, form) if word == "edit" else field_of(ANSWER, ROOT)
        draft = Draft(said.reason, said.decision_id, dict(form.items()), error=told_of(error))
        return _form(at, asking, word, shape, filters, draft, 422)
