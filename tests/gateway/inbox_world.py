"""The small world of the gateway's tests with the web inbox in front of it, and a browser that keeps its cookie."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx

from placet.messages import DecideApproval
from placet.values import Principal, PrincipalKind
from placet_gateway.inbox.pages import Inbox
from placet_gateway.inbox.sessions import SealedSessions, Tickets
from tests.gateway.world import NOW_MS, TOKEN, World

BASE = "http://localhost:7300"
AT_MS = NOW_MS + 1_000
"""When the gateway of these tests looks at its clock."""
PAYMENT = {
    "kind": "tool_call",
    "toolName": "refund",
    "rawInput": {"customer": "c-1", "cents": 4_000},
    "input": {"customer": "c-1", "cents": 4_000, "currency": "EUR"},
    "agentName": "clerk",
    "taskId": "pay",
    "toolCallId": "c1.1",
    "consequential": True,
}
LONG = "echo " + "x" * 1_000 + "; rm -rf /srv/example-data"


SHELL = PAYMENT | {"toolName": "shell", "rawInput": {"command": LONG}, "input": {"command": LONG}}


def person(name: str) -> Principal:
    return Principal(kind=PrincipalKind.HUMAN, id=name)


class Desk:
    """One gateway with its inbox."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.inbox = Inbox(SealedSessions(TOKEN), tickets=Tickets())
        self.app = world.app(inbox=self.inbox, **settings)

    def browser(self, name: str | None = "alice", *, client: str = "127.0.0.1", base: str = BASE) -> httpx.AsyncClient:
        """A browser in which somebody is signed in, or nobody."""
        browser = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app, client=(client, 5_000)), base_url=base, headers={"Origin": base}
        )
        if name is not None:
            browser.cookies.set("placet-7300", self.inbox.sessions.sign_in(person(name), AT_MS))
        return browser


class Page(HTMLParser):
    """What a test looks for in a page: its forms' hidden fields, tags with attributes, and its text."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(convert_charrefs=True)
        self.status = answer.status_code
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(answer.text)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        """The attributes of every such tag."""
        return [
            attributes
            for name, attributes in self.tags
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]

    def button(self, word: str) -> dict[str, str | None]:
        """The button of a word."""
        (found,) = self.all("button", value=word)
        return found

    def form(self, **more: str) -> dict[str, str | list[str]]:
        """Every hidden field, as a browser would send them."""
        fields: dict[str, str | list[str]] = {}
        for attributes in self.all("input", type="hidden"):
            name, value = str(attributes.get("name")), attributes.get("value") or ""
            known = fields.get(name)
            fields[name] = (
                value if known is None or name != "opened" else [*([known] if isinstance(known, str) else known), value]
            )
        return {**fields, **more}


def path_of(row: dict[str, Any], more: str = "") -> str:
    """Where a request's page is."""
    return f"/inbox/requests/{row['request_id']}{more}"


async def look(browser: httpx.AsyncClient, row: dict[str, Any], more: str = "") -> Page:
    """A request's page."""
    return Page(await browser.get(path_of(row, more)))


async def decide(browser: httpx.AsyncClient, row: dict[str, Any], page: Page, word: str, **more: str) -> httpx.Response:
    """Press a button on that page."""
    return await browser.post(path_of(row, "/decision"), data=page.form(word=word, **more))


def decided(desk: Desk) -> list[DecideApproval]:
    """What the inbox has put to the rules."""
    return [message for message, _ in desk.world.asked if isinstance(message, DecideApproval)]
