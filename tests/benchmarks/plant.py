"""Decides what is measured: PostgreSQL, RabbitMQ and Redis of its own with fsync on, and the services as processes.

Everything is started as an operator starts it, by `placet migrate`, `placet topology declare` and PLACET_* variables.
Nothing of it outlives the measurement: what the end of this process leaves behind, the live tests' reaper takes away.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from placet.adapters.sql.postgres_migrating import role_of
from placet.keys import KeyRegistry
from placet.signatures import SigningKey
from placet.topology import PREFIX
from tests.benchmarks import counting
from tests.benchmarks.application import EFFECTS
from tests.benchmarks.driver import ENVIRONMENT, REVIEWER, TENANT
from tests.live.postgres_server import PrivatePostgres
from tests.live.processes import PrivateServer, free_port
from tests.live.rabbitmq_server import PrivateRabbitMQ
from tests.live.reaper import started_at
from tests.live.redis_server import PrivateRedis
from tests.live.servers import Home
from tests.live.system import SERVICES, Running

APP = "tests.benchmarks.application:app"
ROOT = Path(__file__).parents[2]
SCRIPTED = ("tests.benchmarks.planner",)
CORE = ("dispatcher", "resume", "planner")
MODES: dict[str, tuple[str, ...]] = {
    "five": (*CORE, "tool-executor", "approval"),
    "three": ("core", "tool-executor", "approval"),
}
"""Processes by mode. `core` hosts what is its own process in `five`."""
POSTGRES = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
STATEMENTS = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_planning": "on"}
END_S = 30


class Taken(NamedTuple):
    """How many messages a service took, in how many turns."""

    turns: int
    messages: int


@dataclass
class Plant:
    """The servers and the services of one mode."""

    folder: Path
    postgres: PrivatePostgres
    rabbitmq: PrivateRabbitMQ
    redis: PrivateRedis
    effects: Path
    """Where the tool says that it ran."""
    library: bool = False
    """Scripts are asked by way of the model library, as they are in production."""
    events: bool = False
    public: bool = False
    """Decisions come by the exchange for outsiders."""
    services: list[Running] = field(default_factory=list)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    key: SigningKey = field(default_factory=lambda: SigningKey.generate(REVIEWER))
    """The reviewer's, whose word is believed."""

    @property
    def _keys(self) -> Path:
        return self.folder / "keys.json"

    @property
    def servers(self) -> dict[str, PrivateServer]:
        """By name."""
        return {"postgres": self.postgres, "rabbitmq": self.rabbitmq, "redis": self.redis}

    # ── its life ───────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Start the servers, and make what the services expect on them."""
        for server in self.servers.values():
            server.start()
        registry = KeyRegistry(version=1, keys=(self.key.entry(tenants=(TENANT,)),))
        self._keys.write_text(registry.model_dump_json(exclude_none=True))
        passwords = " ".join(f"{name}={self.password}" for name in SERVICES)
        for words in (("migrate",), ("topology", "declare")):
            subprocess.run(
                [Path(sys.executable).parent / "placet", *words],
                env=self._environment({"ROLE_PASSWORDS": passwords}),
                stdout=subprocess.DEVNULL,
                check=True,
            )

    def start(self, mode: str) -> None:
        """Start the services of a mode, until all are ready."""
        for name in MODES[mode]:
            self.services.append(self._start(name))
        for service in self.services:
            service.wait_until_ready()

    def kill(self, name: str) -> None:
        """SIGKILL to one service."""
        for service in [each for each in self.services if each.name == name]:
            service.kill()
            self.services.remove(service)

    def restart(self, name: str) -> None:
        """Start one that was killed."""
        self.services.append(self._start(name))
        self.services[-1].wait_until_ready()

    def stop(self) -> None:
        """Drain the services. Raises RuntimeError for one that does not end well."""
        for service in self.services:
            service.process.send_signal(signal.SIGTERM)
        for service in self.services:
            if code := service.process.wait(END_S):
                raise RuntimeError(f"exit code {code}: {service.describe()}")
        self.services.clear()

    def close(self) -> None:
        """End everything that still runs."""
        for service in self.services:
            if service.process.poll() is None:
                service.kill()
        for server in self.servers.values():
            server.close()

    def _start(self, name: str) -> Running:
        port = free_port()
        own = {"HEALTH_PORT": str(port), "APP": APP, "EVENTS": "true" if self.events else "false"}
        if name == "core":
            own["HOSTS"] = ",".join(CORE)
        else:
            own["DATABASE_URL"] = self._as_role(name)
        if name == "approval":
            own["DECISION_KEYS_FILE"] = str(self._keys)
        planner = ("placet_planner",) if self.library else SCRIPTED
        words = planner if name in ("core", "planner") else SERVICES[name]
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                env={**self._environment(own), EFFECTS: str(self.effects)},
                cwd=ROOT,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for us, who end them in order
            )
        with (self.folder / "pids").open("a") as noted:  # for the reaper, should this process be killed
            noted.write(f"{process.pid} {started_at(process.pid)}\n")
        return Running(name, process, log, port)

    def _environment(self, own: dict[str, str]) -> dict[str, str]:
        plain = {key: value for key, value in os.environ.items() if not key.startswith("PLACET_")}
        settings = {
            "DATABASE_URL": self.postgres.url,
            "AMQP_URL": self.rabbitmq.url,
            "REDIS_URL": self.redis.url,
            "ENVIRONMENT": ENVIRONMENT,
            **own,
        }
        return plain | {f"PLACET_{key}": value for key, value in settings.items()}

    def _as_role(self, service: str) -> str:
        parts = urlsplit(self.postgres.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{role_of(service)}:{self.password}@{host}"))

    # ── what it costs ──────────────────────────────────────────────────────────────────

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far, by process; `driver` is this one."""
        roots = {service.name: service.process.pid for service in self.services}
        roots |= {name: server.pid for name, server in self.servers.items()}
        return {"driver": counting.own_cpu_s(), **counting.cpu_s(roots)}

    def rss_mb(self) -> dict[str, float]:
        """Memory of each service, in megabytes."""
        return {service.name: round(counting.rss_mb(service.process.pid), 1) for service in self.services}

    def taken(self) -> dict[str, Taken]:
        """What each service took so far."""
        found = {}
        for service in self.services:
            told = service.probe()[1]
            found[service.name] = Taken(told["turns"], told["messages"])
        return found

    def amqp_messages(self) -> int:
        """AMQP messages between services so far, as the broker counts them every five seconds."""
        found = self.rabbitmq.management.call("queues")
        ours = (queue for queue in found if queue["name"].startswith(PREFIX) and not queue["exclusive"])
        return sum(queue.get("message_stats", {}).get("publish", 0) for queue in ours)


@contextmanager
def planted(
    *,
    effects: Path | None = None,
    library: bool = False,
    events: bool = False,
    public: bool = False,
    statements: bool = False,
) -> Iterator[Plant]:
    """Servers that are prepared, without services yet. Raises MissingServerError where a server is not installed.

    `effects`: the file in which the tool says that it ran. `statements`: PostgreSQL counts what each one costs.
    """
    with ExitStack() as stack:
        home = stack.enter_context(Home())
        settings = POSTGRES | (STATEMENTS if statements else {})
        folder = home.place("bench")
        plant = Plant(
            folder,
            PrivatePostgres(home.place("postgres"), fsync=True, settings=settings),
            PrivateRabbitMQ(home.place("rabbitmq")),
            PrivateRedis(home.place("redis")),
            effects or folder / "effects",
            library,
            events,
            public,
        )
        folder.mkdir()
        stack.callback(plant.close)
        plant.prepare()
        yield plant


async def counters(plant: Plant) -> dict[str, int]:
    """PostgreSQL's own counters. Its sessions report once a second at most: a short loop is undercounted."""
    connection = await asyncpg.connect(plant.postgres.url)
    try:
        found = await connection.fetchrow(
            "SELECT (SELECT sum(xact_commit) FROM pg_stat_database)::bigint AS commits,"
            " (SELECT sum(tup_inserted) FROM pg_stat_database)::bigint AS inserted,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes,"
            " (SELECT wal_sync FROM pg_stat_wal) AS wal_syncs"
        )
    finally:
        await connection.close()
    return dict(found)


def names(prefix: str, count: int) -> Sequence[str]:
    """Run ids."""
    return [f"{prefix}-{number}" for number in range(count)]
