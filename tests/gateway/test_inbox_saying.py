"""The web inbox: edits, answers, wishes for changes; and how an open page hears of what others do."""

from __future__ import annotations

import asyncio

import pytest

from placet_gateway.inbox import feeds
from placet_gateway.inbox.showing import shown
from tests.gateway.inbox_world import AT_MS, PAYMENT, SHELL, Desk, Page, decide, decided, look, path_of, person
from tests.gateway.world import World

# ── more than yes and no ───────────────────────────────────────────────────────────────


async def test_an_edit_is_checked_then_shown_as_a_difference_then_asked(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        page = await look(browser, row, "/edit")
        fields = {
            str(tag["name"]): str(tag["value"])
            for tag in page.all("input")
            if str(tag.get("name")).startswith("value.")
        }
        assert sorted(fields.values()) == ["4000", "c-1"]
        cents = next(name for name, value in fields.items() if value == "4000")
        sent = page.form(step="check", reason="less will do") | fields
        wrong = Page(await browser.post(path_of(row, "/edit"), data=sent | {cents: "much"}))
        assert (wrong.status, [tag["value"] for tag in wrong.all("input", name=cents)]) == (422, ["much"])
        assert "This cannot be read" in wrong.text or "Invalid" in wrong.text or wrong.all("p", id=f"{cents}-fault")
        same = Page(await browser.post(path_of(row, "/edit"), data=sent))
        assert "nothing is changed" in same.text.lower()
        check = Page(await browser.post(path_of(row, "/edit"), data=sent | {cents: "3000"}))
        assert (check.status, "1 change" in check.text, "/cents" in check.text) == (200, True, True)
        assert decided(desk) == []
        done = await browser.post(path_of(row, "/edit"), data=check.form(step="send"))
    assert done.status_code == 303
    (message,) = decided(desk)
    assert (message.decision, message.value_text) == ("edit", '{"cents":3000,"customer":"c-1"}')
    assert (message.reason, message.shown_digest) == ("less will do", shown(row).digest)


async def test_an_answer_instead_of_a_call_is_the_persons_own_text(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        page = await look(browser, row, "/respond")
        none = await browser.post(path_of(row, "/respond"), data=page.form(step="send", value=""))
        assert none.status_code == 422
        await browser.post(path_of(row, "/respond"), data=page.form(step="send", value="Paid on Monday.\r\nSee 4712."))
    (message,) = decided(desk)
    assert (message.decision, message.value_text) == ("respond", '"Paid on Monday.\\nSee 4712."')


async def test_changes_are_asked_for_in_words(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        page = await look(browser, row)
        assert (await decide(browser, row, page, "request_changes", reason=" ")).status_code == 422
        assert (await decide(browser, row, page, "request_changes", reason="In two parts")).status_code == 303
        assert (await decide(browser, row, page, "executed")).status_code == 422
    assert [(message.decision, message.reason) for message in decided(desk)] == [("request_changes", "In two parts")]


# ── live ───────────────────────────────────────────────────────────────────────────────


async def test_an_open_page_hears_that_something_changed_and_nothing_else(desk: Desk) -> None:
    async with desk.browser() as browser:
        listening = asyncio.create_task(browser.get("/inbox/events"))
        await desk.world.listening.wait()
        for _ in range(3):
            desk.world.hint()
        async with asyncio.timeout(5):
            while desk.world.watchers:
                await asyncio.sleep(feeds.MOMENT_S)
                desk.app.state.gateway.streams.close()
        answer = await listening
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [line for line in answer.text.splitlines() if line and not line.startswith((":", "retry"))]
        assert set(told) == {"event: changed", "data: {}"}
        assert len(told) == 4  # the first at once, and one for three hints within a moment
        foreign = await browser.get("/inbox/events?run=of-nobody")
        assert foreign.status_code == 204
    async with desk.browser(None) as stranger:
        answer = await stranger.get("/inbox/events", headers={"Accept": "text/event-stream"})
        assert (answer.status_code, answer.text) == (401, "")


async def test_a_stream_ends_when_its_person_signs_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "BEAT_S", 0.02)
    async with desk.browser() as browser:
        listening = asyncio.create_task(browser.get("/inbox/events"))
        await desk.world.listening.wait()
        page = Page(await browser.get("/inbox"))
        await browser.post("/inbox/sign-out", data={"csrf": page.form()["csrf"]})
        async with asyncio.timeout(5):
            await listening
    assert desk.world.watchers == 0


async def test_a_page_from_before_a_restart_decides_with_its_first_click(world: World) -> None:
    world.add_run()
    row = world.add_request(SHELL)
    before, after = Desk(world), Desk(world)  # another process, which has nothing of the first but the key
    async with before.browser() as browser:
        page = await look(browser, row, "?open=all")
    async with after.browser(None) as browser:
        browser.cookies.set("placet-7300", before.inbox.sessions.sign_in(person("alice"), AT_MS))
        stale = await decide(browser, row, page, "approve")
        assert stale.status_code == 403  # of another session, though of the same person
    async with before.browser() as first:
        page = await look(first, row, "?open=all")
        async with after.browser(None) as browser:
            browser.cookies.update(first.cookies)
            assert (await decide(browser, row, page, "approve")).status_code == 303
    assert len(decided(after)) == 1


# ── what cannot be a decision ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "changed",
    [{"reason": "a\x00b"}, {"reason": "x" * 40_000}, {"decision_id": "d" * 300}, {"decision_id": " "}, {"word": "no"}],
)
async def test_what_no_decision_can_hold_is_told_beside_what_was_written(desk: Desk, changed: dict[str, str]) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        page = await look(browser, row)
        answer = await decide(browser, row, page, **{"word": "reject", "reason": "because", **changed})
        assert answer.status_code == 422
        assert Page(answer).all("p", id="error")
        assert "reason" in changed or "because" in answer.text
        query = f"/inbox/batch?select={row['request_id']}"
        form = Page(await browser.get(query)).form(word="reject") | {"reason": changed.get("reason", "x\x00")}
        assert (await browser.post("/inbox/batch", data=form)).status_code == 422
    assert decided(desk) == []


async def test_an_answer_that_is_too_long_is_told_and_kept(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser() as browser:
        page = await look(browser, row, "/respond")
        answer = await browser.post(path_of(row, "/respond"), data=page.form(step="send", value="y" * 100_000))
        assert answer.status_code == 422
        assert "more than 98304 bytes" in Page(answer).text
        assert "y" * 100_000 in answer.text
        much = await browser.post(path_of(row, "/respond"), data=page.form(step="send", value="y" * 1_100_000))
        assert much.status_code == 413
    assert decided(desk) == []


async def test_an_edit_that_comes_too_late_is_not_lost(desk: Desk) -> None:
    row = desk.world.add_request(PAYMENT)
    async with desk.browser("alice") as alice, desk.browser("bob") as bob:
        page = await look(bob, row, "/edit")
        await decide(alice, row, await look(alice, row), "reject")
        form = page.form(step="send", reason="half of it", value_text='{"cents":2000,"customer":"c-1"}')
        answer = await bob.post(path_of(row, "/edit"), data=form)
    assert answer.status_code == 409
    assert "already rejected by alice" in Page(answer).text.lower()
    assert "half of it" in answer.text
    assert "&#34;cents&#34;: 2000" in answer.text


@pytest.mark.parametrize(
    ("changed", "status"),
    [({"shown_digest": "placet-web-0:1"}, 412), ({"request_hash": "0" * 64}, 412), ({"opened": ""}, 422)],
)
@pytest.mark.parametrize("word", ["edit", "respond"])
async def test_an_edit_or_an_answer_is_about_what_was_shown_in_full(
    desk: Desk, word: str, changed: dict[str, str], status: int
) -> None:
    row = desk.world.add_request(SHELL)
    async with desk.browser() as browser:
        page = await look(browser, row, f"/{word}")
        form = page.form(step="send", value="no need", value_text='{"command":"ls"}')
        answer = await browser.post(path_of(row, f"/{word}"), data=form | changed)
        assert answer.status_code == status
        assert decided(desk) == []
        assert (await browser.post(path_of(row, f"/{word}"), data=form)).status_code == 303
