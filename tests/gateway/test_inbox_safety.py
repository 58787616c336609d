"""The web inbox: who gets in, what other sites can do, and that no page decides anything by being looked at."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from placet.messages import DecideApproval
from placet_gateway.inbox.sessions import IDLE_MS, LONGEST_MS, TICKET_MS, SealedSessions, Tickets
from tests.gateway.inbox_world import AT_MS, BASE, PAYMENT, Desk, Page, decide, look, path_of, person
from tests.gateway.world import TOKEN

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def pages_of(row: dict[str, Any]) -> list[str]:
    there = path_of(row)
    more = ("", "?open=all", "/standing", "/edit", "/respond")
    others = (
        "",
        "/queue",
        "/history",
        "/runs",
        "/runs/r1",
        "/runs/r1/now",
        "/policies",
        "/help",
        "/nowhere",
        "/sign-in",
    )
    return [
        "/",
        f"/inbox/batch?select={row['request_id']}",
        *(there + end for end in more),
        *(f"/inbox{end}" for end in others),
    ]


# ── headers ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("who", ["alice", None])
async def test_every_page_forbids_scripts_within_frames_around_and_being_kept(desk: Desk, who: str | None) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser(who) as browser:
        for path in pages_of(row):
            answer = await browser.get(path)
            assert answer.status_code in {200, 303, 404}, (path, answer.text)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "script-src 'self';" in policy
            assert "form-action 'self'" in policy
            assert "base-uri 'none'" in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-store"


async def test_no_page_holds_a_script_a_style_or_a_handler(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        for path in pages_of(row):
            page = Page(await browser.get(path))
            for tag, attributes in page.tags:
                assert tag not in {"style", "iframe", "object", "embed", "base"}, path
                assert tag != "script" or str(attributes.get("src")).startswith("/inbox/static/"), path
                assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, tag)


async def test_what_pages_are_made_of_is_ours_and_kept_under_its_digest_only(desk: Desk) -> None:
    async with desk.browser() as browser:
        page = Page(await browser.get("/inbox"))
        sources = [str(tag["src"]) for tag in page.all("script")] + [str(tag["href"]) for tag in page.all("link")]
        assert len(sources) == 4
        for source in sources:
            answer = await browser.get(source)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert (await browser.get(source.partition("?")[0])).headers["cache-control"] == "no-store"
        for name in ("nothing.js", "..%2fpages.py", "%2e%2e/pages.py"):
            assert (await browser.get(f"/inbox/static/{name}")).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7300"])
async def test_a_name_that_is_not_ours_gets_no_page(desk: Desk, host: str) -> None:
    async with desk.browser(None) as browser:
        answer = await browser.get("/inbox/sign-in", headers={"Host": host, "Origin": f"http://{host}"})
    assert answer.status_code == 421


# ── signing in ─────────────────────────────────────────────────────────────────────────


async def test_who_is_not_signed_in_sees_nothing_and_comes_back_after_signing_in(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser(None) as browser:
        for path in pages_of(row):
            answer = await browser.get(path)
            assert row["request_id"] not in answer.text or answer.status_code == 303
        asked = await browser.get(path_of(row))
        assert asked.status_code == 303
        page = Page(await browser.get(asked.headers["location"]))
        wrong = await browser.post("/inbox/sign-in", data=page.form(token="no-token-of-anybody"))
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = await browser.post("/inbox/sign-in", data=page.form(token=TOKEN, person="çağla"))
        assert (right.status_code, right.headers["location"]) == (303, path_of(row))
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        shown = Page(await browser.get(path_of(row)))
        assert "çağla" in shown.text


async def test_over_an_encrypted_connection_the_cookie_is_bound_to_this_host(desk: Desk) -> None:
    base = "https://localhost"
    async with desk.browser(None, base=base) as browser:
        answer = await browser.post("/inbox/sign-in", data={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-placet=")
    assert "Secure" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie


@pytest.mark.parametrize(
    "elsewhere",
    [
        "//evil.example",
        "https://evil.example/inbox",
        "/inbox//evil.example",
        "/inbox/../v1",
        "/\\evil",
        "javascript:1",
        "/v1/runs",
    ],
)
async def test_signing_in_leads_to_our_own_pages_only(desk: Desk, elsewhere: str) -> None:
    async with desk.browser(None) as browser:
        answer = await browser.post("/inbox/sign-in", data={"token": TOKEN, "to": elsewhere})
    assert answer.headers["location"] == "/inbox"


async def test_a_link_signs_in_once_soon_and_only_on_this_machine(desk: Desk) -> None:
    link = desk.inbox.way_in("reviewer", AT_MS)
    ticket = link.partition("ticket=")[2]
    async with desk.browser(None, client="192.0.2.7") as far:
        assert (await far.post("/inbox/sign-in", data={"ticket": ticket})).status_code == 401
    async with desk.browser(None) as browser:
        for _ in range(3):  # as scanners do
            assert "set-cookie" not in (await browser.get(link)).headers
        first = await browser.post("/inbox/sign-in", data={"ticket": ticket})
        assert "set-cookie" in first.headers
    async with desk.browser(None) as other:
        again = await other.post("/inbox/sign-in", data={"ticket": ticket})
        assert (again.status_code, "set-cookie" in again.headers) == (401, False)


def test_a_ticket_is_over_after_a_while() -> None:
    tickets = Tickets()
    assert tickets.take(tickets.give(person("a"), AT_MS), AT_MS + TICKET_MS) is None
    assert tickets.take(tickets.give(person("a"), AT_MS), AT_MS + TICKET_MS - 1) == person("a")


def test_a_session_ends_by_itself_by_signing_out_and_with_its_key() -> None:
    sessions = SealedSessions(TOKEN)
    cookie = sessions.sign_in(person("alice"), AT_MS)
    session = sessions.find(cookie, AT_MS)
    assert session is not None
    assert session.person == person("alice")
    assert SealedSessions(TOKEN).find(cookie, AT_MS) == session  # a restart, or another gateway
    assert SealedSessions("another").find(cookie, AT_MS) is None
    assert sessions.find(cookie, AT_MS + IDLE_MS) is None
    at_ms, kept = AT_MS, cookie
    while at_ms < AT_MS + LONGEST_MS - IDLE_MS // 2:
        at_ms += IDLE_MS // 2
        found = sessions.find(kept, at_ms)
        assert found is not None
        kept = sessions.renewed(found, at_ms) or kept
    assert sessions.find(kept, AT_MS + LONGEST_MS) is None
    sessions.sign_out(session)
    assert sessions.find(cookie, AT_MS) is None
    assert sessions.find(kept, at_ms) is None


@pytest.mark.parametrize("forged", ["", ".", "e30.e30", "a" * 10_000, "é.é"])
def test_a_made_up_cookie_is_nobodys(forged: str) -> None:
    sessions = SealedSessions(TOKEN)
    text, _, seal = sessions.sign_in(person("alice"), AT_MS).partition(".")
    for cookie in (forged, f"{text}x.{seal}", f"{text}.{seal[:-1]}", f"{text}.", seal):
        assert sessions.find(cookie, AT_MS) is None


async def test_signing_out_ends_the_session_for_whoever_has_its_cookie(desk: Desk) -> None:
    async with desk.browser() as browser:
        page = Page(await browser.get("/inbox"))
        stolen = dict(browser.cookies)
        await browser.post("/inbox/sign-out", data={"csrf": page.form()["csrf"]})
        browser.cookies.update(stolen)
        assert (await browser.get("/inbox")).status_code == 303


# ── deciding by anything but a form of one's own page ──────────────────────────────────


async def test_no_page_decides_by_being_fetched(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    paths = [
        *pages_of(row),
        path_of(row, "/decision"),
        path_of(row, "/decision?word=approve"),
        path_of(row, "/revocation"),
    ]
    for who in ("alice", None):
        async with desk.browser(who) as browser:
            for path in paths:
                for method in ("GET", "HEAD", "OPTIONS"):
                    await browser.request(method, path, headers={"Purpose": "prefetch"})
    assert desk.world.asked == []


Change = dict[str, Any]
REFUSED: list[tuple[str, Change, Change]] = [
    ("no token", {"csrf": ""}, {}),
    ("another token", {"csrf": "AAAA"}, {}),
    ("another origin", {}, {"Origin": "http://evil.example"}),
    ("another port", {}, {"Origin": "http://localhost:7301"}),
    ("an origin that is hidden", {}, {"Origin": "null"}),
    ("another site", {}, {"Origin": BASE, "Sec-Fetch-Site": "cross-site"}),
    ("a site beside", {}, {"Origin": BASE, "Sec-Fetch-Site": "same-site"}),
    ("text", {}, {"Content-Type": "text/plain"}),
    ("JSON", {}, {"Content-Type": "application/json"}),
]


@pytest.mark.parametrize(("fields", "headers"), [(f, h) for _, f, h in REFUSED], ids=[name for name, _, _ in REFUSED])
async def test_a_form_that_is_not_of_our_own_page_decides_nothing(desk: Desk, fields: Change, headers: Change) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        form = (await look(browser, row)).form(word="approve") | fields
        body = str(httpx.QueryParams(form)).encode()
        answer = await browser.post(path_of(row, "/decision"), content=body, headers=FORM | headers)
        assert answer.status_code in {403, 415}
        assert desk.world.asked == []
        del browser.headers["Origin"]
        bare = await browser.post(path_of(row, "/decision"), content=body, headers=FORM)
        assert bare.status_code == 403
    assert desk.world.asked == []


async def test_the_token_of_one_session_is_none_of_another(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser("bob") as theirs, desk.browser("alice") as browser:
        form = await look(theirs, row)
        answer = await decide(browser, row, form, "approve")
    assert answer.status_code == 403
    assert desk.world.asked == []


async def test_the_cookie_alone_opens_no_door_of_the_api(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        body = {"decision": "approve", "decision_id": "d", "request_hash": row["request_hash"]}
        answer = await browser.post(f"/v1/requests/{row['request_id']}/decisions", json=body)
        assert answer.status_code == 401
        assert (await browser.get("/v1/requests")).status_code == 401


async def test_the_same_form_without_any_change_does_decide(desk: Desk) -> None:
    """Else all the refusals above would prove nothing."""
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        answer = await decide(browser, row, await look(browser, row), "approve")
    assert answer.status_code == 303
    ((message, _),) = desk.world.asked
    assert isinstance(message, DecideApproval)
    assert message.reviewer == person("alice")


# ── tenants ────────────────────────────────────────────────────────────────────────────


async def test_another_tenants_request_is_nowhere(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT, tenant="other")
    own = desk.world.add_request(PAYMENT | {"toolCallId": "c9.9"})
    absent = {"request_id": "apr_00000000000000000000000000000000"}
    async with desk.browser() as browser:
        for more in ("", "/standing", "/edit", "/respond", "/parts/0"):
            foreign, none = await browser.get(path_of(row, more)), await browser.get(path_of(absent, more))
            assert (foreign.status_code, foreign.text) == (404, none.text)
        for path in ("/inbox", "/inbox/history", "/inbox/policies", f"/inbox?done={row['request_id']}"):
            assert row["request_id"] not in (await browser.get(path)).text
        page = await look(browser, own)
        for more in ("/decision", "/edit", "/respond", "/revocation"):
            answer = await browser.post(
                path_of(row, more), data=page.form(word="approve", step="send", value_text="{}")
            )
            assert answer.status_code == 404
    assert desk.world.asked == []
