"""Proves how messages travel inside one process: nothing twice, nothing lost while it runs, answers to their askers."""

from __future__ import annotations

import asyncio

import pytest

from placet.adapters.memory_queue import MemoryDoor, MemoryQueue
from placet.messages import Envelope
from placet.runtime.ports import OutboxRow
from tests.runtime.toy import submit


def a_row(envelope: Envelope) -> OutboxRow:
    return OutboxRow(envelope.id, "dispatcher", envelope.message.run_id, "run.submit", 0, envelope.encode())


async def test_take_waits_for_a_message_and_takes_everything_that_waits() -> None:
    queue = MemoryQueue()
    taking = asyncio.ensure_future(queue.take(10))
    await asyncio.sleep(0)
    assert not taking.done()
    queue.put(submit("one"))
    queue.put(submit("two"))
    assert [delivery.envelope.id for delivery in await taking] == ["m-run-1-one", "m-run-1-two"]


async def test_a_batch_is_bounded() -> None:
    queue = MemoryQueue()
    for number in range(5):
        queue.put(submit(str(number)))
    assert [len(await queue.take(3)), len(await queue.take(3))] == [3, 2]


async def test_what_is_given_back_comes_again_first() -> None:
    queue = MemoryQueue()
    queue.put(submit("one"))
    queue.put(submit("two"))
    taken = await queue.take(1)
    await queue.settle([], taken)
    assert [delivery.envelope.id for delivery in await queue.take(10)] == ["m-run-1-one", "m-run-1-two"]


async def test_a_row_that_is_still_in_work_is_not_taken_in_twice_and_none_is_confirmed() -> None:
    queue = MemoryQueue()
    row = a_row(submit("one"))
    assert await queue.publish([row]) == ()
    (delivery,) = await queue.take(10)
    assert delivery.outbox_id == row.id
    await queue.publish([row])
    queue.put(submit("two"))
    assert [delivery.outbox_id for delivery in await queue.take(10)] == [None]
    await queue.settle([delivery], [])
    await queue.publish([row])
    assert len(await queue.take(10)) == 1


async def test_a_closed_queue_hands_out_what_it_has_and_then_nothing() -> None:
    queue = MemoryQueue()
    queue.put(submit("one"))
    queue.close()
    assert len(await queue.take(10)) == 1
    assert await queue.take(10) == ()


async def test_a_worker_that_waits_learns_that_the_queue_is_closed() -> None:
    queue = MemoryQueue()
    taking = asyncio.ensure_future(queue.take(10))
    await asyncio.sleep(0)
    queue.close()
    assert await taking == ()


async def test_the_queue_is_drained_when_the_worker_asks_for_more_and_nothing_waits() -> None:
    queue = MemoryQueue()
    queue.put(submit("one"))
    drained = asyncio.ensure_future(queue.drained())
    await queue.take(10)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not drained.done(), "the turn is still in work"
    taking = asyncio.ensure_future(queue.take(10))
    await drained
    queue.close()
    await taking


async def test_an_asker_gets_the_answer_to_its_own_question() -> None:
    queue = MemoryQueue()
    door = MemoryDoor(queue)
    asking = [
        asyncio.ensure_future(door.ask(submit(goal).message, message_id=f"id-{goal}", timeout_ms=5_000))
        for goal in ("one", "two")
    ]
    deliveries = await queue.take(10)
    if len(deliveries) < 2:
        deliveries = [*deliveries, *await queue.take(10)]
    for delivery in reversed(deliveries):
        assert delivery.envelope.reply_to is not None
        await door.send(delivery.envelope.reply_to, f"answer to {delivery.envelope.id}")
    assert [await answer for answer in asking] == ["answer to id-one", "answer to id-two"]


async def test_two_who_ask_the_same_are_each_answered() -> None:
    queue = MemoryQueue()
    door = MemoryDoor(queue)
    message = submit("one").message
    asking = [asyncio.ensure_future(door.ask(message, message_id="same", timeout_ms=5_000)) for _ in range(2)]
    await asyncio.sleep(0)
    for text in ("first", "second"):
        await door.send("same", text)
    assert [await answer for answer in asking] == ["first", "second"]


async def test_no_answer_in_time_is_none_and_a_late_one_disturbs_nobody() -> None:
    door = MemoryDoor(MemoryQueue())
    assert await door.ask(submit("one").message, message_id="id", timeout_ms=1) is None
    await door.send("id", "late")


async def test_an_asker_that_goes_away_does_not_take_back_what_it_asked() -> None:
    queue = MemoryQueue()
    asking = asyncio.ensure_future(MemoryDoor(queue).ask(submit("one").message, message_id="id", timeout_ms=5_000))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(await queue.take(10)) == 1


async def test_hints_reach_whoever_watches_that_run_or_all_and_are_coalesced() -> None:
    door = MemoryDoor(MemoryQueue())
    one, every, other = door.changes("run-1"), door.changes(None), door.changes("run-2")
    waiting = [asyncio.ensure_future(anext(changes)) for changes in (one, every, other)]
    await asyncio.sleep(0)
    door.hint({"run-1": {"run:running"}})
    door.hint({"run-1": {"run:running"}})
    await waiting[0]
    await waiting[1]
    assert not waiting[2].done()
    again = asyncio.ensure_future(anext(one))
    await asyncio.sleep(0)
    assert not again.done(), "two hints at once are one"
    for task in (waiting[2], again):
        task.cancel()
