"""Decides what of a server one test has to itself: a virtual host, a database, a key prefix."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import redis

from tests.live.rabbitmq_server import Management

_NUMBERS = count(1)


def fresh_name() -> str:
    """A name that no other test, test process or run has: letters, digits and underscores."""
    return f"placet_{os.getpid()}_{os.urandom(3).hex()}_{next(_NUMBERS)}"


@contextmanager
def vhost(url: str, management: Management) -> Iterator[str]:
    """The address of a new virtual host; gone afterwards with all its queues."""
    name = fresh_name()
    management.add_vhost(name)
    try:
        yield urlunsplit(urlsplit(url)._replace(path="/" + quote(name, safe="")))
    finally:
        management.delete_vhost(name)


@asynccontextmanager
async def database(url: str, *, template: str = "template1") -> AsyncIterator[str]:
    """The address of a new database, empty or as its template; dropped afterwards, whoever is still connected."""
    name = fresh_name()
    await _execute(url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        yield urlunsplit(urlsplit(url)._replace(path="/" + name))
    finally:
        await _execute(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def key_prefix(url: str) -> Iterator[str]:
    """A prefix for keys; every key that contains it is deleted afterwards."""
    prefix = fresh_name()
    yield prefix
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(match=f"*{prefix}*", count=1_000))
        if keys:
            client.unlink(*keys)
