"""The store in memory and the one on SQLite give the same fates and keep the same facts, whatever they are asked."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import rule

from placet.adapters.sql.sqlite import SqliteStore
from tests.contracts.agreement import KEY_OF, Agreement, by_key


class StoresAgree(Agreement):
    """With SQLite, which serves callers in the order in which they come, and may change its owner."""

    def __init__(self) -> None:
        super().__init__(asyncio.Runner())
        self.directory = tempfile.TemporaryDirectory()

    def open_other(self) -> SqliteStore:
        store = self.runner.run(SqliteStore.open(Path(self.directory.name) / "placet.db", clock=self.clock))
        store._connection.execute("PRAGMA synchronous = OFF")  # what is compared here is not durability
        return store

    @rule(data=some.data())
    def commit_at_once(self, data: some.DataObject) -> None:
        """Callers at once are served in the order in which they came."""
        units = [self.a_unit(data) for _ in range(3)]

        async def gather(store):
            return await asyncio.gather(*(store.commit([unit]) for unit in units))

        memory, sqlite = (self.runner.run(gather(store)) for store in (self.memory, self.other))
        assert [result.fate for (result,) in memory] == [result.fate for (result,) in sqlite]

    @rule()
    def a_new_owner_comes(self) -> None:
        self.memory.restart()
        self.runner.run(self.other.close())
        self.open()

    def kept(self):
        tables = {}
        for table in KEY_OF:
            cursor = self.other._connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            tables[table] = by_key(table, (dict(zip(names, row, strict=True)) for row in cursor))
        return tables

    def teardown(self) -> None:
        super().teardown()
        self.runner.close()
        self.directory.cleanup()


StoresAgree.TestCase.settings = settings(max_examples=30, stateful_step_count=20)
test_the_stores_agree = StoresAgree.TestCase
