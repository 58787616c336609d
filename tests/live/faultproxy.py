"""Decides how a connection to a real server fails: a TCP proxy on loopback that delays, loses, cuts and resets.

It runs in the test's own event loop: a client that blocks the loop waits for itself.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

from tests.live.processes import LOOPBACK

CHUNK_BYTES = 64 * 1024


class Fault(StrEnum):
    """What happens to a connection when the client sends certain bytes."""

    LOSE_REQUEST = "lose_request"
    """The bytes never reach the server; the connection is reset."""
    LOSE_REPLY = "lose_reply"
    """The server gets them and answers; the answer is lost and the connection is reset."""
    SWALLOW_REPLY = "swallow_reply"
    """The same, but the connection stays open and silent."""
    NONE = "none"
    """Nothing, but to be told that the bytes go to the server now."""


@dataclass(slots=True)
class Trap:
    """A fault waiting for its bytes. `sprung` is set when it has happened, seen from the server's side."""

    pattern: bytes
    fault: Fault
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class Link:
    """One client's connection and its counterpart to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    muted_by: Trap | None = None
    tail: bytes = b""

    def reset(self) -> None:
        """RST to both sides."""
        for writer in (self.client, self.server):
            if writer is not None and not writer.transport.is_closing():
                plug: socket.socket = writer.get_extra_info("socket")
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()


class FaultProxy:
    """`async with FaultProxy(host, port) as proxy`: clients connect to 127.0.0.1:proxy.port."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self.latency_s = 0.0
        """Added each way; order is kept, and throughput does not suffer."""
        self.accepted = 0
        """Connections taken in so far."""
        self._listener: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._traps: list[Trap] = []
        self._passing = asyncio.Event()
        self._passing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FaultProxy:
        await self._listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None):
        await self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ── faults ─────────────────────────────────────────────────────────────────────────

    def black_hole(self) -> None:
        """From now on connections are taken in and nothing passes: a partition. `restore` lets the held bytes go on."""
        self._passing.clear()

    def reset(self) -> None:
        """Reset the connections there are; new ones are served."""
        for link in list(self._links):
            link.reset()

    async def cut(self) -> None:
        """Reset the connections there are and refuse new ones: a crash. `restore` ends it."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.reset()

    def at(self, pattern: bytes, fault: Fault) -> asyncio.Event:
        """The next time that a client sends these bytes, and only then. The event tells when it has happened."""
        trap = Trap(pattern, fault)
        self._traps.append(trap)
        return trap.sprung

    async def restore(self) -> None:
        """All well again."""
        self.latency_s = 0.0
        self._traps.clear()
        self._passing.set()
        await self._listen()

    # ── the way of the bytes ───────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._take, LOOPBACK, self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio complains about one of its own that is cancelled.
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = Link(writer)
        self._links.add(link)
        try:
            await self._passing.wait()
            server, link.server = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(link, reader, link.server, from_client=True))
                both.create_task(self._pump(link, server, writer, from_client=False))
            for ended in (link.server, writer):
                ended.close()
        except* OSError:
            pass  # one side is gone, and the other goes the same way
        finally:
            link.reset()  # does nothing to one that has been closed
            self._links.discard(link)

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_client: bool
    ) -> None:
        """Read at once, write each piece when it is due."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        now_s = asyncio.get_running_loop().time

        async def read() -> None:
            piece = b"more"
            while piece:
                piece = await reader.read(CHUNK_BYTES)
                waiting.put_nowait((now_s() + self.latency_s, piece))

        async def write() -> None:
            while True:
                due_s, piece = await waiting.get()
                await asyncio.sleep(max(0.0, due_s - now_s()))
                await self._passing.wait()
                if not piece:
                    writer.write_eof()
                    return
                if self._passes(link, piece, from_client=from_client):
                    writer.write(piece)
                    await writer.drain()

        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            both.create_task(write())

    def _passes(self, link: Link, piece: bytes, *, from_client: bool) -> bool:
        """Whether a piece goes on; springs the trap that it steps on."""
        if not from_client:
            return link.muted_by is None or self._mute(link, link.muted_by)
        seen = link.tail + piece
        for trap in self._traps:
            if trap.pattern in seen:
                self._traps.remove(trap)
                if trap.fault in {Fault.LOSE_REQUEST, Fault.NONE}:
                    trap.sprung.set()
                if trap.fault is Fault.LOSE_REQUEST:
                    link.reset()
                    return False
                if trap.fault is not Fault.NONE:
                    link.muted_by = trap
                break
        longest = max((len(trap.pattern) for trap in self._traps), default=1)
        link.tail = seen[-(longest - 1) :] if longest > 1 else b""
        return True

    def _mute(self, link: Link, trap: Trap) -> bool:
        """The server has answered what the trap waited for, so it was done; nobody hears of it."""
        if trap.fault is Fault.LOSE_REPLY:
            link.reset()
        trap.sprung.set()
        return False
