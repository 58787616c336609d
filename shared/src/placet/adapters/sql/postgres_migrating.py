"""Decides what `placet migrate` does to a PostgreSQL database: its schema, and a role with its rights for each service.

A role may do what the machine of its service does, and no more (DESIGN §7): it inserts the facts that this machine
owns, steps the states of this machine, and changes or deletes no fact at all. Whoever gets into a process that runs
tools or asks models still cannot vote, nor say that somebody did.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from placet.adapters.sql import schema
from placet.adapters.sql.postgres_errors import meaning
from placet.adapters.sql.postgres_sessions import Access
from placet.adapters.sql.tables import FACTS
from placet.errors import Code, ContractError, PlacetError
from placet.messages import APPROVAL, OPERATION, RUN, THREAD
from placet.rows import READABLE
from placet.topology import QUEUES

GATEWAY = "gateway"
"""Reads what people are shown, and writes nothing."""
SERVICES = (*QUEUES, GATEWAY)
PREFIX = "placet"
OWNED: Mapping[str, tuple[str, ...]] = {
    RUN: ("operation", "audit_leaf"),
    THREAD: ("thread_message", "retry_decision"),
    OPERATION: ("operation_attempt", "retry_decision"),
    APPROVAL: (*("approval_request", "approval_vote", "approval_outcome", "approval_revocation", "decision_attempt"),),
}
"""The facts that each machine inserts."""

TRIES_MAX = 5
LOCK_KEY = 0x504C4354
"""Who migrates a database holds this advisory lock: others wait."""
_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""Alembic knows one migration at a time in a process."""
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PASSWORD = re.compile(r"[!-~]{1,200}")
_ITERATIONS = 4_096
"""PostgreSQL's own number. What protects a random password is its length."""


def role_of(service: str, prefix: str = PREFIX) -> str:
    """The role of a service: `placet_tool_executor`."""
    return f"{prefix}_{service.replace('-', '_')}"


async def migrate(
    url: str, *, prefix: str | None = PREFIX, passwords: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Bring the schema up to date and give each service's role its rights; doing it again changes nothing.

    The answer says the `schema` that is there now, and the `roles`.

    `url` is of the owner, who may create in the database and, for the roles, has CREATEROLE. `prefix`: what the roles'
    names begin with; None makes no roles, for whoever runs everything as the owner. `passwords`: by service; a role
    that is given one may log in with it. Others may be granted to users, one or several.

    Several at once are harmless. Raises ContractError CHECKPOINT_VERSION_UNSUPPORTED for a newer schema,
    SETTING_INVALID for a prefix, service or password that cannot be, RetryableError STORE_UNAVAILABLE, TerminalError
    STORE_UNAVAILABLE for rights that the owner has not.
    """
    _check(prefix, passwords or {})
    access = Access(url, "placet migrate", None)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=access.connect_to_migrate, poolclass=NullPool)

    def work(connection: Connection) -> None:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK_KEY})"))
        schema.migrate(connection)
        if prefix is not None:
            for statement in _roles(connection, prefix, passwords or {}):
                connection.exec_driver_sql(statement)

    turn = _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    try:
        for tries in range(1, TRIES_MAX + 1):
            try:
                async with turn, engine.begin() as connection:
                    await connection.run_sync(work)
                break
            except DBAPIError as error:
                # Roles belong to all databases of a server: whoever migrates another one may change them just now.
                if tries == TRIES_MAX or getattr(error.orig, "sqlstate", None) not in (
                    "XX000",
                    "23505",
                    "42710",
                    "40P01",
                ):
                    raise _meaning(error, access.where) from error
                await asyncio.sleep(0.1 * tries)
    finally:
        await engine.dispose()
    roles = [] if prefix is None else [role_of(service, prefix) for service in SERVICES]
    return {"schema": schema.HEAD, "roles": roles}


def _meaning(error: DBAPIError, where: str) -> Exception:
    cause = error.orig.__cause__ if error.orig is not None else None
    meant = meaning(cause or error, where, undecided=False)
    return meant if isinstance(meant, PlacetError) else ContractError(Code.SETTING_INVALID, f"{where}: {meant}")


def _check(prefix: str | None, passwords: Mapping[str, str]) -> None:
    if prefix is not None and not _PREFIX.fullmatch(prefix):
        what = f"roles cannot begin with {prefix!r}: up to 40 lower-case letters, digits and '_', a letter first"
        raise ContractError(Code.SETTING_INVALID, what)
    for service, password in passwords.items():
        if service not in SERVICES or prefix is None:
            raise ContractError(Code.SETTING_INVALID, f"{service!r} has no role: {', '.join(SERVICES)} have")
        if not _PASSWORD.fullmatch(password):
            what = f"the password for {service} is 1 to 200 visible characters without blanks"
            raise ContractError(Code.SETTING_INVALID, what)


# ── roles ──────────────────────────────────────────────────────────────────────────────


def _roles(connection: Connection, prefix: str, passwords: Mapping[str, str]) -> Iterator[str]:
    """Statements that make the roles and give them their rights."""
    have = set(connection.execute(text("SELECT rolname FROM pg_roles")).scalars())
    policies = set(connection.execute(text("SELECT policyname FROM pg_policies")).scalars())
    for table in ("state", "journal"):
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
        yield from _policy(policies, f"{table}_read", f"ON {table} FOR SELECT USING (true)")
    for service in SERVICES:
        role = role_of(service, prefix)
        if role not in have:
            yield f"CREATE ROLE {role} NOLOGIN"
        if service in passwords:
            yield f"ALTER ROLE {role} LOGIN PASSWORD '{scram(passwords[service])}'"
        yield f"REVOKE ALL ON {', '.join((*_ALL, 'meta'))} FROM {role}"
        yield f"GRANT SELECT ON alembic_version TO {role}"
        if service == GATEWAY:
            yield f"GRANT SELECT ON {', '.join(_ALL)} TO {role}"
        else:
            yield from _rights(role, QUEUES[service])
            yield from _own_states(policies, role, QUEUES[service])


_ALL = ("state", "journal", "outbox", "dead_letter", *FACTS)


def _rights(role: str, machine: str) -> Iterator[str]:
    own = OWNED[machine]
    read = sorted({*own, *READABLE, "journal", "outbox", "dead_letter"})
    yield f"GRANT SELECT ON {', '.join(read)} TO {role}"
    yield f"GRANT INSERT ON {', '.join(('state', 'journal', 'outbox', 'dead_letter', *own))} TO {role}"
    yield f"GRANT UPDATE (version, status, body, updated_at_ms) ON state TO {role}"
    yield f"GRANT UPDATE (claimed_until_ms), DELETE ON outbox TO {role}"
    if "operation_attempt" in own:
        yield f"GRANT UPDATE (ended, ended_at_ms, evidence_text) ON operation_attempt TO {role}"


def _own_states(policies: Iterable[str], role: str, machine: str) -> Iterator[str]:
    """Steps of its own machine only. Any state may be locked, as a guard is; that is a right to update as well."""
    own = f"WITH CHECK (machine = '{machine}')"
    yield from _policy(policies, f"{role}_makes", f"ON state FOR INSERT TO {role} {own}")
    yield from _policy(policies, f"{role}_steps", f"ON state FOR UPDATE TO {role} USING (true) {own}")
    yield from _policy(policies, f"{role}_writes", f"ON journal FOR INSERT TO {role} {own}")


def _policy(policies: Iterable[str], name: str, what: str) -> Iterator[str]:
    if name not in policies:
        yield f"CREATE POLICY {name} {what}"


def scram(password: str, salt: bytes | None = None) -> str:
    """A password as the server keeps it (RFC 5803), so that no log of statements shows it."""
    salt = salt or os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"
