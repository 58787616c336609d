"""Decides what goes wrong and how often: every fault by its name, a rate per seed, its own stream of chance.

Some seeds have no faults, some a few, some many, so that faults meet in every company (swarm testing). Each fault draws
from a stream of its own: leaving one out changes nothing about when the others strike, only what they strike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from random import Random

FAULTS: Mapping[str, str] = {
    # Our own processes.
    "crash": "a process is killed at an await",
    "crash_all": "every process is killed at the same instant",
    "shutdown": "a process is asked to end: its loops are cancelled at an await",
    "freeze": "a process stands still, and goes on later believing old things",
    # The store.
    "load_fails": "the store is away when something is read",
    "commit_fails": "the store is away before a commit",
    "commit_unknown": "a commit happened, but its answer is lost",
    "commit_lost_unknown": "a commit did not happen, and nobody can tell",
    "claim_fails": "the store is away when the relay asks for due rows, or after it claimed them",
    "discard_fails": "published rows cannot be deleted",
    "store_slow": "a call to the store takes seconds",
    "clock_jumps": "the store's clock leaps forward",
    "clock_steps_back": "the store's clock goes back",
    # Messages.
    "lost": "a message whose row is still in the outbox, or whose sender repeats it, disappears",
    "wiped": "the broker forgets every message, also those that it has confirmed",
    "unconfirmed": "the broker took a message, but its confirmation is lost",
    "repeated": "a message is delivered twice",
    "reordered": "waiting messages are taken in another order",
    "delayed": "a message arrives late",
    "ack_lost": "an acknowledgement is lost, and the message is delivered again",
    "requeued": "a delivery is given to a second worker while the first still works on it",
    "reply_lost": "an answer does not reach whoever asked",
    "result_lost": "the result of a model or tool call is lost on its way",
    "forged": "somebody on the broker sends messages that are not true",
    # The referee.
    "referee_forgets": "the referee loses every claim",
    "referee_refuses": "the referee calls a free request busy",
    "referee_grants": "the referee grants what another holds",
    "referee_slow": "the referee takes its time",
    # Tools.
    "tool_never_sent": "the request of a tool never leaves, and nobody can tell",
    "tool_answer_lost": "the effect happened, the answer did not arrive",
    "tool_arrives_late": "the request of a tool arrives after its caller gave up",
    "tool_hangs": "a tool answers only after its lease",
    "tool_refuses": "a tool says that nothing happened, try again",
    "tool_denies": "a tool says that nothing happened and never will",
    "tool_reports_error": "a tool has had its effect and reports an error of its own",
    "probe_unsure": "the tool's world cannot say what happened",
    "tool_changed": "a new version of a tool is deployed while approvals wait",
    # Models.
    "model_fails": "a model call fails for the moment",
    "model_hangs": "a model answers after its lease, or never",
    "model_blunders": "a model gives a plan or a call that is not valid",
    "tool_objects": "what a call rests on does not hold any more when it is to be made",
    # Gates outside.
    "gate_fails": "a gate outside says nothing that counts",
    "gate_hangs": "a gate outside answers too late, or never",
}

TEMPERS = ("calm", "few", "few", "few", "many", "many", "many", "many", "storm", "storm")
_SELDOM = (0.01, 0.03, 0.1, 0.3)
_OFTEN = (0.05, 0.15, 0.3, 0.6)
"""For what strikes calls to the world, of which a run makes few."""
_PER_STEP = {"crash": 0.1, "shutdown": 0.05, "freeze": 0.05, "crash_all": 0.01}
"""These strike between two steps of a process, of which there are many: their rates are scaled by this."""


class Faults:
    """The faults of one seed; or those named by `only`, each as often as it can be."""

    def __init__(
        self,
        seed: int,
        *,
        temper: str | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
        forced: Collection[str] = (),
    ) -> None:
        """`forced`: those beside the seed's own, each as often as it can be."""
        self._seed = seed
        random = Random(f"{seed}/faults")
        self.temper = temper or random.choice(TEMPERS)
        share = {"calm": 0.0, "few": 0.15, "many": 0.45, "storm": 1.0}[self.temper]
        self.rates: dict[str, float] = {}
        for name in FAULTS:
            rates = _OFTEN if name.startswith(("tool_", "model_", "probe_", "result_", "gate_")) else _SELDOM
            chosen, rate = random.random() < share, random.choice(rates)
            if only is not None:
                chosen, rate = name in only, rates[-1]
            if name in forced:
                chosen, rate = True, rates[-1]
            if chosen and name not in without:
                self.rates[name] = rate * _PER_STEP.get(name, 1.0)
        self.counts: Counter[str] = Counter()
        self._streams: dict[str, Random] = {}
        self._healed = False

    def hits(self, name: str) -> bool:
        """Whether the fault strikes now."""
        rate = self.rates.get(name)
        if rate is None or self._healed or self._stream(name).random() >= rate:
            return False
        self.counts[name] += 1
        return True

    def steps_until(self, name: str) -> int | None:
        """How many steps until it strikes; None: never."""
        rate = self.rates.get(name)
        if rate is None or self._healed:
            return None
        return 1 + int(self._stream(name).expovariate(rate))

    def struck(self, name: str) -> None:
        """Count a fault that was due by `steps_until`."""
        self.counts[name] += 1

    def between(self, name: str, low: int, high: int) -> int:
        """How much, how long: a whole number from the fault's own stream."""
        return self._stream(name).randint(low, high)

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self._healed = True

    @property
    def healed(self) -> bool:
        """Whether the faults have ended."""
        return self._healed

    def schedule(self) -> str:
        """The fault schedule in one line: temper, and each fault with its rate and how often it struck."""
        parts = (f"{name}={rate:g}×{self.counts[name]}" for name, rate in sorted(self.rates.items()))
        return f"{self.temper}: {' '.join(parts) or 'no faults'}"

    def _stream(self, name: str) -> Random:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self._seed}/{name}")
        return stream
