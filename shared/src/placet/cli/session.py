"""Decides what every command has at hand: the options before it, a client, and ids from their first characters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from placet.client import PlacetClient
    from placet.errors import Code

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, errors as JSON.")]
Person = Annotated[
    str | None, typer.Option("--as", metavar="PERSON", help="In development: the person for whom you speak.")
]

SEARCHED_MAX = 2_000
"""How many of the newest runs, or of all requests, a short id is looked for among."""
_PAGE = 200


@dataclass
class Session:
    """The options that stand before a command, and what hangs on them."""

    url: str | None = None
    data_dir: Path | None = None
    _client: PlacetClient | None = field(default=None, repr=False)

    def client(self, person: str | None = None) -> PlacetClient:
        """The client of this command; one for all its requests."""
        from placet.client import Connection, PlacetClient

        if self._client is None:
            connection = Connection.from_environment(os.environ, url=self.url, data_dir=self.data_dir)
            self._client = PlacetClient(replace(connection, person=person) if person else connection)
        return self._client

    def close(self) -> None:
        """Close what the command opened."""
        if self._client is not None:
            self._client.close()

    def run_id(self, given: str) -> str:
        """The full id of a run, given in full or by the first characters that only it has."""
        from placet.errors import Code, TerminalError

        _not_blank(given, "run")
        try:
            return self.client().run(given).run_id
        except TerminalError as error:
            if error.code is not Code.RUN_NOT_FOUND:
                raise
        return _completed(given, self._run_ids(), "run", Code.RUN_NOT_FOUND)

    def request_id(self, given: str) -> str:
        """The full id of a request; `apr_` may be left out."""
        from placet.errors import Code

        _not_blank(given, "request")
        name = given if given.startswith(_PREFIX) else _PREFIX + given
        if len(name) >= _FULL_CHARS:
            return name
        return _completed(name, self._request_ids(), "request", Code.APPROVAL_NOT_FOUND)

    def _run_ids(self) -> Iterator[str]:
        before = None
        for _ in range(SEARCHED_MAX // _PAGE):
            page = self.client().runs(limit=_PAGE, before=before)
            yield from (run.run_id for run in page.items)
            before = page.next
            if before is None:
                return

    def _request_ids(self) -> Iterator[str]:
        """Those that wait first: they are what is mostly meant, and may be far from the oldest."""
        for state in ("open", "all"):
            after = None
            for _ in range(SEARCHED_MAX // _PAGE):
                page = self.client().requests(state=state, limit=_PAGE, after=after)
                yield from (request.request_id for request in page.items)
                after = page.next
                if after is None:
                    break


def of(ctx: typer.Context) -> Session:
    """The session of a command."""
    root = ctx.find_root()
    if not isinstance(root.obj, Session):  # Completion does not run the callback that makes it.
        root.obj = Session()
    session: Session = root.obj
    return session


def _not_blank(given: str, what: str) -> None:
    from placet.errors import Code, ContractError

    if not given.strip():
        raise ContractError(Code.PARAMETER_INVALID, f"the id of a {what} is empty")


def _completed(given: str, known: Iterator[str], what: str, missing: Code) -> str:
    """The one id that begins with what was given."""
    from placet.errors import Code, ContractError, TerminalError

    found = list({name: None for name in known if name.startswith(given)})
    if len(found) == 1:
        return found[0]
    if not found:
        raise TerminalError(missing, f"no {what} begins with {given!r}")
    some = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    raise ContractError(
        Code.PARAMETER_INVALID, f"{given!r} begins {len(found)} {what}s: {some}. Type more of it", candidates=found
    )


_PREFIX = "apr_"
_FULL_CHARS = len(_PREFIX) + 32
