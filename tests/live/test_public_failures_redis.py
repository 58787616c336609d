"""Proves that what broke with Redis elsewhere does not break here: the numbered cases that no other test covers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import quote, urlsplit

import redis

from placet.adapters.rabbitmq import RabbitReplies
from tests.cases import case
from tests.live.broker_ends import BrokerEnds, eventually
from tests.live.recorded import ONCE
from tests.live.servers import Access, OwnServer
from tests.live.system import persist
from tests.live.whole import Servers, whole_system

PENDING = 10
WINDOWS = 300


@case("P157")
async def test_what_waits_for_a_person_is_listed_and_can_be_decided_after_everything_but_the_facts_is_gone(
    tmp_path: Path, amqp_url: str, postgres_url: str, own_redis: OwnServer
) -> None:
    run_ids = [f"r{number}" for number in range(PENDING)]
    async with whole_system(tmp_path, Servers(amqp_url, postgres_url, own_redis.url)) as system:

        def job() -> None:
            system.start()
            for run_id in run_ids:
                system.submit(run_id, "Tag it")
            for run_id in run_ids:
                system.wait_for(run_id, "suspended")
            for each in system.running:
                each.kill()
            own_redis.kill()
            own_redis.wipe()
            with redis.Redis.from_url(own_redis.url) as direct:
                assert direct.dbsize() == 0
            system.start()
            assert {request.run_id for request in system.open_requests()} == set(run_ids)
            for run_id in run_ids:
                system.approve(run_id)
            for run_id in run_ids:
                system.wait_for(run_id, "succeeded")
            for run_id in run_ids:
                effects = system.ledger.of(run_id)
                assert sorted(effect.tool for effect in effects) == sorted(ONCE), effects
            with system.client() as client:
                assert persist(lambda: client.dead_letters()).items == []

        await asyncio.to_thread(job)


@case("P159")
async def test_windows_that_open_and_close_leave_no_connection_and_no_listener_behind(
    amqp_url: str, rabbitmq: Access
) -> None:
    vhost = quote(urlsplit(amqp_url).path[1:], safe="")

    async def connections() -> int:
        return len(await asyncio.to_thread(rabbitmq.management.call, f"vhosts/{vhost}/connections"))

    async with BrokerEnds(amqp_url) as ends:
        door, replies = ends.door(), ends.replies()

        async def opened() -> bool:
            return door.trouble is None and replies.trouble is None

        async def hinted(changes: AsyncIterator[None]) -> None:
            async with aclosing(changes) as one:  # type: ignore[type-var]
                await anext(one)

        first = asyncio.ensure_future(hinted(door.changes("run-0")))
        await asyncio.sleep(0)
        await eventually(opened)
        await asyncio.wait_for(_until(first, replies), 10)
        before = await eventually(connections)
        for number in range(WINDOWS):
            window = asyncio.ensure_future(hinted(door.changes(f"run-{number}")))
            await asyncio.sleep(0)
            if number % 2:
                window.cancel()  # its connection was cut
                await asyncio.wait([window])
            else:
                await asyncio.wait_for(_until(window, replies, f"run-{number}"), 10)
        assert door._watch._watchers == {}
        assert await connections() == before
        still = asyncio.ensure_future(hinted(door.changes("run-0")))
        await asyncio.wait_for(_until(still, replies), 10)


async def _until(window: asyncio.Future[None], replies: RabbitReplies, run_id: str = "run-0") -> None:
    """Tell it of its run until it has heard: hints may get lost."""
    while not window.done():
        replies.hint({run_id: {"run:running"}})
        await asyncio.wait([window], timeout=0.05)
    await window
