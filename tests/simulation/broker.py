"""Decides how messages travel between processes: queues that repeat, reorder, delay and redeliver.

Two ways, chosen by the seed. `confirming`, as a broker with publisher confirms: what is confirmed survives crashes of
processes until it is acknowledged, unless the broker itself is wiped. Otherwise, as in one process, the queue is memory
and may lose anything. Both ways the row stays until the commit that applies the message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from placet.messages import Envelope, decode_envelope
from placet.runtime.ports import Delivery, OutboxRow
from placet.topology import EVENTS, QUEUES, queue_of
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.scheduler import Group, Scheduler, Signal

REDELIVERY_MS_MAX = 3_000
DELAY_MS_MAX = 20_000
UNKEPT = frozenset({"run.continue", "run.interrupt"})
"""Orders of which nothing is kept where they were refused, or that do not say which turn they are about: a known limit.
They do not come again a week later."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message waiting in a queue. `outbox_id`: its row is still there, and the receiver deletes it."""

    envelope: Envelope
    outbox_id: str | None
    owned_by: str | None = None
    """The process that put it there for itself: such a message dies with it."""


class Broker:
    """All queues, and whoever waits at them."""

    def __init__(
        self, scheduler: Scheduler, faults: Faults, history: History, random: Random, *, confirming: bool
    ) -> None:
        self.confirming = confirming
        self._scheduler = scheduler
        self._faults = faults
        self._history = history
        self._random = random
        self._decoded: dict[str, Envelope] = {}
        self.queues: dict[str, list[Parcel]] = {name: [] for name in QUEUES}
        self.on_the_way = 0
        self.wipes = 0
        self._dead: set[str] = set()
        self._past: dict[str, Envelope] = {}
        """Every message that ever travelled, by its id."""
        self.signals: dict[str, list[Signal]] = {name: [] for name in QUEUES}

    # ── sending ────────────────────────────────────────────────────────────────────────

    def send(self, envelope: Envelope) -> None:
        """From somebody outside, who repeats it when no answer comes."""
        if self._faults.hits("lost"):
            return
        self._travel(queue_of(envelope.message), Parcel(envelope, None))

    def report(self, envelope: Envelope, process: str) -> None:
        """The result of a call to the world, put into the process's own intake; it dies with the process."""
        self._travel(queue_of(envelope.message), Parcel(envelope, None, process))

    def publish(self, row: OutboxRow) -> bool:
        """One outbox row. True: the broker has confirmed it."""
        if row.destination == EVENTS:  # for others than us, who hear of it or do not
            return not self._faults.hits("lost")
        envelope = self._decoded.get(row.id)
        if envelope is None:
            envelope = self._decoded[row.id] = decode_envelope(row.body)
        if self.confirming and self._faults.hits("wiped"):
            self._wipe()
        if self._faults.hits("lost"):
            return False
        self._travel(row.destination, Parcel(envelope, row.id))
        return self.confirming and not self._faults.hits("unconfirmed")

    def _wipe(self) -> None:
        """The broker loses everything, also what it has confirmed. What a process tells itself is not its."""
        waiting_count = sum(map(len, self.queues.values()))
        self._history.note("wiped", f"{waiting_count} messages and {self.on_the_way} on their way")
        self.wipes += 1
        for waiting in self.queues.values():
            waiting[:] = [parcel for parcel in waiting if parcel.owned_by is not None]

    def echo(self, random: Random) -> None:
        """Every message that ever travelled comes once more, in any order, as from a broker that was restored."""
        past = [envelope for envelope in self._past.values() if envelope.message.type not in UNKEPT]
        random.shuffle(past)
        for envelope in past:
            self._arrive(queue_of(envelope.message), Parcel(envelope, None))

    def _travel(self, queue: str, parcel: Parcel) -> None:
        self._past[parcel.envelope.id] = parcel.envelope
        for _ in range(2 if self._faults.hits("repeated") else 1):
            if self._faults.hits("delayed"):
                self.later(queue, parcel, self._faults.between("delayed", 1, DELAY_MS_MAX))
            else:
                self._arrive(queue, parcel)

    def later(self, queue: str, parcel: Parcel, delay_ms: int) -> None:
        """Arrives after a while."""
        self.on_the_way += 1
        wipes = self.wipes

        def arrive() -> None:
            self.on_the_way -= 1
            if wipes == self.wipes or parcel.owned_by is not None:
                self._arrive(queue, parcel)

        self._scheduler.at(self._scheduler.now_ms + delay_ms, arrive)

    def _arrive(self, queue: str, parcel: Parcel) -> None:
        if parcel.owned_by in self._dead:
            return
        self.queues[queue].append(parcel)
        for signal in self.signals[queue]:
            self._scheduler.set(signal)

    # ── taking ─────────────────────────────────────────────────────────────────────────

    def take(self, queues: Sequence[str], process: str, batch_max: int) -> list[Parcel]:
        """Up to `batch_max` of what waits for this process."""
        bound = min(batch_max, self._random.choice((1, 1, 2, 4, 64)))
        taken: list[Parcel] = []
        for name in queues:
            waiting = self.queues[name]
            if waiting and self._faults.hits("reordered"):
                self._random.shuffle(waiting)
            mine = [p for p in waiting if p.owned_by in (None, process)][: bound - len(taken)]
            if len(mine) == len(waiting):
                waiting.clear()
            else:
                for parcel in mine:
                    waiting.remove(parcel)
            taken += mine
        return taken

    def waits(self, queues: Sequence[str], process: str) -> bool:
        """Whether something waits for this process."""
        return any(parcel.owned_by in (None, process) for name in queues for parcel in self.queues[name])

    def forget(self, process: str, *, everything: bool) -> None:
        """A process died: what it had put there for itself is gone; with a queue in memory, everything is."""
        self._dead.add(process)
        for waiting in self.queues.values():
            waiting[:] = [] if everything else [parcel for parcel in waiting if parcel.owned_by != process]

    @property
    def empty(self) -> bool:
        """Nothing waits, and nothing is on its way."""
        return not self.on_the_way and not any(self.queues.values())


class SimInbox:
    """A process's intake. What it has taken and not settled comes again when it dies."""

    def __init__(
        self, broker: Broker, scheduler: Scheduler, faults: Faults, group: Group, queues: Sequence[str]
    ) -> None:
        self._broker = broker
        self._scheduler = scheduler
        self._faults = faults
        self._group = group
        self._queues = list(queues)
        self._tokens = count(1)
        self.signal = Signal()
        self.taken: dict[int, Parcel] = {}
        for name in queues:
            broker.signals[name].append(self.signal)

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        """As ports.Inbox."""
        while True:
            parcels = self._broker.take(self._queues, self._group.name, batch_max)
            if parcels:
                break
            self.signal.is_set = False
            await self._scheduler.wait(self.signal)
        deliveries = []
        for parcel in parcels:
            token = next(self._tokens)
            self.taken[token] = parcel
            deliveries.append(Delivery(parcel.envelope, token, parcel.outbox_id))
            if parcel.owned_by is None and self._faults.hits("requeued"):
                self._broker.later(queue_of(parcel.envelope.message), parcel, 1)
        return deliveries

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        """As ports.Inbox. A dead process settles nothing."""
        if not self._group.alive:
            return
        await self._scheduler.pause()
        for delivery in done:
            parcel = self.taken.pop(delivery.token)
            if parcel.owned_by is None and self._faults.hits("ack_lost"):
                self._return(parcel)
        for delivery in back:
            self._return(self.taken.pop(delivery.token))

    def lose_connection(self) -> None:
        """The broker believes the process gone and gives what it had taken to others; the process does not know."""
        for parcel in self.taken.values():
            if parcel.owned_by is None:
                self._return(parcel)

    def died(self, *, everything: bool) -> None:
        """What was taken and not settled comes again, somewhere."""
        for name in self._queues:
            self._broker.signals[name].remove(self.signal)
        for parcel in self.taken.values():
            if parcel.owned_by is None and not everything:
                self._return(parcel)
        self.taken.clear()

    def _return(self, parcel: Parcel) -> None:
        delay_ms = self._faults.between("redelivery", 0, REDELIVERY_MS_MAX)
        self._broker.later(queue_of(parcel.envelope.message), parcel, max(1, delay_ms))


class SimOutlet:
    """Where a process's relay publishes."""

    def __init__(self, broker: Broker, pause: Callable[[], object], check: Callable[[OutboxRow], None]) -> None:
        self._broker = broker
        self._pause = pause
        self._check = check

    @property
    def connections(self) -> int:
        """As ports.Outlet."""
        return 1 + self._broker.wipes

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """As ports.Outlet."""
        await self._pause()  # type: ignore[misc]
        confirmed = []
        for row in rows:
            self._check(row)
            if self._broker.publish(row):
                confirmed.append(row.id)
        await self._pause()  # type: ignore[misc]
        return confirmed
