"""Proves what is said of a broker that refuses, is blocked or was cut: for how long, and to whom; without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aio_pika.exceptions import DeliveryError, PublishError
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from placet.adapters.rabbitmq import RabbitOutlet, RabbitReplies, hearing
from placet.adapters.rabbitmq.asking import Asker
from placet.adapters.rabbitmq.hearing import Channel, Hearing
from placet.adapters.rabbitmq.link import BLOCKED
from placet.adapters.rabbitmq.outlet import ALARM_S
from placet.adapters.rabbitmq.wire import JSON, ReturnAddress, properties
from placet.errors import Code, RetryableError
from placet.runtime.ports import OutboxRow
from placet.topology import make_topology
from tests.contracts.queue_contract import a_row

URL = "amqp://nowhere/"


class Lane:
    """A channel whose next publications end like this."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)
        self.bodies: list[bytes] = []

    async def basic_publish(self, body: bytes, **about: Any) -> None:
        self.bodies.append(body)
        if self.ends and (error := self.ends.pop(0)) is not None:
            raise error


class Transport:
    """A connection that takes in what is sent, or not."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def ready(self) -> None:
        await self.open.wait()


def up(link: Any) -> Transport:
    """Let a link believe that it is connected."""
    transport = Transport()
    link._connection, link.trouble = SimpleNamespace(transport=transport), None
    link._up.set()
    return transport


def refusal() -> PublishError:
    returned = Basic.Return(312, "NO_ROUTE", "placet.work", "dispatcher")
    message = DeliveredMessage(delivery=returned, header=ContentHeader(), body=b"", channel=None)  # type: ignore[arg-type]
    return PublishError(message, returned)


# ── alarms of an outlet ────────────────────────────────────────────────────────────────


@pytest.fixture
async def outlet() -> RabbitOutlet:
    outlet = RabbitOutlet(URL, make_topology(), "test")
    up(outlet._link)
    return outlet


async def test_an_alarm_that_nobody_repeats_is_over_after_two_claims() -> None:
    now_s = 1_000.0
    outlet = RabbitOutlet(URL, make_topology(), "test", monotonic_s=lambda: now_s)
    up(outlet._link)
    outlet._lane = Lane(refusal())  # type: ignore[assignment]
    assert await outlet.publish([a_row(1)]) == []
    assert outlet.trouble == "dispatcher: no queue is bound for it"
    now_s += ALARM_S - 1
    assert outlet.trouble is not None
    now_s += 2
    assert outlet.trouble is None


async def test_a_row_without_a_way_is_told_and_makes_nobody_unready(outlet: RabbitOutlet) -> None:
    outlet._lane = Lane(refusal())  # type: ignore[assignment]
    rows = [
        OutboxRow(f"x{n}", name, "r", "operation.execute", 0, b"{}")
        for n, name in enumerate(["x", "tool-executor.tpu"])
    ]
    assert await outlet.publish(rows) == []
    assert set(outlet.unrouted) == {"x", "tool-executor.tpu"}
    assert outlet.trouble is None


# ── questions ──────────────────────────────────────────────────────────────────────────


async def asked(asker: Asker, lane: Lane | None) -> str | None:
    asker._lane = lane  # type: ignore[assignment]
    token, answer = asker.expect()
    await asker.publish("placet.work", "dispatcher", b"{}", properties(JSON), [token])
    async with asyncio.timeout(5):
        return await answer


@pytest.mark.parametrize("lane", [None, Lane(refusal()), Lane(DeliveryError(None, Basic.Nack(1)))])
async def test_where_surely_nothing_was_taken_in_the_asker_is_told_so(lane: Lane | None) -> None:
    asker = Asker(URL, "test")
    up(asker._link)
    with pytest.raises(RetryableError) as raised:
        await asked(asker, lane)
    assert raised.value.code is Code.BROKER_UNAVAILABLE


async def test_where_a_confirm_is_lost_the_outcome_is_unknown() -> None:
    asker = Asker(URL, "test")
    up(asker._link)
    assert await asked(asker, Lane(TimeoutError())) is None


async def test_nothing_is_written_to_a_broker_that_takes_nothing_in_and_it_is_a_trouble() -> None:
    asker, lane = Asker(URL, "test"), Lane()
    transport = up(asker._link)
    assert asker.trouble is None
    transport.open.clear()
    assert asker.trouble == BLOCKED
    with pytest.raises(RetryableError, match="memory or disk"):
        await asker.wait_until_ready(10)
    with pytest.raises(RetryableError, match="memory or disk"):
        await asked(asker, lane)
    assert lane.bodies == []
    transport.open.set()
    assert asker.trouble is None


# ── what is only said once ─────────────────────────────────────────────────────────────


async def test_each_connection_of_a_listener_has_a_queue_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    class Queue:
        async def bind(self, exchange: str, key: str) -> None:
            return None

    class Kept:
        async def declare_queue(self, name: str, **how: Any) -> Queue:
            names.append(name)
            return Queue()

    class Consuming:
        on_consumer_cancel_callbacks: set[Any] = set()

        async def basic_consume(self, queue: str, heard: Any, no_ack: bool) -> None:
            assert queue == names[-1]

    async def open_lane(connection: Any, *, confirms: bool) -> tuple[Kept, Consuming]:
        return Kept(), Consuming()

    monkeypatch.setattr(hearing, "open_lane", open_lane)
    one = Hearing(URL, "test", Channel("x", ("k",), "placet.stops."), lambda body: None, lambda: None)
    for _ in range(2):
        await one._opened(None)  # type: ignore[arg-type]
    assert len(set(names)) == 2, "the broker may still lock the one of a connection that was cut"
    assert all(name.startswith("placet.stops.") for name in names)


async def test_answers_that_could_not_be_sent_are_counted() -> None:
    replies = RabbitReplies(URL, "test")
    await replies.send(ReturnAddress(False, "amq.rabbitmq.reply-to.g1h2AA1", "token").text(), "text")
    assert replies._flushing is not None
    await replies._flushing
    assert replies.dropped == 1
