"""Decides which kinds of server the live tests know, and how each is named outside."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """A kind of server."""

    RABBITMQ = "rabbitmq"
    REDIS = "redis"
    POSTGRES = "postgres"


class Names(NamedTuple):
    """What a kind of server is called in each place it may come from."""

    variable: str
    """The environment variable with the address of one that is up."""
    port: int
    """The port within its container, and the default one in an address."""
    image: str
    """The image, as in docker-compose.yml."""
    packages: tuple[str, ...]
    """Debian's."""


NAMES = {
    Kind.RABBITMQ: Names("PLACET_TEST_AMQP_URL", 5672, "rabbitmq:4-management", ("rabbitmq-server",)),
    Kind.REDIS: Names("PLACET_TEST_REDIS_URL", 6379, "redis:8", ("redis-server",)),
    Kind.POSTGRES: Names("PLACET_TEST_POSTGRES_URL", 5432, "postgres:17", ("postgresql",)),
}
MANAGEMENT_VARIABLE = "PLACET_TEST_AMQP_MANAGEMENT_URL"
MANAGEMENT_PORT = 15672


class MissingServerError(Exception):
    """No such server can be had here; the message says what is missing and how to get it."""
