"""Decides how the system is spread over processes under one seed, and how a process begins, dies and comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from placet.errors import RetryableError
from placet.ids import fraction_of
from placet.runtime.engine import Engine, Settlement
from placet.runtime.relay import CLAIM_MS, Relay
from placet.runtime.worker import Worker
from placet.topology import APPROVALS, DISPATCHER, PLANNER, QUEUES, RESUME, TOOL_EXECUTOR
from tests.simulation.broker import SimInbox, SimOutlet
from tests.simulation.ports import SimInvoker, SimReplies
from tests.simulation.scheduler import Group, Shutdown, Signal, Task

if TYPE_CHECKING:
    from tests.simulation.world import World

EVERYTHING = (DISPATCHER, RESUME, PLANNER, TOOL_EXECUTOR, APPROVALS)
RESTART_MS_MAX = 8_000
FREEZE_MS_MAX = 60_000
STRIKES = ("crash", "crash_all", "shutdown", "freeze")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which process serves which queues."""

    name: str
    hosts: tuple[tuple[str, tuple[str, ...]], ...]
    confirming: bool
    """A broker with confirms; else the queue is memory and the receiver deletes the row."""
    exclusive: bool
    """One process owns the store, as the embedded one does: all that it had in hand dies with it."""
    hand_over: bool
    events: bool = False
    """What happens is told to whoever listens at the broker."""
    latency_ms: int = 0
    """How long a call to the store takes; messages that come meanwhile make a batch."""


def a_layout(random: Random) -> Layout:
    """Separate services, merged hosts, or one process."""
    kind = random.choice(("services", "services", "merged", "twins", "embedded", "embedded"))
    hosts: list[tuple[str, tuple[str, ...]]] = []
    if kind == "services":
        for queue in EVERYTHING:
            hosts += [(f"{queue}-{at}", (queue,)) for at in range(random.choice((1, 1, 2)))]
    elif kind == "merged":
        for name, queues in (
            ("core", (DISPATCHER, RESUME, PLANNER)),
            ("executor", (TOOL_EXECUTOR,)),
            ("approval", (APPROVALS,)),
        ):
            hosts += [(f"{name}-{at}", queues) for at in range(random.choice((1, 2)))]
    else:
        hosts = [(f"host-{at}", EVERYTHING) for at in range(2 if kind == "twins" else 1)]
    embedded = kind == "embedded"
    confirming = not embedded and random.random() < 0.75
    return Layout(
        kind,
        tuple(hosts),
        confirming=confirming,
        exclusive=embedded,
        hand_over=random.random() < 0.85,
        latency_ms=random.choice((0, 0, 3, 50)),
        events=confirming and random.random() < 0.3,
    )


class Process:
    """One process: a worker, a relay, and what they need. Its name says which life it is in."""

    def __init__(self, world: World, name: str, queues: Sequence[str], layout: Layout) -> None:
        self._world = world
        self.name = name
        self._queues = queues
        self._layout = layout
        self._life = 0
        self.group: Group | None = None
        self.inbox: SimInbox | None = None
        self.invoker: SimInvoker | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.group is not None

    def start(self) -> None:
        """Begin to work, with nothing in hand."""
        if self.group is not None:
            return
        world, scheduler = self._world, self._world.scheduler
        self._life += 1
        group = self.group = Group(f"{self.name}/{self._life}")
        if self._layout.exclusive:
            world.open_store()
        store = world.connection()
        machines = {name: world.machines[name] for name in dict.fromkeys(QUEUES[queue] for queue in self._queues)}
        inbox = self.inbox = SimInbox(world.broker, scheduler, world.faults, group, self._queues)
        self.invoker = SimInvoker(world.models, world.outside, store, world.broker, scheduler, world.faults, group)
        rows_added = Signal()

        def settled(settlement: Settlement) -> None:
            world.settled(settlement)
            if settlement.timer_ms is not None:
                scheduler.set(rows_added)

        engine = Engine(
            machines,
            world.application(),
            store,
            hand_over=self._layout.hand_over,
            claim_ms=CLAIM_MS,
            events_from="simulation" if self._layout.events else None,
            at_hand=world.models,
        )
        replies = SimReplies(world.clients.deliver, scheduler, world.faults)
        arbiter = world.arbiter if APPROVALS in self._queues else None
        outlet = SimOutlet(world.broker, scheduler.pause, world.checker.published)
        worker = Worker(engine, inbox, self.invoker, replies, arbiter=arbiter, outlet=outlet, on_settled=settled)
        relay = Relay(store, outlet)
        self._loops = (
            scheduler.spawn(f"worker {group.name}", self._work(worker), group),
            scheduler.spawn(f"relay {group.name}", self._publish(relay, rows_added), group),
        )
        self._arm(group)
        world.history.note("started", group.name)

    async def _work(self, worker: Worker) -> None:
        failures = 0
        while True:
            try:
                await worker.turn()
                failures = 0
            except RetryableError:
                failures += 1
                await self._back_off(failures)

    async def _publish(self, relay: Relay, rows_added: Signal) -> None:
        failures = 0
        while True:
            rows_added.is_set = False
            try:
                wait_ms = await relay.turn()
                failures = 0
            except RetryableError:
                failures += 1
                await self._back_off(failures)
            else:
                await self._world.scheduler.wait(rows_added, wait_ms)

    async def _back_off(self, failures: int) -> None:
        nominal_ms = min(5_000, 50 * 2 ** min(failures, 10))
        await self._world.scheduler.sleep(int(nominal_ms * (0.5 + fraction_of(self.name, str(failures)) / 2)))

    # ── what befalls it ────────────────────────────────────────────────────────────────

    def _arm(self, group: Group) -> None:
        faults = self._world.faults
        due = {name: steps for name in STRIKES if (steps := faults.steps_until(name)) is not None}
        if not due:
            group.countdown = -1
            return
        name = min(due, key=lambda strike: due[strike])
        group.countdown = due[name]
        group.on_countdown = lambda task: self._strike(name, task)

    def _strike(self, name: str, task: Task) -> None:
        world, group = self._world, self.group
        assert group is not None
        if world.faults.healed:
            group.countdown = -1
            return
        world.faults.struck(name)
        world.history.note(name, f"{group.name} at {task.name}")
        if name == "crash":
            self.die()
        elif name == "crash_all":
            for process in world.processes:
                process.die()
        elif name == "shutdown":
            group.countdown = -1
            for loop in self._loops:
                world.scheduler.cancel(loop, Shutdown())
            world.scheduler.at(world.scheduler.now_ms + 1_000, lambda: self._ended(group))
        else:
            group.frozen_until_ms = world.scheduler.now_ms + world.faults.between("freeze", 1, FREEZE_MS_MAX)
            if not self._layout.exclusive and world.faults.between("freeze", 0, 1):
                assert self.inbox is not None
                self.inbox.lose_connection()
            self._arm(group)

    def _ended(self, group: Group) -> None:
        if self.group is group:
            self.die()

    def die(self) -> None:
        """Killed: what it had in memory is gone, what it had taken comes back, and it is started again later."""
        group, inbox, world = self.group, self.inbox, self._world
        if group is None or inbox is None:
            return
        world.scheduler.kill(group)
        self.group = self.inbox = self.invoker = None
        volatile = self._layout.exclusive
        inbox.died(everything=volatile)
        world.broker.forget(group.name, everything=volatile)
        delay_ms = world.faults.between("crash", 1, RESTART_MS_MAX)
        world.scheduler.at(world.scheduler.now_ms + delay_ms, self.start)

    @property
    def resting(self) -> bool:
        """It runs, and has nothing in hand."""
        return self.inbox is not None and not self.inbox.taken and self.invoker is not None and not self.invoker.running
