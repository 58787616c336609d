"""Decides how Redis referees races for a decision, and how little of what Redis says or does can hurt (DESIGN §5).

A claim is `WATCH` and a read of every key, then one `MULTI`/`EXEC` that sets those that are absent, on one connection
held for both. Whatever is not a clean success is followed by a look at who holds the keys now: the answer of an `EXEC`
may be lost although the claim was set, so "the transaction failed" never means "somebody else won". Nothing is ever
retried by the client itself.

Whatever Redis does not answer in time, or answers with what this file never wrote, means: go on to the facts. Nothing
here is needed for what is true. It only spares racers the way to the database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from placet import limits
from placet.adapters.redis.breaker import Breaker
from placet.adapters.redis.line import Command, Line, refuse
from placet.errors import Code, TerminalError
from placet.runtime.ports import Mark

log = logging.getLogger("placet.referee")

SLOW_MS = 25
"""Longer than this an opinion is not worth waiting for: the transaction in the database takes less."""
CONNECT_MS = 100
"""For a new connection outside the way of a decision, TLS included."""
MARK_MS = 86_400_000
"""How long "there is nothing to race for" is remembered: a day."""
MARK_TIMEOUT_MS = 1_000
"""Marks are sent in the background; a server that needs longer has not got them."""
MARKS_WAITING_MAX = 10_000
"""Marks that wait to be sent. Beyond, they are dropped: a claim lapses by itself."""
VALUE_BYTES_MAX = 512
"""What is read of a value: ours are shorter, and a foreign one may be huge."""
ALARM_EVERY_MS = 10_000
"""One line in the log for each kind of alarm within this time; all are counted."""
GRACE_MS = 1
"""After a timeout, for an answer that has arrived and not been read: this process was busy, Redis was in time."""

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    claimed: int = 0
    busy: int = 0
    past: int = 0
    """Keys past racing, by a final or shared mark."""
    contended: int = 0
    """Calls that looked a second time: a race for a key, or an answer that was lost."""
    skipped: int = 0
    """Keys that went on unrefereed: Redis slow, away, or given up on."""
    failures: int = 0
    """Calls that met a slow, silent or refusing Redis."""
    opened: int = 0
    """Times that the breaker opened."""
    foreign: int = 0
    """Values under our keys that we did not write. Alarm."""
    overstayed: int = 0
    """Claims of others that outlived the lease, seen from here. Alarm."""
    marks_lost: int = 0


class Opinion(Enum):
    """What one key says."""

    ABSENT = auto()
    MINE = auto()
    BUSY = auto()
    PAST = auto()
    FOREIGN = auto()


class RedisArbiter:
    """ports.Arbiter on Redis. Keys are `{environment}:ap:KEY`: in one slot, and apart from other environments'.

    Raises TerminalError(SETTING_INVALID) for an address that is none.
    """

    def __init__(
        self,
        url: str,
        *,
        environment: str,
        lease_ms: int = limits.CLAIM_LEASE_MS,
        slow_ms: int = SLOW_MS,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = Counts()
        self._prefix = f"{{{environment}}}:"
        self._lease_ms, self._slow_ms, self._monotonic_s = lease_ms, slow_ms, monotonic_s
        self._claims, self._marks, self._questions = (Line(url) for _ in range(3))
        self._breaker = Breaker(monotonic_s)
        self._turn = asyncio.Lock()
        self._held: dict[str, frozenset[str]] = {}
        """By nonce: what was really claimed under it."""
        self._unsent: dict[str, tuple[Mark, str]] = {}
        self._busy_since_s: dict[str, tuple[float, float]] = {}
        """By key: when it was first and last seen in another's hands."""
        self._alarmed_s: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # ── ports.Arbiter ──────────────────────────────────────────────────────────────────

    async def claim(self, keys: Sequence[str], nonce: str) -> Sequence[bool]:
        """As ports.Arbiter. Takes twice `slow_ms` at most, three times in a row; then no time until Redis is back."""
        opinions: dict[str, Opinion] = {}
        # What this process itself has let go of is not another's, even if Redis has not heard of it yet.
        asked = [key for key in dict.fromkeys(keys) if key not in self._unsent]
        async with self._turn:
            if not self._breaker.is_closed:
                self._probe()
            elif asked:
                await self._judge(asked, nonce, opinions)
        self.counts.skipped += len(asked) - len(opinions)
        self.counts.claimed += sum(1 for opinion in opinions.values() if opinion is Opinion.MINE)
        mine = frozenset(key for key, opinion in opinions.items() if opinion is Opinion.MINE)
        if mine:
            self._held[nonce] = mine
        return [self._goes_on(key, opinions.get(key)) for key in keys]

    async def finish(self, marks: Mapping[str, Mark], nonce: str) -> None:
        """As ports.Arbiter. Returns at once; the marks are sent in the background."""
        held = self._held.pop(nonce, frozenset())
        told = {key: mark for key, mark in marks.items() if mark is not Mark.FREE or key in held}
        if not self._breaker.is_closed or len(self._unsent) + len(told) > MARKS_WAITING_MAX:
            self.counts.marks_lost += len(told)
            return
        self._unsent |= {key: (mark, nonce) for key, mark in told.items()}
        if self._unsent:
            self._in_background("marks", self._send_marks)

    # ── for operators ──────────────────────────────────────────────────────────────────

    async def check(self) -> None:
        """Once at start, also to connect before the first decision. A Redis that is away is no fault: nothing needs it.

        Raises TerminalError(SETTING_INVALID) when Redis may evict keys that it promised to hold.
        """
        found = await self.describe()
        if "fault" in found:
            log.warning("referee.away", extra={"reason": found["fault"]})
            return
        policy = found["maxmemory_policy"]
        if policy != "noeviction":
            told = f"Redis evicts keys under maxmemory-policy {policy or '(not told)'}: set it to noeviction"
            raise TerminalError(Code.SETTING_INVALID, told)
        if found["role"] != "master":
            log.warning("referee.read_only", extra={"role": found["role"]})

    def report(self) -> dict[str, Any]:
        """For the probes: whether Redis is asked now, and what happened since the start."""
        return {"breaker": "closed" if self._breaker.is_closed else "open", **asdict(self.counts)}

    async def describe(self) -> dict[str, Any]:
        """How Redis stands, as JSON-able names and values; `fault` says why when it does not answer."""
        found = self.report()
        try:
            (text,) = await self._within(MARK_TIMEOUT_MS, self._questions.ask(("INFO",)))
            if isinstance(text, ResponseError):
                raise text
            if self._breaker.is_closed:
                await self._within(MARK_TIMEOUT_MS, self._connect())
        except (RedisError, OSError, TimeoutError) as error:
            await self._questions.drop()
            return {**found, "fault": f"{type(error).__name__}: {error}"}
        lines = (line.partition(":") for line in bytes(text).decode(errors="replace").splitlines())
        said = {name: value for name, _, value in lines}
        names = ("redis_version", "role", "maxmemory_policy", "maxmemory", "aof_enabled", "used_memory")
        return {**found, **{name: said.get(name, "") for name in names}}

    async def flush(self, timeout_ms: int = MARK_TIMEOUT_MS) -> None:
        """Wait until the marks are sent or given up, within the time."""
        sending = self._tasks.get("marks")
        if sending is not None and not sending.done():
            await asyncio.wait({sending}, timeout=timeout_ms / 1_000)

    async def close(self) -> None:
        """Send what is still to be sent, if that is quick, and disconnect. Closing twice is harmless."""
        await self.flush(self._slow_ms)
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        for line in (self._claims, self._marks, self._questions):
            await line.drop()

    # ── one claim ──────────────────────────────────────────────────────────────────────

    async def _judge(self, keys: Sequence[str], nonce: str, opinions: dict[str, Opinion]) -> None:
        """Fill in what can be learned in time. What stays unknown goes on."""
        fault = await self._try(self._claim_all(keys, nonce, opinions))
        if fault is None and len(opinions) == len(keys):
            self._breaker.succeeded()
            return
        self.counts.contended += 1
        # Not a clean success: who holds them now? Perhaps we do. What nobody holds is tried once more.
        again = await self._try(self._look_and_claim([key for key in keys if key not in opinions], nonce, opinions))
        fault = fault or (again if not isinstance(again, TimeoutError) else None)
        if fault is None:
            self._breaker.succeeded()
            return
        self.counts.failures += 1
        if self._breaker.failed():
            self.counts.opened += 1
            log.warning("referee.given_up_on", extra={"reason": f"{type(fault).__name__}: {fault}"})

    async def _claim_all(self, keys: Sequence[str], nonce: str, opinions: dict[str, Opinion]) -> None:
        """One transaction for all keys. Leaves out those of which the transaction decided nothing."""
        names, mine = [self._name(key) for key in keys], _value("claim", nonce)
        reads = [("GETRANGE", name, 0, VALUE_BYTES_MAX - 1) for name in names]
        # A watch that an earlier look left behind would make this transaction fail.
        _, watching, *values = await self._claims.ask(("UNWATCH",), ("WATCH", *names), *reads)
        refuse(watching)
        found = dict(zip(keys, (self._read(value, mine) for value in values), strict=True))
        absent = [key for key in keys if found[key] is Opinion.ABSENT]
        opinions.update((key, opinion) for key, opinion in found.items() if opinion is not Opinion.ABSENT)
        if not absent:
            return
        sets = [("SET", self._name(key), mine, "PX", self._lease_ms) for key in absent]
        replies = await self._claims.ask(("MULTI",), *sets, ("EXEC",))
        for reply in replies:
            refuse(reply)
        if replies[-1] is not None:
            opinions.update(dict.fromkeys(absent, Opinion.MINE))

    async def _look_and_claim(self, keys: Sequence[str], nonce: str, opinions: dict[str, Opinion]) -> None:
        """Look, then claim what is absent: all at once, and key by key where that fails again."""
        mine = _value("claim", nonce)
        values = await self._claims.ask(*(("GETRANGE", self._name(key), 0, VALUE_BYTES_MAX - 1) for key in keys))
        found = {key: self._read(value, mine) for key, value in zip(keys, values, strict=True)}
        opinions.update((key, opinion) for key, opinion in found.items() if opinion is not Opinion.ABSENT)
        absent = [key for key in keys if found[key] is Opinion.ABSENT]
        if absent:
            await self._claim_all(absent, nonce, opinions)
        for key in absent:
            if key not in opinions:
                await self._claim_all([key], nonce, opinions)

    def _read(self, value: object, mine: bytes) -> Opinion:
        """What a value says. Raises ResponseError for an answer that is about the server rather than about the key."""
        if isinstance(value, ResponseError):
            if str(value).startswith("WRONGTYPE"):
                return Opinion.FOREIGN
            raise value
        if not value:
            return Opinion.ABSENT
        if value == mine:
            return Opinion.MINE
        try:
            said = json.loads(value)  # type: ignore[arg-type]
        except (ValueError, TypeError, RecursionError):
            return Opinion.FOREIGN
        match said:
            case {"phase": "claim", "nonce": str()}:
                return Opinion.BUSY
            case {"phase": "final" | "shared"}:
                return Opinion.PAST
            case _:
                return Opinion.FOREIGN

    def _goes_on(self, key: str, opinion: Opinion | None) -> bool:
        if opinion is Opinion.BUSY:
            return not self._is_busy(key)
        self._busy_since_s.pop(key, None)
        if opinion is Opinion.FOREIGN:
            self.counts.foreign += 1
            self._alarm("foreign_value", key)
        elif opinion is Opinion.PAST:
            self.counts.past += 1
        return True

    def _is_busy(self, key: str) -> bool:
        """Whether to believe in another's claim: for a lease's time, by this process's own clock. After that it is a
        claim that never lapses, forged or kept alive by a clock that jumped, and would bar everybody for ever."""
        now_s, lease_s = self._monotonic_s(), self._lease_ms / 1_000
        since_s, last_s = self._busy_since_s.get(key, (now_s, now_s))
        if now_s - last_s >= lease_s:  # that was another race
            since_s = now_s
        if now_s - since_s >= lease_s:
            self.counts.overstayed += 1
            self._alarm("claim_overstayed", key)
            return False
        if len(self._busy_since_s) >= MARKS_WAITING_MAX:
            self._busy_since_s.clear()
        self._busy_since_s[key] = (since_s, now_s)
        self.counts.busy += 1
        return True

    # ── marks ──────────────────────────────────────────────────────────────────────────

    async def _send_marks(self) -> None:
        while self._unsent:
            batch = dict(list(self._unsent.items())[: limits.BATCH_MAX])
            try:
                await self._within(MARK_TIMEOUT_MS, self._send(batch))
            except (RedisError, OSError, TimeoutError) as error:
                await self._marks.drop()
                self.counts.marks_lost += len(self._unsent)
                self._unsent.clear()
                self._alarm("marks_lost", f"{type(error).__name__}: {error}")
                return
            for key, sent in batch.items():
                if self._unsent.get(key) == sent:
                    del self._unsent[key]

    async def _send(self, batch: Mapping[str, tuple[Mark, str]]) -> None:
        told: list[Command] = [
            ("SET", self._name(key), _value(mark, nonce), "PX", MARK_MS)
            for key, (mark, nonce) in batch.items()
            if mark is not Mark.FREE
        ]
        free = {self._name(key): _value("claim", nonce) for key, (mark, nonce) in batch.items() if mark is Mark.FREE}
        if told:
            for reply in await self._marks.ask(*told):
                refuse(reply)
        if free:
            reads = [("GETRANGE", name, 0, VALUE_BYTES_MAX - 1) for name in free]
            _, _, *values = await self._marks.ask(("UNWATCH",), ("WATCH", *free), *reads)
            own = [name for (name, mine), value in zip(free.items(), values, strict=True) if value == mine]
            if own:  # if one has changed meanwhile, all of them lapse by themselves
                await self._marks.ask(("MULTI",), ("DEL", *own), ("EXEC",))

    # ── when Redis is slow or away ─────────────────────────────────────────────────────

    async def _try(self, work: Coroutine[Any, Any, None]) -> Exception | None:
        """Do it within the time; the fault, if there was one, after which nothing is known of the connection."""
        try:
            await self._within(self._slow_ms, work)
        except (RedisError, OSError, TimeoutError) as error:
            await self._claims.drop()
            return error
        except Exception as error:  # an opinion must never stop a decision, not even by a slip of ours
            await self._claims.drop()
            log.exception("referee.failed")
            return error
        return None

    async def _within(self, time_ms: int, work: Coroutine[Any, Any, T]) -> T:
        """Its result, or TimeoutError. What this process itself was late is not counted."""
        began_s, limit_s = self._monotonic_s(), time_ms / 1_000
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=limit_s)
            if not task.done():
                late_s = self._monotonic_s() - began_s - limit_s
                await asyncio.wait({task}, timeout=min(max(late_s, GRACE_MS / 1_000), limit_s))
            if task.done():
                return task.result()
            raise TimeoutError(f"no answer within {time_ms} ms")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _probe(self) -> None:
        if self._breaker.is_probe_due():
            self._in_background("probe", self._try_again)

    async def _try_again(self) -> None:
        """Connect and write, in time, out of any decision's way."""
        try:
            await self._within(CONNECT_MS, self._connect())
            (reply,) = await self._within(
                self._slow_ms, self._claims.ask(("SET", f"{self._prefix}probe", "1", "PX", self._lease_ms))
            )
            refuse(reply)
        except (RedisError, OSError, TimeoutError) as error:
            await self._claims.drop()
            self._breaker.failed()
            log.info("referee.still_away", extra={"reason": f"{type(error).__name__}: {error}"})
        else:
            self._breaker.probed()
            log.info("referee.back")

    async def _connect(self) -> None:
        async with self._turn:
            await self._claims.connect()

    def _in_background(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        running = self._tasks.get(name)
        if running is None or running.done():
            self._tasks[name] = asyncio.create_task(work(), name=f"referee {name}")

    def _alarm(self, kind: str, about: str) -> None:
        now_s = self._monotonic_s()
        if now_s - self._alarmed_s.get(kind, float("-inf")) >= ALARM_EVERY_MS / 1_000:
            self._alarmed_s[kind] = now_s
            log.warning("referee.%s", kind, extra={"about": about, **asdict(self.counts)})

    def _name(self, key: str) -> str:
        return f"{self._prefix}ap:{key}"


def _value(phase: str, nonce: str) -> bytes:
    return json.dumps({"phase": phase, "nonce": nonce}, separators=(",", ":")).encode()
