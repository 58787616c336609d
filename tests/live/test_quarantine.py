"""Proves that what nobody could handle gets from the broker to where people see it: whole, once, and bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from placet import limits
from placet.adapters.memory import MemoryStore
from placet.adapters.rabbitmq import collecting, open_submission
from placet.adapters.sql.postgres import PostgresStore
from placet.adapters.sql.postgres_migrating import migrate
from placet.errors import Code, RetryableError
from placet.runtime.parcels import outbox_row
from placet.runtime.ports import CommitResult, Fate, Unit
from placet.runtime.relay import Relay
from placet.topology import DEAD_QUEUE, DISPATCHER, PACK_MAX, RESUME, Source
from tests.builders import TENANT
from tests.cases import case
from tests.contracts.queue_contract import an_envelope, collect, ids, rows
from tests.contracts.units import ManualClock
from tests.live.broker_ends import BrokerEnds, eventually
from tests.live.dead_letters import collector, give_up, is_drained, letters_of, park, publish

SUBMISSIONS = "placet.ingress.submissions"
COUNT = "x-delivery-count"
OUTSIDERS = (Source(SUBMISSIONS, 16, public=True),)


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


# ── what becomes of one ────────────────────────────────────────────────────────────────


async def test_what_the_broker_gave_up_is_a_dead_letter_for_each_message_in_it(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    await ends.outlet().publish(rows(1, 2, 3))
    await give_up(ends, DISPATCHER)
    one = collector(ends, store)
    found = await letters_of(store, 3)
    assert sorted(letter["body"] for letter in found) == sorted(an_envelope(n).encode().decode() for n in (1, 2, 3))
    assert {letter["run_id"] for letter in found} == {an_envelope(n).message.run_id for n in (1, 2, 3)}
    for letter in found:
        assert (letter["code"], letter["queue"]) == ("DELIVERY_LIMIT", "placet.dispatcher")
        assert letter["destination"] == DISPATCHER
        assert letter["about"]["content_type"] == "application/x-ndjson"
        assert (letter["about"]["exchange"], letter["about"]["routing_key"]) == ("placet.work", "dispatcher")
    await is_drained(ends, one)


async def test_what_a_service_could_not_read_is_a_dead_letter_with_the_reason_and_its_bytes(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    taking = asyncio.ensure_future(ends.inbox(RESUME).take(1))
    await ends.put_raw(RESUME, b"\xff\xfe\x00A\x1b[2J", content_type="text/plain", message_id="m-1")
    one = collector(ends, store)
    (letter,) = await letters_of(store, 1, tenant="")
    assert Code(letter["code"]) is Code.JSON_TEXT
    assert (letter["queue"], letter["about"]["content_type"]) == ("placet.resume", "text/plain")
    assert letter["about"]["message_id"] == "m-1"
    assert letter["body"] == "\\xff\\xfe\x00A\x1b[2J", "what a terminal must not see is the command line's to escape"
    assert (await store.dead_letter("", letter["id"]) or {})["body_base64"] == "//4AQRtbMko="
    await is_drained(ends, one)
    taking.cancel()


async def test_what_an_outsider_said_belongs_to_no_tenant_whatever_it_names(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    inbox = ends.inbox(sources=OUTSIDERS, openers={SUBMISSIONS: open_submission})
    taking = asyncio.ensure_future(inbox.take(1))
    await publish(ends, an_envelope(1).encode(), content_type="application/json")
    collector(ends, store)
    (letter,) = await letters_of(store, 1, tenant="")
    assert await store.dead_letters(TENANT, run_id=None, limit=9) == []
    assert (letter["run_id"], letter["code"]) == ("", "UNAUTHENTICATED")
    assert (letter["about"]["user_id"], letter["about"]["exchange"]) == ("guest", "placet.submissions")
    taking.cancel()


async def test_an_outsider_that_lets_its_message_expire_passes_nothing_off_as_a_service_s(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    """The broker parks it then, with the publisher's own headers, which may be called like ours."""
    about = json.dumps({"user_id": "somebody-else", "exchange": "placet.work"})
    names = {"queue": "placet.resume", "code": "MESSAGE_INVALID", "reason": "made up", "about": about}
    headers = {f"x-placet-{name}": value for name, value in names.items()}
    await publish(ends, an_envelope(1).encode(), content_type="application/json", headers=headers, expiration=0)
    one = collector(ends, store)
    (letter,) = await letters_of(store, 1, tenant="")
    assert (letter["queue"], letter["code"], letter["run_id"]) == (SUBMISSIONS, "EXPIRED", "")
    assert (letter["about"]["user_id"], letter["about"]["exchange"]) == ("guest", "placet.submissions")
    assert await store.dead_letters(TENANT, run_id=None, limit=9) == []
    await is_drained(ends, one)
    await ends.door().send_as_it_came(letter["queue"], letter["body"].encode(), letter["about"])
    queue = await (await (await ends.connection()).channel()).get_queue(SUBMISSIONS)
    again = await queue.get(timeout=5)
    assert (again.body, again.user_id, again.exchange) == (an_envelope(1).encode(), "guest", "placet.submissions")


@case("P138")
async def test_what_the_broker_gave_up_takes_its_rows_along_and_no_relay_sends_it_again(ends: BrokerEnds) -> None:
    """Else it would end its next twenty consumers as soon as its claim has lapsed, and so on for ever."""
    clock = ManualClock()
    store, outlet = MemoryStore(clock), ends.outlet()
    given_up, other = [outbox_row(an_envelope(n)) for n in (1, 2)], outbox_row(an_envelope(3))
    await store.commit([Unit(outbox=given_up)])
    await Relay(store, outlet).turn()
    await give_up(ends, DISPATCHER)
    await store.commit([Unit(outbox=[other])])
    one = collector(ends, store)
    found = await letters_of(store, 2)
    await is_drained(ends, one)
    assert sorted(letter["body"].encode() for letter in found) == sorted(row.body for row in given_up)
    clock.at_ms += 600_000
    await Relay(store, outlet).turn()
    assert ids(await collect(ends.inbox(), 1)) == ["msg_3"], "what was given up does not come before it"
    assert [row["id"] for row in store.snapshot()["outbox"]] == [other.id]


async def test_a_body_that_is_too_large_is_cut_and_says_so(ends: BrokerEnds, store: MemoryStore, monkeypatch) -> None:
    monkeypatch.setattr(limits, "LETTER_BYTES_MAX", 100)
    await park(ends, "placet.resume", b"x" * 101)
    collector(ends, store)
    (letter,) = await letters_of(store, 1, tenant="")
    assert letter["body"] == "x" * 100
    assert (letter["about"]["cut"], letter["about"]["bytes"]) == (True, 101)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-placet-queue": "placet.nowhere", "x-placet-code": "lower case", "x-placet-reason": "\x00\x1b nul"},
        {"x-placet-about": "{", "x-placet-queue": 7, "x-placet-code": -1},
        {"x-placet-about": "[" * 16_000, "x-death": "nonsense", "x-first-death-queue": ["placet.resume"]},
        {"x-placet-about": '{"message_id":"\\ud800"}'},
        {"x-placet-about": '{"a":' * 900 + "1" + "}" * 900},
        {"x-death": [{"routing-keys": 1, "exchange": 2}], "x-placet-tried-ms": "later"},
    ],
)
async def test_headers_that_lie_about_a_dead_letter_harm_nobody(
    ends: BrokerEnds, store: MemoryStore, headers: dict[str, Any]
) -> None:
    body = b"\n".join(b"%d" % n for n in range(500))
    await park(ends, "placet.anything", body, headers=headers, content_type="application/x-ndjson")
    await park(ends, "placet.resume", an_envelope(1).encode())
    one = collector(ends, store)
    await letters_of(store, 1)
    (strange,) = await letters_of(store, 1, tenant="")
    assert strange["body"] == body.decode(), "it is not split into hundreds of rows"
    assert strange["queue"] in (DEAD_QUEUE, "placet.resume")
    assert "\x00" not in strange["reason"]
    assert json.dumps(strange, ensure_ascii=False).encode()
    await is_drained(ends, one)


async def test_a_body_of_more_messages_than_we_ever_pack_is_one_dead_letter(
    ends: BrokerEnds, store: MemoryStore
) -> None:
    body = b"\n".join([b"{}"] * (PACK_MAX + 1))
    await park(ends, "placet.resume", body, content_type="application/x-ndjson")
    collector(ends, store)
    (letter,) = await letters_of(store, 1, tenant="")
    assert letter["body"] == body.decode()


# ── never lost, never twice ────────────────────────────────────────────────────────────


class Unwell(MemoryStore):
    """Loses its answer, or cannot be reached, as often as it is told to."""

    lost = 0
    away = 0
    commits = 0

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        self.commits += 1
        if self.away:
            self.away -= 1
            raise RetryableError(Code.STORE_UNAVAILABLE, "the store is away")
        results = await super().commit(units)
        if self.lost:
            self.lost -= 1
            raise RetryableError(Code.OUTCOME_UNKNOWN, "the answer was lost")
        return results


@pytest.mark.parametrize("trouble", ["lost", "away"])
async def test_one_whose_storing_is_unknown_is_stored_again_as_the_same_row(
    ends: BrokerEnds, monkeypatch, trouble: str
) -> None:
    monkeypatch.setattr(collecting, "BACKOFF_S", 0.01)
    store = Unwell(ManualClock())
    setattr(store, trouble, 3)
    await park(ends, "placet.resume", an_envelope(1).encode(), an_envelope(1).encode(), an_envelope(2).encode())
    one = collector(ends, store)
    await letters_of(store, 2)
    await is_drained(ends, one)
    assert store.commits >= 4
    assert one.report()["trouble"] == "none"


async def test_a_collector_that_is_killed_before_it_acknowledges_loses_nothing_and_doubles_nothing(
    ends: BrokerEnds, store: MemoryStore, monkeypatch
) -> None:
    stored = asyncio.Event()

    async def never(taken: object) -> None:
        stored.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "_acknowledge", never)
        await park(ends, "placet.resume", an_envelope(1).encode())
        first = collector(ends, store)
        await asyncio.wait_for(stored.wait(), 10)
        await first.close()
    await eventually(lambda: ends.count(DEAD_QUEUE))
    one = collector(ends, store)
    await is_drained(ends, one)
    await letters_of(store, 1)


async def test_while_the_store_is_away_dead_letters_stay_and_it_is_told(ends: BrokerEnds) -> None:
    store = Unwell(ManualClock())
    store.away = 1_000_000
    await park(ends, "placet.resume", an_envelope(1).encode())
    one = collector(ends, store)

    async def told() -> bool:
        return "the store is away" in one.report()["trouble"]

    await eventually(told)
    await one.close()
    (left,) = await ends.parked(1)
    assert left.body == an_envelope(1).encode()


class Choosy(MemoryStore):
    """Refuses one body for ever."""

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        refused = CommitResult(Fate.VIOLATED, "choosy")
        return [
            refused if unit.dead_letters[0].body == b"poison" else (await super(Choosy, self).commit([unit]))[0]
            for unit in units
        ]


async def test_one_that_cannot_be_stored_stays_and_its_neighbours_flow(ends: BrokerEnds, monkeypatch) -> None:
    monkeypatch.setattr(collecting, "PREFETCH", 2)
    monkeypatch.setattr(collecting, "REST_S", 0.1)
    store = Choosy(ManualClock())
    await park(ends, "placet.resume", b"poison", *(an_envelope(n).encode() for n in range(20)))
    one = collector(ends, store)
    await letters_of(store, 20)
    await park(ends, "placet.resume", an_envelope(99).encode())
    await letters_of(store, 21)
    monkeypatch.setattr(collecting, "REST_S", 600)

    async def rests() -> bool:
        return len(one._held) == 1 and not one._waiting

    await eventually(rests)
    await one.close()
    (left,) = await ends.parked(1)
    assert (left.body, left.headers["x-placet-queue"]) == (b"poison", "placet.resume")


# ── bounded ────────────────────────────────────────────────────────────────────────────


async def test_past_the_bound_of_a_queue_its_dead_letters_stay_at_the_broker_and_those_of_others_flow(
    ends: BrokerEnds, store: MemoryStore, monkeypatch
) -> None:
    monkeypatch.setattr(collecting, "PREFETCH", 4)
    monkeypatch.setattr(collecting, "REST_S", 0.1)
    bodies = [an_envelope(n).encode() for n in range(12)]
    await park(ends, SUBMISSIONS, *bodies)
    await park(ends, "placet.resume", *bodies)
    one = collector(ends, store, rows_max=5)
    await letters_of(store, 5, tenant="")
    await letters_of(store, 5)
    trouble = one.report()["trouble"]
    assert f"5 dead letters of {SUBMISSIONS} are kept: more of them stay in {DEAD_QUEUE}" in trouble
    assert one.report()["kept"] == 10
    await park(ends, "placet.planner", an_envelope(99).encode())
    await letters_of(store, 6)
    monkeypatch.setattr(collecting, "REST_S", 600)

    async def rests() -> bool:  # so that its end comes between nothing
        return len(one._held) == 4 and not one._waiting

    await eventually(rests)
    await one.close()

    async def all_there() -> bool:
        return await ends.count(DEAD_QUEUE) == 14

    await eventually(all_there)
    one = collector(ends, store, rows_max=100)
    await letters_of(store, 12, tenant="")
    await letters_of(store, 13)
    await is_drained(ends, one)


async def test_two_collectors_keep_each_letter_once(ends: BrokerEnds, store: MemoryStore) -> None:
    one = collector(ends, store)
    collector(ends, store)
    await park(ends, "placet.resume", *(an_envelope(n).encode() for n in range(100)))
    await letters_of(store, 100)
    await is_drained(ends, one)


async def test_on_postgresql_a_dispatchers_role_suffices_and_a_nul_is_no_hindrance(
    ends: BrokerEnds, postgres_url: str
) -> None:
    await migrate(postgres_url, prefix=None)
    store = await PostgresStore.open(postgres_url, name="test")
    try:
        await park(ends, "placet.resume", b'\x00"\\u0000"', an_envelope(1).encode(), headers={"a\x00b": "\x00"})
        one = collector(ends, store)
        (letter,) = await letters_of(store, 1, tenant="")
        assert letter["body"] == '\x00"\\u0000"'
        await letters_of(store, 1)
        assert await store.count_dead_letters("placet.resume", 9) == 2
        await store.commit([Unit(outbox=[outbox_row(an_envelope(2))])])
        given_up = {"x-placet-code": "DELIVERY_LIMIT"}  # and tried again after a rest
        await park(ends, "placet.resume", an_envelope(2).encode(), headers=given_up)
        await letters_of(store, 2)
        await is_drained(ends, one)
        _, due_ms = await store.next_due_ms()
        assert due_ms is None, "its outbox row has gone with it"
    finally:
        await store.close()
