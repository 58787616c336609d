"""The referee on a real Redis keeps every promise of a referee, and stays within the protocol."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from placet.adapters.redis import RedisArbiter
from placet.errors import Code, TerminalError
from placet.limits import BATCH_MAX, CLAIM_LEASE_MS
from placet.runtime.ports import Mark
from tests.cases import case
from tests.contracts.arbiter_contract import ArbiterContract

PATIENT_MS = 2_000
"""On a machine under test a server may be slow without being away; how quick it must be is proved elsewhere."""


class TestRedisArbiter(ArbiterContract):
    adapter = "redis"

    @pytest.fixture(autouse=True)
    def _one_redis(self, redis_url, redis_prefix):
        self.url, self.environment = redis_url, redis_prefix

    async def make(self):
        return RedisArbiter(self.url, environment=self.environment, slow_ms=PATIENT_MS)

    async def told(self, arbiter):
        await arbiter.flush()

    async def pass_ms(self, time_ms):
        await asyncio.sleep(time_ms / 1_000)  # Redis has a clock of its own, and nothing tells when a key lapses

    async def close(self, arbiter):
        await arbiter.close()


@pytest.fixture
async def arbiter(redis_url, redis_prefix):
    one = RedisArbiter(redis_url, environment=redis_prefix, slow_ms=PATIENT_MS)
    yield one
    await one.close()


@pytest.fixture
async def direct(redis_url):
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


async def test_a_claim_names_its_phase_and_nonce_and_lapses_after_the_lease(arbiter, direct, redis_prefix):
    await arbiter.claim(["acme/run-1/apr_1"], "n-1")
    name = f"{{{redis_prefix}}}:ap:acme/run-1/apr_1"
    assert await direct.get(name) == b'{"phase":"claim","nonce":"n-1"}'
    assert 0 < await direct.pttl(name) <= CLAIM_LEASE_MS


async def test_a_decision_leaves_a_mark_for_a_day(arbiter, direct, redis_prefix):
    await arbiter.claim(["a"], "n-1")
    await arbiter.finish({"a": Mark.FINAL}, "n-1")
    await arbiter.flush()
    assert await direct.get(f"{{{redis_prefix}}}:ap:a") == b'{"phase":"final","nonce":"n-1"}'
    assert 86_000_000 < await direct.pttl(f"{{{redis_prefix}}}:ap:a") <= 86_400_000


async def test_environments_do_not_meet(arbiter, redis_url, redis_prefix):
    other = RedisArbiter(redis_url, environment=f"{redis_prefix}-other", slow_ms=PATIENT_MS)
    assert list(await arbiter.claim(["a"], "n-1")) == [True]
    assert list(await other.claim(["a"], "n-2")) == [True]
    await other.close()


async def test_what_this_process_let_go_is_its_own_again_before_redis_has_heard_of_it(arbiter):
    await arbiter.claim(["a"], "n-1")
    await arbiter.finish({"a": Mark.FREE}, "n-1")
    assert list(await arbiter.claim(["a"], "n-2")) == [True]


async def test_a_claim_that_has_lapsed_and_is_another_s_now_is_not_freed(arbiter, direct, redis_prefix):
    name = f"{{{redis_prefix}}}:ap:a"
    await arbiter.claim(["a"], "n-1")
    await direct.set(name, '{"phase":"claim","nonce":"n-2"}', px=CLAIM_LEASE_MS)
    await arbiter.finish({"a": Mark.FREE}, "n-1")
    await arbiter.flush()
    assert await direct.get(name) == b'{"phase":"claim","nonce":"n-2"}'


@case("P154")
async def test_of_a_hundred_who_race_at_once_one_is_granted_and_the_rest_end(redis_url, redis_prefix):
    racers = [RedisArbiter(redis_url, environment=redis_prefix, slow_ms=PATIENT_MS) for _ in range(100)]
    granted = await asyncio.gather(*(racer.claim(["a"], f"n-{n}") for n, racer in enumerate(racers)))
    assert sum(answer for (answer,) in granted) == 1
    assert [racer.counts.failures for racer in racers] == [0] * 100
    for racer in racers:
        await racer.close()


async def test_two_workers_of_one_process_may_share_a_referee(arbiter):
    granted = await asyncio.gather(*(arbiter.claim(["a", f"own-{n}"], f"n-{n}") for n in range(10)))
    assert sum(first for first, _ in granted) == 1
    assert all(second for _, second in granted)


async def test_a_claim_that_was_refused_leaves_no_watch_behind_to_spoil_the_next(arbiter, redis_url, redis_prefix):
    other = RedisArbiter(redis_url, environment=redis_prefix, slow_ms=PATIENT_MS)
    await other.claim(["a"], "n-2")
    assert list(await arbiter.claim(["a"], "n-1")) == [False]
    await other.finish({"a": Mark.FREE}, "n-2")
    await other.close()
    assert list(await arbiter.claim(["b"], "n-3")) == [True]
    assert arbiter.counts.contended == 0


async def test_a_batch_costs_two_exchanges_whatever_its_size(arbiter, direct):
    await arbiter.check()
    before = await direct.info("stats")
    await arbiter.claim([f"key-{n}" for n in range(BATCH_MAX)], "n-1")
    after = await direct.info("stats")
    reads = after["total_reads_processed"] - before["total_reads_processed"]
    assert reads <= 4, "two, and the questions of this test"


# ── garbage under our keys ─────────────────────────────────────────────────────────────

GARBAGE = [b"", b"\x00\xff", b"[" * 500, b"{}", b'"claim"', b'{"phase":"claim"}', b'{"phase":"x","nonce":"n"}', b"null"]


@pytest.mark.parametrize("value", [*GARBAGE, b"x" * 10_000_000], ids=lambda value: repr(value[:12]))
async def test_a_foreign_value_is_ignored_and_alarmed_and_the_rest_of_the_batch_is_refereed(
    arbiter, direct, redis_prefix, value, caplog
):
    await direct.set(f"{{{redis_prefix}}}:ap:a", value)
    assert list(await arbiter.claim(["a", "b"], "n-1")) == [True, True]
    foreign = 0 if value == b"" else 1  # an empty value is as good as none
    assert arbiter.counts.foreign == foreign
    assert [record.message for record in caplog.records] == ["referee.foreign_value"] * foreign
    assert arbiter.counts.claimed == 2 - foreign
    assert arbiter.counts.failures == 0


async def test_a_value_of_a_wrong_type_is_ignored_and_replaced_by_the_decision(arbiter, direct, redis_prefix):
    await direct.rpush(f"{{{redis_prefix}}}:ap:a", "not", "ours")
    await direct.hset(f"{{{redis_prefix}}}:ap:b", "not", "ours")
    assert list(await arbiter.claim(["a", "b", "c"], "n-1")) == [True, True, True]
    assert (arbiter.counts.foreign, arbiter.counts.claimed, arbiter.counts.failures) == (2, 1, 0)
    await arbiter.finish({"a": Mark.FINAL, "b": Mark.FREE, "c": Mark.FREE}, "n-1")
    await arbiter.flush()
    assert await direct.get(f"{{{redis_prefix}}}:ap:a") == b'{"phase":"final","nonce":"n-1"}'
    assert await direct.exists(f"{{{redis_prefix}}}:ap:b", f"{{{redis_prefix}}}:ap:c") == 1


async def test_forged_final_marks_bar_nobody(arbiter, direct, redis_prefix):
    for key in "abc":
        await direct.set(f"{{{redis_prefix}}}:ap:{key}", '{"phase":"final","nonce":"forged"}')
    assert list(await arbiter.claim(list("abc"), "n-1")) == [True, True, True]


async def test_a_claim_that_never_lapses_bars_nobody_for_longer_than_a_lease(direct, redis_url, redis_prefix):
    now_s = 1_000.0
    arbiter = RedisArbiter(redis_url, environment=redis_prefix, slow_ms=PATIENT_MS, monotonic_s=lambda: now_s)
    await direct.set(f"{{{redis_prefix}}}:ap:a", '{"phase":"claim","nonce":"forged"}')
    for seen_s, granted in ((1_000.0, False), (1_002.9, False), (1_003.0, True), (1_003.1, True), (1_007.0, False)):
        now_s = seen_s
        assert list(await arbiter.claim(["a"], f"n-{seen_s}")) == [granted], seen_s
    assert arbiter.counts.overstayed == 2
    await arbiter.close()


# ── the start ──────────────────────────────────────────────────────────────────────────


async def test_a_sound_redis_passes_and_is_described(arbiter):
    await arbiter.check()
    found = await arbiter.describe()
    assert found["role"] == "master"
    assert found["maxmemory_policy"] == "noeviction"
    assert found["breaker"] == "closed"
    assert found["redis_version"]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
@case("P156")
async def test_a_redis_that_may_evict_keys_is_refused_at_start(own_redis, policy):
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        await client.config_set("maxmemory-policy", policy)
    arbiter = RedisArbiter(own_redis.url, environment="test")
    with pytest.raises(TerminalError, match=policy) as error:
        await arbiter.check()
    assert error.value.code is Code.SETTING_INVALID
    await arbiter.close()


async def test_a_redis_that_is_away_is_no_fault_at_start(caplog):
    arbiter = RedisArbiter("redis://127.0.0.1:1/0", environment="test")
    await arbiter.check()
    assert [record.message for record in caplog.records] == ["referee.away"]
    assert "fault" in await arbiter.describe()
    await arbiter.close()
    await arbiter.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379", ""])
def test_an_address_that_is_none_is_refused_without_repeating_it(url):
    with pytest.raises(TerminalError) as error:
        RedisArbiter(url, environment="test")
    assert error.value.code is Code.SETTING_INVALID
