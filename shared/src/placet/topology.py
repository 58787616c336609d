"""Decides which queue a message goes to, and what a broker must hold for that: exchanges, queues, bindings, as data.

Pure: an adapter declares it in a deploy step and checks it at every start (DESIGN §9). One queue per service, and one
of their own for what wakes a waiting run, for what signals a running tool, and for what outsiders may say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from placet import limits
from placet.canonical import digest
from placet.errors import Code, ContractError, InvariantError
from placet.messages import (
    APPROVAL,
    OPERATION,
    RUN,
    THREAD,
    ApprovalDecided,
    CancelOperation,
    DecideApproval,
    FreezeOperations,
    Message,
    OperationMessage,
    SubmitRun,
)

DISPATCHER = "dispatcher"
RESUME = "resume"
PLANNER = "planner"
TOOL_EXECUTOR = "tool-executor"
APPROVALS = "approval"

QUEUES: dict[str, str] = {
    DISPATCHER: RUN,
    RESUME: RUN,
    PLANNER: THREAD,
    TOOL_EXECUTOR: OPERATION,
    APPROVALS: APPROVAL,
}
"""Each queue and the machine that serves it."""

EVENTS = "events"
"""The destination of what the outside may listen to; no machine serves it."""

_QUEUE_OF = {RUN: DISPATCHER, THREAD: PLANNER, OPERATION: TOOL_EXECUTOR, APPROVAL: APPROVALS}


def queue_of(message: Message) -> str:
    """The queue a message is published to.

    An approval that wakes a run has a queue of its own, so that a flood of submissions never delays it. What is for an
    operation goes to the pool that it names.
    """
    machine = message.to().machine
    if machine == RUN and isinstance(message, ApprovalDecided):
        return RESUME
    if machine == OPERATION:
        if isinstance(message, OperationMessage):
            return tool_pool(message.pool)
        return tool_pool(message.asker_pool if isinstance(message, ApprovalDecided) else "")
    return _QUEUE_OF[machine]


# ── what a broker holds ────────────────────────────────────────────────────────────────

PREFIX = "placet."
WORK_EXCHANGE = "placet.work"
"""Between services. Nobody else may write to it; whatever is forged on it is harmless (DESIGN §7)."""
SUBMISSIONS_EXCHANGE = "placet.submissions"
"""Outsiders publish `run.submit` here, and nothing else."""
DECISIONS_EXCHANGE = "placet.decisions"
"""Outsiders publish signed `approval.decide` here, and nothing else. Of its own: a right to write is by exchange."""
EVENTS_EXCHANGE = "placet.events"
"""Topic. Services publish `run.*` and `approval.*` as CloudEvents, and hints for open windows; anybody may listen."""
STOPS_EXCHANGE = "placet.stops"
"""Says which calls to the world are no longer wanted, by their machine; whoever makes such calls listens."""
PARTIALS_EXCHANGE = "placet.partials"
"""Says what models are saying, for open windows. Not on the events exchange, where anybody may listen."""
PARTIALS_KEY = "partial"
DEAD_EXCHANGE = "placet.dead"
DEAD_QUEUE = "placet.dead"
"""Where what nobody could handle is kept until a person has looked at it."""
HINTS_KEY = "hint"
"""Routing key of hints on the events exchange, one a line: what now stands how, as `machine:status` with commas
between, a tab, and the run's id. An empty hint says that more was committed than fits into one."""
INGRESS = f"{PREFIX}ingress."
"""What the names of queues begin with that outsiders fill."""
SUBMISSIONS_QUEUE = f"{INGRESS}submissions"
DECISIONS_QUEUE = f"{INGRESS}decisions"
SUBMIT_KEY: str = SubmitRun.model_fields["type"].default
DECIDE_KEY: str = DecideApproval.model_fields["type"].default

_CONTROL = ".control"
_CONTROL_TYPES = frozenset(
    kind.model_fields["type"].default for kind in (CancelOperation, ApprovalDecided, FreezeOperations)
)
"""What must reach an executor although all its places are taken."""

KEPT_FOR_EVER = 1_000_000_000
"""A delivery limit that looking never reaches. RabbitMQ 4 puts 20 where none is given, and drops without a word."""
PACK_MAX = 32
"""Messages for one service in one AMQP message: one hop costs 0.4 ms of CPU whatever it carries (DESIGN §2)."""
PACK_TURNS_MAX = 8
PACK_CALLS_MAX = 4
"""Toward models and tools: small, so that slow work spreads over planners and executors."""
PREFETCH = 128
"""AMQP messages that a consumer holds: the batch in work and the next one."""
PREFETCH_TURNS = 16
PREFETCH_CALLS = 8
"""Toward models and tools: few, so that one that is stuck holds little of what others could do."""
LENGTH_MAX = 100_000
"""AMQP messages a queue takes before it refuses more. What is refused stays an outbox row, or with its publisher."""
BYTES_MAX = 512 * 1024 * limits.KIB
INGRESS_DELIVERIES_MAX = 100
"""Deliveries of what only its publisher holds besides us: parked later than what is a row as well."""


class Kind(StrEnum):
    """Exchange types."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable quorum queue that loses nothing: what it cannot take is refused, what it gives up is dead-lettered."""

    name: str
    delivery_limit: int = limits.DELIVERIES_MAX
    dead_letters: bool = True
    """False for the last queue of all, which has nowhere to send anything."""
    length_max: int = LENGTH_MAX
    bytes_max: int = BYTES_MAX

    def arguments(self) -> dict[str, str | int]:
        """The arguments of the declaration; understood alike by RabbitMQ 3.10 and 4.x.

        At-least-once dead-lettering needs `reject-publish`. The routing key of a dead letter names its queue.
        """
        arguments: dict[str, str | int] = {
            "x-queue-type": "quorum",
            "x-delivery-limit": self.delivery_limit,
            "x-overflow": "reject-publish",
            "x-max-length": self.length_max,
            "x-max-length-bytes": self.bytes_max,
            "x-queue-leader-locator": "balanced",
        }
        if self.dead_letters:
            arguments |= {
                "x-dead-letter-exchange": DEAD_EXCHANGE,
                "x-dead-letter-routing-key": self.name,
                "x-dead-letter-strategy": "at-least-once",
            }
        return arguments


@dataclass(frozen=True, slots=True)
class Binding:
    """What reaches a queue."""

    exchange: str
    key: str
    queue: str


@dataclass(frozen=True, slots=True)
class Route:
    """How a row is published."""

    exchange: str
    key: str
    pack_max: int = 1
    mandatory: bool = True
    """Whether a message that reaches no queue is an error. Events may have no listener."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a service consumes."""

    queue: str
    prefetch: int
    public: bool = False
    """Written by outsiders: bodies and properties are read with suspicion."""
    throttled: bool = False
    """Starts calls to the world: taken only while there is room for them."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that the deploy step declares and that services rely on."""

    pools: tuple[str, ...]
    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]
    routes: dict[str, Route] = field(repr=False)
    """By destination."""
    sources: dict[str, tuple[Source, ...]] = field(repr=False)
    """By service: a destination that a machine serves."""

    @property
    def public_queues(self) -> frozenset[str]:
        """The queues to which outsiders write."""
        return frozenset(source.queue for sources in self.sources.values() for source in sources if source.public)

    def route(self, destination: str, message_type: str) -> Route:
        """How a row of the outbox travels. Raises InvariantError for a destination that nobody serves.

        A pool that is not set up here may be so elsewhere: whether it has a queue, the broker knows.
        """
        if destination == EVENTS:
            return Route(EVENTS_EXCHANGE, message_type, mandatory=False)
        if destination.startswith(TOOL_EXECUTOR) and message_type in _CONTROL_TYPES:
            destination = destination.removesuffix(_CONTROL) + _CONTROL  # what is passed on names its queue
        if destination not in self.routes:
            pool = destination.removeprefix(f"{TOOL_EXECUTOR}.").removesuffix(_CONTROL)
            if destination.startswith(f"{TOOL_EXECUTOR}.") and is_pool(pool):
                return Route(WORK_EXCHANGE, destination, _pack_max(destination))
            raise InvariantError(f"no queue serves the destination {destination!r}")
        return self.routes[destination]

    def marker(self) -> str:
        """Name of an exchange that exists where exactly this has been declared.

        A service that may not declare can still ask whether a name exists, but not what arguments a queue has.
        """
        content = {
            "exchanges": [[exchange.name, exchange.kind.value] for exchange in self.exchanges],
            "queues": [[queue.name, queue.arguments()] for queue in self.queues],
            "bindings": [[binding.exchange, binding.key, binding.queue] for binding in self.bindings],
        }
        return f"{PREFIX}topology.{digest(content)[:16]}"


POOL_NAMES = "a word of lower-case letters, digits and '-', at most 64, other than 'control'"
_POOL = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


def is_pool(name: str) -> bool:
    """Whether a pool of tool executors beside the common one can be called so."""
    return _POOL.fullmatch(name) is not None and name != _CONTROL[1:]


def tool_pool(pool: str) -> str:
    """The destination of a pool of tool executors; the empty name is the common one."""
    return f"{TOOL_EXECUTOR}.{pool}" if pool else TOOL_EXECUTOR


def make_topology(pools: Iterable[str] = ()) -> Topology:
    """The topology with these pools of tool executors beside the common one.

    Raises ContractError(SETTING_INVALID) for a pool name that is no plain word.
    """
    names = tuple(dict.fromkeys(pools))
    for name in names:
        if not is_pool(name):
            raise ContractError(Code.SETTING_INVALID, f"a tool pool is named by {POOL_NAMES}, not by {name!r}")
    tools = [tool_pool(""), *map(tool_pool, names)]
    work = [DISPATCHER, RESUME, PLANNER, APPROVALS, *tools, *(tool + _CONTROL for tool in tools)]
    ingress = {
        SUBMISSIONS_QUEUE: (SUBMISSIONS_EXCHANGE, SUBMIT_KEY, DISPATCHER),
        DECISIONS_QUEUE: (DECISIONS_EXCHANGE, DECIDE_KEY, APPROVALS),
    }
    sources: dict[str, tuple[Source, ...]] = {
        name: (Source(PREFIX + name, PREFETCH),) for name in (DISPATCHER, RESUME, APPROVALS)
    }
    sources[PLANNER] = (Source(PREFIX + PLANNER, PREFETCH_TURNS, throttled=True),)
    for tool in tools:
        sources[tool] = (
            Source(PREFIX + tool + _CONTROL, PREFETCH),
            Source(PREFIX + tool, PREFETCH_CALLS, throttled=True),
        )
    for queue, (_, _, service) in ingress.items():
        sources[service] += (Source(queue, PREFETCH, public=True),)
    return Topology(
        pools=names,
        exchanges=(
            Exchange(WORK_EXCHANGE, Kind.DIRECT),
            Exchange(SUBMISSIONS_EXCHANGE, Kind.DIRECT),
            Exchange(DECISIONS_EXCHANGE, Kind.DIRECT),
            Exchange(EVENTS_EXCHANGE, Kind.TOPIC),
            Exchange(STOPS_EXCHANGE, Kind.DIRECT),
            Exchange(PARTIALS_EXCHANGE, Kind.DIRECT),
            Exchange(DEAD_EXCHANGE, Kind.FANOUT),
        ),
        queues=(
            Queue(DEAD_QUEUE, delivery_limit=KEPT_FOR_EVER, dead_letters=False, bytes_max=2 * BYTES_MAX),
            *(Queue(PREFIX + name) for name in work),
            *(Queue(name, delivery_limit=INGRESS_DELIVERIES_MAX) for name in ingress),
        ),
        bindings=(
            Binding(DEAD_EXCHANGE, "", DEAD_QUEUE),
            *(Binding(WORK_EXCHANGE, name, PREFIX + name) for name in work),
            *(Binding(exchange, key, queue) for queue, (exchange, key, _) in ingress.items()),
        ),
        routes={name: Route(WORK_EXCHANGE, name, _pack_max(name)) for name in work},
        sources=sources,
    )


def _pack_max(name: str) -> int:
    if name == PLANNER:
        return PACK_TURNS_MAX
    return PACK_CALLS_MAX if name.startswith(TOOL_EXECUTOR) and not name.endswith(_CONTROL) else PACK_MAX
