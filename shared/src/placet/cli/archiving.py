"""Decides how the owner of the facts lets go of what is over, by command. No service can: it has no such right."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placet.cli import exits, output, session
from placet.cli.replaying import rules
from placet.cli.session import Json

if TYPE_CHECKING:
    from placet.hosting.archiving import Owned

WholeId = Annotated[str, typer.Argument(metavar="RUN", help="Its whole id.")]
Tenant = Annotated[str, typer.Option(help="Whose run it is.")]
DATABASE = "placet.db"


def delete(ctx: typer.Context, run: WholeId, tenant: Tenant = "default", as_json: Json = False) -> int:
    """Delete what a run that has ended could be continued from: states, journals, conversations. For ever.

    What people decided and what was done on it stays: requests, votes, outcomes, operations, the audit. PostgreSQL by
    its owner's address in PLACET_DATABASE_URL; SQLite while `placet dev` does not run. Doing it again is harmless.
    """
    from placet.hosting.archiving import delete_run

    return _done(ctx, run, lambda owner: delete_run(owner, tenant, run), "deleted", as_json=as_json)


def prune(ctx: typer.Context, run: WholeId, tenant: Tenant = "default", as_json: Json = False) -> int:
    """Delete the journals of a run up to what it is now. It goes on as before, and all that follows can be replayed.

    It can no longer be forked at, or shown as of, an earlier version. A journal that does not lead to what is stored is
    not pruned. Reached as for `delete`.
    """
    from placet.hosting.archiving import prune_run

    def pruned(owner: Owned) -> Awaitable[int | None]:
        return prune_run(owner, rules(), tenant, run)

    return _done(ctx, run, pruned, "pruned", as_json=as_json)


def _done(ctx: typer.Context, run: str, work: Callable[[Owned], Awaitable[Any]], word: str, *, as_json: bool) -> int:
    import asyncio

    from placet.cli.deployment import settings
    from placet.client.connection import data_dir_of
    from placet.hosting.archiving import owned

    folder: Path = session.of(ctx).data_dir or data_dir_of(os.environ)

    async def carried_out() -> Any:
        async with owned(settings().database_url, folder / DATABASE) as owner:
            return await work(owner)

    result = asyncio.run(carried_out())
    if as_json:
        output.document({"run_id": run, word: result})
    elif result is None or result is False:
        output.line(f"there is no run {output.safe(run)}: nothing to do")
    else:
        output.line(f"{output.safe(run)} is deleted" if result is True else f"{result} entries are gone")
    return exits.OK


COMMANDS: dict[str, Callable[..., int]] = {"delete": delete, "prune": prune}
