"""Decides who is handed out next: results of this process first, then one envelope from each queue in turn.

A message that came back several times without being acknowledged may be what ends its consumers. It is handed out
alone, and in another order each time it comes, so that whatever is innocent gets its turn before the one that kills.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from placet.adapters.rabbitmq.holding import Held
from placet.adapters.rabbitmq.wire import Incoming, ReturnAddress, is_answerable, lines_of
from placet.errors import ContractError, PlacetError
from placet.ids import digest_hex
from placet.messages import Envelope, decode_envelope, row_id
from placet.runtime.ports import Delivery
from placet.topology import Source

SUSPECT_DELIVERIES = 3
"""A message that came back this often is handed out alone."""

Unreadable = Callable[[Held, bytes, PlacetError], None]


class Waiting:
    """Everything that no worker has yet, and which AMQP message each envelope that one has came with."""

    def __init__(self, sources: Sequence[Source], unreadable: Unreadable) -> None:
        self._sources = {source.queue: source for source in sources}
        self._unreadable = unreadable
        self._raw: dict[str, deque[Held]] = {queue: deque() for queue in self._sources}
        self._ready: dict[str, deque[Delivery]] = {queue: deque() for queue in self._sources}
        self._suspects: list[tuple[str, Delivery, Source]] = []
        self._local: deque[Delivery] = deque()
        self._helds: dict[int, Held | None] = {}
        self._tokens = count(1)

    # ── coming in ──────────────────────────────────────────────────────────────────────

    def put(self, envelope: Envelope) -> None:
        """A result of this process."""
        self._local.append(self._delivery(envelope, None))

    def add(self, held: Held) -> None:
        """An AMQP message between services: opened when its turn comes."""
        if held.message.deliveries < SUSPECT_DELIVERIES:
            self._raw[held.message.queue].append(held)
            return
        for delivery in self._unpack(held):
            self._suspect(delivery, held)

    def add_opened(self, held: Held, envelope: Envelope) -> None:
        """An outsider's message, opened."""
        held.open = 1
        delivery = self._delivery(envelope, held)
        if held.message.deliveries < SUSPECT_DELIVERIES:
            self._ready[held.message.queue].append(delivery)
        else:
            self._suspect(delivery, held)

    def back(self, delivery: Delivery) -> None:
        """Again, in front of the others. What came by a channel that is gone is forgotten: it is delivered anew."""
        if delivery.token not in self._helds:
            return
        held = self._helds[delivery.token]
        if held is None:
            self._local.appendleft(delivery)
        elif held.message.deliveries < SUSPECT_DELIVERIES:
            self._ready[held.message.queue].appendleft(delivery)
        else:
            self._suspect(delivery, held)

    # ── going out ──────────────────────────────────────────────────────────────────────

    def batch(self, batch_max: int, rooms: Mapping[str, int]) -> list[Delivery]:
        """Up to `batch_max` envelopes; of each throttled queue, which starts calls to the world, up to its room."""
        batch, left = self.local_batch(batch_max), dict(rooms)
        if not batch and (suspect := self._next_suspect(rooms)) is not None:
            return [suspect]
        queues = [queue for queue in self._sources if self._ready[queue] or self._raw[queue]]
        while queues and len(batch) < batch_max:
            for queue in list(queues):
                throttled = self._sources[queue].throttled
                has_room = not throttled or left.get(queue, 0) > 0
                delivery = self._next(queue) if has_room and len(batch) < batch_max else None
                if delivery is None:
                    queues.remove(queue)
                    continue
                if throttled:
                    left[queue] -= 1
                batch.append(delivery)
        return batch

    def local_batch(self, batch_max: int) -> list[Delivery]:
        """Up to so many results of this process."""
        return [self._local.popleft() for _ in range(min(batch_max, len(self._local)))]

    def done(self, delivery: Delivery) -> Held | None:
        """The AMQP message it came with, unless that came by a channel that is gone; none for a result."""
        return self._helds.pop(delivery.token, None)

    @property
    def has_local(self) -> bool:
        """Whether a result of this process waits."""
        return bool(self._local)

    @property
    def throttled(self) -> frozenset[str]:
        """Queues of which something waits for room."""
        queues = {queue for queue, source in self._sources.items() if source.throttled}
        suspects = {source.queue for _, _, source in self._suspects}
        return frozenset(queue for queue in queues if self._ready[queue] or self._raw[queue] or queue in suspects)

    def withdraw(self, chosen: Callable[[Held], bool]) -> list[tuple[Delivery, Held]]:
        """Take out what waits, to be passed on. Neither what outsiders said nor what is under suspicion: both would
        lose what the broker knows of them."""
        found: list[tuple[Delivery, Held]] = []
        for queue in (queue for queue, source in self._sources.items() if not source.public):
            raw, ready = self._raw[queue], self._ready[queue]
            for held in [held for held in raw if chosen(held)]:
                raw.remove(held)
                ready.extend(self._unpack(held))
            for delivery in list(ready):
                came_with = self._helds[delivery.token]
                if came_with is not None and chosen(came_with):
                    ready.remove(delivery)
                    found.append((delivery, came_with))
        return found

    # ── forgetting ─────────────────────────────────────────────────────────────────────

    def forget(self) -> list[Held]:
        """Drop what waits and is not ours. Returns the AMQP messages of which no worker has a part."""
        helds = [held for raw in self._raw.values() for held in raw]
        unopened = [*(d for ready in self._ready.values() for d in ready), *(d for _, d, _ in self._suspects)]
        helds += [held for delivery in unopened if (held := self.done(delivery)) is not None]
        for queue in self._sources:
            self._raw[queue].clear()
            self._ready[queue].clear()
        self._suspects.clear()
        at_work = {id(held) for held in self._helds.values() if held is not None}
        return [held for held in dict.fromkeys(helds) if id(held) not in at_work]

    def forget_all(self) -> None:
        """The channel is gone: also what workers have is delivered anew; settling it does nothing any more."""
        self.forget()
        self._helds = {token: None for token, held in self._helds.items() if held is None}

    # ── helpers ────────────────────────────────────────────────────────────────────────

    def _delivery(self, envelope: Envelope, held: Held | None, body: bytes | None = None) -> Delivery:
        token = next(self._tokens)
        self._helds[token] = held
        return Delivery(envelope, token, None if body is None else row_id(envelope.id, body), body)

    def _next(self, queue: str) -> Delivery | None:
        ready, raw = self._ready[queue], self._raw[queue]
        while not ready:
            if not raw:
                return None
            ready.extend(self._unpack(raw.popleft()))
        return ready.popleft()

    def _next_suspect(self, rooms: Mapping[str, int]) -> Delivery | None:
        for at, (_, delivery, source) in enumerate(self._suspects):
            if not source.throttled or rooms.get(source.queue, 0) > 0:
                del self._suspects[at]
                return delivery
        return None

    def _suspect(self, delivery: Delivery, held: Held) -> None:
        order = digest_hex(delivery.envelope.id, str(held.message.deliveries))
        self._suspects.append((order, delivery, self._sources[held.message.queue]))
        self._suspects.sort(key=lambda suspect: suspect[0])

    def _unpack(self, held: Held) -> list[Delivery]:
        """The envelopes of a message between services. Lines that cannot be read are told one by one."""
        lines = lines_of(held.message)
        held.open = len(lines)
        deliveries = []
        for line in lines:
            try:
                envelope = decode_envelope(line)
            except ContractError as error:
                self._unreadable(held, line, error)
                continue
            body = line if envelope.reply_to is None else None
            deliveries.append(self._delivery(_addressed(envelope, held.message), held, body))
        return deliveries


def _addressed(envelope: Envelope, message: Incoming) -> Envelope:
    """Join the asker's token, which is in the envelope, with its address, which the broker wrote on the message."""
    if envelope.reply_to is None:
        return envelope
    if not is_answerable(message.reply_to):
        return envelope.model_copy(update={"reply_to": None})
    address = ReturnAddress(True, message.reply_to or "", envelope.reply_to)
    return envelope.model_copy(update={"reply_to": address.text()})
