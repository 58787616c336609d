"""Proves the system as it is deployed: docker-compose.yml, up from nothing, the release across containers, and crashes.

Only `make compose-test` runs it: it needs an engine, builds images and takes minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placet.client import Connection, PlacetClient
from placet.keys import parse_registry
from placet.signatures import SigningKey
from tests.architecture.sources import ROOT
from tests.live.processes import free_port
from tests.live.system import Person, wait_until

pytestmark = pytest.mark.skipif(
    not os.environ.get("PLACET_TEST_COMPOSE"), reason="only `make compose-test` runs the system in containers"
)

GOAL = "Cut the release v1.2.0"
SERVICES = ("dispatcher", "resume", "planner", "tool-executor", "approval", "gateway")


class Compose(Person):
    """The project, under a name, a port and with secrets of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.secrets = folder / "secrets"
        subprocess.run([sys.executable, ROOT / "deploy" / "make_secrets.py", self.secrets], check=True)
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("PLACET_", "COMPOSE_"))}
        self.environment = plain | {
            "COMPOSE_PROJECT_NAME": f"placet-test-{os.getpid()}",
            "PLACET_PORT": str(self.port),
            "PLACET_SECRETS": str(self.secrets),
            "COMPOSE_PROGRESS": "plain",
        }

    def do(self, *arguments: str, check: bool = True) -> str:
        """What `docker compose` prints."""
        return self.docker("compose", *arguments, check=check)

    def docker(self, *arguments: str, check: bool = True) -> str:
        """What `docker` prints."""
        command = ["docker", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=1_200, check=False
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def connection(self, person: str | None) -> Connection:
        """As tests.live.system.Person."""
        return Connection(f"http://127.0.0.1:{self.port}", (self.secrets / "token").read_text().strip(), person)

    def describe(self, run_id: str) -> str:
        """As tests.live.system.Person."""
        return self.do("ps", "--all", check=False) + self.do("logs", "--no-color", "--tail", "40", check=False)

    def containers(self, service: str) -> list[str]:
        """The containers of a service."""
        return self.do("ps", "--quiet", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        (found,) = json.loads(self.docker("inspect", container))
        return dict(found)

    def crash(self, service: str, number: int = 0) -> str:
        """SIGKILL to the process in a container, not a wish to have it stopped; the container's name."""
        container = self.containers(service)[number]
        os.kill(self.inspect(container)["State"]["Pid"], signal.SIGKILL)
        return container

    def git(self, *arguments: str) -> str:
        """What git prints in the repository that the tool executors share."""
        told = self.do("exec", "-T", "tool-executor", "git", "-C", "/repository/release", *arguments)
        return told.strip()

    def enrol(self, person: str) -> Path:
        """A new key of a person, known to the approval service from now on; its file, for a container to read."""
        key = SigningKey.generate(person)
        folder = self.secrets.parent / f"key-of-{person}"
        folder.mkdir()
        file = folder / "key.json"
        file.write_text(key.file().model_dump_json())
        registry = self.secrets / "decision_keys" / "registry.json"
        known = parse_registry(registry.read_bytes())
        entries = (*known.keys, key.entry(tenants=("default",)))
        draft = registry.with_suffix(".new")
        draft.write_text(known.model_copy(update={"keys": entries}).model_dump_json(exclude_none=True))
        draft.replace(registry)
        return file

    def decide_by_queue(self, key: Path, run_id: str) -> dict[str, Any]:
        """What `placet approve` prints in a container that has nothing but the key and the reviewers' address."""
        request = self.request_of(run_id)
        told = self.docker(
            *("run", "--rm", "--network", f"{self.environment['COMPOSE_PROJECT_NAME']}_inside"),
            *("--volume", f"{key.parent}:/key:ro", "--volume", f"{self.secrets}/amqp_url_reviewer:/url:ro"),
            *("--env", "PLACET_AMQP_URL_FILE=/url", "--env", "PLACET_ENVIRONMENT=compose"),
            *("--env", "PLACET_STATE_DIR=/tmp", "--entrypoint", "placet", "placet-approval"),
            *("approve", request.request_id, "--run", run_id, "--hash", request.request_hash),
            *("--key", "/key/key.json", "--yes", "--json"),
        )
        return dict(json.loads(told))

    def commit(self, subject: str) -> None:
        """Something new to release: without it, an agent finds that there is nothing."""
        identity = ("-c", "user.name=Placet test", "-c", "user.email=test@localhost")
        self.git(*identity, "commit", "--quiet", "--allow-empty", "-m", subject)

    def healthy(self, *services: str) -> bool:
        """Whether every container of these services is."""
        states = [self.inspect(each)["State"] for service in services for each in self.containers(service)]
        return all(state["Status"] == "running" and state["Health"]["Status"] == "healthy" for state in states)


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """The system, up and healthy."""
    compose = Compose(tmp_path_factory.mktemp("compose"))
    try:
        compose.do("build")
        began = time.monotonic()
        compose.do("up", "--detach", "--wait")
        print(f"healthy after {time.monotonic() - began:.0f} s")
        yield compose
    finally:
        compose.do("down", "--volumes", "--timeout", "5", check=False)


def assert_released(compose: Compose, run_id: str, tag: str) -> None:
    """One tag on the head, one approval, each operation once, an intact audit chain."""
    assert compose.git("tag", "--list", tag) == tag
    assert compose.git("rev-parse", f"{tag}^{{commit}}") == compose.git("rev-parse", "HEAD")
    with PlacetClient(compose.connection(None)) as client:
        receipt = client.run_receipt(run_id)
        assert receipt.status == "succeeded"
        assert receipt.audit.intact
        assert sorted(operation.tool for operation in receipt.operations) == ["create_tag", "publish_notes", "read_log"]
        assert [decision.status for decision in receipt.decisions] == ["approved"]
        assert client.dead_letters(run_id=run_id).items == []


def test_the_release_across_containers_happens_once(compose: Compose) -> None:
    compose.submit("r1", GOAL)
    compose.wait_for("r1", "suspended")
    assert compose.git("tag", "--list", "v1.2.0") == ""
    compose.approve("r1")
    compose.wait_for("r1", "succeeded")
    assert_released(compose, "r1", "v1.2.0")


def test_the_containers_are_locked_in_and_each_has_its_own_secrets_only(compose: Compose) -> None:
    for service in SERVICES:
        (container,) = compose.containers(service)
        about = compose.inspect(container)
        assert about["HostConfig"]["ReadonlyRootfs"] is True
        assert about["HostConfig"]["CapDrop"] == ["ALL"]
        assert about["Config"]["User"] == "10001:10001"
        assert not any("hush" in variable or "://" in variable for variable in about["Config"]["Env"])
        held = set(compose.do("exec", "-T", service, "ls", "/run/secrets").split())
        own = {f"database_url_{service}", f"amqp_url_{service}"}
        assert held - own == {"gateway": {"token", "gateway_key"}, "approval": {"redis_url_approval"}}.get(
            service, set()
        )
    assert compose.do("exec", "-T", "approval", "ls", "/application") == ""
    published = compose.docker(
        "ps", "--filter", f"name={compose.environment['COMPOSE_PROJECT_NAME']}", "--format", "{{.Ports}}"
    )
    assert [line for line in published.splitlines() if "->" in line] == [f"127.0.0.1:{compose.port}->7300/tcp"]


def test_a_decision_published_on_the_queue_wakes_a_release(compose: Compose) -> None:
    compose.commit("Fix queues")
    compose.submit("queued", "Cut the release v1.2.9")
    compose.wait_for("queued", "suspended")
    receipt = compose.decide_by_queue(compose.enrol("quentin"), "queued")
    assert (receipt["answer"], receipt["decided_by"]) == ("accepted", "quentin")
    compose.wait_for("queued", "succeeded")
    assert_released(compose, "queued", "v1.2.9")


def test_a_service_may_not_do_at_the_servers_what_is_not_its_own(compose: Compose) -> None:
    vote = (
        "import asyncio, asyncpg\n"
        "async def main():\n"
        "    connection = await asyncpg.connect(open('/run/secrets/database_url_tool-executor').read().strip())\n"
        "    try:\n"
        "        await connection.execute('INSERT INTO approval_outcome DEFAULT VALUES')\n"
        "    except asyncpg.InsufficientPrivilegeError:\n"
        "        print('refused')\n"
        "asyncio.run(main())\n"
    )
    assert compose.do("exec", "-T", "tool-executor", "python", "-c", vote).strip() == "refused"


def test_with_three_of_each_and_one_of_each_killed_every_release_happens_once(compose: Compose) -> None:
    compose.do("up", "--detach", "--wait", "--scale", "tool-executor=3", "--scale", "resume=3")
    assert [len(compose.containers(service)) for service in ("tool-executor", "resume")] == [3, 3]
    compose.commit("Add scales")
    names = [f"scaled-{number}" for number in range(6)]
    for number, name in enumerate(names):
        compose.submit(name, f"Cut the release v1.3.{number}")
    for name in names:
        compose.wait_for(name, "suspended")
    for name in names[:3]:
        compose.approve(name)
    killed = [compose.crash("tool-executor"), compose.crash("resume")]
    for name in names[3:]:
        compose.approve(name)
    for number, name in enumerate(names):
        compose.wait_for(name, "succeeded")
        assert_released(compose, name, f"v1.3.{number}")
    wait_until(lambda: all(compose.inspect(each)["RestartCount"] == 1 for each in killed), 60)
    wait_until(lambda: compose.healthy("tool-executor", "resume"), 60)


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_whose_process_is_killed_comes_back_and_the_release_goes_on(compose: Compose, service: str) -> None:
    run_id = f"killed-{service}"
    tag = f"v1.4.{SERVICES.index(service)}"
    compose.commit(f"Fix {service}")
    compose.submit(run_id, f"Cut the release {tag}")
    compose.wait_for(run_id, "suspended")
    compose.crash(service)
    compose.approve(run_id)
    compose.wait_for(run_id, "succeeded")
    assert_released(compose, run_id, tag)
    wait_until(lambda: compose.healthy(service), 60)


def test_the_servers_may_crash_while_a_release_waits(compose: Compose) -> None:
    compose.commit("Fix servers")
    compose.submit("servers", "Cut the release v1.5.0")
    compose.wait_for("servers", "suspended")
    request = compose.request_of("servers")
    time.sleep(1)  # a quorum queue that was declared less than half a second before a crash is lost; these are older
    for server in ("rabbitmq", "redis", "postgres"):
        compose.crash(server)
    wait_until(lambda: compose.healthy("rabbitmq", "redis", "postgres"), 120)
    assert compose.request_of("servers").request_id == request.request_id
    compose.approve("servers")
    compose.wait_for("servers", "succeeded")
    assert_released(compose, "servers", "v1.5.0")


def test_it_goes_down_and_comes_up_with_everything_it_knew(compose: Compose) -> None:
    compose.commit("Fix starts")
    compose.submit("stopped", "Cut the release v1.6.0")
    compose.wait_for("stopped", "suspended")
    compose.do("down")
    logs = compose.do("ps", "--all", "--quiet")
    assert logs == ""
    compose.do("up", "--detach", "--wait")
    compose.approve("stopped")
    compose.wait_for("stopped", "succeeded")
    assert_released(compose, "stopped", "v1.6.0")
