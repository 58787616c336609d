"""Proves the order of a turn: nobody is answered, nothing is started before the commit, and nothing taken is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import pytest

from placet.activities import Activity
from placet.adapters.memory import MemoryStore
from placet.errors import Code, RetryableError
from placet.instants import Instant
from placet.messages import APPROVAL, RUN, THREAD, DecideApproval, Envelope
from placet.runtime.engine import Engine
from placet.runtime.ports import CommitResult, Delivery, Mark, OutboxRow, Unit
from placet.runtime.worker import Worker
from placet.values import Principal, PrincipalKind
from tests.runtime.toy import TOYS, NoApplication, submit

TOKENS = count(1)


class Record:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []


class RecordingStore(MemoryStore):
    def __init__(self, record: Record) -> None:
        super().__init__(self)
        self.record = record
        self.fails = False

    def now_ms(self) -> Instant:
        return Instant(1_000)

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        if self.fails:
            raise RetryableError(Code.OUTCOME_UNKNOWN, "the answer of the commit was lost")
        self.record.events.append("commit")
        return await super().commit(units)


class RecordingPorts:
    """Inbox, Invoker, Replies and Arbiter of one test."""

    def __init__(self, record: Record, *waiting: Envelope) -> None:
        self.record = record
        self.waiting = [Delivery(envelope, next(TOKENS)) for envelope in waiting]
        self.back: list[Delivery] = []
        self.told: list[tuple[str, str]] = []
        self.grants = True
        self.since_ms: list[float] = []

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        taken, self.waiting = self.waiting[:batch_max], self.waiting[batch_max:]
        return taken

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        self.record.events.append(f"settle {len(done)} done {len(back)} back")
        self.back += back

    def monotonic_ms(self) -> float:
        return float(self.record.events.count("commit"))  # a clock that ticks with every commit

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        self.since_ms.append(since_ms)
        self.record.events.append(f"start {len(activities)}")

    async def send(self, reply_to: str, text: str) -> None:
        self.record.events.append(f"reply {reply_to}")
        self.told.append((reply_to, text))

    async def claim(self, keys: Sequence[str], nonce: str) -> Sequence[bool]:
        self.record.events.append(f"claim {','.join(keys)}")
        return [self.grants for _ in keys]

    async def finish(self, marks: Mapping[str, Mark], nonce: str) -> None:
        self.record.events.append(f"finish {','.join(f'{key} {mark}' for key, mark in marks.items())}")


class RecordingOutlet:
    connections = 1

    def __init__(self, record: Record) -> None:
        self.record = record
        self.rows: list[OutboxRow] = []

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        self.record.events.append(f"publish {len(rows)}")
        self.rows += rows
        return ()


def worker(ports: RecordingPorts, store: RecordingStore, *, referee: bool = False) -> Worker:
    engine = Engine({RUN: TOYS[RUN], THREAD: TOYS[THREAD], APPROVAL: TOYS[THREAD]}, NoApplication(), store)
    return Worker(engine, ports, ports, ports, arbiter=ports if referee else None)


def decision(reply_to: str | None = "r-decide") -> Envelope:
    message = DecideApproval(
        tenant="acme",
        run_id="run-1",
        request_id="apr_1",
        decision_id="d-1",
        request_hash="0" * 64,
        decision="approve",
        reviewer=Principal(kind=PrincipalKind.HUMAN, id="alice"),
    )
    return Envelope(id="m-decide", reply_to=reply_to, message=message)


async def test_the_commit_comes_before_the_acknowledgement_and_that_before_answers_and_activities() -> None:
    record = Record()
    ports = RecordingPorts(record, submit("one"), submit("two"))
    assert await worker(ports, RecordingStore(record)).turn()
    assert record.events == ["commit", "settle 2 done 0 back", "reply r-one", "reply r-two", "start 2"]


async def test_what_is_due_at_once_is_published_after_the_commit_and_what_is_a_timer_is_not() -> None:
    record = Record()
    ports, store, outlet = RecordingPorts(record, submit("one")), RecordingStore(record), RecordingOutlet(record)
    engine = Engine({RUN: TOYS[RUN]}, NoApplication(), store, claim_ms=500)
    await Worker(engine, ports, ports, ports, outlet=outlet).turn()
    assert record.events == ["commit", "publish 1", "settle 1 done 0 back", "reply r-one", "start 1"]
    assert [row.claim_ms for row in outlet.rows] == [500]
    assert await store.claim_due(9, 1) == []


async def test_the_time_in_which_a_call_may_begin_is_counted_from_before_the_commit() -> None:
    record = Record()
    ports = RecordingPorts(record, submit("one"))
    assert await worker(ports, RecordingStore(record)).turn()
    assert (ports.monotonic_ms(), ports.since_ms) == (1.0, [0.0])


async def test_a_closed_inbox_ends_the_worker() -> None:
    record = Record()
    assert not await worker(RecordingPorts(record), RecordingStore(record)).turn()
    assert record.events == []


async def test_a_store_that_fails_gives_everything_back_and_tells_nobody() -> None:
    record = Record()
    ports, store = RecordingPorts(record, submit("one"), submit("two")), RecordingStore(record)
    store.fails = True
    with pytest.raises(RetryableError):
        await worker(ports, store).turn()
    assert record.events == ["settle 0 done 2 back"]
    assert ports.told == []


async def test_the_referee_is_asked_before_anything_is_loaded_and_told_after_the_answer() -> None:
    record = Record()
    ports = RecordingPorts(record, decision())
    await worker(ports, RecordingStore(record), referee=True).turn()
    assert record.events == [
        "claim acme/run-1/apr_1",
        "settle 1 done 0 back",
        "start 0",
        "finish acme/run-1/apr_1 free",
    ]


async def test_a_decision_that_somebody_else_is_deciding_is_told_to_ask_again_and_never_that_it_lost() -> None:
    record = Record()
    ports = RecordingPorts(record, decision(), submit("one"))
    ports.grants = False
    await worker(ports, RecordingStore(record), referee=True).turn()
    answers = dict(ports.told)
    assert '"busy"' in answers["r-decide"]
    assert '"final":false' in answers["r-decide"]
    assert '"accepted"' in answers["r-one"]


async def test_a_decision_that_nobody_waits_for_goes_on_to_the_facts_whatever_the_referee_says() -> None:
    record = Record()
    ports = RecordingPorts(record, decision(reply_to=None))
    ports.grants = False
    store = RecordingStore(record)
    await worker(ports, store, referee=True).turn()
    assert "commit" not in record.events  # the toy absorbs it; it was not answered as busy
    assert ports.told == []
    assert record.events[:2] == ["claim acme/run-1/apr_1", "settle 1 done 0 back"]
