"""Decides the order of one turn: take, referee, process, acknowledge, answer, start activities.

The order is the safety: nobody is answered and nothing is started before the commit that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placet import limits
from placet.ids import derived_id
from placet.machine import Receipt
from placet.messages import DecideApproval
from placet.runtime.engine import Engine, Settlement
from placet.runtime.ports import Arbiter, Delivery, Inbox, Invoker, Replies


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
        on_settled: Callable[[Settlement], None] = lambda settlement: None,
    ) -> None:
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
        try:
            mine, busy, nonce = await self._referee(taken)
            settlement = await self._engine.process(mine)
        except BaseException:
            await self._inbox.settle([], taken)
            raise
        await self._inbox.settle([*settlement.done, *busy], settlement.back)
        for reply_to, text in settlement.replies:
            await self._replies.send(reply_to, text)
        self._invoker.start(settlement.activities)
        self._on_settled(settlement)
        if self._arbiter is not None and nonce:
            await self._arbiter.finish(_contested(settlement.done), nonce)
        return True

    async def _referee(self, taken: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery], str]:
        """Split off the decisions whose request somebody else is deciding right now; they are told to ask again."""
        contested = _contested(taken)
        if self._arbiter is None or not contested:
            return list(taken), [], ""
        nonce = derived_id("claim", *(delivery.envelope.id for delivery in taken))
        granted = dict(zip(contested, await self._arbiter.claim(contested, nonce), strict=True))
        mine, busy = [], []
        for delivery in taken:
            message = delivery.envelope.message
            # Without an asker nobody could repeat the question: such a decision goes on to the facts.
            if isinstance(message, DecideApproval) and delivery.envelope.reply_to and not granted[message.request_id]:
                busy.append(delivery)
                await self._replies.send(delivery.envelope.reply_to, _busy(message))
            else:
                mine.append(delivery)
        return mine, busy, nonce


def _busy(message: DecideApproval) -> str:
    return Receipt(
        answer="busy",
        final=False,
        run_id=message.run_id,
        request_id=message.request_id,
        decision_id=message.decision_id,
    ).model_dump_json(exclude_none=True)


def _contested(deliveries: Sequence[Delivery]) -> list[str]:
    messages = (delivery.envelope.message for delivery in deliveries)
    return list(dict.fromkeys(message.request_id for message in messages if isinstance(message, DecideApproval)))
