"""Decides how a test runs the distributed system: each service a process of its own, on servers of the run.

The processes are started as an operator starts them, with nothing but PLACET_* variables, and end with the test.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

from placet.adapters.sql.postgres_migrating import role_of
from placet.client import Connection, PlacetClient
from placet.errors import RetryableError
from placet.views import RequestSummary, RunView
from tests.live.keyring import Keyring
from tests.live.nursery import PLACET, Born, nursery
from tests.live.processes import free_port

SERVICES: dict[str, tuple[str, ...]] = {
    "dispatcher": ("placet_dispatcher",),
    "resume": ("placet_dispatcher", "--role", "resume"),
    "planner": ("placet_planner",),
    "tool-executor": ("placet_tool_executor",),
    "approval": ("placet_approval",),
    "gateway": ("placet_gateway",),
}
PASSWORD = "only-of-the-tests-1f9c2"
"""Of the services' roles in the database."""
Process = subprocess.Popen[bytes] | Born
READY_S = 60
PATIENCE_S = 180
"""A model call whose planner was killed comes back after the two minutes that a model may take."""


@dataclass
class Running:
    """One service process."""

    name: str
    process: Process
    log: Path
    port: int
    """Of its probes."""

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed, nobody is told."""
        self.process.kill()
        self.process.wait()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """A signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(READY_S)

    def probe(self, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        """Status and body of a probe; 0 when nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def wait_until_ready(self) -> None:
        """Until it says so; what it logged is in the error otherwise."""
        wait_until(lambda: self.probe()[0] == 200 or self.process.poll() is not None, READY_S, self.describe)
        assert self.process.poll() is None, self.describe()

    def describe(self) -> str:
        """For the message of a failed test."""
        told = "\n".join(self.log.read_text().splitlines()[-20:])
        return f"{self.name} ended with {self.process.poll()}, says {self.probe()}\n{told}"


def wait_until(condition: Callable[[], object], timeout_s: float, told: Callable[[], str] = lambda: "") -> None:
    """Until it holds. What happens happens in other processes, so it can only be asked."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {timeout_s} s\n{told()}")
        time.sleep(0.05)


class Person:
    """What a person does at a gateway; a system is where one is."""

    def connection(self, person: str | None) -> Connection:
        """Where the gateway is, for whom."""
        raise NotImplementedError

    def describe(self, run_id: str) -> str:
        """For the message of a failed test."""
        raise NotImplementedError

    @contextmanager
    def client(self, person: str | None = None) -> Iterator[PlacetClient]:
        """A client of the gateway."""
        with PlacetClient(self.connection(person)) as client:
            yield client

    def submit(self, run_id: str, goal: str) -> None:
        """Start a run, as often as it takes to be told that it is started."""
        with self.client() as client:
            persist(lambda: client.submit_run("release", run_id=run_id, goal=goal))

    def run(self, run_id: str) -> RunView:
        """The run as it stands."""
        with self.client() as client:
            view: RunView = persist(lambda: client.run(run_id))
            return view

    def wait_for(self, run_id: str, *statuses: str, timeout_s: float = PATIENCE_S) -> RunView:
        """The run, once it has one of these statuses."""
        found: list[RunView] = []

        def reached() -> bool:
            found[:] = [self.run(run_id)]
            return found[0].status in statuses or found[0].terminal

        wait_until(reached, timeout_s, lambda: f"{found}\n{self.describe(run_id)}")
        assert found[0].status in statuses, f"{found}\n{self.describe(run_id)}"
        return found[0]

    def open_requests(self) -> Sequence[RequestSummary]:
        """What waits for a person."""
        with self.client() as client:
            items: Sequence[RequestSummary] = persist(lambda: client.requests(limit=200)).items
            return items

    def request_of(self, run_id: str) -> RequestSummary:
        """The one request that a run waits for, once it is in the inbox: a moment after the run says that it waits."""
        found: list[RequestSummary] = []

        def is_there() -> bool:
            found[:] = [each for each in self.open_requests() if each.run_id == run_id]
            return bool(found)

        wait_until(is_there, PATIENCE_S, lambda: f"no request of {run_id}")
        (request,) = found
        return request

    def approve(self, run_id: str) -> None:
        """Approve what the run waits for, with the hash that is shown, as often as it takes to get a receipt."""
        request_id = self.request_of(run_id).request_id
        with self.client("alice") as client:
            shown = persist(lambda: client.request(request_id))
            receipt = persist(
                lambda: client.decide(
                    shown.request_id,
                    decision="approve",
                    request_hash=shown.request_hash,
                    decision_id=f"decision-{run_id}",
                )
            )
        assert receipt.answer in ("accepted", "duplicate"), receipt


@dataclass
class System(Person):
    """All services, over one virtual host, one database and one Redis."""

    folder: Path
    settings: dict[str, str]
    """Settings of all services, without their prefix."""
    own: dict[str, dict[str, str]] = field(default_factory=dict)
    """Settings of one service each."""
    environment: dict[str, str] = field(default_factory=dict)
    """What else the processes are told, such as where the tools' repository is."""
    app: str = "examples.release:app"
    forked: bool = False
    """Whether the processes come from the nursery; otherwise each is started as an operator does it."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    http_port: int = field(default_factory=free_port)
    running: list[Running] = field(default_factory=list)

    def start(self, *names: str, **variables: str) -> list[Running]:
        """Start services, of a name one more each time; `variables` are settings of these without their prefix."""
        started = [self._start(name, variables) for name in names or tuple(SERVICES)]
        for each in started:
            each.wait_until_ready()
        return started

    def _start(self, name: str, variables: dict[str, str], *arguments: str) -> Running:
        port = self.http_port if name == "gateway" else free_port()
        log = self.folder / f"{name}-{len(self.running)}.log"
        own = {"HTTP_PORT": str(port), "TOKEN": self.token} if name == "gateway" else {"HEALTH_PORT": str(port)}
        if name == "gateway":
            own["SIGNING_KEY_FILE"] = str(self.keys.gateway_file)
        elif name == "approval":
            own["DECISION_KEYS_FILE"] = str(self.keys.registry)
        else:
            own["APP"] = self.app
        command = (*self.command(name), *arguments)
        environment = environment_of(self.settings | self.own.get(name, {}) | own | variables) | self.environment
        process: Process
        if self.forked:
            process = nursery().bear(command, environment, log)
        else:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", *command], env=environment, stdout=output, stderr=output
                )
        self.running.append(Running(name, process, log, port))
        return self.running[-1]

    @property
    def keys(self) -> Keyring:
        """Whose decisions are believed here."""
        return Keyring(self.folder)

    def command(self, name: str) -> Sequence[str]:
        """The module that is run for a service, and its arguments."""
        return SERVICES[name]

    def of(self, name: str) -> list[Running]:
        """The processes of that name that live."""
        return [each for each in self.running if each.name == name and each.process.poll() is None]

    def close(self) -> None:
        """End all that still live."""
        for each in self.running:
            if each.process.poll() is None:
                each.kill()

    def connection(self, person: str | None) -> Connection:
        """As Person."""
        return Connection(f"http://127.0.0.1:{self.http_port}", self.token, person)

    def describe(self, run_id: str) -> str:
        """As Person: every fact of the run, and what each process says."""
        with self.client() as client:
            facts = [entry.model_dump_json() for entry in client.trace(run_id).entries]
        return "\n".join([*facts, *(each.describe() for each in self.running)])


def deploy(settings: dict[str, str], folder: Path, *, forked: bool = True) -> None:
    """The steps of a deployment, as an operator types them."""
    with_passwords = settings | {"ROLE_PASSWORDS": " ".join(f"{name}={PASSWORD}" for name in SERVICES)}
    placet(with_passwords, folder, "migrate", forked=forked)
    placet(settings, folder, "topology", "declare", forked=forked)
    placet(settings, folder, "topology", "verify", forked=forked)


def placet(settings: dict[str, str], folder: Path, *command: str, forked: bool = True) -> None:
    """One command, which has to succeed; out of the nursery, or as the console script."""
    log = folder / f"{'-'.join(command)}.log"
    if forked:
        code = nursery().bear((PLACET, *command), environment_of(settings), log).wait(READY_S)
    else:
        program = Path(sys.executable).parent / "placet"
        with log.open("wb") as output:
            code = subprocess.run(
                [program, *command], env=environment_of(settings), stdout=output, stderr=output, check=False
            ).returncode
    assert code == 0, log.read_text()


def own_roles(postgres_url: str) -> dict[str, dict[str, str]]:
    """Each service's own setting: the database, as its own role there."""
    parts = urlsplit(postgres_url)
    host = parts.netloc.rpartition("@")[2]
    return {
        name: {"DATABASE_URL": urlunsplit(parts._replace(netloc=f"{role_of(name)}:{PASSWORD}@{host}"))}
        for name in SERVICES
    }


def environment_of(settings: dict[str, str]) -> dict[str, str]:
    """Nothing of ours but these settings, which have no prefix here."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PLACET_")}
    return plain | {f"PLACET_{key}": value for key, value in settings.items()}


def persist(ask: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """The answer of a client that repeats with the same ids until it has one."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except RetryableError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
