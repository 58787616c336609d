"""Gates outside over real HTTP: one question, bounded in time and size, and no way round."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from placet.activities import AskGate
from placet.adapters.http_gates import HttpGates
from placet.gates import OutsideAnswer, OutsideGate

Server = Callable[[bytes], Awaitable[list[bytes]]]
ACTIVITY = AskGate(
    tenant="acme", run_id="r1", operation_id="op_1", gate="fraud", subject_text='{"tool":"send"}', timeout_ms=10_000
)


class Outside:
    """A server that says what it is told, a piece at a time, and counts."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.pause_s = 0.0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        self.requests.append(head + await reader.readexactly(length))
        try:
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(self.pause_s)
        except ConnectionError:
            pass
        writer.close()


def http(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{more}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


@pytest.fixture
async def outside() -> AsyncIterator[tuple[Outside, str]]:
    world = Outside()
    server = await asyncio.start_server(world.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield world, f"http://127.0.0.1:{port}/fraud"
    server.close()


async def asked(url: str, timeout_ms: int = 10_000) -> OutsideAnswer:
    gates = HttpGates({"fraud": OutsideGate(url, timeout_ms, "suspend", (("Authorization", "Bearer t"),))})
    try:
        return await gates.ask(ACTIVITY.model_copy(update={"timeout_ms": timeout_ms}))
    finally:
        await gates.close()
        await gates.close()


async def test_it_is_asked_once_with_the_subject_the_key_and_the_authors_headers(outside: tuple[Outside, str]) -> None:
    world, url = outside
    world.pieces = [http(b'{"verdict":"deny","reason":"no","version":"7"}')]
    assert await asked(url) == OutsideAnswer(verdict="deny", reason="no", version="7")
    [request] = world.requests
    head, body = request.split(b"\r\n\r\n")
    assert head.startswith(b"POST /fraud HTTP/1.1")
    assert b"authorization: bearer t" in head.lower()
    assert b"idempotency-key: op_1/fraud" in head.lower()
    assert json.loads(body) == {
        "gate": "fraud", "boundary": "tool_call", "tenant": "acme", "operation_id": "op_1", "subject": {"tool": "send"},
    }  # fmt: skip


async def test_an_answer_that_drips_is_given_up_when_its_time_is_over(outside: tuple[Outside, str]) -> None:
    world, url = outside
    world.pieces = [b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", *[b" "] * 100]
    world.pause_s = 0.05
    began_s = time.monotonic()
    answer = await asked(url, 300)
    assert (answer.verdict, answer.reason) == ("failed", "it did not answer within 300 ms")
    assert time.monotonic() - began_s < 2


async def test_a_redirect_is_not_followed_and_no_proxy_is_taken(
    outside: tuple[Outside, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, url = outside
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    world.pieces = [http(b'{"verdict":"allow"}', "307 Temporary Redirect", f"location: {url}\r\n")]
    answer = await asked(url)
    assert (answer.verdict, answer.reason, len(world.requests)) == ("failed", "it answered with status 307", 1)


async def test_an_endless_answer_is_read_to_its_bound_only(outside: tuple[Outside, str]) -> None:
    world, url = outside
    world.pieces = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", *[b" " * 10_000] * 100]
    answer = await asked(url)
    assert answer.verdict == "failed"
    assert "longer than 65536 bytes" in (answer.reason or "")


async def test_one_that_is_away_has_failed() -> None:
    answer = await asked("http://127.0.0.1:1/fraud")
    assert answer.verdict == "failed"
    assert "cannot be reached" in (answer.reason or "")


async def test_a_gate_that_is_not_there_has_failed() -> None:
    assert (await HttpGates({}).ask(ACTIVITY)).verdict == "failed"
