"""The HTTP ledger: one request an attempt, with its key; each answer says what is known of the effect."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from placet import App, ContractError, Executed, NotExecuted, ToolContext, ToolError, Unsure
from placet.ledger import AsyncHttpLedger, HttpLedger
from tests.cases import case
from tests.ledger.sql_contract import a_context

Handler = Callable[[httpx.Request], httpx.Response]
PLACES = {"lookup": "/payments/by-key/{key}", "seal": "/payments/seals/{key}"}


class Api:
    """A server that answers as told and keeps what it was asked."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._handler(request)


class Both:
    """Either ledger, used alike."""

    def __init__(self, kind: str, handler: Handler, **given: Any) -> None:
        self.api = Api(handler)
        transport, base_url = httpx.MockTransport(self.api), "http://payments.test"
        if kind == "plain":
            self.ledger: Any = HttpLedger(httpx.Client(transport=transport, base_url=base_url), **given)
        else:
            self.ledger = AsyncHttpLedger(httpx.AsyncClient(transport=transport, base_url=base_url), **given)

    async def send(self, ctx: ToolContext | None = None, **request: Any) -> Any:
        return await _value(self.ledger.send(ctx or a_context(), "POST", "/payments", **request))

    async def seal(self, ctx: ToolContext | None = None) -> Any:
        return await _value(self.ledger.seal(ctx or a_context()))

    async def look(self, ctx: ToolContext | None = None) -> Any:
        return await _value(self.ledger.look(ctx or a_context()))


async def _value(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


@pytest.fixture(params=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answers(status: int, **given: Any) -> Handler:
    return lambda _: httpx.Response(status, **given)


async def test_the_request_carries_the_key_and_its_answer_is_the_result(kind: str) -> None:
    both = Both(kind, answers(201, json={"id": "p-1"}))
    assert await both.send(json={"cents": 900}, headers={"X-Own": "1"}) == {"id": "p-1"}
    [request] = both.api.requests
    assert (request.headers["idempotency-key"], request.headers["x-own"]) == ('"op_1:1"', "1")
    assert request.content == b'{"cents":900}'
    bare = Both(kind, answers(204), quoted=False)
    assert await bare.send() is None
    assert bare.api.requests[0].headers["idempotency-key"] == "op_1:1"


@case("G03", "G08")
@pytest.mark.parametrize(
    ("status", "headers", "said", "transient", "after_s"),
    [
        (400, {}, NotExecuted, None, None),
        (401, {}, NotExecuted, None, None),
        (404, {}, NotExecuted, None, None),
        (422, {}, NotExecuted, None, None),
        (425, {}, NotExecuted, True, None),
        (429, {"retry-after": "7"}, NotExecuted, True, 7.0),
        (408, {}, Unsure, True, None),
        (409, {"retry-after": "1"}, Unsure, True, 1.0),
        (500, {}, Unsure, True, None),
        (
            503,
            {"date": "Sat, 08 Aug 2026 00:00:00 GMT", "retry-after": "Sat, 08 Aug 2026 00:00:30 GMT"},
            Unsure,
            True,
            30.0,
        ),
        (503, {"retry-after": "soon"}, Unsure, True, None),
        (302, {"location": "/elsewhere"}, Unsure, False, None),
    ],
)
async def test_an_answer_says_what_is_known_and_nothing_is_repeated(
    kind: str,
    status: int,
    headers: dict[str, str],
    said: type[ToolError],
    transient: bool | None,
    after_s: float | None,
) -> None:
    both = Both(kind, answers(status, headers=headers, text="why"))
    with pytest.raises(said) as refused:
        await both.send()
    assert (refused.value.transient, refused.value.retry_after_s) == (transient, after_s)
    assert f"POST /payments answered {status}: why" in refused.value.reason
    assert len(both.api.requests) == 1


@pytest.mark.parametrize(
    ("error", "said", "transient"),
    [
        (httpx.ConnectError("refused"), NotExecuted, True),
        (httpx.ConnectTimeout("slow"), NotExecuted, True),
        (httpx.PoolTimeout("full"), NotExecuted, True),
        (httpx.InvalidURL("no"), NotExecuted, None),
        (httpx.ReadTimeout("slow"), Unsure, True),
        (httpx.WriteError("cut"), Unsure, True),
        (httpx.RemoteProtocolError("cut"), Unsure, True),
        (TypeError("a defect"), Unsure, False),
    ],
)
async def test_without_an_answer_it_did_not_happen_only_where_nothing_was_sent(
    kind: str, error: Exception, said: type[ToolError], transient: bool | None
) -> None:
    def fails(_: httpx.Request) -> httpx.Response:
        raise error

    both = Both(kind, fails)
    with pytest.raises(said) as refused:
        await both.send()
    assert refused.value.transient is transient
    assert len(both.api.requests) == 1


@pytest.mark.parametrize(
    ("status", "looked", "sealed"),
    [
        (200, Executed, Executed),
        (201, Unsure, NotExecuted),
        (204, Unsure, NotExecuted),
        (404, NotExecuted, Unsure),
        (410, NotExecuted, Unsure),
        (409, Unsure, Unsure),
        (500, Unsure, Unsure),
    ],
)
async def test_a_probe_tells_only_what_the_answer_says(kind: str, status: int, looked: type, sealed: type) -> None:
    both = Both(kind, answers(status, json={"id": "p-1"}), **PLACES)
    for answer, said in ((await both.look(), looked), (await both.seal(), sealed)):
        assert isinstance(answer, said)
        assert not isinstance(answer, Executed) or answer.result == {"id": "p-1"}
    look, seal = both.api.requests
    assert (look.method, look.url.raw_path) == ("GET", b"/payments/by-key/op_1%3A1")
    assert (seal.method, seal.url.raw_path) == ("PUT", b"/payments/seals/op_1%3A1")


async def test_a_probe_that_gets_no_answer_knows_nothing(kind: str) -> None:
    def fails(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    both = Both(kind, fails, **PLACES)
    assert isinstance(await both.look(), Unsure)
    assert isinstance(await both.seal(), Unsure)


@pytest.mark.parametrize(
    ("places", "expected"),
    [(PLACES, (True, True)), ({"lookup": PLACES["lookup"]}, (True, False)), ({"seal": PLACES["seal"]}, (False, True))],
)
def test_a_tool_is_settled_by_what_the_api_can_be_asked(
    kind: str, places: dict[str, str], expected: tuple[bool, bool]
) -> None:
    ledger = Both(kind, answers(200), **places).ledger
    app = App("desk")

    @app.tool(effect="reconcilable", consequential=True)
    def refund(ctx: ToolContext, customer: str) -> Any:
        """Refund."""

    ledger.settles(refund)
    assert (refund.spec.can_reconcile, refund.spec.can_seal) == expected
    app.check()


def test_what_cannot_be_asked_settles_nothing(kind: str) -> None:
    app = App("desk")

    @app.tool(effect="reconcilable", consequential=True)
    def refund(ctx: ToolContext, customer: str) -> Any:
        """Refund."""

    with pytest.raises(ContractError, match="lookup= or seal="):
        Both(kind, answers(200)).ledger.settles(refund)
    with pytest.raises(ContractError, match=r"place of \{key\}"):
        Both(kind, answers(200), lookup="/payments")
