"""Proves that every accepted decision is consumed within 30 s of the broker's return, whatever the broker went through.

Many runs wait for a person; while their decisions are being accepted the broker is restarted, wiped, short of memory,
or loses one of its three nodes. The services are the real programs with their real bounds, and none is restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import pytest

from tests.live import spaces
from tests.live.crowd import LOOK_S, Crowd
from tests.live.rabbitmq_server import PrivateCluster, PrivateRabbitMQ
from tests.live.system import SERVICES
from tests.live.test_queue_faults import memory_alarm
from tests.live.whole import Servers, WholeSystem, whole_system

RETURN_S = 30.0
"""Within this time after the broker's return everything accepted is consumed (issue: Done when)."""
RUNS = 40
FIRST = 8
"""Decisions that are accepted before the fault."""
PACE_S = 0.15
"""Between two decisions, so that whatever the broker goes through falls between them."""
ALARM_S = 3.0
LOST = 3
"""Messages that are in the queue when it is lost."""

Fault = Callable[[PrivateRabbitMQ, WholeSystem], Awaitable[None]]


@dataclass
class Consumed:
    """When each run was seen to have gone on, by this process's monotonic clock."""

    crowd: Crowd
    run_ids: list[str]
    at_s: dict[str, float] = field(default_factory=dict)

    async def watch(self) -> None:
        """Until all have."""
        while len(self.at_s) < len(self.run_ids):
            await asyncio.sleep(LOOK_S)
            for run_id, status in (await self.crowd.statuses()).items():
                if run_id in self.run_ids and status != "suspended":
                    self.at_s.setdefault(run_id, time.monotonic())

    def late_s(self, return_s: float) -> dict[str, float]:
        """How long after the broker's return, or after its own decision where that was later, each run went on."""
        accepted_s = {self.crowd.receipts[decision_id].run_id: at for decision_id, at in self.crowd.accepted_s.items()}
        return {run_id: at - max(return_s, accepted_s.get(run_id, 0.0)) for run_id, at in self.at_s.items()}


async def restarted(broker: PrivateRabbitMQ, system: WholeSystem) -> None:
    """A crash and a recovery."""
    await asyncio.to_thread(broker.kill, at_once=True)
    await asyncio.to_thread(broker.start)


async def wiped(broker: PrivateRabbitMQ, system: WholeSystem) -> None:
    """A crash that loses every message and queue, wake-ups that nobody has taken yet among them; then the deploy step.

    So that there are some, whoever takes them is away from before until after.
    """
    for each in system.of("resume"):
        each.kill()
    await queued(system.settings["AMQP_URL"], "placet.resume", LOST)
    await asyncio.to_thread(broker.kill, at_once=True)
    await asyncio.to_thread(broker.wipe)
    broker.management.add_vhost(urlsplit(system.settings["AMQP_URL"]).path[1:])
    await asyncio.to_thread(system.deploy, "topology", "declare")
    await asyncio.to_thread(system.start, "resume")


async def queued(url: str, queue: str, messages: int) -> None:
    """Until so many AMQP messages wait in a queue."""
    connection = await aio_pika.connect(url)
    async with connection, asyncio.timeout(RETURN_S):
        channel = await connection.channel()
        while True:
            declared = await channel.declare_queue(queue, passive=True)
            if (declared.declaration_result.message_count or 0) >= messages:
                return
            await asyncio.sleep(LOOK_S)


async def alarmed(broker: PrivateRabbitMQ, system: WholeSystem) -> None:
    """No memory left: the broker stops reading from whoever publishes."""
    async with memory_alarm(broker):
        await asyncio.sleep(ALARM_S)  # how long it lasts is the fault


async def one_dies(node: PrivateRabbitMQ) -> None:
    """A third of the queues has to find another leader."""
    await asyncio.to_thread(node.kill, at_once=True)


async def decided_over(crowd: Crowd, run_ids: list[str], fault: Callable[[], Awaitable[None]]) -> None:
    """All wait for a person, are decided while the fault lasts, and go on soon after it; each effect happens once."""
    crowd.may_decide.clear()
    await asyncio.gather(*(crowd.submit(run_id) for run_id in run_ids))
    await crowd.reached(run_ids, {"suspended"})
    consumed = Consumed(crowd, run_ids)
    watching = asyncio.create_task(consumed.watch())
    crowd.may_decide.set()
    while len(crowd.accepted_s) < FIRST:
        await crowd.another_accepted()
    await fault()
    return_s = time.monotonic()
    early = len(crowd.accepted_s)
    waiting = sum(status == "suspended" for status in (await crowd.statuses()).values())
    ends = await crowd.ended(run_ids)
    await watching
    await crowd.all_answered()
    late_s = consumed.late_s(return_s)
    print(f"{early} accepted and {waiting} runs waiting at the return; {max(late_s.values()):.1f} s later all went on")
    assert waiting, "the fault came too late"
    assert set(ends.values()) == {"succeeded"}
    for run_id in run_ids:
        await crowd.assert_happened_once(run_id)
    await crowd.assert_answers_hold()
    await crowd.assert_nothing_parked()
    assert max(late_s.values()) < RETURN_S, late_s


@pytest.mark.parametrize("fault", [restarted, wiped, alarmed], ids=["restarted", "wiped", "short of memory"])
async def test_decisions_accepted_while_the_broker_fails_are_consumed_soon_after_its_return(
    fault: Fault, tmp_path: Path, own_rabbitmq: PrivateRabbitMQ, postgres_url: str, redis_url: str, redis_prefix: str
) -> None:
    with spaces.vhost(own_rabbitmq.url, own_rabbitmq.management) as amqp_url:
        servers = Servers(amqp_url, postgres_url, redis_url)
        async with whole_system(tmp_path, servers, environment=redis_prefix) as system:
            await asyncio.to_thread(system.start)
            async with Crowd(system, pace_s=PACE_S) as crowd:
                await decided_over(crowd, [f"r{n}" for n in range(RUNS)], lambda: fault(own_rabbitmq, system))


async def test_one_of_three_brokers_dies_while_decisions_are_accepted_and_all_go_on(
    tmp_path: Path, own_cluster: PrivateCluster, postgres_url: str, redis_url: str, redis_prefix: str
) -> None:
    first, *_ = own_cluster.nodes
    with spaces.vhost(first.url, first.management) as amqp_url:
        servers = Servers(amqp_url, postgres_url, redis_url)
        async with whole_system(tmp_path, servers, environment=redis_prefix) as system:
            vhost = urlsplit(amqp_url).path[1:]
            # Some services are connected to the node that dies, and go to another one.
            nodes = " ".join(node.url_of(vhost) for node in own_cluster.nodes)
            for name in SERVICES:
                system.own[name] = system.own[name] | {"AMQP_URL": nodes}
            await asyncio.to_thread(system.start)
            async with Crowd(system, pace_s=PACE_S) as crowd:
                await decided_over(crowd, [f"r{n}" for n in range(RUNS)], lambda: one_dies(first))
            await asyncio.to_thread(own_cluster.heal)
