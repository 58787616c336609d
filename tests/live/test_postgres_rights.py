"""Proves what each service's role may do in the database, by trying it as that role: what its machine does, no more."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from placet.adapters.sql import postgres_statements as pg
from placet.adapters.sql.postgres import _SQL, PostgresStore
from placet.adapters.sql.postgres_migrating import GATEWAY, OWNED, SERVICES, migrate, role_of, scram
from placet.adapters.sql.postgres_sessions import SETTINGS
from placet.columns import KEYS
from placet.errors import Code, RetryableError, TerminalError
from placet.messages import APPROVAL, OPERATION, RUN
from placet.rows import READABLE
from placet.topology import QUEUES
from tests.builders import RUN_ID, TENANT
from tests.contracts.on_store import COMMITTED, LOST
from tests.contracts.units import (
    ONE_OF_EACH,
    OPERATION_AT,
    approval_at,
    attempt,
    attempt_end,
    entry,
    leaf,
    letter,
    retry,
    run_at,
    sent,
    step,
    steps_of,
)
from tests.live import spaces
from tests.live.postgres_server import PrivatePostgres
from tests.live.postgres_stores import EMPTY, execute, held

WORKERS = tuple(QUEUES)
ROW_OF = {row.table: row for row in ONE_OF_EACH}
FOREIGN = [
    (service, table) for service in SERVICES for table in KEYS if table not in OWNED.get(QUEUES.get(service, ""), ())
]
"""A service, and a table of facts that are another's."""


@pytest.fixture(scope="module")
def prefix():
    """Roles belong to the whole server, which others use as well."""
    return spaces.fresh_name()


@pytest.fixture(scope="module")
def migrated_url(postgres, prefix):
    with held(postgres.url, prefix=prefix) as url:
        yield url
    for service in SERVICES:
        asyncio.run(execute(postgres.url, f"DROP ROLE {role_of(service, prefix)}"))


@pytest.fixture
async def url(migrated_url):
    """A database in which nothing is."""
    await execute(migrated_url, EMPTY)
    return migrated_url


@pytest.fixture
async def open_as(url, prefix):
    """Opens the store of a service."""
    opened = []

    async def open_as(service: str) -> PostgresStore:
        opened.append(await PostgresStore.open(url, role=role_of(service, prefix)))
        return opened[-1]

    yield open_as
    for store in opened:
        await store.close()


def own_row(service: str, table: str):
    """A row of the table that the service's machine owns."""
    return retry(machine=QUEUES[service]) if table == "retry_decision" else ROW_OF[table]


async def refused(call) -> TerminalError:
    with pytest.raises(TerminalError) as raised:
        await call
    assert raised.value.code is Code.STORE_UNAVAILABLE
    assert "has not the right" in raised.value.message
    return raised.value


# ── what a service may ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("service", WORKERS)
async def test_a_service_does_everything_that_its_machine_does(open_as, service):
    store = await open_as(service)
    assert store.describe()["role"].endswith(service.replace("-", "_"))
    for table in OWNED[QUEUES[service]]:
        row = own_row(service, table)
        owner, version = row.owner(), (await store.load([row.owner()], [])).versions[row.owner()]
        unit = step(owner, version, row, journal=[entry(owner, version + 1)], outbox=[sent(table)])
        unit.dead_letters.append(letter(table))
        assert await store.commit([unit]) == [COMMITTED], table
        assert await store.rows(TENANT, table, RUN_ID)
    keys = [row.fact_key() for row in ONE_OF_EACH if row.table in READABLE]
    assert (await store.load([run_at(), approval_at()], keys)).now_ms
    rows = await store.claim_due(9, 1_000)
    assert {row.id for row in rows} == set(OWNED[QUEUES[service]])
    await store.discard([rows[0].id])
    assert (await store.next_due_ms())[1] is None or len(rows) > 1


async def test_a_tool_executor_ends_what_it_began_one_statement_or_one_by_one(open_as):
    store = await open_as("tool-executor")
    assert await store.commit([step(OPERATION_AT, 0, attempt(1))]) == [COMMITTED]
    assert await store.commit([step(OPERATION_AT, 1, attempt_end(1), attempt(2))]) == [COMMITTED]
    assert await store.commit([step(OPERATION_AT, 2, attempt_end(2), attempt(3), attempt_end(3))]) == [COMMITTED]


async def test_a_service_relies_on_states_that_it_may_not_step(open_as):
    run, approval, tools = [await open_as(service) for service in ("dispatcher", "approval", "tool-executor")]
    await run.commit([step()])
    await approval.commit([step(approval_at())])
    guards = {run_at(): 1, approval_at(): 1}
    assert await tools.commit([step(OPERATION_AT, guards=guards)]) == [COMMITTED]
    await run.commit([step(expected=1)])
    assert await tools.commit([step(OPERATION_AT, 1, guards=guards)]) == [LOST]
    assert await approval.commit([step(approval_at(), 1, guards={OPERATION_AT._replace(key="op_9"): 0})]) == [COMMITTED]


async def test_dispatcher_and_resume_have_the_same_rights_and_share_a_run(open_as):
    dispatcher, resume = await open_as("dispatcher"), await open_as("resume")
    assert await dispatcher.commit([step(None, 0, leaf(1))]) == [COMMITTED]
    assert await resume.commit([step(None, 1, leaf(2))]) == [COMMITTED]


async def test_the_gateway_reads_everything_that_people_are_shown(open_as, url):
    owner = await PostgresStore.open(url)
    facts = steps_of(*(row for row in ONE_OF_EACH if row.owner() != run_at()))
    own = [row for row in ONE_OF_EACH if row.owner() == run_at()]
    await owner.commit([facts, step(None, 0, *own, journal=[entry()], outbox=[sent()])])
    await owner.close()
    gateway = await open_as(GATEWAY)
    assert await gateway.runs(TENANT, status=None, limit=9, before=None)
    assert await gateway.requests(TENANT, open_only=False, limit=9, after=None)
    assert await gateway.journal(TENANT, RUN_ID)
    assert await gateway.outbox(TENANT, RUN_ID)
    assert await gateway.dead_letters(TENANT, run_id=None, limit=9) == []
    for table in KEYS:
        assert await gateway.rows(TENANT, table, RUN_ID)


# ── what it may not ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("service", SERVICES)
async def test_a_fact_is_inserted_only_by_the_service_that_owns_it(url, prefix, service):
    connection = await asyncpg.connect(url, server_settings={"role": role_of(service, prefix)})
    try:
        for table in (table for one, table in FOREIGN if one == service):
            with pytest.raises(asyncpg.exceptions.InsufficientPrivilegeError, match=f"table {table}"):
                await connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    finally:
        await connection.close()


@pytest.mark.parametrize("service", [service for service in WORKERS if service != "approval"])
async def test_nobody_but_the_approval_service_votes_whatever_its_messages_say(open_as, service, url):
    store = await open_as(service)
    for row in ONE_OF_EACH:
        if row.table in OWNED[APPROVAL]:
            await refused(store.commit([step(row.owner(), 0, row)]))
            await refused(store.commit([step(OPERATION_AT), step(row.owner(), 0, row, row)]))
    owner = await PostgresStore.open(url)
    assert [await owner.rows(TENANT, table, RUN_ID) for table in OWNED[APPROVAL]] == [[]] * 5
    assert (await owner.load([approval_at(), OPERATION_AT], [])).versions == {approval_at(): 0, OPERATION_AT: 0}
    await owner.close()


@pytest.mark.parametrize("service", WORKERS)
async def test_a_state_is_made_and_stepped_only_by_the_service_of_its_machine(open_as, url, service):
    owner = await PostgresStore.open(url)
    places = {RUN: run_at(), APPROVAL: approval_at(), OPERATION: OPERATION_AT}
    await owner.commit([step(place) for place in places.values()])
    store = await open_as(service)
    for machine, place in places.items():
        if machine != QUEUES[service]:
            await refused(store.commit([step(place, 1)]))
            await refused(store.commit([step(place._replace(run_id="other"))]))
    assert set((await owner.load(list(places.values()), [])).versions.values()) == {1}
    await owner.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_nobody_changes_or_deletes_a_fact_or_an_applied_message(url, prefix, service):
    connection = await asyncpg.connect(url, server_settings={"role": role_of(service, prefix)})
    try:
        for table in (*KEYS, "journal"):
            for sql in (f"UPDATE {table} SET run_id = 'x'", f"DELETE FROM {table}", f"TRUNCATE {table}"):
                with pytest.raises(asyncpg.exceptions.InsufficientPrivilegeError):
                    await connection.execute(sql)
        for sql in (
            "DELETE FROM state",
            "UPDATE state SET tenant = 'x'",
            "UPDATE outbox SET body = ''",
            "DELETE FROM dead_letter",
            "UPDATE alembic_version SET version_num = 'x'",
            "CREATE TABLE t (n int)",
            "CREATE FUNCTION placet_now_ms() RETURNS bigint LANGUAGE sql AS 'SELECT 0'",
            "ALTER TABLE approval_outcome DISABLE TRIGGER ALL",
            "SET session_replication_role = replica",
        ):
            with pytest.raises(asyncpg.exceptions.InsufficientPrivilegeError):
                await connection.execute(sql)
    finally:
        await connection.close()


async def test_the_gateway_writes_nothing(open_as):
    gateway = await open_as(GATEWAY)
    await refused(gateway.commit([step()]))
    await refused(gateway.claim_due(1, 1))
    await refused(gateway.discard(["a"]))


# ── who gets the rights ────────────────────────────────────────────────────────────────


async def test_a_user_who_hosts_two_services_has_the_rights_of_both(url, prefix):
    user = f"{prefix}_host"
    await execute(
        url, f"CREATE ROLE {user} LOGIN IN ROLE {role_of('dispatcher', prefix)}, {role_of('planner', prefix)}"
    )
    try:
        store = await PostgresStore.open(url, role=user)
        rows = [row for row in ONE_OF_EACH if row.table in ("operation", "audit_leaf", "thread_message")]
        assert await store.commit([steps_of(*rows)]) == [COMMITTED]
        await refused(store.commit([step(OPERATION_AT)]))
        await store.close()
    finally:
        await execute(url, f"DROP ROLE {user}")


async def test_a_role_that_is_not_there_is_named(url, prefix):
    with pytest.raises(RetryableError, match=f"{prefix}_nobody") as raised:
        await PostgresStore.open(url, role=f"{prefix}_nobody")
    assert raised.value.code is Code.STORE_UNAVAILABLE


async def test_a_role_finds_its_rows_as_the_owner_does(url, prefix):
    """What its rights are checked with does not change the plan."""
    statement = _SQL(pg.commit, True, "operation", "audit_leaf", "journal", "outbox", "consumed")
    plans = []
    for settings in ({}, {"role": role_of("dispatcher", prefix)}):
        connection = await asyncpg.connect(url, server_settings={**SETTINGS, **settings})
        await connection.execute(f"PREPARE look AS {statement.sql}")
        given = ", ".join(["NULL"] * len(statement.names))
        plans.append(await connection.fetch(f"EXPLAIN (COSTS off) EXECUTE look({given})"))
        await connection.close()
    assert plans[0] == plans[1]


async def test_doing_it_again_keeps_rights_and_takes_away_what_was_given_besides(url, prefix):
    role = role_of("planner", prefix)
    await execute(url, f"GRANT ALL ON approval_vote, state TO {role}")
    await migrate(url, prefix=prefix)
    answer = await migrate(url, prefix=prefix)
    assert answer["roles"] == [role_of(service, prefix) for service in SERVICES]
    store = await PostgresStore.open(url, role=role)
    await refused(store.commit([step(approval_at(), 0, ONE_OF_EACH[1])]))
    assert await store.commit([step(run_at()._replace(machine="thread", key="plan"))]) == [COMMITTED]
    await store.close()


def test_a_password_is_kept_as_the_server_keeps_it():
    """The example that PostgreSQL's own tests and documents use."""
    salt = bytes.fromhex("5b6d99689d123584cdb0f2a6c4a3ddfd")
    kept = scram("pencil", salt)
    assert kept.startswith("SCRAM-SHA-256$4096:")
    assert scram("pencil", salt) == kept != scram("pencil")


async def test_a_role_logs_in_with_its_password_only(own_postgres):
    if not isinstance(own_postgres, PrivatePostgres):
        pytest.skip("needs a server whose files can be written")
    rules = own_postgres.data / "pg_hba.conf"
    trusting = rules.read_text()
    prefix = spaces.fresh_name()
    async with spaces.database(own_postgres.url) as url:
        try:
            await migrate(url, prefix=prefix, passwords={"planner": "a-long-and-random-one"})
            user = role_of("planner", prefix)
            rules.write_text(f"host all {user} all scram-sha-256\n{trusting}")
            await execute(url, "SELECT pg_reload_conf()")
            at = url.rpartition("@")[2]
            store = await PostgresStore.open(f"postgresql://{user}:a-long-and-random-one@{at}")
            assert store.describe()["role"] == user
            await store.close()
            with pytest.raises(Exception, match="does not let the user in") as raised:
                await PostgresStore.open(f"postgresql://{user}:another@{at}")
            assert "another" not in str(raised.value)
        finally:
            rules.write_text(trusting)
            await execute(url, "SELECT pg_reload_conf()")
    for service in SERVICES:
        await execute(own_postgres.url, f"DROP ROLE {role_of(service, prefix)}")
