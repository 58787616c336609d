"""Decides in which order a process reaches its servers, how long it waits for them, and what it checks before it works.

Each check is one line in the log. Drivers are imported where they are used: a service needs only its own installed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from placet.errors import RetryableError, TerminalError
from placet.runtime.process import backoff_ms
from placet.settings import Settings
from placet.topology import Topology, make_topology

if TYPE_CHECKING:
    from placet.adapters.redis import RedisArbiter
    from placet.adapters.sql.postgres import PostgresStore

log = logging.getLogger("placet.hosting")

T = TypeVar("T")


class Opening:
    """Reaches the servers of one process, within the time that is set for all of them together."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings
        self.notes: dict[str, Callable[[], Any]] = {}
        """What the probes tell of what was opened; it makes nobody unready."""
        self._until_s = asyncio.get_running_loop().time() + settings.start_timeout_ms / 1_000

    async def store(self) -> PostgresStore:
        """The store, its schema looked at. Raises RetryableError(STORE_UNAVAILABLE), ContractError(CHECKPOINT_*)."""
        from placet.adapters.sql.postgres import PostgresStore

        url = self._settings.database_url or ""
        store = await self._reached("database", lambda: PostgresStore.open(url, name=f"placet {self._name}"))
        log.info("check.ok", extra={"check": "database", **store.describe()})
        return store

    async def topology(self) -> Topology:
        """What the broker holds, looked at. Raises RetryableError BROKER_UNAVAILABLE, TerminalError BROKER_MISMATCH."""
        from placet.adapters.rabbitmq import verify

        topology = make_topology(self._settings.tool_pools)
        url = self._settings.amqp_url or ""
        await self._reached("broker", lambda: verify(url, topology))
        log.info("check.ok", extra={"check": "broker", "topology": topology.marker()})
        return topology

    async def arbiter(self) -> RedisArbiter | None:
        """The referee, if one is set. Raises TerminalError(SETTING_INVALID) for an address that is none.

        One that is away is no reason not to start, and neither is one that may forget what it promised, which is not
        asked then: everything works without it, only slower.
        """
        url = self._settings.redis_url
        if url is None:
            what = "PLACET_REDIS_URL is not set: the database alone sorts out races"
            log.warning("check.note", extra={"check": "redis", "what": what})
            return None
        from placet.adapters.redis import RedisArbiter

        arbiter = RedisArbiter(url, environment=self._settings.environment)
        try:
            await arbiter.check()
        except TerminalError as error:
            await arbiter.close()
            reason = error.message
            log.error("referee.not_used", extra={"code": error.code.value, "what": reason})
            self.notes["referee"] = lambda: {"not_used": reason}
            return None
        except BaseException:
            await arbiter.close()
            raise
        self.notes["referee"] = arbiter.report
        log.info("check.ok", extra={"check": "redis", **await arbiter.describe()})
        return arbiter

    async def _reached(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        return await reached(f"{self._name} {what}", what, attempt, self._until_s)


async def reached(name: str, what: str, attempt: Callable[[], Awaitable[T]], until_s: float) -> T:
    """What the attempt comes to, made again as long as a server is away, until that instant of the loop's clock.

    `name` spreads the attempts of several processes. Raises the last attempt's RetryableError.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        try:
            return await attempt()
        except RetryableError as error:
            failures += 1
            delay_s = backoff_ms(name, failures) / 1_000
            if loop.time() + delay_s > until_s:
                raise
            log.warning("check.waits", extra={"check": what, "code": error.code.value, "what": error.message})
            await asyncio.sleep(delay_s)
