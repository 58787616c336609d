"""Questions over the broker come back answered, hints wake windows, and outsiders get no further than their door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError

from placet.adapters.rabbitmq import Asker, RabbitDoor, declare, open_submission, verify
from placet.errors import Code, RetryableError, TerminalError
from placet.machine import Receipt
from placet.messages import Envelope, ExecuteOperation, RunTimedOut, SubmitRun
from placet.topology import (
    DECISIONS_EXCHANGE,
    DISPATCHER,
    SUBMISSIONS_EXCHANGE,
    SUBMIT_KEY,
    TOOL_EXECUTOR,
    make_topology,
)
from placet.values import Principal, PrincipalKind
from tests.builders import TENANT
from tests.cases import case
from tests.contracts.queue_contract import PATIENCE_S, an_envelope, collect, ids, is_empty
from tests.live import spaces
from tests.live.broker_ends import BrokerEnds, eventually

INGRESS = "placet.ingress.submissions"


@pytest.fixture
async def ends(amqp_url: str) -> AsyncIterator[BrokerEnds]:
    async with BrokerEnds(amqp_url) as ends:
        yield ends


async def answering(ends: BrokerEnds, text: str = "answer to {}") -> asyncio.Task[None]:
    """A service that answers whatever it is asked."""
    inbox, replies = ends.inbox(), ends.replies()

    async def work() -> None:
        while taken := await inbox.take(64):
            await inbox.settle(taken, [])
            for delivery in taken:
                if delivery.envelope.reply_to is not None:
                    await replies.send(delivery.envelope.reply_to, text.format(delivery.envelope.id))

    return asyncio.ensure_future(work())


def question(n: int) -> SubmitRun:
    message = an_envelope(n).message
    assert isinstance(message, SubmitRun)
    return message


# ── the door ───────────────────────────────────────────────────────────────────────────


async def test_many_who_ask_at_once_get_each_their_own_answer_and_travel_in_few_messages(ends):
    door = ends.door()
    asking = [asyncio.ensure_future(door.ask(question(n), message_id=f"m_{n}", timeout_ms=10_000)) for n in range(64)]

    async def published() -> bool:
        return await ends.count("placet.dispatcher") > 0

    await eventually(published)
    assert await ends.count("placet.dispatcher") == 2
    worker = await answering(ends)
    assert await asyncio.gather(*asking) == [f"answer to m_{n}" for n in range(64)]
    worker.cancel()


async def test_two_who_ask_the_same_are_each_answered_as_text_of_any_kind(ends):
    worker = await answering(ends, '{{"for":"{}","näme":"\u2028 line\\n"}}')
    door = ends.door()
    answers = await asyncio.gather(*(door.ask(question(1), message_id="same", timeout_ms=10_000) for _ in range(2)))
    assert answers == ['{"for":"same","näme":"\u2028 line\\n"}'] * 2
    worker.cancel()


async def test_no_answer_in_time_is_none_and_the_question_was_asked_all_the_same(ends):
    door = ends.door()
    assert await door.ask(question(1), message_id="m", timeout_ms=1_500) is None
    assert ids(await collect(ends.inbox(), 1)) == ["m"]


async def test_an_asker_that_goes_away_does_not_take_back_what_it_asked_and_a_late_answer_disturbs_nobody(ends):
    door = ends.door()
    inbox, replies = ends.inbox(), ends.replies()
    asking = asyncio.ensure_future(door.ask(question(1), message_id="m", timeout_ms=10_000))
    (delivery,) = await collect(inbox, 1)
    asking.cancel()
    await asyncio.wait([asking])
    await replies.send(delivery.envelope.reply_to, "late")
    await inbox.settle([delivery], [])
    asking = asyncio.ensure_future(door.ask(question(2), message_id="n", timeout_ms=10_000))
    (delivery,) = await collect(inbox, 1)
    await replies.send(delivery.envelope.reply_to, "in time")
    assert await asking == "in time"


async def test_an_answer_to_an_asker_that_has_ended_or_to_a_forged_address_harms_nobody(ends):
    door = ends.door()
    asking = asyncio.ensure_future(door.ask(question(1), message_id="m", timeout_ms=10_000))
    inbox, replies = ends.inbox(), ends.replies()
    (delivery,) = await collect(inbox, 1)
    await door.close()
    assert await asking is None, "told at once, not after its time"
    addresses = [
        delivery.envelope.reply_to,
        "plain placet.dead token",
        "door amq.rabbitmq.reply-to.nonsense token",
        "plain amq.rabbitmq.reply-to.nonsense token",
        "nonsense",
        "",
    ]
    for address in addresses:
        await replies.send(address, "to nobody")
    again = ends.door()
    asking = asyncio.ensure_future(again.ask(question(2), message_id="n", timeout_ms=10_000))
    (delivery,) = await collect(inbox, 1)
    await replies.send(delivery.envelope.reply_to, "goes on")
    assert await asking == "goes on"
    assert await ends.count("placet.dead") == 0


async def test_a_forged_address_in_an_envelope_is_not_answered(ends):
    forged = an_envelope(1).model_copy(update={"reply_to": "plain placet.dead t"})
    await ends.put_raw(DISPATCHER, forged.encode())
    await ends.put_raw(DISPATCHER, forged.encode(), reply_to="placet.dead")
    taken = await collect(ends.inbox(), 2)
    assert [delivery.envelope.reply_to for delivery in taken] == [None, None]


async def test_a_question_that_reaches_no_queue_is_told_at_once(ends):
    queue = await (await (await ends.connection()).channel()).get_queue("placet.dispatcher")
    await queue.unbind("placet.work", DISPATCHER)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RetryableError, match="the broker has not taken it"):
            await ends.door().ask(question(1), message_id="m", timeout_ms=60_000)


async def test_a_broker_that_is_away_is_told_as_such_since_nothing_was_asked(ends):
    door = RabbitDoor("amqp://u:p@127.0.0.1:9/", ends.topology, "test")
    door.start()
    try:
        with pytest.raises(RetryableError, match="cannot be reached"):
            await door.ask(question(1), message_id="m", timeout_ms=50)
    finally:
        await door.close()


async def test_whoever_may_not_answer_is_told_and_not_asked(ends):
    start = ExecuteOperation(tenant=TENANT, run_id="r", operation_id="o")
    async with asyncio.timeout(PATIENCE_S):
        assert await ends.door().ask(start, message_id="m", timeout_ms=60_000) is None, "at once, with the confirm"
    (taken,) = await collect(ends.inbox(TOOL_EXECUTOR), 1)
    assert taken.envelope.id == "m"
    assert taken.envelope.reply_to is None, "an answer would end the channel of a service that has no right to send it"


# ── hints ──────────────────────────────────────────────────────────────────────────────


async def test_hints_reach_whoever_watches_that_run_or_all_and_are_coalesced(ends):
    door, replies = ends.door(), ends.replies()
    changes = [door.changes("run-1"), door.changes(None), door.changes("run-2")]
    one, every, other = (asyncio.ensure_future(anext(change)) for change in changes)

    async def heard() -> bool:
        replies.hint({"run-1": {"run:running"}})
        return one.done() and every.done()

    await eventually(heard)
    if not other.done():  # the first look after the connection was made is everybody's
        replies.hint({"run-2": {"run:running"}})
    async with asyncio.timeout(PATIENCE_S):
        await other
    for change in changes:
        await change.aclose()


async def test_many_hints_of_one_moment_are_one_message(ends):
    channel = await (await ends.connection()).channel()
    queue = await channel.declare_queue("", exclusive=True)
    await queue.bind("placet.events", "hint")
    replies = ends.replies()

    async def came() -> bool:
        replies.hint({"first": {"run:running"}})
        return await queue.get(no_ack=True, fail=False) is not None

    await eventually(came)
    await asyncio.sleep(0.1)  # the period of the first
    await queue.purge()
    for n in range(50):
        replies.hint({f"run-{n}": {"run:suspended", "approval:open"}})
        await asyncio.sleep(0)
    bodies: list[bytes] = []

    async def all_came() -> bool:
        message = await queue.get(no_ack=True, fail=False)
        bodies.extend([message.body] if message else [])
        told = {f"approval:open,run:suspended\trun-{n}".encode() for n in range(50)}
        return told <= set(b"\n".join(bodies).split(b"\n"))

    await eventually(all_came)
    assert len(bodies) <= 2


# ── outsiders ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def outsider(rabbitmq, amqp_url: str):
    """A user who may write to the two doors and do nothing else; the address to connect as that user."""
    name, vhost = spaces.fresh_name(), urlsplit(amqp_url).path[1:]
    management = rabbitmq.management
    management.call(f"users/{name}", "PUT", {"password": "secret", "tags": ""})
    allowed = f"^({SUBMISSIONS_EXCHANGE}|{DECISIONS_EXCHANGE})$".replace(".", "\\.")
    rights = {"configure": "^$", "read": "^$", "write": allowed}
    management.call(f"permissions/{quote(vhost, safe='')}/{name}", "PUT", rights)
    parts = urlsplit(amqp_url)
    yield name, urlunsplit(parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}"))
    management.call(f"users/{name}", "DELETE")


def submission(user: str, n: int = 1) -> Envelope:
    message = SubmitRun(
        tenant=TENANT,
        run_id=f"run-{n}",
        team="team",
        goal="a goal",
        initiator=Principal(kind=PrincipalKind.SERVICE, id=user),
    )
    return Envelope(id=f"msg_{n}", message=message)


def public_inbox(ends: BrokerEnds):
    return ends.inbox(
        sources=tuple(source for source in ends.topology.sources[DISPATCHER] if source.public),
        openers={INGRESS: open_submission},
        replies=ends.replies(),
    )


async def test_an_outsider_without_any_right_but_to_write_submits_and_gets_its_answer(outsider, ends):
    user, url = outsider
    inbox, replies = public_inbox(ends), ends.replies()
    channel = await (await ends.connection(url)).channel(on_return_raises=True)
    answers: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
    await (await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)).consume(answers.put, no_ack=True)
    exchange = await channel.get_exchange(SUBMISSIONS_EXCHANGE, ensure=False)
    message = aio_pika.Message(
        submission(user).encode(), reply_to="amq.rabbitmq.reply-to", correlation_id="k 1", user_id=user
    )
    await exchange.publish(message, SUBMIT_KEY)
    (delivery,) = await collect(inbox, 1)
    assert delivery.envelope.message == submission(user).message
    await replies.send(delivery.envelope.reply_to, "accepted")
    async with asyncio.timeout(PATIENCE_S):
        answer = await answers.get()
    assert (answer.body, answer.correlation_id) == (b"accepted", "k 1")


async def test_an_outsider_is_told_why_its_message_was_refused(outsider, ends):
    _, url = outsider
    inbox = public_inbox(ends)
    taking = asyncio.ensure_future(inbox.take(64))
    asker = Asker(url, "outsider")
    asker.start()
    body = submission("somebody-else").encode()
    text = await asker.ask(SUBMISSIONS_EXCHANGE, SUBMIT_KEY, body, content_type="application/json", timeout_ms=10_000)
    assert text is not None
    receipt = Receipt.model_validate_json(text)
    assert receipt.answer == "refused"
    assert receipt.failure is not None
    assert receipt.failure.code is Code.UNAUTHENTICATED
    (parked,) = await ends.parked(1)
    assert parked.headers["x-placet-queue"] == INGRESS
    await asker.close()
    taking.cancel()


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("no_user", Code.UNAUTHENTICATED),
        ("other_initiator", Code.UNAUTHENTICATED),
        ("other_message", Code.MESSAGE_UNEXPECTED),
        ("cc", Code.MESSAGE_INVALID),
        ("header", Code.MESSAGE_INVALID),
        ("reply_to_a_queue", Code.MESSAGE_INVALID),
        ("reply_to_in_body", Code.MESSAGE_INVALID),
        ("lines", Code.MESSAGE_INVALID),
        ("garbage", Code.JSON_TEXT),
    ],
)
async def test_what_an_outsider_may_not_say_is_quarantined_with_the_reason(outsider, ends, case, code):
    user, url = outsider
    envelope = submission(user)
    how: dict[str, Any] = {"user_id": user}
    body = envelope.encode()
    match case:
        case "no_user":
            del how["user_id"]
        case "other_initiator":
            body = submission("somebody-else").encode()
        case "other_message":
            body = Envelope(id="m", message=RunTimedOut(tenant=TENANT, run_id="run-1")).encode()
        case "cc":
            how["headers"] = {"CC": ["approval.decide"]}
        case "header":
            how["headers"] = {"x-something": "else"}
        case "reply_to_a_queue":
            how["reply_to"] = "placet.tool-executor"
        case "reply_to_in_body":
            body = envelope.model_copy(update={"reply_to": "me"}).encode()
        case "lines":
            how["content_type"] = "application/x-ndjson"
        case _:
            body = b"\xff"
    inbox = public_inbox(ends)
    taking = asyncio.ensure_future(inbox.take(64))
    channel = await (await ends.connection(url)).channel()
    exchange = await channel.get_exchange(SUBMISSIONS_EXCHANGE, ensure=False)
    await exchange.publish(aio_pika.Message(body, **how), SUBMIT_KEY)
    (parked,) = await ends.parked(1)
    assert parked.headers["x-placet-code"] == code.value
    assert parked.body == body
    assert not taking.done()
    taking.cancel()


async def test_an_outsider_can_neither_write_elsewhere_nor_listen_nor_declare(outsider, ends):
    _, url = outsider
    for target in ("placet.work", "placet.events", "placet.dead", ""):
        channel = await (await ends.connection(url)).channel()
        exchange = channel.default_exchange if not target else await channel.get_exchange(target, ensure=False)
        with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
            await exchange.publish(aio_pika.Message(b"x"), "placet.dispatcher")
    channel = await (await ends.connection(url)).channel()
    with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
        await channel.declare_queue("mine")

    async def never(message: object) -> None:
        raise AssertionError("nothing may arrive")

    channel = await (await ends.connection(url)).channel()
    with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
        await (await channel.get_queue("placet.dispatcher", ensure=False)).consume(never)
    assert await is_empty(ends.inbox())


# ── the deploy step and the check at the start ─────────────────────────────────────────


async def test_declaring_again_and_at_once_is_harmless_and_a_service_without_rights_can_check(outsider, ends):
    _, url = outsider
    await asyncio.gather(*(declare(ends.url, ends.topology) for _ in range(3)))
    await verify(url, ends.topology)


async def test_before_the_deploy_step_a_service_is_told_what_is_missing(amqp_url):
    with pytest.raises(TerminalError) as caught:
        await verify(amqp_url, make_topology())
    assert caught.value.code is Code.BROKER_MISMATCH
    assert "placet.resume" in caught.value.message


async def test_another_version_s_topology_is_not_taken_for_this_one(ends):
    channel = await (await ends.connection()).channel()
    await channel.exchange_delete(ends.topology.marker())
    with pytest.raises(TerminalError, match="another version") as caught:
        await verify(ends.url, ends.topology)
    assert caught.value.code is Code.BROKER_MISMATCH
    with pytest.raises(TerminalError, match=r"placet\.tool-executor\.gpu"):
        await verify(ends.url, make_topology(["gpu"]))


@case("P140")
async def test_a_queue_with_another_argument_is_named_with_the_argument_and_both_values(ends):
    channel = await (await ends.connection()).channel()
    await channel.queue_delete("placet.resume")
    wanted = next(queue for queue in ends.topology.queues if queue.name == "placet.resume")
    arguments: Any = {**wanted.arguments(), "x-delivery-limit": 5}
    await channel.declare_queue("placet.resume", durable=True, arguments=arguments)
    with pytest.raises(TerminalError) as caught:
        await declare(ends.url, ends.topology)
    assert caught.value.code is Code.BROKER_MISMATCH
    for part in ("x-delivery-limit", "placet.resume", "20", "5"):
        assert part in caught.value.message


async def test_a_user_who_may_not_configure_is_told_that_the_deploy_step_needs_it(outsider, ends):
    _, url = outsider
    with pytest.raises(TerminalError, match="ACCESS_REFUSED"):
        await declare(url, ends.topology)


async def test_a_broker_that_is_not_there_is_waited_for_and_then_named():
    began = asyncio.get_running_loop().time()
    with pytest.raises(RetryableError) as caught:
        await verify("amqp://user:geheim@127.0.0.1:1/", make_topology(), wait_ms=700)
    assert caught.value.code is Code.BROKER_UNAVAILABLE
    assert "geheim" not in caught.value.message
    assert asyncio.get_running_loop().time() - began >= 0.5
