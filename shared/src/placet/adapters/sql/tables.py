"""Decides how facts lie in SQL: tables, keys, and the constraints that make the rules true whatever the code does.

Columns are the fields of the models in `placet.rows` (tests hold them equal). Every table of a run starts its key with
`run_id`. What is hashed is TEXT, never a JSON type, which would rewrite it. On SQLite the tables are STRICT, so that a
column holds its type and nothing else. They keep their hidden row number: bodies then lie in order of arrival and only
the narrow key index is written all over the file, which tripled the rate of commits.

Migrations make the tables (placet.adapters.sql.migrations) and the triggers that refuse to change a fact; statements
are built from what stands here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

INTEGER = BigInteger().with_variant(Integer, "sqlite")
TEXT = Text().with_variant(Text(collation="C"), "postgresql")
"""Ordered by bytes everywhere: a new version of a locale must not disorder an index that keeps decisions apart."""
BOOLEAN = Boolean().with_variant(Integer, "sqlite")
"""0 or 1 on SQLite, whose STRICT tables have no such type."""


def _text(name: str, *, optional: bool = False) -> Column[Any]:
    return Column(name, TEXT, nullable=optional)


def _integer(name: str, *, optional: bool = False) -> Column[Any]:
    return Column(name, INTEGER, nullable=optional)


def _table(
    name: str,
    *parts: Column[Any] | PrimaryKeyConstraint | UniqueConstraint | CheckConstraint,
    fill: int = 100,
) -> Table:
    """`fill`: how full PostgreSQL packs a page, in percent, so that a row that changes may stay in it."""
    storage = {"fillfactor": str(fill)} if fill < 100 else {}
    return Table(name, metadata, *parts, sqlite_strict=True, postgresql_with=storage)


def _key(table: str, *columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _counted(table: str, column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} >= 1", name=f"ck_{table}_{column}")


def _one_of(table: str, column: str, *words: str) -> CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=f"ck_{table}_{column}")


# ── for the engine ─────────────────────────────────────────────────────────────────────

meta = _table("meta", _text("name"), _integer("value"), _key("meta", "name"))
"""Small counters. `incarnation`: how many exclusive owners the database has had."""

state = _table(
    "state",
    _text("run_id"),
    _text("machine"),
    _text("key"),
    _text("tenant"),
    _integer("version"),
    _text("status"),
    Column("body", LargeBinary, nullable=False),
    _integer("created_at_ms"),
    _integer("updated_at_ms"),
    _key("state", "run_id", "machine", "key"),
    _counted("state", "version"),
    fill=70,
)

# What people list, in the order they are shown it; each holds the rows of one machine only.
_RUNS, _APPROVALS = text("machine = 'run'"), text("machine = 'approval'")
_OPEN = text("machine = 'approval' AND status = 'open'")
for name, columns, where in (
    ("ix_state_runs", ("tenant", "created_at_ms", "run_id"), _RUNS),
    ("ix_state_runs_by_status", ("tenant", "status", "created_at_ms", "run_id"), _RUNS),
    ("ix_state_approvals", ("tenant", "created_at_ms", "key"), _APPROVALS),
    ("ix_state_approvals_open", ("tenant", "created_at_ms", "key"), _OPEN),
):
    Index(name, *(state.c[column] for column in columns), sqlite_where=where, postgresql_where=where)

journal = _table(
    "journal",
    _text("run_id"),
    _text("machine"),
    _text("key"),
    _integer("version"),
    _text("message_id"),
    Column("message", LargeBinary, nullable=False),
    _text("facts"),
    _integer("at_ms"),
    _key("journal", "run_id", "machine", "key", "version"),
    _counted("journal", "version"),
)

outbox = _table(
    "outbox",
    Column("seq", INTEGER, Identity(always=True), primary_key=True, autoincrement=True),
    _text("id"),
    _text("destination"),
    _text("run_id"),
    _text("type"),
    _integer("not_before_ms"),
    _integer("due_ms"),
    _integer("claimed_until_ms"),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("id", name="uq_outbox_id"),
    fill=50,
)
"""`due_ms`: from when on a relay may take it: `not_before_ms`, or its arrival where that was later."""
Index("ix_outbox_due", outbox.c.due_ms, outbox.c.seq)
Index("ix_outbox_run", outbox.c.run_id)
_CLAIMED = text("claimed_until_ms > 0")
Index("ix_outbox_claimed", outbox.c.claimed_until_ms, sqlite_where=_CLAIMED).ddl_if(dialect="sqlite")
# PostgreSQL has none: without it a claim changes no indexed column, and so writes to no index at all.

dead_letter = _table(
    "dead_letter",
    _text("id"),
    _text("tenant"),
    _text("run_id"),
    _text("destination"),
    _text("code"),
    _text("reason"),
    Column("body", LargeBinary, nullable=False),
    _integer("at_ms"),
    _text("queue", optional=True),
    _text("about_text", optional=True),
    _key("dead_letter", "id"),
)
"""`tenant` is what the message says of itself; empty where it says nothing readable, or nobody can be believed."""
Index("ix_dead_letter_queue", dead_letter.c.queue)
Index("ix_dead_letter_tenant", dead_letter.c.tenant, dead_letter.c.at_ms, dead_letter.c.id)

# ── facts: insert-only ─────────────────────────────────────────────────────────────────

approval_request = _table(
    "approval_request",
    _integer("version"),
    _text("tenant"),
    _text("request_id"),
    _text("run_id"),
    _text("scope"),
    _text("boundary"),
    _text("content_text"),
    _text("request_hash"),
    _integer("requested_at_ms"),
    _text("reason", optional=True),
    _text("initiator"),
    _text("agent_name"),
    _text("operation_id"),
    _text("tool_version"),
    _text("tool_schema_digest"),
    _text("policy_version"),
    _text("app_version"),
    _integer("expires_at_ms", optional=True),
    _integer("use_by_ms", optional=True),
    _integer("quorum"),
    _text("asker_machine"),
    _text("asker_key"),
    _integer("generation"),
    _text("supersedes"),
    _text("requesters"),
    _integer("remind_at_ms", optional=True),
    _text("rule"),
    _text("policy_digest"),
    _text("reviewers"),
    _key("approval_request", "run_id", "request_id"),
    _counted("approval_request", "quorum"),
)
Index("ix_approval_request_id", approval_request.c.request_id)

approval_vote = _table(
    "approval_vote",
    _text("tenant"),
    _text("run_id"),
    _text("request_id"),
    _text("person_id"),
    _text("decision_id"),
    _text("decision"),
    _text("request_hash"),
    _text("reason", optional=True),
    _text("shown_digest", optional=True),
    _text("evidence_text", optional=True),
    _integer("voted_at_ms"),
    _key("approval_vote", "run_id", "request_id", "person_id"),
    UniqueConstraint("run_id", "request_id", "decision_id", name="uq_approval_vote_decision"),
    _one_of(
        "approval_vote",
        "decision",
        *("approve", "reject", "edit", "respond", "request_changes", "executed", "not_executed"),
    ),
)

approval_outcome = _table(
    "approval_outcome",
    _text("tenant"),
    _text("run_id"),
    _text("request_id"),
    _text("outcome"),
    _text("request_hash"),
    _text("decided_by", optional=True),
    _text("decision_id", optional=True),
    _text("reason", optional=True),
    _integer("decided_at_ms"),
    _integer("use_by_ms", optional=True),
    _text("value_text", optional=True),
    _text("successor", optional=True),
    _key("approval_outcome", "run_id", "request_id"),
    _one_of(
        "approval_outcome",
        "outcome",
        *("approved", "rejected", "answered", "expired", "cancelled", "superseded", "executed", "not_executed"),
    ),
)

approval_revocation = _table(
    "approval_revocation",
    _text("tenant"),
    _text("run_id"),
    _text("request_id"),
    _text("revoked_by"),
    _text("reason"),
    _integer("revoked_at_ms"),
    _key("approval_revocation", "run_id", "request_id"),
)

decision_attempt = _table(
    "decision_attempt",
    _text("tenant"),
    _text("run_id"),
    _text("request_id"),
    _integer("n"),
    _text("decision_id"),
    _text("content_digest"),
    _text("person_id"),
    _text("answer"),
    _text("receipt_text"),
    _integer("answered_at_ms"),
    _key("decision_attempt", "run_id", "request_id", "n"),
    _counted("decision_attempt", "n"),
)
Index(
    "ix_decision_attempt_decision",
    *(decision_attempt.c[name] for name in ("run_id", "request_id", "decision_id", "n")),
)

operation = _table(
    "operation",
    _text("tenant"),
    _text("run_id"),
    _text("operation_id"),
    _text("task_id"),
    _text("thread_id"),
    _integer("turn"),
    _text("call_id"),
    _text("tool"),
    _text("tool_version"),
    _text("tool_schema_digest"),
    _text("app_version"),
    _text("effect"),
    Column("consequential", BOOLEAN, nullable=False),
    _text("agent_name"),
    _text("initiator"),
    _text("raw_input_text"),
    _text("input_text"),
    _text("request_id", optional=True),
    _text("request_hash", optional=True),
    _text("authority"),
    _text("rule"),
    _text("policy_version"),
    _integer("proposed_at_ms"),
    _integer("deadline_ms", optional=True),
    _text("policy_digest"),
    _key("operation", "run_id", "operation_id"),
    _one_of("operation", "authority", "approval", "policy"),
)

operation_attempt = _table(
    "operation_attempt",
    _text("tenant"),
    _text("run_id"),
    _text("operation_id"),
    _integer("n"),
    _integer("fence"),
    _text("idempotency_key"),
    _integer("incarnation"),
    _integer("started_at_ms"),
    _integer("lease_until_ms"),
    _text("ended", optional=True),
    _integer("ended_at_ms", optional=True),
    _text("evidence_text", optional=True),
    _key("operation_attempt", "run_id", "operation_id", "n"),
    _counted("operation_attempt", "n"),
)
_STILL_OPEN = text("ended IS NULL")
Index(
    "uq_operation_attempt_open",
    operation_attempt.c.run_id,
    operation_attempt.c.operation_id,
    unique=True,
    sqlite_where=_STILL_OPEN,
    postgresql_where=_STILL_OPEN,
)

retry_decision = _table(
    "retry_decision",
    _text("tenant"),
    _text("run_id"),
    _text("machine"),
    _text("key"),
    _text("subject"),
    _integer("attempt"),
    _text("inputs_text"),
    _text("decision_text"),
    _integer("decided_at_ms"),
    _key("retry_decision", "run_id", "subject", "attempt"),
    _counted("retry_decision", "attempt"),
)

thread_message = _table(
    "thread_message",
    _text("tenant"),
    _text("run_id"),
    _text("thread_id"),
    _integer("n"),
    _text("role"),
    _text("body_text"),
    _integer("said_at_ms"),
    _key("thread_message", "run_id", "thread_id", "n"),
    _counted("thread_message", "n"),
)

audit_leaf = _table(
    "audit_leaf",
    _text("tenant"),
    _text("run_id"),
    _integer("seq"),
    _text("kind"),
    _text("subject"),
    _text("detail_text"),
    _integer("at_ms"),
    _text("previous"),
    _text("leaf"),
    _key("audit_leaf", "run_id", "seq"),
    _counted("audit_leaf", "seq"),
)

FACTS: dict[str, Table] = {
    table.name: table
    for table in (
        approval_request,
        approval_vote,
        approval_outcome,
        approval_revocation,
        decision_attempt,
        operation,
        operation_attempt,
        retry_decision,
        thread_message,
        audit_leaf,
    )
}
"""The tables of facts. An attempt may be ended, once; nothing else in them, nor in `journal`, ever changes."""
