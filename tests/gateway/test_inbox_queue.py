"""The web inbox: the queue and its order, several decided at once, and what came before."""

from __future__ import annotations

from typing import Any

from placet.addressees import OPERATION
from placet.freezing import ALL, FREEZE, freeze_run
from placet_gateway.inbox.showing import RENDERER
from tests.gateway.inbox_world import AT_MS, LONG, PAYMENT, SHELL, Desk, Page, decide, decided, look, path_of
from tests.gateway.world import NOW_MS, TENANT

# ── the queue ──────────────────────────────────────────────────────────────────────────


async def test_the_queue_begins_with_what_ends_first_then_what_waits_longest(desk: Desk) -> None:
    ends = {"old": None, "soon": 5_000, "later": 9_000, "new": None}
    rows = {
        name: desk.world.add_request(
            PAYMENT | {"toolCallId": f"{name}.1"}, requested_at_ms=NOW_MS - 100 + n,
            expires_at_ms=None if end is None else NOW_MS + end,
        )
        for n, (name, end) in enumerate(ends.items())
    }  # fmt: skip
    async with desk.browser() as browser:
        page = Page(await browser.get("/inbox"))
    shown_ids = [str(tag["id"]).removeprefix("q-") for tag in page.all("a", **{"class": "headline"})]
    assert shown_ids == [rows[name]["request_id"] for name in ("soon", "later", "old", "new")]


async def test_pages_of_the_queue_neither_repeat_nor_miss_one_while_some_are_decided(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}, requested_at_ms=NOW_MS + n) for n in range(120)]
    seen: list[str] = []
    async with desk.browser() as browser:
        where: str | None = "/inbox"
        while where is not None:
            page = Page(await browser.get(where))
            assert (
                f"{120 - sum(bool(desk.world.outcome_of(row['request_id'])) for row in rows)} requests waiting"
                in page.text
            )
            seen += [str(tag["id"]).removeprefix("q-") for tag in page.all("a", **{"class": "headline"})]
            last = next(row for row in rows if row["request_id"] == seen[-1])
            await decide(browser, last, await look(browser, last), "approve")
            following = page.all("a", rel="next")
            where = str(following[0]["href"]) if following else None
    assert seen == [row["request_id"] for row in rows]


async def test_badge_list_and_api_count_the_same(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}) for n in range(5)]
    async with desk.browser() as browser, desk.world.http() as api:
        for row, word in zip(rows, ("approve", "reject"), strict=False):
            await decide(browser, row, await look(browser, row), word)
        page = Page(await browser.get("/inbox"))
        assert len((await api.get("/v1/requests")).json()["items"]) == 3
    assert (page.all("span", id="badge")[0]["aria-label"], len(page.all("a", **{"class": "headline"}))) == (
        "3 waiting",
        3,
    )


async def test_filters_are_in_the_address_and_an_empty_queue_says_what_to_do(desk: Desk) -> None:
    async with desk.browser() as browser:
        assert "Nothing waits for a decision." in Page(await browser.get("/inbox")).text
        desk.world.add_request(PAYMENT)
        desk.world.add_request(SHELL | {"toolCallId": "c2.1"})
        for query, count in (
            ("tool=refund", 1),
            ("agent=clerk", 2),
            ("team=release", 2),
            ("team=x", 0),
            ("q=rm+data", 1),
            ("scope=plan", 0),
        ):
            page = Page(await browser.get(f"/inbox?{query}"))
            assert len(page.all("a", **{"class": "headline"})) == count, query
            assert f"{count} of 2 waiting match" in page.text


# ── several at once ────────────────────────────────────────────────────────────────────


async def test_several_are_decided_by_name_and_hash_after_being_shown_in_full(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}) for n in range(3)]
    rows.append(desk.world.add_request(SHELL | {"toolCallId": "c9.1"}))
    query = "&".join(f"select={row['request_id']}" for row in rows)
    async with desk.browser() as browser:
        answer = await browser.get(f"/inbox/batch?{query}")
        page = Page(answer)
        assert LONG in page.text
        form: dict[str, Any] = page.form(word="approve") | {"request": [row["request_id"] for row in rows]}
        lacking = {name: value for name, value in form.items() if name != "opened"}
        assert (await browser.post("/inbox/batch", data=lacking)).status_code == 422
        swapped = form | {f"hash.{rows[1]['request_id']}": rows[0]["request_hash"]}
        assert (await browser.post("/inbox/batch", data=swapped)).status_code == 422
        assert decided(desk) == []
        done = await browser.post("/inbox/batch", data=form)
    assert done.status_code == 200
    assert [(m.request_id, m.request_hash) for m in decided(desk)] == [
        (r["request_id"], r["request_hash"]) for r in rows
    ]
    assert all(str(message.shown_digest).startswith(RENDERER) for message in decided(desk))


async def test_one_that_does_not_fit_keeps_all_of_them_undecided(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}) for n in range(3)]
    names = [row["request_id"] for row in rows]
    async with desk.browser() as browser, desk.browser("bob") as bob:
        page = Page(await browser.get("/inbox/batch?" + "&".join(f"select={name}" for name in names)))
        await decide(bob, rows[1], await look(bob, rows[1]), "reject")
        answer = await browser.post("/inbox/batch", data=page.form(word="approve") | {"request": names})
    assert answer.status_code == 422
    assert "It is rejected already by bob." in Page(answer).text
    assert [message.reviewer.id for message in decided(desk)] == ["bob"]


# ── what came before ───────────────────────────────────────────────────────────────────


async def test_what_this_agent_has_asked_for_today_is_counted_and_added_up(desk: Desk) -> None:
    midnight = NOW_MS - NOW_MS % 86_400_000
    async with desk.browser("bob") as bob:
        for n, cents in enumerate((1_000, 2_000, 500)):
            given = {"customer": "c-1", "cents": cents}
            at_ms = midnight + n if cents != 500 else midnight - 1  # the last one was yesterday
            row = desk.world.add_request(
                PAYMENT | {"toolCallId": f"c{n}.1", "rawInput": given, "input": given}, requested_at_ms=at_ms
            )
            await decide(bob, row, await look(bob, row), "approve")
    last = desk.world.add_request(PAYMENT | {"toolCallId": "c9.1"}, requested_at_ms=AT_MS)
    async with desk.browser() as browser:
        page = await look(browser, last)
    assert "3rd refund today by clerk: 2 approved, 0 rejected" in page.text
    assert "cents comes to 7,000" in page.text
    assert "Since the last approval of this tool" in page.text
    assert "/cents" in page.text


async def test_the_history_finds_by_words_status_tool_and_person(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}) for n in range(3)]
    rows.append(desk.world.add_request(SHELL | {"toolCallId": "c9.1"}))
    async with desk.browser() as browser:
        await decide(browser, rows[0], await look(browser, rows[0]), "approve")
        for query, count in (
            ("", 4),
            ("status=approved", 1),
            ("by=alice", 1),
            ("tool=shell", 1),
            ("q=refund+4000", 3),
            ("q=nothing", 0),
        ):
            page = Page(await browser.get(f"/inbox/history?{query}"))
            assert len([a for _, a in page.tags if "data-row-link" in a]) == count, query


async def test_the_very_same_call_is_recognised_however_it_comes_again(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}, requested_at_ms=NOW_MS + n) for n in range(3)]
    async with desk.browser("bob") as bob, desk.browser() as browser:
        assert "2 other open requests ask for the very same call" in (await look(browser, rows[2])).text
        await decide(bob, rows[0], await look(bob, rows[0]), "reject")
        page = await look(browser, rows[2])
        assert "The very same call was rejected by bob" in page.text
        assert "1 other open request asks for the very same call" in page.text
        other = PAYMENT | {"toolCallId": "c8.1", "input": {"customer": "c-1", "cents": 4_001}}
        page = await look(browser, desk.world.add_request(other, requested_at_ms=NOW_MS + 9))
        assert "the very same call" not in page.text.lower()


async def test_a_freeze_is_told_where_it_matters(desk: Desk) -> None:
    def frozen(tool: str) -> None:
        at = (freeze_run(TENANT), OPERATION, FREEZE)
        switch = {"tool": tool, "by": "carol", "reason": "the <bank> is down", "since_ms": NOW_MS}
        stored = {"status": "frozen", "version": 1, "created_at_ms": NOW_MS, "updated_at_ms": NOW_MS, "tenant": TENANT}
        desk.world.states[at] = stored | {"body": {"frozen": [switch]}}

    row = desk.world.add_request(PAYMENT)
    other = desk.world.add_request(SHELL | {"toolCallId": "c9.1"})
    frozen("refund")
    async with desk.browser() as browser:
        assert "refund is frozen by carol" in (await look(browser, row)).text
        assert "the <bank> is down" in (await look(browser, row)).text
        assert "is frozen" not in (await look(browser, other)).text
        frozen(ALL)
        assert "Everything is frozen by carol" in (await look(browser, other)).text
        assert "Everything is frozen by carol" in Page(await browser.get("/inbox")).text


async def test_one_goes_on_without_deciding(desk: Desk) -> None:
    rows = [desk.world.add_request(PAYMENT | {"toolCallId": f"c{n}.1"}, requested_at_ms=NOW_MS + n) for n in range(3)]
    async with desk.browser() as browser:
        page = await look(browser, rows[1], "?tool=refund")
        ends = [[str(tag["href"]) for tag in page.all("a", rel=rel)] for rel in ("prev", "next")]
        assert ends == [[f"{path_of(rows[at])}?tool=refund"] for at in (0, 2)]
        assert not (await look(browser, rows[0])).all("a", rel="prev")
