"""Decides how a service that serves no HTTP otherwise answers `/livez` and `/readyz`.

As little of HTTP as probes need: one request a connection, no bodies in, no library. It answers from the event loop of
the work, so that a loop that is stuck answers nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from http import HTTPStatus

from placet.errors import Code, TerminalError
from placet.runtime.service import Report

log = logging.getLogger("placet.probes")

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_TIMEOUT_S = 5.0


class Probes:
    """The probes of one process."""

    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is any free one for 0. Raises TerminalError(SETTING_INVALID) when it is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            what = f"the probes cannot be answered on {host}, port {port}: {error.strerror or error}"
            raise TerminalError(Code.SETTING_INVALID, what) from error
        listening: int = self._server.sockets[0].getsockname()[1]
        log.info("probes.listening", extra={"host": host, "port": listening})
        return listening

    async def close(self) -> None:
        """Listen no more. Closing twice is harmless."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head, self._report))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("probes.no_request", extra={"reason": type(error).__name__})
        finally:
            writer.close()


def _answer(head: bytes, report: Callable[[], Report]) -> bytes:
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path not in {"/livez", "/readyz"}:
        return _response(HTTPStatus.NOT_FOUND, {"status": "not found"}, method)
    if method not in {"GET", "HEAD"}:
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, {"status": "only GET and HEAD"}, method)
    told = report()
    well = told.live if path == "/livez" else told.ready
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return _response(status, {"status": "ok" if well else "failing", **told.body}, method)


def _response(status: HTTPStatus, body: dict[str, object], method: str) -> bytes:
    text = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else text)
