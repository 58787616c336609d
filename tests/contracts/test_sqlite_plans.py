"""Every statement of the store finds its rows by an index, and no list is sorted only after it was read."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import create_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import StaticPool

from placet.adapters.sql import schema
from placet.adapters.sql import statements as st
from placet.columns import KEYS

READ = ("approval_request", "approval_outcome", "approval_revocation", "decision_attempt", "operation")


@pytest.fixture(scope="module")
def database():
    raw = sqlite3.connect(":memory:", isolation_level=None)
    with create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool).connect() as connection:
        schema.migrate(connection)
    return raw


def plan(database, build, *variant) -> list[str]:
    statement = st.Statements(sqlite.dialect(paramstyle="qmark"))(build, *variant)
    rows = database.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [1] * len(statement.names))
    return [row[3] for row in rows]


@pytest.mark.parametrize(
    ("build", "variant", "index"),
    [
        (st.state_load, (), "sqlite_autoindex_state_1 (run_id=? AND machine=? AND key=?)"),
        (st.state_version, (), "sqlite_autoindex_state_1 (run_id=? AND machine=? AND key=?)"),
        (st.state_row, (), "sqlite_autoindex_state_1 (run_id=? AND machine=? AND key=?)"),
        (st.state_update, (), "sqlite_autoindex_state_1 (run_id=? AND machine=? AND key=?)"),
        (st.attempt_end, (), "sqlite_autoindex_operation_attempt_1 (run_id=? AND operation_id=? AND n=?)"),
        (st.journal_of_state, (), "sqlite_autoindex_journal_1 (run_id=? AND machine=? AND key=?)"),
        (st.thread_bodies, (), "sqlite_autoindex_thread_message_1 (run_id=? AND thread_id=? AND n<?)"),
        (st.outbox_delete, (), "sqlite_autoindex_outbox_1 (id=?)"),
        (st.outbox_claim, (), "sqlite_autoindex_outbox_1 (id=?)"),
        (st.outbox_due, (), "ix_outbox_due (due_ms<?)"),
        (st.outbox_next_due, (), "ix_outbox_due"),
        (st.outbox_next_lapse, (), "ix_outbox_claimed (claimed_until_ms>?)"),
        (st.outbox_unclaim, (), "ix_outbox_claimed (claimed_until_ms>?)"),
        (st.list_runs, (False, False), "ix_state_runs (tenant=?)"),
        (st.list_runs, (False, True), "ix_state_runs (tenant=? AND (created_at_ms,run_id)<(?,?))"),
        (st.list_runs, (True, False), "ix_state_runs_by_status (tenant=? AND status=?)"),
        (
            st.list_runs,
            (True, True),
            "ix_state_runs_by_status (tenant=? AND status=? AND (created_at_ms,run_id)<(?,?))",
        ),
        (st.read_state, (), "sqlite_autoindex_state_1 (run_id=? AND machine=? AND key=?)"),
        (st.list_requests, (False, False), "ix_state_approvals (tenant=?)"),
        (st.list_requests, (False, True), "ix_state_approvals (tenant=? AND (created_at_ms,key)>(?,?))"),
        (st.list_requests, (True, False), "ix_state_approvals_open (tenant=?)"),
        (st.list_requests, (True, True), "ix_state_approvals_open (tenant=? AND (created_at_ms,key)>(?,?))"),
        (st.read_request, (), "ix_approval_request_id (request_id=?)"),
        (st.place_of_request, (), "ix_approval_request_id (request_id=?)"),
        (st.list_dead_letters, (False,), "ix_dead_letter_tenant (tenant=?)"),
        (st.read_dead_letter, (), "sqlite_autoindex_dead_letter_1 (id=?)"),
        *[(st.fact_load, (table,), f"sqlite_autoindex_{table}_1 (") for table in READ if table != "decision_attempt"],
        (st.fact_load, ("decision_attempt",), "ix_decision_attempt_decision ("),
    ],
)
def test_a_statement_reads_one_index_and_sorts_nothing(database, build, variant, index):
    steps = plan(database, build, *variant)
    assert index in steps[0], steps
    assert all(step.startswith(("SEARCH", "SCAN outbox USING INDEX")) for step in steps), steps


@pytest.mark.parametrize("table", sorted(KEYS))
def test_the_facts_of_a_run_are_read_in_the_order_of_their_key(database, table):
    steps = plan(database, st.read_rows, table)
    assert len(steps) == 1
    assert f"USING INDEX sqlite_autoindex_{table}_1 (run_id=?)" in steps[0]


def test_what_is_on_its_way_for_a_run_is_found_by_its_run(database):
    assert "USING INDEX ix_outbox_run (run_id=?)" in plan(database, st.read_outbox)[0]


def test_the_journal_of_a_run_is_found_by_its_run_and_only_then_sorted(database):
    steps = plan(database, st.read_journal, "journal.rowid")
    assert all("(run_id=?" in step for step in steps[:2]), steps
    assert [step for step in steps if "SCAN" in step] == []
