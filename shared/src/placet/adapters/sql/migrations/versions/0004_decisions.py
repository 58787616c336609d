"""Decides what is kept of questions that follow one another, and of what people say besides a word.

A question may take another's place (`generation`, `supersedes`, `requesters`) and be reminded of; an outcome may carry
a value and name its successor; votes and outcomes have more words. SQLite cannot change a constraint, so there the
tables are made anew, row by row what they were.

Revision ID: 0004
Revises: 0002
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.sql.schema import SchemaItem

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

DECISIONS = ("approve", "reject", "edit", "respond", "request_changes", "executed", "not_executed")
OUTCOMES = (
    "approved", "rejected", "answered", "expired", "cancelled", "superseded", "executed", "not_executed",
)  # fmt: skip
_REQUESTS = (("generation", INTEGER, "1"), ("supersedes", TEXT, "''"), ("requesters", TEXT, "''"))
_HAS_LZ4 = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"


def upgrade() -> None:
    """What there is, is of the first generation, and was decided without a value."""
    if op.get_context().dialect.name == "sqlite":
        _sqlite()
    else:
        _postgresql()


def _postgresql() -> None:
    for name, kind, old in _REQUESTS:
        # With a default that stays: processes of the version before go on writing while a deploy rolls.
        op.add_column("approval_request", sa.Column(name, kind, nullable=False, server_default=sa.text(old)))
    op.add_column("approval_request", sa.Column("remind_at_ms", INTEGER, nullable=True))
    for name in ("value_text", "successor"):
        op.add_column("approval_outcome", sa.Column(name, TEXT, nullable=True))
    for table, column, words in (
        ("approval_vote", "decision", DECISIONS),
        ("approval_outcome", "outcome", OUTCOMES),
    ):
        name = f"ck_{table}_{column}"
        op.drop_constraint(name, table, type_="check")
        op.create_check_constraint(name, table, _one_of(column, words))
    if op.get_bind().exec_driver_sql(_HAS_LZ4).scalar():
        op.execute("ALTER TABLE approval_outcome ALTER COLUMN value_text SET COMPRESSION lz4")


def _sqlite() -> None:
    op.drop_index("ix_approval_request_id", "approval_request")
    _anew("approval_request", {name: old for name, _, old in _REQUESTS} | {"remind_at_ms": "NULL"}, *_request())
    op.create_index("ix_approval_request_id", "approval_request", ["request_id"])
    _anew("approval_vote", {}, *_vote())
    _anew("approval_outcome", {"value_text": "NULL", "successor": "NULL"}, *_outcome())


def _anew(table: str, added: dict[str, str], *parts: SchemaItem) -> None:
    """The table under its name with these parts, its rows as they were, and the triggers that keep them so."""
    options: dict[str, Any] = {"sqlite_strict": True}
    op.rename_table(table, f"{table}_before")
    op.create_table(table, *parts, **options)
    kept = [part.name for part in parts if isinstance(part, sa.Column) and part.name not in added]
    columns, values = ", ".join([*kept, *added]), ", ".join([*kept, *added.values()])
    op.execute(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table}_before ORDER BY rowid")
    op.drop_table(f"{table}_before")
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} WHEN TRUE "
            f"BEGIN SELECT RAISE(ABORT, '{table} is insert-only'); END"
        )


def _one_of(column: str, words: tuple[str, ...]) -> str:
    listed = ", ".join(f"'{word}'" for word in words)
    return f"{column} IN ({listed})"


def _columns(*names: str, optional: tuple[str, ...] = ()) -> list[SchemaItem]:
    """Columns by name: what ends on `_ms`, and what counts, is a number."""
    counts = ("version", "quorum", "generation")
    return [
        sa.Column(name, INTEGER if name.endswith("_ms") or name in counts else TEXT, nullable=name in optional)
        for name in names
    ]


def _request() -> list[SchemaItem]:
    return [
        *_columns(
            *("version", "tenant", "request_id", "run_id", "scope", "boundary", "content_text", "request_hash"),
            *("requested_at_ms", "reason", "initiator", "agent_name", "operation_id", "tool_version"),
            *("tool_schema_digest", "policy_version", "app_version", "expires_at_ms", "use_by_ms", "quorum"),
            *("asker_machine", "asker_key", "generation", "supersedes", "requesters", "remind_at_ms"),
            optional=("reason", "expires_at_ms", "use_by_ms", "remind_at_ms"),
        ),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_approval_request"),
        sa.CheckConstraint("quorum >= 1", name="ck_approval_request_quorum"),
    ]


def _vote() -> list[SchemaItem]:
    return [
        *_columns(
            *("tenant", "run_id", "request_id", "person_id", "decision_id", "decision", "request_hash", "reason"),
            *("shown_digest", "evidence_text", "voted_at_ms"),
            optional=("reason", "shown_digest", "evidence_text"),
        ),
        sa.PrimaryKeyConstraint("run_id", "request_id", "person_id", name="pk_approval_vote"),
        sa.UniqueConstraint("run_id", "request_id", "decision_id", name="uq_approval_vote_decision"),
        sa.CheckConstraint(_one_of("decision", DECISIONS), name="ck_approval_vote_decision"),
    ]


def _outcome() -> list[SchemaItem]:
    return [
        *_columns(
            *("tenant", "run_id", "request_id", "outcome", "request_hash", "decided_by", "decision_id", "reason"),
            *("decided_at_ms", "use_by_ms", "value_text", "successor"),
            optional=("decided_by", "decision_id", "reason", "use_by_ms", "value_text", "successor"),
        ),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_approval_outcome"),
        sa.CheckConstraint(_one_of("outcome", OUTCOMES), name="ck_approval_outcome_outcome"),
    ]
