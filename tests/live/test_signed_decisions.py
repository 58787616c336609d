"""Proves that decisions published on a real broker count by their signature alone, and that others are kept aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError

from placet.adapters.clocks import SystemClock
from placet.adapters.memory import MemoryStore
from placet.adapters.rabbitmq.deciding import DecisionDoor
from placet.believing import SignedVoices
from placet.client.queue import DecisionPublisher
from placet.errors import Code, ContractError, RetryableError, TerminalError
from placet.hosting.watched_keys import WatchedKeys
from placet.ids import Address
from placet.messages import APPROVAL, DecideApproval, Envelope, RequestApproval, decode_envelope
from placet.requests import ApprovalRequest
from placet.runtime.engine import Engine
from placet.runtime.ports import Delivery
from placet.runtime.refusing import NoApplication
from placet.runtime.worker import Worker
from placet.signatures import SigningKey
from placet.topology import APPROVALS, DECIDE_KEY, DECISIONS_EXCHANGE, WORK_EXCHANGE
from placet_approval.machine import ApprovalMachine
from tests.builders import TENANT
from tests.live import spaces
from tests.live.broker_ends import BrokerEnds, eventually
from tests.live.keyring import Keyring
from tests.machines.bench import ELSEWHERE
from tests.machines.builders_approval import CALL, a_person, a_request
from tests.signing import ENVIRONMENT, VALID_MS, a_statement

INGRESS = "placet.ingress.decisions"


class Silent:
    """No call to the world is made by these rules."""

    def monotonic_ms(self) -> float:
        return 0.0

    def start(self, activities: Any, since_ms: float) -> None:
        assert not activities


class Approval:
    """The approval service on a real broker; its facts in memory."""

    def __init__(self, ends: BrokerEnds, folder: Path, opened: ApprovalRequest | None = None) -> None:
        """`opened`: a question that is put before anything else is taken."""
        self.ends = ends
        self.ring = Keyring(folder)
        self.keys = WatchedKeys(self.ring.registry.read_text(), self.ring.registry)
        self.store = MemoryStore(SystemClock())
        self.engine = Engine(
            {APPROVAL: ApprovalMachine(SignedVoices(ENVIRONMENT, self.keys))}, NoApplication(), self.store
        )
        replies = ends.replies()
        self.inbox = ends.inbox(
            APPROVALS,
            sources=ends.topology.sources[APPROVALS],
            openers={INGRESS: DecisionDoor(ENVIRONMENT, self.keys).open},
            replies=replies,
        )
        self._worker = Worker(self.engine, self.inbox, Silent(), replies)
        self._working = asyncio.ensure_future(self._work(opened))
        self._asked = 0

    async def _work(self, opened: ApprovalRequest | None) -> None:
        if opened is not None:
            await self._put(opened)
        while True:
            await self._worker.turn()

    async def ask(self, **changes: Any) -> ApprovalRequest:
        """One more open question."""
        self._asked += 1
        content = CALL.model_copy(update={"tool_call_id": f"call-{self._asked}"})
        request = a_request(content, **{"expires_at_ms": None, "use_by_ms": None, **changes})
        await self._put(request)
        return request

    async def _put(self, request: ApprovalRequest) -> None:
        message = RequestApproval(
            tenant=request.tenant, run_id=request.run_id, request_id=request.request_id, request=request
        )
        await self.engine.process([Delivery(Envelope(id=f"ask-{request.request_id}", message=message), self._asked)])

    async def status(self, request: ApprovalRequest) -> str:
        """How it stands, by the facts."""
        address = Address(request.run_id, APPROVAL, request.request_id)
        state = (await self.store.load([address], [])).states[address]
        return state.status if state is not None else "absent"

    def votes(self) -> list[Any]:
        """Every vote that is recorded."""
        return list(self.store.snapshot()["approval_vote"])

    async def close(self) -> None:
        """End it."""
        self._working.cancel()
        await asyncio.wait([self._working])


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


@pytest.fixture
async def approval(ends: BrokerEnds, tmp_path: Path) -> AsyncIterator[Approval]:
    approval = Approval(ends, tmp_path)
    yield approval
    await approval.close()


@pytest.fixture
def reviewer_url(rabbitmq: Any, ends: BrokerEnds, amqp_url: str) -> Any:
    """The address of a user with the rights that deploy/make_secrets.py gives to outside reviewers."""
    name, vhost = spaces.fresh_name(), urlsplit(amqp_url).path[1:]
    management = rabbitmq.management
    management.call(f"users/{name}", "PUT", {"password": "secret", "tags": ""})
    rights = {"configure": "^$", "read": "^$", "write": r"^placet\.decisions$"}
    management.call(f"permissions/{quote(vhost, safe='')}/{name}", "PUT", rights)
    parts = urlsplit(amqp_url)
    yield urlunsplit(parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}"))
    management.call(f"users/{name}", "DELETE")


def decision(request: ApprovalRequest, by: str = "alice", **changes: Any) -> DecideApproval:
    fields: dict[str, Any] = {
        "tenant": request.tenant,
        "run_id": request.run_id,
        "request_id": request.request_id,
        "decision_id": f"d-{by}",
        "request_hash": request.request_hash,
        "decision": "approve",
        "reviewer": a_person(by),
    }
    return DecideApproval(**{**fields, **changes})


async def now_ms(approval: Approval) -> int:
    return int((await approval.store.load([], [])).now_ms)


def publisher(url: str, key: SigningKey, **changes: Any) -> DecisionPublisher:
    return DecisionPublisher(url, key, **{"environment": ENVIRONMENT, "tenant": TENANT, **changes})


def asked(request: ApprovalRequest, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": request.run_id,
        "decision": "approve",
        "request_hash": request.request_hash,
        "decision_id": "d-1",
        **changes,
    }


# ── what counts ─────────────────────────────────────────────────────────────────────────


async def test_a_signed_decision_is_accepted_and_its_repeat_gets_the_same_receipt_and_no_vote(
    approval: Approval, reviewer_url: str
) -> None:
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    request = await approval.ask()
    async with publisher(reviewer_url, alice) as queue:
        first = await queue.decide(request.request_id, **asked(request))
        assert (first.answer, first.outcome, first.decided_by) == ("accepted", "approved", "alice")
        again = await queue.decide(request.request_id, **asked(request))
    assert again == first, "byte for byte, the answer word in it"
    [vote] = approval.votes()
    assert vote["person_id"] == "alice"
    assert json.loads(vote["evidence_text"])["signatures"][0]["keyid"] == alice.keyid
    assert await approval.ends.count("placet.dead") == 0


async def test_the_same_envelope_again_from_somebody_else_s_connection_changes_nothing(
    approval: Approval, reviewer_url: str
) -> None:
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    request = await approval.ask()
    text = alice.sign(a_statement(decision(request), await now_ms(approval)))
    receipts = []
    for url in (reviewer_url, approval.ends.url):
        async with publisher(url, alice) as queue:
            receipts += [await queue.publish(text, decision_id="d-alice") for _ in range(3)]
    assert len({receipt.model_dump_json() for receipt in receipts}) == 1
    assert len(approval.votes()) == 1


async def test_a_refusal_is_told_with_its_code_and_the_winner(approval: Approval, reviewer_url: str) -> None:
    alice, bob = (approval.ring.enrol(name, tenants=(TENANT,)) for name in ("alice", "bob"))
    request = await approval.ask()
    async with publisher(reviewer_url, alice) as queue:
        await queue.decide(request.request_id, **asked(request))
    async with publisher(reviewer_url, bob) as queue:
        with pytest.raises(TerminalError, match="already approved by alice") as caught:
            await queue.decide(request.request_id, **asked(request, decision="reject", decision_id="d-bob"))
        assert caught.value.code is Code.APPROVAL_CONFLICT
        with pytest.raises(TerminalError) as caught:
            await queue.decide(request.request_id, **asked(request, request_hash="0" * 64, decision_id="d-2"))
        assert caught.value.code is Code.APPROVAL_STALE_DECISION


async def test_a_key_that_is_revoked_while_the_message_lies_in_the_queue_votes_no_more(
    ends: BrokerEnds, tmp_path: Path, reviewer_url: str
) -> None:
    ring = Keyring(tmp_path)
    alice, bob = (ring.enrol(name, tenants=(TENANT,)) for name in ("alice", "bob"))
    request = a_request(CALL, expires_at_ms=None, use_by_ms=None)
    exchange = await (await (await ends.connection(reviewer_url)).channel()).get_exchange(
        DECISIONS_EXCHANGE, ensure=False
    )
    for key in (alice, bob):
        statement = a_statement(decision(request, key.person or ""), SystemClock().now_ms())
        await exchange.publish(aio_pika.Message(key.sign(statement).encode()), DECIDE_KEY)
    assert await ends.count(INGRESS) == 2, "nobody takes them yet"
    ring.revoke(alice)
    approval = Approval(ends, tmp_path, request)
    (parked,) = await ends.parked(1)
    assert parked.headers["x-placet-code"] == Code.SIGNATURE_INVALID

    async def is_approved() -> bool:
        return await approval.status(request) == "approved"

    await eventually(is_approved)
    assert [vote["person_id"] for vote in approval.votes()] == ["bob"]
    await approval.close()


async def test_a_registry_that_is_broken_keeps_the_keys_that_were_known_and_is_told(
    approval: Approval, reviewer_url: str
) -> None:
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    request = await approval.ask(quorum=2)
    assert approval.keys.trouble is None
    approval.ring.registry.write_text("{")
    async with publisher(reviewer_url, alice) as queue:
        assert (await queue.decide(request.request_id, **asked(request))).answer == "accepted"
    assert "keys known before still count" in str(approval.keys.trouble)
    approval.ring.write()
    assert approval.keys.trouble is None
    assert approval.keys.key(alice.keyid) is None


async def test_no_receipt_in_time_is_unknown_and_the_decision_counts_all_the_same(
    ends: BrokerEnds, tmp_path: Path, reviewer_url: str
) -> None:
    ring = Keyring(tmp_path)
    alice = ring.enrol("alice", tenants=(TENANT,))
    request = a_request(CALL, expires_at_ms=None, use_by_ms=None)
    async with publisher(reviewer_url, alice) as queue:
        with pytest.raises(RetryableError, match="same decision id, d-1") as caught:
            await queue.decide(request.request_id, **asked(request, timeout_ms=1_000))
    assert caught.value.code is Code.OUTCOME_UNKNOWN
    assert await ends.count(INGRESS) == 1


async def test_nothing_is_sent_where_no_broker_can_be_reached_or_the_key_is_a_gateway_s() -> None:
    with pytest.raises(ContractError):
        publisher("amqp://127.0.0.1:9/", SigningKey.generate())
    async with publisher("amqp://127.0.0.1:9/", SigningKey.generate("alice")) as queue:
        with pytest.raises(RetryableError) as caught:
            await queue.publish("{}", decision_id="d", timeout_ms=500)
    assert caught.value.code is Code.BROKER_UNAVAILABLE


# ── what does not ───────────────────────────────────────────────────────────────────────

Make = Callable[[Approval, ApprovalRequest], Awaitable[tuple[bytes, dict[str, Any]]]]


def a_bad_one(**of_statement: Any) -> Make:
    """Rightly signed by alice, but for what is named."""

    async def make(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
        alice = approval.ring.enrol("alice", tenants=(TENANT,))
        statement = a_statement(decision(request), await now_ms(approval), **of_statement)
        return alice.sign(statement).encode(), {}

    return make


async def unsigned(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
    return Envelope(id="m", message=decision(request)).encode(), {}


async def by_a_stranger(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
    return SigningKey.generate("alice").sign(a_statement(decision(request), await now_ms(approval))).encode(), {}


async def changed(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
    good, _ = await a_bad_one()(approval, request)
    other, _ = await a_bad_one(decision="reject")(approval, request)
    return json.dumps({**json.loads(good), "payload": json.loads(other)["payload"]}).encode(), {}


async def for_bob(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    return alice.sign(a_statement(decision(request, "bob"), await now_ms(approval))).encode(), {}


def with_properties(**properties: Any) -> Make:
    async def make(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
        good, _ = await a_bad_one()(approval, request)
        return good, properties

    return make


async def too_large(approval: Approval, request: ApprovalRequest) -> tuple[bytes, dict[str, Any]]:
    return b" " * 500_000, {}


REFUSED: dict[str, tuple[Make, Code]] = {
    "unsigned": (unsigned, Code.MESSAGE_INVALID),
    "by a key that nobody knows": (by_a_stranger, Code.SIGNATURE_INVALID),
    "mis-signed": (changed, Code.SIGNATURE_INVALID),
    "in another person's name": (for_bob, Code.SIGNATURE_INVALID),
    "for a foreign tenant": (a_bad_one(tenant=ELSEWHERE), Code.SIGNATURE_INVALID),
    "for another installation": (a_bad_one(environment="staging"), Code.SIGNATURE_MISMATCH),
    "without an end": (a_bad_one(not_after_ms=2**52), Code.SIGNATURE_MISMATCH),
    "with a CC": (with_properties(headers={"CC": ["approval.decide"]}), Code.MESSAGE_INVALID),
    "with a rider": (with_properties(headers={"x-something": "else"}), Code.MESSAGE_INVALID),
    "with an answer to a queue": (with_properties(reply_to="placet.tool-executor"), Code.MESSAGE_INVALID),
    "as several lines": (with_properties(content_type="application/x-ndjson"), Code.MESSAGE_INVALID),
    "too large": (too_large, Code.TOO_LARGE),
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
async def test_what_is_not_rightly_signed_is_kept_aside_with_the_reason_and_never_voted(
    kind: str, approval: Approval, reviewer_url: str
) -> None:
    make, code = REFUSED[kind]
    request = await approval.ask()
    body, properties = await make(approval, request)
    channel = await (await approval.ends.connection(reviewer_url)).channel()
    exchange = await channel.get_exchange(DECISIONS_EXCHANGE, ensure=False)
    await exchange.publish(aio_pika.Message(body, **properties), DECIDE_KEY)
    (parked,) = await approval.ends.parked(1)
    assert (parked.headers["x-placet-code"], parked.headers["x-placet-queue"]) == (code.value, INGRESS)
    assert parked.body == body
    assert approval.votes() == []
    assert await approval.status(request) == "open"


async def kept(approval: Approval) -> list[tuple[str, str]]:
    """Code and envelope of the decisions among the dead letters."""
    letters = await approval.store.dead_letters(TENANT, run_id=None, limit=9)
    messages = [decode_envelope(letter["body"].encode()).message for letter in letters]
    return [(letter["code"], getattr(message, "signed", "")) for letter, message in zip(letters, messages, strict=True)]


@pytest.mark.parametrize("at_ms", [-2 * VALID_MS - 60_000, 10 * VALID_MS])
async def test_out_of_its_time_a_decision_is_refused_to_its_publisher_kept_aside_and_never_voted(
    at_ms: int, approval: Approval, reviewer_url: str
) -> None:
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    request = await approval.ask()
    text = alice.sign(a_statement(decision(request), await now_ms(approval) + at_ms))
    async with publisher(reviewer_url, alice) as queue:
        with pytest.raises(TerminalError) as caught:
            await queue.publish(text, decision_id="d-alice")
    assert caught.value.code is Code.SIGNATURE_EXPIRED
    assert approval.votes() == []
    assert await kept(approval) == [(Code.SIGNATURE_EXPIRED, text)]


async def test_a_decision_by_a_key_that_is_out_of_its_time_is_kept_aside_although_its_publisher_is_told(
    approval: Approval, reviewer_url: str
) -> None:
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    ended = await now_ms(approval) - 600_000
    *others, entry = approval.ring.entries()
    approval.ring.write(*others, entry.model_copy(update={"not_after_ms": ended}))
    request = await approval.ask()
    text = alice.sign(a_statement(decision(request), await now_ms(approval)))
    async with publisher(reviewer_url, alice) as queue:
        with pytest.raises(TerminalError) as caught:
            await queue.publish(text, decision_id="d-alice")
    assert approval.votes() == []
    assert await kept(approval) == [(caught.value.code, text)]


async def test_a_decision_forged_between_the_services_is_refused_into_the_dead_letters(approval: Approval) -> None:
    request = await approval.ask()
    alice = approval.ring.enrol("alice", tenants=(TENANT,))
    lent = alice.sign(a_statement(decision(request, decision="reject"), await now_ms(approval)))
    forged = [decision(request, decision_id="f-1"), decision(request, decision_id="f-2", signed=lent)]
    channel = await (await approval.ends.connection()).channel()
    exchange = await channel.get_exchange(WORK_EXCHANGE, ensure=False)
    for message in forged:
        await exchange.publish(aio_pika.Message(Envelope(id=message.decision_id, message=message).encode()), APPROVALS)
    async with publisher(approval.ends.url, alice) as queue:  # what comes after them is taken after them
        good = await queue.decide(request.request_id, **asked(request))
    assert good.answer == "accepted"
    found = {letter["id"]: letter for letter in await approval.store.dead_letters(TENANT, run_id=None, limit=9)}
    parked = {decode_envelope(letter["body"].encode()).id: letter["code"] for letter in found.values()}
    assert parked == {"f-1": Code.SIGNATURE_INVALID, "f-2": Code.SIGNATURE_MISMATCH}
    assert [vote["decision_id"] for vote in approval.votes()] == ["d-1"]


async def test_a_reviewer_s_user_can_do_nothing_else_at_the_broker(approval: Approval, reviewer_url: str) -> None:
    for target in ("placet.work", "placet.submissions", "placet.events", "placet.dead", ""):
        channel = await (await approval.ends.connection(reviewer_url)).channel()
        exchange = channel.default_exchange if not target else await channel.get_exchange(target, ensure=False)
        with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
            await exchange.publish(aio_pika.Message(b"x"), "approval")
