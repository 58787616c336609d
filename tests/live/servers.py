"""Decides where real servers come from: given addresses, containers, private processes, an installation; in order.

One server of a kind serves the whole run, all its test processes included: whoever needs it first starts it and notes
it in the run's folder, and the reaper ends it with the run. A server that a test may harm is one of its own, preferably
a process, which starts quicker and can be killed more exactly.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from tests.live import reaper
from tests.live.containers import ContainerServer
from tests.live.kinds import MANAGEMENT_PORT, MANAGEMENT_VARIABLE, NAMES, Kind, MissingServerError
from tests.live.packages import install, may_not_install
from tests.live.postgres_server import PrivatePostgres
from tests.live.probes import answers
from tests.live.processes import PrivateServer
from tests.live.rabbitmq_server import Management, PrivateCluster, PrivateRabbitMQ
from tests.live.redis_server import PrivateRedis

SOURCES = ("addresses", "containers", "processes", "install")
SOURCES_VARIABLE = "PLACET_TEST_SERVERS"
"""Restricts where servers may come from: some of SOURCES, separated by commas, in the order to be tried."""

OwnServer = PrivateServer | ContainerServer
Started = TypeVar("Started", PrivateServer, ContainerServer, PrivateCluster, OwnServer)


@dataclass(frozen=True)
class Access:
    """How to reach a server of the run: its address, where it came from, and RabbitMQ's management API."""

    kind: Kind
    url: str
    source: str
    management_url: str = ""

    @property
    def management(self) -> Management:
        """RabbitMQ's management API."""
        return Management(self.management_url)


class Home:
    """The folder of one run, shared by its test processes, and the servers in it.

    `owner` is the process whose end ends them all. Usable outside of tests, as a context: `with Home() as home`.
    """

    def __init__(self, name: str | None = None, owner: int | None = None) -> None:
        self.owner = owner or os.getpid()
        self.folder = Path(tempfile.gettempdir(), f"placet-live-{name or f'{self.owner}-{os.urandom(4).hex()}'}")
        self._numbers = count(1)
        self._kept: list[object] = []
        """What was started: forgotten processes are warned about."""
        # Servers run as other users than the tests and must be able to pass through.
        self.folder.mkdir(mode=0o755, exist_ok=True)
        if self.folder.stat().st_uid != os.geteuid():
            raise MissingServerError(f"{self.folder} belongs to somebody else")
        with self._lock("reaper"):
            if not (self.folder / "reaper").exists():
                (self.folder / "reaper").touch()
                command = (sys.executable, "-I", reaper.__file__, str(self.owner), str(self.folder))
                self._kept.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *_: object) -> None:
        reaper.reap(self.folder)

    # ── one for the run ────────────────────────────────────────────────────────────────

    def shared(self, kind: Kind) -> Access:
        """The server of this kind for the whole run. Raises MissingServerError, the same for all who ask."""
        note = self.folder / f"{kind}.json"
        with self._lock(kind):
            if not note.exists():
                note.write_text(json.dumps(self._find(kind)))
            found = json.loads(note.read_text())
        if "missing" in found:
            raise MissingServerError(found["missing"])
        return Access(**{**found, "kind": kind})

    def _find(self, kind: Kind) -> dict[str, Any]:
        tries: dict[str, Callable[[Kind], Access]] = {
            "addresses": given,
            "containers": self._in_container,
            "processes": self._as_process,
            "install": self._installed,
        }
        try:
            return asdict(self._first(kind, allowed_sources(), tries))
        except MissingServerError as error:
            return {"missing": str(error)}

    def _in_container(self, kind: Kind) -> Access:
        return _access(self._start(ContainerServer(kind, self._place(f"shared-{kind}"))), "containers")

    def _as_process(self, kind: Kind) -> Access:
        return _access(self._start(self._process(kind, f"shared-{kind}")), "processes")

    def _installed(self, kind: Kind) -> Access:
        self._install(kind)
        return _access(self._start(self._process(kind, f"shared-{kind}")), "install")

    # ── one for a test ─────────────────────────────────────────────────────────────────

    def own(self, kind: Kind) -> OwnServer:
        """A started server that nobody else uses. Whoever asked closes it. Raises MissingServerError."""
        place = f"own-{kind}-{os.getpid()}-{next(self._numbers)}"

        def installed(kind: Kind) -> OwnServer:
            self._install(kind)
            return self._start(self._process(kind, place))

        tries: dict[str, Callable[[Kind], OwnServer]] = {
            "processes": lambda kind: self._start(self._process(kind, place)),
            "containers": lambda kind: self._start(ContainerServer(kind, self._place(place))),
            "install": installed,
        }
        return self._first(kind, [source for source in tries if source in allowed_sources()], tries)

    def cluster(self, nodes: int = 3) -> PrivateCluster:
        """A started cluster of brokers that nobody else uses; as processes only. Whoever asked closes it."""
        where = self.place("cluster")
        try:
            cluster = PrivateCluster(where, nodes)
        except MissingServerError:
            self._install(Kind.RABBITMQ)
            cluster = PrivateCluster(where, nodes)
        return self._start(cluster)

    def place(self, name: str) -> Path:
        """A fresh folder name for a server that a test makes by itself, with options of its own."""
        return self._place(f"own-{name}-{os.getpid()}-{next(self._numbers)}")

    # ── how ────────────────────────────────────────────────────────────────────────────

    def _first(self, kind: Kind, sources: list[str], tries: dict[str, Callable[[Kind], Any]]) -> Any:
        names = NAMES[kind]
        told = []
        for source in sources:
            try:
                return tries[source](kind)
            except MissingServerError as error:
                if source == "addresses" and os.environ.get(names.variable):
                    raise  # whoever gave an address wants that server and no other
                told.append(f"  {source}: {error}")
        raise MissingServerError(
            f"no {kind} for the live tests. Tried:\n" + "\n".join(told) + "\n"
            f"Give an address in {names.variable}, start Docker, or install {' '.join(names.packages)} "
            f"(root on Debian: done by the tests unless PLACET_TEST_INSTALL=no)."
        )

    def _process(self, kind: Kind, name: str) -> PrivateServer:
        match kind:
            case Kind.RABBITMQ:
                return PrivateRabbitMQ(self._place(name))
            case Kind.REDIS:
                return PrivateRedis(self._place(name))
            case Kind.POSTGRES:
                return PrivatePostgres(self._place(name), template=self.folder / "postgres-template")

    def _place(self, name: str) -> Path:
        return self.folder / name

    def _start(self, server: Started) -> Started:
        try:
            server.start()
        except BaseException:
            server.close()
            raise
        self._kept.append(server)
        return server

    def _install(self, kind: Kind) -> None:
        if reason := may_not_install():
            raise MissingServerError(reason)
        install(NAMES[kind].packages, self.folder / "apt-updated")

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def given(kind: Kind) -> Access:
    """The server whose address is in the environment, if it answers."""
    names = NAMES[kind]
    url = os.environ.get(names.variable, "")
    if not url:
        raise MissingServerError(f"{names.variable} is not set")
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or names.port
    if parts.scheme in {"amqp", "redis", "postgresql", "postgres"} and not answers(kind, host, port, 5.0):
        raise MissingServerError(f"{names.variable} is set, but no {kind} answers at {host}:{port}")
    management_url = ""
    if kind is Kind.RABBITMQ:
        login = f"{parts.username or 'guest'}:{parts.password or 'guest'}"
        management_url = os.environ.get(MANAGEMENT_VARIABLE, f"http://{login}@{host}:{MANAGEMENT_PORT}")
        try:
            Management(management_url).call("overview")
        except OSError as error:
            raise MissingServerError(
                f"{names.variable} is set, but not RabbitMQ's management API, which makes a virtual host for each test "
                f"({MANAGEMENT_VARIABLE}, else port {MANAGEMENT_PORT}): {error}"
            ) from error
    return Access(kind, url, "addresses", management_url)


def allowed_sources() -> list[str]:
    """Where servers may come from, in order. Raises ValueError for an unknown source."""
    wanted = os.environ.get(SOURCES_VARIABLE, "")
    chosen = [word.strip() for word in wanted.split(",") if word.strip()] or list(SOURCES)
    if unknown := set(chosen) - set(SOURCES):
        raise ValueError(f"{SOURCES_VARIABLE}: {', '.join(sorted(unknown))} is none of {', '.join(SOURCES)}")
    return chosen


def _access(server: OwnServer, source: str) -> Access:
    """A server outlives the object that started it: the reaper has its note."""
    url = server.management_url if isinstance(server, ContainerServer | PrivateRabbitMQ) else ""
    return Access(server.kind, server.url, source, url)


def endpoint(url: str) -> tuple[str, int]:
    """Host and port of an address, for a proxy before it."""
    parts = urlsplit(url)
    ports = {"amqp": 5672, "redis": 6379, "postgresql": 5432}
    return unquote(parts.hostname or "localhost"), parts.port or ports[parts.scheme]
