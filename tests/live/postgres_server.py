"""Decides how a private PostgreSQL is run: everybody trusted, and fast rather than safe from power cuts."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.live.kinds import Kind, MissingServerError
from tests.live.processes import LOOPBACK, PrivateServer, find_program

FOLDERS = (
    "/usr/lib/postgresql/*/bin/",
    "/usr/pgsql-*/bin/",
    "/opt/homebrew/opt/postgresql@*/bin/",
    "/usr/local/opt/postgresql@*/bin/",
)
"""Where packages put what is not on PATH."""


def find_postgres(name: str) -> str | None:
    """One of PostgreSQL's own programs."""
    return find_program(name, *(folder + name for folder in FOLDERS))


class PrivatePostgres(PrivateServer):
    """PostgreSQL on a port of its own, superuser `postgres` without a password.

    Without `fsync` it survives being killed, though not a power cut; benchmarks ask for it. `settings` are as in
    postgresql.conf. A cluster once made is copied from `template` from then on, which takes a tenth of the time.
    """

    kind = Kind.POSTGRES
    user = "postgres"
    stop_signal = signal.SIGINT
    """Fast shutdown: does not wait for clients to go."""

    def __init__(
        self, folder: Path, *, fsync: bool = False, template: Path | None = None, settings: dict[str, str] | None = None
    ) -> None:
        server, init = find_postgres("postgres"), find_postgres("initdb")
        if server is None or init is None:
            raise MissingServerError(f"no postgres and initdb on PATH or in {', '.join(FOLDERS)}")
        super().__init__(folder)
        self._server, self._init, self._template = server, init, template
        durable = "on" if fsync else "off"
        self._settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": str(folder),
            "max_connections": "200",
            "fsync": durable,
            "full_page_writes": durable,
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    def prepare(self) -> None:
        template = self._template
        if template is not None and template.exists():
            # Copied by the server's own user, so that the files are its own.
            self.data.rmdir()
            self.run("cp", "-a", str(template), str(self.data))
            return
        how = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        self.run(self._init, "-D", str(self.data), *how)
        if template is not None:
            made = template.with_name(f"{template.name}.{self.port}")
            shutil.copytree(self.data, made, symlinks=True)
            for path in (made, *made.rglob("*")):
                self.give_away(path)
            try:
                made.rename(template)
            except OSError:  # somebody else was quicker
                shutil.rmtree(made)

    def command(self) -> Sequence[str]:
        given = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        return (self._server, "-D", str(self.data), "-p", str(self.port), *given)

    def is_ready(self) -> bool:
        return "database system is ready to accept connections" in self.new_log()
