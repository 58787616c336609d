"""Decides how a private RabbitMQ is run: own node, own epmd, own cookie, and nothing of the system's broker."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from placet import limits
from tests.live.kinds import Kind, MissingServerError
from tests.live.processes import LOOPBACK, PrivateServer, find_program, free_port

SETTLE_S = 1.0
SETTLE_S_MAX = 5.0


def settle() -> None:
    """Wait until a broker has noted its queues, longer on a machine with more to do than it has processors.

    It notes a new quorum queue half a second late. Killed before that, it comes back with a queue that has no leader
    and on which clients hang for ever: a fault of the broker (3.10 and 4.0), not of ours.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    time.sleep(min(SETTLE_S_MAX, SETTLE_S * max(1.0, load)))


class Management:
    """RabbitMQ's management API: `url` is http://user:password@host:port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.hostname}:{parts.port}"
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._headers = {
            "Authorization": f"Basic {b64encode(login.encode()).decode()}",
            "Content-Type": "application/json",
        }
        self._user = unquote(parts.username or "guest")

    def call(self, path: str, method: str = "GET", body: object = None) -> Any:
        """One request below /api/; the answer's JSON or None. Raises OSError (urllib.error.HTTPError for a status)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def add_vhost(self, name: str) -> None:
        """A virtual host of which the own user may do everything."""
        self.call(f"vhosts/{quote(name, safe='')}", "PUT", {"default_queue_type": "quorum"})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.call(f"permissions/{quote(name, safe='')}/{quote(self._user, safe='')}", "PUT", everything)

    def delete_vhost(self, name: str) -> None:
        """With all it holds. One that is gone is no error."""
        try:
            self.call(f"vhosts/{quote(name, safe='')}", "DELETE")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise


class Epmd:
    """The name server of a node or a cluster, in the foreground: a node without one leaves a daemon behind."""

    def __init__(self, server: PrivateServer) -> None:
        program = find_program("epmd", "/usr/lib/erlang/erts-*/bin/epmd")
        if program is None:
            raise MissingServerError("no epmd: Erlang is not installed")
        self.port = free_port()
        self._process = server.spawn(
            (program, "-address", LOOPBACK, "-port", str(self.port)),
            {},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class PrivateRabbitMQ(PrivateServer):
    """One node. `options`: further lines of rabbitmq.conf. Nodes of a cluster share `epmd`, `cookie` and `peers`."""

    kind = Kind.RABBITMQ
    user = "rabbitmq"
    start_timeout_s = 120

    def __init__(
        self,
        folder: Path,
        *options: str,
        name: str = "rabbit",
        epmd: Epmd | None = None,
        cookie: str | None = None,
        peers: Sequence[str] = (),
    ) -> None:
        # Not Debian's /usr/sbin/rabbitmq-server, which changes to the system's user, folders and log.
        program = find_program("rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server")
        if program is None:
            raise MissingServerError("no rabbitmq-server on PATH or in /usr/lib/rabbitmq/bin")
        super().__init__(folder)
        self._program = program
        self._options, self._peers = options, peers
        self._own_epmd = epmd is None
        self._epmd = epmd or Epmd(self)
        self._cookie = cookie or secrets.token_hex(10)
        # No look-up of the machine's own name, which may not resolve.
        self.node = f"{name}@localhost"
        self._dist_port, self.management_port = free_port(), free_port()
        self.management_url = f"http://guest:guest@{LOOPBACK}:{self.management_port}"
        self.management = Management(self.management_url)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/"

    def url_of(self, vhost: str) -> str:
        """The address of one virtual host."""
        return self.url + quote(vhost, safe="")

    def prepare(self) -> None:
        self.write(".erlang.cookie", self._cookie, 0o400)
        self.write("enabled_plugins", "[rabbitmq_management].\n")
        lines = [
            f"listeners.tcp.1 = {LOOPBACK}:{self.port}",
            f"management.tcp.ip = {LOOPBACK}",
            f"management.tcp.port = {self.management_port}",
            "log.console = true",
            "log.console.level = info",
            "log.file = false",
            "disk_free_limit.absolute = 50MB",
            "vm_memory_high_watermark.absolute = 1GB",
            f"max_message_size = {limits.JSON_BYTES_MAX}",  # as deploy/rabbitmq
            *self._options,
        ]
        if self._peers:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            lines += [f"cluster_formation.classic_config.nodes.{n} = {peer}" for n, peer in enumerate(self._peers, 1)]
        self.write("rabbitmq.conf", "\n".join(lines) + "\n")

    def environment(self) -> Mapping[str, str]:
        at = str(self.folder) + "/"
        return {
            "HOME": str(self.folder),  # where the cookie is looked for
            "ERL_EPMD_PORT": str(self._epmd.port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",  # not the system's
            "RABBITMQ_CONFIG_FILE": at + "rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": at + "advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": at + "enabled_plugins",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.data),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.data / "config"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(self.data / "plugins"),
            # Schedulers that spin while they wait take the processor from everything else on a small machine.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"
            " +sbwt none +sbwtdcpu none +sbwtdio none",
            # The start script then becomes the emulator: our pid is the broker's, and a SIGKILL hits it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def command(self) -> Sequence[str]:
        return (self._program,)

    def note_pids(self, *pids: int) -> None:
        super().note_pids(*pids, *((self._epmd.pid,) if self._own_epmd else ()))

    def is_ready(self) -> bool:
        return "Server startup complete" in self.new_log()

    def ctl(self, *arguments: str, program: str = "rabbitmqctl") -> str:
        """rabbitmqctl for this node (or rabbitmq-queues, rabbitmq-diagnostics); a second each."""
        path = find_program(program, f"/usr/lib/rabbitmq/bin/{program}")
        return self.run(path or program, "-q", *arguments)

    def kill(self, *, at_once: bool = False) -> None:
        """A crash; after `settle`, unless the very fault of the broker is wanted that this avoids."""
        if not at_once and self.alive and self.is_ready():
            settle()
        super().kill()

    def close(self) -> None:
        self.kill(at_once=True)
        if self._own_epmd:
            self._epmd.close()
        super().close()


class PrivateCluster:
    """Nodes that find each other, started side by side."""

    def __init__(self, folder: Path, count: int = 3, *options: str) -> None:
        names = [f"node{n}" for n in range(1, count + 1)]
        cookie, peers = secrets.token_hex(10), [f"{name}@localhost" for name in names]
        self.nodes: list[PrivateRabbitMQ] = []
        first: PrivateRabbitMQ | None = None
        for name in names:
            at = folder.with_name(f"{folder.name}-{name}")
            epmd = first._epmd if first is not None else None
            node = PrivateRabbitMQ(at, *options, name=name, epmd=epmd, cookie=cookie, peers=peers)
            first = first or node
            self.nodes.append(node)

    def start(self, timeout_s: float = 120) -> None:
        """All nodes, until each sees all others."""
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_until_ready()
        end_s = time.monotonic() + timeout_s
        while any(self.seen_by(node) < len(self.nodes) for node in self.nodes):
            if time.monotonic() > end_s:
                raise MissingServerError("the nodes did not form one cluster")
            time.sleep(0.2)

    def seen_by(self, node: PrivateRabbitMQ) -> int:
        """How many running nodes one of them knows of, itself included."""
        try:
            return sum(1 for known in node.management.call("nodes") if known["running"])
        except OSError:
            return 0  # the API is not up yet

    def heal(self) -> None:
        """All running, none frozen."""
        down = [node for node in self.nodes if not node.alive]
        for node in self.nodes:
            node.start(wait=False) if node in down else node.thaw()
        for node in down:
            node.wait_until_ready()

    def close(self) -> None:
        """End all; the first last, which owns the name server."""
        for node in reversed(self.nodes):
            node.close()
