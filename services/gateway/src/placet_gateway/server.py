"""Decides how the HTTP server runs in a process that has more to do: no signals of its own, and it tells its port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn


class Server(uvicorn.Server):
    """uvicorn that leaves signals alone: one place in the process decides about them."""

    def __init__(self, config: uvicorn.Config, *, before_exit: Callable[[], object]) -> None:
        super().__init__(config)
        self._listening = asyncio.Event()
        self._before_exit = before_exit

    def exit_soon(self) -> None:
        """End the streams, which would outlast the server's patience, then the server."""
        self.should_exit = True
        self._before_exit()

    async def port_of(self, serving: asyncio.Task[None]) -> int | None:
        """The port on which it listens, as soon as it does; None when `serving`, its task, ends before that."""
        listening = asyncio.ensure_future(self._listening.wait())
        await asyncio.wait([serving, listening], return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        port: int | None = self.servers[0].sockets[0].getsockname()[1] if self.started else None
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn."""
        await super().startup(sockets)
        self._listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
