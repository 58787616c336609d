"""Decides what every referee promises: one claim at a time, never a last word, and nothing to race for once decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from placet.limits import BATCH_MAX, CLAIM_LEASE_MS
from placet.runtime.ports import Arbiter, Mark


class ArbiterContract:
    """Subclasses say how to come to a referee that all of a test's processes share."""

    async def make(self) -> Arbiter:
        """As one more process would have it."""
        raise NotImplementedError

    async def told(self, arbiter: Arbiter) -> None:
        """Wait until the referee has heard what `finish` said."""

    async def pass_ms(self, time_ms: int) -> None:
        """Let time go by."""
        raise NotImplementedError

    async def close(self, arbiter: Arbiter) -> None:
        """End it."""

    @pytest.fixture
    async def arbiters(self) -> AsyncIterator[tuple[Arbiter, Arbiter]]:
        """Two processes, one referee."""
        mine, theirs = await self.make(), await self.make()
        yield mine, theirs
        for arbiter in (mine, theirs):
            await self.close(arbiter)

    async def test_a_claim_is_exclusive_until_its_lease_ends(self, arbiters):
        mine, theirs = arbiters
        assert list(await mine.claim(["a", "b"], "n-1")) == [True, True]
        assert list(await theirs.claim(["a", "c"], "n-2")) == [False, True]
        await self.pass_ms(CLAIM_LEASE_MS)
        assert list(await theirs.claim(["a"], "n-3")) == [True]

    async def test_one_may_claim_again_what_one_holds(self, arbiters):
        mine, theirs = arbiters
        await mine.claim(["a"], "n-1")
        assert list(await mine.claim(["a", "b"], "n-1")) == [True, True]
        assert list(await theirs.claim(["a", "b"], "n-2")) == [False, False]

    async def test_what_was_not_decided_is_free_for_the_next_one(self, arbiters):
        mine, theirs = arbiters
        await mine.claim(["a"], "n-1")
        await mine.finish({"a": Mark.FREE}, "n-1")
        await self.told(mine)
        assert list(await theirs.claim(["a"], "n-2")) == [True]
        assert list(await mine.claim(["a"], "n-3")) == [False]

    async def test_only_its_owner_frees_a_claim(self, arbiters):
        mine, theirs = arbiters
        await mine.claim(["a"], "n-1")
        assert list(await theirs.claim(["a"], "n-2")) == [False]
        await theirs.finish({"a": Mark.FREE}, "n-2")
        await self.told(theirs)
        assert list(await theirs.claim(["a"], "n-3")) == [False]

    @pytest.mark.parametrize("mark", [Mark.FINAL, Mark.SHARED])
    async def test_what_is_past_racing_bars_nobody_from_the_facts(self, arbiters, mark):
        mine, theirs = arbiters
        await mine.claim(["a"], "n-1")
        await mine.finish({"a": mark}, "n-1")
        await self.told(mine)
        assert list(await theirs.claim(["a"], "n-2")) == [True]
        assert list(await mine.claim(["a"], "n-3")) == [True], "two at once"

    async def test_a_decision_that_the_referee_never_saw_may_be_told_all_the_same(self, arbiters):
        mine, theirs = arbiters
        await mine.finish({"a": Mark.FINAL, "b": Mark.FREE}, "n-1")
        await self.told(mine)
        assert list(await theirs.claim(["a", "b"], "n-2")) == [True, True]
        assert list(await mine.claim(["a", "b"], "n-3")) == [True, False]

    async def test_of_a_batch_only_what_another_holds_is_busy(self, arbiters):
        mine, theirs = arbiters
        keys = [f"key-{n}" for n in range(BATCH_MAX)]
        await theirs.claim(["key-17"], "n-2")
        assert list(await mine.claim(keys, "n-1")) == [key != "key-17" for key in keys]
        assert list(await theirs.claim(keys, "n-3")) == [False] * len(keys)

    async def test_of_two_who_race_for_a_key_exactly_one_is_granted_it(self, arbiters):
        mine, theirs = arbiters
        for round_ in range(20):
            key = f"key-{round_}"
            granted = await asyncio.gather(mine.claim([key], f"m-{round_}"), theirs.claim([key], f"t-{round_}"))
            assert sorted([*granted[0], *granted[1]]) == [False, True]

    async def test_of_two_whose_batches_overlap_each_key_goes_to_one(self, arbiters):
        mine, theirs = arbiters
        for round_ in range(20):
            ours = [f"{round_}-{n}" for n in range(40)]
            others = [f"{round_}-{n}" for n in range(20, 60)]
            granted = await asyncio.gather(mine.claim(ours, f"m-{round_}"), theirs.claim(others, f"t-{round_}"))
            owners = [dict(zip(keys, got, strict=True)) for keys, got in zip((ours, others), granted, strict=True)]
            for n in range(60):
                key = f"{round_}-{n}"
                assert sum(owner.get(key, False) for owner in owners) == 1, key

    async def test_nothing_asked_is_nothing_answered(self, arbiters):
        mine, _ = arbiters
        assert list(await mine.claim([], "n-1")) == []
        await mine.finish({}, "n-1")
