"""Proves that kill -9 at any instant of the release run loses nothing and doubles nothing.

Each round is a process of its own with the real embedded system, real SQLite and real git. It is killed with SIGKILL at
a random instant, sometimes twice, and started again until it ends by itself. The seed is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.release import app
from examples.release.repository import git, scratch_repository
from placet.adapters.clocks import SystemClock
from placet.adapters.sql.sqlite import SqliteStore
from placet.ids import Address
from placet.messages import RUN, DecideApproval, SubmitRun
from placet.runtime.replay import replay
from placet.runtime.scripts import ScriptedModels
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import DATABASE, Embedded
from placet_embedded.system import machines

TENANT, RUN_ID, TAG = "default", "release-1", "v1.2.0"
SUBMISSION = SubmitRun(
    tenant=TENANT,
    run_id=RUN_ID,
    team="release",
    goal=f"Cut the release {TAG}",
    initiator=Principal(kind=PrincipalKind.HUMAN, id="developer"),
)
PATIENCE_S = 60
ROUNDS, KILLS_A_ROUND = 5, 10


async def release(data: Path) -> None:
    """Bring the release to its end, from wherever it is: what a client does that repeats until it has an answer."""
    embedded = await Embedded.start(app, data, models=ScriptedModels(app))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await embedded.door.ask(SUBMISSION, message_id="submit", timeout_ms=PATIENCE_S * 1_000)
            changes = embedded.door.changes(RUN_ID)
            while await _goes_on(embedded):
                await anext(changes)
    finally:
        await embedded.stop()


async def _goes_on(embedded: Embedded) -> bool:
    """Decide what waits for a decision; whether the run still goes on."""
    for row in await embedded.store.requests(TENANT, open_only=True, limit=10, after=None):
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
    return state is None or state["status"] in ("planning", "running", "suspended")


def start(data: Path) -> int:
    """The process: forked, so that its imports cost nothing and the kill falls into the work."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        log = os.open(data.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        asyncio.run(release(data))
        code = 0
    except BaseException:  # noqa: BLE001  the child must end here, whatever happened in it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def kill_after(pid: int, seconds: float) -> bool:
    """Whether the kill came before the process ended by itself."""
    time.sleep(seconds)  # the instant is the point of the test
    ended, _ = os.waitpid(pid, os.WNOHANG)
    if ended:
        return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def finish(data: Path) -> float:
    """Start again and let it end; seconds it took."""
    began = time.monotonic()
    _, status = os.waitpid(start(data), 0)
    assert status == 0, (data.parent / "log").read_text()
    return time.monotonic() - began


@pytest.fixture
def new_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Path, Path]]:
    """Makes a repository to release and a place for the data."""

    def make(name: str) -> tuple[Path, Path]:
        folder = tmp_path / name
        folder.mkdir()
        repository = scratch_repository(folder)
        monkeypatch.setenv("RELEASE_REPOSITORY", str(repository))
        return repository, folder / "data"

    return make


def assert_happened_once(repository: Path, data: Path) -> None:
    """One tag, one note, one decision, one operation for each call, one outcome, and a journal that is true."""
    assert git(repository, "tag", "--list", TAG).splitlines() == [TAG]
    assert git(repository, "rev-parse", f"{TAG}^{{commit}}") == git(repository, "rev-parse", "HEAD")
    notes = [path for path in repository.rglob("*.md") if ".git" not in path.parts]
    assert len(notes) == 1, notes
    for _, subject in (("", "Add the export of invoices"), ("", "Fix rounding of totals"), ("", "Explain refunds")):
        assert notes[0].read_text().count(subject) == 1
    asyncio.run(_assert_facts(data))


async def _assert_facts(data: Path) -> None:
    store = await SqliteStore.open(data / DATABASE, clock=SystemClock())
    try:
        state = await store.state(TENANT, Address(RUN_ID, RUN, ""))
        assert state is not None
        assert state["status"] == "succeeded", state
        rows = {
            table: await store.rows(TENANT, table, RUN_ID)
            for table in ("approval_request", "approval_vote", "approval_outcome", "operation", "operation_attempt")
        }
        assert len(rows["approval_request"]) == len(rows["approval_vote"]) == len(rows["approval_outcome"]) == 1
        tools = [row["tool"] for row in rows["operation"]]
        assert sorted(tools) == sorted(set(tools)), "each tool was called for once, under one operation_id"
        (tagged,) = [row for row in rows["operation"] if row["tool"] == "create_tag"]
        assert tagged["request_hash"] == rows["approval_outcome"][0]["request_hash"]
        assert all(row["ended"] is not None for row in rows["operation_attempt"])
        journal = await store.journal(TENANT, RUN_ID)
        for machine, key in {(entry["machine"], entry["key"]) for entry in journal}:
            address = Address(RUN_ID, machine, key)
            stored = (await store.load([address], [])).states[address]
            replayed = replay(machines()[machine], await store.read_journal(address))
            assert stored is not None
            assert replayed is not None
            assert replayed.model_dump_json().encode() == stored.body
    finally:
        await store.close()


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_release_that_is_killed_anywhere_happens_once(
    number: int, new_world: Callable[[str], tuple[Path, Path]], seed: int
) -> None:
    """Ten kills a round, fifty in all."""
    chance = random.Random(f"{seed}/{number}")
    print(f"seed {seed}, round {number}")
    _, data = new_world("undisturbed")
    takes_s = finish(data)
    killed = 0
    for kill in range(KILLS_A_ROUND):
        repository, data = new_world(f"kill-{kill}")
        killed += kill_after(start(data), chance.uniform(0, takes_s))
        if chance.random() < 0.3:
            killed += kill_after(start(data), chance.uniform(0, takes_s))
        finish(data)
        assert_happened_once(repository, data)
    assert killed >= KILLS_A_ROUND / 2, (
        f"only {killed} kills came before the end: {json.dumps(takes_s)} s is no measure"
    )


def test_a_release_that_nobody_kills_happens_once(new_world: Callable[[str], tuple[Path, Path]]) -> None:
    """The measure for the others."""
    repository, data = new_world("undisturbed")
    finish(data)
    assert_happened_once(repository, data)
    finish(data)  # and once more on what is finished: nothing happens
    assert_happened_once(repository, data)
