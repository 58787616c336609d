"""Decides what every page of the inbox has: who is looking, the headers that keep it safe, and how an error looks.

The policy allows files of this server and nothing else: no script or style within a page, no frame around one, no form
to elsewhere. The referrer goes to this server only; `no-referrer` would also take the origin from our own forms, which
is how they are known to be ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from placet.errors import InvariantError, PlacetError
from placet.values import Principal
from placet_gateway.context import Gateway, Here
from placet_gateway.inbox import wording
from placet_gateway.inbox.assets import url_of
from placet_gateway.inbox.bodies import CSRF
from placet_gateway.inbox.cards import Cards
from placet_gateway.inbox.marking import marked, marked_change
from placet_gateway.inbox.sessions import IDLE_MS, Session, Sessions, Tickets
from placet_gateway.problems import bug, status_of

HOME = "/inbox"
SIGN_IN = "/inbox/sign-in"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types default"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
RUNS_MAX = 4_096
"""Runs whose team and goal are kept in a process."""
_OWN_PATH = re.compile(r"/inbox(/[A-Za-z0-9._~:/%-]*)?(\?[A-Za-z0-9._~:/%&=+-]*)?")


class SignInNeeded(Exception):  # noqa: N818 — nothing is wrong
    """Nobody is signed in."""


@dataclass(slots=True)
class Inbox:
    """What the pages have besides the gateway. `development`: it is one machine's. `warning`: stands on every page."""

    sessions: Sessions
    development: bool = False
    warning: str = ""
    names_person: bool = True
    """Whether the sign-in page asks who one is, because what is shown there does not say it."""
    tickets: Tickets | None = None
    cards: Cards = field(default_factory=Cards)
    runs: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """By tenant and run: its team and goal, which never change."""

    def remember(self, tenant: str, run_id: str, team: str, goal: str) -> tuple[str, str]:
        """What a run is, for as long as there is room."""
        while len(self.runs) >= RUNS_MAX:
            del self.runs[next(iter(self.runs))]
        return self.runs.setdefault((tenant, run_id), (team, goal))

    def way_in(self, person: str, now_ms: int) -> str:
        """The path of a link that signs a person in once. Raises TypeError where there are none."""
        if self.tickets is None:
            raise TypeError("this inbox gives no tickets")
        who = Principal.model_validate_json(json.dumps({"kind": "human", "id": person}))
        return f"{SIGN_IN}?{urlencode({'ticket': self.tickets.give(who, now_ms)})}"


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a person who is signed in."""

    request: Request
    here: Gateway
    inbox: Inbox
    session: Session
    now_ms: int

    @property
    def person(self) -> str:
        """The id by which this person votes."""
        return self.session.person.id

    @property
    def wants_part(self) -> bool:
        """Whether a page that is there already asks for a part of it."""
        return self.request.headers.get("hx-request") == "true"


def inbox_of(request: Request) -> Inbox:
    """The pages' context."""
    inbox: Inbox = request.app.state.inbox
    return inbox


def cookie_name(request: Request) -> str:
    """`__Host-…` wherever the connection is encrypted. On one machine ports share cookies, hence the port."""
    return "__Host-placet" if request.url.scheme == "https" else f"placet-{request.url.port or 80}"


def put_cookie(request: Request, response: Response, cookie: str) -> None:
    """Have the browser keep it."""
    response.set_cookie(
        cookie_name(request), cookie, max_age=IDLE_MS // 1_000, path="/", secure=request.url.scheme == "https",
        httponly=True, samesite="lax",
    )  # fmt: skip


def session_of(request: Request) -> Session | None:
    """Who is signed in, if anybody."""
    now_ms = request.app.state.gateway.now_ms()
    return inbox_of(request).sessions.find(request.cookies.get(cookie_name(request), ""), now_ms)


def visit(request: Request, here: Here) -> Visit:
    """Raises SignInNeeded."""
    session = session_of(request)
    if session is None:
        raise SignInNeeded
    request.state.session = session
    return Visit(request, here, inbox_of(request), session, here.now_ms())


Visiting = Annotated[Visit, Depends(visit)]


def own_path(wanted: str) -> str:
    """Where to go after signing in: a page of ours, else the first one."""
    is_page = _OWN_PATH.fullmatch(wanted) is not None and "//" not in wanted and ".." not in wanted
    return wanted if is_page and not wanted.startswith(SIGN_IN) else HOME


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals.update(asset=url_of, w=wording, marked=marked, marked_change=marked_change)


def render(request: Request, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """A page, or a part of one."""
    session: Session | None = getattr(request.state, "session", None)
    inbox = inbox_of(request)
    values.setdefault("now_ms", request.app.state.gateway.now_ms())
    values.setdefault("here", "")
    text = _TEMPLATES.get_template(template).render(
        me=session.person.id if session is not None else None,
        csrf=session.token(CSRF) if session is not None else "",
        development=inbox.development,
        warning=inbox.warning,
        **values,
    )
    return HTMLResponse(text, status)


def see_other(path: str, **query: str) -> RedirectResponse:
    """Go on there, by GET."""
    kept = {name: value for name, value in query.items() if value}
    return RedirectResponse(f"{path}?{urlencode(kept)}" if kept else path, 303)


class PageRoute(APIRoute):
    """A route whose refusals are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As APIRoute."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                response = await inner(request)
            except SignInNeeded:
                response = _to_sign_in(request)
            except PlacetError as error:
                response = _refused(request, error)
            except RequestValidationError:
                response = error_page(request, 422, "This address has a parameter that means nothing.")
            except HTTPException as error:
                response = error_page(request, error.status_code, str(error.detail))
            except Exception as error:  # noqa: BLE001 — `bug` logs it
                response = _defect(request, error)
            return _dressed(request, response)

        return handler


def _dressed(request: Request, response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    session: Session | None = getattr(request.state, "session", None)
    if session is not None and response.status_code < 400 and not getattr(request.state, "keeps_cookie", False):
        cookie = inbox_of(request).sessions.renewed(session, request.app.state.gateway.now_ms())
        if cookie is not None:
            put_cookie(request, response, cookie)
    return response


def _to_sign_in(request: Request) -> Response:
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = SIGN_IN if request.method != "GET" else f"{SIGN_IN}?to={quote(own_path(asked), safe='')}"
    if request.headers.get("hx-request") == "true" or "text/event-stream" in request.headers.get("accept", ""):
        return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
    return RedirectResponse(where, 303)


def _refused(request: Request, error: PlacetError) -> Response:
    if isinstance(error, InvariantError):
        return _defect(request, error)
    return error_page(request, status_of(error.code), error.message, error.code.value)


def _defect(request: Request, error: Exception) -> Response:
    told = json.loads(bytes(bug(error).body))
    return error_page(request, 500, str(told["detail"]), str(told["code"]))


def error_page(request: Request, status: int, message: str, code: str = "") -> HTMLResponse:
    """What went wrong, and where to go from here."""
    return render(request, "error.html", status, title=f"Error {status}", message=message, code=code, status=status)
