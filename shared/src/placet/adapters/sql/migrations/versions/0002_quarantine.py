"""Decides what of a dead letter is kept besides: from which queue of the broker it was taken, and how it came there.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Columns that are empty for what never was at a broker, also in every row that there is."""
    for name in ("queue", "about_text"):
        op.add_column("dead_letter", sa.Column(name, TEXT, nullable=True))
    op.create_index("ix_dead_letter_queue", "dead_letter", ["queue"])
