"""Proves who is handed out next, what is given back, and which AMQP messages are acknowledged, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from placet.adapters.rabbitmq.holding import Held, Hold
from placet.adapters.rabbitmq.waiting import SUSPECT_DELIVERIES, Waiting
from placet.adapters.rabbitmq.wire import (
    JSON,
    LINES,
    Incoming,
    ReturnAddress,
    answers_body,
    is_answerable,
    packs,
    read_answers,
    read_return_address,
)
from placet.errors import Code, ContractError
from placet.runtime.parcels import outbox_row
from placet.runtime.ports import Delivery
from placet.topology import Source
from tests.contracts.queue_contract import an_envelope, ids

WORK, TOOLS = Source("work", 128), Source("tools", 16, throttled=True)
ADDRESS = "amq.rabbitmq.reply-to.g1h2AA1.dBiBZUE0=="


class Lane:
    """A channel that notes what is said on it, and refuses what a broker would."""

    def __init__(self) -> None:
        self.outstanding: set[int] = set()
        self.said: list[tuple[str, int, bool]] = []

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        assert tag in self.outstanding, "the broker closes the channel for an unknown tag"
        self.said.append(("ack", tag, multiple))
        self.outstanding -= {known for known in self.outstanding if known == tag or (multiple and known < tag)}

    async def basic_nack(self, tag: int, requeue: bool = True, wait: bool = True) -> None:
        assert tag in self.outstanding
        self.said.append(("nack", tag, False))
        self.outstanding.remove(tag)


class Channel:
    """A channel with what was handed out on it."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.hold = Hold(self.lane)  # type: ignore[arg-type]

    def held(self, bodies: Sequence[bytes], queue: str = "work", deliveries: int = 0, **changes: Any) -> Held:
        tag = len(self.lane.outstanding) + len(self.lane.said) + 1
        self.lane.outstanding.add(tag)
        self.hold.add(tag)
        fields: dict[str, Any] = {
            "body": b"\n".join(bodies),
            "queue": queue,
            "exchange": "placet.work",
            "routing_key": queue,
            "content_type": JSON if len(bodies) == 1 else LINES,
            "headers": {},
            "message_id": None,
            "correlation_id": None,
            "reply_to": None,
            "user_id": None,
            "deliveries": deliveries,
        }
        return Held(tag, self.hold, Incoming(**{**fields, **changes}))


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def unreadable() -> list[tuple[bytes, Code]]:
    return []


@pytest.fixture
def waiting(unreadable: list[tuple[bytes, Code]]) -> Waiting:
    return Waiting([WORK, TOOLS], lambda held, body, error: unreadable.append((body, error.code)))


def bodies(*numbers: int) -> list[bytes]:
    return [an_envelope(n).encode() for n in numbers]


async def done(waiting: Waiting, *deliveries: Delivery) -> None:
    holds = set()
    for delivery in deliveries:
        held = waiting.done(delivery)
        assert held is not None
        held.hold.finish(held)
        holds.add(held.hold)
    for hold in holds:
        await hold.acknowledge()


# ── acknowledging ──────────────────────────────────────────────────────────────────────


async def test_a_batch_is_one_cumulative_acknowledgement(waiting, channel):
    for n in range(64):
        waiting.add(channel.held(bodies(n)))
    await done(waiting, *waiting.batch(64, {}))
    assert channel.lane.said == [("ack", 64, True)]


async def test_what_is_done_behind_something_that_is_not_is_acknowledged_alone_and_never_twice(waiting, channel):
    for n in range(5):
        waiting.add(channel.held(bodies(n)))
    first, second, third, fourth, fifth = waiting.batch(64, {})
    await done(waiting, third, second, fifth)
    await done(waiting, first)
    await done(waiting, fourth)
    assert channel.lane.said == [
        ("ack", 2, False),
        ("ack", 3, False),
        ("ack", 5, False),
        ("ack", 1, True),
        ("ack", 4, True),
    ]
    assert not channel.lane.outstanding


async def test_a_message_deletes_the_row_that_holds_its_very_bytes_and_no_other(waiting, channel):
    """Whoever forges a message under a known id takes nothing from anybody."""
    real = an_envelope(1)
    forged = real.model_copy(update={"cause": "made up"})
    waiting.add(channel.held([real.encode(), forged.encode()]))
    first, second = waiting.batch(2, {})
    assert first.envelope.id == second.envelope.id
    assert first.outbox_id == outbox_row(real).id
    assert second.outbox_id != first.outbox_id


async def test_what_somebody_asks_is_in_no_outbox(waiting, channel):
    waiting.add(channel.held([an_envelope(1).model_copy(update={"reply_to": "t-1"}).encode()]))
    (asked,) = waiting.batch(1, {})
    assert asked.outbox_id is None


async def test_of_a_channel_that_is_gone_nothing_is_owed(waiting, channel):
    waiting.add(channel.held(bodies(1)))
    waiting.add(channel.held(bodies(2)))
    (first,) = waiting.batch(1, {})
    waiting.put(an_envelope(3))
    channel.hold.void = True
    waiting.forget_all()
    assert waiting.done(first) is None
    waiting.back(first)
    assert ids(waiting.batch(64, {})) == ["msg_3"], "only what is ours is left"


async def test_what_no_worker_has_is_given_back_and_a_half_taken_message_is_not(waiting, channel):
    waiting.add(channel.held(bodies(1, 2, 3)))
    waiting.add(channel.held(bodies(4)))
    taken = waiting.batch(2, {})
    assert ids(taken) == ["msg_1", "msg_2"]
    await channel.hold.give_back(waiting.forget())
    assert channel.lane.said == [("nack", 2, False)]
    await done(waiting, *taken)
    assert channel.lane.outstanding == {1}, "part of it was not done: it comes again whole"


# ── turns ──────────────────────────────────────────────────────────────────────────────


async def test_results_of_this_process_come_first_and_then_each_queue_in_turn(waiting, channel):
    for n in range(3):
        waiting.add(channel.held(bodies(n)))
        waiting.add(channel.held(bodies(10 + n), "tools"))
    waiting.put(an_envelope(99))
    assert ids(waiting.batch(5, {"tools": 9})) == ["msg_99", "msg_0", "msg_10", "msg_1", "msg_11"]
    assert ids(waiting.batch(5, {"tools": 9})) == ["msg_2", "msg_12"]


async def test_without_room_what_starts_calls_waits_and_nothing_else_does(waiting, channel):
    for n in range(3):
        waiting.add(channel.held(bodies(n), "tools"))
    waiting.add(channel.held(bodies(9)))
    assert ids(waiting.batch(64, {})) == ["msg_9"]
    assert waiting.throttled
    assert ids(waiting.batch(64, {"tools": 2})) == ["msg_0", "msg_1"]
    assert ids(waiting.batch(64, {"tools": 2})) == ["msg_2"]
    assert not waiting.throttled


async def test_what_may_have_killed_its_consumers_is_handed_out_alone_and_in_another_order_each_time(waiting, channel):
    orders = []
    for times in range(SUSPECT_DELIVERIES, SUSPECT_DELIVERIES + 6):
        suspects = Waiting([WORK], lambda held, body, error: None)
        suspects.add(channel.held(bodies(1, 2, 3), deliveries=times))
        suspects.add(channel.held(bodies(4), deliveries=times))
        suspects.add(channel.held(bodies(5)))
        turns = [ids(suspects.batch(64, {})) for _ in range(5)]
        assert [len(turn) for turn in turns] == [1] * 5
        assert turns[-1] == ["msg_5"], "what is above suspicion comes after"
        orders.append([turn[0] for turn in turns[:4]])
        assert sorted(orders[-1]) == ["msg_1", "msg_2", "msg_3", "msg_4"]
    assert len({order[0] for order in orders}) > 1
    assert len(set(map(tuple, orders))) > 3


# ── reading ────────────────────────────────────────────────────────────────────────────


async def test_lines_that_cannot_be_read_are_told_and_their_neighbours_come(waiting, channel, unreadable):
    waiting.add(channel.held([an_envelope(1).encode(), b"nonsense", an_envelope(2).encode(), b'{"v":2}']))
    deliveries = waiting.batch(64, {})
    assert ids(deliveries) == ["msg_1", "msg_2"]
    assert unreadable == [(b"nonsense", Code.JSON_SYNTAX), (b'{"v":2}', Code.VERSION_UNSUPPORTED)]
    await done(waiting, *deliveries)
    assert channel.lane.said == [], "two lines are not parked yet"


async def test_an_empty_body_is_one_that_cannot_be_read(waiting, channel, unreadable):
    waiting.add(channel.held([b""]))
    waiting.add(channel.held([b"", b""]))
    assert waiting.batch(64, {}) == []
    assert [code for _, code in unreadable] == [Code.JSON_SYNTAX] * 2


async def test_an_answer_goes_where_the_broker_says_that_the_question_came_from(waiting, channel):
    asked = an_envelope(1).model_copy(update={"reply_to": "17"})
    waiting.add(channel.held([asked.encode()], reply_to=ADDRESS))
    waiting.add(channel.held([asked.encode()], reply_to="placet.tool-executor"))
    waiting.add(channel.held(bodies(2), reply_to=ADDRESS))
    first, second, third = waiting.batch(64, {})
    assert read_return_address(first.envelope.reply_to or "") == ReturnAddress(True, ADDRESS, "17")
    assert second.envelope.reply_to is None
    assert third.envelope.reply_to is None


# ── the wire ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("token", ["", "17", "a b  c", "ü\n", "door x y"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_return_address_survives_its_journey(token: str, packed: bool) -> None:
    address = ReturnAddress(packed, ADDRESS, token)
    assert read_return_address(address.text()) == address


@pytest.mark.parametrize("text", ["", "door", "door x", f"elsewhere {ADDRESS} t", "plain placet.work t", f" {ADDRESS}"])
def test_what_is_no_return_address_is_none(text: str) -> None:
    assert read_return_address(text) is None


def test_only_the_broker_s_own_pseudo_queues_can_be_answered() -> None:
    assert is_answerable(ADDRESS)
    for address in (None, "", "amq.rabbitmq.reply-to", "placet.dead", ADDRESS + " x"):
        assert not is_answerable(address)


def test_answers_come_back_byte_for_byte() -> None:
    answers = [
        ("1", '{"a": "ü\u2028\\n"}'),
        ("2", ""),
        ("3", "\U0001f600"),
    ]
    assert read_answers(answers_body(answers)) == answers
    for body in (b"", b"{}", b"[1]", b"[1,2,3]", b"\xff"):
        with pytest.raises(ContractError):
            read_answers(body)


def test_packs_keep_the_order_and_both_bounds() -> None:
    items = [b"x" * size for size in (10, 300_000, 10, 200_000, 100_000, 10)]
    assert [[len(item) for item in pack] for pack in packs(items, len, 2)] == [
        [10],
        [300_000],
        [10, 200_000],
        [100_000, 10],
    ]
    assert list(packs([], len, 2)) == []
