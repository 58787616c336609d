"""The tables are the models, the migrations make the tables, and the database itself refuses to change a fact."""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
import types
import typing

import pytest
from sqlalchemy import CheckConstraint, UniqueConstraint, create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from placet.adapters.sql import schema, tables
from placet.adapters.sql.sqlite import SqliteStore
from placet.columns import COLUMNS, COUNTED, ENDED, FIELDS, KEYS, ONE_OPEN, VOTE_ONCE, WORDS
from placet.errors import Code, ContractError
from placet.requests import ApprovalRequest
from placet.rows import ROWS, RequestRow
from tests.contracts.units import (
    ONE_OF_EACH,
    OPERATION_AT,
    ManualClock,
    approval_at,
    entry,
    outcome,
    step,
    steps_of,
)


def memory_connection():
    raw = sqlite3.connect(":memory:", isolation_level=None)
    return raw, create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)


def migrated():
    raw, engine = memory_connection()
    with engine.connect() as connection:
        schema.migrate(connection)
    return raw


@pytest.fixture
async def database(tmp_path):
    """A database with a fact of every kind, closed by its owner."""
    path = tmp_path / "placet.db"
    store = await SqliteStore.open(path, clock=ManualClock())
    await store.commit([steps_of(*ONE_OF_EACH), step(OPERATION_AT, 1, journal=[entry(OPERATION_AT, 2)])])
    await store.close()
    return path


def model_of(table: str):
    return ApprovalRequest if table == RequestRow.table else ROWS[table]


# ── tables and models ──────────────────────────────────────────────────────────────────


def test_every_kind_of_fact_has_a_table_and_every_table_a_key():
    assert set(tables.FACTS) == set(COLUMNS) == set(KEYS) == set(ROWS) - {"operation_attempt_end"}


@pytest.mark.parametrize("table", sorted(KEYS))
def test_the_columns_of_a_table_are_the_fields_of_its_model_in_order(table):
    assert tuple(tables.FACTS[table].columns.keys()) == COLUMNS[table]
    assert FIELDS[table] == tuple(model_of(table).model_fields)


@pytest.mark.parametrize("table", sorted(KEYS))
def test_a_column_has_the_type_of_its_field_and_is_empty_only_where_the_field_may_be(table):
    kinds = {str: "TEXT", int: "INTEGER", bool: "INTEGER"}
    made = str(CreateTable(tables.FACTS[table]).compile(dialect=create_engine("sqlite://").dialect))
    for name, field in model_of(table).model_fields.items():
        arms = [arm for arm in _arms(field.annotation) if arm is not type(None)]
        optional = len(arms) < len(_arms(field.annotation))
        kind = str if typing.get_origin(arms[0]) is typing.Literal else arms[0]
        assert f"\t{name} {kinds[kind]}{'' if optional else ' NOT NULL'}," in made.replace('"key"', "key")


def _arms(annotation):
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if union else (annotation,)


@pytest.mark.parametrize("table", sorted(KEYS))
def test_a_table_has_the_key_that_its_row_says_and_it_begins_with_the_run(table):
    key = tables.FACTS[table].primary_key
    assert (key.name, tuple(key.columns.keys())) == (f"pk_{table}", KEYS[table])
    assert KEYS[table][0] == "run_id"
    assert f"PK ({', '.join(KEYS[table])})" in (ROWS[table].__doc__ or "")


def test_the_constraints_of_the_tables_are_those_that_every_store_keeps():
    named = {str(constraint.name) for table in tables.FACTS.values() for constraint in table.constraints}
    named |= {str(index.name) for table in tables.FACTS.values() for index in table.indexes if index.unique}
    expected = {f"pk_{table}" for table in KEYS}
    expected |= {f"ck_{table}_{column}" for table, (column, _) in WORDS.items()}
    expected |= {f"ck_{table}_{column}" for table, column in COUNTED.items()}
    assert named == expected | {"uq_approval_vote_decision", "uq_operation_attempt_open"}
    unique = {str(index.name): tuple(index.columns.keys()) for index in tables.operation_attempt.indexes}
    assert unique["uq_operation_attempt_open"] == ONE_OPEN
    once = [c for c in tables.approval_vote.constraints if isinstance(c, UniqueConstraint)]
    assert [tuple(constraint.columns.keys()) for constraint in once] == [VOTE_ONCE]


@pytest.mark.parametrize("table", sorted(WORDS))
def test_a_column_of_closed_vocabulary_has_the_words_of_the_messages(table):
    column, words = WORDS[table]
    checks = [c for c in tables.FACTS[table].constraints if isinstance(c, CheckConstraint)]
    (check,) = [str(c.sqltext) for c in checks if c.name == f"ck_{table}_{column}"]
    assert set(ast.literal_eval(check.partition(" IN ")[2])) == set(words)


def test_the_end_of_an_attempt_fills_columns_of_the_attempt():
    assert set(ENDED) <= set(FIELDS["operation_attempt_end"])
    assert COLUMNS["operation_attempt"] == (*FIELDS["operation_attempt"], *ENDED)


def test_the_tables_can_be_written_down_for_postgresql():
    for table in tables.metadata.sorted_tables:
        made = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert "STRICT" not in made
        for index in table.indexes:
            assert f"CREATE {'UNIQUE ' if index.unique else ''}INDEX" in str(
                CreateIndex(index).compile(dialect=postgresql.dialect())
            )


# ── migrations ─────────────────────────────────────────────────────────────────────────


def test_the_migrations_make_exactly_the_tables_that_statements_are_built_from():
    made = migrated()
    raw, engine = memory_connection()
    tables.metadata.create_all(engine)
    query = (
        "SELECT name, sql FROM sqlite_master "
        "WHERE type IN ('table', 'index') AND sql IS NOT NULL AND name <> 'alembic_version'"
    )
    assert {name: parts_of(sql) for name, sql in made.execute(query)} == {
        name: parts_of(sql) for name, sql in raw.execute(query)
    }
    for name in tables.metadata.tables:
        columns = f"SELECT name, type, \"notnull\" FROM pragma_table_info('{name}')"
        assert list(made.execute(columns)) == list(raw.execute(columns))


def parts_of(sql: str) -> list[str]:
    """What a table or index is made of, in any order: a column that was added later stands behind the constraints.

    Its default is for the rows that were there, and for processes of the version before while a deploy rolls.
    """
    begins, _, rest = " ".join(sql.split()).replace(" DEFAULT ''", "").partition("(")
    inner, _, ends = rest.rpartition(")")
    return [begins, *sorted(part.strip() for part in re.split(r",(?![^(]*\))", inner)), ends.strip()]


def test_the_newest_migration_is_the_schema_that_the_program_knows():
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(schema.MIGRATIONS))
    assert scripts.get_heads() == [schema.HEAD]
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == schema.KNOWN


def test_migrating_twice_changes_nothing():
    raw, engine = memory_connection()
    with engine.connect() as connection:
        assert schema.current_version(connection) is None
        schema.migrate(connection)
        before = raw.total_changes
        schema.migrate(connection)
        assert schema.current_version(connection) == schema.HEAD
    assert raw.total_changes == before


def test_what_was_asked_and_decided_before_questions_could_follow_one_another_is_kept_as_it_was():
    from alembic import command
    from alembic.config import Config

    raw, engine = memory_connection()
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(schema.MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        before = {}
        for table in ("approval_request", "approval_vote", "approval_outcome"):
            columns = [row[1:3] for row in raw.execute(f"PRAGMA table_info({table})")]
            words = {"decision": "reject", "outcome": "rejected"}
            given = [words.get(name, name) if kind == "TEXT" else 7 for name, kind in columns]
            places = ", ".join("?" for _ in columns)
            raw.execute(f"INSERT INTO {table} VALUES ({places})", given)
            before[table] = dict(zip([name for name, _ in columns], given, strict=True))
        schema.migrate(connection)
    added: dict[str, dict[str, object]] = {
        "approval_request": {"generation": 1, "supersedes": "", "requesters": "", "remind_at_ms": None},
        "approval_vote": {},
        "approval_outcome": {"value_text": None, "successor": None},
    }
    for table, row in before.items():
        cursor = raw.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        (found,) = [dict(zip(names, values, strict=True)) for values in cursor]
        assert {name: found[name] for name in row} == row
        assert {name: found[name] for name in added[table]} == added[table]
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is insert-only"):
            raw.execute(f"DELETE FROM {table}")


def test_a_migration_that_fails_leaves_an_empty_database(monkeypatch, tmp_path):
    from alembic import op

    monkeypatch.setattr(op, "create_index", _out_of_order)
    raw = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    with create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool).connect() as connection:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(ZeroDivisionError):
            schema.migrate(connection)
        assert raw.in_transaction
        raw.execute("ROLLBACK")
    assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def _out_of_order(*_, **__):
    raise ZeroDivisionError


@pytest.mark.parametrize("version", ["0003", "9999", "", "x"])
def test_a_schema_that_only_a_newer_program_knows_is_refused(version):
    with pytest.raises(ContractError) as raised:
        schema.is_current(version)
    assert raised.value.code is Code.CHECKPOINT_VERSION_UNSUPPORTED
    assert "newer than this program" in raised.value.message


async def test_a_database_of_a_newer_program_is_left_alone(database):
    raw = sqlite3.connect(database)
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    before = database.read_bytes()
    with pytest.raises(ContractError) as raised:
        await SqliteStore.open(database, clock=ManualClock())
    assert raised.value.code is Code.CHECKPOINT_VERSION_UNSUPPORTED
    assert database.read_bytes() == before


def test_opening_a_current_database_does_not_import_alembic(tmp_path):
    program = (
        "import asyncio, sys\n"
        "from placet.adapters.clocks import SystemClock\n"
        "from placet.adapters.sql.sqlite import SqliteStore\n"
        "async def main():\n"
        "    store = await SqliteStore.open(sys.argv[1], clock=SystemClock())\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
        "print(any(name.partition('.')[0] == 'alembic' for name in sys.modules))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "placet.db")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)]
    assert runs == ["True", "False"]


# ── the database refuses, whoever asks ─────────────────────────────────────────────────


@pytest.mark.parametrize("table", sorted({*KEYS, "journal"} - {"operation_attempt"}))
async def test_no_statement_changes_or_deletes_a_fact(database, table):
    raw = sqlite3.connect(database)
    before = raw.execute(f"SELECT * FROM {table}").fetchall()
    assert before
    for sql in (f"UPDATE {table} SET run_id = 'x'", f"UPDATE {table} SET run_id = run_id", f"DELETE FROM {table}"):
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is insert-only"):
            raw.execute(sql)
    raw.rollback()
    assert raw.execute(f"SELECT * FROM {table}").fetchall() == before


async def test_an_attempt_is_ended_once_and_nothing_else_of_it_changes(database):
    raw = sqlite3.connect(database)
    for change in ("fence = 9", "lease_until_ms = 9", "ended = NULL", "n = 2, ended = 'failed', ended_at_ms = 1"):
        with pytest.raises(sqlite3.IntegrityError, match="operation_attempt is ended once"):
            raw.execute(f"UPDATE operation_attempt SET {change}")
    with pytest.raises(sqlite3.IntegrityError, match="operation_attempt is insert-only"):
        raw.execute("DELETE FROM operation_attempt")
    raw.execute("UPDATE operation_attempt SET ended = 'failed', ended_at_ms = 1")
    with pytest.raises(sqlite3.IntegrityError, match="operation_attempt is ended once"):
        raw.execute("UPDATE operation_attempt SET ended = 'succeeded'")


async def test_replacing_a_fact_meets_the_same_refusal_on_the_store_s_own_connection(tmp_path):
    store = await SqliteStore.open(tmp_path / "placet.db", clock=ManualClock())
    try:
        await store.commit([step(approval_at(), 0, outcome())])
        with pytest.raises(sqlite3.IntegrityError, match="approval_outcome is insert-only"):
            store._connection.execute(
                "INSERT OR REPLACE INTO approval_outcome SELECT tenant, run_id, request_id, 'rejected', request_hash, "
                "decided_by, decision_id, reason, decided_at_ms, use_by_ms, value_text, successor FROM approval_outcome"
            )
    finally:
        await store.close()


async def test_a_second_open_attempt_is_refused_by_the_database_itself(database):
    raw = sqlite3.connect(database)
    columns = "tenant, run_id, operation_id, n, fence, idempotency_key, incarnation, started_at_ms, lease_until_ms"
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        next_one = columns.replace(" n,", " n + 1,")
        raw.execute(f"INSERT INTO operation_attempt ({columns}) SELECT {next_one} FROM operation_attempt")


async def test_a_column_holds_its_type_and_nothing_else(database):
    raw = sqlite3.connect(database)
    with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value in INTEGER column"):
        raw.execute("UPDATE state SET version = 'one'")
