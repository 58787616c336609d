"""The referee within one process keeps every promise of a referee."""

from __future__ import annotations

import pytest

from placet.adapters.memory_queue import MARKS_MAX, MemoryArbiter
from placet.runtime.ports import Mark
from tests.contracts.arbiter_contract import ArbiterContract
from tests.contracts.units import ManualClock


class TestMemoryArbiter(ArbiterContract):
    adapter = "memory"

    @pytest.fixture(autouse=True)
    def _one_process(self):
        self.clock = ManualClock()
        self.arbiter = MemoryArbiter(self.clock)

    async def make(self):
        return self.arbiter

    async def pass_ms(self, time_ms):
        self.clock.at_ms += time_ms


async def test_what_it_remembers_is_bounded() -> None:
    arbiter = MemoryArbiter(ManualClock())
    for n in range(MARKS_MAX + 1):
        await arbiter.finish({f"key-{n}": Mark.FINAL}, "n")
    for nonce, granted in (("n-1", [True, True]), ("n-2", [False, True])):
        assert list(await arbiter.claim(["key-0", "key-1"], nonce)) == granted
