"""Proves what the engine promises: what commits together, what a guard guards, and what becomes of whoever lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from placet.adapters.memory import MemoryStore
from placet.errors import Code, ContractError, RetryableError
from placet.ids import Address
from placet.instants import Instant
from placet.machine import refuse
from placet.messages import RUN, THREAD, ApprovalDecided, Envelope
from placet.runtime.engine import Engine
from placet.runtime.fold import HELD_MS
from placet.runtime.parcels import outbox_row
from placet.runtime.ports import CommitResult, Delivery, Fate, StateWrite, Unit
from placet.runtime.replay import replay
from tests.cases import case
from tests.runtime.toy import TOYS, Counter, NoApplication, cancel, submit

COUNTER, FOLLOWER = Address("run-1", RUN, ""), Address("run-1", THREAD, "follower")
TOKENS = count(1)


class SetClock:
    """A clock that a test sets."""

    def __init__(self, at_ms: int = 1_000) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> Instant:
        return Instant(self.at_ms)


class InterferingStore(MemoryStore):
    """Somebody else gets in between the load and the commit, as often as `units` has something to commit."""

    def __init__(self, clock: SetClock) -> None:
        super().__init__(clock)
        self.interfering: list[Unit] = []
        self.commits: list[Sequence[Unit]] = []

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        if self.interfering:
            assert (await super().commit([self.interfering.pop(0)]))[0].fate is Fate.COMMITTED
        self.commits.append(units)
        return await super().commit(units)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(clock: SetClock) -> InterferingStore:
    return InterferingStore(clock)


def engine(store: MemoryStore, *, hosted: Sequence[str] = (RUN, THREAD)) -> Engine:
    return Engine({name: TOYS[name] for name in hosted}, NoApplication(), store)


def delivered(*envelopes: Envelope, outbox: str | None = None) -> list[Delivery]:
    return [Delivery(envelope, next(TOKENS), outbox) for envelope in envelopes]


async def status(store: MemoryStore, address: Address) -> tuple[int, str] | None:
    stored = (await store.load([address], [])).states[address]
    return None if stored is None else (stored.version, stored.status)


def a_step(address: Address, version: int, word: str = "elsewhere") -> Unit:
    """What another worker might commit in between."""
    seen = tuple(f"elsewhere {number}" for number in range(version))
    state = Counter(tenant="acme", run_id=address.run_id, status=word, seen=seen)
    write = StateWrite(address, "acme", version - 1, version, word, state.model_dump_json().encode())
    return Unit(states=[write])


async def test_a_hand_over_commits_with_what_caused_it(store: InterferingStore) -> None:
    settlement = await engine(store).process(delivered(submit("one")))
    assert await status(store, COUNTER) == (1, "counting")
    assert await status(store, FOLLOWER) == (1, "listening")
    (units,) = store.commits
    assert len(units) == 1
    assert not units[0].outbox
    assert [len(settlement.done), len(settlement.activities), list(settlement.changed)] == [1, 1, ["run-1"]]


async def test_a_message_for_a_machine_elsewhere_becomes_an_outbox_row(store: InterferingStore) -> None:
    settlement = await engine(store, hosted=[RUN]).process(delivered(submit("one")))
    assert settlement.outbox_rows == 1
    (row,) = await store.claim_due(10, 1_000)
    assert (row.destination, row.type, row.not_before_ms) == ("planner", "thread.close", 0)
    assert await status(store, FOLLOWER) is None


async def test_a_timer_is_an_outbox_row_also_for_a_machine_hosted_here(
    store: InterferingStore, clock: SetClock
) -> None:
    await engine(store).process(delivered(submit("one", timeout_ms=500)))
    assert await store.claim_due(10, 1_000) == []
    clock.at_ms += 500
    assert [row.not_before_ms for row in await store.claim_due(10, 1_000)] == [1_500]


async def test_messages_for_one_key_are_one_write_and_as_many_journal_entries(store: InterferingStore) -> None:
    await engine(store).process(delivered(submit("one"), submit("two"), submit("three")))
    assert await status(store, COUNTER) == (3, "counting")
    (units,) = store.commits
    assert [len(unit.states) for unit in units] == [2]
    assert [entry.version for entry in await store.read_journal(COUNTER)] == [1, 2, 3]


async def test_replaying_the_journal_gives_the_state_byte_for_byte(store: InterferingStore) -> None:
    await engine(store).process(delivered(submit("one"), submit("two")))
    await engine(store).process(delivered(cancel()))
    for address in (COUNTER, FOLLOWER):
        stored = (await store.load([address], [])).states[address]
        replayed = replay(TOYS[address.machine], await store.read_journal(address))
        assert stored is not None
        assert replayed is not None
        assert replayed.model_dump_json().encode() == stored.body


async def test_a_unit_that_lost_its_race_is_folded_again_on_what_won(store: InterferingStore) -> None:
    await engine(store).process(delivered(submit("one")))
    store.interfering.append(a_step(COUNTER, 2))
    settlement = await engine(store).process(delivered(submit("two"), submit("other", run_id="run-2")))
    assert await status(store, COUNTER) == (3, "counting")
    assert settlement.conflicts == 1
    assert len(settlement.done) == 2
    assert [len(units) for units in store.commits] == [1, 2, 1], "only the one that lost is folded again"


async def test_a_unit_that_lost_three_races_is_given_back_and_nothing_of_it_is_told(store: InterferingStore) -> None:
    store.interfering += [a_step(COUNTER, version) for version in (1, 2, 3)]
    (mine, other) = delivered(submit("one"), submit("other", run_id="run-2"))
    settlement = await engine(store).process([mine, other])
    assert settlement.back == [mine]
    assert settlement.done == [other]
    assert [text for text, _ in settlement.replies] == ["r-other"]
    assert len(settlement.activities) == 1


async def test_what_was_read_of_another_state_must_still_hold_at_commit(store: InterferingStore) -> None:
    await engine(store).process(delivered(submit("one")))
    store.interfering.append(a_step(FOLLOWER, 2, "gone"))
    settlement = await engine(store, hosted=[RUN]).process(delivered(cancel()))
    assert settlement.conflicts == 1
    assert await status(store, COUNTER) == (2, "follower gone")


async def test_the_absence_of_what_was_read_must_still_hold_at_commit(store: InterferingStore) -> None:
    store.interfering.append(a_step(FOLLOWER, 1, "come"))
    await engine(store, hosted=[RUN]).process(delivered(cancel()))
    assert await status(store, COUNTER) == (1, "follower come")


async def test_whoever_reads_what_is_not_committed_yet_commits_with_it(store: InterferingStore) -> None:
    """`cancel` of run-1 sees the follower that `submit` has just changed: both commit, or neither."""
    await engine(store).process(delivered(submit("one"), cancel()))
    assert await status(store, COUNTER) == (2, "follower nobody")
    store.commits.clear()
    await engine(store).process(delivered(cancel(), submit("two")))
    assert [len(units) for units in store.commits] == [1]


async def test_a_deadline_that_passed_before_the_commit_loses_until_the_rule_sees_it(
    store: InterferingStore, clock: SetClock
) -> None:
    clock.at_ms = 999_999
    settlement = await engine(store).process(delivered(submit("in time")))
    assert len(settlement.done) == 1
    clock.at_ms = 1_000_000
    settlement = await engine(store).process(delivered(submit("in time", run_id="run-2")))
    assert (settlement.done, len(settlement.back)) == ([], 1)


async def test_a_refused_message_is_a_dead_letter_unless_somebody_waits_for_the_answer(store: InterferingStore) -> None:
    asked = await engine(store).process(delivered(submit("refuse")))
    assert asked.dead_letters == 0
    assert '"SUBMISSION_INVALID"' in asked.replies[0][1]
    hinted = await engine(store).process(delivered(submit("refuse", reply=False)))
    assert hinted.dead_letters == 1
    (letter,) = await store.dead_letters("acme", run_id=None, limit=10)
    assert letter["code"] == Code.SUBMISSION_INVALID
    assert await status(store, COUNTER) is None


async def test_a_bug_in_a_rule_parks_its_message_and_nothing_else(store: InterferingStore) -> None:
    settlement = await engine(store).process(delivered(submit("bug", reply=False), submit("one"), submit("two")))
    assert settlement.dead_letters == 1
    assert len(settlement.done) == 3
    assert await status(store, COUNTER) == (2, "counting")


async def test_a_refusal_further_on_does_not_undo_what_caused_it(store: InterferingStore) -> None:
    settlement = await engine(store).process(delivered(submit("deaf")))
    assert settlement.dead_letters == 1
    assert await status(store, COUNTER) == (1, "counting")


async def test_facts_that_violate_a_constraint_park_the_message_that_brought_them(store: InterferingStore) -> None:
    await engine(store).process(delivered(submit("one")))
    settlement = await engine(store).process(delivered(submit("twice"), submit("two"), submit("x", run_id="run-2")))
    assert settlement.dead_letters == 1
    assert len(settlement.done) == 3
    assert await status(store, COUNTER) == (2, "counting")
    assert await status(store, Address("run-2", RUN, "")) == (1, "counting")


# ── a state that cannot be read: written by a newer program, or damaged ────────────────


async def break_state(store: MemoryStore, address: Address, body: bytes = b'{"of_a_newer_version": true}') -> None:
    """As somebody else left it."""
    await store.commit([Unit(states=[StateWrite(address, "acme", 0, 1, "counting", body)])])


async def repair(store: MemoryStore, address: Address) -> None:
    """A person has put it right."""
    await store.commit([Unit(states=[a_step(address, 2).states[0]])])


async def test_whoever_asks_a_state_that_cannot_be_read_is_told_to_ask_again_and_its_neighbours_go_on(
    store: InterferingStore,
) -> None:
    await break_state(store, COUNTER)
    settlement = await engine(store).process(delivered(submit("one"), submit("x", run_id="run-2")))
    answers = dict(settlement.replies)
    assert '"CHECKPOINT_CORRUPT"' in answers["r-one"]
    assert '"final":false' in answers["r-one"]
    assert '"accepted"' in answers["r-x"]
    assert (settlement.dead_letters, len(settlement.done), settlement.back) == (0, 2, [])
    assert list(settlement.unreadable) == [COUNTER]
    assert await status(store, COUNTER) == (1, "counting")
    assert await store.outbox("acme", "run-1") == []


@pytest.mark.parametrize("outbox", [True, False])
async def test_what_is_for_a_state_that_cannot_be_read_waits_until_it_can(
    store: InterferingStore, clock: SetClock, outbox: bool
) -> None:
    envelope = submit("one", reply=False)
    await break_state(store, COUNTER)
    if outbox:
        await store.commit([Unit(outbox=[outbox_row(envelope)])])
        await store.claim_due(10, 1_000)
    (delivery,) = delivered(envelope, outbox=outbox_row(envelope).id if outbox else None)
    for _ in range(3):
        settlement = await engine(store).process([delivery])
        assert (settlement.dead_letters, len(settlement.done), settlement.outbox_rows) == (0, 1, 1)
        assert await store.claim_due(10, 1_000) == [], "not at once: it would go round and round"
        clock.at_ms += HELD_MS
        (row,) = await store.claim_due(10, 1_000)
        held = Envelope.model_validate_json(row.body)
        assert held.model_copy(update={"again": None}) == envelope
        (delivery,) = delivered(held, outbox=row.id)
    await repair(store, COUNTER)
    await engine(store).process([delivery])
    assert await status(store, COUNTER) == (3, "counting")
    assert await store.outbox("acme", "run-1") == []


async def test_a_message_that_came_twice_waits_twice_and_is_no_contradiction(store: InterferingStore) -> None:
    envelope = submit("one", reply=False)
    await break_state(store, COUNTER)
    settlement = await engine(store).process(delivered(envelope, envelope))
    assert (settlement.dead_letters, len(settlement.done), settlement.outbox_rows) == (0, 2, 2)


async def test_what_is_handed_over_to_a_state_that_cannot_be_read_waits_and_does_not_undo_what_caused_it(
    store: InterferingStore, clock: SetClock
) -> None:
    await break_state(store, FOLLOWER)
    settlement = await engine(store).process(delivered(submit("one")))
    assert await status(store, COUNTER) == (1, "counting")
    assert '"accepted"' in dict(settlement.replies)["r-one"]
    assert list(settlement.unreadable) == [FOLLOWER]
    assert await store.claim_due(10, 1_000) == []
    clock.at_ms += HELD_MS
    assert [row.type for row in await store.claim_due(10, 1_000)] == ["thread.close"]


async def test_a_message_for_a_machine_that_is_not_here_is_parked(store: InterferingStore) -> None:
    settlement = await engine(store, hosted=[THREAD]).process(delivered(submit("one", reply=False)))
    assert settlement.dead_letters == 1


@pytest.mark.parametrize("machine", ["nobody", "no\x00body"])
async def test_a_message_for_a_machine_that_nobody_serves_is_parked_and_its_neighbours_go_on(
    store: InterferingStore, machine: str
) -> None:
    told = ApprovalDecided(
        tenant="acme", run_id="run-2", request_id="apr_1", outcome="approved", asker_machine=machine, asker_key=""
    )
    settlement = await engine(store).process(delivered(Envelope(id="m-forged", message=told), submit("one")))
    assert (len(settlement.done), settlement.dead_letters) == (2, 1)
    assert await status(store, COUNTER) == (1, "counting")
    (letter,) = await store.dead_letters("acme", run_id="run-2", limit=10)
    assert (letter["destination"], letter["at_ms"]) == ("", 1_000)


async def test_the_outbox_row_of_an_applied_message_goes_with_the_commit_that_applies_it(
    store: InterferingStore,
) -> None:
    await engine(store, hosted=[RUN]).process(delivered(submit("one")))
    (row,) = await store.claim_due(10, 1_000)
    envelope = Envelope.model_validate_json(row.body)
    await engine(store).process(delivered(envelope, outbox=row.id))
    assert await status(store, FOLLOWER) == (1, "listening")
    assert await store.outbox("acme", "run-1") == []


async def test_the_outbox_row_of_an_absorbed_message_goes_too(store: InterferingStore) -> None:
    await engine(store, hosted=[RUN]).process(delivered(submit("one")))
    (row,) = await store.claim_due(10, 1_000)
    envelope = Envelope.model_validate_json(row.body)
    await engine(store).process(delivered(envelope))
    assert len(await store.outbox("acme", "run-1")) == 1
    await engine(store).process(delivered(envelope, outbox=row.id))
    assert await store.outbox("acme", "run-1") == []


async def test_ids_of_messages_are_the_same_whenever_the_same_step_is_taken() -> None:
    ids = []
    for _ in range(2):
        store = InterferingStore(SetClock())
        await engine(store, hosted=[RUN]).process(delivered(submit("one"), submit("two")))
        ids.append([row.id for row in await store.claim_due(10, 1_000)])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


async def test_a_store_that_fails_tells_nobody_anything(store: InterferingStore) -> None:
    async def away(units: Sequence[Unit]) -> Sequence[CommitResult]:
        raise RetryableError(Code.STORE_UNAVAILABLE, "away")

    store.commit = away  # type: ignore[method-assign]
    with pytest.raises(RetryableError):
        await engine(store).process(delivered(submit("one")))


async def test_what_was_committed_before_the_store_failed_is_acted_upon_and_the_rest_comes_again(
    store: InterferingStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.interfering.append(a_step(COUNTER, 1))
    commits = store.commit

    async def once(units: Sequence[Unit]) -> Sequence[CommitResult]:
        if store.commits:
            raise RetryableError(Code.STORE_UNAVAILABLE, "away")
        return await commits(units)

    store.commit = once  # type: ignore[method-assign]
    (mine, other) = delivered(submit("one"), submit("other", run_id="run-2"))
    settlement = await engine(store).process([mine, other])
    assert (settlement.done, settlement.back) == ([other], [mine])
    assert len(settlement.activities) == 1, "or the call would be looked for only when its lease ends"
    assert [record.message for record in caplog.records if record.name == "placet.engine"] == ["batch.cut_short"]


@case("B14")
def test_a_store_that_does_not_compare_and_set_is_refused_before_anything_is_written(store: InterferingStore) -> None:
    store.compares_and_sets = False
    with pytest.raises(ContractError) as raised:
        engine(store)
    assert raised.value.code is Code.APPROVAL_ATOMIC_STORE_REQUIRED
    assert store.commits == []


@case("B25")
def test_a_store_that_redacts_is_refused_since_its_rows_could_not_be_verified(store: InterferingStore) -> None:
    class Redacting:
        """A filter in front of a store, which does not claim to keep every byte."""

        def __getattr__(self, name: str) -> object:
            return False if name == "is_verbatim" else getattr(store, name)

    with pytest.raises(ContractError) as raised:
        engine(Redacting())  # type: ignore[arg-type]
    assert raised.value.code is Code.APPROVAL_ATOMIC_STORE_REQUIRED


async def test_a_dead_letter_under_a_known_id_takes_no_other_s_place(store: InterferingStore) -> None:
    """An outsider chooses the id of what it submits: its letter must not stand where a real message's would."""
    real = submit("one", reply=False)
    forged = real.model_copy(update={"cause": "made up"})
    for envelope in (forged, real):
        await engine(store, hosted=[THREAD]).process(delivered(envelope))
    bodies = [letter["body"] for letter in store.snapshot()["dead_letter"]]
    assert sorted(bodies) == sorted([forged.encode(), real.encode()])


async def test_a_refusal_that_is_to_be_kept_is_a_dead_letter_although_whoever_asked_is_told(
    store: InterferingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = TOYS[RUN]
    keeping = lambda *given: refuse(Code.SIGNATURE_INVALID, "not believed", run_id="run-1", keep=True)  # noqa: E731
    monkeypatch.setattr(type(machine), "transition", lambda self, *given: keeping(*given))
    for reply_to in ("first", "second"):
        asked = submit("one").model_copy(update={"reply_to": reply_to})
        settlement = await engine(store).process(delivered(asked))
        assert [reply_to for reply_to, _ in settlement.replies] == [reply_to]
    assert [letter["code"] for letter in store.snapshot()["dead_letter"]] == [Code.SIGNATURE_INVALID], "one letter"
