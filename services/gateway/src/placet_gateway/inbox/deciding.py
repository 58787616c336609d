"""Decides what becomes of a decision that a page sends: handed on only if it was shown in full, and told truly.

A decision needs a form of the same session, the digest of what this renderer shows now, and the tokens of all folded
parts. Whatever is refused gives the page back with the reviewer's words in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import ValidationError

from placet.decision_words import check_said, check_value, value_text_of, words_for
from placet.errors import Code, ContractError
from placet.machine import Receipt
from placet.messages import DecideApproval, DecisionWord, RevokeApproval, invalid
from placet.sentences import pretty
from placet.strict_json import JsonValue
from placet_gateway.inbox.asking import Asking, Said, answer_field, asking_of, filters_in, new_decision_id, request_page
from placet_gateway.inbox.bodies import Form, form_of, require_token
from placet_gateway.inbox.forms import read_field
from placet_gateway.inbox.pages import HOME, PageRoute, Visit, Visiting, render, see_other
from placet_gateway.inbox.queueing import Filters, filters_of, next_after, queue_of
from placet_gateway.problems import problem_of_receipt

router = APIRouter(prefix="/inbox/requests", route_class=PageRoute, include_in_schema=False)

UNKNOWN = (
    "No answer came in time, so it is not known whether this was recorded. Press the same button again: it is the same "
    "decision, and counts once."
)
_STATUS = {"stale": 412, "expired": 410, "not_allowed": 403, "invalid": 422, "not_found": 404, "busy": 409}


@router.get("/{request_id}")
async def show(request_id: str, at: Visiting) -> HTMLResponse:
    """A request in full."""
    return await request_page(at, await asking_of(at, request_id), filters_in(at))


@router.get("/{request_id}/standing")
async def standing(request_id: str, at: Visiting) -> HTMLResponse:
    """How it stands now, for a page that is open."""
    asking = await asking_of(at, request_id)
    return render(at.request, "_standing.html", view=asking.view, card=asking.card, now_ms=at.now_ms)


@router.get("/{request_id}/parts/{n}")
async def part(request_id: str, n: int, at: Visiting) -> HTMLResponse:
    """A folded part in full, with the token that says so."""
    asking = await asking_of(at, request_id)
    found = next((part for part in asking.shown.folded if part.n == n), None)
    if found is None:
        raise ContractError(Code.NOT_FOUND, "There is no such part.")
    return render(
        at.request, "_part.html", part=found, shown=asking.shown, session=at.session, opened={n}, card=asking.card,
        filters=Filters(), is_answer=True,
    )  # fmt: skip


@router.post("/{request_id}/decision")
async def decide(request_id: str, request: Request, at: Visiting) -> Response:
    """Decide, and go on to what waits next; or the page again with what is wrong."""
    form = await form_of(request)
    require_token(form, at.session)
    asking = await asking_of(at, request_id)
    filters = filters_of(dict(parse_qsl(form.one("filters"))))
    said = Said(
        reason=form.one("reason"),
        confirm=form.one("confirm"),
        opened=form.all("opened"),
        decision_id=form.one("decision_id") or new_decision_id(),
        fields=dict(form.items()),
    )
    word = form.one("word")
    fault = fault_of(at, asking, form, word, said)
    if fault is not None:
        return await request_page(at, asking, filters, replace(said, error=fault[1]), fault[0])
    value: JsonValue = None
    field = answer_field(asking) if word == "respond" else None
    if field is not None:
        value, faults = read_field(field, form)
        if faults:
            said = replace(said, error="The answer does not fit its form yet.", faults=faults)
            return await request_page(at, asking, filters, said, 422)
        said = replace(said, written=pretty(value))
    try:
        return await say(at, asking, filters, said, word, value if field is not None else None)
    except ContractError as error:
        told = told_of(error)
        return await request_page(at, asking, filters, replace(said, error=told), 422)


def told_of(error: ContractError) -> str:
    """A refusal as a sentence."""
    return error.message[:1].upper() + error.message[1:] + ("" if error.message.endswith((".", "?")) else ".")


def fault_of(at: Visit, asking: Asking, form: Form, word: str, said: Said) -> tuple[int, str] | None:
    """Why what was sent is no decision about what was shown: a status and the reason."""
    if asking.shown.fault:
        return 409, f"Nothing can be decided about it: {asking.shown.fault}. Tell the operator."
    if word not in words_for(asking.card.scope):
        return 422, "That is no answer to this question."
    is_same = form.one("request_hash") == asking.shown.request_hash and form.one("shown_digest") == asking.shown.digest
    if not is_same:
        return 412, "This page was out of date and has been loaded anew: look at it again, then decide."
    unopened = asking.shown.unopened(at.session, said.opened)
    if unopened:
        names = ", ".join(part.label for part in unopened[:5])
        return 422, f"Not everything has been looked at: open {names} first."
    if word == "approve" and (why := asking.no_approval(at.person)):
        return 403, why
    if word == "approve" and asking.confirmation and said.confirm.strip() != asking.confirmation:
        return 422, f"Type {asking.confirmation} into the field beside the button to approve this."
    if word == "request_changes" and not said.reason.strip():
        return 422, "Say what should be changed: the agent is told just that."
    return None


async def say(at: Visit, asking: Asking, filters: Filters, said: Said, word: str, value: JsonValue = None) -> Response:
    """Put the decision to the rules and tell what they say. Raises ContractError for a value that cannot be one."""
    value_text = value_text_of(value) if word in ("edit", "respond") else None
    reason = said.reason if said.reason.strip() else None
    check_said(word, value_text, reason)
    if asking.shown.content is not None and value_text is not None:
        check_value(asking.shown.content, word, value)
    message = decision_of(at, asking, word, reason, said.decision_id, value_text)
    told = await at.here.ask(message)
    if told is None:
        return await request_page(at, asking, filters, replace(said, error=UNKNOWN), 503)
    if isinstance(told, Receipt):
        return await _refused(at, asking, filters, said, told)
    receipt = Receipt.model_validate_json(told)
    following = await queue_of(at, filters)
    if receipt.successor is not None:
        return see_other(f"/inbox/requests/{receipt.successor}", done=asking.card.request_id)
    following_card = next_after(following, asking.card)
    query = dict(filters.named) | {"done": asking.card.request_id}
    where = HOME if following_card is None else f"/inbox/requests/{following_card.request_id}"
    return see_other(where, **query)


def decision_of(
    at: Visit, asking: Asking, word: str, reason: str | None, decision_id: str, value_text: str | None = None
) -> DecideApproval:
    """The decision about what was shown, in this person's name. Raises ContractError for what none can hold."""
    try:
        return DecideApproval(
            tenant=at.here.tenant,
            run_id=asking.card.run_id,
            request_id=asking.card.request_id,
            decision_id=decision_id,
            request_hash=asking.shown.request_hash,
            decision=_word(word),
            reviewer=at.session.person,
            reason=reason,
            shown_digest=asking.shown.digest,
            value_text=value_text,
        )
    except ValidationError as error:
        raise invalid(error, Code.APPROVAL_VALIDATION_ERROR) from error


def _word(word: str) -> DecisionWord:
    known: dict[str, DecisionWord] = {name: name for name in words_for(None)}
    return known[word]


async def _refused(at: Visit, asking: Asking, filters: Filters, said: Said, receipt: Receipt) -> Response:
    """The page again: what the rules said, who was first, and what the reviewer had written."""
    now = await asking_of(at, asking.card.request_id)
    told = str(json.loads(bytes(problem_of_receipt(receipt).body))["detail"])
    told = told[:1].upper() + told[1:] + ("" if told.endswith((".", "?")) else ".")
    status = _STATUS.get(receipt.answer, 409)
    lost = now.view if receipt.answer in ("conflict", "expired", "closed") else None
    # What was answered under this id is answered so for ever: the next decision needs another.
    kept = said.decision_id if not receipt.final else new_decision_id()
    return await request_page(at, now, filters, replace(said, error=told, lost=lost, decision_id=kept), status)


@router.post("/{request_id}/revocation")
async def revoke(request_id: str, request: Request, at: Visiting) -> Response:
    """Take an approval back before it is used."""
    form = await form_of(request)
    require_token(form, at.session)
    asking = await asking_of(at, request_id)
    message = RevokeApproval(
        tenant=at.here.tenant,
        run_id=asking.card.run_id,
        request_id=request_id,
        operation_id=asking.row["operation_id"],
        by=at.session.person,
    )
    told = await at.here.ask(message)
    if isinstance(told, Receipt):
        return await _refused(at, asking, Filters(), Said(), told)
    if told is None:
        return await request_page(at, asking, Filters(), Said(error=UNKNOWN), 503)
    return see_other(f"/inbox/requests/{request_id}", done=request_id)
