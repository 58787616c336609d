"""The SQL ledger on SQLite: for async tools and for plain functions."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, func, select

from placet import App, ContractError, Executed, NotExecuted, ToolContext, Unsure
from placet.ledger import SqlLedger
from placet.ledger.entries import Entries, ledger_table
from tests.ledger.sql_contract import METADATA, PAYMENT, SqlLedgerContract, a_context


class TestSqliteLedger(SqlLedgerContract):
    adapter = "sqlite"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    async def url(self) -> str:
        return f"sqlite+aiosqlite:///{self.path / 'accounts.db'}"

    def nowhere(self) -> str:
        return f"sqlite+aiosqlite:///{self.path / 'no' / 'such' / 'folder.db'}"


# ── plain functions ────────────────────────────────────────────────────────────────────


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{tmp_path / 'accounts.db'}")
    METADATA.create_all(engine)
    return engine


@pytest.fixture
def ledger(engine: Engine) -> SqlLedger:
    ledger = SqlLedger(engine)
    ledger.create()
    return ledger


def payments(engine: Engine) -> int:
    with engine.connect() as db:
        return db.execute(select(func.count()).select_from(PAYMENT)).scalar_one()


def pay(db: Connection) -> dict[str, int]:
    db.execute(PAYMENT.insert().values(customer="c-1"))
    return {"cents": 900}


def test_a_plain_function_has_its_effect_once(engine: Engine, ledger: SqlLedger) -> None:
    for attempt in (1, 2):
        assert ledger.once(a_context(attempt), pay) == {"cents": 900}
    assert payments(engine) == 1
    assert ledger.look(a_context()) == ledger.seal(a_context()) == Executed({"cents": 900})


def test_a_plain_function_that_raises_is_rolled_back(engine: Engine, ledger: SqlLedger) -> None:
    def effect(db: Connection) -> None:
        pay(db)
        raise RuntimeError("no")

    with pytest.raises(NotExecuted, match="rolled back: RuntimeError: no"):
        ledger.once(a_context(), effect)
    assert payments(engine) == 0
    assert isinstance(ledger.seal(a_context()), NotExecuted)
    with pytest.raises(NotExecuted, match="sealed"):
        ledger.once(a_context(), pay)
    assert payments(engine) == 0


def test_a_plain_function_that_commits_by_itself_is_found_out(engine: Engine, ledger: SqlLedger) -> None:
    def effect(db: Connection) -> None:
        pay(db)
        db.commit()

    with pytest.raises(Unsure, match="by itself"):
        ledger.once(a_context(), effect)


def test_a_late_thread_that_begins_after_the_seal_does_nothing(engine: Engine, ledger: SqlLedger) -> None:
    go, told = threading.Event(), []

    def late() -> None:
        go.wait()
        try:
            ledger.once(a_context(1), pay)
        except NotExecuted as refused:
            told.append(refused.reason)

    zombie = threading.Thread(target=late)
    zombie.start()
    ledger.seal(a_context(1))
    ledger.once(a_context(2), pay)
    go.set()
    zombie.join()
    assert len(told) == 1
    assert payments(engine) == 1


def test_a_tool_is_settled_by_its_ledger(ledger: SqlLedger) -> None:
    app = App("desk")

    @app.tool(effect="reconcilable", consequential=True)
    def refund(ctx: ToolContext, customer: str) -> Any:
        """Refund."""
        return ledger.once(ctx, pay)

    assert ledger.settles(refund) is refund
    assert (refund.spec.can_reconcile, refund.spec.can_seal) == (True, True)
    app.check()


def test_only_databases_that_wait_for_a_key_can_keep_a_ledger() -> None:
    with pytest.raises(ContractError, match="postgresql or sqlite, not in mysql"):
        Entries(ledger_table("t", MetaData()), "mysql")


def test_the_table_can_be_made_by_the_authors_migrations(engine: Engine) -> None:
    metadata = MetaData()
    own = SqlLedger(engine, table="once", metadata=metadata)
    assert list(metadata.tables) == ["once"]
    metadata.create_all(engine)
    own.once(a_context(), pay)
    assert payments(engine) == 1


async def test_a_plain_ledger_serves_many_threads(engine: Engine, ledger: SqlLedger) -> None:
    results = await asyncio.gather(*(asyncio.to_thread(ledger.once, a_context(n), pay) for n in range(1, 9)))
    assert results == [{"cents": 900}] * 8
    assert payments(engine) == 1
