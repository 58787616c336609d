"""Facts in SQL: one set of tables for SQLite and PostgreSQL."""
