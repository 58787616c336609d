"""Decides what the queue's pages show: what waits, in order; several that are decided at once, each seen in full."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from placet.errors import Code, ContractError
from placet.machine import Receipt
from placet.messages import DecideApproval
from placet_gateway.freezes import frozen_of
from placet_gateway.inbox.asking import Asking, asking_of, done_of, filters_in, new_decision_id
from placet_gateway.inbox.bodies import Form, form_of, require_token
from placet_gateway.inbox.deciding import decision_of, told_of
from placet_gateway.inbox.pages import HOME, PageRoute, Visit, Visiting, render
from placet_gateway.inbox.queueing import Filters, filters_of, page_of, queue_of
from placet_gateway.problems import problem_of_receipt

router = APIRouter(route_class=PageRoute, include_in_schema=False)

OUT_OF_DATE = "This page was out of date and has been loaded anew: look at it again, then decide."
BATCH_MAX = 25
"""More than a person looks at in one go."""


@router.get("/")
async def home() -> Response:
    """The inbox is the first page."""
    return RedirectResponse(HOME, 303)


@router.get("/inbox")
async def queue(at: Visiting) -> HTMLResponse:
    """What waits for a decision."""
    return render(at.request, "queue.html", **await _queue(at), title="Queue", here="queue", run_id="")


@router.get("/inbox/queue")
async def rows(at: Visiting) -> HTMLResponse:
    """The list alone, for a page that is open."""
    return render(at.request, "_queue.html", **await _queue(at))


async def _queue(at: Visit) -> dict[str, Any]:
    filters = filters_in(at)
    found = await queue_of(at, filters)
    after = at.request.query_params.get("after", "")
    items, more = page_of(found, after)
    return {
        "queue": found,
        "items": items,
        "more": more,
        "after": after,
        "filters": filters,
        "selected": set(at.request.query_params.getlist("select")),
        "badge": found.total,
        "frozen": await frozen_of(at.here.reader, at.here.tenant),
        "done": await done_of(at),
        "application": at.here.application,
        "now_ms": at.now_ms,
    }


# ── several at once ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one of them."""

    asking: Asking
    answer: str
    detail: str = ""


@router.get("/inbox/batch")
async def batch(at: Visiting) -> HTMLResponse:
    """Those that were selected, each in full."""
    names = list(dict.fromkeys(at.request.query_params.getlist("select")))
    return await _batch_page(at, names, filters_in(at))


async def _batch_page(
    at: Visit, names: list[str], filters: Filters, *, error: str = "", reason: str = "", status: int = 200
) -> HTMLResponse:
    if not names:
        raise ContractError(Code.PARAMETER_INVALID, "Select some requests in the queue first (X, or the boxes).")
    if len(names) > BATCH_MAX:
        raise ContractError(Code.PARAMETER_INVALID, f"At most {BATCH_MAX} requests are decided at once.")
    found = [await asking_of(at, name) for name in names]
    return render(
        at.request, "batch.html", status, title="Decide several", here="queue", run_id="", askings=found,
        unfit={asking.card.request_id: why for asking in found if (why := _unfit(at, asking))},
        decision_ids={asking.card.request_id: new_decision_id() for asking in found}, session=at.session,
        filters=filters, error=error, reason=reason, badge=None, now_ms=at.now_ms,
        opened={asking.card.request_id: {part.n for part in asking.shown.folded} for asking in found},
    )  # fmt: skip


def _unfit(at: Visit, asking: Asking) -> str:
    """Why one cannot be decided together with others; empty where it can."""
    if asking.view.status != "open":
        by = f" by {asking.view.decided_by}" if asking.view.decided_by else ""
        return f"It is {asking.view.status} already{by}."
    if asking.card.scope in ("question", "operation_outcome"):
        return "It is answered by itself."
    if asking.risk == "high":
        return "It needs a look of its own."
    return asking.barred(at.person) or asking.no_approval(at.person)


@router.post("/inbox/batch")
async def decide_batch(request: Request, at: Visiting) -> Response:
    """Decide exactly those that are named, each by what was shown of it; none where one of them does not fit."""
    form = await form_of(request)
    require_token(form, at.session)
    filters = filters_of(dict(parse_qsl(form.one("filters"))))
    names, word = form.all("request"), form.one("word")
    found = [await asking_of(at, name) for name in names]
    fault = _fault(at, form, found, word)
    if fault:
        return await _batch_page(at, names, filters, error=fault, reason=form.one("reason"), status=422)
    try:
        decisions = [_decision(at, form, asking, word) for asking in found]
    except ContractError as error:
        return await _batch_page(at, names, filters, error=told_of(error), reason=form.one("reason"), status=422)
    told = [await _decided(at, asking, decision) for asking, decision in zip(found, decisions, strict=True)]
    return render(
        at.request, "batch_done.html", title="Decided", here="queue", run_id="", told=told, filters=filters,
        badge=None, now_ms=at.now_ms,
    )  # fmt: skip


def _fault(at: Visit, form: Form, found: list[Asking], word: str) -> str:
    if word not in ("approve", "reject"):
        return "That is no answer to several requests."
    if not 0 < len(found) <= BATCH_MAX or len({asking.card.request_id for asking in found}) != len(found):
        return f"Between 1 and {BATCH_MAX} different requests are decided at once."
    for asking in found:
        name = asking.card.request_id
        seen = form.one(f"hash.{name}") == asking.shown.request_hash, form.one(f"shown.{name}") == asking.shown.digest
        if not all(seen):
            return f"{OUT_OF_DATE} Nothing was decided."
        if asking.shown.unopened(at.session, form.all("opened")):
            return f"Not everything of “{asking.card.headline[:60]}” has been looked at. Nothing was decided."
        if why := _unfit(at, asking):
            return f"“{asking.card.headline[:60]}”: {why} Nothing was decided."
    return ""


def _decision(at: Visit, form: Form, asking: Asking, word: str) -> DecideApproval:
    name = form.one(f"decision.{asking.card.request_id}") or new_decision_id()
    return decision_of(at, asking, word, form.one("reason").strip() or None, name)


async def _decided(at: Visit, asking: Asking, decision: DecideApproval) -> Told:
    said = await at.here.ask(decision)
    if said is None:
        return Told(asking, "unknown", "no answer came in time: look at it again")
    if isinstance(said, Receipt):
        problem = problem_of_receipt(said)
        return Told(asking, said.answer, _detail(bytes(problem.body)))
    receipt = Receipt.model_validate_json(said)
    return Told(asking, receipt.outcome or receipt.status or receipt.answer)


def _detail(body: bytes) -> str:
    return str(json.loads(body)["detail"])
