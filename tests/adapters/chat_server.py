"""Decides how a small server speaks the chat-completions protocol: a prepared answer for each request, all counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Internal Server Error"}


class Answer:
    """What one request gets. `hang` keeps the connection open and says nothing; `drop` closes it at once."""

    def __init__(
        self,
        body: object = None,
        status: int = 200,
        headers: dict[str, str] | None = None,
        *,
        raw: bytes | None = None,
        hang: bool = False,
        drop: bool = False,
    ) -> None:
        self.status = status
        self.headers = headers or {}
        self.payload = raw if raw is not None else json.dumps(body).encode()
        self.hang = hang
        self.drop = drop


def completion(message: dict[str, Any], *, finish: str = "stop") -> Answer:
    """A whole chat completion around one message."""
    return Answer(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_785_000_000,
            "model": "small-1",
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }
    )


def says(text: str) -> Answer:
    """A text answer."""
    return completion({"content": text})


def asks(*calls: tuple[str, str, str]) -> Answer:
    """Tool calls: id, name and argument text."""
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return completion({"content": None, "tool_calls": made}, finish="tool_calls")


def error(status: int, code: str | None = None, **headers: str) -> Answer:
    """An error as OpenAI words it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer({"error": {"message": f"status {status}", "type": "error", "code": code}}, status, named)


class ChatServer:
    """A running server. `requests` are the bodies it was sent, `paths` where to, in order."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.hanging = asyncio.Event()
        self.gone = asyncio.Event()
        """Whoever got no answer has given up."""
        self._open: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self.base_url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        self._open[writer] = asyncio.current_task()
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                lengths = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
                self.requests.append(json.loads(await reader.readexactly(int(lengths[0]))))
                self.paths.append(lines[0].split(" ")[1])
                answer = self._answers.pop(0) if self._answers else error(500)
                if answer.drop:
                    break
                if answer.hang:
                    self.hanging.set()
                    await reader.read()  # until the client gives up
                    self.gone.set()
                    break
                await self._send(writer, answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            writer.close()
            del self._open[writer]

    async def hang_up(self) -> None:
        """End every connection, and wait until its handler has ended."""
        tasks = [task for task in self._open.values() if task is not None]
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.gather(*tasks)

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        headers = {"content-type": "application/json", "content-length": str(len(answer.payload)), **answer.headers}
        head = f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Status')}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(head.encode() + b"\r\n" + answer.payload)
        await writer.drain()


@asynccontextmanager
async def chat_server(*answers: Answer) -> AsyncIterator[ChatServer]:
    """A server on a free port of the loopback interface."""
    chat = ChatServer(answers)
    server = await asyncio.start_server(chat.serve, "127.0.0.1", 0)
    chat.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield chat
    finally:
        server.close()
        await chat.hang_up()
