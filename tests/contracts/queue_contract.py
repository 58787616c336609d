"""Decides what every queue promises, written once: how rows leave by an outlet and come in by an inbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

import pytest

from placet.messages import Envelope, SubmitRun
from placet.runtime.parcels import outbox_row
from placet.runtime.ports import Delivery, Inbox, OutboxRow, Outlet
from placet.topology import DISPATCHER
from tests.builders import ALICE, TENANT

PATIENCE_S = 10
"""Longer than any of this takes, on any machine."""


def an_envelope(n: int, text: str = "a goal") -> Envelope:
    """The n-th submission."""
    message = SubmitRun(tenant=TENANT, run_id=f"run-{n}", team="team", goal=text, initiator=ALICE)
    return Envelope(id=f"msg_{n}", cause="msg_0", message=message)


def a_row(n: int, text: str = "a goal") -> OutboxRow:
    """The n-th row, for the dispatcher."""
    envelope = an_envelope(n, text)
    return OutboxRow(envelope.id, DISPATCHER, envelope.message.run_id, "run.submit", 0, envelope.encode())


def rows(*numbers: int) -> list[OutboxRow]:
    """Several of them."""
    return [a_row(n) for n in numbers]


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    """Whose turn it was, in order."""
    return [delivery.envelope.id for delivery in deliveries]


class ClosableInbox(Inbox, Protocol):
    """An inbox with an end, and a way in for results of this process."""

    def put(self, envelope: Envelope) -> None: ...

    def close(self) -> None: ...

    async def drained(self) -> None: ...


async def collect(inbox: Inbox, number: int, batch_max: int = 64) -> list[Delivery]:
    """Take until there are so many; nothing is settled."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < number:
            taken += await inbox.take(min(batch_max, number - len(taken)))
    return taken


async def is_empty(inbox: Inbox) -> bool:
    """Whether nothing comes although nothing else is going on."""
    taking = asyncio.ensure_future(inbox.take(64))
    done, _ = await asyncio.wait([taking], timeout=0.3)
    taking.cancel()
    return not done


class QueueContract:
    """An adapter's tests say `ends`: the two ends of one empty queue, the dispatcher's."""

    adapter: str

    async def ends(self) -> tuple[ClosableInbox, Outlet]:
        """An inbox that consumes, and an outlet that publishes to it."""
        raise NotImplementedError

    @pytest.fixture
    async def queue(self) -> AsyncIterator[tuple[ClosableInbox, Outlet]]:
        inbox, outlet = await self.ends()
        yield inbox, outlet
        inbox.close()

    async def test_what_was_published_arrives_as_it_was_byte_for_byte(self, queue):
        inbox, outlet = queue
        row = a_row(1, "a goal with ümlauts, \u2028 separators and \\ backslashes")
        await outlet.publish([row])
        (delivery,) = await collect(inbox, 1)
        assert delivery.envelope.encode() == row.body

    async def test_whoever_takes_a_message_is_told_its_row_and_its_bytes(self, queue):
        inbox, outlet = queue
        published = [outbox_row(an_envelope(n)) for n in (1, 2, 3)]
        await outlet.publish(published)
        taken = await collect(inbox, 3)
        assert [(delivery.outbox_id, delivery.body) for delivery in taken] == [(row.id, row.body) for row in published]

    async def test_everything_that_waits_is_taken_in_the_order_in_which_it_came(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(*range(100)))
        taken = await collect(inbox, 100)
        assert ids(taken) == [f"msg_{n}" for n in range(100)]

    async def test_a_batch_is_bounded(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(*range(9)))
        seen = 0
        async with asyncio.timeout(PATIENCE_S):
            while seen < 9:
                batch = await inbox.take(4)
                assert 1 <= len(batch) <= 4
                seen += len(batch)
        assert seen == 9

    async def test_taking_waits_until_there_is_something(self, queue):
        inbox, outlet = queue
        taking = asyncio.ensure_future(inbox.take(10))
        done, _ = await asyncio.wait([taking], timeout=0.05)
        assert not done
        await outlet.publish(rows(1))
        async with asyncio.timeout(PATIENCE_S):
            assert ids(await taking) == ["msg_1"]

    async def test_what_is_done_does_not_come_again(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(1, 2))
        await inbox.settle(await collect(inbox, 2), [])
        assert await is_empty(inbox)

    async def test_what_is_given_back_comes_again_before_what_came_later(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(1, 2, 3, 4))
        taken = await collect(inbox, 3)
        await inbox.settle([], taken)
        assert ids(await collect(inbox, 4)) == ["msg_1", "msg_2", "msg_3", "msg_4"]

    async def test_of_what_came_together_part_can_be_done_and_part_come_again(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(*range(10)))
        taken = await collect(inbox, 10)
        await inbox.settle(taken[::2], taken[1::2])
        again = await collect(inbox, 5)
        assert ids(again) == ids(taken[1::2])
        await inbox.settle(again, [])
        assert await is_empty(inbox)

    async def test_the_same_message_may_be_given_back_any_number_of_times(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(1))
        for _ in range(50):
            (delivery,) = await collect(inbox, 1)
            await inbox.settle([], [delivery])
        assert ids(await collect(inbox, 1)) == ["msg_1"]

    async def test_batches_may_be_settled_in_another_order_than_they_were_taken(self, queue):
        inbox, outlet = queue
        await outlet.publish(rows(*range(40)))
        batches = [await collect(inbox, 8) for _ in range(5)]
        for batch in (batches[3], batches[1], batches[4], batches[0], batches[2]):
            await inbox.settle(batch, [])
        await outlet.publish(rows(99))
        assert ids(await collect(inbox, 1)) == ["msg_99"]

    async def test_a_result_of_this_process_enters_by_the_same_door(self, queue):
        inbox, outlet = queue
        inbox.put(an_envelope(1))
        (result,) = await collect(inbox, 1)
        assert (ids([result]), result.outbox_id) == (["msg_1"], None)
        await inbox.settle([], [result])
        await outlet.publish(rows(2))
        assert sorted(ids(await collect(inbox, 2))) == ["msg_1", "msg_2"]

    async def test_results_are_drained_when_the_worker_asks_for_more(self, queue):
        inbox, _ = queue
        inbox.put(an_envelope(1))
        draining = asyncio.ensure_future(inbox.drained())
        taken = await collect(inbox, 1)
        done, _ = await asyncio.wait([draining], timeout=0.05)
        assert not done, "the turn is still in work"
        await inbox.settle(taken, [])
        taking = asyncio.ensure_future(inbox.take(10))
        async with asyncio.timeout(PATIENCE_S):
            await draining
        inbox.close()
        assert await taking == ()

    async def test_a_closed_inbox_hands_out_its_results_and_then_nothing(self, queue):
        inbox, _ = queue
        inbox.put(an_envelope(1))
        inbox.close()
        taken: Sequence[Delivery] = await inbox.take(10)
        assert ids(taken) == ["msg_1"]
        await inbox.settle(taken, [])
        assert await inbox.take(10) == ()

    async def test_a_worker_that_waits_learns_that_the_inbox_is_closed(self, queue):
        inbox, _ = queue
        taking = asyncio.ensure_future(inbox.take(10))
        await asyncio.wait([taking], timeout=0.05)
        inbox.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await taking == ()
