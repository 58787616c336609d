"""Decides how fast the queue on a broker is: messages a second by batch and pack, hops, questions, and their CPU.

`python -m tests.benchmarks.queue [--url amqp://…]` prints one line a measurement; without an address it starts a broker
of its own. A message is a submission of about 0.9 KB. CPU is this process's, which is publisher and consumer in one.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import os
import statistics
import time
from contextlib import suppress
from pathlib import Path

from placet.adapters.rabbitmq import RabbitDoor, RabbitInbox, RabbitOutlet, RabbitReplies, declare
from placet.messages import SubmitRun
from placet.runtime.ports import OutboxRow
from placet.topology import DISPATCHER, Topology, make_topology
from tests.contracts.queue_contract import a_row, an_envelope
from tests.live.kinds import Kind
from tests.live.servers import Home

TEXT = "x" * 650
TICKS_S = os.sysconf("SC_CLK_TCK")


def packing(pack_max: int) -> Topology:
    """The topology with another bound of messages in one AMQP message toward the dispatcher."""
    topology = make_topology()
    route = dataclasses.replace(topology.routes[DISPATCHER], pack_max=pack_max)
    return dataclasses.replace(topology, routes={**topology.routes, DISPATCHER: route})


def broker_cpu_s() -> float:
    """CPU of all brokers on this machine so far; 0 where that cannot be seen."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            if name == "beam.smp":
                total += sum(map(int, rest.split()[11:13]))
    return total / TICKS_S


@dataclasses.dataclass
class Ends:
    """Both ends of the dispatcher's queue."""

    outlet: RabbitOutlet
    inbox: RabbitInbox

    @classmethod
    async def open(cls, url: str, pack_max: int) -> Ends:
        """Connected."""
        topology = packing(pack_max)
        outlet = RabbitOutlet(url, topology, "bench")
        sources = [source for source in topology.sources[DISPATCHER] if not source.public]
        inbox = RabbitInbox(url, sources, "bench", outlet)
        outlet.start()
        inbox.start()
        await outlet.publish([a_row(0, TEXT)])
        await inbox.settle(await inbox.take(64), [])
        return cls(outlet, inbox)

    async def close(self) -> None:
        """Both connections."""
        await self.inbox.disconnect()
        await self.outlet.close()

    async def through(self, batches: list[list[OutboxRow]], publishers: int) -> None:
        """All of it published by so many relays at once, taken and settled in batches as they come."""
        waiting = iter(batches)

        async def publish() -> None:
            for batch in waiting:
                confirmed = await self.outlet.publish(batch)
                assert len(confirmed) == len(batch)

        async def consume() -> None:
            left = sum(map(len, batches))
            while left:
                taken = await self.inbox.take(64)
                await self.inbox.settle(taken, [])
                left -= len(taken)

        await asyncio.gather(consume(), *(publish() for _ in range(publishers)))


async def rate(url: str, *, batch: int, pack_max: int, publishers: int, messages: int) -> None:
    """Print messages a second."""
    ends = await Ends.open(url, pack_max)
    rows = [a_row(n, TEXT) for n in range(messages)]
    batches = [rows[at : at + batch] for at in range(0, messages, batch)]
    gc.collect()
    began, cpu, broker = time.perf_counter(), time.process_time(), broker_cpu_s()
    await ends.through(batches, publishers)
    took_s, cpu_s, broker_s = time.perf_counter() - began, time.process_time() - cpu, broker_cpu_s() - broker
    await ends.close()
    print(
        f"batch {batch:3}  pack {pack_max:3}  relays {publishers:2}  {messages / took_s:9,.0f} messages/s"
        f"  {cpu_s / messages * 1e6:6.0f} µs CPU a message here  {broker_s / messages * 1e6:6.0f} µs in the broker",
        flush=True,
    )


def percentiles(samples_s: list[float]) -> str:
    """p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(samples_s, n=100)
    return f"p50 {cuts[49] * 1e3:.2f} ms  p99 {cuts[98] * 1e3:.2f} ms"


async def hop(url: str, times: int, rest_s: float) -> None:
    """Print how long one message takes alone, after a rest."""
    ends = await Ends.open(url, 32)
    samples_s = []
    for n in range(times):
        await asyncio.sleep(rest_s)
        began = time.perf_counter()
        publishing = asyncio.ensure_future(ends.outlet.publish([a_row(n, TEXT)]))
        taken = await ends.inbox.take(64)
        samples_s.append(time.perf_counter() - began)
        await ends.inbox.settle(taken, [])
        await publishing
    await ends.close()
    print(f"one message alone, {rest_s * 1e3:.0f} ms of rest before it: {percentiles(samples_s)}", flush=True)


async def questions(url: str, asked: int, at_once: int) -> None:
    """Print how fast a door's questions are answered by a service that does nothing else."""
    ends = await Ends.open(url, 32)
    replies, door = RabbitReplies(url, "bench"), RabbitDoor(url, make_topology(), "bench")
    replies.start()
    door.start()

    async def answer() -> None:
        while taken := await ends.inbox.take(64):
            await ends.inbox.settle(taken, [])
            for delivery in taken:
                await replies.send(delivery.envelope.reply_to or "", "{}")

    message = an_envelope(1, TEXT).message
    assert isinstance(message, SubmitRun)
    numbers, samples_s = iter(range(asked)), []

    async def ask() -> None:
        for number in numbers:
            began = time.perf_counter()
            assert await door.ask(message, message_id=f"m{number}", timeout_ms=30_000) == "{}"
            samples_s.append(time.perf_counter() - began)

    answering = asyncio.ensure_future(answer())
    await door.ask(message, message_id="first", timeout_ms=30_000)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(ask() for _ in range(at_once)))
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    answering.cancel()
    await door.close()
    await replies.close()
    await ends.close()
    print(
        f"questions, {at_once:3} at once: {asked / took_s:8,.0f}/s  {cpu_s / asked * 1e6:6.0f} µs CPU each here  "
        f"{percentiles(samples_s)}",
        flush=True,
    )


async def measure(url: str, scale: float) -> None:
    """Print everything."""
    await declare(url, make_topology(), wait_ms=10_000)
    for batch, pack_max, publishers in ((1, 1, 1), (1, 32, 1), (1, 32, 64), (64, 1, 1), (64, 32, 1), (512, 32, 1)):
        messages = round(scale * (2_000 if batch == 1 and publishers == 1 else 20_000))
        await rate(url, batch=batch, pack_max=pack_max, publishers=publishers, messages=messages)
    for rest_s in (0.0, 0.02):
        await hop(url, round(300 * scale), rest_s)
    for at_once in (1, 64):
        await questions(url, round((500 if at_once == 1 else 10_000) * scale), at_once)


def main() -> None:
    """As the command line says."""
    arguments = argparse.ArgumentParser(description="Measure the queue on RabbitMQ.")
    arguments.add_argument("--url", help="a virtual host that may be filled; without it a private broker is started")
    arguments.add_argument("--scale", type=float, default=1.0, help="how many messages, compared with the usual number")
    chosen = arguments.parse_args()
    if chosen.url:
        asyncio.run(measure(chosen.url, chosen.scale))
        return
    with Home() as home:
        server = home.own(Kind.RABBITMQ)
        asyncio.run(measure(server.url, chosen.scale))
        server.close()


if __name__ == "__main__":
    main()
