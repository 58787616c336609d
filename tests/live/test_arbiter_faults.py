"""Proves that a slow, silent, lying or absent Redis costs decisions a little time and nothing else."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import asynccontextmanager

import pytest
import redis.asyncio

from placet.adapters.redis import RedisArbiter
from placet.adapters.redis.arbiter import SLOW_MS
from placet.adapters.redis.breaker import FAILURES_MAX
from placet.runtime.ports import Mark
from tests.cases import case
from tests.live.faultproxy import Fault, FaultProxy
from tests.live.redis_server import PrivateRedis
from tests.live.servers import endpoint

PATIENT_MS = 2_000
SLOWEST_MS = 150
"""What a decision may cost at most when Redis hangs, for ninety-nine of a hundred (F49)."""
BACK_S = 15


@asynccontextmanager
async def referee(url: str, environment: str = "test", *, slow_ms: int = SLOW_MS):
    """One more process's arbiter, connected."""
    arbiter = RedisArbiter(url, environment=environment, slow_ms=slow_ms)
    await arbiter.describe()
    try:
        yield arbiter
    finally:
        await arbiter.close()


@asynccontextmanager
async def behind_proxy(url: str, environment: str, *, slow_ms: int = PATIENT_MS):
    """An arbiter whose way to Redis may fail, and another's whose way is sound."""
    async with FaultProxy(*endpoint(url)) as proxy:
        through = f"redis://127.0.0.1:{proxy.port}/0"
        async with referee(through, environment, slow_ms=slow_ms) as mine, referee(url, environment) as theirs:
            yield proxy, mine, theirs


async def claims(arbiter: RedisArbiter, count: int, prefix: str = "k") -> list[float]:
    """That many claims of fresh keys, all of which go on; how long each took, in milliseconds."""
    took_ms = []
    for n in range(count):
        began_s = time.perf_counter()
        assert list(await arbiter.claim([f"{prefix}-{n}"], f"{prefix}-{n}")) == [True]
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    return took_ms


def p99(took_ms: list[float]) -> float:
    """What ninety-nine of a hundred took at most."""
    return sorted(took_ms)[len(took_ms) * 99 // 100]


async def until_refereed(arbiter: RedisArbiter) -> None:
    """Claim until Redis is asked again."""
    before = arbiter.counts.claimed
    async with asyncio.timeout(BACK_S):
        while arbiter.counts.claimed == before:
            assert list(await arbiter.claim([f"back-{time.monotonic_ns()}"], "n")) == [True]
            await asyncio.sleep(0.005)


# ── lost answers ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.SWALLOW_REPLY])
async def test_a_claim_whose_answer_was_lost_is_found_to_be_mine(redis_url, redis_prefix, fault):
    slow_ms = 200 if fault is Fault.SWALLOW_REPLY else PATIENT_MS
    async with behind_proxy(redis_url, redis_prefix, slow_ms=slow_ms) as (proxy, mine, theirs):
        sprung = proxy.at(b"EXEC", fault)
        assert list(await mine.claim(["a", "b"], "n-1")) == [True, True]
        assert sprung.is_set()
        assert mine.counts.claimed == 2, "not skipped: looked up by the nonce"
        assert list(await theirs.claim(["a", "b", "c"], "n-2")) == [False, False, True]
        await mine.finish({"a": Mark.FREE, "b": Mark.FREE}, "n-1")
        await mine.flush()
        assert list(await theirs.claim(["a"], "n-3")) == [True], "what was claimed so can be let go"


@pytest.mark.parametrize("pattern", [b"WATCH", b"MULTI"])
async def test_a_connection_reset_before_the_claim_was_set_is_tried_once_more(redis_url, redis_prefix, pattern):
    async with behind_proxy(redis_url, redis_prefix) as (proxy, mine, theirs):
        proxy.at(pattern, Fault.LOSE_REQUEST)
        assert list(await mine.claim(["a", "b"], "n-1")) == [True, True]
        assert (mine.counts.claimed, mine.counts.failures) == (2, 1)
        assert list(await theirs.claim(["a"], "n-2")) == [False]


async def test_failures_with_successes_between_them_do_not_make_redis_unasked(redis_url, redis_prefix):
    async with behind_proxy(redis_url, redis_prefix) as (proxy, mine, _):
        for n in range(2 * FAILURES_MAX):
            proxy.at(b"MULTI", Fault.LOSE_REQUEST)
            await claims(mine, 2, f"round-{n}")
        assert mine.counts.failures == 2 * FAILURES_MAX
        assert mine.counts.claimed == 4 * FAILURES_MAX
        assert mine.counts.opened == 0


async def test_a_connection_that_is_reset_each_time_lets_everything_go_on(redis_url, redis_prefix):
    async with behind_proxy(redis_url, redis_prefix) as (proxy, mine, _):
        for _ in range(2):
            proxy.at(b"MULTI", Fault.LOSE_REQUEST)
        assert list(await mine.claim(["a"], "n-1")) == [True]
        assert (mine.counts.claimed, mine.counts.skipped) == (0, 1)


async def test_a_key_taken_between_the_watch_and_the_claim_is_busy_and_the_rest_are_claimed(redis_url, redis_prefix):
    async with behind_proxy(redis_url, redis_prefix) as (proxy, mine, theirs):
        proxy.latency_s = 0.05
        watched = proxy.at(b"WATCH", Fault.NONE)
        claiming = asyncio.ensure_future(mine.claim([f"key-{n}" for n in range(64)], "n-1"))
        await watched.wait()
        assert list(await theirs.claim(["key-5"], "n-2")) == [True]
        assert list(await claiming) == [n != 5 for n in range(64)]
        assert (mine.counts.claimed, mine.counts.busy, mine.counts.failures) == (63, 1, 0)
        assert mine.counts.contended == 1


@case("P154")
async def test_keys_taken_again_and_again_are_claimed_one_by_one(redis_url, redis_prefix):
    async with behind_proxy(redis_url, redis_prefix) as (proxy, mine, theirs):
        proxy.latency_s = 0.02

        async def interfere() -> None:
            for key in ("a", "b"):
                await proxy.at(b"WATCH", Fault.NONE).wait()
                await theirs.claim([key], f"their-{key}")

        interfering = asyncio.ensure_future(interfere())
        assert list(await mine.claim(["a", "b", "c", "d"], "n-1")) == [False, False, True, True]
        await interfering
        assert (mine.counts.claimed, mine.counts.failures) == (2, 0)


async def test_a_lost_mark_is_only_a_lost_mark(redis_url, redis_prefix):
    async with behind_proxy(redis_url, redis_prefix) as (proxy, mine, theirs):
        await mine.claim(["a"], "n-1")
        proxy.at(b"final", Fault.LOSE_REQUEST)
        await mine.finish({"a": Mark.FINAL}, "n-1")
        await mine.flush()
        assert mine.counts.marks_lost == 1
        assert list(await theirs.claim(["a"], "n-2")) == [False], "until the claim lapses"
        await mine.finish({"b": Mark.FINAL}, "n-1")
        await mine.flush()
        assert list(await theirs.claim(["b"], "n-3")) == [True]
        assert theirs.counts.past == 1


# ── slow, silent, gone ─────────────────────────────────────────────────────────────────


async def test_a_frozen_redis_is_given_up_after_three_calls_and_asked_again_when_it_is_back(own_redis):
    async with referee(own_redis.url) as arbiter:
        await claims(arbiter, 5, "before")
        own_redis.freeze()
        took_ms = await claims(arbiter, 300)
        assert arbiter.counts.failures == FAILURES_MAX
        assert arbiter.counts.opened == 1
        assert (await arbiter.describe())["breaker"] == "open"
        assert p99(took_ms) < SLOWEST_MS
        assert statistics.median(took_ms) < 1
        own_redis.thaw()
        await until_refereed(arbiter)
        assert (await arbiter.describe())["breaker"] == "closed"


async def test_a_killed_redis_costs_no_time_and_is_asked_again_when_it_is_back(own_redis):
    async with referee(own_redis.url) as arbiter:
        await claims(arbiter, 5, "before")
        own_redis.kill()
        took_ms = await claims(arbiter, 300)
        assert arbiter.counts.failures == FAILURES_MAX
        assert p99(took_ms) < SLOWEST_MS
        own_redis.start()
        await until_refereed(arbiter)


async def test_a_redis_that_is_not_there_yet_is_used_once_it_is(own_redis):
    own_redis.kill()
    async with referee(own_redis.url) as arbiter:
        await claims(arbiter, 10)
        own_redis.start()
        await until_refereed(arbiter)


@pytest.mark.parametrize("fault", ["latency", "black hole", "cut"])
async def test_a_bad_network_is_given_up_after_three_calls_and_used_again_when_it_is_well(own_redis, fault):
    async with behind_proxy(own_redis.url, "test", slow_ms=SLOW_MS) as (proxy, mine, _):
        if fault == "latency":
            proxy.latency_s = 0.5
        elif fault == "black hole":
            proxy.black_hole()
        else:
            await proxy.cut()
        took_ms = await claims(mine, 300)
        assert mine.counts.failures == FAILURES_MAX
        assert p99(took_ms) < SLOWEST_MS
        await proxy.restore()
        await until_refereed(mine)


async def test_while_redis_is_away_it_is_looked_for_rarely_and_by_nobody_s_decision(own_redis):
    async with FaultProxy(*endpoint(own_redis.url)) as proxy, referee(f"redis://127.0.0.1:{proxy.port}/0") as arbiter:
        proxy.black_hole()
        await claims(arbiter, FAILURES_MAX, "before")
        connections = proxy.accepted
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            await claims(arbiter, 20, f"at-{time.monotonic_ns()}")
            await asyncio.sleep(0.01)
        assert 1 <= proxy.accepted - connections <= 8


async def test_what_this_process_is_late_itself_is_not_redis_s_fault(own_redis):
    async with referee(own_redis.url, slow_ms=200) as arbiter:
        await claims(arbiter, 1, "before")
        for n in range(FAILURES_MAX):
            claiming = asyncio.ensure_future(arbiter.claim([f"k-{n}"], f"n-{n}"))
            await asyncio.sleep(0)  # it has begun
            await asyncio.sleep(0)
            time.sleep(0.3)  # noqa: ASYNC251 - somebody's work on this loop
            assert list(await claiming) == [True]
        assert (arbiter.counts.failures, arbiter.counts.claimed) == (0, 1 + FAILURES_MAX)


@case("P159")
async def test_failures_leave_no_connections_behind(own_redis):
    async with redis.asyncio.Redis.from_url(own_redis.url) as direct:
        before = (await direct.info("clients"))["connected_clients"]
        for _ in range(20):
            async with behind_proxy(own_redis.url, "test") as (proxy, mine, _):
                proxy.at(b"MULTI", Fault.LOSE_REQUEST)
                await claims(mine, 2, f"at-{time.monotonic_ns()}")
                await mine.finish({"k": Mark.FINAL}, "n")
        async with asyncio.timeout(BACK_S):
            while (await direct.info("clients"))["connected_clients"] > before:  # noqa: ASYNC110  Redis has no event
                await asyncio.sleep(0.01)


# ── a Redis that forgets or refuses ────────────────────────────────────────────────────


async def test_a_flushed_redis_grants_anew_and_nothing_fails(own_redis):
    async with referee(own_redis.url) as mine, referee(own_redis.url) as theirs:
        async with redis.asyncio.Redis.from_url(own_redis.url) as direct:
            assert list(await mine.claim(["a"], "n-1")) == [True]
            await direct.flushall()
            assert list(await theirs.claim(["a"], "n-2")) == [True]
            await mine.finish({"a": Mark.FINAL}, "n-1")
            await mine.flush()
            await direct.flushall()
            await theirs.finish({"a": Mark.FREE}, "n-2")
            await theirs.flush()
            stop = asyncio.Event()

            async def flush() -> None:
                while not stop.is_set():
                    await direct.flushall()

            flushing = asyncio.ensure_future(flush())
            await claims(mine, 200)
            stop.set()
            await flushing
        assert (mine.counts.failures, theirs.counts.failures) == (0, 0)


async def test_a_full_redis_refuses_claims_and_decisions_go_on_until_it_has_room(own_redis):
    async with redis.asyncio.Redis.from_url(own_redis.url) as direct, referee(own_redis.url) as arbiter:
        await direct.config_set("maxmemory", 1)
        took_ms = await claims(arbiter, 300)
        assert (arbiter.counts.failures, arbiter.counts.claimed) == (FAILURES_MAX, 0)
        assert p99(took_ms) < SLOWEST_MS
        await direct.config_set("maxmemory", 0)
        await until_refereed(arbiter)


@case("P156")
async def test_a_redis_that_evicts_keys_bars_nobody(own_redis):
    async with redis.asyncio.Redis.from_url(own_redis.url) as direct, referee(own_redis.url) as arbiter:
        await direct.config_set("maxmemory-policy", "allkeys-lru")
        await direct.config_set("maxmemory", "4mb")
        await claims(arbiter, 250, "early")
        for n in range(40):
            await direct.set(f"filler-{n}", b"x" * 200_000)
        await claims(arbiter, 250, "late")


async def test_a_read_only_replica_is_none_to_claim_on(own_redis, caplog):
    async with redis.asyncio.Redis.from_url(own_redis.url) as direct, referee(own_redis.url) as arbiter:
        await direct.replicaof("127.0.0.1", "1")
        await arbiter.check()
        assert [record.message for record in caplog.records] == ["referee.read_only"]
        await claims(arbiter, 20)
        assert (arbiter.counts.failures, arbiter.counts.claimed) == (FAILURES_MAX, 0)
        await direct.replicaof("NO", "ONE")
        await until_refereed(arbiter)


async def test_a_redis_that_lets_us_do_nothing_is_gone_without(own_redis):
    async with redis.asyncio.Redis.from_url(own_redis.url) as direct:
        await direct.acl_setuser("weak", enabled=True, passwords=["+secret"], commands=["+ping", "+get"], keys=["*"])
        host, port = endpoint(own_redis.url)
        for login in ("weak:secret", "weak:wrong", ":wrong"):
            async with referee(f"redis://{login}@{host}:{port}/0") as arbiter:
                await claims(arbiter, 10)
                assert arbiter.counts.claimed == 0
                told = await arbiter.describe()
                assert "secret" not in str(told)
                assert "fault" in told


async def test_a_cluster_that_sends_us_elsewhere_is_gone_without(home):
    server = PrivateRedis(home.place("redis-cluster"), "--cluster-enabled", "yes")
    server.start()
    try:
        async with referee(server.url) as arbiter:
            await claims(arbiter, 10)
            assert (arbiter.counts.failures, arbiter.counts.claimed) == (FAILURES_MAX, 0)
    finally:
        server.close()
