"""Decides what every store promises of facts: kept as they were, and true whatever the code does."""

from __future__ import annotations

import pytest

from placet.columns import KEYS
from placet.ids import Address
from placet.rows import STATE, FactKey, RequestRow, StateRow
from placet.runtime.ports import Fate, Unit
from tests.builders import RUN_ID, TENANT
from tests.contracts.on_store import COMMITTED, OnStore, violated
from tests.contracts.units import (
    HASH,
    ONE_OF_EACH,
    OPERATION_AT,
    REQUEST,
    THREAD_AT,
    approval_at,
    attempt,
    attempt_end,
    decision_attempt,
    entry,
    leaf,
    letter,
    operation,
    outcome,
    retry,
    run_at,
    said,
    sent,
    step,
    steps_of,
    vote,
)

UNREAD = {"approval_vote", "operation_attempt", "retry_decision", "thread_message", "audit_leaf"}
"""Tables that no machine reads."""


def constraints_of(table: str) -> set[str]:
    """What the same row twice violates; a store names one of them."""
    also = {"approval_vote": "uq_approval_vote_decision", "operation_attempt": "uq_operation_attempt_open"}
    return {f"pk_{table}"} | ({also[table]} if table in also else set())


class FactContract(OnStore):
    """What a constraint is."""

    # ── facts and their constraints ────────────────────────────────────────────────────

    async def test_a_fact_of_every_kind_is_kept_as_it_was(self, store):
        rows = [
            *ONE_OF_EACH,
            vote("bob", "dec_2", reason="", shown_digest=HASH),
            operation("op_2", consequential=False),
        ]
        assert await store.commit([steps_of(*rows)]) == [COMMITTED]
        keys = [row.fact_key() for row in rows if row.table in KEYS and row.table not in UNREAD]
        loaded = await store.load([], keys)
        assert loaded.rows == {row.fact_key(): row for row in rows if row.table not in UNREAD}
        assert all(type(loaded.rows[key].model_dump()) is dict for key in keys)
        assert loaded.versions == dict.fromkeys(loaded.versions, 1)
        kept = {table: await store.rows(TENANT, table, RUN_ID) for table in KEYS}
        for row in rows:
            plain = (row.request if isinstance(row, RequestRow) else row).model_dump()
            found = [columns for columns in kept[row.table] if plain.items() <= columns.items()]
            assert len(found) == 1, row
            assert {name: type(found[0][name]) for name in plain} == {name: type(plain[name]) for name in plain}

    @pytest.mark.parametrize("row", ONE_OF_EACH, ids=lambda row: row.table)
    async def test_a_fact_is_never_written_twice(self, store, row):
        await store.commit([step(row.owner(), 0, row)])
        if row.table == "operation_attempt":
            await store.commit([step(row.owner(), 1, attempt_end())])
        before = await store.rows(TENANT, row.table, RUN_ID)
        version = (await store.load([row.owner()], [])).versions[row.owner()]
        (result,) = await store.commit([step(row.owner(), version, row)])
        assert result.fate is Fate.VIOLATED
        assert result.constraint in constraints_of(row.table)
        assert await store.rows(TENANT, row.table, RUN_ID) == before

    @pytest.mark.parametrize("row", ONE_OF_EACH, ids=lambda row: row.table)
    async def test_a_fact_is_never_written_twice_by_one_unit(self, store, row):
        (result,) = await store.commit([step(row.owner(), 0, row, row)])
        assert result.fate is Fate.VIOLATED
        assert result.constraint in constraints_of(row.table)

    @pytest.mark.parametrize("row", ONE_OF_EACH, ids=lambda row: row.table)
    async def test_a_fact_is_written_only_with_a_step_of_its_owner(self, store, row):
        other = step(Address(RUN_ID, "run", "somebody-else"), 0, row)
        assert await store.commit([other]) == [violated("owner_step")]
        assert await store.rows(TENANT, row.table, RUN_ID) == []

    async def test_a_fact_belongs_to_the_tenant_of_its_owner(self, store):
        assert await store.commit([step(None, 0, leaf(tenant="other"))]) == [violated("owner_tenant")]

    async def test_a_person_has_one_voice(self, store):
        await store.commit([step(approval_at(), 0, vote("alice", "dec_1"))])
        again = step(approval_at(), 1, vote("alice", "dec_2", decision="reject"))
        assert await store.commit([again]) == [violated("pk_approval_vote")]

    async def test_a_decision_is_one_vote(self, store):
        await store.commit([step(approval_at(), 0, vote("alice", "dec_1"))])
        again = step(approval_at(), 1, vote("bob", "dec_1"))
        assert await store.commit([again]) == [violated("uq_approval_vote_decision")]
        other = step(approval_at("apr_2"), 0, vote("bob", "dec_1", request_id="apr_2"))
        assert await store.commit([other]) == [COMMITTED]

    async def test_the_first_outcome_stays(self, store):
        await store.commit([step(approval_at(), 0, outcome("rejected", decided_by="bob"))])
        second = step(approval_at(), 1, outcome("approved"))
        assert await store.commit([second]) == [violated("pk_approval_outcome")]
        key = FactKey("approval_outcome", RUN_ID, REQUEST)
        assert (await store.load([], [key])).rows[key] == outcome("rejected", decided_by="bob")

    @pytest.mark.parametrize(
        ("row", "constraint"),
        [
            (outcome("perhaps"), "ck_approval_outcome_outcome"),
            (vote(decision="approved"), "ck_approval_vote_decision"),
            (operation(authority="nobody"), "ck_operation_authority"),
            (decision_attempt(0), "ck_decision_attempt_n"),
            (attempt(0), "ck_operation_attempt_n"),
            (retry(0), "ck_retry_decision_attempt"),
            (said(0), "ck_thread_message_n"),
            (leaf(0), "ck_audit_leaf_seq"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_a_word_or_number_out_of_bounds_is_refused(self, store, row, constraint):
        assert await store.commit([step(row.owner(), 0, row)]) == [violated(constraint)]

    @pytest.mark.parametrize(
        ("text", "constraint"), [("a\x00b", "text_nul"), ("a\ud800", "unstorable"), ("\udfffb", "unstorable")]
    )
    async def test_text_that_not_every_store_can_keep_is_refused_without_harm_to_neighbours(
        self, store, text, constraint
    ):
        poison = [
            step(THREAD_AT, 0, said(body_text=text)),
            step(run_at("run-2"), status=text),
            step(run_at("run-3"), journal=[entry(run_at("run-3"), facts=text)]),
            step(run_at("run-4"), outbox=[sent(type=text)]),
            Unit(dead_letters=[letter(reason=text)]),
        ]
        assert await store.commit([*poison, step()]) == [*[violated(constraint)] * len(poison), COMMITTED]

    async def test_numbers_beyond_64_bits_are_refused(self, store):
        assert await store.commit([step(THREAD_AT, 0, said(said_at_ms=2**63))]) == [violated("unstorable")]
        assert await store.commit([step(THREAD_AT, 0, said(said_at_ms=2**63 - 1))]) == [COMMITTED]

    @pytest.mark.parametrize("text", ["", " ", "\n\t\r", "æ", "日本語", "🦉" * 1_000, "\uffff\u200b\x7f", "'\"\\%_;--"])
    async def test_all_other_text_is_carried(self, store, text):
        await store.commit([step(approval_at(), 0, outcome(reason=text))])
        key = FactKey("approval_outcome", RUN_ID, REQUEST)
        assert (await store.load([], [key])).rows[key].reason == text

    async def test_the_first_answer_under_a_decision_id_is_the_one_that_is_found(self, store):
        await store.commit([step(approval_at(), 0, decision_attempt(1, "dec_9"))])
        await store.commit([step(approval_at(), 1, decision_attempt(2), decision_attempt(3))])
        await store.commit([step(approval_at(), 2, decision_attempt(4, "dec_9"))])
        keys = [FactKey("decision_attempt", RUN_ID, REQUEST, name) for name in ("dec_1", "dec_9", "dec_0")]
        rows = (await store.load([], keys)).rows
        assert [rows[key] for key in keys] == [decision_attempt(2), decision_attempt(1, "dec_9"), None]

    async def test_the_state_of_another_machine_is_read_as_a_row(self, store):
        await store.commit([step(status="suspended")])
        keys = [FactKey(STATE, RUN_ID, "run", ""), FactKey(STATE, RUN_ID, "thread", "plan")]
        loaded = await store.load([], keys)
        row = StateRow(tenant=TENANT, run_id=RUN_ID, machine="run", key="", version=1, status="suspended")
        assert [loaded.rows[key] for key in keys] == [row, None]
        assert loaded.versions == {run_at(): 1, Address(RUN_ID, "thread", "plan"): 0}

    # ── attempts ───────────────────────────────────────────────────────────────────────

    async def test_an_operation_has_one_open_attempt(self, store):
        await store.commit([step(OPERATION_AT, 0, attempt(1))])
        assert await store.commit([step(OPERATION_AT, 1, attempt(2))]) == [violated("uq_operation_attempt_open")]
        assert await store.commit([step(OPERATION_AT, 1, attempt_end(1), attempt(2))]) == [COMMITTED]
        ended = [row["ended"] for row in await store.rows(TENANT, "operation_attempt", RUN_ID)]
        assert ended == ["succeeded", None]

    async def test_an_attempt_may_open_and_end_in_one_unit_but_in_this_order(self, store):
        assert await store.commit([step(OPERATION_AT, 0, attempt_end(1), attempt(1))]) == [
            violated("operation_attempt_end")
        ]
        assert await store.commit([step(OPERATION_AT, 0, attempt(1), attempt_end(1), attempt(2))]) == [COMMITTED]

    async def test_an_attempt_ends_once(self, store):
        await store.commit([step(OPERATION_AT, 0, attempt(1), attempt_end(1, "unknown"))])
        again = step(OPERATION_AT, 1, attempt_end(1, "executed"))
        assert await store.commit([again]) == [violated("operation_attempt_end")]
        assert [row["ended"] for row in await store.rows(TENANT, "operation_attempt", RUN_ID)] == ["unknown"]

    async def test_an_attempt_that_never_began_cannot_end(self, store):
        assert await store.commit([step(OPERATION_AT, 0, attempt_end(1))]) == [violated("operation_attempt_end")]

    async def test_operations_do_not_share_their_attempts(self, store):
        other = Address(RUN_ID, "operation", "op_2")
        rows = attempt(1), attempt(1, operation_id="op_2")
        assert await store.commit([step(OPERATION_AT, 0, rows[0]), step(other, 0, rows[1])]) == [COMMITTED] * 2
