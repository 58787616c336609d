"""What people do in the web inbox, in a real Chromium."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, Route, expect

from placet.views import RequestView
from tests.browser.conftest import MS, Office, Window, go, settle
from tests.browser.office import BIDI, HUGE, LONG

SECOND = 1_000.0


def approve(page: Page) -> None:
    """As a person does it by keyboard."""
    page.keyboard.press("a")
    page.keyboard.press("Enter")


# ── two at once ────────────────────────────────────────────────────────────────────────


def test_of_two_reviewers_one_wins_and_the_others_card_says_so_within_a_second(office: Office, window: Window) -> None:
    request = office.ask("Settle a complaint: Refund c-1 5000")
    alice, bob = window("alice"), window("bob")
    go(alice, office, request)
    go(bob, office, request)
    bob.fill("#reason", "I would rather not")
    approve(alice)
    alice.wait_for_url(re.compile("done="))
    began = time.monotonic()
    expect(bob.locator("#standing[data-closed]")).to_contain_text("Approved by alice", timeout=SECOND)
    assert time.monotonic() - began < 1.0
    expect(bob.get_by_role("button", name="Reject")).to_be_disabled()
    expect(bob.locator("#reason")).to_have_value("I would rather not")
    assert office.request(request.request_id).decided_by == "alice"


def test_a_lost_race_is_told_with_the_winner_and_keeps_what_was_written(office: Office, window: Window) -> None:
    request = office.ask("Settle a complaint: Refund c-2 5000")
    bob = window("bob", java_script_enabled=False)  # nothing tells this page that it is out of date
    bob.goto(f"{office.url}/inbox/requests/{request.request_id}")
    bob.fill("#reason", "This customer was paid already")
    client = office.client("alice")
    client.decide(
        request.request_id, decision="approve", request_hash=request.request_hash, decision_id="dec-alice-first"
    )
    bob.get_by_role("button", name="Reject").click()
    expect(bob.locator("#error")).to_contain_text("already approved by alice", ignore_case=True)
    expect(bob.locator("#kept")).to_have_value(re.compile("This customer was paid already"))
    expect(bob.locator("#standing")).to_contain_text("Approved by alice")
    assert office.request(request.request_id).status == "approved"


def test_what_is_asked_while_the_queue_is_open_appears_in_it_within_a_second(office: Office, window: Window) -> None:
    page = window()
    before = len(office.open_ids())
    expect(page.locator("#badge")).to_have_text(str(before))
    request = office.ask("Settle a complaint: Refund c-3 5000")
    began = time.monotonic()
    expect(page.locator(f"#q-{request.request_id}")).to_be_visible(timeout=SECOND)
    assert time.monotonic() - began < 1.0
    expect(page.locator("#badge")).to_have_text(str(before + 1))
    expect(page).to_have_title(re.compile(rf"^\({before + 1}\) "))


def test_after_a_broken_connection_the_list_is_the_apis_again_without_a_reload(office: Office, window: Window) -> None:
    first = office.ask("Settle a complaint: Refund c-4 5000")
    page = window()
    expect(page.locator(f"#q-{first.request_id}")).to_be_visible()
    page.context.set_offline(True)
    second = office.ask("Settle a complaint: Refund c-5 5000")
    office.client("bob").decide(
        first.request_id, decision="reject", request_hash=first.request_hash, decision_id="dec-bob-meanwhile"
    )
    page.context.set_offline(False)
    expect(page.locator(f"#q-{second.request_id}")).to_be_visible(timeout=10 * MS)
    expect(page.locator(f"#q-{first.request_id}")).to_have_count(0)
    shown = [str(row.get_attribute("id")).removeprefix("q-") for row in page.locator(".headline").all()]
    assert sorted(shown) == sorted(office.open_ids())


def test_a_page_turns_expired_by_itself_and_a_late_decision_is_told_so(office: Office, window: Window) -> None:
    page, late = window("alice"), window("bob", java_script_enabled=False)
    request = office.ask("See who is in: Knock")
    page.goto(f"{office.url}/inbox/requests/{request.request_id}")
    late.goto(f"{office.url}/inbox/requests/{request.request_id}")
    expect(page.locator("#standing[data-closed]")).to_contain_text("expired", timeout=8 * MS)
    expect(page.get_by_role("button", name="Approve")).to_be_disabled()
    late.get_by_role("button", name="Approve").click()
    expect(late.locator("#error")).to_contain_text("time is over")
    assert office.request(request.request_id).outcome == "expired"


# ── the keyboard ───────────────────────────────────────────────────────────────────────


def test_twenty_requests_are_decided_by_keyboard_alone(office: Office, window: Window) -> None:
    asked = [office.ask(f"Settle a complaint: Refund c-{n} {5_000 + n}") for n in range(20)]
    page = window()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    for n in range(20):
        page.wait_for_url(re.compile(r"/inbox/requests/apr_"))
        at = page.url
        settle(page)
        if n % 4 == 3:
            page.keyboard.press("r")
            page.keyboard.type("not this one")
            page.keyboard.press("Control+Enter")
        else:
            approve(page)
        page.wait_for_url(lambda url, at=at: url != at)  # type: ignore[misc]
    page.wait_for_url(re.compile(r"/inbox\?done="))
    outcomes = [office.request(request.request_id) for request in asked]
    assert all(request.decided_by == "alice" for request in outcomes)
    assert sum(request.status == "rejected" for request in outcomes) == 5
    rejected = next(request for request in outcomes if request.status == "rejected")
    assert rejected.decision is not None
    assert rejected.decision.reason == "not this one"


def test_keys_typed_for_something_else_decide_nothing_when_a_page_appears(office: Office, window: Window) -> None:
    request = office.ask("Settle a complaint: Refund c-6 5000")
    page = window()
    page.goto(f"{office.url}/inbox/requests/{request.request_id}")
    for key in ("a", "y", "Enter", "Space", "a", "Enter"):
        page.keyboard.press(key)
    settle(page)
    assert page.url.endswith(request.request_id)
    assert page.locator("*:focus").count() == 0 or page.locator("*:focus").get_attribute("value") != "approve"
    assert office.request(request.request_id).status == "open"


def test_one_key_alone_never_decides(office: Office, window: Window) -> None:
    request = office.ask("Settle a complaint: Refund c-7 5000")
    page = window()
    go(page, office, request)
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Approve")).to_be_focused()
    expect(page.locator("#hint")).to_have_text("Enter decides.")
    assert office.request(request.request_id).status == "open"


def test_three_are_selected_seen_in_full_and_decided_together(office: Office, window: Window) -> None:
    asked = [office.ask(f"Settle a complaint: Refund c-8{n} {5_000 + n}") for n in range(3)]
    other = office.ask("Settle a complaint: Refund c-90 5900")
    page = window()
    for _ in asked:
        page.keyboard.press("j")
        page.keyboard.press("x")
    page.keyboard.press("b")
    expect(page.get_by_role("heading", level=1)).to_have_text("These 3")
    for request in asked:
        expect(page.get_by_text(request.request_hash)).to_be_visible()
    settle(page)
    approve(page)
    expect(page.locator(".told li")).to_have_count(3)
    assert {office.request(request.request_id).status for request in asked} == {"approved"}
    assert office.request(other.request_id).status == "open"


def test_a_selection_outlives_the_list_that_comes_anew(office: Office, window: Window) -> None:
    first = office.ask("Settle a complaint: Refund c-91 5900")
    page = window()
    box = page.locator(f"input[value={first.request_id}]")
    held: list[Route] = []
    # The new list is on its way while somebody selects.
    page.route("**/inbox/queue?*", lambda route: held.append(route))
    second = office.ask("Settle a complaint: Refund c-92 5900")
    until = time.monotonic() + 5
    while not held and time.monotonic() < until:
        page.wait_for_timeout(20)
    box.check()
    for route in held:
        route.continue_()
    page.unroute("**/inbox/queue?*")
    expect(page.locator(f"#q-{second.request_id}")).to_be_visible()
    expect(box).to_be_checked()
    expect(page.get_by_role("button", name="Decide the selected ones (1)")).to_be_enabled()


# ── what is seen ───────────────────────────────────────────────────────────────────────


def test_nothing_that_an_agent_writes_is_taken_for_a_page(office: Office, window: Window) -> None:
    request = office.ask("<img src=x onerror=document.title='X1'>: Note it down")
    page = window()
    client = office.client("bob")
    pages = ["", f"/requests/{request.request_id}", f"/requests/{request.request_id}?open=all", "/history", "/runs"]
    pages += [f"/runs/{request.run_id}", f"/runs/{request.run_id}?all=1", f"/requests/{request.request_id}/edit"]
    pages += [f"/history?q={'<script>document.title=1</script>'}", "/<b onmouseover=document.title='X5'>", "/policies"]

    def look() -> None:
        for path in pages:
            page.goto(f"{office.url}/inbox{path}")
            page.wait_for_timeout(50)
            assert re.search(r"· Placet$", page.title()), (path, page.title())
            assert page.locator("main img, main script, main svg[onload], main b[onmouseover]").count() == 0

    look()
    reason = "<b onmouseover=document.title='X5'>hi</b>"
    client.decide(
        request.request_id, decision="reject", request_hash=request.request_hash, decision_id="dec-nasty", reason=reason
    )
    look()
    page.goto(f"{office.url}/inbox/requests/{request.request_id}")
    expect(page.get_by_text(reason).first).to_be_visible()


def test_what_cannot_be_seen_is_shown_and_warned_of(office: Office, window: Window) -> None:
    request = office.ask("Look around: Look at the page")
    page = window()
    row = page.locator("[data-row]", has=page.locator(f"#q-{request.request_id}"))
    expect(row).to_contain_text("not as it looks")
    assert "\u202e" not in (page.locator("#queue").text_content() or "")
    go(page, office, request)
    shown = page.locator("main").inner_text()
    for code_point in ("U+202E", "U+2066", "U+2069", "U+200B", "U+2028"):
        assert code_point in shown
    assert not set("\u202e\u2066\u2069\u200b\u2028") & set(shown)
    assert BIDI["url"] in request.content_text  # the hash still covers the original


def test_a_word_of_letters_that_look_alike_is_marked(office: Office, window: Window) -> None:
    request = office.ask("Pay the right customer: Pay the look-alike")
    page = window()
    go(page, office, request)
    expect(page.locator(".part mark.m-mixed")).to_have_text("p\u0430ypal")
    # It is not approved like any other: its tool has to be named.
    page.keyboard.press("a")
    expect(page.locator("#confirm")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#error")).to_contain_text("Type refund")
    assert office.request(request.request_id).status == "open"
    settle(page)
    page.fill("#confirm", "refund")
    page.locator("#confirm").press("Enter")
    page.wait_for_url(re.compile("done="))
    assert office.request(request.request_id).status == "approved"


@pytest.mark.parametrize(("title", "text"), [("Tidy the host", LONG), ("Note all of it", HUGE)])
def test_what_is_long_is_seen_to_its_end_before_it_can_be_approved(
    office: Office, window: Window, title: str, text: str
) -> None:
    request = office.ask("Free space on the log host" if title == "Tidy the host" else f"Keep it: {title}")
    page = window()
    row = page.locator("[data-row]", has=page.locator(f"#q-{request.request_id}"))
    expect(row).to_contain_text(f"{len(text):,} characters")
    go(page, office, request)
    button = page.get_by_role("button", name=re.compile("^Approve"))
    expect(button).to_be_disabled()
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    assert office.request(request.request_id).status == "open"
    page.keyboard.press("o")
    expect(page.locator(".value").filter(has_text=text[-30:]).first).to_be_visible()
    expect(page.locator("[data-copy]").first).to_have_attribute("data-copy", text)
    expect(button).to_be_enabled()
    settle(page)
    approve(page)
    page.wait_for_url(re.compile("done="))
    assert office.request(request.request_id).status == "approved"


def test_what_is_blank_cannot_be_approved(office: Office, window: Window) -> None:
    request = office.ask("A blank one: Say nothing")
    page = window()
    go(page, office, request)
    expect(page.get_by_role("alert")).to_contain_text("What would be done is blank.")
    expect(page.get_by_role("button", name=re.compile("^Approve"))).to_be_disabled()
    expect(page.get_by_role("button", name=re.compile("^Reject"))).to_be_enabled()


# ── more than yes and no ───────────────────────────────────────────────────────────────


def test_an_edit_says_what_does_not_fit_then_what_differs_and_somebody_else_approves_it(
    office: Office, window: Window
) -> None:
    request = office.ask("Settle a complaint: Refund c-9 40000")
    page = window("alice")
    go(page, office, request)
    page.keyboard.press("e")
    page.get_by_label("cents").fill("900000")
    page.get_by_role("button", name="See what differs").click()
    wrong = page.locator(".field.wrong")
    expect(wrong).to_have_count(1)
    expect(wrong.locator("label")).to_contain_text("cents")
    expect(wrong.locator(".fault")).to_contain_text("500000")
    page.get_by_label("cents").fill("4000")
    page.get_by_role("button", name="See what differs").click()
    expect(page.locator(".change .where")).to_have_text("/cents")
    page.get_by_role("button", name="Ask with these changes").click()
    page.wait_for_url(re.compile(r"/inbox/requests/apr_"))
    now = office.request(request.request_id)
    assert (now.status, now.decided_by) == ("superseded", "alice")
    expect(page.get_by_role("heading", name="Since the one before")).to_be_visible()
    expect(page.get_by_text("you edited what is asked")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Approve"))).to_be_disabled()


def test_a_question_is_answered_by_its_form(office: Office, window: Window) -> None:
    request = office.ask("Send the replacement: Ask")
    page = window()
    go(page, office, request)
    page.get_by_label("city").select_option("Chur")
    page.get_by_label("street").fill("xy")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator("#error")).to_be_visible()
    expect(page.get_by_label("street")).to_have_value("xy")
    page.get_by_label("street").fill("Bahnhofstrasse 1")
    settle(page)
    page.get_by_role("button", name="Answer").click()
    page.wait_for_url(re.compile("done="))
    now = office.request(request.request_id)
    assert now.decision is not None
    assert now.decision.value_text == '{"city":"Chur","street":"Bahnhofstrasse 1"}'


# ── other devices ──────────────────────────────────────────────────────────────────────


def test_everything_can_be_read_and_decided_without_scripts(office: Office, window: Window) -> None:
    request = office.ask("Free space on the log host")
    page = window(java_script_enabled=False)
    page.locator(f"#q-{request.request_id}").click()
    expect(page.get_by_role("button", name=re.compile("^Approve"))).to_be_disabled()
    page.get_by_role("link", name="Look at all of it").click()
    assert LONG in (page.locator(".part").text_content() or "")
    page.fill("#reason", "checked by hand")
    page.get_by_role("button", name=re.compile("^Approve")).click()
    page.wait_for_url(re.compile("done="))
    now = office.request(request.request_id)
    assert (now.status, now.decision.reason if now.decision else "") == ("approved", "checked by hand")


def _pages(request: RequestView) -> list[str]:
    there = f"/inbox/requests/{request.request_id}"
    pages = ["/inbox", there, f"{there}?open=all", f"{there}/edit", f"{there}/respond", "/inbox/history"]
    pages += [f"/inbox/batch?select={request.request_id}", "/inbox/runs", f"/inbox/runs/{request.run_id}"]
    return [*pages, f"/inbox/runs/{request.run_id}?all=1", "/inbox/policies", "/inbox/help", "/inbox/nowhere"]


def test_on_a_phone_nothing_is_wider_than_the_screen_and_a_decision_is_possible(office: Office, window: Window) -> None:
    request = office.ask("Free space on the log host")
    page = window(viewport={"width": 360, "height": 720}, is_mobile=True, has_touch=True)
    for path in _pages(request):
        page.goto(office.url + path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, (path, width)
    page.goto(f"{office.url}/inbox/requests/{request.request_id}")
    page.get_by_role("link", name="Show all of it").tap()
    expect(page.locator("[data-folded]")).to_have_count(0)
    settle(page)
    button = page.get_by_role("button", name=re.compile("^Reject"))
    box = button.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    button.tap()
    page.wait_for_url(re.compile("done="))
    assert office.request(request.request_id).status == "rejected"
