"""Decides how a person or a deploy step prepares the servers: the schema, and what the broker holds.

Addresses come from PLACET_DATABASE_URL and PLACET_AMQP_URL, or from the files that …_FILE name, never from the command
line, which others on the machine can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from placet.cli import exits, output
from placet.cli.session import Json

if TYPE_CHECKING:
    from placet.settings import Settings

topology_app = typer.Typer(help="What the broker holds: declare it, or look whether it is there.")


def migrate(as_json: Json = False) -> int:
    """Make the schema and the services' roles in PostgreSQL, or bring them up to date. Doing it again is harmless."""
    import asyncio

    from placet.hosting.preparing import prepare_database

    prepared = asyncio.run(prepare_database(settings("database_url")))
    if as_json:
        output.document(prepared)
    else:
        output.line(f"schema {prepared['schema']}; roles: {', '.join(prepared['roles'])}")
    return exits.OK


@topology_app.command("declare")
def declare(as_json: Json = False) -> int:
    """Make every exchange, queue and binding that is not there. Doing it again is harmless."""
    return _topology("declared", as_json=as_json)


@topology_app.command("verify")
def verify(as_json: Json = False) -> int:
    """Look whether the broker holds exactly what this version needs. Needs no right to declare anything."""
    return _topology("verified", as_json=as_json)


def _topology(done: str, *, as_json: bool) -> int:
    import asyncio

    from placet.hosting.preparing import declare_topology, verify_topology

    step = declare_topology if done == "declared" else verify_topology
    topology = asyncio.run(step(settings("amqp_url")))
    names = [queue.name for queue in topology.queues]
    if as_json:
        output.document({done: topology.marker(), "queues": names, "pools": list(topology.pools)})
    else:
        output.line(f"{done}: {len(names)} queues, {len(topology.exchanges)} exchanges ({topology.marker()})")
    return exits.OK


def settings(*needed: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in the environment. Raises ContractError(SETTING_INVALID) with everything that is wrong."""
    import os
    from pathlib import Path

    from placet.errors import Code, ContractError
    from placet.settings import missing, parse_settings

    given = os.environ if environ is None else environ
    found, findings = parse_settings(given, lambda path: Path(path).read_text(encoding="utf-8"))
    if found is not None:
        findings += missing(found, dict.fromkeys(needed, "this command"))
    wrong = [finding.message for finding in findings if finding.fatal]
    if found is None or wrong:
        raise ContractError(Code.SETTING_INVALID, "; ".join(wrong))
    return found
