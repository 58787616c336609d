"""Decides ${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Go on to this schema."""
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    """Facts are never thrown away by a program."""
    raise NotImplementedError("restore a backup instead")
