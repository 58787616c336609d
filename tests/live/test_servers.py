"""Proves what the live tests stand on: private servers obey, nothing outlives the run, and proxies fail as asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aio_pika
import asyncpg
import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.live import spaces
from tests.live.conftest import need
from tests.live.faultproxy import Fault, FaultProxy
from tests.live.kinds import Kind, MissingServerError
from tests.live.reaper import started_at
from tests.live.servers import Home, allowed_sources, endpoint, given

NO_RETRY = Retry(NoBackoff(), 0)
ROOT = Path(__file__).resolve().parents[2]


# ── private servers ────────────────────────────────────────────────────────────────────


async def test_a_redis_keeps_its_data_over_a_crash_and_loses_them_when_wiped(own_redis):
    async with redis.asyncio.Redis.from_url(own_redis.url, retry=NO_RETRY) as client:
        await client.set("key", "kept")
        own_redis.kill()
        with pytest.raises(redis.ConnectionError):
            await client.get("key")
        own_redis.start()
        assert await client.get("key") == b"kept"
    own_redis.wipe()
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        assert await client.get("key") is None


async def test_a_frozen_redis_answers_nothing_until_it_is_thawed(own_redis):
    async with redis.asyncio.Redis.from_url(own_redis.url, socket_timeout=0.2) as client:
        await client.set("key", "kept")
        own_redis.freeze()
        with pytest.raises(redis.TimeoutError):
            await client.get("key")
        own_redis.thaw()
        assert await client.get("key") == b"kept"


async def test_a_postgres_keeps_what_is_committed_over_a_crash(own_postgres):
    async with spaces.database(own_postgres.url) as url:
        connection = await asyncpg.connect(url)
        await connection.execute("create table t (n int)")
        await connection.execute("insert into t values (1)")
        own_postgres.kill()
        with pytest.raises((asyncpg.exceptions.PostgresError, asyncpg.exceptions.InterfaceError, OSError)):
            await connection.fetch("select n from t")
        own_postgres.start()
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("select count(*) from t") == 1
        await connection.close()


async def test_a_frozen_postgres_freezes_the_connections_it_has(own_postgres):
    connection = await asyncpg.connect(own_postgres.url)
    own_postgres.freeze()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(connection.fetchval("select 1"))), 0.2)
    own_postgres.thaw()
    await connection.close(timeout=10)


async def test_a_broker_keeps_durable_messages_over_a_crash_and_loses_them_when_wiped(own_rabbitmq):
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum"})
            message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, queue.name)
        await asyncio.to_thread(own_rabbitmq.restart)
        async with await aio_pika.connect(url) as connection:
            queue = await (await connection.channel()).get_queue("q")
            assert (await queue.get(timeout=30, no_ack=True)).body == b"kept"
        await asyncio.to_thread(own_rabbitmq.wipe)
        with pytest.raises(aio_pika.exceptions.AMQPError):
            await aio_pika.connect(url)


def test_of_a_cluster_two_go_on_when_one_is_killed(own_cluster):
    first, second, third = own_cluster.nodes
    first.kill()
    end_s = time.monotonic() + 30
    while [own_cluster.seen_by(node) for node in (second, third)] != [2, 2]:  # they notice it when they do
        assert time.monotonic() < end_s
        time.sleep(0.1)


# ── shared servers ─────────────────────────────────────────────────────────────────────


async def test_each_test_has_a_database_a_virtual_host_and_keys_of_its_own(postgres_url, amqp_url, redis_url):
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
    await connection.close()
    async with await aio_pika.connect(amqp_url) as broker:
        await (await broker.channel()).declare_queue("q", exclusive=True)
    with spaces.key_prefix(redis_url) as one, spaces.key_prefix(redis_url) as other:
        assert one != other
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            await client.set(f"a:{one}:b", "gone afterwards")
            await client.set(f"a:{other}:b", "gone afterwards")
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await client.exists(f"a:{one}:b", f"a:{other}:b") == 0


def test_two_who_ask_for_the_run_s_server_get_the_same_one(home):
    first = need(lambda: home.shared(Kind.REDIS))
    again = Home(home.folder.name.removeprefix("placet-live-"), owner=home.owner)
    assert again.shared(Kind.REDIS) == first


# ── where they come from ───────────────────────────────────────────────────────────────


def test_a_missing_server_is_named_with_every_place_that_was_tried(monkeypatch):
    monkeypatch.setenv("PLACET_TEST_SERVERS", "addresses,containers,processes,install")
    monkeypatch.setenv("PLACET_TEST_INSTALL", "no")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.delenv("PLACET_TEST_REDIS_URL", raising=False)
    monkeypatch.setattr("tests.live.containers.docker_is_away", lambda: "no Docker daemon answers")
    with Home() as home:
        with pytest.raises(MissingServerError) as told:
            home.shared(Kind.REDIS)
        for words in (
            "PLACET_TEST_REDIS_URL is not set",
            "no Docker daemon answers",
            "no redis-server on PATH",
            "PLACET_TEST_INSTALL forbids to install",
            "install redis-server",
        ):
            assert words in str(told.value)
        with pytest.raises(MissingServerError) as again:
            home.shared(Kind.REDIS)
        assert str(again.value) == str(told.value), "nobody looks twice"


def test_what_lacks_a_server_is_skipped_and_in_ci_fails(monkeypatch):
    def lacking() -> None:
        raise MissingServerError("no redis")

    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="no redis"):
        need(lacking)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="failure in CI"):
        need(lacking)


def test_a_given_address_is_the_only_one_that_counts(monkeypatch, redis_server):
    monkeypatch.delenv("PLACET_TEST_SERVERS", raising=False)
    monkeypatch.setenv("PLACET_TEST_REDIS_URL", redis_server.url)
    assert given(Kind.REDIS).url == redis_server.url
    monkeypatch.setenv("PLACET_TEST_REDIS_URL", "redis://127.0.0.1:1/0")
    with Home() as home, pytest.raises(MissingServerError, match=r"no redis answers at 127\.0\.0\.1:1"):
        home.shared(Kind.REDIS)


def test_an_unknown_source_is_an_error(monkeypatch):
    monkeypatch.setenv("PLACET_TEST_SERVERS", "processes, install")
    assert allowed_sources() == ["processes", "install"]
    monkeypatch.setenv("PLACET_TEST_SERVERS", "proceses")
    with pytest.raises(ValueError, match="proceses is none of addresses"):
        allowed_sources()


# ── the end ────────────────────────────────────────────────────────────────────────────

OWNER = """
import signal, sys, time
from tests.live.kinds import Kind
from tests.live.servers import Home
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
home = Home()
server = home.own(Kind(sys.argv[1]))
server.freeze()
print(home.folder, *[line.split()[0] for line in (server.folder / "pids").read_text().splitlines()], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", [Kind.REDIS, Kind.POSTGRES])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_server_outlives_its_run_even_frozen_and_however_the_run_ends(kind, how, pool):
    need(lambda: pool.take(kind))
    command = (sys.executable, "-c", OWNER, kind)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().split()
        assert pids
        assert all(started_at(int(pid)) for pid in pids)
        os.kill(owner.pid, how)
        owner.wait()
    end_s = time.monotonic() + 10
    while any(started_at(int(pid)) for pid in pids) or Path(folder).exists():
        assert time.monotonic() < end_s, f"{pids} or {folder} outlived the run"
        time.sleep(0.02)


# ── the proxy ──────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def proxied(url: str):
    """A proxy before a Redis and a client through it, without retries."""
    async with FaultProxy(*endpoint(url)) as proxy:
        client = redis.asyncio.Redis(port=proxy.port, socket_timeout=0.3, retry=NO_RETRY, single_connection_client=True)
        async with client:
            yield proxy, client


async def test_a_proxy_delays_each_way(redis_url):
    async with proxied(redis_url) as (proxy, client):
        await client.ping()
        proxy.latency_s = 0.05
        began_s = time.monotonic()
        await client.ping()
        assert 0.1 <= time.monotonic() - began_s < 0.3


async def test_what_a_black_hole_held_back_goes_on_when_it_is_restored(redis_url, redis_prefix):
    async with proxied(redis_url) as (proxy, client):
        await client.ping()
        proxy.black_hole()
        with pytest.raises(redis.TimeoutError):
            await client.rpush(redis_prefix, "late")
        await proxy.restore()
        async with redis.asyncio.Redis.from_url(redis_url) as direct:
            arrived = await direct.blpop([redis_prefix], timeout=5)
            assert arrived is not None
            assert list(arrived)[1] == b"late"


async def test_a_lost_reply_was_applied_and_a_lost_request_was_not(redis_url, redis_prefix):
    async with proxied(redis_url) as (proxy, client), redis.asyncio.Redis.from_url(redis_url) as direct:
        await client.ping()
        sprung = proxy.at(b"INCR", Fault.LOSE_REPLY)
        with pytest.raises(redis.ConnectionError):
            await client.incr(redis_prefix)
        await sprung.wait()
        assert await direct.get(redis_prefix) == b"1"
        sprung = proxy.at(b"INCR", Fault.LOSE_REQUEST)
        with pytest.raises(redis.ConnectionError):
            await client.incr(redis_prefix)
        await sprung.wait()
        sprung = proxy.at(b"INCR", Fault.SWALLOW_REPLY)
        with pytest.raises(redis.TimeoutError):
            await client.incr(redis_prefix)
        assert await direct.get(redis_prefix) == b"2"


async def test_a_cut_refuses_and_a_reset_serves_whoever_comes_again(redis_url):
    async with proxied(redis_url) as (proxy, client):
        await client.ping()
        proxy.reset()
        with pytest.raises(redis.ConnectionError):
            await client.ping()
        assert await client.ping()
        await proxy.cut()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                await client.ping()
        await proxy.restore()
        assert await client.ping()
