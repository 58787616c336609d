"""Decides how a server is run in a container, by testcontainers, with the controls of a private one."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from placet import limits
from tests.live.kinds import MANAGEMENT_PORT, NAMES, Kind, MissingServerError
from tests.live.probes import answers
from tests.live.processes import LOOPBACK, free_port
from tests.live.rabbitmq_server import Management, settle

PING_TIMEOUT_S = 3
START_TIMEOUT_S = 120
PULL_SILENCE_S = 20
"""A registry that says nothing for so long is out of reach."""
LOGIN = "placet:placet"
"""Not `guest`, which a broker lets in from its own host only."""


@lru_cache(maxsize=1)
def docker_is_away() -> str:
    """Why there is no Docker daemon for us; empty when one answers."""
    try:
        from docker.client import DockerClient
        from docker.errors import DockerException
    except ImportError:
        return "testcontainers is not installed"
    try:
        client = DockerClient.from_env(timeout=PING_TIMEOUT_S)
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, OSError) as error:
        return f"no Docker daemon answers ({type(error).__name__})"
    return ""


@lru_cache
def _pull(image: str) -> None:
    """Unless it is there. Raises MissingServerError when that cannot be done."""
    from docker.client import DockerClient
    from docker.errors import DockerException, ImageNotFound

    client = DockerClient.from_env(timeout=PULL_SILENCE_S)
    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(image)
        except (DockerException, OSError) as error:
            raise MissingServerError(f"Docker runs, but cannot pull {image}: {error}") from error
    finally:
        client.close()


class ContainerServer:
    """One server in a container, on a fixed port of this host, so that it is found again after a crash."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        if reason := docker_is_away():
            raise MissingServerError(reason)
        # Read when testcontainers is imported. Its own reaper is one more image to pull; ours is enough. And where a
        # machine looks like a container itself, it would connect to the bridge instead of the published port.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
        self.kind = kind
        self.folder = folder
        self.port, self.management_port = free_port(), free_port()
        self.host = LOOPBACK
        self._container: Any = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Where clients connect."""
        at = f"{self.host}:{self.port}"
        match self.kind:
            case Kind.REDIS:
                return f"redis://{at}/0"
            case Kind.POSTGRES:
                return f"postgresql://{LOGIN}@{at}/postgres"
            case Kind.RABBITMQ:
                return f"amqp://{LOGIN}@{at}/"

    @property
    def management(self) -> Management:
        """RabbitMQ's management API."""
        return Management(self.management_url)

    @property
    def management_url(self) -> str:
        """Its address, with the login; empty for other kinds."""
        return f"http://{LOGIN}@{self.host}:{self.management_port}" if self.kind is Kind.RABBITMQ else ""

    @property
    def alive(self) -> bool:
        """Whether the container runs, frozen or not."""
        if self._container is None:
            return False
        self._container.reload()
        return self._container.status in {"running", "paused"}

    def start(self) -> None:
        """Begin, on the same port and with the same data as before."""
        if self._container is None:
            self._create()
        else:
            self._container.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Until it serves clients; what it logged is in the error when it does not come to that."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if time.monotonic() > end_s or not self.alive:
                told = self._container.logs(tail=30).decode(errors="replace")
                raise MissingServerError(f"the container of {self.kind} did not start:\n{told}")
            time.sleep(0.1)

    def kill(self, *, at_once: bool = False) -> None:
        """A crash: SIGKILL to the server; of a broker after `settle`, as PrivateRabbitMQ."""
        if self.alive:
            if self.kind is Kind.RABBITMQ and not at_once:
                settle()
            self._container.kill()
            self._container.wait()

    def restart(self) -> None:
        """A crash and a recovery from what had reached the disk."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Sockets stay open, nothing answers."""
        self._container.pause()

    def thaw(self) -> None:
        """Go on after a freeze."""
        self._container.reload()
        if self._container.status == "paused":
            self._container.unpause()

    def wipe(self) -> None:
        """A crash that loses every byte."""
        self._remove()
        self.start()

    def ctl(self, *arguments: str, program: str = "rabbitmqctl") -> str:
        """As PrivateRabbitMQ: what a program in the container prints. Raises MissingServerError when it fails."""
        code, told = self._container.exec_run([program, "-q", *arguments])
        if code:
            raise MissingServerError(f"{program} failed: {told.decode(errors='replace')}")
        return str(told.decode(errors="replace"))

    def heal(self) -> None:
        """Running and not frozen, whatever a test did to it."""
        if self.alive:
            self.thaw()
        else:
            self.start()

    def close(self) -> None:
        """End for good."""
        self._remove()
        (self.folder / "container").unlink(missing_ok=True)

    def _create(self) -> None:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer

        names = NAMES[self.kind]
        image = os.environ.get(f"PLACET_TEST_{self.kind.upper()}_IMAGE", names.image)
        _pull(image)
        container = DockerContainer(image)
        client = container.get_docker_client()
        local = client.host() in {"localhost", LOOPBACK}
        self.host = LOOPBACK if local else client.host()
        ports = {names.port: self.port}
        user, _, password = LOGIN.partition(":")
        if self.kind is Kind.RABBITMQ:
            ports[MANAGEMENT_PORT] = self.management_port
            container.with_kwargs(hostname="placet-test")  # its data are in a folder of this name
            container.with_envs(
                RABBITMQ_DEFAULT_USER=user,
                RABBITMQ_DEFAULT_PASS=password,
                RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=f"-rabbit max_message_size {limits.JSON_BYTES_MAX}",
            )
        elif self.kind is Kind.POSTGRES:
            container.with_envs(POSTGRES_USER=user, POSTGRES_PASSWORD=password, POSTGRES_DB="postgres")
        else:
            container.with_command("redis-server --save '' --appendonly yes --protected-mode no")
        for inner, outer in ports.items():
            # A pair publishes on that address only, which testcontainers passes on, though it does not say so.
            container.ports[f"{inner}/tcp"] = (LOOPBACK, outer) if local else outer  # type: ignore[assignment]
        try:
            container.start()
        except (DockerException, OSError) as error:
            raise MissingServerError(f"Docker runs, but not {image}: {error}") from error
        self._container = container.get_wrapped_container()
        (self.folder / "container").write_text(container.get_container_id())

    def _is_ready(self) -> bool:
        if not answers(self.kind, self.host, self.port):
            return False
        if self.kind is not Kind.RABBITMQ:
            return True
        try:
            self.management.call("overview")
        except OSError:
            return False  # the listener is up before the API
        return True

    def _remove(self) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None
