"""The scheduler is deterministic, time moves only when nothing is runnable, and a killed process runs nothing more."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.scheduler import START_MS, Group, Scheduler, Shutdown, Signal


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(Random(1))


def run(scheduler: Scheduler) -> None:
    while scheduler.step():
        pass


def test_time_moves_only_when_nothing_is_runnable(scheduler):
    seen: list[tuple[str, int]] = []

    async def busy():
        for _ in range(50):
            await scheduler.pause()
        seen.append(("busy", scheduler.now_ms - START_MS))

    async def sleeper():
        await scheduler.sleep(10)
        seen.append(("sleeper", scheduler.now_ms - START_MS))

    scheduler.spawn("sleeper", sleeper())
    scheduler.spawn("busy", busy())
    run(scheduler)
    assert seen == [("busy", 0), ("sleeper", 10)]


def test_who_runs_next_is_the_seeds_choice_and_the_same_every_time():
    def order(seed: int) -> list[int]:
        scheduler, ran = Scheduler(Random(seed)), []

        async def work(number: int) -> None:
            for _ in range(3):
                ran.append(number)
                await scheduler.pause()

        for number in range(4):
            scheduler.spawn(str(number), work(number))
        run(scheduler)
        return ran

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_a_signal_wakes_its_waiters_and_a_timeout_says_that_it_did_not_come(scheduler):
    signal, heard = Signal(), []

    async def waiter(timeout_ms):
        heard.append(await scheduler.wait(signal, timeout_ms))

    async def caller():
        await scheduler.sleep(20)
        scheduler.set(signal)

    for timeout_ms in (5, None, 50):
        scheduler.spawn("waiter", waiter(timeout_ms))
    scheduler.spawn("caller", caller())
    run(scheduler)
    assert heard == [False, True, True]


def test_a_killed_group_runs_nothing_more_not_even_its_timers(scheduler):
    group, ran = Group("process"), []

    async def work():
        try:
            await scheduler.sleep(10)
            ran.append("too late")
        except BaseException:
            ran.append("closed")
            raise

    scheduler.spawn("work", work(), group)
    scheduler.step()
    scheduler.kill(group)
    run(scheduler)
    assert ran == ["closed"]
    assert not group.alive


def test_a_cancelled_task_may_still_wait_while_it_cleans_up(scheduler):
    ran = []

    async def work():
        try:
            await scheduler.sleep(1_000)
        except Shutdown:
            await scheduler.sleep(5)
            ran.append(scheduler.now_ms - START_MS)
            raise

    task = scheduler.spawn("work", work())
    scheduler.step()
    scheduler.cancel(task, Shutdown())
    run(scheduler)
    assert ran == [5]
    assert scheduler.failure is None


def test_a_frozen_group_goes_on_later_as_if_nothing_had_happened(scheduler):
    group, ran = Group("process"), []

    async def work():
        ran.append(scheduler.now_ms - START_MS)
        await scheduler.pause()
        ran.append(scheduler.now_ms - START_MS)

    scheduler.spawn("work", work(), group)
    scheduler.step()
    group.frozen_until_ms = START_MS + 700
    run(scheduler)
    assert ran == [0, 700]


def test_a_countdown_strikes_in_place_of_a_resumption(scheduler):
    group, ran = Group("process"), []

    async def work():
        for number in range(10):
            ran.append(number)
            await scheduler.pause()

    group.countdown = 4
    group.on_countdown = lambda task: scheduler.kill(group)
    scheduler.spawn("work", work(), group)
    run(scheduler)
    assert ran == [0, 1, 2]


def test_an_exception_that_leaves_a_task_is_kept(scheduler):
    async def work():
        raise ValueError("broken")

    task = scheduler.spawn("work", work())
    run(scheduler)
    assert scheduler.failure is not None
    assert scheduler.failure[0] is task
    assert str(scheduler.failure[1]) == "broken"
