"""Decides what is kept of the policy that asked: the rule, the digest of the policy, and who may answer.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """What there is, was asked by a policy without a digest, of anybody."""
    for table, name in (
        ("approval_request", "rule"),
        ("approval_request", "policy_digest"),
        ("approval_request", "reviewers"),
        ("operation", "policy_digest"),
    ):
        # With a default that stays: processes of the version before go on writing while a deploy rolls.
        op.add_column(table, sa.Column(name, TEXT, nullable=False, server_default=sa.text("''")))
