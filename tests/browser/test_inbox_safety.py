"""What other sites, frames and links can do to the web inbox in a real browser: nothing."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from playwright.sync_api import Browser, expect

from tests.browser.conftest import Office, Window, go


def _elsewhere(office: Office) -> str:
    """The same server under another name, which is another site to a browser."""
    return office.url.replace("127.0.0.1", "localhost")


def test_a_page_of_another_site_can_neither_decide_nor_frame(office: Office, window: Window) -> None:
    request = office.ask("Settle a complaint: Refund c-70 5000")
    page = window()
    go(page, office, request)
    target = f"{office.url}/inbox/requests/{request.request_id}/decision"
    fields = page.locator("#decide input[type=hidden]").evaluate_all("all => all.map(i => [i.name, i.value])")
    # Even with everything that our own page holds, a form of another origin is refused.
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in [*fields, ["word", "approve"]])
    foreign = page.context.new_page()
    foreign.goto(f"{_elsewhere(office)}/livez")
    foreign.set_content(f'<form id="f" method="post" action="{target}">{inputs}</form>')
    with foreign.expect_response(target) as answered:
        foreign.evaluate("document.getElementById('f').submit()")
    assert answered.value.status in (303, 403)
    assert office.request(request.request_id).status == "open"
    framing = page.context.new_page()
    framing.goto(f"{_elsewhere(office)}/livez")
    framing.set_content(f'<iframe src="{office.url}/inbox/requests/{request.request_id}"></iframe>')
    framing.wait_for_timeout(300)
    inner = framing.frames[-1]
    assert inner.locator("#decide").count() == 0
    assert not inner.url.startswith(office.url) or "Approve" not in (inner.content() or "")


def test_the_link_of_the_terminal_signs_in_once_and_fetching_it_uses_nothing_up(
    office: Office, chromium: Browser
) -> None:
    scanner = chromium.new_context(java_script_enabled=False)
    link = scanner.new_page()
    for _ in range(3):
        link.goto(office.way_in)  # looked at ahead, as mail scanners and previews do
    scanner.close()
    first, second = chromium.new_context(), chromium.new_context()
    page = first.new_page()
    page.goto(office.way_in)
    page.wait_for_url(f"{office.url}/inbox")
    expect(page.locator(".me")).to_contain_text("reviewer")
    expect(page.locator(".banner")).to_contain_text("Development mode")
    cookies = first.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [(True, "Lax")]
    assert str(urlsplit(office.url).port) in cookies[0]["name"]
    again = second.new_page()
    again.goto(office.way_in)
    expect(again.locator(".alert")).to_contain_text("used already")
    assert re.search("/sign-in$", urlsplit(again.url).path)
    first.close()
    second.close()


def test_no_page_asks_for_anything_from_elsewhere_or_breaks_its_own_policy(office: Office, window: Window) -> None:
    request = office.ask("Free space on the log host")
    page = window()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url))
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    there = f"/inbox/requests/{request.request_id}"
    for path in (
        "/inbox",
        there,
        f"{there}/edit",
        "/inbox/history",
        f"/inbox/runs/{request.run_id}",
        "/inbox/policies",
    ):
        page.goto(office.url + path)
        page.wait_for_timeout(100)
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(office.url).netloc}
    assert said == []
