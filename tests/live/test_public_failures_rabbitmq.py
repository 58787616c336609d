"""Proves that what broke with RabbitMQ elsewhere does not break here: the numbered cases that no other test covers."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from placet.adapters.memory import MemoryStore
from placet.runtime.ports import OutboxRow, Unit
from placet.runtime.relay import Relay
from placet.topology import APPROVALS, DISPATCHER, PLANNER, RESUME, TOOL_EXECUTOR
from tests.builders import T0
from tests.cases import case
from tests.contracts.queue_contract import an_envelope, collect, ids
from tests.contracts.units import ManualClock
from tests.live import hard_work, spaces
from tests.live.broker_ends import BrokerEnds, eventually
from tests.live.hard_work import BLOCK_S, calls
from tests.live.rabbitmq_server import PrivateRabbitMQ
from tests.live.servers import OwnServer
from tests.live.system import READY_S, System, persist, wait_until
from tests.live.test_queue_faults import publish_all
from tests.live.whole import Servers, WholeSystem, whole_system

SERVED = (DISPATCHER, RESUME, PLANNER, TOOL_EXECUTOR, APPROVALS)
RETURN_S = 30
RESTARTS = 3
"""As many as the time of a test run bears; the case asks for ten."""
PATIENCE_MS = 1_500
"""Of a broker of these tests, for an acknowledgement."""


def goal(system: System, team: str, run_id: str) -> None:
    """Start a run of a team."""
    with system.client() as client:
        persist(lambda: client.submit_run(team, run_id=run_id, goal="Work hard"))


@asynccontextmanager
async def hard_working(tmp_path: Path, servers: Servers, *, watched: bool = False) -> AsyncIterator[WholeSystem]:
    """The whole system with the application of these tests, prepared. `watched`: as WholeSystem."""
    (tmp_path / "calls").mkdir()
    async with whole_system(tmp_path, servers, watched=watched) as system:
        system.app = "tests.live.hard_work:app"
        system.environment[hard_work.FOLDER] = str(tmp_path / "calls")
        yield system


# ── the broker goes and comes ──────────────────────────────────────────────────────────


@case("P132")
async def test_after_every_restart_there_is_a_consumer_on_every_queue_again_and_it_gets_messages(
    own_rabbitmq: PrivateRabbitMQ,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    at = random.Random(seed)
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        async with BrokerEnds(url) as ends:
            inboxes = {service: ends.inbox(service) for service in SERVED}
            wanted = sorted(source.queue for service in SERVED for source in ends.topology.sources[service])
            wanted = [queue for queue in wanted if ".ingress." not in queue]
            vhost = quote(urlsplit(url).path[1:], safe="")

            async def one_consumer_each() -> bool:
                try:
                    found = await asyncio.to_thread(own_rabbitmq.management.call, f"consumers/{vhost}")
                except OSError:
                    return False  # the API comes up later than the broker
                return sorted(each["queue"]["name"] for each in found) == wanted

            outlet = ends.outlet(patience_ms=1_000)
            for number in range(RESTARTS):
                await asyncio.sleep(at.random())  # the moment is the fault
                await asyncio.to_thread(own_rabbitmq.restart)
                await eventually(one_consumer_each, RETURN_S)
                for service, inbox in inboxes.items():
                    row = OutboxRow(f"{service}-{number}", service, "r", "run.submit", 0, an_envelope(number).encode())
                    await publish_all(outlet, [row], RETURN_S)
                    taken = await collect(inbox, 1)
                    assert ids(taken) == [f"msg_{number}"]
                    await inbox.settle(taken, [])


@case("P134", "P144")
async def test_a_decision_whose_way_to_the_run_was_deleted_arrives_once_the_way_is_there_again(
    tmp_path: Path, own_rabbitmq: PrivateRabbitMQ, postgres_url: str, redis_url: str
) -> None:
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        # Watched, for its claims of seconds: what the deleted queue held is published again when its claim lapses.
        async with hard_working(tmp_path, Servers(url, postgres_url, redis_url), watched=True) as system:

            def job() -> None:
                system.start()
                goal(system, "block_a_thread", "r1")
                system.wait_for("r1", "suspended")
                vhost = quote(urlsplit(url).path[1:], safe="")
                own_rabbitmq.management.call(f"queues/{vhost}/placet.resume", "DELETE")
                system.approve("r1")
                (resume,) = system.of("resume")
                wait_until(lambda: resume.probe()[0] == 503, RETURN_S, resume.describe)
                assert calls(tmp_path / "calls", "r1") == []
                system.deploy("topology", "declare")
                system.wait_for("r1", "succeeded")
                assert calls(tmp_path / "calls", "r1") == ["block_a_thread"]
                wait_until(lambda: resume.probe()[0] == 200, RETURN_S, resume.describe)

            await asyncio.to_thread(job)


@case("P151")
async def test_services_that_start_before_their_servers_are_ready_soon_after_them_and_nobody_restarts_them(
    tmp_path: Path, own_rabbitmq: PrivateRabbitMQ, own_postgres: OwnServer, own_redis: OwnServer
) -> None:
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        async with (
            spaces.database(own_postgres.url) as database,
            hard_working(tmp_path, Servers(url, database, own_redis.url)) as system,
        ):

            def job() -> None:
                for server in (own_rabbitmq, own_postgres, own_redis):
                    server.kill()
                started = [system._start(name, {}) for name in ("dispatcher", "planner", "approval", "gateway")]
                started += [system._start(name, {}) for name in ("resume", "tool-executor")]
                waiting = [each for each in started if each.name != "gateway"]
                wait_until(lambda: all(each.probe()[0] == 503 for each in waiting), READY_S)
                for server in (own_redis, own_postgres, own_rabbitmq):  # each comes later than the one before
                    server.start()
                for each in started:
                    each.wait_until_ready()
                goal(system, "help_out", "r1")
                system.wait_for("r1", "succeeded")

            await asyncio.to_thread(job)


# ── nothing is held while somebody works or thinks ─────────────────────────────────────


@asynccontextmanager
async def impatient(server: PrivateRabbitMQ) -> AsyncIterator[None]:
    """The broker closes the channel of whoever holds a message for longer than PATIENCE_MS."""

    async def set_ms(**values_ms: int) -> None:
        settings = " ".join(f"application:set_env(rabbit, {name}, {value})," for name, value in values_ms.items())
        await asyncio.to_thread(server.ctl, "eval", f"{settings} ok.")

    await set_ms(consumer_timeout=PATIENCE_MS, channel_tick_interval=500)
    try:
        yield
    finally:
        await set_ms(consumer_timeout=1_800_000, channel_tick_interval=60_000)


def link_losses(system: System, *names: str) -> Sequence[dict[str, Any]]:
    return [
        line
        for each in system.running
        if each.name in names
        for line in each.lines()
        if line["event"] == "broker.link_down"
    ]


@case("P136", "P147")
@pytest.mark.parametrize("tool", ["block_a_thread", "block_the_loop"])
async def test_a_tool_that_stands_still_past_every_patience_of_the_broker_runs_once(
    tool: str, tmp_path: Path, own_rabbitmq: PrivateRabbitMQ, postgres_url: str, redis_url: str
) -> None:
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as url:
        servers = Servers(f"{url}?heartbeat=1", postgres_url, redis_url)
        async with impatient(own_rabbitmq), hard_working(tmp_path, servers) as system:
            await asyncio.to_thread(work_and_wait, system, tool, tmp_path / "calls")


def work_and_wait(system: System, tool: str, folder: Path) -> None:
    system.start()
    system.start("tool-executor")
    goal(system, tool, "r1")
    system.wait_for("r1", "suspended")
    over = threading.Event()
    over.wait(3 * PATIENCE_MS / 1_000)  # a person thinks: longer than the broker would let us hold anything
    assert link_losses(system, "dispatcher", "resume", "approval", "planner", "tool-executor") == []
    system.approve("r1")
    system.wait_for("r1", "succeeded")
    assert calls(folder, "r1") == [tool]
    executors = link_losses(system, "tool-executor")
    assert not any("timeout" in str(line["reason"]).lower() and "ack" in str(line["reason"]) for line in executors)
    if tool == "block_a_thread":
        assert executors == [], f"it stood still for {BLOCK_S} s, and nobody else did"
    else:
        assert executors, f"{BLOCK_S} s are longer than the broker waits for a heartbeat"


# ── what kills, and what waits ─────────────────────────────────────────────────────────


@case("P138")
async def test_a_tool_that_kills_its_executor_takes_one_with_it_and_a_person_is_asked_while_all_others_run(
    tmp_path: Path, amqp_url: str, postgres_url: str, redis_url: str
) -> None:
    async with hard_working(tmp_path, Servers(amqp_url, postgres_url, redis_url)) as system:

        def job() -> None:
            system.start()
            ended = threading.Event()
            supervisor = threading.Thread(target=keep_one_executor, args=(system, ended))
            supervisor.start()
            try:
                goal(system, "kill", "killer")
                for number in range(5):
                    goal(system, "help_out", f"r{number}")
                for number in range(5):
                    system.wait_for(f"r{number}", "succeeded")
                system.wait_for("killer", "suspended")
                question = system.request_of("killer")
                killed = [each for each in system.running if each.process.poll() == -signal.SIGKILL]
            finally:
                ended.set()
                supervisor.join()
            assert calls(tmp_path / "calls", "killer") == ["kill"], "nobody knows what it did: it is not run again"
            assert [each.name for each in killed] == ["tool-executor"], (
                "and took one executor with it, not each next one"
            )
            assert question.scope == "operation_outcome", question

        await asyncio.to_thread(job)


def keep_one_executor(system: System, ended: threading.Event) -> None:
    """As an operator's supervisor does: start it again whenever it is dead."""
    while not ended.wait(0.2):
        if not system.of("tool-executor"):
            system._start("tool-executor", {})


@case("P142")
async def test_a_long_delay_does_not_hold_up_a_short_one_behind_it(amqp_url: str) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with BrokerEnds(amqp_url) as ends:
        inbox, relay = ends.inbox(), Relay(store, ends.outlet())
        for number, wait_ms in ((1, 600_000), (2, 5_000)):
            body = an_envelope(number).encode()
            row = OutboxRow(f"msg_{number}", DISPATCHER, "run", "run.submit", T0 + wait_ms, body)
            await store.commit([Unit(outbox=[row])])
        assert await relay.turn() == 5_000
        clock.at_ms += 5_000
        await relay.turn()
        assert ids(await collect(inbox, 1)) == ["msg_2"]
        await store.commit([Unit(consumed=["msg_2"])])
        clock.at_ms += 595_000
        await relay.turn()
        assert "msg_1" in ids(await collect(inbox, 1))
