"""Decides which coroutine runs next: one at a time, chosen by a seed. Time moves only when nothing is runnable.

No event loop is involved: a coroutine that must wait yields what it waits for to the scheduler, which resumes it with
`True` when that came and `False` when its time ran out. Two schedulers with one seed do the same, step for step.
"""

from __future__ import annotations

import heapq
import types
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from random import Random
from typing import Any

START_MS = 1_800_000_000_000
"""Where virtual time begins: an instant in 2027, so that nothing mistakes it for a duration."""


class Shutdown(BaseException):
    """What an orderly end throws into a coroutine, as an event loop's cancellation would."""


class Signal:
    """Wakes whoever waits for it; stays set until it is cleared."""

    __slots__ = ("is_set", "waiters")

    def __init__(self) -> None:
        self.is_set = False
        self.waiters: list[tuple[Task, int]] = []


class Group:
    """Tasks that live and die together: a process. Tasks without one belong to the world outside."""

    __slots__ = ("alive", "countdown", "frozen_until_ms", "name", "on_countdown", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[Task, None] = {}
        self.frozen_until_ms = 0
        self.countdown = -1
        """Resumptions until `on_countdown` is called in place of one; negative: never."""
        self.on_countdown: Callable[[Task], None] = lambda task: None


class Task:
    """A coroutine under the scheduler."""

    __slots__ = ("coroutine", "done", "group", "name", "queued", "turn", "verdict")

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, None], group: Group | None) -> None:
        self.name = name
        self.coroutine = coroutine
        self.group = group
        self.done = False
        self.queued = True
        self.turn = 0
        """Counts resumptions, so that a wake-up that came too late finds nobody."""
        self.verdict = True


class Scheduler:
    """One seed's world of coroutines, and its clock."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.now_ms = START_MS
        self.steps = 0
        self._runnable: list[Task] = []
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._living: dict[Task, None] = {}
        self.failure: tuple[Task, Exception] | None = None
        """The first exception that left a coroutine: nothing may."""

    # ── what coroutines await ──────────────────────────────────────────────────────────

    async def pause(self) -> None:
        """Let others run."""
        await _suspend(None)

    async def sleep(self, delay_ms: int) -> None:
        """Wait so long by the virtual clock."""
        await _suspend((None, delay_ms))

    async def wait(self, signal: Signal, timeout_ms: int | None = None) -> bool:
        """Wait for the signal. False when the time ran out first."""
        if signal.is_set:
            return True
        return await _suspend((signal, timeout_ms))

    # ── what the world does ────────────────────────────────────────────────────────────

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, None], group: Group | None = None) -> Task:
        """Start a coroutine; it first runs at one of the next steps."""
        task = Task(name, coroutine, group)
        self._living[task] = None
        if group is not None:
            group.tasks[task] = None
        self._runnable.append(task)
        return task

    def at(self, at_ms: int, call: Callable[[], None]) -> None:
        """Call a function when the clock gets there."""
        heapq.heappush(self._later, (at_ms, next(self._order), call))

    def set(self, signal: Signal) -> None:
        """Set the signal and wake its waiters."""
        signal.is_set = True
        waiters, signal.waiters = signal.waiters, []
        for task, turn in waiters:
            self._wake(task, turn, verdict=True)

    def kill(self, group: Group) -> None:
        """End every task of the group where it stands, as a kill signal would: nothing of it runs any more."""
        group.alive = False
        for task in list(group.tasks):
            self._end(task)
            task.coroutine.close()

    def close(self) -> None:
        """End everything."""
        for task in list(self._living):
            if task.group is not None:
                task.group.alive = False
            self._end(task)
            task.coroutine.close()

    def cancel(self, task: Task, error: BaseException) -> None:
        """Throw `error` into the task at its await; it may still suspend while it cleans up."""
        if task.done:
            return
        if task.queued:
            self._runnable.remove(task)
        if task.turn:
            self._resume(task, error)
        else:
            self._end(task)
            task.coroutine.close()

    def step(self) -> bool:
        """Resume one coroutine; if none is runnable, move the clock to the next instant. False when nothing is left."""
        if not self._runnable:
            return self._move_clock()
        self.steps += 1
        runnable = self._runnable
        at = int(self._random.random() * len(runnable))
        task = runnable[at]
        runnable[at] = runnable[-1]
        runnable.pop()
        if task.done:
            return True
        group = task.group
        if group is not None:
            if group.frozen_until_ms > self.now_ms:
                task.queued = False
                self._wake_at(task, group.frozen_until_ms, verdict=task.verdict)
                return True
            if group.countdown > 0:
                group.countdown -= 1
                if group.countdown == 0:
                    runnable.append(task)
                    group.on_countdown(task)
                    return True
        self._resume(task)
        return True

    @property
    def idle(self) -> bool:
        """Nothing can run before the clock moves."""
        return not self._runnable

    @property
    def next_ms(self) -> int | None:
        """Where the clock would move to."""
        return self._later[0][0] if self._later else None

    # ── within ─────────────────────────────────────────────────────────────────────────

    def _resume(self, task: Task, error: BaseException | None = None) -> None:
        task.queued = False
        task.turn += 1
        coroutine = task.coroutine
        try:
            if error is not None:
                request = coroutine.throw(error)
            else:
                request = coroutine.send(task.verdict if task.turn > 1 else None)
        except (StopIteration, Shutdown):
            self._end(task)
            return
        except Exception as raised:  # noqa: BLE001  # the world stops and reports it
            self._end(task)
            self.failure = self.failure or (task, raised)
            return
        task.verdict = True
        if request is None:
            self._queue(task)
            return
        signal, timeout_ms = request
        if signal is not None:
            signal.waiters.append((task, task.turn))
        if timeout_ms is not None:
            self._wake_at(task, self.now_ms + max(1, timeout_ms), verdict=signal is None)

    def _queue(self, task: Task) -> None:
        task.queued = True
        self._runnable.append(task)

    def _wake_at(self, task: Task, at_ms: int, *, verdict: bool) -> None:
        turn = task.turn
        self.at(at_ms, lambda: self._wake(task, turn, verdict=verdict))

    def _wake(self, task: Task, turn: int, *, verdict: bool) -> None:
        if task.turn == turn and not task.queued and not task.done:
            task.verdict = verdict
            self._queue(task)

    def _move_clock(self) -> bool:
        if not self._later:
            return False
        at_ms = self._later[0][0]
        self.now_ms = max(self.now_ms, at_ms)
        while self._later and self._later[0][0] <= self.now_ms:
            heapq.heappop(self._later)[2]()
        return True

    def _end(self, task: Task) -> None:
        task.done = True
        self._living.pop(task, None)
        if task.group is not None:
            task.group.tasks.pop(task, None)


@types.coroutine
def _suspend(request: tuple[Signal | None, int | None] | None) -> Generator[Any, bool, bool]:
    return (yield request)
