"""Proves that stores of several processes on one PostgreSQL never both win, and never see half of each other's work."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import asyncpg
import pytest

from placet.adapters.sql import postgres_sessions, postgres_writing
from placet.adapters.sql.postgres import PostgresStore
from placet.errors import Code, RetryableError
from placet.runtime.ports import Fate, Unit
from tests.builders import RUN_ID, TENANT
from tests.contracts.on_store import COMMITTED, LOST, violated
from tests.contracts.units import (
    OPERATION_AT,
    THREAD_AT,
    approval_at,
    attempt,
    attempt_end,
    entry,
    leaf,
    outcome,
    revocation,
    run_at,
    said,
    sent,
    step,
    write,
)
from tests.live.postgres_stores import EMPTY, execute, held

ROUNDS = 30


@pytest.fixture(scope="module")
def migrated_url(postgres):
    with held(postgres.url) as url:
        yield url


@pytest.fixture
async def url(migrated_url):
    """A database in which nothing is."""
    await execute(migrated_url, EMPTY)
    return migrated_url


@pytest.fixture
async def stores(url):
    """Three processes' stores."""
    opened = [await PostgresStore.open(url, name=f"placet test {number}") for number in range(3)]
    yield opened
    for store in opened:
        await store.close()


@asynccontextmanager
async def stopped_at(url: str, sql: str, *values: object):
    """Somebody else's transaction that has done this and waits; committed at the end."""
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute(sql, *values)
            yield other
    finally:
        await other.close()


async def waits_for_lock(url: str) -> None:
    """Until a statement waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    watcher = await asyncpg.connect(url)
    try:
        while not await watcher.fetchval(waiting):  # noqa: ASYNC110  the server tells nobody by itself
            await asyncio.sleep(0.005)
    finally:
        await watcher.close()


STEP = "UPDATE state SET version = version + 1 WHERE run_id = $1 AND machine = $2 AND key = $3"
TOUCH = "SELECT 1 FROM state WHERE run_id = $1 AND machine = $2 AND key = $3 FOR UPDATE"


# ── one winner ─────────────────────────────────────────────────────────────────────────


async def test_of_those_who_create_a_state_at_once_one_succeeds_and_the_others_hear_that_they_lost(stores):
    for number in range(ROUNDS):
        at = run_at(f"run-{number}")
        units = [step(at, 0, leaf(1, at.run_id), status=str(n), outbox=[sent(f"{number}-{n}")]) for n in range(3)]
        results = await asyncio.gather(*(store.commit([unit]) for store, unit in zip(stores, units, strict=True)))
        fates = [result.fate for (result,) in results]
        assert Counter(fates) == {Fate.COMMITTED: 1, Fate.LOST: 2}
        loaded = await stores[0].load([at], [])
        assert loaded.states[at].status == str(fates.index(Fate.COMMITTED))
    rows = await stores[0].claim_due(1_000, 1)
    assert len(rows) == ROUNDS


async def test_a_loser_does_not_take_its_neighbours_along(stores):
    for number in range(ROUNDS):
        batches = [
            [step(run_at(f"own-{number}-{n}-a")), step(run_at(f"shared-{number}")), step(run_at(f"own-{number}-{n}-b"))]
            for n in range(3)
        ]
        results = await asyncio.gather(*(store.commit(units) for store, units in zip(stores, batches, strict=True)))
        assert [result[0::2] for result in results] == [[COMMITTED] * 2] * 3
        assert sorted(result[1].fate for result in results) == [Fate.COMMITTED, Fate.LOST, Fate.LOST]


async def test_batches_that_meet_in_any_order_end_without_a_deadlock(stores):
    places = [run_at(f"run-{number}") for number in range(12)]
    await stores[0].commit([step(place) for place in places])
    orders = [places, places[::-1], places[6:] + places[:6]]
    for version in range(1, ROUNDS + 1):
        calls = [
            store.commit([step(place, version) for place in order]) for store, order in zip(stores, orders, strict=True)
        ]
        async with asyncio.timeout(5):  # a deadlock would take the server a second to see, each time
            results = await asyncio.gather(*calls)
        won = Counter(
            place
            for order, result in zip(orders, results, strict=True)
            for place, one in zip(order, result, strict=True)
            if one == COMMITTED
        )
        assert won == dict.fromkeys(places, 1)


# ── guards hold at commit ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("together", [True, False], ids=["one-statement", "one-by-one"])
async def test_a_commit_waits_for_whoever_is_changing_what_it_relies_on_and_then_loses(stores, url, together):
    await stores[0].commit([step()])
    unit = step(THREAD_AT, 0, guards={run_at(): 1})
    neighbours = [] if together else [step(run_at("n")), step(run_at("n"), 1)]
    async with stopped_at(url, STEP, RUN_ID, "run", ""):
        waiting = asyncio.create_task(stores[1].commit([unit, *neighbours]))
        await waits_for_lock(url)
        assert not waiting.done()
    assert await waiting == [LOST, *[COMMITTED] * len(neighbours)]
    assert (await stores[2].load([THREAD_AT], [])).versions[THREAD_AT] == 0


async def test_a_commit_that_had_to_wait_and_finds_everything_as_it_was_succeeds(stores, url):
    await stores[0].commit([step()])
    async with stopped_at(url, TOUCH, RUN_ID, "run", ""):
        waiting = asyncio.create_task(stores[1].commit([step(THREAD_AT, 0, guards={run_at(): 1}), step(expected=1)]))
        await waits_for_lock(url)
    assert await waiting == [COMMITTED, COMMITTED]


async def test_a_deadline_is_looked_at_after_the_wait(stores, url):
    await stores[0].commit([step()])
    now_ms, _ = await stores[0].next_due_ms()
    async with stopped_at(url, TOUCH, RUN_ID, "run", ""):
        waiting = asyncio.create_task(stores[1].commit([step(None, 1, before_ms=now_ms + 300)]))
        await waits_for_lock(url)
        while (await stores[2].next_due_ms())[0] < now_ms + 300:  # noqa: ASYNC110  it is the server's clock
            await asyncio.sleep(0.01)
    assert await waiting == [LOST]


async def test_of_two_who_rely_on_each_other_s_states_one_loses(stores):
    await stores[0].commit([step(), step(THREAD_AT)])
    run, thread = 1, 1
    for _ in range(ROUNDS):
        results = await asyncio.gather(
            stores[0].commit([step(None, run, guards={THREAD_AT: thread})]),
            stores[1].commit([step(THREAD_AT, thread, guards={run_at(): run})]),
        )
        assert sorted(result.fate for (result,) in results) == [Fate.COMMITTED, Fate.LOST]
        run, thread = run + (results[0] == [COMMITTED]), thread + (results[1] == [COMMITTED])


async def test_of_two_who_rely_on_the_absence_of_each_other_s_states_one_loses(stores):
    for number in range(ROUNDS):
        run, other = run_at(f"run-{number}"), approval_at("apr_1", f"run-{number}")
        results = await asyncio.gather(
            stores[0].commit([step(run, guards={other: 0})]), stores[1].commit([step(other, guards={run: 0})])
        )
        assert sorted(result.fate for (result,) in results) == [Fate.COMMITTED, Fate.LOST]


async def test_a_revocation_and_the_start_that_it_forbids_are_never_both_committed(stores):
    """The one relies on the absence of the operation's state, the other on the version of the approval's."""
    for number in range(ROUNDS):
        run_id = f"run-{number}"
        approval, operation = approval_at("apr_1", run_id), OPERATION_AT._replace(run_id=run_id)
        await stores[0].commit([step(approval, 0, outcome(run_id=run_id))])
        revoke = step(approval, 1, revocation(run_id=run_id), guards={operation: 0})
        start = step(operation, 0, attempt(run_id=run_id), guards={approval: 1})
        results = await asyncio.gather(stores[number % 2].commit([revoke]), stores[2].commit([start]))
        assert sorted(result.fate for (result,) in results) == [Fate.COMMITTED, Fate.LOST]


# ── others in the way ──────────────────────────────────────────────────────────────────


async def test_whoever_waits_too_long_for_a_lock_is_told_that_nothing_was_written(url, monkeypatch):
    monkeypatch.setitem(postgres_sessions.SETTINGS, "lock_timeout", "100")
    store = await PostgresStore.open(url)
    try:
        await store.commit([step()])
        async with stopped_at(url, TOUCH, RUN_ID, "run", ""):
            with pytest.raises(RetryableError) as raised:
                await store.commit([step(expected=1), step(run_at("other"))])
        assert raised.value.code is Code.STORE_UNAVAILABLE
        assert f"{postgres_writing.TRIES_MAX} times" in raised.value.message
        assert (await store.load([run_at(), run_at("other")], [])).versions == {run_at(): 1, run_at("other"): 0}
        assert await store.commit([step(expected=1)]) == [COMMITTED]
    finally:
        await store.close()


async def test_a_deadlock_that_the_server_ends_is_tried_again(stores, url):
    await stores[0].commit([step(run_at("a")), step(run_at("b"))])
    other = await asyncpg.connect(url)
    try:
        await other.execute("SET deadlock_timeout = '10s'")  # so that the store's side is the one that is ended
        transaction = other.transaction()
        await transaction.start()
        await other.execute(TOUCH, "b", "run", "")
        committing = asyncio.create_task(stores[0].commit([step(run_at("a"), 1), step(run_at("b"), 1)]))
        await waits_for_lock(url)
        await other.execute(TOUCH, "a", "run", "")  # granted when the server has ended the store's statement
        await transaction.rollback()
        assert await committing == [COMMITTED, COMMITTED]
    finally:
        await other.close()


# ── relays ─────────────────────────────────────────────────────────────────────────────


async def test_a_row_goes_to_one_relay_of_many_and_oldest_first(stores):
    await stores[0].commit([step(outbox=[sent(f"msg_{number:03}") for number in range(300)])])
    claimed: list[list[str]] = [[], [], []]

    async def relay(number: int) -> None:
        while rows := await stores[number].claim_due(7, 60_000):
            claimed[number] += [row.id for row in rows]

    await asyncio.gather(*map(relay, range(3)))
    assert sorted(one for each in claimed for one in each) == [f"msg_{number:03}" for number in range(300)]
    assert all(each == sorted(each) for each in claimed)


async def test_a_relay_passes_over_what_another_is_claiming_at_this_moment(stores, url):
    await stores[0].commit([step(outbox=[sent("a"), sent("b")])])
    async with stopped_at(url, "SELECT 1 FROM outbox WHERE id = $1 FOR UPDATE", "a"):
        async with asyncio.timeout(2):
            assert [row.id for row in await stores[1].claim_due(9, 60_000)] == ["b"]
    assert [row.id for row in await stores[1].claim_due(9, 60_000)] == ["a"]


# ── one by one ─────────────────────────────────────────────────────────────────────────


async def test_units_that_build_on_each_other_see_each_other(stores):
    units = [
        step(),
        step(None, 1, leaf(1), guards={THREAD_AT: 0}),
        step(THREAD_AT, 0, said(1), guards={run_at(): 2}),
        Unit(states=[write(expected=2)], guards={THREAD_AT: 1}, journal=[entry(version=3)]),
    ]
    assert await stores[0].commit(units) == [COMMITTED] * 4
    loaded = await stores[1].load([run_at(), THREAD_AT], [])
    assert loaded.versions == {run_at(): 3, THREAD_AT: 1}


async def test_an_attempt_ends_and_the_next_opens_in_one_statement_or_one_by_one(stores):
    await stores[0].commit([step(OPERATION_AT, 0, attempt(1))])
    units = [step(OPERATION_AT, 1, attempt_end(1), attempt(2))]
    assert postgres_writing.Gathered(units).regular
    assert await stores[0].commit(units) == [COMMITTED]
    units = [step(OPERATION_AT, 2, attempt_end(2), attempt(3), attempt_end(3), attempt(4))]
    assert not postgres_writing.Gathered(units).regular
    assert await stores[1].commit(units) == [COMMITTED]
    ended = [row["ended"] for row in await stores[2].rows(TENANT, "operation_attempt", RUN_ID)]
    assert ended == ["succeeded"] * 3 + [None]


async def test_a_culprit_among_many_is_found_and_the_others_are_committed(stores):
    await stores[0].commit([step(run_at("run-7"), 0, leaf(1, "run-7"))])
    units = [step(run_at(f"run-{n}"), 0 if n != 7 else 1, leaf(1, f"run-{n}")) for n in range(20)]
    results = await stores[1].commit(units)
    assert results == [violated("pk_audit_leaf") if n == 7 else COMMITTED for n in range(20)]


# ── what waits for the disk ────────────────────────────────────────────────────────────


async def test_a_commit_waits_for_the_disk_and_a_claim_does_not(stores):
    shown = [
        await stores[0]._sessions.run(lambda session: session.fetch("SHOW synchronous_commit"), durable=durable)
        for durable in (True, False, True)
    ]
    assert [rows[0][0] for rows in shown] == ["on", "off", "on"]
    await stores[0].commit([step(outbox=[sent("a"), sent("b")])])
    assert [row.id for row in await stores[0].claim_due(1, 60_000)] == ["a"]
    await stores[0].discard(["a"])
    assert [row.id for row in await stores[1].claim_due(9, 60_000)] == ["b"]
