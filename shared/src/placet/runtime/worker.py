"""Decides the order of one turn: take, referee, process, publish, acknowledge, answer, start activities.

The order is the safety: nobody is answered and nothing is started before the commit that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placet import limits
from placet.ids import derived_id
from placet.machine import Receipt
from placet.messages import APPROVAL, DecideApproval
from placet.rows import VoteRow
from placet.runtime.engine import Engine, Settlement
from placet.runtime.ports import Arbiter, Delivery, Inbox, Invoker, Mark, Outlet, Replies
from placet.statuses import APPROVAL_ACTIVE


class Worker:
    """One worker of one process."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        invoker: Invoker,
        replies: Replies,
        *,
        arbiter: Arbiter | None = None,
        outlet: Outlet | None = None,
        on_settled: Callable[[Settlement], None] = lambda settlement: None,
    ) -> None:
        """`outlet`: where goes at once what the engine has claimed; it must neither wait nor raise. None: an engine
        that claims nothing leaves it to a relay."""
        self._outlet = outlet
        self._engine = engine
        self._inbox = inbox
        self._invoker = invoker
        self._replies = replies
        self._arbiter = arbiter
        self._on_settled = on_settled

    async def turn(self) -> bool:
        """One batch. False when the inbox is closed.

        When the store fails, everything taken is given back before the error is raised: it comes again.
        """
        taken = await self._inbox.take(limits.BATCH_MAX)
        if not taken:
            return False
        nonce = derived_id("claim", *(delivery.envelope.id for delivery in taken))
        try:
            mine, busy = await self._referee(taken, nonce)
            since_ms = self._invoker.monotonic_ms()  # before the load: no lease of this batch has begun earlier
            settlement = await self._engine.process(mine)
        except BaseException as error:
            await self._inbox.settle([], taken)
            if isinstance(error, Exception):  # whoever is cancelled hurries; its claims lapse
                await self._finish(taken, Settlement(), nonce)
            raise
        if self._outlet is not None and settlement.outgoing:
            await self._outlet.publish(settlement.outgoing)
        await self._inbox.settle([*settlement.done, *busy], settlement.back)
        self._on_settled(settlement)  # whoever hears the answer finds everybody told (case L05)
        for reply_to, text in settlement.replies:
            await self._replies.send(reply_to, text)
        self._invoker.start(settlement.activities, since_ms)
        await self._finish(mine, settlement, nonce)
        return True

    async def _referee(self, taken: Sequence[Delivery], nonce: str) -> tuple[list[Delivery], list[Delivery]]:
        """Split off the decisions whose request somebody else is deciding right now; they are told to ask again."""
        contested = _contested(taken)
        if self._arbiter is None or not contested:
            return list(taken), []
        granted = dict(zip(contested, await self._arbiter.claim(contested, nonce), strict=True))
        mine, busy = [], []
        for delivery in taken:
            message = delivery.envelope.message
            # Without an asker nobody could repeat the question: such a decision goes on to the facts.
            if isinstance(message, DecideApproval) and delivery.envelope.reply_to and not granted[_key(message)]:
                busy.append(delivery)
                await self._replies.send(delivery.envelope.reply_to, _busy(message))
            else:
                mine.append(delivery)
        return mine, busy

    async def _finish(self, claimed: Sequence[Delivery], settlement: Settlement, nonce: str) -> None:
        """Tell the referee how the requests stand now, so that a racer is not kept waiting for a claim to lapse."""
        contested = _contested(claimed)
        if self._arbiter is not None and contested:
            marks = _marks(settlement)
            await self._arbiter.finish({key: marks.get(key, Mark.FREE) for key in contested}, nonce)


def _busy(message: DecideApproval) -> str:
    return Receipt(
        answer="busy",
        final=False,
        run_id=message.run_id,
        request_id=message.request_id,
        decision_id=message.decision_id,
    ).model_dump_json(exclude_none=True)


def _key(message: DecideApproval) -> str:
    """What is raced for: a request as its tenant knows it, so that nobody can claim another tenant's."""
    return f"{message.tenant}/{message.run_id}/{message.request_id}"


def _contested(deliveries: Sequence[Delivery]) -> list[str]:
    messages = (delivery.envelope.message for delivery in deliveries)
    return list(dict.fromkeys(_key(message) for message in messages if isinstance(message, DecideApproval)))


def _marks(settlement: Settlement) -> dict[str, Mark]:
    """How the requests stand whose states were written: decided, or open with a vote counted."""
    marks: dict[str, Mark] = {}
    for unit in settlement.units:
        voted = {row.request_id for row in unit.rows if isinstance(row, VoteRow)}
        for state in unit.states:
            run_id, machine, request_id = state.address
            if machine == APPROVAL:
                key = f"{state.tenant}/{run_id}/{request_id}"
                decided = state.status not in APPROVAL_ACTIVE
                marks[key] = Mark.FINAL if decided else Mark.SHARED if request_id in voted else Mark.FREE
    return marks
