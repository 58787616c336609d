"""Decides how the whole system is started on one machine, and how it is found out what is wrong with one."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from placet.cli import exits, output, session
from placet.cli.session import Json

if TYPE_CHECKING:
    from placet.client import Connection

PORT = 7300


def dev(
    ctx: typer.Context,
    app: Annotated[str, typer.Argument(metavar="APP", envvar="PLACET_APP", help="Such as examples.release:app.")],
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free one.")] = PORT,
    host: Annotated[str, typer.Option(help="An address of this machine only.")] = "127.0.0.1",
    tenant: Annotated[str, typer.Option(help="Whose data this is.")] = "default",
    browser: Annotated[bool | None, typer.Option(help="Open the inbox; by default where there is a screen.")] = None,
    as_json: Json = False,
) -> int:
    """Run the whole system in one process on SQLite. What it was doing when it was stopped or killed goes on."""
    import asyncio
    import logging

    from placet.client.connection import data_dir_of
    from placet.runtime.loading import load_app

    embedded = _embedded()
    loaded = load_app(app)
    _require_free(host, port)
    data_dir = data or session.of(ctx).data_dir or data_dir_of(os.environ)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")

    def ready(url: str, way_in: str) -> None:
        if browser or (browser is None and not as_json and _has_screen()):
            _open_soon(url + way_in)
        if as_json:
            output.json_line(
                {"url": url, "inbox": url + way_in, "data_dir": str(data_dir), "app": app, "pid": os.getpid()}
            )
            return
        output.line(f"Placet runs {app} at {url}; data in {data_dir}. Stop it with Ctrl-C.")
        team = next(iter(loaded.teams), "TEAM")
        output.line(f"Start a run:  placet run start {output.safe(team)} --goal '…'")
        output.line("Decide:       placet inbox")
        output.line(f"or in the browser, signed in once by this link: {url}{way_in}")
        sys.stdout.flush()

    def stopping(waits_for: Sequence[str]) -> None:
        for what in waits_for:
            output.note(f"Waits for {output.safe(what)}.")
        if waits_for:
            output.note("Ctrl-C again ends at once; what is at work is then looked after by the next start.")

    served = embedded.serve(loaded, data_dir, host=host, port=port, tenant=tenant, on_ready=ready, on_stopping=stopping)
    asyncio.run(served)
    return exits.OK


def _has_screen() -> bool:
    """Whether a person sits at this machine who would see a browser's window."""
    shows = sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return shows and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ


def _open_soon(url: str) -> None:
    """Open a page. In a thread: a browser may take its time, and nothing waits for it."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _embedded() -> Any:
    # By name: the library knows no service; this command is a door to one that may not be installed.
    from placet.errors import Code, TerminalError

    try:
        return importlib.import_module("placet_embedded.serve")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("placet_"):
            raise
        raise TerminalError(
            Code.SETTING_INVALID, f"{error.name} is not installed: install the distribution placet-embedded"
        ) from error


def _require_free(host: str, port: int) -> None:
    import errno
    import socket

    from placet.errors import Code, TerminalError

    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} is in use: is Placet running already? Choose another by --port"
        else:
            reason = f"cannot listen on {host}, port {port}: {error.strerror or error}"
        raise TerminalError(Code.SETTING_INVALID, reason) from error


# ── doctor ─────────────────────────────────────────────────────────────────────────────


class Check(NamedTuple):
    """One finding."""

    name: str
    state: Literal["ok", "note", "bad"]
    detail: str
    next_step: str = ""


def doctor(
    ctx: typer.Context,
    app: Annotated[str | None, typer.Option(metavar="APP", envvar="PLACET_APP", help="Also load this app.")] = None,
    as_json: Json = False,
) -> int:
    """Look for what is wrong: Python, SQLite, the data directory, the gateway, the application."""
    checks = list(_checks(session.of(ctx), app))
    is_well = all(check.state != "bad" for check in checks)
    if as_json:
        output.document({"ok": is_well, "checks": [check._asdict() for check in checks]})
        return exits.OK if is_well else exits.REFUSED
    for check in checks:
        output.line(f"{check.state:<5} {check.name}: {output.safe(check.detail)}")
        if check.next_step:
            output.line(f"      next: {check.next_step}")
    return exits.OK if is_well else exits.REFUSED


def _checks(here: session.Session, app: str | None) -> Iterator[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Check("python", "ok" if sys.version_info >= (3, 11) else "bad", version)
    yield _sqlite()
    yield from _gateway(here)
    if app is not None:
        yield _application(app)


def _sqlite() -> Check:
    import sqlite3

    from placet.errors import PlacetError

    try:
        from placet.adapters.sql.sqlite_file import library_version, locking_for

        version = library_version()
    except ModuleNotFoundError as error:
        detail = f"{sqlite3.sqlite_version}; no store can run here without {error.name}"
        return Check("sqlite", "note", detail)
    except PlacetError as error:
        return Check("sqlite", "bad", error.message)
    locking = locking_for(version)
    return Check("sqlite", "note" if locking.exclusive else "ok", locking.reason)


def _gateway(here: session.Session) -> Iterator[Check]:
    from placet.client.connection import TOKEN_FILE, Connection, data_dir_of
    from placet.errors import PlacetError

    data_dir = here.data_dir or data_dir_of(os.environ)
    path = data_dir / TOKEN_FILE
    if not path.exists():
        yield Check("data", "note", f"{data_dir} has no token: no `placet dev` has run with it")
    elif os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield Check("data", "bad", f"others can read {path}", f"chmod 600 {path}")
    else:
        yield Check("data", "ok", str(data_dir))
    try:
        connection = Connection.from_environment(os.environ, url=here.url, data_dir=here.data_dir)
    except PlacetError as error:
        yield Check("gateway", "bad", error.message)
        return
    yield _answers(here, connection)


def _answers(here: session.Session, connection: Connection) -> Check:
    from placet.errors import Code, PlacetError

    try:
        app = here.client().app()
    except PlacetError as error:
        if error.code is Code.APP_UNKNOWN:
            return Check("gateway", "ok", f"{connection.url} answers; it is not told what the application is")
        state: Literal["note", "bad"] = "note" if error.code is Code.GATEWAY_UNREACHABLE else "bad"
        return Check("gateway", state, error.message, exits.next_step(error) or "")
    return Check("gateway", "ok", f"{connection.url} runs {app.name or 'an application'} {app.version}")


def describe(
    app: Annotated[str, typer.Argument(metavar="APP", help="The application, such as examples.release:app.")],
) -> int:
    """Print what an application consists of, as a gateway shows it that has none of its code: PLACET_APP_VIEW_FILE."""
    from placet.describing import described
    from placet.runtime.loading import load_app

    output.document(described(load_app(app)))
    return exits.OK


def _application(app: str) -> Check:
    from placet.errors import PlacetError
    from placet.runtime.loading import load_app

    try:
        loaded = load_app(app)
    except PlacetError as error:
        return Check("app", "bad", error.message)
    return Check("app", "ok", f"{loaded.name} {loaded.version}: teams {', '.join(loaded.teams) or 'none'}")
