"""Decides which schema this program knows, and brings an older database up to it.

Alembic is imported only where there is something to migrate: its import costs more than opening a database does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from placet.errors import Code, ContractError

if TYPE_CHECKING:
    from sqlalchemy import Connection

KNOWN = ("0001", "0002", "0004", "0005")
"""Every schema there was, oldest first; the last is the one the statements are written for."""
HEAD = KNOWN[-1]
VERSION_QUERY = "SELECT version_num FROM alembic_version"

MIGRATIONS = Path(__file__).parent / "migrations"


def is_current(version: str | None) -> bool:
    """Whether a database of that version (None: an empty one) can be used as it is; otherwise `migrate` it.

    Raises ContractError(CHECKPOINT_VERSION_UNSUPPORTED) for a version that only a newer program knows.
    """
    if version is None or version in KNOWN:
        return version == HEAD
    raise ContractError(
        Code.CHECKPOINT_VERSION_UNSUPPORTED,
        f"the database has schema {version}, this program knows up to {HEAD}: it is newer than this program, which "
        "leaves it alone; use the program that made it, or a later one",
        found=version,
        known=HEAD,
    )


def current_version(connection: Connection) -> str | None:
    """The version of the schema; None for a database without one."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    version: str | None = connection.exec_driver_sql(VERSION_QUERY).scalar()
    return version


def migrate(connection: Connection) -> None:
    """Bring the schema up to date within the transaction that is open on `connection`; commit it afterwards.

    Raises ContractError(CHECKPOINT_VERSION_UNSUPPORTED) as `is_current`.
    """
    if is_current(current_version(connection)):
        return
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
