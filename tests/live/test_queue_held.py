"""Proves that what is held here for long is published anew to where such messages go, whatever queue it came from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from placet.adapters.rabbitmq import RabbitInbox
from placet.adapters.rabbitmq import inbox as inbox_module
from placet.topology import TOOL_EXECUTOR
from tests.contracts.queue_contract import PATIENCE_S, collect, ids
from tests.live.broker_ends import BrokerEnds, a_cancel


@pytest.fixture
async def ends(amqp_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerEnds]:
    monkeypatch.setattr(inbox_module, "HOLD_S_MAX", 0.3)
    monkeypatch.setattr(inbox_module, "LOOK_S", 0.1)
    async with BrokerEnds(amqp_url) as ends:
        yield ends


async def passed_on(inbox: RabbitInbox) -> None:
    """The store is away for so long that the inbox gives everything away, once."""
    async with asyncio.timeout(PATIENCE_S):
        while inbox._passing_on is None:
            taking = asyncio.ensure_future(inbox.take(1))  # it waits for ever once everything has been given away
            await asyncio.wait({taking}, timeout=0.1)
            if not taking.cancel():
                await inbox.settle([], taking.result())
        await inbox._passing_on


async def test_a_signal_goes_to_the_queue_of_signals(ends: BrokerEnds) -> None:
    outlet = ends.outlet()
    inbox = ends.inbox(TOOL_EXECUTOR, outlet=outlet)
    await outlet.publish([a_cancel(n) for n in range(3)])
    await inbox.settle([], await collect(inbox, 3))
    await passed_on(inbox)
    assert outlet.trouble is None, "no destination refuses them"
    assert sorted(set(ids(await collect(inbox, 3)))) == [f"cancel_{n}" for n in range(3)]
