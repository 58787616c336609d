"""Decides what every store promises of a unit: compare and set, guards, all or nothing, each for itself."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from placet.errors import Code, RetryableError
from placet.ids import Address
from placet.rows import FactKey
from placet.runtime.ports import Fate, StoredState, Unit
from tests.builders import RUN_ID, T0, TENANT
from tests.cases import case
from tests.contracts.on_store import COMMITTED, LOST, OnStore, violated
from tests.contracts.units import (
    REQUEST,
    THREAD_AT,
    THREAD_ID,
    approval_at,
    decision_attempt,
    entry,
    leaf,
    letter,
    outcome,
    run_at,
    said,
    sent,
    step,
    write,
)


class UnitContract(OnStore):
    """What a commit is."""

    # ── states: compare and set ────────────────────────────────────────────────────────

    async def test_what_is_absent_is_loaded_as_none_with_version_0(self, store, clock):
        key = FactKey("approval_outcome", RUN_ID, REQUEST)
        loaded = await store.load([run_at()], [key])
        assert loaded.states == {run_at(): None}
        assert loaded.rows == {key: None}
        assert loaded.versions == {run_at(): 0, approval_at(): 0}
        assert loaded.now_ms == clock.at_ms

    @case("H01")
    async def test_a_state_is_loaded_byte_for_byte_as_it_was_written(self, store):
        body = '{"i":9007199254740991,"f":0.1,"e":1e-7,"b":true,"n":null,"t":"æ日🦉\\u0000","l":[[]]}'.encode()
        assert await store.commit([step(body=body, status="planning")]) == [COMMITTED]
        loaded = await store.load([run_at()], [])
        assert loaded.states[run_at()] == StoredState(1, "planning", body)
        assert loaded.versions[run_at()] == 1

    async def test_a_step_from_the_current_version_is_committed(self, store):
        await store.commit([step()])
        assert await store.commit([step(expected=1, status="suspended", body=b"{}")]) == [COMMITTED]
        assert (await store.load([run_at()], [])).states[run_at()] == StoredState(2, "suspended", b"{}")

    async def test_several_steps_may_be_taken_in_one_write(self, store):
        await store.commit([step()])
        assert await store.commit([step(expected=1, version=5)]) == [COMMITTED]
        assert (await store.load([run_at()], [])).versions[run_at()] == 5

    @pytest.mark.parametrize("expected", [0, 2, 7])
    async def test_a_step_from_another_version_is_lost_and_changes_nothing(self, store, expected):
        await store.commit([step()])
        unit = step(None, expected, leaf(9), status="other", outbox=[sent()])
        assert await store.commit([unit]) == [LOST]
        assert (await store.load([run_at()], [])).states[run_at()] == StoredState(1, "running", b'{"status":"running"}')
        assert await store.claim_due(9, 1) == []

    async def test_a_step_of_an_absent_state_is_lost(self, store):
        assert await store.commit([step(expected=1)]) == [LOST]
        assert (await store.load([run_at()], [])).states[run_at()] is None

    async def test_a_write_that_steps_nowhere_is_refused(self, store):
        assert await store.commit([step(version=0)]) == [violated("state_step")]

    async def test_a_state_never_changes_its_tenant(self, store):
        await store.commit([step()])
        assert await store.commit([step(expected=1, tenant="other")]) == [violated("state_tenant")]

    async def test_keys_of_two_runs_and_machines_do_not_meet(self, store):
        places = [
            Address(run, machine, key) for run in ("a", "b") for machine in ("run", "thread") for key in ("", "k")
        ]
        assert await store.commit([step(place, status=str(n)) for n, place in enumerate(places)]) == [COMMITTED] * 8
        loaded = await store.load(places, [])
        assert [loaded.states[place].status for place in places] == [str(n) for n in range(8)]

    # ── guards ─────────────────────────────────────────────────────────────────────────

    async def test_a_guard_that_holds_lets_the_unit_through(self, store):
        await store.commit([step()])
        assert await store.commit([step(THREAD_AT, guards={run_at(): 1, approval_at(): 0})]) == [COMMITTED]

    @pytest.mark.parametrize("version", [0, 2])
    async def test_a_guard_that_no_longer_holds_loses_the_unit(self, store, version):
        await store.commit([step()])
        assert await store.commit([step(THREAD_AT, guards={run_at(): version})]) == [LOST]
        assert (await store.load([THREAD_AT], [])).states[THREAD_AT] is None

    async def test_a_guard_on_an_absent_owner_loses_once_that_owner_exists(self, store):
        await store.commit([step(approval_at(), 0, outcome())])
        assert await store.commit([step(guards={approval_at(): 0})]) == [LOST]

    async def test_a_unit_sees_what_a_neighbour_before_it_wrote(self, store):
        units = [step(), step(THREAD_AT, guards={run_at(): 0}), step(approval_at(), guards={run_at(): 1})]
        assert await store.commit(units) == [COMMITTED, LOST, COMMITTED]

    @pytest.mark.parametrize(("before_ms", "fate"), [(T0 + 1, COMMITTED), (T0, LOST), (T0 - 1, LOST)])
    async def test_a_unit_is_lost_once_the_clock_has_reached_its_deadline(self, store, before_ms, fate):
        assert await store.commit([step(before_ms=before_ms)]) == [fate]

    # ── all or nothing, each for itself ────────────────────────────────────────────────

    async def test_a_violated_unit_leaves_nothing_behind(self, store):
        await store.commit([step(None, 0, leaf(1), outbox=[sent("old")])])
        unit = Unit(
            states=[write(expected=1), write(THREAD_AT)],
            rows=[leaf(2), said(1), leaf(1)],
            journal=[entry(version=2)],
            outbox=[sent("new")],
            dead_letters=[letter()],
            consumed=["old"],
        )
        assert await store.commit([unit]) == [violated("pk_audit_leaf")]
        loaded = await store.load([run_at(), THREAD_AT], [])
        assert loaded.versions == {run_at(): 1, THREAD_AT: 0}
        assert [row.id for row in await store.claim_due(9, 1)] == ["old"]
        assert await store.read_journal(run_at()) == []
        assert await store.read_thread(RUN_ID, THREAD_ID, 9) == []
        assert await store.dead_letters(TENANT, run_id=None, limit=9) == []
        assert [row["seq"] for row in await store.rows(TENANT, "audit_leaf", RUN_ID)] == [1]

    async def test_every_unit_of_a_call_has_a_fate_of_its_own(self, store):
        runs = [run_at(f"run-{n}") for n in range(5)]
        await store.commit([step(runs[1]), step(runs[3], 0, leaf(1, "run-3"))])
        results = await store.commit(
            [
                step(runs[0], 0, leaf(1, "run-0")),
                step(runs[1]),
                step(runs[2], 0, leaf(1, "run-2"), outbox=[sent("kept")]),
                step(runs[3], 1, leaf(1, "run-3"), outbox=[sent("gone")]),
                step(runs[4]),
            ]
        )
        assert results == [COMMITTED, LOST, COMMITTED, violated("pk_audit_leaf"), COMMITTED]
        assert [(await store.load([run], [])).versions[run] for run in runs] == [1, 1, 1, 1, 1]
        assert [row.id for row in await store.claim_due(9, 1)] == ["kept"]

    async def test_nothing_to_commit_is_no_error(self, store):
        assert list(await store.commit([])) == []

    # ── races ──────────────────────────────────────────────────────────────────────────

    async def test_of_32_callers_that_create_one_key_at_once_one_succeeds(self, store):
        calls = [store.commit([step(approval_at(), 0, decision_attempt(1, f"dec_{number}"))]) for number in range(32)]
        fates = Counter(result.fate for results in await asyncio.gather(*calls) for result in results)
        assert fates == {Fate.COMMITTED: 1, Fate.LOST: 31}
        assert len(await store.rows(TENANT, "operation", RUN_ID)) == 0
        assert len(await store.rows(TENANT, "decision_attempt", RUN_ID)) == 1

    async def test_of_50_deciders_at_once_one_writes_the_outcome_and_its_event(self, store):
        await store.commit([step(approval_at())])

        def decide(number: int) -> Unit:
            word = "approved" if number % 2 else "rejected"
            row = outcome(word, decided_by=f"person-{number}", decision_id=f"dec_{number}")
            return step(approval_at(), 1, row, outbox=[sent(f"msg_{number}")])

        fates = await asyncio.gather(*(store.commit([decide(number)]) for number in range(50)))
        winners = [number for number, results in enumerate(fates) if results == [COMMITTED]]
        assert len(winners) == 1
        assert [results for results in fates if results != [COMMITTED]] == [[LOST]] * 49
        (row,) = await store.rows(TENANT, "approval_outcome", RUN_ID)
        assert row["decided_by"] == f"person-{winners[0]}"
        assert [row.id for row in await store.claim_due(99, 1)] == [f"msg_{winners[0]}"]

    async def test_callers_at_once_do_not_spoil_each_other(self, store):
        await store.commit([step(run_at("run-3"), 0, leaf(1, "run-3"))])
        units = {
            "good": step(run_at("run-1")),
            "stale": step(run_at("run-3")),
            "violating": step(run_at("run-3"), 1, leaf(1, "run-3")),
            "late": step(run_at("run-4"), before_ms=T0),
            "better": step(run_at("run-5"), 0, leaf(1, "run-5")),
        }
        fates = await asyncio.gather(*(store.commit([unit]) for unit in units.values()))
        assert dict(zip(units, (result for (result,) in fates), strict=True)) == {
            "good": COMMITTED,
            "stale": LOST,
            "violating": violated("pk_audit_leaf"),
            "late": LOST,
            "better": COMMITTED,
        }

    # ── life ───────────────────────────────────────────────────────────────────────────

    async def test_a_closed_store_refuses_and_closing_it_again_is_harmless(self, store):
        await store.commit([step()])
        await asyncio.gather(store.close(), store.close())
        await store.close()
        for call in (
            store.load([run_at()], []),
            store.commit([step(expected=1)]),
            store.claim_due(1, 1),
            store.next_due_ms(),
            store.read_journal(run_at()),
            store.runs(TENANT, status=None, limit=1, before=None),
        ):
            with pytest.raises(RetryableError) as raised:
                await call
            assert raised.value.code is Code.STORE_UNAVAILABLE
