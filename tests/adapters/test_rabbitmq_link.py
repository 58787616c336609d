"""Proves that a service that knows several nodes of a broker needs one of them."""

from __future__ import annotations

import random
from typing import Any

import aio_pika
import pytest

from placet.adapters.rabbitmq import link


class Nodes:
    """Which nodes answer, and which were asked."""

    def __init__(self, *alive: str) -> None:
        self.alive = alive
        self.asked: list[str] = []

    async def connect(self, url: str, **options: Any) -> Any:
        self.asked.append(url)
        if url not in self.alive:
            raise ConnectionRefusedError(f"{url} is away")
        return f"connected to {url}"


@pytest.fixture
def unshuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "shuffle", lambda nodes: None)


@pytest.mark.usefixtures("unshuffled")
async def test_the_first_node_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes("amqp://b", "amqp://c")
    monkeypatch.setattr(aio_pika, "connect", nodes.connect)
    connected: Any = await link.connect("amqp://a amqp://b amqp://c", "a test")
    assert connected == "connected to amqp://b"
    assert nodes.asked == ["amqp://a", "amqp://b"]


@pytest.mark.usefixtures("unshuffled")
async def test_where_no_node_answers_the_last_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes()
    monkeypatch.setattr(aio_pika, "connect", nodes.connect)
    with pytest.raises(ConnectionRefusedError, match="amqp://b is away"):
        await link.connect("amqp://a amqp://b", "a test")


async def test_services_spread_over_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes("amqp://a", "amqp://b", "amqp://c")
    monkeypatch.setattr(aio_pika, "connect", nodes.connect)
    for _ in range(100):
        await link.connect("amqp://a amqp://b amqp://c", "a test")
    assert set(nodes.asked) == set(nodes.alive)
