"""Decides how a tool that calls an HTTP API has its effect once, and what each answer says about that effect.

The key goes in the header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): a server that keeps to it does
a repeated request once and answers it as the first time. Where the API can be asked by the same key, the tool's world
can be asked what happened. Nothing is repeated here: whether there is another attempt is the one retry rule's to say.

    payments = HttpLedger(httpx.Client(base_url="https://payments.example"), lookup="/payments/by-key/{key}")

    @app.tool(effect="reconcilable", consequential=True, retry=3)
    def pay(ctx: ToolContext, account: str, cents: int) -> Any:
        return payments.send(ctx, "POST", "/payments", json={"account": account, "cents": cents})

    payments.settles(pay)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from placet.declarations import Tool
from placet.errors import Code, ContractError
from placet.tooling import Executed, NotExecuted, ToolContext, Unsure

HEADER = "Idempotency-Key"
SAID_CHARS_MAX = 300
"""So much of a refusal's body is told."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_MISWRITTEN = (httpx.InvalidURL, httpx.UnsupportedProtocol)
_BUSY = frozenset({425, 429})
"""Refused before anything was done, and welcome again later."""
_UNFINISHED = frozenset({408, 409})
"""408: the server gave up on the request; 409: the first request under this key is still at work."""

T = TypeVar("T", bound=Tool[Any, Any])


class _Http:
    """What both ledgers know: the requests and what their answers say."""

    def __init__(self, *, lookup: str | None, seal: str | None, quoted: bool) -> None:
        for what, path in (("lookup", lookup), ("seal", seal)):
            if path is not None and "{key}" not in path:
                raise ContractError(Code.APP_INVALID, f"{what} of an HTTP ledger names the place of {{key}}: {path!r}")
        self._lookup = lookup
        self._seal = seal
        self._quoted = quoted

    def headers(self, ctx: ToolContext, given: Mapping[str, str] | None) -> dict[str, str]:
        """The caller's, and the key: quoted, as a structured field is, unless the API wants it bare."""
        key = f'"{ctx.idempotency_key}"' if self._quoted else ctx.idempotency_key
        return {**(given or {}), HEADER: key}

    def probe(self, ctx: ToolContext, *, seal: bool) -> tuple[str, str]:
        """Method and place of the question."""
        place = self._seal if seal else self._lookup
        if place is None:
            raise NotExecuted("this ledger has no such place")  # never registered, so never asked
        return "PUT" if seal else "GET", place.replace("{key}", quote(ctx.idempotency_key, safe=""))

    def register(self, tool: T, reconcile: Any, seal: Any) -> T:
        """The probes that this API has."""
        if self._lookup is None and self._seal is None:
            raise ContractError(
                Code.APP_INVALID, f"{tool.name!r} cannot be settled: give the HTTP ledger lookup= or seal="
            )
        if self._lookup is not None:
            tool.reconcile(reconcile)
        if self._seal is not None:
            tool.seal(seal)
        return tool


class HttpLedger(_Http):
    """For plain functions, on an `httpx.Client` whose transport repeats nothing (httpx's default).

    `lookup`: a GET there answers 200 with the result if the request under that key was done, 404 if it was not. `seal`:
    a PUT there answers 200 with the result if it was done; 201 or 204 if it was not, and never will be. `{key}` stands
    for the key. `quoted`: whether the header's value is in quotes, as the draft says. Raises ContractError(APP_INVALID)
    for a place without `{key}`.
    """

    def __init__(
        self, client: httpx.Client, *, lookup: str | None = None, seal: str | None = None, quoted: bool = True
    ) -> None:
        super().__init__(lookup=lookup, seal=seal, quoted=quoted)
        self._client = client

    def send(
        self, ctx: ToolContext, method: str, url: str, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> Any:
        """Send the one request of this attempt; the answer's JSON, or its text. `request` is as of httpx: json=, ….

        Raises NotExecuted (not sent, or refused) or Unsure (no answer, or one that does not say).
        """
        try:
            made = self._client.build_request(
                method, url, headers=self.headers(ctx, headers), timeout=ctx.left_s(), **request
            )
            answer = self._client.send(made, follow_redirects=False)
        except Exception as error:
            raise _of_error(error) from error
        return _of_answer(answer)

    def look(self, ctx: ToolContext) -> Executed | NotExecuted | Unsure:
        """Did the request of this attempt have its effect?"""
        return self._probe(ctx, seal=False)

    def seal(self, ctx: ToolContext) -> Executed | NotExecuted | Unsure:
        """The same; and if it did not, it never will."""
        return self._probe(ctx, seal=True)

    def _probe(self, ctx: ToolContext, *, seal: bool) -> Executed | NotExecuted | Unsure:
        method, url = self.probe(ctx, seal=seal)
        try:
            made = self._client.build_request(method, url, timeout=ctx.left_s())
            answer = self._client.send(made, follow_redirects=False)
        except httpx.HTTPError as error:
            return Unsure(f"{type(error).__name__}: {error}", transient=True)
        return _of_probe(answer, seal=seal)

    def settles(self, tool: T) -> T:
        """Register `lookup` as the tool's `reconcile` and `seal` as its `seal`. The tool is `reconcilable`."""

        def reconcile(ctx: ToolContext) -> Executed | NotExecuted | Unsure:
            return self.look(ctx)

        def seal(ctx: ToolContext) -> Executed | NotExecuted | Unsure:
            return self.seal(ctx)

        return self.register(tool, reconcile, seal)


class AsyncHttpLedger(_Http):
    """The same for `async` tools, on an `httpx.AsyncClient`."""

    def __init__(
        self, client: httpx.AsyncClient, *, lookup: str | None = None, seal: str | None = None, quoted: bool = True
    ) -> None:
        super().__init__(lookup=lookup, seal=seal, quoted=quoted)
        self._client = client

    async def send(
        self, ctx: ToolContext, method: str, url: str, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> Any:
        """As HttpLedger."""
        try:
            made = self._client.build_request(
                method, url, headers=self.headers(ctx, headers), timeout=ctx.left_s(), **request
            )
            async with asyncio.timeout(ctx.left_s()):
                answer = await self._client.send(made, follow_redirects=False)
        except Exception as error:
            raise _of_error(error) from error
        return _of_answer(answer)

    async def look(self, ctx: ToolContext) -> Executed | NotExecuted | Unsure:
        """As HttpLedger."""
        return await self._probe(ctx, seal=False)

    async def seal(self, ctx: ToolContext) -> Executed | NotExecuted | Unsure:
        """As HttpLedger."""
        return await self._probe(ctx, seal=True)

    async def _probe(self, ctx: ToolContext, *, seal: bool) -> Executed | NotExecuted | Unsure:
        method, url = self.probe(ctx, seal=seal)
        try:
            made = self._client.build_request(method, url, timeout=ctx.left_s())
            answer = await self._client.send(made, follow_redirects=False)
        except httpx.HTTPError as error:
            return Unsure(f"{type(error).__name__}: {error}", transient=True)
        return _of_probe(answer, seal=seal)

    def settles(self, tool: T) -> T:
        """As HttpLedger."""

        async def reconcile(ctx: ToolContext) -> Executed | NotExecuted | Unsure:
            return await self.look(ctx)

        async def seal(ctx: ToolContext) -> Executed | NotExecuted | Unsure:
            return await self.seal(ctx)

        return self.register(tool, reconcile, seal)


# ── what an answer says ────────────────────────────────────────────────────────────────


def _of_answer(answer: httpx.Response) -> Any:
    status, said = answer.status_code, _said(answer)
    if answer.is_success:
        return _body(answer)
    if status in _BUSY:
        raise NotExecuted(said, transient=True, retry_after_s=_retry_after_s(answer))
    if status in _UNFINISHED or status >= 500:
        raise Unsure(said, transient=True, retry_after_s=_retry_after_s(answer))
    if status >= 400:
        raise NotExecuted(said)
    raise Unsure(f"{said}: a redirect is not followed, and does not say whether anything was done", transient=False)


def _of_error(error: Exception) -> NotExecuted | Unsure:
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, _NOT_SENT):
        return NotExecuted(f"not sent: {told}", transient=True)
    if isinstance(error, _MISWRITTEN):
        return NotExecuted(f"not sent: {told}")
    if isinstance(error, httpx.TransportError | TimeoutError):
        return Unsure(f"no answer: {told}", transient=True)
    return Unsure(told, transient=False)


def _of_probe(answer: httpx.Response, *, seal: bool) -> Executed | NotExecuted | Unsure:
    if answer.status_code == 200:
        return Executed(_body(answer))
    if answer.status_code in ({201, 204} if seal else {404, 410}):
        return NotExecuted(_said(answer))
    return Unsure(_said(answer), transient=True, retry_after_s=_retry_after_s(answer))


def _body(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text or None


def _said(answer: httpx.Response) -> str:
    request = answer.request
    text = " ".join(answer.text.split())[:SAID_CHARS_MAX]
    return f"{request.method} {request.url.path} answered {answer.status_code}{': ' if text else ''}{text}"


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds, or an instant, which is compared with the server's own clock where it tells it."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
        now = parsedate_to_datetime(answer.headers["date"]) if "date" in answer.headers else datetime.now(UTC)
        return max(0.0, (at - now).total_seconds())
    except (TypeError, ValueError):
        return None
