"""Proves what the loops of a process tell of themselves, and that they go on after the store has been away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.messages import RUN
from placet.runtime.engine import Settlement
from placet.runtime.fold import HELD_MS
from placet.runtime.process import Health, Loops


class Fails:
    """A turn that fails so often, and then rests for ever."""

    def __init__(self, times: int, *, rests_ms: int | None = None) -> None:
        self.left = times
        self.rests_ms = rests_ms
        self.turns = 0

    async def turn(self) -> Any:
        self.turns += 1
        if self.left:
            self.left -= 1
            raise RetryableError(Code.STORE_UNAVAILABLE, "away")
        if self.rests_ms is None:
            await asyncio.Event().wait()
        return self.rests_ms


async def until(loops: Loops, *, ready: bool) -> None:
    async with asyncio.timeout(5):
        while loops.health.ready is not ready:  # noqa: ASYNC110  no event tells what is asked for here
            await asyncio.sleep(0.001)


async def test_a_relay_that_works_again_says_so_at_once_and_not_when_the_next_row_is_due() -> None:
    relay: Any = Fails(1, rests_ms=60_000)
    worker: Any = Fails(0)
    loops = Loops(worker, relay)
    loops.start()
    await until(loops, ready=False)
    assert loops.health.failing == {"relay": "away"}
    await until(loops, ready=True)
    assert relay.turns == 2
    await loops.stop()


async def test_a_relay_looks_earlier_for_a_timer_that_is_due_earlier_and_not_for_one_that_is_due_later() -> None:
    relay: Any = Fails(0, rests_ms=60_000)
    worker: Any = Fails(0)
    loops = Loops(worker, relay)
    loops.start()
    await until(loops, ready=True)
    await asyncio.sleep(0)
    turns = relay.turns
    loops.settled(Settlement(timer_ms=70_000, outbox_rows=1))
    loops.settled(Settlement(outbox_rows=1))
    await asyncio.sleep(0.01)
    assert relay.turns == turns
    loops.settled(Settlement(timer_ms=0, outbox_rows=1))
    async with asyncio.timeout(5):
        while relay.turns == turns:  # noqa: ASYNC110  no event tells what is asked for here
            await asyncio.sleep(0.001)
    await loops.stop()


async def test_an_error_that_no_waiting_mends_ends_the_loop_and_is_told() -> None:
    class Wrong:
        async def turn(self) -> int:
            raise ValueError("a defect")

    relay: Any = Wrong()
    worker: Any = Fails(0)
    loops = Loops(worker, relay)
    loops.start()
    with pytest.raises(ValueError, match="a defect"):
        await loops.ended_or(asyncio.create_task(asyncio.sleep(5)))
    assert loops.health.ended == {"relay": "ValueError: a defect"}
    assert not loops.health.live
    await loops.stop()


def test_a_state_that_cannot_be_read_is_told_while_it_is_met_and_is_no_reason_to_send_nobody_here() -> None:
    now_s = 100.0
    health = Health(monotonic_s=lambda: now_s)
    health.settled(Settlement(unreadable={Address("run-1", RUN, ""): "of a newer version"}))
    assert health.unreadable == {"run:run-1/": "of a newer version"}
    assert (health.live, health.ready) == (True, True)
    now_s += 2 * HELD_MS / 1_000
    assert health.unreadable, "what is for it comes again, and may come a little late"
    now_s += 2 * HELD_MS / 1_000
    assert health.unreadable == {}, "it was repaired, or another process has taken it on"
