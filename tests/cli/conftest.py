"""A gateway on a free port of loopback, and `placet` run within the test's process."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from placet.cli.program import run
from tests.gateway.world import TOKEN, World


@dataclass
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error document: the last line on standard error."""
        return json.loads(self.err.splitlines()[-1])["error"]


Placet = Callable[..., Result]


@pytest.fixture
def world() -> World:
    return World()


class Server:
    """One server for all tests; each puts its own application behind it."""

    def __init__(self) -> None:
        self.application: ASGIApp | None = None
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(self._serve, interface="asgi3", log_level="critical", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        # Nobody has to wait for it: until it serves, connections queue at the listener.
        self._thread.start()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.application is not None
        await self.application(scope, receive, send)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def url(server: Server, world: World) -> str:
    server.application = world.app()
    return server.url


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """None of the developer's own settings."""
    for name in ("PLACET_URL", "PLACET_TOKEN", "PLACET_TOKEN_FILE", "PLACET_PERSON", "PLACET_DATA", "PLACET_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLACET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return monkeypatch


@pytest.fixture
def offline(environment: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Placet:
    """`placet` without a gateway."""

    def command(*arguments: str, stdin: bytes = b"") -> Result:
        environment.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capfdbinary.readouterr()
        code = run(list(arguments))
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return command


@pytest.fixture
def placet(offline: Placet, environment: pytest.MonkeyPatch, url: str) -> Placet:
    """`placet` with the gateway and its token."""
    environment.setenv("PLACET_URL", url)
    environment.setenv("PLACET_TOKEN", TOKEN)
    return offline
