"""Decides how one seed runs: work under faults, then without them, and everything must come to a good end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Literal, get_args

from placet.adapters.memory import MemoryStore
from placet.believing import SignedVoices
from placet.messages import ForkRun
from placet.runtime.engine import Settlement
from placet_embedded.system import machines
from tests.signing import ENVIRONMENT, GATEWAY, registered
from tests.simulation.application import RELEASES, SimApplication
from tests.simulation.broker import Broker
from tests.simulation.checkers import Checker
from tests.simulation.clients import Clients
from tests.simulation.expected import HARMLESS, End
from tests.simulation.faults import FAULTS, Faults
from tests.simulation.history import Event, History, Violation
from tests.simulation.instructing import Instructing
from tests.simulation.ledger import Ledger
from tests.simulation.models import SimModels
from tests.simulation.outside import Outside
from tests.simulation.people import People
from tests.simulation.ports import SimArbiter, SimClock, SimStore
from tests.simulation.processes import Layout, Process, a_layout
from tests.simulation.scheduler import Scheduler
from tests.simulation.tail import Tail
from tests.simulation.workload import PREDICTABLE, TENANT, Profile, Workload

Mode = Literal["liveness", "safety"]
MODES: tuple[Mode, ...] = get_args(Mode)
SAFETY_EVERY = 5
"""One seed in so many has faults for ever, unless a mode is given."""
SAFETY_MS = 900_000
RETURN_MS = 45_000
"""How often people come back who have not been heard, while faults never end."""
TAIL = 40
"""Events that a failing seed prints."""
CHAOS_MS_MAX = 240_000
STEPS_MAX = 15_000
"""Steps of one world. One that needs more is taken for one that never ends."""


@dataclass(slots=True)
class Report:
    """What one seed came to."""

    seed: int
    violations: list[Violation]
    schedule: str
    layout: str
    mode: Mode
    events: list[Event]
    digest: str
    steps: int
    faults: Counter[str]
    sometimes: Counter[str]
    runs: Counter[str] = field(default_factory=Counter)
    ends: dict[str, End] = field(default_factory=dict)
    """How each predictable run has ended, where luck had no part in it."""
    journals: dict[str, str] = field(default_factory=dict)
    """A hash over the journal of every state."""

    @property
    def failed(self) -> bool:
        """Whether an invariant did not hold."""
        return bool(self.violations)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed} ({self.layout}, {self.mode}) · {self.schedule}",
            *map(str, self.events[-TAIL:]),
            *map(str, self.violations),
        ]
        return "\n".join(lines)


class World:
    """Everything there is under one seed."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        profile: Profile,
        layout: Layout | None = None,
        *,
        referee: str = "",
        mode: Mode = "liveness",
    ) -> None:
        self.seed = seed
        self.mode = mode
        self.faults = faults
        self.workload = Workload(seed, profile)
        self.people = People(self.workload)
        self.layout = layout or a_layout(Random(f"{seed}/layout"))
        self.scheduler = Scheduler(Random(f"{seed}/schedule"))
        self.history = History()
        self.clock = SimClock(self.scheduler)
        self.models = SimModels(self.scheduler, faults, self.workload, Random(f"{seed}/at hand"))
        self.ledger = Ledger(self.history, self.models.check_reply, exclusive=self.layout.exclusive)
        self.checker = Checker(self)
        self.machines = machines(SignedVoices(ENVIRONMENT, registered(GATEWAY, tenants=(TENANT,))))
        self.store = MemoryStore(clock=self.clock)
        self.broker = Broker(
            self.scheduler, faults, self.history, Random(f"{seed}/broker"), confirming=self.layout.confirming
        )
        self.outside = Outside(self.scheduler, faults, self.history, self.ledger, self.clock.latest_ms)
        self.arbiter = (
            None
            if referee == "without"
            else SimArbiter(self.scheduler, faults, self.history, at_once=referee == "at once")
        )
        self.clients = Clients(self, Random(f"{seed}/clients"))
        self.instructing = Instructing(self)
        self.forking: dict[str, ForkRun] = {}
        """Forks of which nobody was told what became."""
        self.cancelled: set[str] = set()
        self.release = "first"
        self.refused: set[str] = set()
        """Runs that a later release of the application does not take."""
        self.processes = [Process(self, name, queues, self.layout) for name, queues in self.layout.hosts]

    # ── what processes need ────────────────────────────────────────────────────────────

    def connection(self) -> SimStore:
        """A process's connection to the store."""
        return SimStore(self.store, self.clock, self.ledger, self.scheduler, self.faults, self.layout.latency_ms)

    def open_store(self) -> None:
        """A process becomes the store's exclusive owner: whatever another had in hand is dead."""
        self.store.restart()
        self.outside.owners_ended_ms.append(self.clock.now_ms())

    def application(self) -> SimApplication:
        """The application as a process that starts now is deployed with."""
        return SimApplication(self.workload.gates, attempts_max=self.workload.attempts_max, release=self.release)

    def settled(self, settlement: Settlement) -> None:
        """A worker has settled a batch."""
        self.history.sometimes["a unit lost a race"] += settlement.conflicts
        self.history.sometimes["a unit was given back after losing races"] += bool(settlement.back)

    # ── one seed ───────────────────────────────────────────────────────────────────────

    def run(self) -> Report:
        """Work under faults, then without."""
        with self.ledger.spoken.listening():
            self._live()
        return self._report()

    def _live(self) -> None:
        for process in self.processes:
            process.start()
        for run in self.workload.runs:
            self.clients.spawn(f"submit {run.run_id}", self.clients.submit, run)
            if run.cancel is not None:
                self.clients.spawn(f"cancel {run.run_id}", self.clients.cancel, run)
        self.instructing.begin()
        if "forged" in self.faults.rates:
            self.scheduler.spawn("forger", self.clients.forge())
        for name, strike in (
            ("clock_jumps", self._leap),
            ("clock_steps_back", self._step_back),
            ("tool_changed", self._deploy),
        ):
            if name in self.faults.rates:
                self._recur(name, strike)
        chaos_ms = Random(f"{self.seed}/heal").randint(1_000, CHAOS_MS_MAX)
        self._fail_until(self.scheduler.now_ms + (SAFETY_MS if self.mode == "safety" else chaos_ms))
        if self.mode == "safety":
            self._end_as_it_is()
        else:
            self._heal()
            Tail(self).run()
            if not self.history.violations:
                self.checker.finished()
        self.scheduler.close()

    def _fail_until(self, heal_ms: int) -> None:
        """While things go wrong."""
        if self.mode == "safety":
            self.scheduler.at(self.scheduler.now_ms + RETURN_MS, self._return)
        seen = -1
        while self.scheduler.now_ms < heal_ms and self.step():
            if self.scheduler.idle and self.ledger.commits != seen and self.resting:
                seen = self.ledger.commits
                self.checker.at_rest()
                if not self.clients.busy and not self.checker.unfinished():
                    break

    def _return(self) -> None:
        """People look again whether something is asked of them, and whether they were heard."""
        Tail(self).go_on(self.checker.unfinished())
        self.scheduler.at(self.scheduler.now_ms + RETURN_MS, self._return)

    def _end_as_it_is(self) -> None:
        """Faults have never ended: not everything has come to its end, but all that was written is true."""
        unfinished = len(self.checker.unfinished())
        self.history.sometimes["everything ended although faults never did"] += not unfinished
        if not self.history.violations:
            self.checker.true_so_far()

    def step(self) -> bool:
        """One step of the world. False when it has come to an end, or to a violation."""
        scheduler, history = self.scheduler, self.history
        history.now_ms = scheduler.now_ms
        if not scheduler.step():
            return False
        if scheduler.failure is not None:
            task, error = scheduler.failure
            history.violate("I32", f"{task.name} ended with {type(error).__name__}: {error}")
        while self.ledger.new_requests:
            request = self.ledger.new_requests.pop()
            if not self.faults.healed:
                for voice in self.people.voices(request):
                    self.clients.spawn(f"{voice.person} on {request.request_id}", self.clients.voice, request, voice)
        if scheduler.steps > STEPS_MAX and self.mode == "safety":
            return False
        if scheduler.steps > STEPS_MAX:
            history.violate("I28", f"no end after {STEPS_MAX} steps")
        return not history.violations

    @property
    def resting(self) -> bool:
        """Nothing happens until the clock moves: no message waits or is on its way, nobody has anything in hand."""
        return (
            self.scheduler.idle
            and self.broker.empty
            and all(process.resting for process in self.processes)
            and not self.ledger.due(self.clock.now_ms())
        )

    def _recur(self, name: str, strike: object) -> None:
        delay_ms = self.faults.between(name, 500, int(6_000 / self.faults.rates[name]))

        def again() -> None:
            if not self.faults.healed:
                strike()  # type: ignore[operator]
                self._recur(name, strike)

        self.scheduler.at(self.scheduler.now_ms + delay_ms, again)

    def _leap(self) -> None:
        self.faults.struck("clock_jumps")
        self.clock.leapt_ms += self.faults.between("clock_jumps", 1, 20_000)
        self.history.note("clock", f"leapt to +{self.clock.leapt_ms} ms")

    def _step_back(self) -> None:
        self.faults.struck("clock_steps_back")
        self.clock.leapt_ms -= self.faults.between("clock_steps_back", 1, 8_000)
        self.history.note("clock", f"went back to {self.clock.leapt_ms:+} ms")

    def _deploy(self) -> None:
        """A new release: processes get it when they start next, so old and new run side by side."""
        if self.release == "first":
            self.faults.struck("tool_changed")
            later = list(RELEASES)[1:]
            self.release = later[self.faults.between("tool_changed", 0, len(later) - 1)]
            self.history.note("deployed", f"{self.release}: {RELEASES[self.release]}")
            victims = [process for process in self.processes if self.faults.between("tool_changed", 0, 1)]
            for process in victims:
                process.die()

    def _heal(self) -> None:
        self.history.note("healed", self.faults.schedule())
        self.faults.heal()
        for process in self.processes:
            if process.group is not None:
                process.group.countdown = -1
                process.group.frozen_until_ms = 0

    def _report(self) -> Report:
        runs = Counter(self.checker.run_statuses().values())
        return Report(
            self.seed,
            self.history.violations,
            self.faults.schedule(),
            self.layout.name,
            self.mode,
            self.history.events,
            self.history.digest(),
            self.scheduler.steps,
            self.faults.counts,
            self.history.sometimes,
            runs,
            self.checker.ends,
            self.ledger.journal_digests(),
        )


def chosen_faults(seed: int) -> Collection[str]:
    """The faults that a seed is run with by itself."""
    return _faults(seed, None, None, ()).rates


def _is_predictable(seed: int) -> bool:
    return seed % 4 == 3


def _faults(
    seed: int,
    temper: str | None,
    only: Collection[str] | None,
    without: Collection[str],
    forced: Collection[str] = (),
) -> Faults:
    if only is None and _is_predictable(seed):
        without = {*without, *(set(FAULTS) - HARMLESS)}
    return Faults(seed, temper=temper, only=only, without=without, forced=forced)


def simulate(
    seed: int,
    *,
    profile: Profile | None = None,
    temper: str | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    layout: Layout | None = None,
    referee: str = "",
    forced: Collection[str] = (),
    mode: Mode | None = None,
) -> Report:
    """Run one seed to its end. By itself, one in four is predictable (see `expected`); `only` names its faults.

    `referee`: see `differential`; `forced`: faults beside those that the seed chooses.
    """
    faults = _faults(seed, temper, only, without, forced)
    if mode is None:
        mode = "safety" if profile is None and temper is None and seed % SAFETY_EVERY == 2 else "liveness"
    if profile is None:
        profile = PREDICTABLE if _is_predictable(seed) else Profile()
    return World(seed, faults, profile, layout, referee=referee, mode=mode).run()
