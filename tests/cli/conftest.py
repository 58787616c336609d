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


@pytest.fixture
def url(world: World) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(world.app(), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    # Nobody has to wait for it: until it serves, connections queue at the listener.
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


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
