"""Proves the distributed system as processes on real servers: the release job, kills, drains, and three executors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from examples.release.repository import git, scratch_repository
from tests.cases import case
from tests.live.broker_ends import BrokerEnds
from tests.live.system import SERVICES, System, deploy, own_roles
from tests.live.whole import Servers

GOAL = "Cut the release v1.2.0"
TAG = "v1.2.0"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with something to release."""
    return scratch_repository(tmp_path)


@asynccontextmanager
async def prepared(
    folder: Path, repository: Path, servers: Servers, environment: str, *, forked: bool
) -> AsyncIterator[System]:
    """The system, deployed; nothing runs yet."""
    settings = {
        "DATABASE_URL": servers.postgres_url,
        "AMQP_URL": servers.amqp_url,
        "REDIS_URL": servers.redis_url,
        "ENVIRONMENT": environment,
        "GRACE_MS": "10000",
        "LOG_LEVEL": "debug",
    }
    await asyncio.to_thread(deploy, settings, folder, forked=forked)
    tools = {"RELEASE_REPOSITORY": str(repository)}
    system = System(folder, settings, own_roles(servers.postgres_url), tools, forked=forked)
    try:
        yield system
    finally:
        await asyncio.to_thread(system.close)


@pytest.fixture
async def system(
    tmp_path: Path, repository: Path, amqp_url: str, postgres_url: str, redis_url: str, redis_prefix: str
) -> AsyncIterator[System]:
    """Its processes come from the nursery."""
    servers = Servers(amqp_url, postgres_url, redis_url)
    async with prepared(tmp_path, repository, servers, redis_prefix, forked=True) as system:
        yield system


@pytest.fixture
async def typed_system(
    tmp_path: Path, repository: Path, amqp_url: str, postgres_url: str, redis_url: str, redis_prefix: str
) -> AsyncIterator[System]:
    """Each of its commands is typed as an operator does it."""
    servers = Servers(amqp_url, postgres_url, redis_url)
    async with prepared(tmp_path, repository, servers, redis_prefix, forked=False) as system:
        yield system


def tags(repository: Path) -> list[str]:
    return git(repository, "tag", "--list", "v1.2.*").splitlines()


def assert_happened_once(system: System, repository: Path, run_id: str = "r1", tag: str = TAG) -> None:
    """One tag on the head, one note, one decision, one operation a call, an intact audit chain, no dead letters."""
    assert git(repository, "rev-parse", f"{tag}^{{commit}}") == git(repository, "rev-parse", "HEAD")
    assert (repository / "releases" / f"{tag}.md").read_text().count("Fix rounding of totals") == 1
    with system.client() as client:
        receipt = client.run_receipt(run_id)
        assert receipt.status == "succeeded"
        assert receipt.audit.intact
        assert sorted(operation.tool for operation in receipt.operations) == ["create_tag", "publish_notes", "read_log"]
        assert {operation.status for operation in receipt.operations} == {"succeeded"}
        assert [decision.status for decision in receipt.decisions] == ["approved"]
        assert client.dead_letters().items == []


async def test_a_release_suspends_is_approved_over_http_and_happens_once(
    typed_system: System, repository: Path
) -> None:
    system = typed_system

    def job() -> None:
        system.start()
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        request = system.request_of("r1")
        assert [waiting.request_id for waiting in system.run("r1").waiting_for] == [request.request_id]
        assert tags(repository) == [], "nothing happens before somebody agrees"
        system.approve("r1")
        system.wait_for("r1", "succeeded")
        assert_happened_once(system, repository)
        assert tags(repository) == [TAG]
        assert system.open_requests() == []

    await asyncio.to_thread(job)


async def test_a_rejected_release_tags_nothing(system: System, repository: Path) -> None:
    def job() -> None:
        system.start()
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        request = system.request_of("r1")
        with system.client("alice") as client:
            shown = client.request(request.request_id)
            client.decide(
                request.request_id, decision="reject", request_hash=shown.request_hash, decision_id="d", reason="no"
            )
        system.wait_for("r1", "succeeded", "rejected", "failed")
        assert tags(repository) == []

    await asyncio.to_thread(job)


@pytest.mark.parametrize("victim", SERVICES)
async def test_a_service_that_is_killed_at_every_stage_is_started_again_and_the_release_happens_once(
    victim: str, system: System, repository: Path
) -> None:
    def kill() -> None:
        for each in system.of(victim):
            each.kill()

    def job() -> None:
        system.start()
        system.submit("r1", GOAL)
        kill()
        system.start(victim)
        system.wait_for("r1", "suspended")
        kill()
        assert system.of(victim) == []
        system.start(victim)
        system.approve("r1")
        kill()
        system.start(victim)
        system.wait_for("r1", "succeeded")
        assert_happened_once(system, repository)
        assert tags(repository) == [TAG]

    await asyncio.to_thread(job)


@case("L01")
async def test_every_service_drains_on_sigterm_and_the_next_ones_go_on(system: System, repository: Path) -> None:
    def job() -> None:
        first = system.start()
        system.submit("r1", GOAL)
        codes = {each.name: each.end() for each in first}
        assert codes == dict.fromkeys(SERVICES, 0)
        for each in first:
            events = [line["event"] for line in each.lines()]
            assert events[-1] in ("service.stopped", "gateway.stopped")
            assert not {"service.grace_over", "relay.flush_unfinished", "service.close_failed"} & set(events)
        system.start()
        system.wait_for("r1", "suspended")
        system.approve("r1")
        for each in system.of("tool-executor") + system.of("resume"):
            assert each.end() == 0
        system.start("tool-executor", "resume")
        system.wait_for("r1", "succeeded")
        assert_happened_once(system, repository)

    await asyncio.to_thread(job)


async def test_three_executors_share_the_work_and_each_release_happens_once(system: System, repository: Path) -> None:
    def job() -> None:
        system.start()
        system.start("tool-executor", "tool-executor", "resume", "resume", TOOLS_MAX="1")
        names = [f"r{number}" for number in range(12)]
        for number, name in enumerate(names):
            system.submit(name, f"Cut the release v1.2.{number}")
        for name in names:
            system.wait_for(name, "suspended")
        system.of("tool-executor")[0].kill()
        for name in names:
            system.approve(name)
        for name in names:
            system.wait_for(name, "succeeded")
        for number, name in enumerate(names):
            assert_happened_once(system, repository, name, f"v1.2.{number}")
        assert len(tags(repository)) == len(names)

    await asyncio.to_thread(job)


async def test_dispatcher_resume_and_planner_in_one_host(system: System, repository: Path) -> None:
    def job() -> None:
        everything = system.settings["DATABASE_URL"]
        system.start("dispatcher", HOSTS="resume,dispatcher,planner", DATABASE_URL=everything)
        system.start("tool-executor", "approval", "gateway")
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        system.approve("r1")
        system.wait_for("r1", "succeeded")
        assert_happened_once(system, repository)
        status, body = system.of("dispatcher")[0].probe()
        assert status == 200
        assert body["service"] == "resume+dispatcher+planner"

    await asyncio.to_thread(job)


async def test_a_check_ends_well_and_takes_nothing_from_any_queue(system: System, amqp_url: str) -> None:
    queues = [service for service in SERVICES if service != "gateway"]
    async with BrokerEnds(amqp_url) as ends:
        for queue in queues:
            await ends.put_raw(queue, b"not a message")
        for process in [system._start(service, {}, "--check") for service in SERVICES]:
            assert await asyncio.to_thread(process.process.wait, 60) == 0, process.describe()
            events = {line["event"] for line in process.lines()}
            assert "check.ok" in events
            assert not {"broker.link_up", "loop.ended", "message.parked"} & events
        channel = await (await ends.connection()).channel()
        for queue in queues:
            waiting = await (await channel.get_queue(f"placet.{queue}")).get(timeout=10)
            assert not waiting.headers.get("x-delivery-count"), "nobody has had it"
            await waiting.ack()


async def test_a_broker_without_the_topology_is_refused_with_what_to_do(system: System) -> None:
    def job() -> None:
        # As if this version needed a pool of executors that nobody has declared.
        settings = system.settings | {"TOOL_POOLS": "gpu"}
        other = System(system.folder, settings, system.own, system.environment)
        process = other._start("dispatcher", {})
        assert process.process.wait(60) == 78
        line = process.lines()[-1]
        assert line["code"] == "BROKER_MISMATCH"
        assert "deploy step" in line["what"]

    await asyncio.to_thread(job)
