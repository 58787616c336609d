"""Proves what an inbox does with its consumers and what it holds when it ends, is full, or cannot pass on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from placet.adapters.rabbitmq import inbox as inbox_module
from placet.adapters.rabbitmq.holding import Hold
from placet.adapters.rabbitmq.inbox import RabbitInbox
from placet.adapters.rabbitmq.wire import JSON, Incoming
from placet.errors import Code, ContractError, PlacetError, RetryableError
from placet.messages import row_id
from placet.runtime.ports import OutboxRow
from placet.topology import Source
from tests.contracts.queue_contract import an_envelope, ids

TURNS, CALLS = Source("placet.planner", 16, throttled=True), Source("placet.tool-executor", 8, throttled=True)


class Lane:
    """A channel that notes what is said on it. `on_cancel`: what happens while a consumer is being ended."""

    def __init__(self) -> None:
        self.consuming: dict[str, Any] = {}
        self.said: list[tuple[str, Any]] = []
        self.on_cancel: Any = lambda: None

    async def basic_qos(self, prefetch_count: int) -> None:
        self.said.append(("qos", prefetch_count))

    async def basic_consume(self, queue: str, receive: Any) -> Any:
        self.consuming[queue] = receive
        return SimpleNamespace(consumer_tag=f"tag of {queue}")

    async def basic_cancel(self, tag: str) -> None:
        self.said.append(("cancel", tag.removeprefix("tag of ")))
        self.on_cancel()

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        self.said.append(("ack", tag))

    async def basic_nack(self, tag: int, requeue: bool = True, wait: bool = True) -> None:
        assert requeue
        self.said.append(("nack", tag))


class Exit:
    """An outlet that confirms everything, or fails."""

    def __init__(self) -> None:
        self.rows: list[OutboxRow] = []
        self.error: PlacetError | None = None

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        self.rows += rows
        return [row.id for row in rows]

    async def park(self, message: Incoming, body: bytes, error: PlacetError) -> bool:
        raise AssertionError("nothing here is unreadable")


class World:
    """An inbox of two throttled queues on a channel that is up."""

    def __init__(self) -> None:
        self.places = {TURNS.queue: 9, CALLS.queue: 9}
        self.exit, self.lane = Exit(), Lane()
        self.inbox = RabbitInbox(
            "amqp://nowhere/", [TURNS, CALLS], "test", self.exit, room=lambda queue: self.places[queue]
        )
        self.tags = 0

    async def up(self) -> None:
        inbox: Any = self.inbox
        inbox._hold, inbox._lane = Hold(self.lane), self.lane  # type: ignore[arg-type]
        for source in (TURNS, CALLS):
            await inbox._consume(self.lane, inbox._hold, source)

    async def arrives(self, source: Source, body: bytes) -> None:
        self.tags += 1
        about = SimpleNamespace(headers={}, content_type=JSON, message_id=None, correlation_id=None, reply_to=None)
        about.user_id = about.message_type = None
        message = SimpleNamespace(
            delivery_tag=self.tags, body=body, exchange="", routing_key="", header=SimpleNamespace(properties=about)
        )
        await self.lane.consuming[source.queue](message)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.up()
    return world


async def test_the_intake_stops_although_the_channel_ends_meanwhile(world: World) -> None:
    world.lane.on_cancel = world.inbox._consumers.clear
    await world.inbox.stop_intake()
    assert world.lane.said[-1] == ("cancel", TURNS.queue), "the other one is gone already"


async def test_what_comes_while_consumers_end_is_given_back_at_once(world: World) -> None:
    arriving: list[asyncio.Future[None]] = []
    body = an_envelope(1).encode()
    world.lane.on_cancel = lambda: arriving.append(asyncio.ensure_future(world.arrives(CALLS, body)))
    await world.inbox.stop_intake()
    await asyncio.gather(*arriving)
    assert sorted(said for said in world.lane.said if said[0] == "nack") == [("nack", 1), ("nack", 2)]
    assert world.inbox.held == 0


async def test_a_consumer_that_begins_while_the_intake_stops_is_ended(world: World) -> None:
    await world.inbox.stop_intake()
    inbox: Any = world.inbox
    await inbox._consume(world.lane, inbox._hold, CALLS)
    assert world.lane.said[-1] == ("cancel", CALLS.queue)


async def test_each_kind_of_call_is_taken_up_to_its_own_places(world: World) -> None:
    world.places = {TURNS.queue: 5, CALLS.queue: 1}
    for n in range(4):
        await world.arrives(TURNS, an_envelope(n).encode())
        await world.arrives(CALLS, an_envelope(10 + n).encode())
    assert sorted(ids(await world.inbox.take(64))) == ["msg_0", "msg_1", "msg_10", "msg_2", "msg_3"]


async def test_only_the_kind_that_is_full_rests_and_is_passed_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "PASS_ON_S", -1.0)
    world.places = {TURNS.queue: 5, CALLS.queue: 0}
    await world.arrives(TURNS, an_envelope(1).encode())
    await world.arrives(CALLS, an_envelope(2).encode())
    assert ids(await world.inbox.take(64)) == ["msg_1"]
    assert world.inbox.report()["resting"] == [CALLS.queue]
    assert world.inbox._passing_on is not None
    await world.inbox._passing_on
    assert [(row.destination, row.id) for row in world.exit.rows] == [
        ("tool-executor", row_id("msg_2", an_envelope(2).encode()))
    ]


async def test_what_is_passed_on_keeps_its_bytes_and_with_them_its_row(world: World) -> None:
    body = an_envelope(2).encode().replace(b'{"', b'{ "', 1)  # not as this version would write it
    await world.arrives(CALLS, body)
    inbox: Any = world.inbox
    found = inbox._waiting.withdraw(lambda held: True)
    await inbox._pass_on(found)
    (row,) = world.exit.rows
    assert row.body == body
    assert row.id == row_id("msg_2", body)
    assert world.lane.said[-1] == ("ack", 1)


async def test_two_messages_under_one_id_are_both_passed_on(world: World) -> None:
    await world.arrives(CALLS, an_envelope(2).encode())
    await world.arrives(CALLS, an_envelope(2, "another goal").encode())
    inbox: Any = world.inbox
    await inbox._pass_on(inbox._waiting.withdraw(lambda held: True))
    assert len({row.id for row in world.exit.rows}) == len(world.exit.rows) == 2


@pytest.mark.parametrize(
    "error", [RetryableError(Code.BROKER_UNAVAILABLE, "away"), ContractError(Code.TOO_LARGE, "too large")]
)
async def test_what_cannot_be_passed_on_stays_here_and_is_handed_out(world: World, error: PlacetError) -> None:
    await world.arrives(CALLS, an_envelope(2).encode())
    world.exit.error = error
    inbox: Any = world.inbox
    await inbox._pass_on(inbox._waiting.withdraw(lambda held: True))
    assert world.inbox.held == 1
    assert ids(await world.inbox.take(64)) == ["msg_2"]
