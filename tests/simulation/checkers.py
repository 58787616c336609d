"""Decides what must be true of answers as they arrive, of a world at rest, and of a finished one.

The numbers are those of the list of invariants; what one commit can show is checked in `ledger`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from placet import limits
from placet.canonical import canonical_text
from placet.columns import ENDED, FIELDS, KEYS, values_of
from placet.decision_words import WORDS_FOR
from placet.errors import Code
from placet.ids import Address
from placet.messages import APPROVAL, OPERATION, RUN, DecideApproval
from placet.requests import ApprovalRequest, successor_id
from placet.retries import RetryInputs, decide
from placet.rows import AttemptEndRow, AttemptRow, OutcomeRow, Row
from placet.runtime.ports import OutboxRow
from placet.runtime.replay import replay
from placet.statuses import OPERATION_TERMINAL, RUN_TERMINAL
from placet.values import PrincipalKind
from tests.simulation.application import LOOK
from tests.simulation.expected import HARMLESS, End, expected
from tests.simulation.people import answers_to
from tests.simulation.ports import at_once

if TYPE_CHECKING:
    from tests.simulation.world import World


REPLAY_EVERY = 2
"""One world in so many is replayed from its journals, which takes as long as a quarter of all else."""


HELD_BACK = ("operation.execute", "gate.lease_ended")
"""What is on its way for a run while nobody works for it: an order that a freeze holds back, a gate that is asked."""


class Checker:
    """The invariants over answers and over the world as a whole."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[str, str] = {}
        self._accepted: dict[str, str] = {}
        self._revoked: list[ApprovalRequest] = []
        self.ends: dict[str, End] = {}
        self._bodies: dict[Address, tuple[int, dict[str, Any]]] = {}

    def _check(self, condition: bool, invariant: str, text: str) -> None:
        self._world.history.check(condition, invariant, text)

    def body(self, address: Address) -> dict[str, Any]:
        """The state at an address as plain JSON; empty where there is none."""
        write = self._world.ledger.states.get(address)
        if write is None:
            return {}
        known = self._bodies.get(address)
        if known is None or known[0] != write.version:
            known = self._bodies[address] = (write.version, json.loads(write.body))
        return known[1]

    # ── what is published ──────────────────────────────────────────────────────────────

    def published(self, row: OutboxRow) -> None:
        """A relay publishes a row: one that was committed."""
        sent = self._world.ledger.sent.get(row.id)
        committed = sent is not None and sent.body == row.body
        self._check(committed, "I16", f"published {row.type} {row.id}, which nobody committed")

    # ── what people are told ───────────────────────────────────────────────────────────

    def answered(self, message: DecideApproval, key: str, text: str) -> None:
        """A final answer has reached somebody: true now and for ever, and the same for the same decision."""
        history, ledger = self._world.history, self._world.ledger
        answer = json.loads(text)
        word = answer["answer"]
        history.sometimes[f"decision: {word}"] += 1
        before = self._told.setdefault(key, text)
        self._check(before == text, "I6", f"{key} was told {before} and then {text}")
        request = ledger.requests.get(message.request_id)
        outcome = ledger.outcomes.get(message.request_id)
        name = f"{message.request_id} {message.decision_id}"
        if word in ("accepted", "duplicate"):
            votes = [vote for vote in ledger.votes[message.request_id] if vote.decision_id == message.decision_id]
            self._check(len(votes) == 1, "I2", f"{name} was told {word}, but {len(votes)} votes are recorded")
            self._check(
                not votes or votes[0].decision == message.decision, "I2", f"{name} was told {word} of another word"
            )
        elif word == "conflict":
            self._conflict(message, answer, outcome, name)
        elif word == "expired":
            self._check(
                outcome is not None and outcome.outcome == "expired",
                "I5",
                f"{name} was told expired, but it is {outcome}",
            )
        elif word == "closed":
            closed = outcome is not None and outcome.outcome in ("cancelled", "superseded")
            self._check(
                closed or message.request_id in ledger.revocations, "I5", f"{name} was told closed, but it is {outcome}"
            )
        elif word == "stale":
            self._check(request is None or request.request_hash != message.request_hash, "I5", f"{name} was told stale")
        elif word == "not_allowed":
            own = request is not None and message.reviewer.id == request.initiator
            edited = request is not None and message.decision == "approve" and message.reviewer.id in request.requesting
            own = own or edited
            own = own or (request is not None and not _may_decide(request, message.reviewer.id))
            self._check(own or message.reviewer.kind is not PrincipalKind.HUMAN, "I5", f"{name} was told not allowed")
        elif word == "refused":
            told = answer["failure"]["code"]
            unsigned = told == Code.SIGNATURE_INVALID and message.reviewer.kind is not PrincipalKind.HUMAN
            self._check(unsigned, "I5", f"{name} was refused: {told}")
        elif word == "invalid":
            fits = request is not None and message.decision in WORDS_FOR[request.scope]
            if fits and request is not None and request.scope == "question" and message.decision == "respond":
                fits = message.value_text == canonical_text(answers_to(request)[0])
            self._check(not fits, "I5", f"{name} was told invalid")
        else:
            history.violate("I5", f"{name} was told {text}")

    def _conflict(self, message: DecideApproval, answer: dict[str, Any], outcome: OutcomeRow | None, name: str) -> None:
        ledger = self._world.ledger
        if answer.get("outcome") is not None:
            won = outcome is not None and (outcome.outcome, outcome.decided_by) == (
                answer["outcome"],
                answer.get("decided_by"),
            )
            self._check(
                won, "I5", f"{name} lost to {answer['outcome']} by {answer.get('decided_by')}, but it is {outcome}"
            )
            mine = outcome is not None and outcome.decision_id == message.decision_id
            used = mine and any(
                a.answer == "accepted"
                for a in ledger.answers[message.request_id]
                if a.decision_id == message.decision_id
            )
            self._check(not mine or used, "I5", f"{name} lost to itself")
            return
        voted = any(vote.person_id == message.reviewer.id for vote in ledger.votes[message.request_id])
        used = any(attempt.decision_id == message.decision_id for attempt in ledger.answers[message.request_id])
        self._check(voted or used, "I5", f"{name} was told conflict, but with whom?")

    def revoked(self, request: ApprovalRequest) -> None:
        """Somebody was told that an approval is taken back; that nothing starts on it now, the ledger checks."""
        self._check(request.request_id in self._world.ledger.revocations, "I2", f"{request.request_id} is not revoked")

    # ── runs ───────────────────────────────────────────────────────────────────────────

    def run_statuses(self) -> dict[str, str]:
        """The status of every run of the workload."""
        states = self._world.ledger.states
        found = {run.run_id: states.get(Address(run.run_id, RUN, "")) for run in self._world.workload.runs}
        return {run_id: state.status if state is not None else "unknown" for run_id, state in found.items()}

    def is_known(self, run_id: str) -> bool:
        """Whether the run was submitted."""
        return Address(run_id, RUN, "") in self._world.ledger.states

    def unfinished(self) -> list[str]:
        """Runs that have not ended."""
        refused = self._world.refused
        return [
            run_id
            for run_id, status in self.run_statuses().items()
            if status not in RUN_TERMINAL and not (status == "unknown" and run_id in refused)
        ]

    def open_requests(self) -> list[ApprovalRequest]:
        """Questions without an outcome, the oldest first."""
        ledger = self._world.ledger
        return [request for request in ledger.requests.values() if request.request_id not in ledger.outcomes]

    # ── a world at rest ────────────────────────────────────────────────────────────────

    def at_rest(self) -> None:
        """No message is under way and nobody has anything in hand: what waits, waits for a person or for a timer."""
        ledger = self._world.ledger
        in_flight = ledger.in_flight
        open_in: dict[str, list[str]] = defaultdict(list)
        for request in self.open_requests():
            open_in[request.run_id].append(request.request_id)
        held_back = {row.run_id for row in ledger.alive.values() if row.type in HELD_BACK}
        for run_id, status in self.run_statuses().items():
            if status == "unknown":
                continue
            if status in RUN_TERMINAL:
                self._check(not open_in[run_id], "I30", f"{run_id} is {status}, and {open_in[run_id]} are still open")
                continue
            if self._world.instructing.held(run_id):
                self._pending(run_id)
                continue
            if status == "suspended":
                self._check(
                    bool(open_in[run_id]), "I15", f"{run_id} is suspended, and nobody has a question before them"
                )
                self._check(
                    not in_flight[run_id] - ledger.jumped,
                    "I26",
                    f"{run_id} is suspended, and {in_flight[run_id]} are in flight",
                )
            else:
                at_work = bool(in_flight[run_id]) or run_id in held_back
                self._check(at_work, "I29", f"{run_id} is {status}, and nothing of it is in flight")
            self._pending(run_id)
        self._waking()

    def _pending(self, run_id: str) -> None:
        """What the run waits for is what people have before them: each question once, none forgotten, none decided."""
        ledger = self._world.ledger
        waiting = {r["request_id"] for r in self.body(Address(run_id, RUN, ""))["requests"] if r["decision"] is None}
        decided = sorted(waiting & set(ledger.outcomes))
        self._check(not decided, "I15", f"{run_id} still waits for {decided}, which are decided")
        unasked = sorted(waiting - set(ledger.requests))
        self._check(not unasked, "I30", f"{run_id} waits for {unasked}, which nobody was asked")

    def _waking(self) -> None:
        """Whatever is in flight at rest will be woken by a timer."""
        runs = {row.run_id for row in self._world.ledger.alive.values()}
        for run_id, busy in self._world.ledger.in_flight.items():
            self._check(run_id in runs or not busy, "I29", f"nothing will ever wake {sorted(busy)}")

    # ── a finished world ───────────────────────────────────────────────────────────────

    def finished(self) -> None:
        """Everything has ended: the facts are whole, true to each other and to what was done in the world."""
        self.true_so_far()
        self._consumed()
        self._expected()
        self._world.instructing.check()

    def true_so_far(self) -> None:
        """What must hold whenever a world is looked at, whatever has not ended yet."""
        self._store_equals_ledger()
        if self._world.seed // 4 % REPLAY_EVERY == 0:
            self._journals_replay()
        self._audit_is_whole()
        self._operations(over=self._world.mode == "liveness")
        self._requests()
        self._retries()
        self._world.ledger.spoken.search(self._world.history)

    def _store_equals_ledger(self) -> None:
        ledger, store = self._world.ledger, self._world.store
        loaded = at_once(store.load(list(ledger.states), []))
        for address, write in ledger.states.items():
            stored = loaded.states[address]
            same = stored is not None and (stored.version, stored.status, stored.body) == (
                write.version,
                write.status,
                write.body,
            )
            self._check(same, "I3", f"{address.text()} in the store is not what was committed last")
        kept = store.snapshot()
        written: dict[str, list[dict[str, Any]]] = {table: [] for table in KEYS}
        for row in ledger.rows:
            if not isinstance(row, AttemptEndRow):
                written[row.table].append(columns_of(row, ledger.ends))
        for table in KEYS:
            same = kept[table] == sorted(written[table], key=partial(_key_of, table))
            self._check(same, "I3", f"{table} in the store is not what was written, {len(written[table])} rows")

    def _journals_replay(self) -> None:
        world = self._world
        for address, write in world.ledger.states.items():
            entries = at_once(world.store.read_journal(address))
            try:
                state = replay(world.machines[address.machine], entries)
            except Exception as error:  # noqa: BLE001  # whatever it is, the journal is not true
                world.history.violate("replay", f"{address.text()}: {type(error).__name__}: {error}")
                continue
            body = state.model_dump_json().encode() if state is not None else b""
            self._check(body == write.body, "replay", f"the journal of {address.text()} gives another state")

    def _audit_is_whole(self) -> None:
        for run_id in filter(self.is_known, self.run_statuses()):
            leaves, body = self._world.ledger.leaves[run_id], self.body(Address(run_id, RUN, ""))
            last = leaves[-1].leaf if leaves else ""
            same = (len(leaves), last) == (body.get("audit_seq"), body.get("audit_last"))
            self._check(same, "I23", f"{run_id} has {len(leaves)} leaves and knows of {body.get('audit_seq')}")

    def _operations(self, *, over: bool) -> None:
        world = self._world
        for operation_id, row in world.ledger.operations.items():
            state = world.ledger.states.get(Address(row.run_id, OPERATION, operation_id))
            status = state.status if state is not None else "not started"
            effects = len(world.outside.effects[operation_id])
            name = f"{row.tool} {operation_id} is {status}"
            ended = state is None or status in OPERATION_TERMINAL or status == "lapsed"  # which never started
            self._check(ended or not over, "I28", f"{name} in a finished world")
            if not ended:
                continue
            still_open = [
                a.n for a in world.ledger.attempts[operation_id] if (operation_id, a.n) not in world.ledger.ends
            ]
            self._check(not still_open, "I9", f"{name}, and attempt {still_open} is open")
            request = world.ledger.requests.get(row.request_id or "")
            if request is not None:
                shown = canonical_text(json.loads(request.content_text)["input"])
                self._check(shown == row.input_text, "I31", f"{name}, {row.request_id} shows another input")
            if row.tool == LOOK:
                continue
            if status == "succeeded":
                self._check(effects == 1, "I13", f"{name}, with {effects} effects")
            if status in ("refused", "not started", "lapsed"):
                self._check(effects == 0, "I13", f"{name}, with {effects} effects")
            done = world.ledger.done.get(operation_id)
            if done is not None and done["failure"] is not None:
                certainty = done["failure"]["certainty"]
                wrong = (certainty == "not_executed" and effects) or (certainty == "executed" and not effects)
                self._check(not wrong, "I13", f"{name}, {certainty} was told, with {effects} effects")

    def _requests(self) -> None:
        world = self._world
        for request_id, request in world.ledger.requests.items():
            state = world.ledger.states.get(Address(request.run_id, APPROVAL, request_id))
            outcome = world.ledger.outcomes.get(request_id)
            status = state.status if state is not None else None
            is_open = status == "open"
            self._check(
                (outcome is None) == is_open,
                "I30",
                f"{request_id} is {status} with outcome {outcome and outcome.outcome}",
            )

    def _consumed(self) -> None:
        """What was approved is done, asked about anew, or its run has ended otherwise."""
        world = self._world
        for request_id, request in world.ledger.requests.items():
            outcome = world.ledger.outcomes.get(request_id)
            if outcome is None or outcome.outcome != "approved" or request.scope != "tool_call":
                continue
            if request_id in world.ledger.revocations:
                continue
            run = self.run_statuses()[request.run_id]
            consumed = Address(request.run_id, OPERATION, request.operation_id) in world.ledger.states
            after = successor_id(request.run_id, request_id, request.generation + 1)
            consumed = consumed or after in world.ledger.requests  # not used in time, and asked for anew
            self._check(consumed or run != "succeeded", "I15", f"{request_id} was approved, and nothing came of it")

    def _retries(self) -> None:
        for (_, subject, attempt), row in self._world.ledger.retries.items():
            again = decide(RetryInputs.model_validate_json(row.inputs_text)).model_dump_json()
            same = json.loads(again) == json.loads(row.decision_text)
            self._check(same, "I27", f"the retry decision {subject}/{attempt} does not follow from its inputs")

    def _expected(self) -> None:
        """A predictable run has ended as it had to, with every effect exactly once."""
        world = self._world
        if not (world.workload.profile.predictable and set(world.faults.rates) <= HARMLESS):
            return
        done: dict[str, Counter[tuple[str, str, str]]] = defaultdict(Counter)
        for operation_id, row in world.ledger.operations.items():
            if row.tool != LOOK:
                done[row.run_id][row.task_id, row.tool, world.ledger.approved_input(row)] += len(
                    world.outside.effects[operation_id]
                )
        # Probes and workers may be lost until a person is asked, or until there have been enough of them.
        unlucky = {r.run_id for r in world.ledger.requests.values() if r.scope == "operation_outcome"}
        unlucky |= {row.run_id for row in world.ledger.retries.values() if row.attempt >= limits.ATTEMPTS_MAX}
        for run in world.workload.runs:
            if run.run_id in unlucky:
                continue
            end = expected(world.workload, run)
            body = self.body(Address(run.run_id, RUN, ""))
            name = f"{run.run_id} ({run.submit.mode})"
            self._check(body["status"] == end.status, "expected", f"{name} is {body['status']}, not {end.status}")
            self._check(body["answer"] == end.answer, "expected", f"{name} answers {body['answer']}, not {end.answer}")
            effects = +done[run.run_id]
            self.ends[run.run_id] = End(body["status"], body["answer"], effects)
            world.history.sometimes["a run ended as computed"] += 1
            self._check(effects == end.effects, "expected", f"{name} had {effects}, not {end.effects}")


def columns_of(row: Row, ends: dict[tuple[str, int], AttemptEndRow]) -> dict[str, Any]:
    """A row as its table shows it; an attempt with how it ended."""
    columns = dict(zip(FIELDS[row.table], values_of(row), strict=True))
    if isinstance(row, AttemptRow):
        end = ends.get((row.operation_id, row.n))
        columns |= {name: getattr(end, name, None) for name in ENDED}
    return columns


def _may_decide(request: ApprovalRequest, person: str) -> bool:
    return request.roster is None or person in request.roster


def _key_of(table: str, columns: dict[str, Any]) -> list[Any]:
    return [columns[name] for name in KEYS[table]]
