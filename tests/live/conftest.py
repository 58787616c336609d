"""Decides which servers a live test gets. One that cannot be had is a named skip, in CI a failure.

Shared by the run: `amqp_url` (a virtual host of its own), `postgres_url` (a database), `redis_url` and `redis_prefix`.
To be harmed: `own_rabbitmq`, `own_redis`, `own_postgres`, `own_cluster`; whole again before each test. All of these
block while they start or die: in an async test that must go on meanwhile, use asyncio.to_thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import pytest

from tests.live import spaces
from tests.live.dealing import dealt
from tests.live.kinds import Kind, MissingServerError
from tests.live.rabbitmq_server import PrivateCluster
from tests.live.servers import Access, Home, OwnServer

T = TypeVar("T")


def need(get: Callable[[], T]) -> T:
    """What `get` returns; where it lacks a server, the test is skipped, and fails in CI."""
    try:
        return get()
    except MissingServerError as error:
        if os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}:
            pytest.fail(f"{error}\nA missing server is a failure in CI.", pytrace=False)
        pytest.skip(str(error))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which all processes are done at the same time."""
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.fixture(scope="session")
def home() -> Iterator[Home]:
    """The run's servers. They end with the run's first process, of which the others are children."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        with Home() as alone:
            yield alone
    else:
        yield Home(run, owner=os.getppid())


# ── shared by the run ──────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def rabbitmq(home: Home) -> Access:
    """The run's RabbitMQ, for what concerns a whole broker."""
    return need(lambda: home.shared(Kind.RABBITMQ))


@pytest.fixture(scope="session")
def redis_server(home: Home) -> Access:
    """The run's Redis."""
    return need(lambda: home.shared(Kind.REDIS))


@pytest.fixture(scope="session")
def postgres(home: Home) -> Access:
    """The run's PostgreSQL."""
    return need(lambda: home.shared(Kind.POSTGRES))


@pytest.fixture
def amqp_url(rabbitmq: Access) -> Iterator[str]:
    """An empty virtual host."""
    with spaces.vhost(rabbitmq.url, rabbitmq.management) as url:
        yield url


@pytest.fixture
async def postgres_url(postgres: Access) -> AsyncIterator[str]:
    """An empty database, as postgresql://…"""
    async with spaces.database(postgres.url) as url:
        yield url


@pytest.fixture
def redis_url(redis_server: Access) -> str:
    """The run's Redis, in which only keys with `redis_prefix` are the test's."""
    return redis_server.url


@pytest.fixture
def redis_prefix(redis_server: Access) -> Iterator[str]:
    """What every key of the test contains."""
    with spaces.key_prefix(redis_server.url) as prefix:
        yield prefix


# ── to be harmed ───────────────────────────────────────────────────────────────────────


class Pool:
    """Servers of one test process, one of a kind: started when first asked for, healed for each test."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._servers: dict[Kind, OwnServer] = {}
        self._cluster: PrivateCluster | None = None

    def take(self, kind: Kind) -> OwnServer:
        """Running, whatever the last test did to it."""
        if kind not in self._servers:
            self._servers[kind] = self._home.own(kind)
        self._servers[kind].heal()
        return self._servers[kind]

    def cluster(self) -> PrivateCluster:
        """Three brokers; they need the installed program."""
        if self._cluster is None:
            self._cluster = self._home.cluster()
        self._cluster.heal()
        return self._cluster

    def close(self) -> None:
        """End them all."""
        for server in self._servers.values():
            server.close()
        if self._cluster is not None:
            self._cluster.close()


@pytest.fixture(scope="session")
def pool(home: Home) -> Iterator[Pool]:
    """The servers that this test process may harm."""
    with_all = Pool(home)
    yield with_all
    with_all.close()


@pytest.fixture
def own_rabbitmq(pool: Pool) -> OwnServer:
    """A broker to kill, freeze or wipe; `spaces.vhost(own_rabbitmq.url, own_rabbitmq.management)` for queues."""
    return need(lambda: pool.take(Kind.RABBITMQ))


@pytest.fixture
def own_postgres(pool: Pool) -> OwnServer:
    """A PostgreSQL to kill, freeze or wipe; `spaces.database(own_postgres.url)` for tables."""
    return need(lambda: pool.take(Kind.POSTGRES))


@pytest.fixture
def own_redis(pool: Pool) -> OwnServer:
    """A Redis to kill, freeze or wipe, empty and with its first settings."""
    server = need(lambda: pool.take(Kind.REDIS))
    server.wipe()
    return server


@pytest.fixture
def own_cluster(pool: Pool) -> PrivateCluster:
    """Three brokers in one cluster, any of which may be killed or frozen."""
    return need(pool.cluster)
