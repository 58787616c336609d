"""Decides at which point a service process kills itself: a launcher that runs the service's own `main`, watched.

    python -m tests.live.killable planner

A first process imports everything once and forks the one that lives; when that one has been killed, it forks the next.
Every point is written down as it is reached: `commit turn.take 2 committed` is the second time that this service has
committed a message of that type of that run. A plan names one point of one run; whoever reaches it gets a signal there,
SIGKILL or SIGSTOP, once. What the process does is its own: only its ports are watched, and its leases are shortened.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from placet import limits
from placet.hosting import serving
from placet.runtime import relay
from placet.runtime import service as services
from placet.runtime.ports import Fate, OutboxRow, Unit
from placet.runtime.service import Ports, Service

RELAYS = "relays"
"""Stands for whichever service has a row of the outbox in hand."""
FOLDER = "PLACET_TEST_KILLS"
"""Names the folder of plans and points."""
MODULES = {
    "dispatcher": ("placet_dispatcher", ()),
    "resume": ("placet_dispatcher", ("--role", "resume")),
    "planner": ("placet_planner", ()),
    "tool-executor": ("placet_tool_executor", ()),
    "approval": ("placet_approval", ()),
    "gateway": ("placet_gateway", ()),
}
LATE = {
    "*": ("placet.adapters.sql.postgres", "placet.adapters.rabbitmq", "placet.adapters.redis"),
    "planner": ("pydantic_ai.direct", "pydantic_ai.models.function"),
}
"""What a service imports when it is needed; here before the fork, so that each life begins at once."""
MARGIN_MS = 1_000
"""How much longer a lease lasts than the work it covers."""
CLAIM_MS = 2_000
"""How long a row that one process has claimed stays away from the others, and how often they look."""
_DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""


class Kills:
    """The folder that the test and the processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make it."""
        for name in ("plans", "done", "points", "rows"):
            (self.folder / name).mkdir(parents=True)

    def plan(self, run_id: str, service: str, point: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Before the run is submitted: that service gets that signal when that run reaches that point."""
        draft = self.folder / f"{run_id}.draft"
        draft.write_text(f"{number} {service} {point}")
        draft.rename(self.folder / "plans" / run_id)

    def happened(self, run_id: str) -> int:
        """The process in which the plan of that run was carried out; 0 while it was not."""
        path = self.folder / "done" / run_id
        return int(path.read_text() or "0") if path.exists() else 0

    def carry_out(self, run_id: str, where: str) -> None:
        """Die, or stand still, if that is what is planned for there and has not happened."""
        path = self.folder / "plans" / run_id
        number, _, planned = path.read_text().partition(" ") if path.exists() else ("", "", "")
        if planned != where:
            return
        try:
            at = os.open(self.folder / "done" / run_id, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.write(at, str(os.getpid()).encode())
        os.close(at)
        os.kill(os.getpid(), int(number))

    def reached(self, service: str) -> list[tuple[str, str]]:
        """Runs and points that a service has reached, in order."""
        path = self.folder / "points" / service
        lines = path.read_text().splitlines() if path.exists() else []
        return [(run_id, point) for run_id, _, point in (line.partition(" ") for line in lines)]

    def write(self, service: str, run_id: str, point: str) -> None:
        """Note a point, in one write of a line."""
        with (self.folder / "points" / service).open("a") as file:
            file.write(f"{run_id} {point}\n")

    def number_of(self, row: OutboxRow) -> int:
        """Which row of its type and its run it is, from 1, whoever has it in hand: any relay may."""
        with (self.folder / "rows" / f"{row.run_id} {row.type}").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = file.read().split()
            if row.id not in known:
                file.write(f"{row.id}\n")
                known.append(row.id)
            return known.index(row.id) + 1


class Watch:
    """Knows which point is reached, and dies at the planned one."""

    LAST = ("committed", "returned", "answered")
    """What ends one step: a repeat of it is the next number."""

    def __init__(self, kills: Kills, service: str) -> None:
        self._kills, self._service = kills, service
        self._counts: Counter[tuple[str, str]] = Counter()
        for run_id, point in kills.reached(service):
            step, number, stage = point.rsplit(" ", 2)
            if stage in self.LAST:
                self._counts[run_id, step] = int(number)

    def next(self, run_id: str, step: str) -> int:
        """Which time of that step would be the next."""
        return self._counts[run_id, step] + 1

    def reach(self, run_id: str, step: str, stage: str, number: int | None = None) -> None:
        """Note it, and die where that is the plan. `number`: which time; otherwise the next one."""
        number = self.next(run_id, step) if number is None else number
        point = f"{step} {number} {stage}"
        self._kills.write(self._service, run_id, point)
        if stage in self.LAST:
            self._counts[run_id, step] = number
        self._kills.carry_out(run_id, f"{self._service} {point}")

    def reach_row(self, row: OutboxRow, stage: str) -> None:
        """The same of a row of the outbox, which is no service's own."""
        point = f"row {row.type} {self._kills.number_of(row)} {stage}"
        self._kills.write(RELAYS, row.run_id, point)
        self._kills.carry_out(row.run_id, f"{RELAYS} {point}")

    def ports(self, ports: Ports) -> Ports:
        """The same ports, watched."""
        store = WatchedStore(ports.store, self)
        return replace(
            ports,
            store=store,
            inbox=WatchedInbox(ports.inbox, self, store),
            outlet=WatchedOutlet(ports.outlet, self),
            models=ports.models and WatchedModels(ports.models, self),
            tools=ports.tools and WatchedTools(ports.tools, self),
        )


class Watched:
    """Whatever is not watched goes straight through."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class WatchedStore(Watched):
    """Before and after each commit of a message, and after each claim of a row."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        super().__init__(inner, watch)
        self.unsettled: list[tuple[str, str, int]] = []

    async def commit(self, units: Sequence[Unit]) -> Sequence[Any]:
        """As ports.Store."""
        together: Counter[tuple[str, str]] = Counter()
        steps: list[list[tuple[str, str, int]]] = []
        for unit in units:
            steps.append([])
            for run_id, step in steps_of(unit):
                steps[-1].append((run_id, step, self._watch.next(run_id, step) + together[run_id, step]))
                together[run_id, step] += 1
        for run_id, step, number in chain(*steps):
            self._watch.reach(run_id, step, "before", number)
        results: Sequence[Any] = await self._inner.commit(units)
        for of_unit, result in zip(steps, results, strict=True):
            for run_id, step, number in of_unit if result.fate is Fate.COMMITTED else ():
                self.unsettled.append((run_id, step, number))
                self._watch.reach(run_id, step, "committed", number)
        return results

    async def claim_due(self, *how: Any, **named: Any) -> Sequence[Any]:
        """As ports.Store."""
        rows: Sequence[Any] = await self._inner.claim_due(*how, **named)
        for row in rows:
            self._watch.reach_row(row, "claimed")
        return rows


class WatchedInbox(Watched):
    """After the acknowledgement, which comes before answers and calls."""

    def __init__(self, inner: Any, watch: Watch, store: WatchedStore) -> None:
        super().__init__(inner, watch)
        self._store = store

    async def settle(self, done: Any, back: Any) -> None:
        """As ports.Inbox."""
        await self._inner.settle(done, back)
        settled, self._store.unsettled = self._store.unsettled, []
        for run_id, step, number in settled:
            self._watch.reach(run_id, step, "settled", number)


class WatchedOutlet(Watched):
    """After the broker's confirm."""

    async def publish(self, rows: Any) -> Sequence[str]:
        """As ports.Outlet."""
        confirmed: Sequence[str] = await self._inner.publish(rows)
        for row in rows:
            if row.id in confirmed:
                self._watch.reach_row(row, "published")
        return confirmed


class WatchedModels(Watched):
    """Before and after a model call."""

    async def call(self, activity: Any, conversation: Any) -> Any:
        """As ports.Models."""
        self._watch.reach(activity.run_id, "call model", "called")
        reply = await self._inner.call(activity, conversation)
        self._watch.reach(activity.run_id, "call model", "returned")
        return reply


class WatchedTools(Watched):
    """Before and after a tool's effect."""

    async def run(self, activity: Any, begin_left_ms: Any) -> Any:
        """As ports.Tools."""
        self._watch.reach(activity.run_id, f"call {activity.tool}", "called")
        outcome = await self._inner.run(activity, begin_left_ms)
        self._watch.reach(activity.run_id, f"call {activity.tool}", "returned")
        return outcome


def steps_of(unit: Unit) -> list[tuple[str, str]]:
    """Run and step of each message that the unit applies."""
    return [(entry.address.run_id, f"commit {json.loads(entry.message)['message']['type']}") for entry in unit.journal]


def watch_ports(watch: Watch) -> None:
    """Every service that this process makes from now on is watched."""

    def service(name: str, ports: Ports) -> Service:
        return Service(name, watch.ports(ports))

    hosting: Any = serving
    hosting.Service = service


def watch_door(watch: Watch) -> None:
    """The gateway commits nothing; what it does is to ask."""
    program: Any = importlib.import_module("placet_gateway.__main__")
    plain = program.RabbitDoor

    class Door(plain):  # type: ignore[misc,valid-type]
        async def ask(self, message: Any, **how: Any) -> Any:
            watch.reach(message.run_id, f"ask {message.type}", "asked")
            answer = await super().ask(message, **how)
            watch.reach(message.run_id, f"ask {message.type}", "answered")
            return answer

    program.RabbitDoor = Door


def shorten() -> None:
    """Leases of seconds, so that what a kill has lost is found again while the test looks."""
    limits.LEASE_MARGIN_MS = MARGIN_MS
    relay.CLAIM_MS = relay.IDLE_MS = CLAIM_MS
    bounds: Any = services
    bounds.CLAIM_MS = CLAIM_MS


def live(service: str, program: Any, arguments: Sequence[str]) -> int:
    """One life of the service; its exit code."""
    kills = Kills(Path(os.environ[FOLDER]))
    watch = Watch(kills, service)
    shorten()
    if service == "gateway":
        watch_door(watch)
        return int(program.main(list(arguments)))
    watch_ports(watch)
    return int(serving_main(program, arguments))


def serving_main(program: Any, arguments: Sequence[str]) -> int:
    """As the service's own `__main__` does it."""
    return int(program.main(program.PARTS, list(arguments)))


def main(service: str) -> int:
    """Fork lives until one ends otherwise than by SIGKILL; its exit code."""
    package, arguments = MODULES[service]
    program = importlib.import_module(f"{package}.__main__")
    for name in (*LATE["*"], *LATE.get(service, ())):
        importlib.import_module(name)
    if app := os.environ.get("PLACET_APP"):
        importlib.import_module(app.partition(":")[0])
    gc.freeze()
    first = os.getpid()
    while True:
        pid = os.fork()
        if not pid:
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            os._exit(live(service, program, arguments) if os.getppid() == first else 1)
        signal.signal(signal.SIGTERM, lambda number, _, pid=pid: os.kill(pid, number))  # type: ignore[misc]
        _, status = os.waitpid(pid, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
