"""Decides what one request's page is made of, whoever wants it: the page itself, an answer to a decision, a part."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import HTMLResponse

from placet.decision_words import words_for
from placet.errors import Code, ContractError
from placet.views import RequestView, ToolView
from placet_gateway import reading
from placet_gateway.freezes import frozen_of
from placet_gateway.inbox.cards import Card, risk_of, tool_of
from placet_gateway.inbox.forms import Field, field_of
from placet_gateway.inbox.pages import Visit, render
from placet_gateway.inbox.queueing import Filters, before, filters_of, next_after, queue_of
from placet_gateway.inbox.showing import Shown, shown
from placet_gateway.inbox.story import story_of

BUTTONS: Mapping[str, tuple[str, str]] = {
    "approve": ("Approve", "a"),
    "reject": ("Reject", "r"),
    "request_changes": ("Request changes", "c"),
    "executed": ("Yes, it happened", "y"),
    "not_executed": ("No, it did not", "n"),
}
"""The words that need no more than a reason: what stands on the button, and its key."""
TONES = {"approve": "primary", "reject": "danger", "executed": "primary", "not_executed": "danger"}


def consequence(word: str, scope: str, tool: ToolView | None) -> str:
    """What follows when a word is said."""
    at_once = "The call is made once, with exactly these arguments."
    told = {
        ("approve", "tool_call"): at_once,
        (
            "approve",
            "plan",
        ): "The plan is carried out as it stands; each consequential call in it is still asked about.",
        (
            "approve",
            "plan_patch",
        ): "The plan is changed so, and carried out; its consequential calls are still asked about.",
        ("reject", "plan_patch"): "The plan stays as it is.",
        ("approve", "task_round"): "The next tasks begin.",
        ("approve", "task_dispatch"): "The task is given to its agent.",
        (
            "reject",
            "tool_call",
        ): "Nothing is done. The agent is told that it was refused, and why; it may try otherwise.",
        ("reject", "question"): "The question stays unanswered; the agent is told so.",
        ("edit", "tool_call"): "Nothing is done yet: what you change is asked anew, and somebody else approves it.",
        ("edit", "plan"): "Nothing is done yet: the changed plan is asked anew, and somebody else approves it.",
        ("respond", "tool_call"): "The call is not made. The agent is given your answer instead of its result.",
        ("respond", "question"): "The agent is given your answer. It permits nothing: calls are still asked about.",
        ("request_changes", "tool_call"): "Nothing is done. The agent is told what to change, and proposes it anew.",
        ("request_changes", "plan"): "Nothing is done. The planner is told what to change, and proposes it anew.",
        ("executed", "operation_outcome"): "It counts as done, and is not repeated.",
        ("not_executed", "operation_outcome"): "It counts as not done; whether it is tried again, its approval says.",
    }.get((word, scope), "The run ends as rejected; what was done before stays done." if word == "reject" else "")
    if word == "approve" and scope == "tool_call" and tool is not None and tool.effect == "read_only":
        return f"{told} It only reads."
    return told


@dataclass(frozen=True, slots=True)
class Said:
    """What a reviewer has put into the page so far, and what was wrong with it."""

    reason: str = ""
    confirm: str = ""
    opened: Sequence[str] = ()
    decision_id: str = ""
    error: str = ""
    written: str = ""
    """What was put in besides the reason: an edited input, an answer."""
    lost: RequestView | None = None
    """How it stands, where somebody else was first."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What was put into the form of an answer, by its field."""
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asking:
    """A request that somebody looks at."""

    row: dict[str, Any]
    card: Card
    shown: Shown
    view: RequestView
    tool: ToolView | None

    @property
    def risk(self) -> str:
        """See `cards.risk_of`; what is long is looked through in full here."""
        return "high" if self.shown.findings or self.shown.fault else risk_of(self.card, self.tool)

    @property
    def confirmation(self) -> str:
        """What has to be typed to approve it; empty where nothing has."""
        is_asked = self.risk == "high" and "approve" in words_for(self.card.scope)
        return "" if not is_asked else self.card.tool or "approve"

    def barred(self, person: str) -> str:
        """Why nothing can be decided about it by this person; empty where something can."""
        if self.shown.fault:
            return f"Nothing can be decided about it: {self.shown.fault}. Tell the operator."
        if any(vote.person_id == person for vote in self.view.votes):
            return "You have voted."
        why = self.card.bar_to(person)
        return "" if why is None or person in self.card.requesters else f"You cannot decide it: {why}."

    def no_approval(self, person: str) -> str:
        """Why this person cannot approve it, where other words are left."""
        if self.card.is_empty:
            return "There is nothing in it to approve: what would be done is blank."
        return f"You cannot approve it: {why}." if (why := self.card.bar_to(person)) else ""


async def asking_of(at: Visit, request_id: str) -> Asking:
    """Raises ContractError(APPROVAL_NOT_FOUND), in the same words for another tenant's."""
    row = await at.here.reader.request(at.here.tenant, request_id)
    if row is None:
        raise ContractError(Code.APPROVAL_NOT_FOUND, "There is no request of that id.")
    card = at.inbox.cards.of(row)
    view = await reading.request_view(at.here.reader, at.here.tenant, row, at.now_ms)
    return Asking(row, card, shown(row), view, tool_of(at.here.application, card.tool))


def new_decision_id() -> str:
    """Kept with the page until there is a receipt, so that pressing again is the same decision."""
    return f"dec_{secrets.token_hex(16)}"


async def request_page(
    at: Visit, asking: Asking, filters: Filters, said: Said | None = None, status: int = 200
) -> HTMLResponse:
    """The page of a request."""
    said = said or Said()
    reader, tenant = at.here.reader, at.here.tenant
    opened = {part.n for part in asking.shown.folded} - {
        part.n for part in asking.shown.unopened(at.session, said.opened)
    }
    wanted = at.request.query_params.get("open", "")
    opened |= {part.n for part in asking.shown.folded if wanted == "all" or str(part.n) in wanted.split(",")}
    story = await story_of(reader, tenant, asking.row, asking.card, at.inbox.cards, asking.shown.content)
    queue = await queue_of(at, filters)
    words = words_for(asking.card.scope)
    return render(
        at.request,
        "request.html",
        status,
        title=asking.card.headline,
        here="queue",
        run_id=asking.card.run_id,
        a=asking,
        card=asking.card,
        view=asking.view,
        shown=asking.shown,
        story=story,
        said=said,
        opened=opened,
        session=at.session,
        decision_id=said.decision_id or new_decision_id(),
        words=words,
        buttons=[(word, *BUTTONS[word], TONES.get(word, "")) for word in words if word in BUTTONS],
        consequences=[(word, consequence(word, asking.card.scope, asking.tool)) for word in words],
        answer=answer_field(asking),
        barred=asking.barred(at.person),
        no_approval=asking.no_approval(at.person),
        filters=filters,
        badge=queue.total,
        frozen=[one for one in await frozen_of(reader, tenant) if one.tool in (None, asking.card.tool)],
        following=next_after(queue, asking.card) if len(queue.items) > 1 else None,
        preceding=before(queue, asking.card),
        place=next((n for n, item in enumerate(queue.items, 1) if item.card.request_id == asking.card.request_id), 0),
        left=len(queue.items),
        done=await done_of(at),
        now_ms=at.now_ms,
    )


def answer_field(asking: Asking) -> Field | None:
    """The form of a question's answer."""
    from placet.contents import QuestionContent
    from placet.forms import form_of

    content = asking.shown.content
    return field_of(form_of(content), "answer") if isinstance(content, QuestionContent) else None


async def done_of(at: Visit) -> RequestView | None:
    """What was decided on the page before, read from the facts; nothing in the URL is believed."""
    name = at.request.query_params.get("done", "")
    row = await at.here.reader.request(at.here.tenant, name) if name else None
    if row is None or row["status"] == "open":
        return None
    return await reading.request_view(at.here.reader, at.here.tenant, row, at.now_ms)


def filters_in(at: Visit) -> Filters:
    """The filters of the page's URL."""
    return filters_of(at.request.query_params)
