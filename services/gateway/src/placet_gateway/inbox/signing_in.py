"""Decides how a browser is signed in: by a link that is good once, on the same machine, or by what the identity takes.

A link alone changes nothing: it opens a page, and that page's form signs in, so that whatever fetches links ahead of a
person uses none up.
"""

from __future__ import annotations

import ipaddress

from fastapi import APIRouter, Request
from fastapi.responses import Response

from placet.errors import Code, ContractError, PlacetError
from placet.values import Principal, PrincipalKind
from placet_gateway.identity import PERSON_HEADER
from placet_gateway.inbox.bodies import form_of, require_token
from placet_gateway.inbox.pages import (
    HOME,
    SIGN_IN,
    PageRoute,
    Visiting,
    cookie_name,
    inbox_of,
    own_path,
    put_cookie,
    render,
    see_other,
    session_of,
)

router = APIRouter(prefix=SIGN_IN, route_class=PageRoute, include_in_schema=False)
leaving = APIRouter(prefix="/inbox/sign-out", route_class=PageRoute, include_in_schema=False)

USED_UP = "This link was used already, or is too old. The token below signs you in as well."


@router.get("")
async def page(request: Request, ticket: str = "", to: str = "") -> Response:
    """Where a person says who they are."""
    if session_of(request) is not None:
        return see_other(own_path(to))
    return _page(request, ticket=ticket[:200], to=own_path(to))


def _page(request: Request, *, ticket: str = "", to: str = HOME, error: str = "", person: str = "") -> Response:
    status = 200 if not error else 401
    return render(
        request, "sign_in.html", status, title="Sign in", ticket=ticket, to=to, error=error, person=person,
        names_person=inbox_of(request).names_person, badge=None, run_id="",
    )  # fmt: skip


@router.post("")
async def sign_in(request: Request) -> Response:
    """Begin a session, or say why not."""
    form = await form_of(request)
    inbox, now_ms = inbox_of(request), request.app.state.gateway.now_ms()
    to, ticket, named = own_path(form.one("to")), form.one("ticket"), form.one("person").strip()
    person: Principal | None = None
    if ticket:
        if inbox.tickets is not None and _is_here(request):
            person = inbox.tickets.take(ticket, now_ms)
        if person is None:
            return _page(request, to=to, error=USED_UP)
    else:
        try:
            person = _known(request, form.one("token"), named)
        except PlacetError as error:
            told = error.message[:1].upper() + error.message[1:] + "."
            return _page(request, to=to, error=told, person=named)
    response = see_other(to)
    put_cookie(request, response, inbox.sessions.sign_in(person, now_ms))
    return response


def _is_here(request: Request) -> bool:
    """Whether the browser runs on this machine."""
    host = request.client.host if request.client is not None else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _known(request: Request, token: str, named: str) -> Principal:
    """Whoever the identity takes this for. Raises PlacetError(UNAUTHENTICATED)."""
    headers = {"authorization": f"Bearer {token.strip()}"}
    if named:
        headers[PERSON_HEADER.lower()] = named.encode().decode("latin-1")  # as headers arrive
    person: Principal = request.app.state.gateway.identity.person(headers, "reviewer")
    if person.kind is not PrincipalKind.HUMAN:
        told = f"a {person.kind.value} cannot sign in here, only a person can"
        raise ContractError(Code.APPROVER_NOT_ALLOWED, told)
    return person


@leaving.post("")
async def sign_out(request: Request, at: Visiting) -> Response:
    """End the session."""
    require_token(await form_of(request), at.session)
    at.inbox.sessions.sign_out(at.session)
    request.state.keeps_cookie = True
    response = see_other(SIGN_IN)
    response.delete_cookie(cookie_name(request), path="/", secure=request.url.scheme == "https", httponly=True)
    return response
