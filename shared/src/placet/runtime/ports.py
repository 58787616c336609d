"""Decides what the engine needs from the world, as small protocols that every adapter keeps.

The promises are written down once, as contract tests (tests/contracts), and every adapter passes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from placet.activities import Activity, AskGate, CallModel, ProbeTool, RunTool, Stop
from placet.calls import ChatMessage, ModelReply, ToolOutcome
from placet.errors import Code, Failure
from placet.gates import OutsideAnswer
from placet.ids import Address
from placet.instants import Instant
from placet.messages import Envelope, Message
from placet.partials import Partial
from placet.rows import FactKey, Row

# ── store ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state as kept: `body` is the machine's JSON, `version` counts its steps from 1."""

    version: int
    status: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one load saw, at one instant. Every address and key asked for is present; absent ones map to None."""

    now_ms: Instant
    incarnation: int
    """How many exclusive owners the store has had, this one included; 0 for a store that several processes share."""
    states: Mapping[Address, StoredState | None]
    rows: Mapping[FactKey, Row | None]
    versions: Mapping[Address, int]
    """Version of every state asked for and of the owner of every row asked for; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class StateWrite:
    """Compare-and-set: written only if the version still is `expected` (0: absent); it becomes `version`."""

    address: Address
    tenant: str
    expected: int
    version: int
    status: str
    body: bytes


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An applied message: state `version - 1` and this give state `version`, byte for byte."""

    address: Address
    version: int
    message_id: str
    message: bytes
    """The envelope as it came."""
    facts: str
    """JSON: the rows the machine looked at, and the application's answers."""
    at_ms: Instant
    """The `now` the machine saw."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message on its way: due when the store's clock reaches `not_before_ms` (0: at once)."""

    id: str
    destination: str
    """Whom it is for, as `topology.queue_of` says (`resume`, `tool-executor`, …); `Topology.route` says how it goes."""
    run_id: str
    type: str
    not_before_ms: int
    body: bytes
    """The envelope."""
    claim_ms: int = 0
    """Of what is due at once: for how long nobody else claims it. Whoever commits it publishes it."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that no rule accepted, kept with the reason until a person has seen it."""

    id: str
    run_id: str
    destination: str
    code: str
    reason: str
    body: bytes
    at_ms: Instant
    tenant: str | None = None
    """Whose it is; None: whose its message says. Empty: nobody can be believed, so it is the operators'."""
    queue: str | None = None
    """The queue of the broker that it was taken from; None for what was parked before it got there."""
    about_text: str | None = None
    """How it came to that queue, as JSON, for whoever sends it again: see adapters.rabbitmq.letters."""


@dataclass(slots=True)
class Unit:
    """What commits together or not at all: one key, with all it handed over to in the same process."""

    states: list[StateWrite] = field(default_factory=list)
    guards: dict[Address, int] = field(default_factory=dict)
    """Versions of states that were read and not written; they must still hold at commit."""
    before_ms: Instant | None = None
    """The store's clock at commit must not have reached this instant."""
    rows: list[Row] = field(default_factory=list)
    journal: list[JournalEntry] = field(default_factory=list)
    outbox: list[OutboxRow] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    consumed: list[str] = field(default_factory=list)
    """Outbox ids of the messages this unit applied; deleted in the same commit. An id already gone is no error."""


class Fate(StrEnum):
    """What became of one unit."""

    COMMITTED = "committed"
    LOST = "lost"
    """A version, a guard or `before_ms` no longer held: load and fold again."""
    VIOLATED = "violated"
    """A constraint refused it: the facts contradict, whatever the code believed."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The fate of one unit; `constraint` names what was violated."""

    fate: Fate
    constraint: str = ""


class Store(Protocol):
    """Keeps every fact. All-or-nothing per unit, independent between units, durable when `commit` returns."""

    compares_and_sets: bool
    """Whether `commit` keeps its promise about versions and guards. A store that cannot is refused."""
    is_verbatim: bool
    """Whether what is loaded is byte for byte what was committed. A store that redacts or rewrites is refused."""

    async def load(self, addresses: Sequence[Address], keys: Sequence[FactKey]) -> Loaded:
        """States and rows, and the store's clock.

        Raises RetryableError(STORE_UNAVAILABLE) while the store is away; TerminalError with what has made it unfit to
        be believed until it is opened again, as every other call does then: OUTCOME_UNKNOWN, STORE_IN_USE,
        CHECKPOINT_CORRUPT.
        """

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """One fate per unit, in order; one transaction for all where none violates a constraint.

        Units of one call share no written address. Raises RetryableError(OUTCOME_UNKNOWN) when the transaction may
        or may not have happened, STORE_UNAVAILABLE when it surely did not.
        """

    async def claim_due(self, limit: int, lease_ms: int) -> Sequence[OutboxRow]:
        """Rows that are due by the store's clock, oldest first; nobody else gets them for `lease_ms`."""

    async def next_due_ms(self) -> tuple[Instant, Instant | None]:
        """The store's clock, and the earliest instant at which a row becomes due or its claim lapses."""

    async def defer(self, outbox_ids: Sequence[str], longest_ms: int) -> None:
        """What was published once more waits for its receiver as long again as it has been due, at most so long."""

    async def recall(self, within_ms: int) -> None:
        """Every claim and deferral of a row that is due ends within so long."""

    async def discard(self, outbox_ids: Sequence[str]) -> None:
        """Delete rows that have no receiver who would."""

    async def read_journal(self, address: Address) -> Sequence[JournalEntry]:
        """All entries of a state, by version."""

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> Sequence[str]:
        """`body_text` of rows 1..`upto` of a conversation."""

    async def close(self) -> None:
        """Finish the running commit and release everything. Closing twice is harmless."""


class Quarantine(Protocol):
    """Where a service keeps what a broker could not deliver; every store of facts is one."""

    async def next_due_ms(self) -> tuple[Instant, Instant | None]:
        """As Store: the clock that dead letters are dated by."""

    async def count_dead_letters(self, queue: str, upto: int) -> int:
        """How many dead letters were taken from a queue, counted no further than `upto`."""

    async def commit(self, units: Sequence[Unit]) -> Sequence[CommitResult]:
        """As Store."""


# ── messages ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message handed to a worker. `outbox_id`: delete that row with the commit that applies it."""

    envelope: Envelope
    token: int
    """The inbox's own number for it."""
    outbox_id: str | None = None
    body: bytes | None = None
    """The envelope as it came, where nothing was added to it."""


class Inbox(Protocol):
    """Where a worker takes messages from."""

    async def take(self, batch_max: int) -> Sequence[Delivery]:
        """Everything waiting up to `batch_max`; waits until there is something; empty when the inbox is closed."""

    async def settle(self, done: Sequence[Delivery], back: Sequence[Delivery]) -> None:
        """`done` are applied, absorbed or parked; `back` are to come again.

        Does not raise, whatever the broker does: what was committed has yet to be answered and started.
        """


class Outlet(Protocol):
    """Where the relay publishes."""

    @property
    def connections(self) -> int:
        """How often it has reached its broker. One that was reached anew may have forgotten what it had confirmed."""

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """The ids that a broker has confirmed. The receiver of a message deletes its row, in the commit that applies
        it: what a broker forgets after it has confirmed it is published again. An outlet that reads rows raises
        ContractError for one that is no message; whatever it has taken in by then may be published again."""


class Invoker(Protocol):
    """Starts calls to the world; results enter by the inbox."""

    def monotonic_ms(self) -> float:
        """This process's time, which only goes forward, also while the process is frozen. Never compared with the
        store's clock."""

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        """Returns at once.

        `since_ms`: this process's time before the batch was loaded. Their leases have begun since, so no tool is
        called, or asked, later than limits.LEASE_MARGIN_MS after it.
        """


class Stops(Protocol):
    """Tells the processes that make calls to the world that one is no longer wanted. Best effort: the guards hold."""

    def announce(self, stop: Stop) -> None:
        """To all processes, this one included. Returns at once, and never raises."""

    def listen(self, heard: Callable[[Stop], None], missed: Callable[[], None]) -> None:
        """Who is told of each, once; and that some may have been missed, after each gap."""


class Replies(Protocol):
    """Carries answers to whoever asked."""

    async def send(self, reply_to: str, text: str) -> None:
        """Best effort, and never raises: the asker repeats with the same id if it hears nothing."""


class Mark(StrEnum):
    """What the referee is told of a key once the commit says how it stands."""

    FREE = "free"
    """Undecided: the next one may claim it."""
    SHARED = "shared"
    """Undecided, with a voice counted and others wanted: rightful voters are not told "busy" by each other's claims."""
    FINAL = "final"
    """Decided: there is nothing to race for any more."""


class Arbiter(Protocol):
    """The referee of races (DESIGN §5): its word is an opinion, never a fact.

    Neither method raises, whatever the referee's server does, and neither waits for it longer than a decision can bear.
    """

    async def claim(self, keys: Sequence[str], nonce: str) -> Sequence[bool]:
        """For each key, which names one request of one tenant: True to go on to the facts (mine, past racing, or the
        referee knows nothing), False for busy: another's claim lives, so ask again. A key is busy for no longer than
        limits.CLAIM_LEASE_MS at a time. The same nonce may claim again what it holds."""

    async def finish(self, marks: Mapping[str, Mark], nonce: str) -> None:
        """How claimed keys stand after the commit. Best effort: a claim that is not finished lapses by itself."""


class Clock(Protocol):
    """A wall clock, for adapters that have no server to ask."""

    def now_ms(self) -> Instant: ...


Changed = Mapping[str, Collection[str]]
"""What somebody may like to look at: for each run what now stands how, as `machine:status`. A hint, never a fact."""


class Door(Protocol):
    """How the gateway reaches the machines: it publishes like anybody else and waits for the answer."""

    async def ask(self, message: Message, *, message_id: str, timeout_ms: int) -> str | None:
        """The receipt as JSON (machine.Receipt), or None when none came in time: the outcome is unknown, and the
        asker repeats with the same ids. A cancelled caller does not undo what was asked.

        Raises RetryableError when the machines cannot be reached."""

    def changes(self, run_id: str | None) -> AsyncIterator[None]:
        """A hint each time something of that run (or of any run) was committed; coalesced, never a fact."""


class Models(Protocol):
    """Asks a model for one turn."""

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """The reply. Raises ActivityError with the failure as a value; never retries by itself."""

    async def close(self) -> None:
        """End every connection. Closing twice is harmless."""


@runtime_checkable
class AtHand(Protocol):
    """Of Models, those that are functions of this process: asking one costs nothing and may be repeated."""

    def is_at_hand(self, agent: str) -> bool:
        """Whether the agent's model is one."""

    def reply(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        """The reply. Raises ActivityError with the failure as a value."""


@runtime_checkable
class Streaming(Protocol):
    """Of Models, those that tell a reply as it comes."""

    async def stream(
        self, activity: CallModel, conversation: Sequence[ChatMessage], said: Callable[[str], None]
    ) -> ModelReply:
        """As Models.call; `said` gets each piece of the reply's text, in order, where the model gives it in pieces."""


class Partials(Protocol):
    """Carries pieces of replies to whoever watches. Best effort, and never a fact."""

    def listens(self, run_id: str) -> bool:
        """Whether anybody may be watching: telling nobody can be spared."""

    def tell(self, partial: Partial) -> None:
        """Returns at once, and never raises."""


class Overheard(Protocol):
    """Where those pieces can be heard."""

    def overhear(self, run_id: str, heard: Callable[[Partial], None]) -> Callable[[], None]:
        """From now on `heard` gets the pieces of this run's replies, until what is returned is called. It must neither
        wait nor raise."""


BeginLeft = Callable[[], float]
"""How many milliseconds are left for a call to begin. Below 0 it must not: others may act when its lease has ended.
May be asked in any thread."""


class Tools(Protocol):
    """Runs one attempt of a tool, or asks its world about one. Never raises, never retries.

    `begin_left_ms` is asked at the last moment before the tool's code is called, in the thread that calls it.
    """

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """What the attempt came to; `calls.not_begun` where it was too late to begin."""

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """What is known of the attempt; `calls.probe_not_begun` where it was too late to ask."""


class Gates(Protocol):
    """Asks gates outside. Never raises, never retries."""

    async def ask(self, activity: AskGate) -> OutsideAnswer:
        """What the gate says; `failed` for everything that is no answer."""

    async def close(self) -> None:
        """End every connection. Closing twice is harmless."""


class ActivityError(Exception):
    """A call to the world failed; what crosses the border is the failure as a value."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def handle_lost(what: str) -> ActivityError:
    """What an adapter raises whose live session (`CallModel.handle`) is gone. It opens no other one in its place: what
    was said there is known to nobody else, and an agent that has forgotten it would do it again (K04)."""
    return ActivityError(Failure(code=Code.HANDLE_LOST, message=what))
