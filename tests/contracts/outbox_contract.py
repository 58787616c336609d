"""Decides what every store promises of the outbox, the journal and conversations."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from placet.runtime.ports import Unit
from tests.builders import RUN_ID, T0, TENANT
from tests.contracts.on_store import COMMITTED, LOST, OnStore, violated
from tests.contracts.units import THREAD_AT, THREAD_ID, entry, letter, run_at, said, sent, step, write


class OutboxContract(OnStore):
    """What is sent, and what was applied."""

    # ── outbox ─────────────────────────────────────────────────────────────────────────

    async def test_a_row_is_claimed_when_the_clock_reaches_it_as_it_was_sent(self, store, clock):
        row = sent("msg_1", T0 + 100)
        await store.commit([step(outbox=[row])])
        assert await store.claim_due(9, 50) == []
        assert await store.next_due_ms() == (T0, T0 + 100)
        clock.at_ms += 100
        assert await store.claim_due(9, 50) == [row]

    async def test_the_oldest_rows_are_claimed_first(self, store, clock):
        await store.commit([step(outbox=[sent("late", T0 + 90), sent("early", T0 + 10), sent("now")])])
        clock.at_ms += 50
        await store.commit([step(expected=1, outbox=[sent("after"), sent("after-that")])])
        clock.at_ms += 50
        ids = [row.id for row in await store.claim_due(4, 1_000)]
        assert ids == ["now", "early", "after", "after-that"]
        assert [row.id for row in await store.claim_due(4, 1_000)] == ["late"]

    async def test_nobody_else_gets_a_claimed_row_until_the_claim_lapses(self, store, clock):
        await store.commit([step(outbox=[sent("a"), sent("b", T0 + 400)])])
        assert [row.id for row in await store.claim_due(9, 300)] == ["a"]
        assert await store.claim_due(9, 300) == []
        assert await store.next_due_ms() == (T0, T0 + 300)
        clock.at_ms += 300
        assert [row.id for row in await store.claim_due(9, 300)] == ["a"]
        assert await store.next_due_ms() == (T0 + 300, T0 + 400)

    async def test_two_relays_at_once_share_nothing(self, store):
        await store.commit([step(outbox=[sent(f"msg_{n}") for n in range(10)])])
        claimed = await asyncio.gather(*(store.claim_due(4, 1_000) for _ in range(4)))
        assert sorted(row.id for rows in claimed for row in rows) == [f"msg_{n}" for n in range(10)]

    async def test_an_empty_outbox_is_never_due(self, store):
        assert await store.next_due_ms() == (T0, None)
        assert await store.claim_due(9, 1) == []

    async def test_whoever_commits_a_row_may_claim_it_at_once(self, store, clock):
        row = replace(sent("a"), claim_ms=300)
        await store.commit([step(outbox=[row, sent("b")])])
        assert [row.id for row in await store.claim_due(9, 1_000)] == ["b"]
        assert await store.next_due_ms() == (T0, T0 + 300)
        clock.at_ms += 300
        assert await store.claim_due(9, 300) == [sent("a")]

    async def test_what_is_deferred_waits_as_long_again_as_it_has_been_due_and_no_longer_than_is_said(
        self, store, clock
    ):
        await store.commit([step(outbox=[sent("a"), sent("b")])])
        clock.at_ms += 200
        assert len(await store.claim_due(9, 100)) == 2
        await store.defer(["a", "unknown"], 1_000)
        await store.defer(["b"], 50)
        await store.defer([], 50)
        clock.at_ms += 100
        assert [row.id for row in await store.claim_due(9, 1_000)] == ["b"]
        assert await store.next_due_ms() == (T0 + 300, T0 + 400)
        clock.at_ms += 100
        assert [row.id for row in await store.claim_due(9, 1)] == ["a"]

    async def test_what_is_recalled_is_claimed_no_longer_than_is_said_and_what_is_not_due_stays(self, store, clock):
        await store.commit([step(outbox=[sent("a"), sent("b"), sent("later", T0 + 900)])])
        assert len(await store.claim_due(9, 500)) == 2
        await store.recall(1_000)
        assert await store.next_due_ms() == (T0, T0 + 500)
        await store.recall(50)
        assert await store.next_due_ms() == (T0, T0 + 50)
        clock.at_ms += 50
        assert [row.id for row in await store.claim_due(9, 500)] == ["a", "b"]

    async def test_what_has_no_receiver_is_discarded(self, store):
        await store.commit([step(outbox=[sent("a"), sent("b")])])
        await store.discard(["a", "unknown"])
        await store.discard([])
        assert [row.id for row in await store.claim_due(9, 1)] == ["b"]

    async def test_what_is_consumed_goes_with_the_commit_that_applied_it(self, store):
        await store.commit([step(outbox=[sent("a"), sent("b"), sent("c")])])
        applied = [step(expected=1, consumed=["a", "gone"]), step(THREAD_AT, 9, consumed=["b"]), Unit(consumed=["c"])]
        assert await store.commit(applied) == [COMMITTED, LOST, COMMITTED]
        assert [row.id for row in await store.claim_due(9, 1)] == ["b"]

    async def test_what_was_consumed_may_be_sent_by_a_later_unit_of_the_same_call(self, store):
        assert await store.commit([step(consumed=["a"]), step(THREAD_AT, outbox=[sent("a")])]) == [COMMITTED] * 2
        assert [row.id for row in await store.claim_due(9, 1)] == ["a"]
        units = [step(expected=1, consumed=["a"]), step(THREAD_AT, 1, outbox=[sent("a", T0 + 1)])]
        assert await store.commit(units) == [COMMITTED] * 2
        assert [(await store.next_due_ms())[1]] == [T0 + 1]

    async def test_a_message_is_on_its_way_once(self, store):
        await store.commit([step(outbox=[sent("a")])])
        assert await store.commit([step(expected=1, outbox=[sent("a")])]) == [violated("uq_outbox_id")]
        assert await store.commit([step(expected=1, consumed=["a"]), step(THREAD_AT, outbox=[sent("a")])]) == [
            COMMITTED,
            COMMITTED,
        ]

    async def test_a_new_owner_finds_leases_due_and_nobody_s_claims(self, store, clock):
        rows = [
            sent("lease-1", T0 + 9_000, type="turn.lease_ended"),
            sent("lease-2", T0 + 8_000, type="operation.lease_ended"),
            sent("timer", T0 + 7_000, type="approval.expire"),
            sent("now"),
        ]
        await store.commit([step(outbox=rows)])
        await store.claim_due(9, 60_000)
        before = (await store.load([], [])).incarnation
        clock.at_ms += 1
        store = await self.reopen(store)
        try:
            assert (await store.load([run_at()], [])).incarnation == before + 1
            assert {row.id for row in await store.claim_due(9, 10)} == {"lease-1", "lease-2", "now"}
            assert (await store.next_due_ms())[1] == T0 + 11
            clock.at_ms += 10
            assert {row.id for row in await store.claim_due(9, 10)} == {"lease-1", "lease-2", "now"}
        finally:
            await store.close()

    # ── journal, conversation, dead letters ────────────────────────────────────────────

    async def test_the_journal_is_read_in_the_order_of_versions(self, store):
        entries = [entry(version=2, at_ms=T0 + 1), entry(version=1), entry(THREAD_AT, 1)]
        await store.commit([Unit(states=[write(version=2), write(THREAD_AT)], journal=entries)])
        await store.commit([step(expected=2, journal=[entry(version=3)])])
        assert await store.read_journal(run_at()) == [entry(version=1), entries[0], entry(version=3)]
        assert await store.read_journal(run_at("other")) == []

    async def test_a_version_is_reached_by_one_message(self, store):
        await store.commit([step(journal=[entry(version=1)])])
        assert await store.commit([step(expected=1, journal=[entry(version=1)])]) == [violated("pk_journal")]
        assert await store.commit([step(THREAD_AT, journal=[entry(version=7)])]) == [violated("owner_step")]

    async def test_a_conversation_is_read_up_to_the_line_asked_for(self, store):
        await store.commit([step(THREAD_AT, 0, said(2), said(1), said(3), said(10))])
        bodies = [row.body_text for row in (said(1), said(2), said(3))]
        assert await store.read_thread(RUN_ID, THREAD_ID, 3) == bodies
        assert await store.read_thread(RUN_ID, THREAD_ID, 9) == bodies
        assert await store.read_thread(RUN_ID, "task:two", 9) == []

    async def test_parking_a_message_twice_is_one_dead_letter(self, store):
        assert await store.commit([Unit(dead_letters=[letter(reason="first")])]) == [COMMITTED]
        assert await store.commit([Unit(dead_letters=[letter(reason="second")])]) == [COMMITTED]
        assert [row["reason"] for row in await store.dead_letters(TENANT, run_id=None, limit=9)] == ["first"]
