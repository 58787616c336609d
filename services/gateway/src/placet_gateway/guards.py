"""Decides which HTTP requests get as far as a route: right host, right origin; and what every answer carries.

A server on loopback can be reached by every page in the same machine's browser. A foreign page may name it through a
name of its own that resolves to 127.0.0.1 (DNS rebinding): hence the check of `Host`. Or it may post to it: hence the
checks of `Origin` and `Sec-Fetch-Site`, besides the token that a page does not have.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from placet.errors import Code
from placet_gateway.problems import bug, problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They decide nothing, ever."""

_ALWAYS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""A route may say something else, never nothing."""


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        """`hosts`: names that count as this server's, besides `localhost` and the loopback addresses."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            code, detail = refusal
            await problem(code, detail)(scope, receive, guarded)
            return
        try:
            await self._app(scope, receive, guarded)
        except Exception as error:
            if started:
                raise  # Half an answer is out: the server cuts the connection, so that it is not taken for a whole one.
            await bug(error)(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> tuple[Code, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return Code.HOST_NOT_ALLOWED, "this server answers to localhost, 127.0.0.1 and [::1] only"
        for origin in headers.getlist("origin"):
            if urlsplit(origin).netloc.lower() != hosts[0].lower():
                return Code.ORIGIN_NOT_ALLOWED, "requests from pages of other sites are refused"
        if method not in SAFE_METHODS and headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return Code.ORIGIN_NOT_ALLOWED, "requests from pages of other sites are refused"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False
