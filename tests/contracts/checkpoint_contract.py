"""Decides what the checkpoints of every store promise (runtime.checkpoints.CheckpointStore): section H of the cases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from placet.errors import Code, ContractError, PlacetError, TerminalError
from placet.facts import Facts
from placet.ids import Address
from placet.instants import Instant
from placet.machine import Record, State, Transition, Upgrader, move
from placet.messages import RUN, THREAD, CancelRun, CloseThread, Message
from placet.rows import FactKey, audit_leaf
from placet.runtime.checkpoints import StoredCheckpoints
from placet.runtime.ports import JournalEntry, Unit
from tests.builders import RUN_ID, TENANT
from tests.cases import case
from tests.contracts.on_store import COMMITTED, LOST, OnStore
from tests.contracts.units import ONE_OF_EACH, entry, run_at, said, sent, step, steps_of, write

OTHER_RUN = "run-2"
AT, THREAD_OF_IT, AT_OTHER = run_at(), Address(RUN_ID, THREAD, ""), run_at(OTHER_RUN)


class Note(State):
    """A state that can hold anything JSON can."""

    value: Any = None
    heard: tuple[str, ...] = ()


class NoteOfTwo(State):
    """The same, as the next version of the program keeps it."""

    upgraders: ClassVar[Mapping[int, Upgrader]] = {
        1: lambda old: {**{k: v for k, v in old.items() if k != "value"}, "worth": old.get("value", "older")}
    }

    worth: Any = None
    heard: tuple[str, ...] = ()
    schema_version: int = 2


class NoteOfThree(State):
    """The program after that, which has forgotten how the first version looked."""

    worth: Any
    told: tuple[str, ...] = ()
    schema_version: int = 3
    upgraders: ClassVar[Mapping[int, Upgrader]] = {
        2: lambda old: {**{k: v for k, v in old.items() if k != "heard"}, "told": old["heard"]}
    }


class NoteMachine:
    """Notes who cancelled, or why a thread was closed."""

    messages: frozenset[type[Message]] = frozenset({CancelRun, CloseThread})

    def __init__(self, name: str, kind: type[State] = Note) -> None:
        self.name = name
        self.state_type = kind

    def reads(self, message: Message) -> Sequence[FactKey]:
        return ()

    def transition(self, state: Any, message: Any, facts: Facts | None, now_ms: Instant) -> Transition[Any]:
        before: Any = state or self.state_type(tenant=message.tenant, run_id=message.run_id, status="open")
        names = (*(before.told if isinstance(before, NoteOfThree) else before.heard), message.type)
        field = "told" if isinstance(before, NoteOfThree) else "heard"
        seq = len(names)
        leaf = audit_leaf(
            tenant=message.tenant, run_id=message.run_id, seq=seq, kind="heard", subject="", detail={}, at_ms=now_ms,
            previous="",
        )  # fmt: skip
        return move(before.model_copy(update={field: names}), *([Record(leaf)] if self.name == RUN else []))


def note(value: Any = None, run_id: str = RUN_ID, **changes: Any) -> Note:
    """A state to save."""
    return Note(**{"tenant": TENANT, "run_id": run_id, "status": "open", "value": value, **changes})


async def code_of(call: Any) -> Code:
    """The code of the error that the call ends with."""
    with pytest.raises(PlacetError) as raised:
        await call
    return raised.value.code


class CheckpointContract(OnStore):
    """What everybody may rely on who saves and loads the state of a run."""

    def archive(self, store: Any) -> Any:
        """What the owner of the store may do."""
        raise NotImplementedError

    def checkpoints(self, store: Any, kind: type[State] = Note) -> Any:
        """The checkpoints on the store, as a program sees them whose states are of this kind."""
        machines = {name: NoteMachine(name, kind) for name in (RUN, THREAD)}
        return StoredCheckpoints(store, machines, self.archive(store))

    async def heard(self, store: Any, times: int, at: Address = AT) -> None:
        """The engine's own way: messages, each with its journal entry and its state."""
        machine, state = NoteMachine(at.machine), None  # type: Any, Any
        for version in range(1, times + 1):
            told = entry(at, version)
            message = CancelRun.model_validate_json(json.dumps(json.loads(told.message)["message"]))
            transition = machine.transition(state, message, None, Instant(told.at_ms))
            state = transition.state
            unit = step(at, version - 1, body=state.json_bytes(), status=state.status, journal=[told])
            unit.rows = [effect.row for effect in transition.effects if isinstance(effect, Record)]
            assert await store.commit([unit]) == [COMMITTED]

    # ── save and load ──────────────────────────────────────────────────────────────────

    @case("H01", "H02", "H04")
    @pytest.mark.parametrize(
        "value",
        [0, -1, 1.5, 1.0, 2**53, True, False, None, "", "æøå 日本 🦉", [], {}, {"a": [1, 1.0, "1", {"b": None}]}],
    )
    async def test_what_is_saved_is_loaded_with_its_types(self, store, value):
        kept = self.checkpoints(store)
        assert await kept.latest(AT) is None
        assert await kept.save(AT, note(value), parent=None) == 1
        for found in (await kept.latest(AT), await kept.load(AT, 1)):
            assert found.state == note(value)
            assert type(found.state.value) is type(value)
            assert repr(found.state.value) == repr(value)
            assert (found.version, found.parent, found.id) == (1, None, f"run:{RUN_ID}/@1")

    @case("H02")
    async def test_what_was_never_saved_is_none(self, store):
        kept = self.checkpoints(store)
        assert await kept.load(AT, 1) is None
        await kept.save(AT, note(), parent=None)
        assert [await kept.load(AT, version) for version in (-1, 0, 2, 2**62)] == [None] * 4
        assert await kept.latest(AT_OTHER) is None

    @case("H03", "H04")
    async def test_the_latest_is_the_one_with_the_highest_version_whatever_the_clock_says(self, store, clock):
        kept = self.checkpoints(store)
        for number in range(1, 5):
            assert await kept.save(AT, note(number), parent=number - 1 or None) == number
            clock.at_ms -= 1_000
        assert (await kept.latest(AT)).state.value == 4
        found = [await kept.load(AT, version) for version in range(1, 5)]
        assert [each.state.value for each in found] == [1, 2, 3, 4]
        assert [each.parent for each in found] == [None, 1, 2, 3]
        assert len({each.id for each in found}) == 4

    @case("H05")
    @pytest.mark.parametrize("parent", [None, 1, 3, 7])
    async def test_a_save_after_any_but_the_latest_is_refused_and_changes_nothing(self, store, parent):
        kept = self.checkpoints(store)
        await kept.save(AT, note("a"), parent=None)
        await kept.save(AT, note("b"), parent=1)
        assert await code_of(kept.save(AT, note("c"), parent=parent)) is Code.CHECKPOINT_CONFLICT
        assert (await kept.latest(AT)).state.value == "b"
        assert len(await store.read_journal(AT)) == 2

    @case("H05")
    async def test_a_save_after_a_version_where_there_is_nothing_is_refused(self, store):
        assert await code_of(self.checkpoints(store).save(AT, note(), parent=1)) is Code.CHECKPOINT_CONFLICT
        assert await self.checkpoints(store).latest(AT) is None

    @case("H06")
    @pytest.mark.parametrize("parent", [None, 1])
    async def test_of_saves_with_one_parent_at_once_one_wins(self, store, parent):
        kept = self.checkpoints(store)
        if parent:
            await kept.save(AT, note("first"), parent=None)
        saves = [kept.save(AT, note(number), parent=parent) for number in range(8)]
        ends = await asyncio.gather(*saves, return_exceptions=True)
        won = [number for number, end in enumerate(ends) if end == (parent or 0) + 1]
        lost = [end.code for end in ends if isinstance(end, TerminalError)]
        assert (len(won), lost) == (1, [Code.CHECKPOINT_CONFLICT] * 7)
        assert (await kept.latest(AT)).state.value == won[0]

    @case("D02")
    async def test_a_state_of_another_run_tenant_or_machine_is_not_saved(self, store):
        kept = self.checkpoints(store)
        assert await code_of(kept.save(AT, note(run_id=OTHER_RUN), parent=None)) is Code.SUBMISSION_INVALID
        other = NoteOfTwo(tenant=TENANT, run_id=RUN_ID, status="open", worth=1)
        assert await code_of(kept.save(AT, other, parent=None)) is Code.SUBMISSION_INVALID
        assert await kept.latest(AT) is None
        await kept.save(AT, note(), parent=None)
        assert await code_of(kept.save(AT, note(tenant="other"), parent=1)) is Code.SUBMISSION_INVALID
        assert (await kept.latest(AT)).version == 1

    @case("H14")
    async def test_the_store_decides_nothing_about_what_it_keeps(self, store):
        kept = self.checkpoints(store)
        doing = {"tasks": [{"id": "a", "status": "running", "committed": False}, {"id": "b", "status": "pending"}]}
        await kept.save(AT, note(doing, status="running"), parent=None)
        store = await self.reopen(store)
        found = await self.checkpoints(store).latest(AT)
        assert (found.state.value, found.state.status) == (doing, "running")
        await store.close()

    @case("H18")
    async def test_checkpoints_of_the_same_number_in_two_runs_or_machines_do_not_meet(self, store):
        kept = self.checkpoints(store)
        for at in (AT, AT_OTHER, THREAD_OF_IT):
            await kept.save(at, note(at.text(), at.run_id), parent=None)
        for at in (AT, AT_OTHER, THREAD_OF_IT):
            assert (await kept.load(at, 1)).state.value == at.text()
        assert len({(await kept.load(at, 1)).id for at in (AT, AT_OTHER, THREAD_OF_IT)}) == 3
        await kept.save(AT, note("next"), parent=1)
        assert [(await kept.latest(at)).version for at in (AT, AT_OTHER, THREAD_OF_IT)] == [2, 1, 1]

    # ── the engine's own ───────────────────────────────────────────────────────────────

    async def test_every_step_of_the_engine_is_a_checkpoint(self, store):
        await self.heard(store, 3)
        kept = self.checkpoints(store)
        assert [len((await kept.load(AT, version)).state.heard) for version in (1, 2, 3)] == [1, 2, 3]
        assert await kept.save(AT, note("repaired"), parent=3) == 4
        assert [(await kept.load(AT, version)).state.value for version in (3, 4)] == [None, "repaired"]
        assert (await store.journal(TENANT, RUN_ID))[-1]["type"] == "checkpoint.saved"

    @case("H05")
    async def test_a_step_of_the_engine_that_began_before_a_save_loses(self, store):
        await self.heard(store, 1)
        kept = self.checkpoints(store)
        await kept.save(AT, note("saved"), parent=1)
        assert await store.commit([step(AT, 1, journal=[entry(AT, 2)])]) == [LOST]
        assert (await kept.latest(AT)).state.value == "saved"

    # ── versions of the program ────────────────────────────────────────────────────────

    @case("H11")
    async def test_a_checkpoint_of_an_older_program_is_loaded_and_upgraded(self, store):
        old, new = self.checkpoints(store), self.checkpoints(store, NoteOfTwo)
        await old.save(AT, note([1]), parent=None)
        await old.save(AT, note([2]), parent=1)
        assert [(await new.load(AT, version)).state.worth for version in (1, 2)] == [[1], [2]]
        found = await new.latest(AT)
        assert (found.version, found.state.schema_version, found.state.worth) == (2, 2, [2])
        assert await new.save(AT, found.state.model_copy(update={"worth": 3}), parent=2) == 3
        assert [(await new.load(AT, version)).state.worth for version in (1, 2, 3)] == [[1], [2], 3]

    @case("H11")
    async def test_what_was_written_before_states_had_a_version_is_of_the_first(self, store):
        body = b'{"tenant":"%s","run_id":"%s","status":"open","value":7}' % (TENANT.encode(), RUN_ID.encode())
        await store.commit([step(AT, body=body, status="open")])
        assert (await self.checkpoints(store).latest(AT)).state == note(7)
        assert (await self.checkpoints(store, NoteOfTwo).latest(AT)).state.worth == 7
        await store.commit([step(AT, 1, body=body.replace(b',"value":7', b""), status="open")])
        assert (await self.checkpoints(store, NoteOfTwo).latest(AT)).state.worth == "older"

    @case("H11")
    @pytest.mark.parametrize("kind", [NoteOfTwo, NoteOfThree])
    async def test_a_checkpoint_of_a_newer_program_is_refused_and_never_overwritten(self, store, kind):
        made = kind(tenant=TENANT, run_id=RUN_ID, status="open", worth=1)
        await self.checkpoints(store, kind).save(AT, made, parent=None)
        kept = self.checkpoints(store)
        unsupported = Code.CHECKPOINT_VERSION_UNSUPPORTED
        assert await code_of(kept.latest(AT)) is unsupported
        assert await code_of(kept.load(AT, 1)) is unsupported
        assert await code_of(kept.save(AT, note("mine"), parent=1)) is unsupported
        assert await code_of(kept.save(AT, note("mine"), parent=None)) is Code.CHECKPOINT_CONFLICT
        assert await code_of(kept.prune(AT, 1_000)) is unsupported
        assert (await self.checkpoints(store, kind).latest(AT)).state == made

    @case("H11")
    async def test_a_newer_checkpoint_is_refused_even_where_this_program_could_read_all_of_it(self, store):
        body = note().json_bytes().replace(b'"schema_version":1', b'"schema_version":2')
        await store.commit([step(AT, body=body, status="open")])
        assert await code_of(self.checkpoints(store).latest(AT)) is Code.CHECKPOINT_VERSION_UNSUPPORTED

    @case("H11")
    async def test_a_checkpoint_that_is_too_old_for_any_upgrade_is_refused(self, store):
        await self.checkpoints(store).save(AT, note(), parent=None)
        kept = self.checkpoints(store, NoteOfThree)
        assert await code_of(kept.latest(AT)) is Code.CHECKPOINT_VERSION_UNSUPPORTED

    @case("H13")
    @pytest.mark.parametrize(
        "body",
        [b"", b"\xff", b"null", b"[]", b"{}", b'{"tenant":', b'{"schema_version":0}', b'{"schema_version":true}'],
    )
    async def test_what_cannot_be_read_is_an_error_and_not_none(self, store, body):
        await store.commit([step(AT, body=body)])
        kept = self.checkpoints(store)
        assert await code_of(kept.latest(AT)) is Code.CHECKPOINT_CORRUPT
        assert await code_of(kept.load(AT, 1)) is Code.CHECKPOINT_CORRUPT
        assert await code_of(kept.save(AT, note(), parent=1)) is Code.CHECKPOINT_CORRUPT
        [found] = (await store.load([AT], [])).states.values()
        assert (found.version, found.body) == (1, body)

    @case("H13")
    @pytest.mark.parametrize("field", ["run_id", "status"])
    async def test_a_checkpoint_that_says_it_is_another_is_corrupt(self, store, field):
        await store.commit([step(AT, body=note().json_bytes().replace(b"open", b"shut"), status="open")])
        assert await code_of(self.checkpoints(store).latest(AT)) is Code.CHECKPOINT_CORRUPT
        moved = note(run_id="elsewhere").json_bytes()
        await store.commit([step(AT, 1, body=moved, status="open")])
        assert await code_of(self.checkpoints(store).latest(AT)) is Code.CHECKPOINT_CORRUPT

    @case("H13")
    async def test_an_older_checkpoint_whose_journal_has_a_hole_or_a_forgery_is_corrupt(self, store):
        await self.heard(store, 1)
        body = note(heard=("x", "y")).json_bytes()
        await store.commit([step(AT, 1, body=body, version=3, status="open", journal=[entry(AT, 3)])])
        kept = self.checkpoints(store)
        assert (await kept.load(AT, 1)).state.heard
        assert await code_of(kept.load(AT, 2)) is Code.CHECKPOINT_CORRUPT
        assert await code_of(kept.prune(AT, 3)) is Code.CHECKPOINT_CORRUPT
        torn = JournalEntry(AT, 4, "msg_4", b'{"id":', "{}", entry().at_ms)
        await store.commit([step(AT, 3, body=body, version=4, status="open", journal=[torn])])
        await store.commit([step(AT, 4, body=body, version=5, status="open", journal=[entry(AT, 5)])])
        assert await code_of(kept.load(AT, 4)) is Code.CHECKPOINT_CORRUPT

    # ── letting go ─────────────────────────────────────────────────────────────────────

    @case("H10")
    async def test_a_deleted_run_is_gone_in_all_machines_and_others_are_untouched(self, store):
        kept = self.checkpoints(store)
        for at in (AT, THREAD_OF_IT, AT_OTHER):
            await kept.save(at, note(at.text(), at.run_id), parent=None)
        await store.commit([Unit(states=[write(said(1).owner())], rows=[said(1)], outbox=[sent("msg_1", 10**14)])])
        assert await kept.delete(RUN_ID) is True
        assert [await kept.latest(at) for at in (AT, THREAD_OF_IT)] == [None, None]
        assert await kept.load(AT, 1) is None
        assert [await store.read_journal(at) for at in (AT, THREAD_OF_IT)] == [[], []]
        assert await store.read_thread(RUN_ID, said(1).thread_id, 9) == []
        assert await store.states_of(TENANT, RUN_ID) == []
        assert await store.outbox(TENANT, RUN_ID) == []
        assert (await kept.latest(AT_OTHER)).state.value == AT_OTHER.text()
        assert await kept.delete(RUN_ID) is False
        assert await kept.delete("nobody's") is False

    @case("H10")
    async def test_a_deleted_run_leaves_what_people_decided_and_what_was_done(self, store):
        await store.commit([steps_of(*ONE_OF_EACH)])
        tables = [row.table for row in ONE_OF_EACH if row.table != "thread_message"]
        evidence = {table: await store.rows(TENANT, table, RUN_ID) for table in tables}
        assert await self.checkpoints(store).delete(RUN_ID) is True
        assert {table: await store.rows(TENANT, table, RUN_ID) for table in tables} == evidence
        assert all(evidence.values())

    async def test_after_a_deletion_nothing_can_be_deleted_any_other_way(self, store):
        """What kept everybody from it is there again."""
        await self.heard(store, 2)
        kept = self.checkpoints(store)
        await kept.prune(AT, 2)
        await kept.delete(OTHER_RUN)
        await self.refuses_to_delete(store)

    async def refuses_to_delete(self, store: Any) -> None:
        """For an adapter whose database can be asked directly."""

    async def test_a_service_deletes_nothing(self, store):
        await self.heard(store, 2)
        kept = StoredCheckpoints(store, {RUN: NoteMachine(RUN)})
        for call in (kept.delete(RUN_ID), kept.prune(AT, 2)):
            with pytest.raises(ContractError):
                await call
        assert len(await store.read_journal(AT)) == 2

    @pytest.mark.parametrize("before", [2, 3, 4, 5, 99])
    async def test_what_is_pruned_is_gone_and_all_that_is_newer_loads_as_before(self, store, before):
        await self.heard(store, 5)
        await self.heard(store, 2, AT_OTHER)
        kept = self.checkpoints(store)
        wanted = {version: await kept.load(AT, version) for version in range(1, 6)}
        horizon = min(before, 5)
        assert await kept.prune(AT, before) == horizon - 1
        found = {version: await kept.load(AT, version) for version in range(1, 6)}
        assert found == {version: wanted[version] if version >= horizon else None for version in wanted}
        assert [each.version for each in await store.read_journal(AT)] == list(range(horizon, 6))
        assert await kept.prune(AT, before) == 0
        assert len(await store.read_journal(AT_OTHER)) == 2
        told = {entry["version"]: entry["type"] for entry in await store.journal(TENANT, RUN_ID)}
        assert told[horizon] == "checkpoint.pruned"

    async def test_a_run_goes_on_after_its_past_was_pruned_and_can_be_pruned_again(self, store):
        await self.heard(store, 3)
        kept = self.checkpoints(store)
        await kept.prune(AT, 3)
        last = await kept.latest(AT)
        for version in (4, 5):
            told = last.state.model_copy(update={"heard": (*last.state.heard, *["run.cancel"] * (version - 3))})
            unit = step(AT, version - 1, body=told.json_bytes(), status="open", journal=[entry(AT, version)])
            assert await store.commit([unit]) == [COMMITTED]
        assert [len((await kept.load(AT, version)).state.heard) for version in (3, 4, 5)] == [3, 4, 5]
        assert await kept.prune(AT, 5) == 2
        assert [await kept.load(AT, version) for version in (3, 4)] == [None, None]
        assert (await kept.load(AT, 5)).state == (await kept.latest(AT)).state

    async def test_nothing_is_pruned_where_there_is_nothing(self, store):
        kept = self.checkpoints(store)
        assert await kept.prune(AT, 5) == 0
        await self.heard(store, 2)
        assert [await kept.prune(AT, before) for before in (-1, 0, 1)] == [0, 0, 0]
        assert len(await store.read_journal(AT)) == 2

    async def test_a_journal_that_does_not_lead_to_the_stored_state_is_not_pruned(self, store):
        await self.heard(store, 2)
        forged = note(heard=("run.cancel",) * 9).json_bytes()
        await store.commit([step(AT, 2, body=forged, status="open", journal=[entry(AT, 3)])])
        assert await code_of(self.checkpoints(store).prune(AT, 2)) is Code.CHECKPOINT_CORRUPT
        assert len(await store.read_journal(AT)) == 3
