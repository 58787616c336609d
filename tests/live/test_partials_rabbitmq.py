"""Proves how pieces of replies travel: to all who watch, with a service's own rights, and to no outsider."""

from __future__ import annotations

import asyncio
import runpy
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from placet.adapters.rabbitmq import RabbitReplies, declare
from placet.adapters.rabbitmq.overhearing import RabbitOverheard, joined
from placet.partials import Partial
from placet.topology import make_topology
from tests.architecture.sources import ROOT
from tests.live.broker_ends import eventually
from tests.live.servers import Access

PATIENCE_S = 20


def a_piece(at: int, text: str, run_id: str = "run-1", attempt: int = 1) -> Partial:
    return Partial(tenant="acme", run_id=run_id, turn="task:a/1", attempt=attempt, at=at, text=text)


@contextmanager
def as_service(service: str, amqp_url: str, rabbitmq: Access) -> Iterator[str]:
    """The broker as this service reaches it, with the rights that it is given and no others."""
    management, parts = rabbitmq.management, urlsplit(amqp_url)
    rights = runpy.run_path(str(ROOT / "deploy" / "make_secrets.py"))["rights"](service)
    name, password = f"{service}-{secrets.token_hex(4)}", secrets.token_hex(16)
    management.call(f"users/{name}", "PUT", {"password": password, "tags": ""})
    try:
        management.call(f"permissions/{quote(parts.path[1:], safe='')}/{name}", "PUT", rights)
        host = parts.netloc.rpartition("@")[2]
        yield urlunsplit(parts._replace(netloc=f"{name}:{password}@{host}"))
    finally:
        management.call(f"users/{name}", "DELETE")


@asynccontextmanager
async def speaking(url: str) -> AsyncIterator[RabbitReplies]:
    replies = RabbitReplies(url, "planner")
    replies.start()
    try:
        yield replies
    finally:
        await replies.close()


async def heard_by(overheard: RabbitOverheard, replies: RabbitReplies, run_id: str) -> asyncio.Queue[Partial]:
    """What comes for a run, from when something has come."""
    heard: asyncio.Queue[Partial] = asyncio.Queue()
    overheard.overhear(run_id, heard.put_nowait)

    async def comes() -> bool:
        replies.tell(a_piece(0, "?", run_id, attempt=99))
        await asyncio.sleep(0.05)
        return not heard.empty()

    await eventually(comes)
    return heard


async def text_of(heard: asyncio.Queue[Partial], length: int) -> str:
    text = ""
    async with asyncio.timeout(PATIENCE_S):
        while len(text) < length:
            piece = await heard.get()
            if piece.attempt == 1:
                assert piece.at == len(text), "in order"
                text += piece.text
    return text


async def test_what_a_planner_says_reaches_every_gateway_that_watches_with_the_rights_they_are_given(
    amqp_url: str, rabbitmq: Access
) -> None:
    await declare(amqp_url, make_topology(), wait_ms=10_000)
    with as_service("planner", amqp_url, rabbitmq) as planner, as_service("gateway", amqp_url, rabbitmq) as gateway:
        watching = [RabbitOverheard(gateway, f"gateway {number}") for number in range(2)]
        try:
            async with speaking(planner) as replies:
                ears = [await heard_by(each, replies, "run-1") for each in watching]
                others: list[Partial] = []
                watching[0].overhear("run-2", others.append)
                said = "".join(f"word{number} " for number in range(300))
                for at in range(0, len(said), 7):
                    replies.tell(a_piece(at, said[at : at + 7]))
                assert [await text_of(heard, len(said)) for heard in ears] == [said, said]
                assert (others, replies.dropped, replies.trouble) == ([], 0, None)
        finally:
            for each in watching:
                await each.close()


@pytest.mark.parametrize("service", ["tool-executor", "dispatcher", "resume", "approval"])
def test_nobody_else_has_the_right_to_say_or_to_hear_it(service: str) -> None:
    rights: Any = runpy.run_path(str(ROOT / "deploy" / "make_secrets.py"))["rights"]
    assert "partials" not in str(rights(service))


def test_pieces_of_one_moment_are_joined_and_nothing_is_lost_or_mixed() -> None:
    pieces = [
        a_piece(0, "a"), a_piece(0, "x", "run-2"), a_piece(1, "b"), a_piece(0, "c", attempt=2), a_piece(2, "d"),
        a_piece(9, "gap"),
    ]  # fmt: skip
    found = {(piece.run_id, piece.attempt, piece.at): piece.text for piece in joined(pieces)}
    assert found == {("run-1", 1, 0): "abd", ("run-1", 1, 9): "gap", ("run-2", 1, 0): "x", ("run-1", 2, 0): "c"}
