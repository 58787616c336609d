"""The stores in memory and on PostgreSQL give the same fates and keep the same facts, whatever they are asked."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contracts.agreement import KEY_OF, Agreement, by_key
from tests.live.postgres_stores import EMPTY, MOVABLE_CLOCK, ClockedStore, execute, held


class PostgresAgrees(Agreement):
    """One database for all examples, emptied for each."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        super().__init__(runner)
        self.url = url

    def open_other(self) -> ClockedStore:
        async def opened():
            await execute(self.url, EMPTY)
            return await ClockedStore.open(self.url, self.clock)

        return self.runner.run(opened())

    def kept(self):
        async def read():
            return {table: await self.other.ask(f"SELECT * FROM {table}") for table in KEY_OF}

        return {table: by_key(table, map(dict, rows)) for table, rows in self.runner.run(read()).items()}


def test_the_stores_agree(postgres):
    with held(postgres.url, MOVABLE_CLOCK) as url, asyncio.Runner() as runner:
        machine: Any = partial(PostgresAgrees, runner, url)
        run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=20))
