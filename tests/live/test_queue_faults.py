"""Brokers die, links break, memory runs out, queues vanish: every message is done in the end, and the process lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from placet.adapters.rabbitmq.link import Link
from placet.errors import Code, RetryableError
from placet.runtime.ports import OutboxRow
from placet.topology import DISPATCHER, RESUME
from tests.cases import case
from tests.contracts.queue_contract import PATIENCE_S, a_row, an_envelope, collect, ids, is_empty, rows
from tests.live import spaces
from tests.live.broker_ends import BrokerEnds, eventually, take_all
from tests.live.faultproxy import FaultProxy
from tests.live.servers import endpoint

RETURN_S = 30
"""Within this time after its return everything is consumed (issue: Done when)."""


@pytest.fixture
async def ends(own_rabbitmq) -> AsyncIterator[BrokerEnds]:
    """On a broker that may be harmed."""
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        async with BrokerEnds(url) as ends:
            yield ends


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[FaultProxy, str]]:
    """A way to the broker that can be cut, and its address."""
    async with FaultProxy(*endpoint(url)) as proxy:
        parts = urlsplit(url)
        yield proxy, urlunsplit(parts._replace(netloc=f"guest:guest@127.0.0.1:{proxy.port}"))


async def publish_all(outlet, published: list[OutboxRow], timeout_s: float = RETURN_S) -> None:
    """As a relay does: again and again until everything is confirmed."""
    left = {row.id: row for row in published}
    async with asyncio.timeout(timeout_s):
        while left:
            try:
                for confirmed in await outlet.publish(list(left.values())):
                    del left[confirmed]
            except RetryableError:
                await asyncio.sleep(0.05)  # the loop's back-off


# ── the broker dies ────────────────────────────────────────────────────────────────────


async def test_over_crashes_of_the_broker_everything_is_published_and_done(ends, own_rabbitmq):
    outlet, inbox = ends.outlet(patience_ms=1_000), ends.inbox()
    restarted = asyncio.Event()
    published: set[str] = set()
    done: set[str] = set()

    async def publish() -> None:
        while not restarted.is_set():
            batch = rows(*range(len(published), len(published) + 50))
            await publish_all(outlet, batch, 2 * RETURN_S)
            published.update(row.id for row in batch)
            await asyncio.sleep(0.05)

    async def work() -> None:
        while not restarted.is_set() or not publishing.done() or not published <= done:
            taken = await inbox.take(64)
            await inbox.settle(taken, [])
            done.update(ids(taken))

    publishing = asyncio.ensure_future(publish())
    working = asyncio.ensure_future(work())
    for _ in range(2):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_rabbitmq.restart)
    restarted.set()
    await publishing
    await publish_all(outlet, rows(999_999))  # whoever waits for a last message gets one
    published.add("msg_999999")
    async with asyncio.timeout(RETURN_S):
        await working


async def test_a_broker_that_is_gone_is_told_and_its_return_is_used_within_seconds(ends, own_rabbitmq):
    outlet, inbox = ends.outlet(patience_ms=200), ends.inbox()
    await outlet.publish(rows(1))
    await inbox.settle(await collect(inbox, 1), [])
    await asyncio.to_thread(own_rabbitmq.kill)
    with pytest.raises(RetryableError) as caught:
        await outlet.publish(rows(2))
    assert caught.value.code is Code.BROKER_UNAVAILABLE
    assert outlet.trouble
    assert inbox.trouble
    await asyncio.to_thread(own_rabbitmq.start)
    await publish_all(outlet, rows(2), PATIENCE_S)
    assert ids(await collect(inbox, 1)) == ["msg_2"]


async def test_after_a_wiped_broker_the_deploy_step_brings_everything_back(ends, own_rabbitmq):
    outlet, inbox = ends.outlet(patience_ms=1_000), ends.inbox()
    await outlet.publish(rows(1))
    await collect(inbox, 1)
    await asyncio.to_thread(own_rabbitmq.wipe)
    own_rabbitmq.management.add_vhost(urlsplit(ends.url).path[1:])
    async with BrokerEnds(ends.url):
        await publish_all(outlet, rows(2))
        assert ids(await collect(inbox, 1)) == ["msg_2"]


async def test_a_frozen_broker_is_unknown_after_the_time_for_confirms_and_the_late_message_is_no_harm(
    ends, own_rabbitmq
):
    outlet, inbox = ends.outlet(confirm_timeout_ms=500), ends.inbox()
    await outlet.publish(rows(0))
    await inbox.settle(await collect(inbox, 1), [])
    await asyncio.to_thread(own_rabbitmq.freeze)
    with pytest.raises(RetryableError, match="unknown"):
        await outlet.publish(rows(1))
    await asyncio.to_thread(own_rabbitmq.thaw)
    await publish_all(outlet, rows(1, 2))
    await take_all(inbox, {"msg_1", "msg_2"})


# ── the link breaks ────────────────────────────────────────────────────────────────────


@case("P135")
async def test_when_the_link_is_cut_before_the_acknowledgement_the_message_comes_again_and_the_worker_lives(ends):
    async with proxied(ends.url) as (proxy, url):
        inbox = ends.inbox(url=url)
        await ends.outlet().publish(rows(1, 2))
        taken = await collect(inbox, 2)
        await proxy.cut()
        async with asyncio.timeout(2):
            await inbox.settle(taken[:1], taken[1:])

        async def noticed() -> bool:
            return inbox.trouble is not None

        await eventually(noticed)
        await proxy.restore()
        again = await collect(inbox, 2)
        assert ids(again) == ["msg_1", "msg_2"]
        async with asyncio.timeout(2):
            await inbox.settle(taken, [])  # stale: swallowed
            await inbox.settle(again, [])
        assert await is_empty(inbox)
        await inbox.disconnect()


async def test_over_many_resets_nothing_is_lost_and_there_is_one_consumer_at_a_time(ends, own_rabbitmq):
    async with proxied(ends.url) as (proxy, url):
        outlet, inbox = ends.outlet(url, patience_ms=2_000), ends.inbox(url=url)
        published = rows(*range(600))
        working = asyncio.ensure_future(take_all(inbox, {row.id for row in published}))
        for start in range(0, 600, 100):
            publishing = asyncio.ensure_future(publish_all(outlet, published[start : start + 100]))
            await asyncio.sleep(0.05)
            proxy.reset()
            await publishing
        await working

        vhost = quote(urlsplit(ends.url).path[1:], safe="")

        async def consumers() -> bool:
            found = await asyncio.to_thread(own_rabbitmq.management.call, f"consumers/{vhost}")
            return [consumer["queue"]["name"] for consumer in found] == ["placet.dispatcher"]

        await eventually(consumers, RETURN_S)
        await inbox.disconnect()
        await outlet.close()


async def test_a_black_hole_is_found_out_by_the_heartbeat(ends):
    async with proxied(ends.url) as (proxy, url):
        inbox = ends.inbox(url=url + "?heartbeat=1")
        await ends.outlet().publish(rows(1))
        await collect(inbox, 1)
        proxy.black_hole()

        async def noticed() -> bool:
            return inbox.trouble is not None

        await eventually(noticed, 15)
        second = ends.inbox()
        assert ids(await collect(second, 1)) == ["msg_1"], "the broker noticed as well"
        await proxy.restore()

        async def back() -> bool:
            return inbox.trouble is None

        await eventually(back, RETURN_S)
        await inbox.disconnect()


@case("P149")
async def test_fifty_clients_do_not_come_back_in_step(caplog: pytest.LogCaptureFixture):
    """By the delays that they choose: how soon each then gets its turn is the machine's."""

    async def never(connection: object) -> list[object]:
        raise AssertionError("nothing listens there")

    links = [Link("amqp://127.0.0.1:1/", f"client {n}", never) for n in range(50)]  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "placet.rabbitmq"):
        for link in links:
            link.start()
        chosen = await _delays(caplog, 4)
        await asyncio.gather(*(link.close() for link in links))
    for nth in range(4):
        delays = sorted(delays[nth] for delays in chosen.values())
        busiest = max(sum(start <= delay < start + 50 for delay in delays) for start in delays)
        assert busiest <= max(13, 50 * 50 * 3 / max(1, delays[-1] - delays[0])), "tries are spread over time"
    assert all(delays[3] > delays[0] for delays in chosen.values()), "and become fewer"


async def _delays(caplog: pytest.LogCaptureFixture, times: int) -> dict[str, list[int]]:
    """What each client has chosen to wait, once each has chosen so often, in milliseconds."""
    while True:
        chosen: dict[str, list[int]] = {}
        for record in caplog.records:
            if record.getMessage() == "broker.link_down":
                chosen.setdefault(vars(record)["link"], []).append(vars(record)["delay_ms"])
        if len(chosen) == 50 and all(len(delays) >= times for delays in chosen.values()):
            return chosen
        await asyncio.sleep(0.1)


# ── the broker is short of something ───────────────────────────────────────────────────


@asynccontextmanager
async def memory_alarm(server) -> AsyncIterator[None]:
    """The broker has no memory left."""
    await asyncio.to_thread(server.ctl, "set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        yield
    finally:
        await asyncio.to_thread(server.ctl, "set_vm_memory_high_watermark", "absolute", "1GB")


async def test_in_a_memory_alarm_publishing_is_unknown_and_consumers_go_on(ends, own_rabbitmq):
    outlet = ends.outlet(confirm_timeout_ms=500, patience_ms=500)
    inbox = ends.inbox()
    await outlet.publish(rows(*range(64)))
    taken = await collect(inbox, 32)
    async with memory_alarm(own_rabbitmq):
        with pytest.raises(RetryableError) as unconfirmed:
            await outlet.publish(rows(100))
        with pytest.raises(RetryableError) as blocked:
            await outlet.publish(rows(101))
        assert "unknown" in unconfirmed.value.message
        assert "memory" in blocked.value.message
        await inbox.settle(taken, [])
        await inbox.settle(await collect(inbox, 32), [])

        await inbox.disconnect()
        inbox = ends.inbox()
        assert await is_empty(inbox), "the broker has read the acknowledgements"
    await publish_all(outlet, rows(100, 101))
    await take_all(inbox, {"msg_100", "msg_101"})


async def test_in_a_memory_alarm_a_question_is_refused_in_its_time_and_the_door_says_why(ends, own_rabbitmq):
    outlet, door = ends.outlet(confirm_timeout_ms=300, patience_ms=300), ends.door()
    submission = an_envelope(1).message
    await door.ask(submission, message_id="m_1", timeout_ms=300)
    async with memory_alarm(own_rabbitmq):
        with pytest.raises(RetryableError):
            await outlet.publish(rows(2))
        # The broker blocks a connection when it first publishes: what that comes to is unknown.
        assert await door.ask(submission, message_id="m_2", timeout_ms=300) is None
        with pytest.raises(RetryableError, match="memory or disk is short"):
            await door.ask(submission, message_id="m_3", timeout_ms=300)
        assert "memory or disk is short" in (door.trouble or "")

    async def well() -> bool:
        return door.trouble is None

    await eventually(well)


async def test_what_waits_for_the_end_of_an_alarm_goes_out_with_it(ends, own_rabbitmq):
    outlet, inbox = ends.outlet(confirm_timeout_ms=300), ends.inbox()
    await outlet.publish(rows(0))
    await inbox.settle(await collect(inbox, 1), [])
    async with memory_alarm(own_rabbitmq):
        with pytest.raises(RetryableError):
            await outlet.publish(rows(1))
        publishing = asyncio.ensure_future(outlet.publish(rows(2)))
        done, _ = await asyncio.wait([publishing], timeout=0.5)
        assert not done
    assert list(await publishing) == ["msg_2"]
    await take_all(inbox, {"msg_2"})


# ── the broker closes or deletes something ─────────────────────────────────────────────


@case("P134")
async def test_a_consumer_whose_queue_is_deleted_says_so_and_comes_back_with_the_queue(ends):
    inbox = ends.inbox(RESUME)
    channel = await (await ends.connection()).channel()

    async def up() -> bool:
        return inbox.trouble is None

    await eventually(up)
    await channel.queue_delete("placet.resume")

    async def missing() -> bool:
        return "placet.resume" in (inbox.trouble or "")

    await eventually(missing)
    async with BrokerEnds(ends.url):
        await eventually(up)
        row = OutboxRow("r", RESUME, "r", "approval.decided", 0, an_envelope(1).encode())
        await publish_all(ends.outlet(), [row])
        assert ids(await collect(inbox, 1)) == ["msg_1"]


async def test_a_channel_that_the_broker_closes_is_noticed_and_made_again(ends):
    inbox = ends.inbox()
    await ends.outlet().publish(rows(1, 2))
    taken = await collect(inbox, 2)
    await inbox.settle(taken, [])
    lane = inbox._lane
    assert lane is not None
    await lane.basic_ack(999)  # no such delivery: the broker closes the channel for that
    await ends.outlet().publish(rows(3))
    assert ids(await collect(inbox, 1)) == ["msg_3"]


@case("P136")
async def test_a_delivery_held_past_the_broker_s_patience_comes_again(ends, own_rabbitmq):
    async def set_ms(**values_ms: int) -> None:
        settings = " ".join(f"application:set_env(rabbit, {name}, {value})," for name, value in values_ms.items())
        await asyncio.to_thread(own_rabbitmq.ctl, "eval", f"{settings} ok.")

    await set_ms(consumer_timeout=1_000, channel_tick_interval=500)
    try:
        inbox = ends.inbox()
        await ends.outlet().publish(rows(1))
        first = await collect(inbox, 1)
        async with asyncio.timeout(RETURN_S):
            again = await inbox.take(64)
        assert ids(again) == ["msg_1"]
        await inbox.settle(first, [])
        await inbox.settle(again, [])
        await inbox.disconnect()
        assert await is_empty(ends.inbox())
    finally:
        await set_ms(consumer_timeout=1_800_000, channel_tick_interval=60_000)


async def test_rights_that_are_taken_away_are_told_and_all_goes_on_when_they_are_back(ends, own_rabbitmq):
    management, vhost = own_rabbitmq.management, urlsplit(ends.url).path[1:]
    name = spaces.fresh_name()
    rights = {"configure": "^$", "read": ".*", "write": ".*"}
    at = f"permissions/{quote(vhost, safe='')}/{name}"
    await asyncio.to_thread(management.call, f"users/{name}", "PUT", {"password": "secret", "tags": ""})
    await asyncio.to_thread(management.call, at, "PUT", rights)
    parts = urlsplit(ends.url)
    url = urlunsplit(parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}"))
    await asyncio.to_thread(management.call, at, "PUT", {**rights, "write": "^$"})
    outlet = ends.outlet(url, patience_ms=300, confirm_timeout_ms=1_000)  # a busy old channel would remember its rights

    async def refused() -> bool:
        try:
            await outlet.publish(rows(2))
        except RetryableError as error:
            return "ACCESS_REFUSED" in error.message
        return False

    await eventually(refused, RETURN_S)
    await asyncio.to_thread(management.call, at, "PUT", rights)
    await publish_all(outlet, rows(2))
    await asyncio.to_thread(management.call, f"users/{name}", "DELETE")


async def test_no_password_is_ever_logged(caplog):
    caplog.set_level(logging.DEBUG)
    link = Link("amqp://user:geheim@127.0.0.1:1/", "client", lambda connection: asyncio.sleep(0, []))
    link.start()
    with pytest.raises(RetryableError) as caught:
        await link.wait_until_up(300)
    await link.close()
    assert "geheim" not in caplog.text + caught.value.message + str(link.trouble)


# ── a cluster loses a node ─────────────────────────────────────────────────────────────


async def test_of_a_cluster_one_may_die_and_everything_is_done(own_cluster):
    first, second, third = own_cluster.nodes
    with spaces.vhost(first.url, first.management) as url:
        async with BrokerEnds(url) as ends:
            outlet = ends.outlet(second.url_of(urlsplit(url).path[1:]), confirm_timeout_ms=3_000, patience_ms=3_000)
            inbox = ends.inbox(DISPATCHER, third.url_of(urlsplit(url).path[1:]))
            published = [a_row(n) for n in range(400)]
            working = asyncio.ensure_future(take_all(inbox, {row.id for row in published}, 2 * RETURN_S))
            await publish_all(outlet, published[:100])
            killing = asyncio.ensure_future(asyncio.to_thread(first.kill))
            for start in range(100, 400, 50):
                await publish_all(outlet, published[start : start + 50], RETURN_S)
            await killing
            await working
            await asyncio.to_thread(own_cluster.heal)
