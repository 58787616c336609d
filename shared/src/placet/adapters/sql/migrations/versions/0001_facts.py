"""Decides the first schema: states, journal, outbox, and the facts that nothing may change.

Written out in full and never edited once released: tables.py goes on, this stays what it was.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.sql.schema import SchemaItem

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
BOOLEAN = sa.Boolean().with_variant(sa.Integer, "sqlite")

INSERT_ONLY = (
    "journal",
    "approval_request",
    "approval_vote",
    "approval_outcome",
    "approval_revocation",
    "decision_attempt",
    "operation",
    "retry_decision",
    "thread_message",
    "audit_leaf",
)
"""`operation_attempt` is besides: it may be ended, once."""


def upgrade() -> None:
    """Make everything."""
    sqlite = op.get_context().dialect.name == "sqlite"
    _tables()
    _indexes()
    if sqlite:
        _index("ix_outbox_claimed", "outbox", "claimed_until_ms", where="claimed_until_ms > 0")
        _sqlite_triggers()
    else:
        _postgresql()


def downgrade() -> None:
    """Facts are never thrown away by a program."""
    raise NotImplementedError("the first schema has none before it")


def _table(name: str, *parts: SchemaItem, fill: int = 100) -> None:
    storage = {"fillfactor": str(fill)} if fill < 100 else {}
    options: dict[str, Any] = {"sqlite_strict": True, "postgresql_with": storage}
    op.create_table(name, *parts, **options)


def _index(name: str, table: str, *columns: str, unique: bool = False, where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, list(columns), unique=unique, sqlite_where=condition, postgresql_where=condition)


def _tables() -> None:
    _table(
        "meta",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )
    _table(
        "state",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("machine", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at_ms", INTEGER, nullable=False),
        sa.Column("updated_at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "machine", "key", name="pk_state"),
        sa.CheckConstraint("version >= 1", name="ck_state_version"),
        fill=70,
    )
    _table(
        "journal",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("machine", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.Column("facts", TEXT, nullable=False),
        sa.Column("at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "machine", "key", "version", name="pk_journal"),
        sa.CheckConstraint("version >= 1", name="ck_journal_version"),
    )
    _table(
        "outbox",
        sa.Column("seq", INTEGER, sa.Identity(always=True), primary_key=True, autoincrement=True),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("destination", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("not_before_ms", INTEGER, nullable=False),
        sa.Column("due_ms", INTEGER, nullable=False),
        sa.Column("claimed_until_ms", INTEGER, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("id", name="uq_outbox_id"),
        fill=50,
    )
    _table(
        "dead_letter",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("destination", TEXT, nullable=False),
        sa.Column("code", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letter"),
    )
    _table(
        "approval_request",
        sa.Column("version", INTEGER, nullable=False),
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("boundary", TEXT, nullable=False),
        sa.Column("content_text", TEXT, nullable=False),
        sa.Column("request_hash", TEXT, nullable=False),
        sa.Column("requested_at_ms", INTEGER, nullable=False),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("initiator", TEXT, nullable=False),
        sa.Column("agent_name", TEXT, nullable=False),
        sa.Column("operation_id", TEXT, nullable=False),
        sa.Column("tool_version", TEXT, nullable=False),
        sa.Column("tool_schema_digest", TEXT, nullable=False),
        sa.Column("policy_version", TEXT, nullable=False),
        sa.Column("app_version", TEXT, nullable=False),
        sa.Column("expires_at_ms", INTEGER, nullable=True),
        sa.Column("use_by_ms", INTEGER, nullable=True),
        sa.Column("quorum", INTEGER, nullable=False),
        sa.Column("asker_machine", TEXT, nullable=False),
        sa.Column("asker_key", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_approval_request"),
        sa.CheckConstraint("quorum >= 1", name="ck_approval_request_quorum"),
    )
    _table(
        "approval_vote",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("person_id", TEXT, nullable=False),
        sa.Column("decision_id", TEXT, nullable=False),
        sa.Column("decision", TEXT, nullable=False),
        sa.Column("request_hash", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("shown_digest", TEXT, nullable=True),
        sa.Column("evidence_text", TEXT, nullable=True),
        sa.Column("voted_at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "request_id", "person_id", name="pk_approval_vote"),
        sa.UniqueConstraint("run_id", "request_id", "decision_id", name="uq_approval_vote_decision"),
        sa.CheckConstraint(
            "decision IN ('approve', 'reject', 'executed', 'not_executed')", name="ck_approval_vote_decision"
        ),
    )
    _table(
        "approval_outcome",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("request_hash", TEXT, nullable=False),
        sa.Column("decided_by", TEXT, nullable=True),
        sa.Column("decision_id", TEXT, nullable=True),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("decided_at_ms", INTEGER, nullable=False),
        sa.Column("use_by_ms", INTEGER, nullable=True),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_approval_outcome"),
        sa.CheckConstraint(
            "outcome IN ('approved', 'rejected', 'expired', 'cancelled', 'superseded', 'executed', 'not_executed')",
            name="ck_approval_outcome_outcome",
        ),
    )
    _table(
        "approval_revocation",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("revoked_by", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("revoked_at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_approval_revocation"),
    )
    _table(
        "decision_attempt",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("n", INTEGER, nullable=False),
        sa.Column("decision_id", TEXT, nullable=False),
        sa.Column("content_digest", TEXT, nullable=False),
        sa.Column("person_id", TEXT, nullable=False),
        sa.Column("answer", TEXT, nullable=False),
        sa.Column("receipt_text", TEXT, nullable=False),
        sa.Column("answered_at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "request_id", "n", name="pk_decision_attempt"),
        sa.CheckConstraint("n >= 1", name="ck_decision_attempt_n"),
    )
    _table(
        "operation",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("operation_id", TEXT, nullable=False),
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("thread_id", TEXT, nullable=False),
        sa.Column("turn", INTEGER, nullable=False),
        sa.Column("call_id", TEXT, nullable=False),
        sa.Column("tool", TEXT, nullable=False),
        sa.Column("tool_version", TEXT, nullable=False),
        sa.Column("tool_schema_digest", TEXT, nullable=False),
        sa.Column("app_version", TEXT, nullable=False),
        sa.Column("effect", TEXT, nullable=False),
        sa.Column("consequential", BOOLEAN, nullable=False),
        sa.Column("agent_name", TEXT, nullable=False),
        sa.Column("initiator", TEXT, nullable=False),
        sa.Column("raw_input_text", TEXT, nullable=False),
        sa.Column("input_text", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=True),
        sa.Column("request_hash", TEXT, nullable=True),
        sa.Column("authority", TEXT, nullable=False),
        sa.Column("rule", TEXT, nullable=False),
        sa.Column("policy_version", TEXT, nullable=False),
        sa.Column("proposed_at_ms", INTEGER, nullable=False),
        sa.Column("deadline_ms", INTEGER, nullable=True),
        sa.PrimaryKeyConstraint("run_id", "operation_id", name="pk_operation"),
        sa.CheckConstraint("authority IN ('approval', 'policy')", name="ck_operation_authority"),
    )
    _table(
        "operation_attempt",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("operation_id", TEXT, nullable=False),
        sa.Column("n", INTEGER, nullable=False),
        sa.Column("fence", INTEGER, nullable=False),
        sa.Column("idempotency_key", TEXT, nullable=False),
        sa.Column("incarnation", INTEGER, nullable=False),
        sa.Column("started_at_ms", INTEGER, nullable=False),
        sa.Column("lease_until_ms", INTEGER, nullable=False),
        sa.Column("ended", TEXT, nullable=True),
        sa.Column("ended_at_ms", INTEGER, nullable=True),
        sa.Column("evidence_text", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("run_id", "operation_id", "n", name="pk_operation_attempt"),
        sa.CheckConstraint("n >= 1", name="ck_operation_attempt_n"),
    )
    _table(
        "retry_decision",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("machine", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("inputs_text", TEXT, nullable=False),
        sa.Column("decision_text", TEXT, nullable=False),
        sa.Column("decided_at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "subject", "attempt", name="pk_retry_decision"),
        sa.CheckConstraint("attempt >= 1", name="ck_retry_decision_attempt"),
    )
    _table(
        "thread_message",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("thread_id", TEXT, nullable=False),
        sa.Column("n", INTEGER, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("body_text", TEXT, nullable=False),
        sa.Column("said_at_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "thread_id", "n", name="pk_thread_message"),
        sa.CheckConstraint("n >= 1", name="ck_thread_message_n"),
    )
    _table(
        "audit_leaf",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("seq", INTEGER, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("detail_text", TEXT, nullable=False),
        sa.Column("at_ms", INTEGER, nullable=False),
        sa.Column("previous", TEXT, nullable=False),
        sa.Column("leaf", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_audit_leaf"),
        sa.CheckConstraint("seq >= 1", name="ck_audit_leaf_seq"),
    )


def _indexes() -> None:
    _index("ix_state_approvals", "state", "tenant", "created_at_ms", "key", where="machine = 'approval'")
    _index(
        "ix_state_approvals_open",
        "state",
        "tenant",
        "created_at_ms",
        "key",
        where="machine = 'approval' AND status = 'open'",
    )
    _index("ix_state_runs", "state", "tenant", "created_at_ms", "run_id", where="machine = 'run'")
    _index("ix_state_runs_by_status", "state", "tenant", "status", "created_at_ms", "run_id", where="machine = 'run'")
    _index("ix_outbox_due", "outbox", "due_ms", "seq")
    _index("ix_outbox_run", "outbox", "run_id")
    _index("ix_dead_letter_tenant", "dead_letter", "tenant", "at_ms", "id")
    _index("ix_approval_request_id", "approval_request", "request_id")
    _index("ix_decision_attempt_decision", "decision_attempt", "run_id", "request_id", "decision_id", "n")
    _index(
        "uq_operation_attempt_open", "operation_attempt", "run_id", "operation_id", unique=True, where="ended IS NULL"
    )


def _sqlite_triggers() -> None:
    for table in INSERT_ONLY:
        _refuse(table, "UPDATE", "TRUE", "is insert-only")
        _refuse(table, "DELETE", "TRUE", "is insert-only")
    table = "operation_attempt"
    _refuse(table, "DELETE", "TRUE", "is insert-only")
    _refuse(table, "UPDATE", f"OLD.ended IS NOT NULL OR NEW.ended IS NULL OR {_moved('IS NOT')}", "is ended once")


def _refuse(table: str, verb: str, when: str, reason: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} WHEN {when} "
        f"BEGIN SELECT RAISE(ABORT, '{table} {reason}'); END"
    )


def _moved(operator: str) -> str:
    """Whether an update touches anything but how the attempt ended."""
    fixed = (
        "tenant", "run_id", "operation_id", "n", "fence", "idempotency_key", "incarnation", "started_at_ms",
        "lease_until_ms",
    )  # fmt: skip
    return " OR ".join(f"OLD.{column} {operator} NEW.{column}" for column in fixed)


# ── PostgreSQL ─────────────────────────────────────────────────────────────────────────

LONG = (
    *("state.body", "journal.message", "journal.facts", "outbox.body", "dead_letter.body", "thread_message.body_text"),
    *("approval_request.content_text", "approval_vote.evidence_text", "decision_attempt.receipt_text"),
    *("operation.raw_input_text", "operation.input_text", "operation_attempt.evidence_text"),
    *("retry_decision.inputs_text", "audit_leaf.detail_text"),
)
"""Compressed by lz4 where the server has it: the default cost a fifth of the rate."""


def _postgresql() -> None:
    op.execute("ALTER TABLE journal ADD COLUMN seq BIGINT GENERATED ALWAYS AS IDENTITY")
    if op.get_bind().exec_driver_sql(_HAS_LZ4).scalar():
        for table, _, column in (name.partition(".") for name in LONG):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET COMPRESSION lz4")
    op.execute(_NOW_MS)
    op.execute(_VIOLATE)
    op.execute(_REFUSE)
    for table in (*INSERT_ONLY, "operation_attempt"):
        for verb, each in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
            when, reason = "", "is insert-only"
            if (table, verb) == ("operation_attempt", "UPDATE"):
                changed = f"OLD.ended IS NOT NULL OR NEW.ended IS NULL OR {_moved('IS DISTINCT FROM')}"
                when, reason = f"WHEN ({changed})", "is ended once"
            op.execute(
                f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} FOR EACH {each} {when} "
                f"EXECUTE FUNCTION placet_refuse('{reason}')"
            )


_HAS_LZ4 = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
_NOW_MS = """
CREATE FUNCTION placet_now_ms() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint) $$
"""
"""The only clock. `clock_timestamp()`, not `now()`, which stands still while a transaction waits for a lock."""
_VIOLATE = """
CREATE FUNCTION placet_violate(name text) RETURNS integer LANGUAGE plpgsql
AS $$ BEGIN
  RAISE EXCEPTION '% is violated', name USING ERRCODE = 'check_violation', CONSTRAINT = name;
END $$
"""
_REFUSE = """
CREATE FUNCTION placet_refuse() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN
  RAISE EXCEPTION '% %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END $$
"""
