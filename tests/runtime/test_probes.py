"""Proves that the probes answer what the process says of itself, and that nothing sent to them harms it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from placet.errors import Code, TerminalError
from placet.runtime import probes
from placet.runtime.probes import Probes
from placet.runtime.service import Report


class Said:
    """What the process says."""

    report = Report(True, True, {"service": "toy"})


@pytest.fixture
async def said() -> AsyncIterator[tuple[Said, int]]:
    said = Said()
    server = Probes(lambda: said.report)
    yield said, await server.start("127.0.0.1", 0)
    await server.close()
    await server.close()


async def raw(port: int, sent: bytes) -> bytes:
    """What comes back for these bytes, until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("live", "ready", "livez", "readyz"), [(True, True, 200, 200), (True, False, 200, 503), (False, False, 503, 503)]
)
async def test_each_probe_says_what_it_is_for(
    said: tuple[Said, int], live: bool, ready: bool, livez: int, readyz: int
) -> None:
    now, port = said
    now.report = Report(live, ready, {"service": "toy", "loops": {"worker": "ok"}})
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/livez")).status_code == livez
        answer = await client.get("/readyz?verbose")
    assert answer.status_code == readyz
    assert answer.json() == {
        "status": "ok" if readyz == 200 else "failing", "service": "toy", "loops": {"worker": "ok"},
    }  # fmt: skip


async def test_anything_else_is_refused(said: tuple[Said, int]) -> None:
    _, port = said
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/livez", content=b"x")).status_code == 405
        head = await client.head("/livez")
    assert head.status_code == 200
    assert head.content == b""


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 100 + b"\r\n\r\n"]
)
async def test_nonsense_gets_an_answer(said: tuple[Said, int], sent: bytes) -> None:
    _, port = said
    head, _, body = (await raw(port, sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert json.loads(body) == {"status": "not found"}


async def test_a_request_without_an_end_is_cut_off(said: tuple[Said, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_S", 0.05)
    _, port = said
    assert await raw(port, b"GET /livez HTTP/1.1\r\nHost: x") == b""
    assert await raw(port, b"x" * 100_000) == b""
    assert (await raw(port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")


async def test_a_port_that_is_taken_is_told(said: tuple[Said, int]) -> None:
    _, port = said
    with pytest.raises(TerminalError, match=f"port {port}") as raised:
        await Probes(lambda: Said.report).start("127.0.0.1", port)
    assert raised.value.code is Code.SETTING_INVALID
