"""Decides nothing: the referee on Redis, by its public name."""

from placet.adapters.redis.arbiter import RedisArbiter

__all__ = ["RedisArbiter"]
