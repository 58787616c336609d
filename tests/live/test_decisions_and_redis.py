"""Proves that the first decision wins with Redis well, flushed, frozen, killed or split; nobody waits for it."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest
import redis.asyncio

from placet.adapters.redis import RedisArbiter
from tests.live.test_arbiter_faults import SLOWEST_MS, p99
from tests.runtime.deciding import Decider, Questions, decision

ASK_AGAIN_S = 0.01
REVIEWERS = 40


async def insist(decider: Decider, request, by: str) -> str:
    """Decide, and ask again under the same decision id as long as somebody else is at it."""
    for n in range(1_000):
        (answer,) = await decider.decide(decision(request, by, n))
        if answer != "busy":
            return answer
        await asyncio.sleep(ASK_AGAIN_S)
    raise AssertionError(f"{by} was told a thousand times to ask again")


async def race(urls: list[str], environment: str, rounds: int) -> None:
    """Each round: REVIEWERS on one request, spread over as many services as there are addresses. One outcome each."""
    questions = Questions()
    arbiters = [RedisArbiter(url, environment=environment) for url in urls]
    for round_ in range(rounds):
        request = await questions.open(round_)
        # A decider handles one batch at a time, as a worker does: each reviewer has one here, on a shared referee.
        deciders = [Decider(questions, arbiters[n % len(arbiters)]) for n in range(REVIEWERS)]
        answers = await asyncio.gather(*(insist(decider, request, f"p-{n}") for n, decider in enumerate(deciders)))
        assert sorted(answers) == ["accepted"] + ["conflict"] * (REVIEWERS - 1)
        assert await questions.status(request) == "approved"
    for arbiter in arbiters:
        await arbiter.close()


async def test_of_many_reviewers_one_wins_and_all_others_hear_of_it(redis_url, redis_prefix):
    await race([redis_url] * 3, redis_prefix, rounds=5)


async def test_flushed_all_the_time_the_outcome_is_the_same(own_redis):
    stop = asyncio.Event()

    async def flush() -> None:
        async with redis.asyncio.Redis.from_url(own_redis.url) as direct:
            while not stop.is_set():
                await direct.flushall()
                await asyncio.sleep(0.001)

    flushing = asyncio.ensure_future(flush())
    await race([own_redis.url] * 3, "test", rounds=5)
    stop.set()
    await flushing


async def test_two_that_each_think_to_be_the_redis_grant_both_and_the_facts_decide(own_redis, redis_url, redis_prefix):
    await race([own_redis.url, redis_url], redis_prefix, rounds=5)


@pytest.mark.parametrize("fault", ["frozen", "killed", "never there"])
async def test_without_redis_decisions_go_on_and_nearly_all_of_them_at_once(own_redis, fault):
    questions = Questions()
    requests = [await questions.open(n) for n in range(300)]
    arbiter = RedisArbiter(own_redis.url if fault != "never there" else "redis://127.0.0.1:1/0", environment="test")
    decider = Decider(questions, arbiter)
    await arbiter.check()
    if fault == "frozen":
        own_redis.freeze()
    elif fault == "killed":
        own_redis.kill()
    took_ms = []
    for request in requests:
        began_s = time.perf_counter()
        assert await decider.decide(decision(request, "alice")) == ["accepted"]
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    assert p99(took_ms) < SLOWEST_MS
    assert statistics.median(took_ms) < 20
    await arbiter.close()


async def test_a_repeated_decision_gets_its_receipt_again_whatever_redis_remembers(redis_url, redis_prefix):
    questions = Questions()
    request = await questions.open()
    arbiters = [RedisArbiter(redis_url, environment=redis_prefix) for _ in range(2)]
    first, second = (Decider(questions, arbiter) for arbiter in arbiters)
    assert await first.decide(decision(request, "alice")) == ["accepted"]
    await arbiters[0].flush()
    assert await second.decide(decision(request, "alice", 1)) == ["accepted"], "the same receipt, not busy"
    assert first.answers["alice-0"] == second.answers["alice-1"]
    assert await second.decide(decision(request, "bob")) == ["conflict"]
    for arbiter in arbiters:
        await arbiter.close()


async def test_co_approvers_are_not_told_to_ask_again_once_the_first_has_voted(redis_url, redis_prefix):
    questions = Questions()
    request = await questions.open(quorum=REVIEWERS)
    arbiters = [RedisArbiter(redis_url, environment=redis_prefix) for _ in range(2)]
    assert await Decider(questions, arbiters[0]).decide(decision(request, "p-0")) == ["accepted"]
    await arbiters[0].flush()
    deciders = [Decider(questions, arbiters[n % 2]) for n in range(REVIEWERS)]
    answers = await asyncio.gather(*(deciders[n].decide(decision(request, f"p-{n}")) for n in range(1, REVIEWERS)))
    assert [answer for (answer,) in answers] == ["accepted"] * (REVIEWERS - 1)
    assert await questions.status(request) == "approved"
    for arbiter in arbiters:
        await arbiter.close()
