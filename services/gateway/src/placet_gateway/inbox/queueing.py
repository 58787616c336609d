"""Decides what the queue holds and in which order: what ends first, then what waits longest; filters live in the URL.

One list feeds the page, the badge and what comes next after a decision, so that they never differ.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from urllib.parse import urlencode

from placet.addressees import RUN
from placet.errors import Code, ContractError
from placet.ids import Address
from placet.views import ToolView
from placet_gateway.inbox.cards import Card, risk_of, tool_of
from placet_gateway.inbox.pages import Visit

QUEUE_MAX = 1_000
"""Open requests that are put into order; of more than these the oldest are, and the page says so."""
_FETCHED = 250
PAGE = 50
"""Rows of a page."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What of the queue is looked at."""

    tool: str = ""
    agent: str = ""
    team: str = ""
    scope: str = ""
    mine: str = ""
    """`1`: only what I may approve."""
    q: str = ""
    """Words that all have to occur."""

    @property
    def query(self) -> str:
        """As a part of a URL; empty where nothing is left out."""
        return urlencode({field.name: value for field in fields(self) if (value := getattr(self, field.name))})

    def without(self, name: str) -> str:
        """The query without one of them."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)} | {name: ""}
        return Filters(**kept).query

    @property
    def named(self) -> list[tuple[str, str]]:
        """Those that are set."""
        return [(field.name, value) for field in fields(self) if (value := getattr(self, field.name))]


def filters_of(query: Any) -> Filters:
    """The filters in a URL's query; anything else there is left alone."""
    return Filters(**{field.name: str(query.get(field.name, ""))[:200].strip() for field in fields(Filters)})


class Item(NamedTuple):
    """A row of the queue."""

    card: Card
    tool: ToolView | None
    team: str
    goal: str
    votes_needed: int

    @property
    def risk(self) -> str:
        """See `cards.risk_of`."""
        return risk_of(self.card, self.tool)


@dataclass(frozen=True, slots=True)
class Queue:
    """Open requests in order. `is_all`: none was left out before they were put in order."""

    items: list[Item]
    total: int
    is_all: bool
    tools: list[str]
    agents: list[str]
    teams: list[str]


async def queue_of(at: Visit, filters: Filters) -> Queue:
    """Everything that waits and passes the filters."""
    rows, is_all = await _open_rows(at)
    cards = sorted((at.inbox.cards.of(row) for row in rows), key=lambda card: card.order)
    runs = {run_id: await _run_of(at, run_id) for run_id in dict.fromkeys(card.run_id for card in cards)}
    items = [
        Item(card, tool_of(at.here.application, card.tool), *runs[card.run_id], votes_needed=card.quorum)
        for card in cards
    ]
    return Queue(
        items=[item for item in items if _passes(item, filters, at.person)],
        total=len(items),
        is_all=is_all,
        tools=sorted({item.card.tool for item in items} - {""}),
        agents=sorted({item.card.agent for item in items} - {""}),
        teams=sorted({item.team for item in items} - {""}),
    )


async def _open_rows(at: Visit) -> tuple[list[dict[str, Any]], bool]:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while len(rows) < QUEUE_MAX:
        page = await at.here.reader.requests(at.here.tenant, open_only=True, limit=_FETCHED, after=after)
        rows += page
        if len(page) < _FETCHED:
            return rows, True
        after = page[-1]["request_id"]
    return rows, False


async def _run_of(at: Visit, run_id: str) -> tuple[str, str]:
    """A run's team and goal, which never change."""
    known = at.inbox.runs.get((at.here.tenant, run_id))
    if known is None:
        stored = await at.here.reader.state(at.here.tenant, Address(run_id, RUN, ""))
        body = stored["body"] if stored is not None else {}
        known = at.inbox.remember(at.here.tenant, run_id, str(body.get("team") or ""), str(body.get("goal") or ""))
    return known


def _passes(item: Item, filters: Filters, person: str) -> bool:
    card = item.card
    exact = ((filters.tool, card.tool), (filters.agent, card.agent), (filters.team, item.team))
    if any(wanted and wanted != given for wanted, given in (*exact, (filters.scope, card.scope))):
        return False
    if filters.mine and card.bar_to(person) is not None:
        return False
    return matches(filters.q, card, item.team, item.goal)


def matches(words: str, card: Card, *more: str) -> bool:
    """Whether all words occur in what is told of a request."""
    if not words:
        return True
    about = (card.headline, card.sentence, card.tool, card.agent, card.run_id, card.request_id, card.reason)
    told = " ".join((*about, *more)).casefold()
    return all(word in told for word in words.casefold().split())


# ── pages ──────────────────────────────────────────────────────────────────────────────


def page_of(queue: Queue, after: str) -> tuple[list[Item], str]:
    """The rows after a place, and the place of the next page (empty after the last). A place is an order, not a row:
    it stays where it is while rows come and go. Raises ContractError(PARAMETER_INVALID) for what no page gave."""
    place = None if not after else _place(after)
    rest = [item for item in queue.items if place is None or item.card.order > place]
    more = _token(rest[PAGE - 1].card) if len(rest) > PAGE else ""
    return rest[:PAGE], more


def _token(card: Card) -> str:
    return base64.urlsafe_b64encode(json.dumps(card.order).encode()).decode().rstrip("=")


def _place(token: str) -> tuple[bool, int, int, str]:
    try:
        never, until_ms, since_ms, name = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return bool(never), int(until_ms), int(since_ms), str(name)
    except (ValueError, TypeError, binascii.Error) as error:
        raise ContractError(Code.PARAMETER_INVALID, "after: take it from the page before", pointer="/after") from error


def next_after(queue: Queue, card: Card) -> Card | None:
    """What to look at when this one is done: the next in order, else the first that is left."""
    others = [item.card for item in queue.items if item.card.request_id != card.request_id]
    return next((other for other in others if other.order > card.order), others[0] if others else None)


def before(queue: Queue, card: Card) -> Card | None:
    """The one before in order; None at the beginning."""
    earlier = [item.card for item in queue.items if item.card.order < card.order]
    return earlier[-1] if earlier else None
