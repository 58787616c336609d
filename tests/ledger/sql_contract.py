"""Decides what every SQL ledger promises, on whatever database: one effect, its first result, a seal that holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, event, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from placet import Executed, Failed, NotExecuted, ToolContext, Unsure
from placet.instants import Instant
from placet.ledger import AsyncSqlLedger
from tests.cases import case

METADATA = MetaData()
PAYMENT = Table("payment", METADATA, Column("n", Integer, primary_key=True), Column("customer", String(40)))
Effect = Callable[[AsyncConnection], Awaitable[Any]]


def a_context(attempt: int = 1, *, key: str | None = None, operation_id: str = "op_1") -> ToolContext:
    """What a tool is told. By default each attempt has a key of its own, as where attempts can be sealed."""
    return ToolContext(
        operation_id=operation_id,
        idempotency_key=key or f"{operation_id}:{attempt}",
        attempt=attempt,
        deadline=Instant(0),
        run_id="run-1",
        tenant="acme",
        agent="clerk",
    )


async def pay(db: AsyncConnection) -> dict[str, Any]:
    """The effect: one row."""
    await db.execute(PAYMENT.insert().values(customer="c-1"))
    return {"paid": "c-1", "lines": [1, 2]}


class SqlLedgerContract:
    """A test class says `url`: an empty database."""

    adapter: str

    async def url(self) -> str:
        """Where the database is, for an async engine."""
        raise NotImplementedError

    @pytest.fixture
    async def engine(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(await self.url())
        async with engine.begin() as db:
            await db.run_sync(METADATA.create_all)
        yield engine
        await engine.dispose()

    @pytest.fixture
    async def ledger(self, engine: AsyncEngine) -> AsyncSqlLedger:
        ledger = AsyncSqlLedger(engine)
        await ledger.create()
        await ledger.create()  # it is there already
        return ledger

    async def payments(self, engine: AsyncEngine) -> int:
        async with engine.connect() as db:
            return (await db.execute(select(func.count()).select_from(PAYMENT))).scalar_one()

    @case("F04")
    async def test_a_repeat_has_no_effect_and_gets_the_first_result(self, engine, ledger) -> None:
        first = await ledger.once(a_context(key="op_1"), pay)
        assert first == {"paid": "c-1", "lines": [1, 2]}
        for attempt in (2, 3):
            assert await ledger.once(a_context(attempt, key="op_1"), pay) == first
        assert await self.payments(engine) == 1

    async def test_another_operation_is_another_effect(self, engine, ledger) -> None:
        for name in ("op_1", "op_2"):
            await ledger.once(a_context(operation_id=name), pay)
        assert await self.payments(engine) == 2

    async def test_an_attempt_with_a_key_of_its_own_does_not_repeat_what_an_earlier_one_did(
        self, engine, ledger
    ) -> None:
        first = await ledger.once(a_context(1), pay)
        assert await ledger.once(a_context(2), pay) == first
        assert await self.payments(engine) == 1

    @pytest.mark.parametrize(
        ("raised", "transient"),
        [
            (ValueError("no"), False),
            (ConnectionError("gone"), True),
            (NotExecuted("refused"), None),
            (NotExecuted("busy", transient=True), True),
            (Failed("red", result=1), None),
        ],
    )
    async def test_an_effect_that_raises_is_rolled_back_and_surely_did_not_happen(
        self, engine, ledger, raised: Exception, transient: bool | None
    ) -> None:
        async def effect(db: AsyncConnection) -> None:
            await pay(db)
            raise raised

        with pytest.raises(NotExecuted) as refused:
            await ledger.once(a_context(), effect)
        assert refused.value.transient is transient
        assert await self.payments(engine) == 0
        assert isinstance(await ledger.look(a_context()), NotExecuted)
        await ledger.once(a_context(), pay)
        assert await self.payments(engine) == 1

    async def test_what_the_effect_itself_does_not_know_stays_unknown(self, engine, ledger) -> None:
        async def effect(db: AsyncConnection) -> None:
            raise Unsure("it also sent a letter")

        with pytest.raises(Unsure, match="letter"):
            await ledger.once(a_context(), effect)

    async def test_a_result_that_cannot_be_kept_is_no_effect(self, engine, ledger) -> None:
        async def effect(db: AsyncConnection) -> object:
            await pay(db)
            return object()

        with pytest.raises(NotExecuted, match="cannot be kept"):
            await ledger.once(a_context(), effect)
        assert await self.payments(engine) == 0

    async def test_a_commit_that_is_not_confirmed_leaves_it_unknown(self, engine, ledger) -> None:
        def fails(_: object) -> None:
            raise ConnectionError("the server has gone")

        event.listen(engine.sync_engine, "commit", fails)
        try:
            with pytest.raises(Unsure) as unknown:
                await ledger.once(a_context(), pay)
        finally:
            event.remove(engine.sync_engine, "commit", fails)
        assert unknown.value.transient
        assert isinstance(await ledger.seal(a_context()), NotExecuted)

    async def test_an_effect_that_commits_by_itself_is_found_out(self, engine, ledger) -> None:
        async def effect(db: AsyncConnection) -> None:
            await pay(db)
            await db.commit()

        with pytest.raises(Unsure, match="by itself"):
            await ledger.once(a_context(), effect)

    async def test_an_interrupted_effect_is_rolled_back(self, engine, ledger) -> None:
        begun = asyncio.Event()

        async def effect(db: AsyncConnection) -> None:
            await pay(db)
            begun.set()
            await asyncio.Event().wait()

        work = asyncio.create_task(ledger.once(a_context(), effect))
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await self.payments(engine) == 0

    async def test_what_happened_is_told_with_its_result_by_either_probe(self, engine, ledger) -> None:
        await ledger.once(a_context(1), pay)
        for answer in (
            await ledger.look(a_context(1)),
            await ledger.seal(a_context(1)),
            await ledger.look(a_context(2)),
        ):
            assert answer == Executed({"paid": "c-1", "lines": [1, 2]})

    async def test_a_sealed_attempt_does_nothing_ever_and_the_next_one_may(self, engine, ledger) -> None:
        assert isinstance(await ledger.seal(a_context(1)), NotExecuted)
        assert isinstance(await ledger.seal(a_context(1)), NotExecuted)
        with pytest.raises(NotExecuted, match="sealed"):
            await ledger.once(a_context(1), pay)
        assert await self.payments(engine) == 0
        await ledger.once(a_context(2), pay)
        assert await self.payments(engine) == 1
        assert isinstance(await ledger.seal(a_context(1)), Executed), "the operation has happened"

    async def test_to_look_changes_nothing(self, engine, ledger) -> None:
        assert isinstance(await ledger.look(a_context(1)), NotExecuted)
        await ledger.once(a_context(1), pay)
        assert await self.payments(engine) == 1

    @pytest.mark.parametrize("commits", [True, False])
    async def test_a_seal_waits_for_the_effect_that_is_under_way_and_then_tells_the_truth(
        self, engine, ledger, commits: bool
    ) -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        async def effect(db: AsyncConnection) -> str:
            await pay(db)
            begun.set()
            await go.wait()
            if not commits:
                raise NotExecuted("no")
            return "paid"

        work = asyncio.create_task(ledger.once(a_context(1), effect))
        await begun.wait()
        seal = asyncio.create_task(ledger.seal(a_context(1)))
        done, _ = await asyncio.wait({seal}, timeout=0.1)
        assert not done, "it waits"
        go.set()
        await asyncio.wait({work})
        assert isinstance(await seal, Executed) is commits
        assert (work.exception() is None) is commits
        assert await self.payments(engine) == int(commits)

    async def test_of_two_attempts_at_once_one_has_the_effect_and_both_its_result(self, engine, ledger) -> None:
        both = asyncio.gather(*(ledger.once(a_context(n), pay) for n in range(1, 6)), return_exceptions=True)
        for result in await both:
            assert result == {"paid": "c-1", "lines": [1, 2]} or (
                isinstance(result, NotExecuted) and result.transient
            ), result
        assert await self.payments(engine) == 1

    async def test_without_transactions_there_is_no_ledger(self, engine, ledger) -> None:
        loose = AsyncSqlLedger(engine.execution_options(isolation_level="AUTOCOMMIT"))
        with pytest.raises(NotExecuted, match="AUTOCOMMIT"):
            await loose.once(a_context(), pay)
        assert await self.payments(engine) == 0

    async def test_a_database_that_is_away_is_no_effect_and_may_come_back(self, engine, ledger) -> None:
        away = AsyncSqlLedger(create_async_engine(self.nowhere()))
        with pytest.raises(NotExecuted) as refused:
            await away.once(a_context(), pay)
        assert refused.value.transient

    def nowhere(self) -> str:
        """An address where no database is."""
        raise NotImplementedError
