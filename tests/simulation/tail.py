"""Decides how a world ends: the faults are over, people answer what is open, and everything must come to its end.

A run in which nothing failed but nothing was finished either is no success: progress is owed once the faults stop.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from placet.messages import APPROVAL
from placet.requests import ApprovalRequest
from placet.runtime.relay import CLAIM_MS
from tests.simulation.ledger import TERMINAL
from tests.simulation.scheduler import START_MS

if TYPE_CHECKING:
    from tests.simulation.world import World

ROUNDS_MAX = 80
"""Questions come one after another; a run that is asked about more often than this never ends."""
ECHO_EVERY = 5
HORIZON_MS = 6 * 3_600_000
EVENT_MS_MAX = 3 * CLAIM_MS
"""An event of which nobody was told in this time, when nothing goes wrong any more, is lost."""


class Tail:
    """The last part of a world, without faults."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: set[str] = set()

    def run(self) -> None:
        """Until every run is over, everybody has been answered, and the last timer has fired."""
        world = self._world
        for _ in range(ROUNDS_MAX):
            if not self._until_rest():
                return
            unfinished = world.checker.unfinished()
            if not unfinished:
                break
            self._move_on(unfinished)
            if world.instructing.frozen:
                world.instructing.thaw()
        else:
            world.history.violate("I28", f"still unfinished after {ROUNDS_MAX} rounds: {world.checker.unfinished()}")
            return
        self._drain()
        if world.seed % ECHO_EVERY == 0 and not world.refused and not world.history.violations:
            self._echo()

    def _echo(self) -> None:
        """A week later every message comes once more: nothing that has ended changes, and no effect happens again."""
        world = self._world
        before = {address: (write.status, write.body) for address, write in world.ledger.states.items()}
        effects = sum(map(len, world.outside.effects.values()))
        world.history.note("echo", "every message comes once more")
        world.broker.echo(Random(f"{world.seed}/echo"))
        if not self._until_rest():
            return
        for address, (status, body) in before.items():
            now = world.ledger.states[address]
            same = now.status == status and (address.machine == APPROVAL or now.body == body)
            world.history.check(same, "I17", f"an echo changed {address.text()} from {status} to {now.status}")
        again = sum(map(len, world.outside.effects.values())) - effects
        world.history.check(again == 0, "I12", f"{again} effects happened in an echo")
        for address in sorted(world.ledger.states.keys() - before.keys()):
            status = world.ledger.states[address].status
            world.history.check(status in TERMINAL[address.machine], "I17", f"an echo began {address.text()}: {status}")

    def _until_rest(self) -> bool:
        """Step until nothing happens by itself before the clock moves. False when something was violated."""
        world = self._world
        while not (world.resting and not world.clients.busy):
            if not world.step():
                return self._stopped("nothing can run, and yet not everything is at rest")
            if world.scheduler.now_ms > START_MS + HORIZON_MS:
                world.history.violate("I28", "the world does not come to rest")
                return False
        world.checker.at_rest()
        return not world.history.violations

    def _stopped(self, why: str) -> bool:
        if not self._world.history.violations:
            self._world.history.violate("I28", why)
        return False

    def _move_on(self, unfinished: list[str]) -> None:
        """Whoever can move the runs does; and time."""
        world = self._world
        if self.go_on(unfinished):
            return
        if world.ledger.alive:
            # Only timers can move it on: let the clock run to the next one.
            self._until(min(row.not_before_ms for row in world.ledger.alive.values()) - world.clock.leapt_ms)
        else:
            world.history.violate("I28", f"nobody and nothing can move {unfinished} on")

    def go_on(self, unfinished: list[str]) -> bool:
        """Let act who can: submitters who were not heard, people with a question. False: there is nobody."""
        world = self._world
        acted = False
        for run_id in unfinished:
            run = world.workload.by_id[run_id]
            if world.instructing.held(run_id):
                world.instructing.go_on(run)
                acted = True
            if run_id in world.forking and not world.checker.is_known(run_id):
                world.clients.spawn(f"fork {run_id}", world.instructing.fork, world.forking[run_id])
                acted = True
            elif not run.is_fork and not world.checker.is_known(run_id):
                world.clients.spawn(f"submit {run_id}", world.clients.submit, run)
                acted = True
        for request in world.checker.open_requests():
            if request.run_id in unfinished and request.request_id not in self._asked:
                self._asked.add(request.request_id)
                self._answer(request)
                acted = True
        return acted

    def _until(self, at_ms: int) -> None:
        world = self._world
        while world.scheduler.now_ms <= at_ms and world.step():
            pass

    def _answer(self, request: ApprovalRequest) -> None:
        for voice in self._world.people.late(request):
            name = f"{voice.person} on {request.request_id}"
            self._world.clients.spawn(name, self._world.clients.voice, request, voice)

    def _drain(self) -> None:
        """Every timer fires and is absorbed: nothing of a finished world is left on its way."""
        world = self._world
        while world.ledger.alive and not world.history.violations:
            latest_ms = max(row.not_before_ms for row in world.ledger.alive.values()) - world.clock.leapt_ms
            before = world.scheduler.now_ms
            self._until(max(latest_ms, before))
            if not self._until_rest():
                return
            if world.scheduler.now_ms > START_MS + HORIZON_MS or world.scheduler.now_ms == before:
                rows = sorted(f"{row.type} {row.id}" for row in world.ledger.alive.values())
                world.history.violate("I16", f"the outbox does not drain: {rows[:5]}")
        if world.ledger.telling and not world.history.violations:
            world.history.sometimes["an event waited for its claim to lapse"] += 1
            self._until(world.scheduler.now_ms + EVENT_MS_MAX)
            untold = sorted(world.ledger.telling)
            world.history.check(not untold, "I16", f"nobody was told of {untold[:5]}")
