"""Every statement of the store on PostgreSQL finds its rows by an index, whatever the server knows of the tables."""

from __future__ import annotations

import asyncio
import re

import asyncpg
import pytest

from placet.adapters.sql import postgres_statements as pg
from placet.adapters.sql import statements as st
from placet.adapters.sql.postgres import _SQL, PostgresStore
from placet.adapters.sql.postgres_sessions import SETTINGS
from placet.adapters.sql.tables import metadata
from placet.columns import KEYS
from placet.rows import READABLE, STATE
from tests.contracts.units import ONE_OF_EACH, OPERATION_AT, attempt_end, entry, letter, run_at, sent, step, steps_of
from tests.live.postgres_stores import EMPTY, execute, held

FACTS = tuple(table for table in READABLE if table != STATE)
STATEMENTS = {
    "load": (pg.load, FACTS),
    "load-states": (pg.load, ()),
    "commit": (pg.commit, (False, "journal", "outbox", "consumed", "audit_leaf")),
    "commit-all": (pg.commit, (True, *pg.WRITES)),
    "lock": (pg.lock, ()),
    "claim": (pg.claim_due, ()),
    "next": (pg.next_due, ()),
    "discard": (pg.discard, ()),
    "thread": (st.thread_bodies, ()),
    "journal": (st.journal_of_state, ()),
    "attempt-end": (pg.attempt_end, ()),
    "runs": (st.list_runs, (False, True)),
    "runs-by-status": (st.list_runs, (True, True)),
    "requests": (st.list_requests, (False, True)),
    "requests-open": (st.list_requests, (True, True)),
    "request": (st.read_request, ()),
    "run-journal": (st.read_journal, ("journal.seq",)),
    "run-outbox": (st.read_outbox, ()),
    "letters": (st.list_dead_letters, (False,)),
    **{f"rows-{table}": (st.read_rows, (table,)) for table in KEYS},
}
KNOWN = ("nothing", "a-row-each", "a-row-each-analysed")
"""What the server knows. After ANALYZE of a table of one page, reading all of it looks cheapest; the plan that is then
kept would read a hundred thousand rows a minute later."""


@pytest.fixture(scope="module")
def migrated_url(postgres):
    with held(postgres.url) as url:
        yield url


@pytest.fixture(scope="module", params=KNOWN)
def known_url(migrated_url, request):
    """A database of which the server knows so much."""

    async def prepare() -> None:
        await execute(migrated_url, EMPTY)
        if request.param != "nothing":
            store = await PostgresStore.open(migrated_url)
            units = [steps_of(*ONE_OF_EACH), step(run_at("r"), journal=[entry(run_at("r"))], outbox=[sent()])]
            units[1].dead_letters.append(letter())
            await store.commit(units)
            await store.close()
        if request.param.endswith("analysed"):
            await execute(migrated_url, "ANALYZE")

    asyncio.run(prepare())
    return migrated_url


@pytest.fixture
async def session(known_url):
    """A connection as the store's are."""
    connection = await asyncpg.connect(known_url, server_settings=SETTINGS)
    yield connection
    await connection.close()


async def plan(session, build, variant) -> list[str]:
    """The steps of the plan that is kept for the statement."""
    statement = _SQL(build, *variant)
    await session.execute(f"PREPARE look AS {statement.sql}")
    kinds = await session.fetchval("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'look'")
    given = ", ".join("'{}'" if kind.endswith("[]") else "'1'" for kind in kinds)
    rows = await session.fetch(f"EXPLAIN EXECUTE look{f'({given})' if given else ''}")
    return [row[0].strip() for row in rows]


@pytest.mark.parametrize("name", STATEMENTS)
async def test_no_table_is_read_through(session, name):
    steps = await plan(session, *STATEMENTS[name])
    whole = [line for line in steps if re.search(r"Seq Scan|Bitmap|Hash Join|Merge Join|Materialize", line)]
    assert whole == []
    used = {index for line in steps for index in re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+)", line)}
    named = {str(index.name) for table in metadata.tables.values() for index in table.indexes}
    keys = {str(c.name) for table in metadata.tables.values() for c in table.constraints}
    assert used <= named | keys
    assert used or any("Tid Scan" in line for line in steps)


async def test_a_commit_reaches_a_state_by_its_key_once_and_then_where_it_lies(session):
    steps = await plan(session, *STATEMENTS["commit-all"])
    on_state = [line for line in steps if re.search(r"Scan .*on state\b", line)]
    assert [re.sub(r"^->\s+|\s+\(.*", "", line) for line in on_state] == [
        "Index Scan using pk_state on state",
        "Index Scan using pk_state on state state_1",
        "Tid Scan on state state_3",
    ]
    conditions = [line for line in steps if line.startswith("Index Cond: ((run_id = claim_given.run_id)")]
    assert len(conditions) == 2
    assert all("machine =" in line and "key =" in line for line in conditions)


async def test_no_commit_load_or_claim_of_a_running_store_reads_a_table_through(migrated_url):
    await execute(migrated_url, EMPTY)
    await execute(migrated_url, "ANALYZE")
    await execute(migrated_url, "SELECT pg_stat_reset()")
    store = await PostgresStore.open(migrated_url)
    await store.commit([steps_of(*ONE_OF_EACH)])
    for version in range(1, 20):
        ending = [attempt_end()] if version == 1 else []
        units = [step(OPERATION_AT, version, *ending), step(run_at(f"r-{version}"), outbox=[sent(f"m-{version}")])]
        await store.commit(units)
        await store.load([run_at(f"r-{version}")], [row.fact_key() for row in ONE_OF_EACH if row.table in READABLE])
        await store.claim_due(9, 60_000)
        await store.next_due_ms()
        await store.discard([f"m-{version}"])
    await store.close()
    connection = await asyncpg.connect(migrated_url)
    scans = "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE seq_scan > 0 AND relname <> 'alembic_version'"
    assert [tuple(row) for row in await connection.fetch(scans)] == []
    assert await connection.fetchval("SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 'state'") > 0
    await connection.close()
