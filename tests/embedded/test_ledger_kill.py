"""Proves that a tool with a ledger has its effect once, wherever SIGKILL falls between its start and our record.

The whole embedded system in a process of its own, the tool's accounts in a database of their own. The process kills
itself at the instant under test, once, and is started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from placet import App, ToolContext, scripted
from placet.adapters.clocks import SystemClock
from placet.adapters.sql.sqlite import SqliteStore
from placet.ids import Address
from placet.ledger import SqlLedger
from placet.messages import OPERATION, RUN, DecideApproval, SubmitRun
from placet.plans import DirectCall, PlannedTask
from placet.runtime.scripts import ScriptedModels
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import DATABASE, Embedded
from tests.cases import case

TENANT, RUN_ID = "default", "run-1"
PATIENCE_S = 60
Die = Callable[[str], None]


def die_once_at(instant: str, folder: Path) -> Die:
    """Kills this process when it reaches the instant for the first time."""

    def die(here: str) -> None:
        mark = folder / "died"
        if here == instant and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def an_app(folder: Path, effect: str, die: Die) -> App:
    """A desk that pays from an account of 900."""
    engine = create_engine(f"sqlite:///{folder / 'accounts.db'}")
    ledger = SqlLedger(engine)
    ledger.create()
    with engine.begin() as db:
        db.execute(text("CREATE TABLE IF NOT EXISTS payment (operation_id TEXT, cents INTEGER)"))
    app = App("desk", version="1")

    @app.tool(effect=effect, consequential=True, timeout_s=5)  # type: ignore[arg-type]
    def pay(ctx: ToolContext, cents: int) -> dict[str, int]:
        """Pay."""

        def paid(db: Connection) -> dict[str, int]:
            db.execute(text("INSERT INTO payment VALUES (:o, :c)"), {"o": ctx.operation_id, "c": cents})
            die("effect not yet committed")
            return {"paid": cents}

        die("started and not yet called")
        result = ledger.once(ctx, paid)
        die("effect committed and not yet reported")
        return dict(result)

    if effect == "reconcilable":
        ledger.settles(pay)
    clerk = app.agent("clerk", model=scripted("Done."), tools=[pay])
    app.team("desk", agents=[clerk])
    return app


async def play(folder: Path, effect: str, instant: str) -> None:
    """Submit, approve, wait for the end; from wherever the last process stopped."""
    app = an_app(folder, effect, die_once_at(instant, folder))
    embedded = await Embedded.start(app, folder / "data", models=ScriptedModels(app))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await embedded.door.ask(submission(), message_id="submit", timeout_ms=PATIENCE_S * 1_000)
            changes = embedded.door.changes(RUN_ID)
            while not await is_over(embedded):
                await anext(changes)
    finally:
        await embedded.stop()


def submission() -> SubmitRun:
    return SubmitRun(
        tenant=TENANT,
        run_id=RUN_ID,
        team="desk",
        mode="tasks",
        tasks=(PlannedTask(id="pay", title="Pay", call=DirectCall(tool="pay", input={"cents": 900})),),
        initiator=Principal(kind=PrincipalKind.HUMAN, id="developer"),
    )


async def is_over(embedded: Embedded) -> bool:
    for row in await embedded.store.requests(TENANT, open_only=True, limit=10, after=None):
        assert row["scope"] == "tool_call", "nobody is asked what happened: the ledger knows"
        decision = DecideApproval(
            tenant=TENANT,
            run_id=RUN_ID,
            request_id=row["request_id"],
            decision_id="decision-1",
            request_hash=row["request_hash"],
            decision="approve",
            reviewer=Principal(kind=PrincipalKind.HUMAN, id="alice"),
        )
        await embedded.door.ask(decision, message_id="decide", timeout_ms=PATIENCE_S * 1_000)
    state = await embedded.store.state(TENANT, Address(RUN_ID, RUN, ""))
    return state is not None and state["status"] not in ("planning", "running", "suspended")


def a_process(folder: Path, effect: str, instant: str) -> int:
    """How it ended."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 2)
            asyncio.run(play(folder, effect, instant))
            code = 0
        except BaseException:  # noqa: BLE001  the child must end here, whatever happened in it
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


@case("F02", "F03", "F04", "H22")
@pytest.mark.parametrize("effect", ["idempotent", "reconcilable"])
@pytest.mark.parametrize(
    "instant",
    ["started and not yet called", "effect not yet committed", "effect committed and not yet reported"],
)
def test_a_kill_between_effect_and_record_neither_loses_nor_doubles_the_effect(
    effect: str, instant: str, tmp_path: Path
) -> None:
    store = "sqlite"
    assert os.WIFSIGNALED(a_process(tmp_path, effect, instant)), store
    assert a_process(tmp_path, effect, instant) == 0, (tmp_path / "log").read_text()
    with sqlite3.connect(tmp_path / "accounts.db") as accounts:
        paid = accounts.execute("SELECT operation_id, cents FROM payment").fetchall()
    assert len(paid) == 1
    found = asyncio.run(facts(tmp_path / "data" / DATABASE))
    [operation] = found["operation"]
    assert paid == [(operation["operation_id"], 900)], "the same id in the tool's world and in ours"
    assert found["state"]["status"] == "succeeded"
    attempts = found["operation_attempt"]
    assert [row["n"] for row in attempts] == list(range(1, len(attempts) + 1))
    assert attempts[0]["ended"] == "unknown"
    if effect == "reconcilable" and instant.startswith("effect committed"):
        assert len(attempts) == 1, "its seal found the effect, and nothing was started again"
    else:
        assert attempts[-1]["ended"] == "succeeded"
        assert json.loads(attempts[-1]["evidence_text"])["result_text"] == '{"paid":900}'


async def facts(database: Path) -> dict[str, Any]:
    store = await SqliteStore.open(database, clock=SystemClock())
    try:
        found: dict[str, Any] = {t: await store.rows(TENANT, t, RUN_ID) for t in ("operation", "operation_attempt")}
        operation_id = found["operation"][0]["operation_id"]
        found["state"] = await store.state(TENANT, Address(RUN_ID, OPERATION, operation_id))
        return found
    finally:
        await store.close()
