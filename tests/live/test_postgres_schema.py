"""The migrations make the tables in PostgreSQL that statements are built from, and the database keeps every fact."""

from __future__ import annotations

import asyncio
import sys

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from placet.adapters.sql import schema
from placet.adapters.sql.postgres import PostgresStore
from placet.adapters.sql.postgres_migrating import SERVICES, migrate, role_of
from placet.adapters.sql.tables import metadata
from placet.columns import KEYS
from placet.errors import Code, ContractError, RetryableError
from tests.contracts.on_store import COMMITTED
from tests.contracts.units import ONE_OF_EACH, OPERATION_AT, entry, run_at, step, steps_of
from tests.live import spaces
from tests.live.postgres_stores import EMPTY, execute, held

COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, collation_name FROM information_schema.columns
WHERE table_schema = 'public' AND table_name <> 'alembic_version' AND (table_name, column_name) <> ('journal', 'seq')
"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
"""
STORAGE = "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"


@pytest.fixture(scope="module")
def migrated_url(postgres):
    with held(postgres.url) as url:
        yield url


@pytest.fixture
async def connection(migrated_url):
    """As the owner, who may do most, on a database with a fact of every kind."""
    await execute(migrated_url, EMPTY)
    store = await PostgresStore.open(migrated_url)
    units = [steps_of(*ONE_OF_EACH), step(OPERATION_AT, 1, journal=[entry(OPERATION_AT, 2)])]
    assert await store.commit(units) == [COMMITTED] * 2
    await store.close()
    connection = await asyncpg.connect(migrated_url)
    yield connection
    await connection.close()


# ── migrations ─────────────────────────────────────────────────────────────────────────


async def described(url: str) -> dict[str, list[str]]:
    """Everything that a migration makes, in order."""
    connection = await asyncpg.connect(url)
    try:
        found = {}
        for name, query in (
            ("columns", COLUMNS),
            ("indexes", INDEXES),
            ("constraints", CONSTRAINTS),
            ("storage", STORAGE),
        ):
            rows = [tuple(row) for row in await connection.fetch(query)]
            found[name] = sorted(map(str, (row for row in rows if "alembic_version" not in row)))
        return found
    finally:
        await connection.close()


async def test_the_migrations_make_exactly_the_tables_that_statements_are_built_from(postgres, migrated_url):
    async with spaces.database(postgres.url) as url:
        engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        await engine.dispose()
        assert await described(migrated_url) == await described(url)


async def test_long_values_are_compressed_quickly_where_the_server_can(migrated_url):
    connection = await asyncpg.connect(migrated_url)
    can = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    quick = "SELECT count(*) FROM pg_attribute WHERE attcompression = 'l' AND attrelid = 'state'::regclass"
    assert await connection.fetchval(quick) == (1 if await connection.fetchval(can) else 0)
    await connection.close()


MIGRATE = "import asyncio, sys; from placet.adapters.sql.postgres_migrating import SERVICES, migrate, role_of; "
MIGRATE += "asyncio.run(migrate(sys.argv[1], prefix=sys.argv[2]))"


async def migrate_as_process(url: str, prefix: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, url, prefix)
    return await process.wait()


async def drop_roles(url: str, prefix: str) -> None:
    for service in SERVICES:
        await execute(url, f"DROP ROLE {role_of(service, prefix)}")


async def test_of_several_processes_that_migrate_empty_databases_at_once_all_succeed(postgres):
    prefix = spaces.fresh_name()
    async with spaces.database(postgres.url) as one, spaces.database(postgres.url) as other:
        codes = await asyncio.gather(*(migrate_as_process(url, prefix) for url in (one, one, one, other)))
        assert codes == [0] * 4
        assert await described(one) == await described(other)
        store = await PostgresStore.open(one)
        assert await store.commit([step()]) == [COMMITTED]
        await store.close()
    await drop_roles(postgres.url, prefix)


async def test_one_process_may_be_asked_for_several_at_once(postgres):
    async with spaces.database(postgres.url) as one, spaces.database(postgres.url) as other:
        await asyncio.gather(*(migrate(url, prefix=None) for url in (one, other, one)))
        assert await described(one) == await described(other)


async def test_migrating_twice_changes_nothing(connection, migrated_url):
    before = await described(migrated_url)
    assert await migrate(migrated_url, prefix=None) == {"schema": schema.HEAD, "roles": []}
    assert await described(migrated_url) == before
    assert await connection.fetchval("SELECT count(*) FROM audit_leaf") == 1


async def test_a_migration_that_fails_leaves_an_empty_database(postgres, monkeypatch):
    from alembic import op

    def out_of_order(*_, **__):
        raise ZeroDivisionError

    async with spaces.database(postgres.url) as url:
        with monkeypatch.context() as broken:
            broken.setattr(op, "create_index", out_of_order)
            with pytest.raises(ZeroDivisionError):
                await migrate(url, prefix=None)
        assert await described(url) == {name: [] for name in ("columns", "indexes", "constraints", "storage")}
        assert (await migrate(url, prefix=None))["schema"] == schema.HEAD


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prefix": "Placet"}, "cannot begin with 'Placet'"),
        ({"prefix": 'x"; DROP'}, "cannot begin with"),
        ({"passwords": {"plannner": "p"}}, "'plannner' has no role"),
        ({"passwords": {"planner": "a b"}}, "visible characters"),
        ({"prefix": None, "passwords": {"planner": "p"}}, "'planner' has no role"),
    ],
)
async def test_a_prefix_service_or_password_that_cannot_be_is_refused_before_anything_is_done(options, told):
    with pytest.raises(ContractError, match=told) as raised:
        await migrate("postgresql://nobody@127.0.0.1:1/x", **options)
    assert raised.value.code is Code.SETTING_INVALID


# ── which schema a program works with ──────────────────────────────────────────────────


async def test_a_database_without_a_schema_is_to_be_migrated_first(postgres):
    async with spaces.database(postgres.url) as url:
        with pytest.raises(RetryableError, match="has no schema yet: run `placet migrate`") as raised:
            await PostgresStore.open(url)
        assert raised.value.code is Code.STORE_UNAVAILABLE


async def test_a_database_of_a_newer_program_is_left_alone_also_by_who_is_working_already(postgres):
    async with spaces.database(postgres.url) as url:
        await migrate(url, prefix=None)
        store = await PostgresStore.open(url)
        await store.commit([step()])
        await execute(url, "UPDATE alembic_version SET version_num = '9999'")
        for call in (lambda: PostgresStore.open(url), lambda: migrate(url, prefix=None)):
            with pytest.raises(ContractError, match="newer than this program") as raised:
                await call()
            assert raised.value.code is Code.CHECKPOINT_VERSION_UNSUPPORTED
        # Whoever deploys a schema that others cannot work with ends their connections.
        await execute(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'placet'")
        errors: list[Code] = []
        while len(errors) < 3:
            with pytest.raises((ContractError, RetryableError)) as told:
                await store.commit([step(expected=1)])
            errors.append(told.value.code)
        assert errors[-1] is Code.CHECKPOINT_VERSION_UNSUPPORTED
        await store.close()


# ── the database refuses, whoever asks ─────────────────────────────────────────────────


@pytest.mark.parametrize("table", sorted({*KEYS, "journal"} - {"operation_attempt"}))
async def test_no_statement_changes_or_deletes_a_fact(connection, table):
    before = await connection.fetch(f"SELECT * FROM {table}")
    assert before
    for sql in (
        f"UPDATE {table} SET run_id = 'x'",
        f"UPDATE {table} SET run_id = run_id",
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
    ):
        with pytest.raises(asyncpg.exceptions.RestrictViolationError, match=f"{table} is insert-only"):
            await connection.execute(sql)
    assert await connection.fetch(f"SELECT * FROM {table}") == before


async def test_an_attempt_is_ended_once_and_nothing_else_of_it_changes(connection):
    for change in ("fence = 9", "lease_until_ms = 9", "ended = NULL", "n = 2, ended = 'failed', ended_at_ms = 1"):
        with pytest.raises(asyncpg.exceptions.RestrictViolationError, match="operation_attempt is ended once"):
            await connection.execute(f"UPDATE operation_attempt SET {change}")
    for sql in ("DELETE FROM operation_attempt", "TRUNCATE operation_attempt"):
        with pytest.raises(asyncpg.exceptions.RestrictViolationError, match="operation_attempt is insert-only"):
            await connection.execute(sql)
    await connection.execute("UPDATE operation_attempt SET ended = 'failed', ended_at_ms = 1")
    with pytest.raises(asyncpg.exceptions.RestrictViolationError, match="operation_attempt is ended once"):
        await connection.execute("UPDATE operation_attempt SET ended = 'succeeded'")


async def test_the_only_clock_is_the_server_s_and_goes_on_within_a_transaction(connection):
    async with connection.transaction():
        first = await connection.fetchval("SELECT placet_now_ms()")
        await connection.execute("SELECT pg_sleep(0.02)")
        assert await connection.fetchval("SELECT placet_now_ms()") >= first + 20
        same = "SELECT abs(placet_now_ms() - extract(epoch FROM clock_timestamp()) * 1000) < 50"
        assert await connection.fetchval(same)
    assert await connection.fetchval("SELECT count(*) FROM state WHERE run_id = $1", run_at().run_id) == 5
