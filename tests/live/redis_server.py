"""Decides how a private Redis is run: append-only, so that it forgets nothing unless a test makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.live.kinds import Kind, MissingServerError
from tests.live.processes import LOOPBACK, PrivateServer, find_program


class PrivateRedis(PrivateServer):
    """Redis on a port of its own. `options`: further arguments, such as "--maxmemory", "4mb"."""

    kind = Kind.REDIS
    user = "redis"

    def __init__(self, folder: Path, *options: str) -> None:
        program = find_program("redis-server") or find_program("valkey-server")
        if program is None:
            raise MissingServerError("no redis-server on PATH")
        super().__init__(folder)
        self._program = program
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def command(self) -> Sequence[str]:
        where = ("--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.data), "--daemonize", "no")
        kept = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
        return (self._program, *where, *kept, *self._options)
