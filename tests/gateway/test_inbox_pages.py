"""The web inbox: what a reviewer is shown, what a decision needs, and what is said when it does not count."""

from __future__ import annotations

from typing import Any

import pytest

from placet.machine import Receipt
from placet_gateway.inbox import showing
from placet_gateway.inbox.showing import RENDERER, shown
from tests.gateway.inbox_world import LONG, PAYMENT, SHELL, Desk, Page, decide, decided, look, path_of
from tests.gateway.world import BIDI, NOW_MS, World

NASTY = {
    "text": "</script><script>document.title='X2'</script>",
    "md": "![a](x\" onerror=\"document.title='X3')",
    "svg": "<svg onload=document.title='X4'>",
}


# ── what is shown ──────────────────────────────────────────────────────────────────────


async def test_a_request_shows_its_call_its_hash_its_rule_and_what_follows(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT, rule="large_refunds", reason="more than 20.00", expires_at_ms=NOW_MS + 60_000)
    async with desk.browser() as browser:
        page = await look(browser, row)
    for told in (
        'clerk wants to run refund(cents=4000, currency="EUR", customer="c-1")', "customer", "c-1", "4000", "EUR",
        row["request_hash"], "computed again from these bytes, and the same", "large_refunds", "more than 20.00",
        "cut v1.2.0", "Not developer, who started the run", "The call is made once, with exactly these arguments.",
        "the agent is told", "1st refund today by clerk", "59 s left",
    ):  # fmt: skip
        assert told.lower() in page.text.lower(), told
    assert "disabled" not in page.button("approve")


async def test_what_an_agent_writes_is_text_on_every_page(desk: Desk) -> None:
    content = PAYMENT | {"toolName": "note", "rawInput": NASTY, "input": NASTY}
    desk.world.add_run("r2", goal="<img src=x onerror=document.title='X1'>")
    row = desk.world.add_request(content, run_id="r2", reason="<b onmouseover=document.title='X5'>hi</b>")
    paths = ["/inbox", path_of(row), path_of(row, "/edit"), "/inbox/history", "/inbox/runs", "/inbox/runs/r2?all=1"]
    paths += [
        "/inbox/history?q=<script>x</script>",
        f"/inbox/batch?select={row['request_id']}",
        "/inbox/<svg onload=x>",
    ]
    async with desk.browser() as browser:
        for path in paths:
            answer = await browser.get(path)
            page = Page(answer)
            assert "<script>document" not in answer.text, path
            assert not page.all("img"), path
            assert all(set(attributes) <= {"title", "class"} for attributes in page.all("b")), path
            assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")], path
        assert NASTY["text"] in (await look(browser, row)).text


async def test_hidden_characters_are_told_and_none_of_them_is_sent(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT | {"rawInput": BIDI, "input": BIDI})
    async with desk.browser() as browser:
        for path in ("/inbox", path_of(row), "/inbox/history"):
            text = Page(await browser.get(path)).text
            assert not set("\u202e\u2066\u2069\u200b\u2028") & set(text), path
        page = await look(browser, row)
    assert "5 things in it cannot be seen" in page.text
    for told in ("U+202E", "RIGHT-TO-LEFT OVERRIDE", "U+2066", "U+2069", "U+200B", "U+2028", "/input/url"):
        assert told in page.text


async def test_a_list_shortens_with_a_count_and_has_no_button_that_decides(desk: Desk) -> None:
    desk.world.add_request(SHELL)
    async with desk.browser() as browser:
        page = Page(await browser.get("/inbox"))
    assert f"({len(LONG):,} characters)" in page.text
    assert not [tag for tag in page.all("button") if tag.get("name") == "word"]


async def test_a_shells_command_is_the_headline_and_the_shell_is_small_print(desk: Desk) -> None:
    wrapped = {"argv": ["/bin/bash", "-lc", "make deploy ENV=prod"]}
    row = desk.world.add_request(PAYMENT | {"toolName": "exec", "rawInput": wrapped, "input": wrapped})
    async with desk.browser() as browser:
        queue = Page(await browser.get("/inbox"))
        page = await look(browser, row)
    assert "make deploy ENV=prod — run by bash" in queue.text
    assert '"/bin/bash"' in page.text


async def test_content_that_is_not_its_hash_is_not_believed_and_cannot_be_decided(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        honest = await look(browser, row)
        row["content_text"] = row["content_text"].replace("4000", "9000")
        page = await look(browser, row)
        assert "Do not believe this page" in page.text
        assert not page.all("form", id="decide")
        answer = await decide(browser, row, honest, "approve")
    assert answer.status_code == 409
    assert decided(desk) == []


@pytest.mark.parametrize("command", ["", "   ", "\n\t", ["", " "], None])
async def test_what_is_blank_cannot_be_approved(desk: Desk, command: Any) -> None:
    blank = {"command": command}
    row = desk.world.add_request(PAYMENT | {"toolName": "shell", "rawInput": blank, "input": blank})
    async with desk.browser() as browser:
        page = await look(browser, row)
        assert "disabled" in page.button("approve")
        assert "What would be done is blank" in page.text
        answer = await decide(browser, row, page, "approve", confirm="shell")
        assert answer.status_code == 403
        assert decided(desk) == []
        assert (await decide(browser, row, page, "reject")).status_code == 303
    assert [message.decision for message in decided(desk)] == ["reject"]


# ── opening what is folded ─────────────────────────────────────────────────────────────


async def test_a_long_part_has_to_be_opened_whatever_the_button_says(desk: Desk) -> None:
    row = desk.world.add_request(SHELL)
    async with desk.browser() as browser:
        page = await look(browser, row)
        assert [attributes for _, attributes in page.tags if "data-folded" in attributes]
        assert "rm -rf /srv/example-data" in page.text  # its end is always shown
        assert "disabled" in page.button("approve")
        answer = await decide(browser, row, page, "approve", reason="looks fine")
        assert answer.status_code == 422
        assert "open command first" in Page(answer).text
        assert "looks fine" in answer.text
        assert decided(desk) == []
        opened = Page(await browser.get(path_of(row, "/parts/0"), headers={"HX-Request": "true"}))
        assert LONG in opened.text
        form = page.form(word="approve") | {"opened": opened.form()["opened"]}
        assert (await browser.post(path_of(row, "/decision"), data=form)).status_code == 303
    assert len(decided(desk)) == 1


async def test_that_a_part_was_opened_is_proved_by_this_session_for_this_content_only(desk: Desk) -> None:
    row = desk.world.add_request(SHELL)
    other = SHELL | {"toolCallId": "c2.2", "rawInput": {"command": LONG + "!"}, "input": {"command": LONG + "!"}}
    second = desk.world.add_request(other)
    async with desk.browser("bob") as bob, desk.browser("alice") as alice:
        of_bob = Page(await bob.get(path_of(row, "/parts/0"))).form()["opened"]
        of_another = Page(await alice.get(path_of(second, "/parts/0"))).form()["opened"]
        page = await look(alice, row)
        for token in (of_bob, of_another, "", "AAAA"):
            form = page.form(word="approve") | {"opened": token}
            assert (await alice.post(path_of(row, "/decision"), data=form)).status_code == 422
    assert decided(desk) == []


async def test_without_scripts_everything_is_opened_by_a_link(desk: Desk) -> None:
    row = desk.world.add_request(SHELL)
    async with desk.browser() as browser:
        page = await look(browser, row, "?open=all")
        assert LONG in page.text
        assert "disabled" not in page.button("approve")
        assert (await decide(browser, row, page, "approve")).status_code == 303


async def test_the_vote_says_what_was_shown_by_which_renderer(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        await decide(browser, row, await look(browser, row), "approve")
    (message,) = decided(desk)
    assert message.shown_digest == shown(row).digest
    assert str(message.shown_digest).startswith(f"{RENDERER}:")


@pytest.mark.parametrize("field", ["shown_digest", "request_hash"])
async def test_a_page_of_another_renderer_or_content_has_to_be_loaded_anew(desk: Desk, field: str) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        page = await look(browser, row)
        answer = await decide(browser, row, page, "approve", **{field: "placet-web-0:1234"})
    assert answer.status_code == 412
    assert "loaded anew" in Page(answer).text
    assert decided(desk) == []


async def test_what_deserves_a_closer_look_is_approved_by_naming_its_tool(desk: Desk) -> None:
    alike = {"customer": "p\u0430ypal"}
    row = desk.world.add_request(PAYMENT | {"rawInput": alike, "input": alike})
    async with desk.browser() as browser:
        page = await look(browser, row)
        for typed in ("", "yes", "Refund"):
            assert (await decide(browser, row, page, "approve", confirm=typed)).status_code == 422
        assert decided(desk) == []
        assert (await decide(browser, row, page, "approve", confirm=" refund ")).status_code == 303


# ── who may, and what is said ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("who", "beside", "told"),
    [
        ("developer", {}, "you started the run"),
        ("alice", {"reviewers": "bob\ncarol"}, "it is for somebody else to decide"),
        ("alice", {"requesters": "alice"}, "you edited what is asked"),
    ],
)
async def test_who_may_not_approve_is_told_why_and_gets_no_button(
    desk: Desk, who: str, beside: dict[str, Any], told: str
) -> None:
    row = desk.world.add_request(PAYMENT, **beside)
    async with desk.browser(who) as browser:
        page = await look(browser, row)
        assert told in page.text
        assert not [tag for tag in page.all("button", value="approve") if "disabled" not in tag]
        assert "Nothing that waits matches" in Page(await browser.get("/inbox?mine=1")).text
    async with desk.browser("bob") as browser:
        assert "disabled" not in (await look(browser, row)).button("approve")


async def test_a_lost_race_names_the_winner_and_loses_no_text(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser("alice") as alice, desk.browser("bob") as bob:
        page = await look(bob, row)
        assert (await decide(alice, row, await look(alice, row), "approve")).status_code == 303
        answer = await decide(bob, row, page, "reject", reason="paid <already>\nlast week")
    told = Page(answer)
    assert answer.status_code == 409
    assert "already approved by alice" in told.text.lower()
    assert "paid &lt;already&gt;\nlast week" in answer.text
    assert "Approved by alice" in told.text


async def test_an_outcome_that_is_not_known_is_said_to_be_and_asked_again_as_the_same_decision(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    desk.world.silent = True
    async with desk.browser() as browser:
        first = Page(await decide(browser, row, await look(browser, row), "reject", reason="why not"))
        assert first.status == 503
        assert "not known whether this was recorded" in first.text
        desk.world.silent = False
        again = await decide(browser, row, first, "reject", reason="why not")
    assert again.status_code == 303
    one, two = decided(desk)
    assert one == two


async def test_after_a_final_refusal_the_next_decision_has_another_id(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    desk.world.scripted = [Receipt(answer="not_allowed", run_id="r1"), Receipt(answer="busy", final=False, run_id="r1")]
    async with desk.browser() as browser:
        page = await look(browser, row)
        refused = Page(await decide(browser, row, page, "approve"))
        assert (refused.status, refused.form()["decision_id"] != page.form()["decision_id"]) == (403, True)
        busy = Page(await decide(browser, row, refused, "approve"))
        assert (busy.status, busy.form()["decision_id"]) == (409, refused.form()["decision_id"])


async def test_a_decision_leads_to_what_waits_next_within_the_same_filter(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}, requested_at_ms=NOW_MS + n) for n in range(2)]
    desk.world.add_request(SHELL | {"toolCallId": "c9.1"}, requested_at_ms=NOW_MS + 1)
    async with desk.browser() as browser:
        page = await look(browser, rows[0], "?tool=refund")
        first = await decide(browser, rows[0], page, "approve")
        assert first.headers["location"] == f"{path_of(rows[1])}?tool=refund&done={rows[0]['request_id']}"
        following = Page(await browser.get(first.headers["location"]))
        assert "Approved by alice:" in following.text
        last = await decide(browser, rows[1], following, "reject")
        assert last.headers["location"] == f"/inbox?tool=refund&done={rows[1]['request_id']}"


def test_the_digest_of_what_is_shown_covers_every_part_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = world.add_request(PAYMENT)
    whole = shown(row)
    assert shown(row).digest == whole.digest
    whole_fields = showing._fields

    def without_the_last(given: dict[str, Any], where: str) -> list[Any]:
        return list(whole_fields(given, where))[:-1]

    monkeypatch.setattr(showing, "_fields", without_the_last)
    assert shown(row).digest != whole.digest
