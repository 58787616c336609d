"""Proves that a replay says whether what is stored of a run is what it did, and names the first thing that is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from placet.adapters.memory import MemoryStore
from placet.believing import ReplayedVoices
from placet.ids import Address
from placet.messages import APPROVAL, OPERATION, RUN, THREAD
from placet.runtime.checkpoints import StoredCheckpoints
from placet.runtime.ports import JournalEntry, StoredState
from placet.runtime.verifying import Kept, Verified, verify
from placet_embedded.system import machines
from tests.contracts.desks import an_app
from tests.contracts.units import ManualClock
from tests.rebuilding import TENANT, Office

THE_RUN = Address("r1", RUN, "")


async def finished(store: MemoryStore | None = None) -> MemoryStore:
    """A run that planned, waited for people, called its tool and answered."""
    clock = ManualClock()
    store = store or MemoryStore(clock)
    office = Office(store, clock, an_app)
    await office.submit("note it")
    assert (await office.to_the_end())["status"] == "succeeded"
    return store


async def kept_of(store: Any) -> Kept:
    """All that is stored of the run."""
    states = {
        Address("r1", row["machine"], row["key"]): StoredState(row["version"], row["status"], row["body"])
        for row in await store.states_of(TENANT, "r1")
    }
    journals = {address: list(await store.read_journal(address)) for address in states}
    tables = store.snapshot()
    facts = {table: await store.rows(TENANT, table, "r1") for table in tables if table in store._facts}
    return Kept(states, journals, facts)


def checked(kept: Kept) -> Verified:
    return verify(machines(ReplayedVoices()), kept)


def changed(kept: Kept, address: Address, at: int, **changes: Any) -> Kept:
    """With another entry in a journal."""
    entries = list(kept.journals[address])
    entries[at] = replace(entries[at], **changes)
    return replace(kept, journals={**kept.journals, address: entries})


def told(found: Verified) -> str:
    assert found.differences
    return found.differences[0].sentence()


async def test_what_a_run_did_is_what_is_stored() -> None:
    kept = await kept_of(await finished())
    found = checked(kept)
    assert found.differences == []
    assert {address.machine for address in found.steps} == {RUN, THREAD, OPERATION, APPROVAL}
    assert sum(map(len, found.steps.values())) == sum(map(len, kept.journals.values())) > 30


async def test_a_state_that_somebody_changed_is_named_with_the_place() -> None:
    kept = await kept_of(await finished())
    stored = kept.states[THE_RUN]
    forged = replace(stored, body=stored.body.replace(b'"answer":"all is noted"', b'"answer":"nothing"'))
    sentence = told(checked(replace(kept, states={**kept.states, THE_RUN: forged})))
    assert sentence == (
        f"run:r1/ version {stored.version}: the stored state is another: /answer is 'nothing' and was 'all is noted'"
    )
    blank = replace(stored, body=stored.body + b" ")
    assert "the stored state is another" in told(checked(replace(kept, states={**kept.states, THE_RUN: blank})))
    assert "the status beside" in told(
        checked(replace(kept, states={**kept.states, THE_RUN: replace(stored, status="failed")}))
    )


async def test_an_entry_that_is_missing_or_changed_is_named() -> None:
    kept = await kept_of(await finished())
    entries = kept.journals[THE_RUN]
    without = {**kept.journals, THE_RUN: [*entries[:2], *entries[3:]]}
    assert "version 4: the journal of run:r1/ is not whole: entry 3 is missing" in told(
        checked(replace(kept, journals=without))
    )
    headless = {**kept.journals, THE_RUN: entries[1:]}
    assert "version 2: the journal of run:r1/ is not whole: entry 1 is missing" in told(
        checked(replace(kept, journals=headless))
    )
    shorter = {**kept.journals, THE_RUN: entries[:-1]}
    assert f"the journal ends at version {len(entries) - 1}" in told(checked(replace(kept, journals=shorter)))
    assert "there is a journal and no state" in told(checked(replace(kept, states={})))
    assert "the journal ends at version 0" in told(checked(replace(kept, journals={})))
    torn = changed(kept, THE_RUN, 1, message=entries[1].message[:-5])
    assert "version 2: the journal of run:r1/ is not whole" in told(checked(torn))


async def test_what_the_rules_were_told_cannot_be_changed_unseen() -> None:
    kept = await kept_of(await finished())
    for at, entry in enumerate(kept.journals[THE_RUN]):
        facts = json.loads(entry.facts)
        more = json.dumps({**facts, "answers": [*facts["answers"], None]})
        assert checked(changed(kept, THE_RUN, at, facts=more)).differences, at
        if facts["rows"]:
            assert checked(changed(kept, THE_RUN, at, facts=json.dumps({**facts, "rows": []}))).differences, at
        assert checked(changed(kept, THE_RUN, at, at_ms=entry.at_ms + 1)).differences, at


@pytest.mark.parametrize("table", ["audit_leaf", "operation", "approval_vote", "approval_outcome", "thread_message"])
async def test_a_row_that_somebody_changed_removed_or_added_is_named(table: str) -> None:
    kept = await kept_of(await finished())
    rows = list(kept.facts[table])
    column = next(name for name, value in rows[-1].items() if isinstance(value, int) and name.endswith("_ms"))

    def with_rows(changed_rows: list[Any]) -> str:
        return told(checked(replace(kept, facts={**kept.facts, table: changed_rows})))

    assert f"is another: {column} is 1 and was" in with_rows([*rows[:-1], {**rows[-1], column: 1}])
    assert f"the row {table} " in with_rows(rows[:-1])
    assert "is missing" in with_rows(rows[:-1])
    key = {"audit_leaf": "seq", "thread_message": "n"}.get(table, "run_id")
    if key != "run_id":
        assert "no step has written" in with_rows([*rows, {**rows[-1], key: 1_000}])


async def test_an_attempt_whose_end_was_changed_is_named() -> None:
    kept = await kept_of(await finished())
    first, *rest = kept.facts["operation_attempt"]
    forged = {**kept.facts, "operation_attempt": [{**first, "ended": "failed"}, *rest]}
    assert "ended is 'failed' and was 'succeeded'" in told(checked(replace(kept, facts=forged)))
    reopened = {**kept.facts, "operation_attempt": [{**first, "ended": None}, *rest]}
    assert "ended is None and was 'succeeded'" in told(checked(replace(kept, facts=reopened)))


async def test_a_message_that_is_not_what_was_sent_is_named() -> None:
    kept = await kept_of(await finished())
    thread = Address("r1", THREAD, "task:one")
    first = kept.journals[thread][0]
    other = first.message.replace(b"first", b"worst")
    assert other != first.message
    found = checked(changed(kept, thread, 0, message=other))
    assert any("turn.take is not what run:r1/ sent" in each.what for each in found.differences)


async def test_what_was_pruned_is_not_missed_and_what_is_left_is_still_compared() -> None:
    store = await finished()
    await StoredCheckpoints(store, machines(), store).prune(THE_RUN, 4)
    kept = await kept_of(store)
    found = checked(kept)
    assert found.differences == []
    assert found.steps[THE_RUN][0].version == 4
    leaves = list(kept.facts["audit_leaf"])
    forged = {**kept.facts, "audit_leaf": [*leaves[:-1], {**leaves[-1], "kind": "run.forged"}]}
    assert "kind is 'run.forged'" in told(checked(replace(kept, facts=forged)))


async def test_the_first_difference_is_the_earliest() -> None:
    kept = await kept_of(await finished())
    leaves = [{**leaf, "kind": "x"} for leaf in kept.facts["audit_leaf"]]
    found = checked(replace(kept, facts={**kept.facts, "audit_leaf": leaves}))
    assert [each.at_ms for each in found.differences] == sorted(each.at_ms for each in found.differences)
    assert (found.differences[0].version, len(found.differences)) == (1, len(leaves))


async def test_a_machine_that_is_not_known_is_said() -> None:
    kept = await kept_of(await finished())
    found = verify({RUN: machines()[RUN]}, kept)
    assert any("no thread machine is known here" in each.what for each in found.differences)


async def test_a_base_that_somebody_changed_is_no_longer_where_the_rest_leads_from() -> None:
    store = await finished()
    await StoredCheckpoints(store, machines(), store).prune(THE_RUN, 4)
    kept = await kept_of(store)
    base: JournalEntry = kept.journals[THE_RUN][0]
    assert checked(changed(kept, THE_RUN, 0, message=base.message.replace(b"note it", b"note me"))).differences
