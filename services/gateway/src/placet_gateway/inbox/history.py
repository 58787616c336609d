"""Decides what is shown of what was: every request, newest first, by status, tool, person and words; and the policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from placet.describing import described
from placet.statuses import APPROVAL_STATUSES
from placet.views import AppView
from placet_gateway.inbox.cards import Card, schema_of
from placet_gateway.inbox.pages import PageRoute, Visit, Visiting, render
from placet_gateway.inbox.queueing import matches

router = APIRouter(prefix="/inbox", route_class=PageRoute, include_in_schema=False)

PAGE = 50
LOOKED_AT_MAX = 1_000
"""Requests looked through for one page; the next page goes on from there."""
_FETCHED = 250
PEOPLE_LOOKED_AT_MAX = 500


@dataclass(frozen=True, slots=True)
class Past:
    """One line."""

    card: Card
    status: str
    decided_by: str
    decided_at_ms: int | None


@router.get("/history")
async def history(
    at: Visiting, q: str = "", status: str = "", tool: str = "", by: str = "", before: str = ""
) -> HTMLResponse:
    """What was asked and decided."""
    wanted = {"q": q[:200].strip(), "status": status, "tool": tool, "by": by[:200].strip()}
    found, last, is_end = await _search(at, wanted, before)
    kept = {name: value for name, value in wanted.items() if value}
    return render(
        at.request, "history.html", title="History", here="history", run_id="", items=found, wanted=wanted,
        statuses=sorted(APPROVAL_STATUSES), more="" if is_end else urlencode(kept | {"before": last}),
        is_full=len(found) >= PAGE, badge=None, now_ms=at.now_ms,
    )  # fmt: skip


async def _search(at: Visit, wanted: dict[str, str], before: str) -> tuple[list[Past], str, bool]:
    """Those that fit, the last one looked at, and whether there are no older ones."""
    found: list[Past] = []
    place, looked_at = before or None, 0
    while looked_at < LOOKED_AT_MAX:
        rows = await at.here.reader.latest_requests(at.here.tenant, limit=_FETCHED, before=place)
        for row in rows:
            place = row["request_id"]
            card = at.inbox.cards.of(row)
            if _fits(row, card, wanted):
                found.append(Past(card, row["status"], row.get("decided_by") or "", row.get("decided_at_ms")))
                if len(found) >= PAGE:
                    return found, str(place), False
        looked_at += len(rows)
        if len(rows) < _FETCHED:
            return found, "", True
    return found, str(place), False


def _fits(row: dict[str, Any], card: Card, wanted: dict[str, str]) -> bool:
    exact = ((wanted["status"], row["status"]), (wanted["tool"], card.tool), (wanted["by"], row.get("decided_by")))
    return all(not asked or asked == given for asked, given in exact) and matches(wanted["q"], card)


@router.get("/policies")
async def policies(at: Visiting) -> HTMLResponse:
    """Tools, agents, teams, and who has decided lately. Nothing here can be changed."""
    application = at.here.application
    app = application if isinstance(application, AppView) or application is None else described(application)
    latest = await at.here.reader.latest_requests(at.here.tenant, limit=PEOPLE_LOOKED_AT_MAX, before=None)
    people = Counter(row["decided_by"] for row in latest if row.get("decided_by"))
    rules = Counter(row["rule"] for row in latest if row.get("rule"))
    schemas = {tool.name: schema_of(application, tool.name) for tool in app.tools} if app is not None else {}
    return render(
        at.request, "policies.html", title="Policies and reviewers", here="policies", run_id="", app=app,
        people=people.most_common(50), rules=rules.most_common(50), looked_at=len(latest), schemas=schemas, badge=None,
        now_ms=at.now_ms,
    )  # fmt: skip


@router.get("/help")
async def help_page(at: Visiting) -> HTMLResponse:
    """Keys, and what the words mean."""
    return render(at.request, "help.html", title="Help", here="help", run_id="", badge=None, now_ms=at.now_ms)
