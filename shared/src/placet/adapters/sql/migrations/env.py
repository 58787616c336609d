"""Decides how Alembic reaches the database: by the connection it is given, in the transaction open there."""

from __future__ import annotations

from alembic import context

from placet.adapters.sql.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run on a given connection: call placet.adapters.sql.schema.migrate(connection)")
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=False)
context.run_migrations()
