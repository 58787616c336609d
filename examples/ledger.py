"""Decides how a tool pays exactly once, wherever it is killed: its ledger and its accounts are one database.

`python -m examples.ledger` shows it: the report of a payment is lost, what happened is asked, and it is repeated.
As an application: PLACET_APP=examples.ledger:app placet dev.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from placet import App, NotExecuted, ToolContext, scripted
from placet.instants import Instant
from placet.ledger import SqlLedger
from placet.script import call

PLACE = Path(os.environ.get("ACCOUNTS_DATABASE") or Path(tempfile.gettempdir()) / "placet-example-accounts.db")
ENGINE = create_engine(f"sqlite:///{PLACE}")
LEDGER = SqlLedger(ENGINE)

app = App("accounts", version="2026.11")


@app.tool(effect="reconcilable", consequential=True, retry=3, advisory=["note"])
def pay(ctx: ToolContext, customer: str, cents: int, note: str = "") -> dict[str, int]:
    """Pay a customer from the account."""

    def effect(db: Connection) -> dict[str, int]:
        changed = db.execute(text("UPDATE account SET cents = cents - :c WHERE cents >= :c"), {"c": cents})
        if changed.rowcount != 1:
            raise NotExecuted("the account does not cover it")
        return {"balance": db.execute(text("SELECT cents FROM account")).scalar_one()}

    balance: dict[str, int] = LEDGER.once(ctx, effect)
    return balance


LEDGER.settles(pay)


@pay.precondition
def covered(ctx: ToolContext, cents: int) -> bool | str:
    """Right before the payment: does the account still cover it?"""
    balance = _balance()
    return balance >= cents or f"the balance is {balance}"


app.team("accounts", agents=[app.agent("clerk", model=scripted(call("pay", customer="c-1", cents=200)), tools=[pay])])


def open_account(cents: int) -> None:
    """Make the tables, which an application of yours leaves to its migrations."""
    LEDGER.create()
    with ENGINE.begin() as db:
        db.execute(text("CREATE TABLE IF NOT EXISTS account (cents INTEGER)"))
        db.execute(text("DELETE FROM account"))
        db.execute(text("INSERT INTO account VALUES (:c)"), {"c": cents})


def _balance() -> int:
    with ENGINE.connect() as db:
        cents: int = db.execute(text("SELECT cents FROM account")).scalar_one()
        return cents


def _attempt(n: int) -> ToolContext:
    """What the executor tells attempt n of one operation."""
    return ToolContext(
        operation_id=f"op_{os.getpid()}",
        idempotency_key=f"op_{os.getpid()}:{n}",
        attempt=n,
        deadline=Instant(0),
        run_id="run-1",
        tenant="default",
        agent="clerk",
    )


def main() -> int:
    """Pay, lose the report, ask, repeat, seal."""
    open_account(900)
    print("attempt 1 pays, and its report is lost:", pay(_attempt(1), "c-1", 200))
    print("its world is asked what happened:      ", LEDGER.seal(_attempt(1)))
    print("attempt 2 does nothing, and answers:   ", pay(_attempt(2), "c-1", 200))
    print("the balance:                           ", _balance())
    return 0 if _balance() == 700 else 1


if __name__ == "__main__":
    sys.exit(main())
