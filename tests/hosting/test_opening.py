"""Proves that the referee is only an opinion from the start: one that may forget is not asked, and that is told."""

from __future__ import annotations

import logging

import pytest

from placet.adapters.redis import RedisArbiter
from placet.errors import Code, TerminalError
from placet.hosting.opening import Opening
from placet.settings import Settings

REFEREE = Settings(redis_url="redis://127.0.0.1:9/0")


async def test_a_referee_that_may_evict_keys_is_not_asked_and_nothing_is_kept_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def evicting(self: RedisArbiter) -> None:
        raise TerminalError(Code.SETTING_INVALID, "Redis evicts keys under maxmemory-policy allkeys-lru")

    monkeypatch.setattr(RedisArbiter, "check", evicting)
    opening = Opening("approval", REFEREE)
    with caplog.at_level(logging.ERROR, logger="placet.hosting"):
        assert await opening.arbiter() is None
    assert [record.message for record in caplog.records] == ["referee.not_used"]
    assert "allkeys-lru" in opening.notes["referee"]()["not_used"]


async def test_what_became_of_claims_is_told_while_a_referee_is_asked() -> None:
    opening = Opening("approval", REFEREE)
    arbiter = await opening.arbiter()
    assert arbiter is not None, "one that is away comes back"
    try:
        told = opening.notes["referee"]()
        assert {"breaker", "claimed", "busy", "skipped", "failures", "marks_lost"} <= set(told)
    finally:
        await arbiter.close()


async def test_an_address_that_is_none_is_a_setting_that_is_wrong() -> None:
    with pytest.raises(TerminalError):
        await Opening("approval", Settings.model_construct(redis_url="ftp://x")).arbiter()
